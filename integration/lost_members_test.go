package integration

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/zkcompat/jute"
)

// gates are places at which a member stops as long as they are shut.
type gates struct {
	mu    sync.Mutex
	shut  map[string]chan struct{}
	doing string // what the member does or waits for
}

func (g *gates) close(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut == nil {
		g.shut = map[string]chan struct{}{}
	}
	g.shut[name] = make(chan struct{})
}

func (g *gates) open(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c := g.shut[name]; c != nil {
		close(c)
		delete(g.shut, name)
	}
}

// pass returns when the gate is open; false: the scene is over.
func (g *gates) pass(s *scene, name string) bool {
	g.mu.Lock()
	c := g.shut[name]
	if c != nil {
		g.doing = "at " + name
	}
	g.mu.Unlock()
	if c == nil {
		return true
	}
	select {
	case <-c:
		return true
	case <-s.quit:
		return false
	}
}

func (g *gates) does(what string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.doing = what
}

// is says why a member does not do what is waited for.
func (g *gates) is(what string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.doing != what {
		return fmt.Errorf("a member is %q, not %q", g.doing, what)
	}
	return nil
}

func (s *scene) awaitDoing(g *gates, what string) {
	s.until(what, func() error { return g.is(what) })
}

// kafkaMember is what members by both of Kafka's protocols have.
type kafkaMember struct {
	gates
	s    *scene
	name string
	peer *peer

	state   sync.Mutex
	leaving bool
}

// over reports whether the member is to do nothing more: it leaves, or the scene is over.
func (m *kafkaMember) over() bool {
	m.state.Lock()
	defer m.state.Unlock()
	select {
	case <-m.s.quit:
		return true
	default:
		return m.leaving
	}
}

// ---- by JoinGroup ----

// classic is a member by JoinGroup and SyncGroup, eager: gates "join", "lead" (the leader's SyncGroup), "follow" (another's).
type classic struct {
	kafkaMember

	// Under state.
	id         string
	generation int32
	leader     bool
	members    []kmsg.JoinGroupResponseMember
	in, synced bool
	version    byte // of its subscription: another one is a reason for a rebalance
	have       []int32
}

func (s *scene) classic(name string) *classic {
	return &classic{kafkaMember: kafkaMember{s: s, name: name, peer: s.peer()}}
}

// live is a member from its join to the end of the scene, or until it leaves.
func (m *classic) live() *classic {
	m.s.members.Go(func() {
		defer m.peer.close()
		for !m.over() {
			m.state.Lock()
			in, synced := m.in, m.synced
			m.state.Unlock()
			switch {
			case !in:
				m.join()
			case !synced:
				m.sync()
			default:
				m.does("heartbeat")
				m.heartbeat()
				time.Sleep(20 * time.Millisecond)
			}
		}
	})
	return m
}

// resubscribe has the member join again with another subscription.
func (m *classic) resubscribe() {
	m.state.Lock()
	defer m.state.Unlock()
	m.version++
	m.in, m.synced = false, false
}

func (m *classic) release() {
	m.state.Lock()
	defer m.state.Unlock()
	for _, p := range m.have {
		m.s.give(m.name, p)
	}
	m.have = nil
}

func (m *classic) join() {
	m.release()
	if !m.pass(m.s, "join") {
		return
	}
	m.state.Lock()
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version, req.Group, req.MemberID, req.ProtocolType = 9, m.s.group, m.id, "consumer"
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = int32(lostSession.Milliseconds()), int32(lostSession.Milliseconds())
	meta := kmsg.NewConsumerMemberMetadata()
	meta.Topics, meta.UserData = []string{lostTopic}, []byte{m.version}
	req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: meta.AppendTo(nil)}}
	version := m.version
	m.state.Unlock()
	asked := m.s.generation()
	m.does("join")
	resp := m.peer.ask(req).(*kmsg.JoinGroupResponse)
	m.state.Lock()
	defer m.state.Unlock()
	switch resp.ErrorCode {
	case 0:
		m.s.rose(m.name, asked, resp.Generation)
		m.id, m.generation, m.leader, m.members = resp.MemberID, resp.Generation, resp.LeaderID == resp.MemberID, resp.Members
		m.in, m.synced = m.version == version, false
	case kerr.MemberIDRequired.Code:
		m.id = resp.MemberID
	case kerr.UnknownMemberID.Code:
		m.id = ""
	case kerr.RebalanceInProgress.Code:
	default:
		m.s.fatal("%s: JoinGroup: %v", m.name, kerr.ErrorForCode(resp.ErrorCode))
	}
}

func (m *classic) sync() {
	gate := "follow"
	m.state.Lock()
	if m.leader {
		gate = "lead"
	}
	m.state.Unlock()
	if !m.pass(m.s, gate) {
		return
	}
	m.state.Lock()
	req := kmsg.NewPtrSyncGroupRequest()
	req.Version, req.Group, req.MemberID, req.Generation = 5, m.s.group, m.id, m.generation
	consumer, protocol := "consumer", "range"
	req.ProtocolType, req.Protocol = &consumer, &protocol
	if m.leader {
		req.GroupAssignment = shares(m.members)
	}
	m.state.Unlock()
	m.does(gate)
	resp := m.peer.ask(req).(*kmsg.SyncGroupResponse)
	m.state.Lock()
	defer m.state.Unlock()
	if resp.ErrorCode != 0 {
		m.out("SyncGroup", resp.ErrorCode)
		return
	}
	var a kmsg.ConsumerMemberAssignment
	if err := a.ReadFrom(resp.MemberAssignment); err != nil {
		m.s.fatal("%s: assignment: %v", m.name, err)
	}
	for _, t := range a.Topics {
		for _, p := range t.Partitions {
			m.s.take(m.name, p)
			m.have = append(m.have, p)
		}
	}
	m.synced = m.in
}

// out has a member join again for an error that says so.
func (m *classic) out(what string, code int16) {
	switch code {
	case kerr.UnknownMemberID.Code:
		m.id = ""
	case kerr.RebalanceInProgress.Code, kerr.IllegalGeneration.Code:
	default:
		m.s.fatal("%s: %s: %v", m.name, what, kerr.ErrorForCode(code))
	}
	m.in, m.synced = false, false
}

func (m *classic) heartbeat() {
	m.state.Lock()
	req := kmsg.NewPtrHeartbeatRequest()
	req.Version, req.Group, req.MemberID, req.Generation = 4, m.s.group, m.id, m.generation
	m.state.Unlock()
	resp := m.peer.ask(req).(*kmsg.HeartbeatResponse)
	m.state.Lock()
	defer m.state.Unlock()
	if resp.ErrorCode != 0 && m.generation == req.Generation && m.in {
		m.out("Heartbeat", resp.ErrorCode)
	}
}

// leave has the member leave, on a connection of its own; who had left already is unknown.
func (m *classic) leave() {
	m.state.Lock()
	m.leaving = true
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Version, req.Group = 5, m.s.group
	req.Members = []kmsg.LeaveGroupRequestMember{{MemberID: m.id}}
	m.state.Unlock()
	m.release()
	p := m.s.peer()
	defer p.close()
	resp := p.ask(req).(*kmsg.LeaveGroupResponse)
	code := resp.ErrorCode
	if len(resp.Members) > 0 {
		code = max(code, resp.Members[0].ErrorCode)
	}
	if code != 0 && code != kerr.UnknownMemberID.Code {
		m.s.fatal("%s: LeaveGroup: %v", m.name, kerr.ErrorForCode(code))
	}
}

// shares deals the partitions out to members in their order.
func shares(members []kmsg.JoinGroupResponseMember) (all []kmsg.SyncGroupRequestGroupAssignment) {
	for i, m := range members {
		a := kmsg.NewConsumerMemberAssignment()
		t := kmsg.NewConsumerMemberAssignmentTopic()
		t.Topic = lostTopic
		for p := range int32(lostPartitions) {
			if int(p)%len(members) == i {
				t.Partitions = append(t.Partitions, p)
			}
		}
		a.Topics = append(a.Topics, t)
		all = append(all, kmsg.SyncGroupRequestGroupAssignment{MemberID: m.MemberID, MemberAssignment: a.AppendTo(nil)})
	}
	return all
}

// inOne says why the members are not all in one generation with their assignments.
func inOne(members ...*classic) func() error {
	return func() error {
		generation := int32(0)
		for _, m := range members {
			m.state.Lock()
			synced, g := m.synced, m.generation
			m.state.Unlock()
			if !synced || generation != 0 && g != generation {
				return fmt.Errorf("%s has its part: %v, of generation %d, another's is %d", m.name, synced, g, generation)
			}
			generation = g
		}
		return nil
	}
}

func (m *classic) place() (id string, generation int32) {
	m.state.Lock()
	defer m.state.Unlock()
	return m.id, m.generation
}

// ---- by ConsumerGroupHeartbeat ----

// consumer is a member by KIP-848: gates "beat" (each heartbeat) and "revoke" (what it was told to give up it goes on to read).
type consumer struct {
	kafkaMember

	// Under state.
	id    string
	epoch int32
	own   []int32
}

func (s *scene) consumer(name string) *consumer {
	return &consumer{kafkaMember: kafkaMember{s: s, name: name, peer: s.peer()}, id: s.group + "-" + name}
}

func (m *consumer) live() *consumer {
	m.s.members.Go(func() {
		defer m.peer.close()
		for m.pass(m.s, "beat") && !m.over() {
			m.does("beat")
			m.beat()
			time.Sleep(20 * time.Millisecond)
		}
	})
	return m
}

func (m *consumer) request(epoch int32) *kmsg.ConsumerGroupHeartbeatRequest {
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Version, req.Group, req.MemberID, req.MemberEpoch = 1, m.s.group, m.id, epoch
	req.RebalanceTimeoutMillis = int32(lostSession.Milliseconds())
	req.SubscribedTopicNames = []string{lostTopic}
	req.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	if len(m.own) > 0 {
		req.Topics = append(req.Topics, kmsg.ConsumerGroupHeartbeatRequestTopic{TopicID: m.s.topic, Partitions: slices.Clone(m.own)})
	}
	return req
}

func (m *consumer) beat() {
	m.state.Lock()
	req := m.request(m.epoch)
	m.state.Unlock()
	resp := m.peer.ask(req).(*kmsg.ConsumerGroupHeartbeatResponse)
	switch resp.ErrorCode {
	case 0:
	case kerr.FencedMemberEpoch.Code, kerr.UnknownMemberID.Code: // it begins anew
		m.state.Lock()
		defer m.state.Unlock()
		for _, p := range m.own {
			m.s.give(m.name, p)
		}
		m.epoch, m.own = 0, nil
		return
	default:
		m.s.fatal("%s: ConsumerGroupHeartbeat: %v", m.name, kerr.ErrorForCode(resp.ErrorCode))
	}
	m.state.Lock()
	epoch := m.epoch
	m.epoch = resp.MemberEpoch
	m.state.Unlock()
	m.s.rose(m.name, epoch, resp.MemberEpoch)
	if resp.Assignment != nil {
		m.follow(resp.Assignment)
	}
}

// follow moves to what the member was given.
func (m *consumer) follow(a *kmsg.ConsumerGroupHeartbeatResponseAssignment) {
	var told []int32
	for _, t := range a.Topics {
		told = append(told, t.Partitions...)
	}
	m.state.Lock()
	lost := slices.DeleteFunc(slices.Clone(m.own), func(p int32) bool { return slices.Contains(told, p) })
	m.state.Unlock()
	if len(lost) > 0 && !m.pass(m.s, "revoke") {
		return
	}
	for _, p := range lost {
		m.s.give(m.name, p)
	}
	m.state.Lock()
	defer m.state.Unlock()
	if m.leaving { // it has given up everything
		return
	}
	for _, p := range told {
		m.s.take(m.name, p)
	}
	m.own = told
}

func (m *consumer) leave() {
	m.state.Lock()
	m.leaving = true
	for _, p := range m.own {
		m.s.give(m.name, p)
	}
	m.own = nil
	req := m.request(-1)
	m.state.Unlock()
	p := m.s.peer()
	defer p.close()
	if resp := p.ask(req).(*kmsg.ConsumerGroupHeartbeatResponse); resp.ErrorCode != 0 && resp.ErrorCode != kerr.UnknownMemberID.Code {
		m.s.fatal("%s: leaving: %v", m.name, kerr.ErrorForCode(resp.ErrorCode))
	}
}

func (m *consumer) place() (own []int32, epoch int32) {
	m.state.Lock()
	defer m.state.Unlock()
	return slices.Clone(m.own), m.epoch
}

// share says why the members do not each have as many partitions as there are to have, all of one epoch.
func share(members ...*consumer) func() error {
	return func() error {
		epoch := int32(0)
		for _, m := range members {
			own, e := m.place()
			if len(own) == 0 || epoch != 0 && e != epoch {
				return fmt.Errorf("%s has %v in epoch %d, another is in %d", m.name, own, e, epoch)
			}
			epoch = e
		}
		return nil
	}
}

// ---- by znodes ----

// elder is a member by znodes that does what the JVM consumer does (zk-paths.md 2): gates "release", "read" (of offsets), "claim".
type elder struct {
	gates
	s         *scene
	name, id  string
	conn      *zsession
	nullFirst bool // it registers as kafka-node: without data first

	state   sync.Mutex
	session int64
	listed  []string // the ids of the generation that it acts by
	have    map[int32]bool
	offsets map[int32]int64 // as it read them before it claimed
	refused []string        // claims and reads that failed
	writes  int64           // offset that it commits when it releases; 0: none
}

func (s *scene) elder(name string, atCoordinator bool) *elder {
	return &elder{s: s, name: name, id: s.group + "_" + name, conn: s.session(atCoordinator), have: map[int32]bool{}, offsets: map[int32]int64{}}
}

// retry does one thing until a connection that lives has carried it out.
func (m *elder) retry(what string, do func() error) error {
	m.does(what)
	for {
		err := do()
		switch {
		case errors.Is(err, errLost):
			select {
			case <-m.s.quit:
				return err
			case <-time.After(5 * time.Millisecond):
			}
		case errors.Is(err, errExpired):
			select {
			case <-m.s.quit:
				return err
			default:
				m.s.fatal("%s: %s: %v", m.name, what, err)
			}
		default:
			return err
		}
	}
}

// create makes an ephemeral node; one that an earlier try has made is as good.
func (m *elder) create(what, node string, data []byte) error {
	return m.retry(what, func() error {
		err := m.conn.create(node, data, jute.FlagEphemeral)
		if !errors.Is(err, errNodeExists) {
			return err
		}
		_, stat, found := m.conn.get(node)
		switch {
		case found == nil && stat.EphemeralOwner == m.conn.session():
			return nil
		case errors.Is(found, errNoNode):
			return err
		case found != nil:
			return found
		}
		return err
	})
}

func (m *elder) register() {
	data := `{"version":1,"subscription":{"` + lostTopic + `":1},"pattern":"static","timestamp":"1400000000000"}`
	node := m.s.ids() + "/" + m.id
	var err error
	if m.nullFirst {
		if err = m.create("register", node, nil); err == nil {
			err = m.retry("set", func() error { return m.conn.set(node, []byte(data)) })
		}
	} else {
		err = m.create("register", node, []byte(data))
	}
	if err != nil {
		m.s.fatal("%s: registration: %v", m.name, err)
	}
	m.state.Lock()
	m.session = m.conn.session()
	m.state.Unlock()
}

func (s *scene) ids() string    { return "/consumers/" + s.group + "/ids" }
func (s *scene) owners() string { return "/consumers/" + s.group + "/owners/" + lostTopic }
func (s *scene) offsetNode(p int32) string {
	return fmt.Sprintf("/consumers/%s/offsets/%s/%d", s.group, lostTopic, p)
}

// mkdirs makes the group's directories, and the offsets' nodes.
func (s *scene) mkdirs() {
	if s.zk != nil {
		return
	}
	s.zk = s.session(false)
	m := elder{s: s, name: "onlooker", conn: s.zk}
	var mkdir func(node string)
	mkdir = func(node string) {
		if node != "/" {
			mkdir(path.Dir(node))
			err := m.retry("mkdir", func() error { return s.zk.create(node, []byte("0"), 0) })
			if err != nil && !errors.Is(err, errNodeExists) {
				s.fatal("%s: %v", node, err)
			}
		}
	}
	mkdir(s.ids())
	mkdir(s.owners())
	for p := range int32(lostPartitions) {
		mkdir(s.offsetNode(p))
	}
}

// live registers and follows the ids until the scene ends.
func (m *elder) live() *elder {
	m.s.mkdirs()
	m.s.members.Go(func() {
		m.register()
		for {
			var names []string
			var changed <-chan struct{}
			err := m.retry("list", func() (err error) { names, changed, err = m.conn.children(m.s.ids(), true); return err })
			if err != nil {
				return
			}
			if !m.rebalance(names) { // as after the back-off of a JVM consumer
				select {
				case <-m.s.quit:
					return
				case <-time.After(100 * time.Millisecond):
				}
				continue
			}
			m.does("follow")
			select {
			case <-changed:
			case <-m.s.quit:
				return
			}
		}
	})
	return m
}

// rebalance releases, reads offsets and claims what range gives it among the ids; false: it is to try again.
func (m *elder) rebalance(names []string) bool {
	slices.Sort(names)
	for _, name := range names {
		err := m.retry("registration", func() error { _, _, err := m.conn.get(m.s.ids() + "/" + name); return err })
		if err != nil {
			return m.fails("registration of %s: %v", name, err)
		}
	}
	if !slices.Contains(names, m.id) {
		return m.fails("it is not among %v", names)
	}
	if !m.release() {
		return true
	}
	mine := ranged(names, m.id)
	for _, p := range mine {
		if !m.pass(m.s, "read") {
			return true
		}
		var data []byte
		if err := m.retry("read", func() (err error) { data, _, err = m.conn.get(m.s.offsetNode(p)); return err }); err != nil {
			return m.fails("offset of %d: %v", p, err)
		}
		at, err := strconv.ParseInt(string(data), 10, 64)
		if err != nil {
			return m.fails("offset of %d: %v", p, err)
		}
		m.state.Lock()
		m.offsets[p] = at
		m.state.Unlock()
	}
	for _, p := range mine {
		if !m.pass(m.s, "claim") {
			return true
		}
		if err := m.create("claim", m.owner(p), []byte(m.id+"-0")); err != nil {
			return m.fails("claim of %d: %v", p, err)
		}
		m.s.take(m.name, p)
		m.state.Lock()
		m.have[p] = true
		m.state.Unlock()
	}
	m.state.Lock()
	m.listed = names
	m.state.Unlock()
	return true
}

func (m *elder) owner(p int32) string { return fmt.Sprintf("%s/%d", m.s.owners(), p) }

// release commits and gives up everything; false: the scene is over.
func (m *elder) release() bool {
	m.state.Lock()
	have, writes := []int32{}, m.writes
	for p := range m.have {
		have = append(have, p)
	}
	m.state.Unlock()
	if len(have) > 0 && !m.pass(m.s, "release") {
		return false
	}
	slices.Sort(have)
	for _, p := range have {
		if writes > 0 {
			m.writeOffset(p, writes)
		}
		m.s.give(m.name, p)
		err := m.retry("delete", func() error { return m.conn.delete(m.owner(p)) })
		select {
		case <-m.s.quit:
			return false
		default:
		}
		if err != nil && !errors.Is(err, errNoNode) {
			m.s.fatal("%s: release of %d: %v", m.name, p, err)
		}
		m.state.Lock()
		delete(m.have, p)
		m.state.Unlock()
	}
	return true
}

func (m *elder) writeOffset(p int32, offset int64) {
	err := m.retry("commit", func() error { return m.conn.set(m.s.offsetNode(p), strconv.AppendInt(nil, offset, 10)) })
	if err != nil {
		m.s.fatal("%s: commit of %d: %v", m.name, p, err)
	}
}

func (m *elder) fails(format string, args ...any) bool {
	select {
	case <-m.s.quit:
		return true
	default:
	}
	m.state.Lock()
	defer m.state.Unlock()
	m.refused = append(m.refused, m.name+": "+fmt.Sprintf(format, args...))
	for p := range m.have {
		m.s.give(m.name, p)
		_ = m.conn.delete(m.owner(p))
	}
	clear(m.have)
	return false
}

// ranged is kafka.consumer.RangeAssignor for members of one thread each.
func ranged(names []string, id string) (mine []int32) {
	at, n := int32(slices.Index(names, id)), int32(len(names))
	q, r := lostPartitions/n, lostPartitions%n
	from := q*at + min(at, r)
	for p := range q + max(0, min(1, r-at)) {
		mine = append(mine, from+p)
	}
	return mine
}

// settled says why the members have not claimed what the newest list gives them. others is how many names there are beside theirs.
func settled(pool int, members ...*elder) func() error {
	return func() error {
		for _, m := range members {
			m.state.Lock()
			listed, have := slices.Clone(m.listed), len(m.have)
			m.state.Unlock()
			if got := len(listed); pool >= 0 && got != len(members)+pool {
				return fmt.Errorf("%s acts by %v, want %d and %d of the pool", m.name, listed, len(members), pool)
			}
			if want := len(ranged(listed, m.id)); len(listed) == 0 || have != want {
				return fmt.Errorf("%s has %d partitions, want %d of %v", m.name, have, want, listed)
			}
			if err := m.is("follow"); err != nil {
				return err
			}
		}
		return nil
	}
}

// whole checks at the end that nothing failed and that the sessions are those of the beginning.
func (s *scene) whole(members ...*elder) {
	for _, m := range members {
		m.state.Lock()
		refused, session := m.refused, m.session
		m.state.Unlock()
		if len(refused) > 0 {
			s.fatal("attempts that failed: %s", strings.Join(refused, "; "))
		}
		if now := m.conn.session(); now != session {
			s.fatal("session %x of %s became %x", session, m.name, now)
		}
		var stat jute.Stat
		err := m.retry("registration", func() (err error) { _, stat, err = m.conn.get(s.ids() + "/" + m.id); return err })
		if err != nil || stat.EphemeralOwner != session {
			s.fatal("the registration of %s: %v, of session %x", m.name, err, session)
		}
	}
}
