package integration

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/integration/harness"
)

// What TestCoordinatorLost (lost_test.go) runs on: a stage is one fault that strikes one cluster, a scene is one group on it that was
// brought to a step of its protocol. The members (lost_members_test.go) are clients without back-off: they turn to the next coordinator
// as soon as anybody can name it, so that what is measured is the cluster's part alone.

const (
	lostTopic      = "steps"
	lostPartitions = 4
	lostSession    = time.Minute // of members by Kafka's protocols: nobody is to be taken for dead because a machine is slow
	lostLimit      = 2 * time.Minute
)

// stage is one fault.
type stage struct {
	t       *testing.T
	c       *harness.Cluster
	topic   [16]byte
	scenes  []*scene
	struck  chan struct{} // closed when the fault begins
	elected chan struct{} // closed when a living node names another coordinator

	mu     sync.Mutex
	asked  []*harness.Node // who is asked for the coordinator: after the strike those that it spares
	victim *harness.Node   // nil before the strike
	now    *harness.Node   // the coordinator, as they name it
	moved  chan struct{}   // closed and replaced when now changes
	began  time.Time       // of the strike
	led    time.Time       // when the new coordinator began, by its own log
	found  time.Time       // when it was named
	conns  map[net.Conn]string
	stop   chan struct{}
	wg     sync.WaitGroup
	slow   time.Duration // by how much short sleeps of this process were late, in all, since the election
}

func newStage(t *testing.T, c *harness.Cluster, topic [16]byte) *stage {
	st := &stage{t: t, c: c, topic: topic, struck: make(chan struct{}), elected: make(chan struct{}), moved: make(chan struct{}), stop: make(chan struct{}),
		asked: c.Nodes, conns: map[net.Conn]string{}}
	st.now = c.Node(harness.Controller(t, c.Brokers()))
	st.wg.Go(st.find)
	st.wg.Go(st.listen)
	return st
}

// find follows who the coordinator is, by FindCoordinator at the nodes that are asked.
func (st *stage) find() {
	peers := map[*harness.Node]*wire{}
	defer func() {
		for _, w := range peers {
			w.Close()
		}
	}()
	for turn := 0; ; turn++ {
		select {
		case <-st.stop:
			return
		case <-time.After(5 * time.Millisecond):
		}
		st.mu.Lock()
		n := st.asked[turn%len(st.asked)]
		st.mu.Unlock()
		w := peers[n]
		if w == nil {
			conn, err := net.DialTimeout("tcp", n.Kafka, time.Second)
			if err != nil {
				continue
			}
			w = &wire{Conn: conn}
			peers[n] = w
		}
		_ = w.SetDeadline(time.Now().Add(time.Second))
		req := kmsg.NewPtrFindCoordinatorRequest()
		req.Version, req.CoordinatorKey = 3, "any"
		resp, err := w.ask(req)
		if err != nil {
			w.Close()
			delete(peers, n)
			continue
		}
		if r := resp.(*kmsg.FindCoordinatorResponse); r.ErrorCode == 0 {
			st.named(st.c.Node(int(r.NodeID)))
		}
	}
}

func (st *stage) named(n *harness.Node) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if n == st.now || st.victim != nil && st.now != st.victim && n == st.victim { // never back to the victim: an answer from before
		return
	}
	st.now = n
	close(st.moved)
	st.moved = make(chan struct{})
	if st.victim != nil && st.led.IsZero() {
		st.found, st.led = time.Now(), ledSince(n, st.began)
		close(st.elected)
		for c, addr := range st.conns { // a client's own time-outs are not what is measured
			if addr == st.victim.ZooKeeper {
				c.Close()
			}
		}
	}
}

// listen adds up how much this process is kept from running once the election is over: as late as this, others may be too.
func (st *stage) listen() {
	select {
	case <-st.elected:
	case <-st.stop:
		return
	}
	for {
		begun := time.Now()
		select {
		case <-st.stop:
			return
		case <-time.After(20 * time.Millisecond):
		}
		st.mu.Lock()
		st.slow += max(time.Since(begun)-40*time.Millisecond, 0)
		st.mu.Unlock()
	}
}

func (st *stage) lateness() time.Duration {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.slow
}

func (st *stage) coordinator() (*harness.Node, <-chan struct{}) {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.now, st.moved
}

// strike has the fault begin: on the node that is the coordinator now.
func (st *stage) strike(begin func(victim *harness.Node)) {
	st.mu.Lock()
	st.victim, st.began = st.now, time.Now()
	st.asked = slices.DeleteFunc(slices.Clone(st.c.Nodes), func(n *harness.Node) bool { return n == st.victim })
	st.mu.Unlock()
	begin(st.victim)
}

func (st *stage) end() {
	close(st.stop)
	st.wg.Wait()
	for _, s := range st.scenes {
		s.end()
	}
	for c := range st.conns {
		c.Close()
	}
}

// ledSince is when the node's log says that it began to lead last; now if it does not say.
func ledSince(n *harness.Node, after time.Time) time.Time {
	at := time.Now()
	for line := range strings.Lines(n.Log(400)) {
		stamp, rest, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
		if led, err := time.Parse(time.RFC3339Nano, stamp); err == nil && led.After(after) && strings.Contains(rest, "msg=leading ") {
			at = led
		}
	}
	return at
}

// scene is one group.
type scene struct {
	*stage
	name, group string
	play        func(*scene)
	parked      chan struct{} // closed when it is at its step
	over        chan struct{} // closed when it has ended
	quit        chan struct{} // its members are to end
	members     sync.WaitGroup
	zk          *zsession // of an onlooker

	mu      sync.Mutex
	failed  bool
	note    string
	settled time.Duration    // after the election; 0: not yet
	owner   map[int32]string // by what members do
	highest int32            // generation, or epoch, that a member was told
	zombies []zombie
}

// zombie is a commit that must not be taken from now on: of a member that the group has gone beyond.
type zombie struct {
	member     string
	generation int32
	partition  int32
	keeps      int64   // the offset that must stay
	instance   *string // nil: it was no static member
}

// fatal fails the test and ends the goroutine that says so, of a scene or a member.
func (s *scene) fatal(format string, args ...any) {
	s.mu.Lock()
	first := !s.failed
	s.failed = true
	s.mu.Unlock()
	if first { // the others of this group fail for the same reason
		s.t.Errorf("%s: %s", s.name, fmt.Sprintf(format, args...))
	}
	runtime.Goexit()
}

func (s *scene) dead() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// run plays the scene to its end.
func (s *scene) run() {
	defer close(s.over)
	defer s.arrive()
	s.play(s)
}

func (s *scene) arrive() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.parked:
	default:
		close(s.parked)
	}
}

// struckHere says that the group is at its step, and returns when the fault strikes.
func (s *scene) struckHere() {
	s.arrive()
	<-s.struck
}

func (s *scene) end() {
	close(s.quit)
	s.members.Wait()
}

// until waits for what check wants, and fails the scene when it does not come.
func (s *scene) until(what string, check func() error) {
	deadline := time.Now().Add(lostLimit)
	for {
		err := check()
		switch {
		case err == nil:
			return
		case s.dead():
			runtime.Goexit()
		case time.Now().After(deadline):
			s.fatal("%s: still so after %v: %v", what, lostLimit, err)
		}
		select {
		case <-s.quit:
			runtime.Goexit()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// take and give keep the books: a partition is read by one member at a time, whatever its kind.
func (s *scene) take(who string, partition int32) {
	s.mu.Lock()
	was := s.owner[partition]
	s.owner[partition] = who
	s.mu.Unlock()
	if was != "" && was != who {
		s.fatal("partition %d was given to %s while %s had it", partition, who, was)
	}
}

func (s *scene) give(who string, partition int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owner[partition] == who {
		delete(s.owner, partition)
	}
}

// rose takes note of a generation that a member was told; asked is the highest one when it asked.
func (s *scene) rose(who string, asked, generation int32) {
	s.mu.Lock()
	s.highest = max(s.highest, generation)
	s.mu.Unlock()
	if generation < asked {
		s.fatal("%s was told generation %d after somebody had been told %d", who, generation, asked)
	}
}

func (s *scene) generation() int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.highest
}

// stable waits until the group is whole in the eyes of its members and of the coordinator, and takes the time.
func (s *scene) stable(members int, whole func() error) {
	p := s.peer()
	defer p.close()
	s.until("stable with all partitions read", func() error {
		s.mu.Lock()
		owned := len(s.owner)
		s.mu.Unlock()
		if owned != lostPartitions {
			return fmt.Errorf("%d of %d partitions are read", owned, lostPartitions)
		}
		if err := whole(); err != nil {
			return err
		}
		return s.described(p, "Stable", members)
	})
	select {
	case <-s.elected:
		if s.settled == 0 {
			s.settled = time.Since(s.led)
		}
	default:
	}
}

// described says why the coordinator does not show the group in a state and with so many members.
func (s *scene) described(p *peer, state string, members int) error {
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Version, req.Groups = 4, []string{s.group}
	g := p.ask(req).(*kmsg.DescribeGroupsResponse).Groups[0]
	if g.ErrorCode != 0 || g.State != state || len(g.Members) != members {
		return fmt.Errorf("the group is %s with %d members, code %d, want %s with %d", g.State, len(g.Members), g.ErrorCode, state, members)
	}
	return nil
}

// commit commits one offset as a member and returns the code.
func (s *scene) commit(member string, generation, partition int32, offset int64) int16 {
	return s.commits(zombie{member: member, generation: generation, partition: partition}, offset)
}

func (s *scene) commits(z zombie, offset int64) int16 {
	p := s.peer()
	defer p.close()
	return p.ask(s.commitRequest(z, offset)).(*kmsg.OffsetCommitResponse).Topics[0].Partitions[0].ErrorCode
}

func (s *scene) commitRequest(z zombie, offset int64) *kmsg.OffsetCommitRequest {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version, req.Group, req.MemberID, req.Generation, req.InstanceID = 9, s.group, z.member, z.generation, z.instance
	t, tp := kmsg.NewOffsetCommitRequestTopic(), kmsg.NewOffsetCommitRequestTopicPartition()
	t.Topic, tp.Partition, tp.Offset = lostTopic, z.partition, offset
	t.Partitions = append(t.Partitions, tp)
	req.Topics = append(req.Topics, t)
	return req
}

// offset returns what is committed.
func (s *scene) offset(partition int32) int64 {
	p := s.peer()
	defer p.close()
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Version, req.Group = 5, s.group
	req.Topics = []kmsg.OffsetFetchRequestTopic{{Topic: lostTopic, Partitions: []int32{partition}}}
	return p.ask(req).(*kmsg.OffsetFetchResponse).Topics[0].Partitions[0].Offset
}

// refused has a commit refused that a zombie makes, with one of the codes; and again later, at the coordinator of before (stage.zombies).
func (s *scene) refused(z zombie, codes ...*kerr.Error) {
	got := s.commits(z, 1)
	if !slices.ContainsFunc(codes, func(e *kerr.Error) bool { return e.Code == got }) {
		s.fatal("a commit of generation %d by %s is answered %v, the group is in %d", z.generation, z.member, kerr.ErrorForCode(got), s.generation())
	}
	if at := s.offset(z.partition); at != z.keeps {
		s.fatal("after a refused commit the offset of partition %d is %d, not %d", z.partition, at, z.keeps)
	}
	s.mu.Lock()
	s.zombies = append(s.zombies, z)
	s.mu.Unlock()
}

// tale checks the coordinator's own account of the group: the generations of each kind rise.
func (s *scene) tale(admin string) error {
	rebalances, err := explained(admin, s.group)
	if err != nil {
		return err
	}
	if len(rebalances) == 0 {
		return errors.New("no rebalance is explained")
	}
	last := map[string]int32{}
	for _, r := range rebalances {
		if was, ok := last[r.Kind]; ok && r.Generation <= was {
			return fmt.Errorf("generation %d after %d (%s: %s)", r.Generation, was, r.Cause, r.Why)
		}
		last[r.Kind] = r.Generation
	}
	return nil
}

// rebalance is one that a node explains.
type rebalance struct {
	Generation       int32
	Kind, Cause, Why string
	Holds            []string
}

// explained returns the account that a node gives of a group's last rebalances, oldest first.
func explained(admin, group string) ([]rebalance, error) {
	resp, err := http.Get("http://" + admin + "/v1/groups/" + group + "/rebalances")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var got struct{ Rebalances []rebalance }
	err = json.NewDecoder(resp.Body).Decode(&got)
	return got.Rebalances, err
}

// peer is a client's connection to the coordinator, whoever that is.
type peer struct {
	s    *scene
	wire *wire
	at   *harness.Node
}

func (s *scene) peer() *peer { return &peer{s: s} }

func (p *peer) close() {
	if p.wire != nil {
		p.wire.Close()
		p.wire = nil
	}
}

// ask returns the coordinator's answer. A connection that was lost, an answer that does not come from who is the coordinator no more and
// an error that says so have it asked again, at whom the living name.
func (p *peer) ask(req kmsg.Request) kmsg.Response {
	deadline := time.Now().Add(lostLimit)
	for {
		resp, err := p.once(req)
		if err == nil && !elsewhere(resp) {
			return resp
		}
		select {
		case <-p.s.quit:
			runtime.Goexit()
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			p.s.fatal("no answer to %s within %v: %v, %v", kmsg.NameForKey(req.Key()), lostLimit, resp, err)
		}
	}
}

func (p *peer) once(req kmsg.Request) (kmsg.Response, error) {
	at, moved := p.s.coordinator()
	if p.wire != nil && p.at != at {
		p.close()
	}
	if p.wire == nil {
		conn, err := net.DialTimeout("tcp", at.Kafka, 5*time.Second)
		if err != nil {
			return nil, err
		}
		p.wire, p.at = &wire{Conn: conn}, at
	}
	answered := make(chan struct{})
	var watched sync.WaitGroup
	watched.Go(func() {
		select {
		case <-answered:
		case <-moved:
			p.wire.Close()
		case <-p.s.quit:
			p.wire.Close()
		}
	})
	resp, err := p.wire.ask(req)
	close(answered)
	watched.Wait()
	if err != nil {
		p.close()
	}
	return resp, err
}

// elsewhere reports whether an answer sends its client to look for the coordinator.
func elsewhere(resp kmsg.Response) bool {
	code := int16(0)
	switch r := resp.(type) {
	case *kmsg.JoinGroupResponse:
		code = r.ErrorCode
	case *kmsg.SyncGroupResponse:
		code = r.ErrorCode
	case *kmsg.HeartbeatResponse:
		code = r.ErrorCode
	case *kmsg.LeaveGroupResponse:
		code = r.ErrorCode
	case *kmsg.ConsumerGroupHeartbeatResponse:
		code = r.ErrorCode
	case *kmsg.DescribeGroupsResponse:
		code = r.Groups[0].ErrorCode
	case *kmsg.OffsetCommitResponse:
		code = r.Topics[0].Partitions[0].ErrorCode
	case *kmsg.OffsetFetchResponse:
		code = r.ErrorCode
	}
	return code == kerr.NotCoordinator.Code || code == kerr.CoordinatorNotAvailable.Code || code == kerr.CoordinatorLoadInProgress.Code ||
		code == kerr.RequestTimedOut.Code
}

// wire is one connection of a client by Kafka's protocol.
type wire struct {
	net.Conn
	client string // its client id; "": steps
	last   int32
}

func (w *wire) ask(req kmsg.Request) (kmsg.Response, error) {
	if err := w.send(req); err != nil {
		return nil, err
	}
	return w.answer(req)
}

func (w *wire) send(req kmsg.Request) error {
	w.last++
	_, err := w.Write(kmsg.NewRequestFormatter(kmsg.FormatterClientID(cmp.Or(w.client, "steps"))).AppendRequest(nil, req, w.last))
	return err
}

func (w *wire) answer(req kmsg.Request) (kmsg.Response, error) {
	var size [4]byte
	if _, err := io.ReadFull(w, size[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(w, b); err != nil {
		return nil, err
	}
	resp := req.ResponseKind()
	if b = b[4:]; resp.IsFlexible() {
		b = b[1:]
	}
	return resp, resp.ReadFrom(b)
}

// zombies has the coordinator of before, which may think that it still is, be told to commit what the groups have gone beyond. undo ends
// the fault: at the latest then it answers, and never that it has done it.
func (st *stage) zombies(undo func()) {
	type told struct {
		s   *scene
		z   zombie
		req *kmsg.OffsetCommitRequest
		w   *wire
	}
	var all []told
	for _, s := range st.scenes {
		for _, z := range s.zombies {
			conn, err := net.DialTimeout("tcp", st.victim.Kafka, 5*time.Second)
			if err != nil {
				continue // it is dead
			}
			t := told{s, z, s.commitRequest(z, 1), &wire{Conn: conn}}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(lostLimit))
			if err := t.w.send(t.req); err == nil {
				all = append(all, t)
			}
		}
	}
	undo()
	answers := map[string]int{}
	for _, t := range all {
		resp, err := t.w.answer(t.req)
		if err != nil {
			answers["none"]++
			continue
		}
		code := resp.(*kmsg.OffsetCommitResponse).Topics[0].Partitions[0].ErrorCode
		if code == 0 {
			st.t.Errorf("%s: the coordinator of before has taken a commit of generation %d by %s", t.s.name, t.z.generation, t.z.member)
		}
		answers[fmt.Sprint(code)]++
	}
	st.c.AwaitServing()
	for _, t := range all {
		if at := t.s.offset(t.z.partition); at != t.z.keeps && !t.s.dead() {
			st.t.Errorf("%s: after the fault the offset of partition %d is %d, not %d", t.s.name, t.z.partition, at, t.z.keeps)
		}
	}
	if len(all) > 0 {
		st.t.Logf("late commits at the coordinator of before, by code: %v", answers)
	}
}

// session opens a ZooKeeper session at the coordinator's node, or at another one.
func (s *scene) session(atCoordinator bool, timeout time.Duration) *zsession {
	at, _ := s.coordinator()
	var hosts []string
	for _, n := range s.c.Nodes {
		if n != at {
			hosts = append(hosts, n.ZooKeeper)
		}
	}
	if atCoordinator {
		hosts = slices.Insert(hosts, 0, at.ZooKeeper)
	} else {
		hosts = append(hosts, at.ZooKeeper)
	}
	z := newZSession(hosts, timeout, func(addr string) (net.Conn, error) {
		c, err := net.DialTimeout("tcp", addr, 5*time.Second)
		if err == nil {
			s.stage.mu.Lock()
			s.conns[c] = addr
			s.stage.mu.Unlock()
		}
		return c, err
	})
	s.members.Go(func() { <-s.quit; z.close() })
	return z
}

// played runs the scenes up to their steps, has the fault strike, and waits until all have gone on to their end.
func (st *stage) played(f lostFault) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*lostLimit)
	defer cancel()
	wait := func(what string, s *scene, c <-chan struct{}) {
		select {
		case <-c:
		case <-ctx.Done():
			st.t.Fatalf("%s: %s: %v", s.name, what, ctx.Err())
		}
	}
	for _, brief := range []bool{false, true} { // those that are at their step for a moment only come last
		for i, s := range st.scenes {
			if lostSteps[i].brief == brief {
				go s.run()
			}
		}
		for i, s := range st.scenes {
			if lostSteps[i].brief == brief {
				wait("on the way to its step", s, s.parked)
			}
		}
	}
	if f.late {
		close(st.struck)
		time.Sleep(2 * time.Millisecond) // what is sent now is under way when the fault strikes
		st.strike(func(n *harness.Node) { f.begin(st.c, n) })
	} else {
		st.strike(func(n *harness.Node) { f.begin(st.c, n) })
		close(st.struck)
	}
	for _, s := range st.scenes {
		wait("after the fault", s, s.over)
	}
}
