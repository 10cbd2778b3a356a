package integration

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/integration/harness"
	"github.com/barnabas-mq/barnabas/zkcompat/jute"
)

// lostFault takes the coordinator away.
type lostFault struct {
	name  string
	late  bool // what members send at their step is sent before the fault, not into it
	begin func(c *harness.Cluster, victim *harness.Node)
	end   func(c *harness.Cluster, victim *harness.Node)
}

func others(c *harness.Cluster, victim *harness.Node, each func(other string)) {
	for _, n := range c.Nodes {
		if n != victim {
			each(n.Name)
		}
	}
}

func heal(c *harness.Cluster, _ *harness.Node) { c.Net.Heal() }

// Clients reach a coordinator that is cut off from the other nodes.
var lostFaults = []lostFault{
	{"killed", true, func(_ *harness.Cluster, n *harness.Node) { n.Kill() }, func(_ *harness.Cluster, n *harness.Node) { n.Start() }},
	{"frozen", false, func(_ *harness.Cluster, n *harness.Node) { n.Pause() }, func(_ *harness.Cluster, n *harness.Node) { n.Resume() }},
	{"cut off", false, func(c *harness.Cluster, n *harness.Node) {
		others(c, n, func(o string) { c.Net.Isolate(n.Name, o) })
	}, heal},
	{"deaf", false, func(c *harness.Cluster, n *harness.Node) {
		others(c, n, func(o string) { c.Net.Cut(o, n.Name) })
	}, heal},
	{"dumb", false, func(c *harness.Cluster, n *harness.Node) {
		others(c, n, func(o string) { c.Net.Cut(n.Name, o) })
	}, heal},
}

// lostSteps are the steps of all protocols at which the coordinator is lost.
var lostSteps = []struct {
	name  string
	brief bool // the step lasts for a moment: the group comes there last
	play  func(*scene)
}{
	{"classic: FindCoordinator", false, lostFind},
	{"classic: JoinGroup, the first member waits for others", true, lostFirstJoin},
	{"classic: JoinGroup, all but one wait", false, lostAllButOne},
	{"classic: SyncGroup of the leader is under way", false, func(s *scene) { lostSync(s, true) }},
	{"classic: SyncGroup of the others wait for the leader's", false, func(s *scene) { lostSync(s, false) }},
	{"classic: Heartbeat", false, lostHeartbeat},
	{"classic: OffsetCommit is under way", false, lostCommit},
	{"classic: LeaveGroup is under way", false, lostLeave},
	{"classic: static members are away, the leader among them", false, lostStatic},
	{"cooperative: SyncGroup of the first phase is under way", false, lostAtGate("lead", "follow")},
	{"cooperative: what was revoked is given up", false, lostAtGate("revoke", "heartbeat")},
	{"cooperative: JoinGroup of the second phase, all but one wait", false, lostSecondJoin},
	{"cooperative: SyncGroup of the second phase is under way", false, lostSecondSync},
	{"consumer: the first heartbeat", false, lostFirstBeat},
	{"consumer: the word that partitions were given up is under way", false, func(s *scene) { lostRevoked(s, true) }},
	{"consumer: given up, not yet given to the next", false, func(s *scene) { lostRevoked(s, false) }},
	{"consumer: leaving", false, lostFarewell},
	{"consumer: the word that a static member goes for a while is under way", false, func(s *scene) { lostAway(s, true) }},
	{"consumer: a static member is away", false, func(s *scene) { lostAway(s, false) }},
	{"znodes: registration, the settle window is open", true, lostSettle},
	{"znodes: registration is held for a generation", false, func(s *scene) { lostRegister(s, false) }},
	{"znodes: registration by setData is held", false, func(s *scene) { lostRegister(s, true) }},
	{"znodes: ids are listed", false, lostList},
	{"znodes: a read of an offset is held", false, lostRead},
	{"znodes: a claim is held", false, lostClaim},
	{"znodes: a release is under way", false, lostRelease},
	{"znodes: an offset is being written", false, lostWrite},
	{"mixed: from an old member to a consumer", false, lostToConsumer},
	{"mixed: from a consumer to an old member", false, lostToElder},
	{"mixed: a classic member waits for an old one", false, lostToClassic},
}

// TestCoordinatorLost takes the coordinator away at every step of every protocol at once: one group at each step, one fault for all. The
// members find the next one, the group is stable again, generations rise, no commit of an old one is taken, by the next coordinator nor by
// the one before when it comes back, and no session of a znode consumer ends.
func TestCoordinatorLost(t *testing.T) {
	c := harness.Start(t, harness.Options{Nodes: 3, Proxied: true})
	harness.CreateTopic(t, c.Brokers(), lostTopic, lostPartitions, 3, nil)
	details, err := kadm.NewClient(harness.Client(t, c.Brokers())).ListTopics(t.Context(), lostTopic)
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range lostFaults {
		t.Run(strings.ReplaceAll(f.name, " ", "-"), func(t *testing.T) {
			loseCoordinator(t, c, details[lostTopic].ID, i)
		})
		if t.Failed() {
			return // the cluster may not be whole
		}
	}
}

func loseCoordinator(t *testing.T, c *harness.Cluster, topic [16]byte, fault int) {
	f, begun := lostFaults[fault], time.Now()
	st := newStage(t, c, topic)
	defer st.end()
	for i, step := range lostSteps {
		st.scenes = append(st.scenes, &scene{stage: st, name: step.name, group: fmt.Sprintf("lost-%d-%d", fault, i), play: step.play,
			parked: make(chan struct{}), over: make(chan struct{}), quit: make(chan struct{}), owner: map[int32]string{}})
	}
	st.played(f)
	played := time.Now()
	st.zombies(func() { f.end(c, st.victim) })
	now, _ := st.coordinator()
	longest, slow := time.Duration(0), st.lateness()
	for _, s := range st.scenes {
		if s.dead() {
			continue
		}
		if err := s.tale(now.Admin); err != nil {
			t.Errorf("%s: %v", s.name, err)
		}
		longest = max(longest, s.settled)
		t.Logf("%-62s stable %6v after the election %s", s.name, s.settled.Round(time.Millisecond), s.note)
	}
	t.Logf("%s: the next coordinator led %v after it, was named %v after that; all stable %v after the election, goal 3 s (this process was late by %v); whole again in %v, all in %v",
		f.name, st.led.Sub(st.began).Round(time.Millisecond), st.found.Sub(st.led).Round(time.Millisecond), longest.Round(time.Millisecond),
		slow.Round(time.Millisecond), time.Since(played).Round(time.Millisecond), time.Since(begun).Round(time.Millisecond))
	if limit := 10*time.Second + 5*slow; longest > limit {
		t.Errorf("%s: a group was stable %v after the election of the next coordinator, limit %v", f.name, longest, limit)
	}
}

// ---- classic ----

// beyond has the group go on to another generation, and a commit of the one before refused.
func beyond(s *scene, members ...*classic) {
	m := members[0]
	id, old := m.place()
	const offset = 1000
	if code := s.commit(id, old, 0, offset); code != 0 {
		s.fatal("a commit of the present generation %d: %v", old, kerr.ErrorForCode(code))
	}
	m.resubscribe()
	s.stable(len(members), func() error {
		if _, now := m.place(); now <= old {
			return fmt.Errorf("generation %d goes on", old)
		}
		return inOne(members...)()
	})
	s.refused(zombie{member: id, generation: old, partition: 0, keeps: offset}, kerr.IllegalGeneration)
}

func (s *scene) three() (a, b, c *classic) {
	a, b, c = s.classic("a").live(), s.classic("b").live(), s.classic("c").live()
	s.stable(3, inOne(a, b, c))
	return a, b, c
}

func lostFind(s *scene) {
	s.struckHere()
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.Version, req.CoordinatorKey = 3, s.group
	p := s.peer()
	p.ask(req) // at the one that is lost, unless the next is known
	p.close()
	a := s.classic("a").live()
	s.stable(1, inOne(a))
	beyond(s, a)
}

func lostFirstJoin(s *scene) {
	a := s.classic("a").live()
	p := s.peer()
	s.until("a member waits", func() error { return s.described(p, "PreparingRebalance", 1) })
	p.close()
	s.struckHere()
	if a.is("join") != nil {
		s.note = "(it had been let in before)"
	}
	s.stable(1, inOne(a))
	beyond(s, a)
}

func lostAllButOne(s *scene) {
	a, b, c := s.three()
	c.close("join")
	_, before := a.place()
	a.resubscribe()
	s.awaitDoing(&a.gates, "join")
	s.awaitDoing(&b.gates, "join")
	s.awaitDoing(&c.gates, "at join")
	s.struckHere()
	<-s.elected
	c.open("join")
	s.stable(3, inOne(a, b, c))
	if _, now := a.place(); now <= before {
		s.fatal("generation %d after %d", now, before)
	}
	beyond(s, a, b, c)
}

// lostSync: sent tells whether the leader's assignment is on its way, or the leader still thinks.
func lostSync(s *scene, sent bool) {
	all := []*classic{s.classic("a"), s.classic("b"), s.classic("c")}
	for _, m := range all {
		m.close("lead")
		m.live()
	}
	s.until("two wait for the leader", func() error {
		doing := map[string]int{}
		for _, m := range all {
			for _, what := range []string{"follow", "at lead"} {
				if m.is(what) == nil {
					doing[what]++
				}
			}
		}
		if doing["follow"] != 2 || doing["at lead"] != 1 {
			return fmt.Errorf("%v", doing)
		}
		return nil
	})
	s.struckHere()
	if !sent {
		<-s.elected
	}
	for _, m := range all {
		m.open("lead")
	}
	s.stable(3, inOne(all...))
	beyond(s, all...)
}

func lostHeartbeat(s *scene) {
	a, b, c := s.three()
	_, before := a.place()
	s.struckHere()
	<-s.elected
	s.stable(3, inOne(a, b, c))
	if _, now := a.place(); now != before {
		s.fatal("the fault alone led from generation %d to %d", before, now)
	}
	beyond(s, a, b, c)
}

func lostCommit(s *scene) {
	a, b, c := s.three()
	id, generation := a.place()
	if code := s.commit(id, generation, 1, 40); code != 0 {
		s.fatal("commit: %v", kerr.ErrorForCode(code))
	}
	s.struckHere()
	if code := s.commit(id, generation, 1, 50); code != 0 {
		s.fatal("a commit that was repeated: %v", kerr.ErrorForCode(code))
	}
	<-s.elected
	s.stable(3, inOne(a, b, c))
	if at := s.offset(1); at != 50 {
		s.fatal("offset 50 was committed, %d is there", at)
	}
	beyond(s, a, b, c)
	if at := s.offset(1); at != 50 {
		s.fatal("offset 50 was committed, %d is there after a rebalance", at)
	}
}

func lostLeave(s *scene) {
	a, b, c := s.three()
	id, generation := c.place()
	if code := s.commit(id, generation, 2, 40); code != 0 {
		s.fatal("commit: %v", kerr.ErrorForCode(code))
	}
	s.struckHere()
	c.leave()
	<-s.elected
	s.stable(2, inOne(a, b))
	s.refused(zombie{member: id, generation: generation, partition: 2, keeps: 40}, kerr.UnknownMemberID)
	beyond(s, a, b)
}

// lostStatic: members that come back as the instances that they were have what they had, and nobody else notices. Who comes as they were
// before is fenced.
func lostStatic(s *scene) {
	all := []*classic{s.classic("a"), s.classic("b"), s.classic("c")}
	static(all...)
	for _, m := range all {
		m.live()
	}
	s.stable(3, inOne(all...))
	leader := slices.IndexFunc(all, (*classic).leads)
	all[0], all[leader] = all[leader], all[0]
	_, generation := all[0].place()
	ids, parts, joins := []string{}, [][]int32{}, all[2].answered()
	for _, m := range all[:2] {
		id, _ := m.place()
		ids, parts = append(ids, id), append(parts, m.parts())
		m.vanish()
	}
	if code := s.commits(zombie{member: ids[1], generation: generation, partition: 1, instance: all[1].instance}, 40); code != 0 {
		s.fatal("commit: %v", kerr.ErrorForCode(code))
	}
	s.struckHere()
	<-s.elected
	for i, m := range all[:2] {
		back := s.classic(m.name + "2")
		back.instance = m.instance
		all[i] = back.live()
	}
	s.stable(3, inOne(all...))
	for i, m := range all[:2] {
		id, now := m.place()
		if now != generation || !slices.Equal(m.parts(), parts[i]) || id == ids[i] {
			s.fatal("%s is back as %s in generation %d with %v, it was %s in %d with %v", m.name, id, now, m.parts(), ids[i], generation, parts[i])
		}
		s.fenced(m, ids[i], generation)
		s.refused(zombie{ids[i], generation, 1, 40, m.instance}, kerr.FencedInstanceID)
	}
	if now := all[2].answered(); now != joins {
		s.fatal("the member that stayed joined %d times meanwhile", now-joins)
	}
	beyond(s, all...)
}

// fenced has who was replaced ask as it did before: each time it hears that it was fenced.
func (s *scene) fenced(m *classic, memberID string, generation int32) {
	p := s.peer()
	defer p.close()
	beat := kmsg.NewPtrHeartbeatRequest()
	beat.Version, beat.Group, beat.MemberID, beat.InstanceID, beat.Generation = 4, s.group, memberID, m.instance, generation
	sync := kmsg.NewPtrSyncGroupRequest()
	sync.Version, sync.Group, sync.MemberID, sync.InstanceID, sync.Generation = 3, s.group, memberID, m.instance, generation
	join := m.joinRequest()
	join.MemberID = memberID
	for _, code := range []int16{p.ask(beat).(*kmsg.HeartbeatResponse).ErrorCode, p.ask(sync).(*kmsg.SyncGroupResponse).ErrorCode,
		p.ask(join).(*kmsg.JoinGroupResponse).ErrorCode} {
		if code != kerr.FencedInstanceID.Code {
			s.fatal("%s, which was replaced, is answered %v", memberID, kerr.ErrorForCode(code))
		}
	}
}

// ---- classic, by two phases (KIP-429) ----

// cooperatives are two members with everything between them, and a third that comes when the gate is shut for all.
func (s *scene) cooperatives(shut string) []*classic {
	all := []*classic{s.classic("a"), s.classic("b"), s.classic("c")}
	for _, m := range all {
		m.cooperative = true
	}
	s.stable(2, inOne(all[0].live(), all[1].live()))
	for _, m := range all {
		m.close(shut)
	}
	all[2].live()
	return all
}

// doing returns when so many members do each thing.
func (s *scene) doing(all []*classic, want map[string]int) {
	s.until("the members are at their step", func() error {
		got := map[string]int{}
		for _, m := range all {
			for what := range want {
				if m.is(what) == nil {
					got[what]++
				}
			}
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("%v, want %v", got, want)
		}
		return nil
	})
}

func open(all []*classic, gate string) {
	for _, m := range all {
		m.open(gate)
	}
}

// cooperated checks that the third member got one partition, and that nobody gave up anything else meanwhile.
func (s *scene) cooperated(all []*classic) {
	s.stable(3, inOne(all...))
	var revoked []int32
	for _, m := range all {
		m.state.Lock()
		revoked = append(revoked, m.revoked...)
		m.state.Unlock()
	}
	if !slices.Equal(revoked, all[2].parts()) || len(revoked) != 1 {
		s.fatal("the members gave up %v, the one that came has %v", revoked, all[2].parts())
	}
	beyond(s, all...)
}

// lostAtGate: one of three is about to take a step, and the others do what they do until it has.
func lostAtGate(gate, others string) func(*scene) {
	return func(s *scene) {
		all := s.cooperatives(gate)
		s.doing(all, map[string]int{"at " + gate: 1, others: 2})
		s.struckHere()
		open(all, gate)
		s.cooperated(all)
	}
}

func lostSecondJoin(s *scene) {
	all := s.cooperatives("revoke")
	s.doing(all, map[string]int{"at revoke": 1, "heartbeat": 2})
	all[2].close("join")
	open(all, "revoke")
	s.doing(all, map[string]int{"join": 2, "at join": 1})
	s.struckHere()
	<-s.elected
	all[2].open("join")
	s.cooperated(all)
}

func lostSecondSync(s *scene) {
	all := s.cooperatives("revoke")
	s.doing(all, map[string]int{"at revoke": 1, "heartbeat": 2})
	for _, m := range all {
		m.close("lead")
	}
	open(all, "revoke")
	s.doing(all, map[string]int{"at lead": 1, "follow": 2})
	s.struckHere()
	open(all, "lead")
	s.cooperated(all)
}

// ---- KIP-848 ----

func lostFirstBeat(s *scene) {
	s.struckHere()
	a := s.consumer("a").live()
	s.stable(1, share(a))
	_, epoch := a.place()
	if code := s.commit(a.id, epoch, 0, 7); code != 0 {
		s.fatal("commit: %v", kerr.ErrorForCode(code))
	}
	s.refused(zombie{member: "nobody", generation: epoch, partition: 0, keeps: 7}, kerr.UnknownMemberID)
}

// lostRevoked: a gives half of its partitions up for b. sent tells whether the word of it is under way, or has come and b does not know.
func lostRevoked(s *scene, sent bool) {
	a, b := s.consumer("a").live(), s.consumer("b")
	s.stable(1, share(a))
	_, old := a.place()
	a.close("revoke")
	b.live()
	s.awaitDoing(&a.gates, "at revoke")
	if !sent {
		b.close("beat")
		s.awaitDoing(&b.gates, "at beat")
		a.open("revoke")
		s.until("a has given up", func() error {
			if own, epoch := a.place(); len(own) != lostPartitions/2 || epoch == old {
				return fmt.Errorf("a has %v in epoch %d", own, epoch)
			}
			return nil
		})
	}
	s.struckHere()
	a.open("revoke")
	if !sent {
		<-s.elected
		b.open("beat")
	}
	s.stable(2, share(a, b))
	own, epoch := b.place()
	if code := s.commit(b.id, epoch, own[0], 60); code != 0 {
		s.fatal("commit: %v", kerr.ErrorForCode(code))
	}
	s.refused(zombie{member: a.id, generation: old, partition: own[0], keeps: 60}, kerr.StaleMemberEpoch)
}

func lostFarewell(s *scene) {
	a, b := s.consumer("a").live(), s.consumer("b").live()
	s.stable(2, share(a, b))
	own, epoch := b.place()
	if code := s.commit(b.id, epoch, own[0], 40); code != 0 {
		s.fatal("commit: %v", kerr.ErrorForCode(code))
	}
	s.struckHere()
	b.leave()
	<-s.elected
	s.stable(1, share(a))
	s.refused(zombie{member: b.id, generation: epoch, partition: own[0], keeps: 40}, kerr.UnknownMemberID)
}

// lostAway: a static member that says that it will be back has what it had when it is. sent tells whether the word of it is under way.
func lostAway(s *scene, sent bool) {
	a, b := s.consumer("a"), s.consumer("b")
	static(a, b)
	s.stable(2, share(a.live(), b.live()))
	own, epoch := b.place()
	if code := s.commits(zombie{member: b.id, generation: epoch, partition: own[0], instance: b.instance}, 40); code != 0 {
		s.fatal("commit: %v", kerr.ErrorForCode(code))
	}
	if !sent {
		b.leaves(-2)
	}
	s.struckHere()
	if sent {
		b.leaves(-2)
	}
	<-s.elected
	back := s.consumer("b2")
	back.instance = b.instance
	back.live()
	s.stable(2, share(a, back))
	now, at := back.place()
	if _, of := a.place(); !slices.Equal(now, own) || at != epoch || of != epoch {
		s.fatal("the member is back with %v in epoch %d, the other is in %d; it had %v in %d", now, at, of, own, epoch)
	}
	twice := s.consumer("b3")
	twice.instance = b.instance
	p := s.peer()
	defer p.close()
	for _, told := range []struct {
		m     *consumer
		epoch int32
		want  *kerr.Error
	}{{b, epoch, kerr.FencedInstanceID}, {twice, 0, kerr.UnreleasedInstanceID}} {
		if code := p.ask(told.m.request(told.epoch)).(*kmsg.ConsumerGroupHeartbeatResponse).ErrorCode; code != told.want.Code {
			s.fatal("%s comes as the instance too, and is answered %v", told.m.id, kerr.ErrorForCode(code))
		}
	}
	s.refused(zombie{b.id, epoch, own[0], 40, b.instance}, kerr.FencedInstanceID, kerr.UnknownMemberID)
}

// ---- znodes ----

func lostSettle(s *scene) {
	a, b := s.elder("a", true), s.elder("b", false)
	a.live()
	b.live()
	s.awaitDoing(&a.gates, "register")
	s.awaitDoing(&b.gates, "register")
	s.struckHere()
	<-s.elected
	s.stable(2, settled(0, a, b))
	s.whole(a, b)
}

// lostRegister: the first two do not claim, so that the third's registration is held.
func lostRegister(s *scene, nullFirst bool) {
	a, b, c := s.elder("a", false), s.elder("b", true), s.elder("c", !nullFirst)
	a.close("claim")
	b.close("claim")
	a.live()
	b.live()
	s.awaitDoing(&a.gates, "at claim")
	s.awaitDoing(&b.gates, "at claim")
	c.nullFirst = nullFirst
	c.live()
	what := "register"
	if nullFirst {
		what = "set"
	}
	s.awaitDoing(&c.gates, what)
	s.struckHere()
	<-s.elected
	if err := c.is(what); err != nil {
		s.fatal("its registration was not held: %v", err)
	}
	a.open("claim")
	b.open("claim")
	s.stable(3, settled(0, a, b, c))
	s.whole(a, b, c)
}

func lostList(s *scene) {
	a, b := s.elder("a", false), s.elder("b", true)
	a.live()
	b.live()
	s.stable(2, settled(0, a, b))
	reader := s.elder("c", false) // a member of the group at another node would see the same
	want := []string{a.id, b.id}
	var lists atomic.Int64
	s.members.Go(func() {
		for {
			var names []string
			if err := a.retry("follow", func() (err error) { names, _, err = a.conn.children(s.ids(), false); return err }); err != nil {
				return
			}
			if slices.Sort(names); !slices.Equal(names, want) {
				s.fatal("ids are listed as %v, want %v", names, want)
			}
			lists.Add(1)
			select {
			case <-s.quit:
				return
			case <-s.elected:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
	s.struckHere()
	<-s.elected
	s.stable(2, settled(0, a, b))
	s.whole(a, b)
	s.note = fmt.Sprintf("(%d lists through it)", lists.Load())
	reader.live() // and the group goes on
	s.until("a third", settled(0, a, b, reader))
}

// twoElders has a own everything, with offset 40 committed, and b join; a does not release.
func (s *scene) twoElders(prepare func(a, b *elder)) (a, b *elder) {
	a, b = s.elder("a", true), s.elder("b", false)
	a.live()
	s.stable(1, settled(0, a))
	for p := range int32(lostPartitions) {
		a.writeOffset(p, 40)
	}
	a.close("release")
	prepare(a, b)
	b.live()
	return a, b
}

func lostRead(s *scene) {
	a, b := s.twoElders(func(a, b *elder) {
		a.state.Lock()
		a.writes = 45
		a.state.Unlock()
	})
	s.awaitDoing(&a.gates, "at release")
	s.awaitDoing(&b.gates, "read")
	s.struckHere()
	<-s.elected
	if err := b.is("read"); err != nil {
		s.fatal("its read of an offset was not held: %v", err)
	}
	a.open("release")
	s.stable(2, settled(0, a, b))
	s.whole(a, b)
	b.state.Lock()
	defer b.state.Unlock()
	for p, at := range b.offsets {
		if at != 45 {
			s.fatal("b reads on at offset %d of partition %d, 45 was committed before it got it", at, p)
		}
	}
}

func lostClaim(s *scene) {
	a, b := s.twoElders(func(a, b *elder) {
		b.close("claim")
		b.close("read")
	})
	s.awaitDoing(&a.gates, "at release")
	s.awaitDoing(&b.gates, "at read")
	s.members.Go(func() { // past the read, which is held too: wvanbergen/kafka reads later
		if err := b.create("claim", b.owner(3), []byte(b.id+"-0")); err != nil {
			s.fatal("a claim that was held: %v", err)
		}
		b.does("claimed")
	})
	s.awaitDoing(&b.gates, "claim")
	s.struckHere()
	<-s.elected
	if err := b.is("claim"); err != nil {
		s.fatal("its claim was not held: %v", err)
	}
	a.open("release")
	s.awaitDoing(&b.gates, "claimed")
	b.open("read")
	b.open("claim")
	s.stable(2, settled(0, a, b))
	s.whole(a, b)
	b.writeOffset(3, 70)
	a.writeOffset(3, 60) // late: answered, and not applied
	var data []byte
	if err := a.retry("follow", func() (err error) { data, _, err = s.zk.get(s.offsetNode(3)); return err }); err != nil || string(data) != "70" {
		s.fatal("the offset of a partition that was taken over is %q, %v", data, err)
	}
}

func lostRelease(s *scene) {
	a, b := s.twoElders(func(a, b *elder) {})
	s.awaitDoing(&a.gates, "at release")
	s.awaitDoing(&b.gates, "read")
	s.struckHere()
	a.open("release")
	<-s.elected
	s.stable(2, settled(0, a, b))
	s.whole(a, b)
}

func lostWrite(s *scene) {
	a := s.elder("a", true).live()
	s.stable(1, settled(0, a))
	a.writeOffset(0, 40)
	s.struckHere()
	a.writeOffset(0, 50)
	a.does("follow")
	<-s.elected
	s.stable(1, settled(0, a))
	s.whole(a)
	if at := s.offset(0); at != 50 {
		s.fatal("offset 50 was written, %d is there", at)
	}
}

// ---- mixed ----

func lostToConsumer(s *scene) {
	a := s.elder("a", true).live()
	s.stable(1, settled(0, a))
	a.close("release")
	m := s.consumer("m").live()
	s.awaitDoing(&a.gates, "at release") // the pool is shown: what it is to have is a's yet
	s.struckHere()
	<-s.elected
	a.open("release")
	s.stable(2, bothHave(a, m))
	s.whole(a)
}

func bothHave(a *elder, m *consumer) func() error {
	return func() error {
		if err := settled(-1, a)(); err != nil {
			return err
		}
		return share(m)()
	}
}

func lostToElder(s *scene) {
	m := s.consumer("m").live()
	s.stable(1, share(m))
	m.close("revoke")
	a := s.elder("a", false).live()
	s.awaitDoing(&m.gates, "at revoke") // what it is to give up is in the block of a, whose registration is held
	if err := a.is("register"); err != nil {
		s.fatal("its registration was not held: %v", err)
	}
	s.struckHere()
	m.open("revoke")
	<-s.elected
	s.stable(2, bothHave(a, m))
	s.whole(a)
	var stat jute.Stat
	if err := a.retry("follow", func() (err error) { _, stat, err = a.conn.get(a.owner(0)); return err }); err != nil || stat.EphemeralOwner != a.session {
		s.fatal("partition 0 is not the old member's: %v", err)
	}
}

func lostToClassic(s *scene) {
	a := s.elder("a", false).live()
	s.stable(1, settled(0, a))
	a.close("release")
	m := s.classic("m").live()
	s.awaitDoing(&a.gates, "at release")
	s.struckHere()
	<-s.elected
	a.open("release")
	s.stable(2, func() error {
		if err := settled(-1, a)(); err != nil {
			return err
		}
		m.state.Lock()
		defer m.state.Unlock()
		if !m.synced || len(m.have) == 0 {
			return fmt.Errorf("m has its part: %v, %v", m.synced, m.have)
		}
		return nil
	})
	s.whole(a)
}
