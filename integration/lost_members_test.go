package integration

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
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
	s        *scene
	name     string
	instance *string // group.instance.id; nil: it is no static member
	peer     *peer

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

// classic is a member by JoinGroup and SyncGroup: gates "join", "lead" (the leader's SyncGroup), "follow" (another's) and, of a cooperative
// one, "revoke" (what it was not given again it goes on to read).
type classic struct {
	kafkaMember
	cooperative bool // it keeps what it has while it joins again (KIP-429)

	// Under state.
	id         string
	generation int32
	leader     bool
	skip       bool // as a leader that is back it leaves everybody what they have (KIP-814)
	members    []kmsg.JoinGroupResponseMember
	in, synced bool
	joins      int  // that were answered
	version    byte // of its subscription: another one is a reason for a rebalance
	have       []int32
	revoked    []int32 // of what it had, by rebalances of a cooperative group

	ended chan struct{} // closed when it does nothing more
}

func (s *scene) classic(name string) *classic {
	return &classic{kafkaMember: kafkaMember{s: s, name: name, peer: s.peer()}, ended: make(chan struct{})}
}

// static makes members static ones: each an instance by its name.
func static[M interface{ base() *kafkaMember }](members ...M) {
	for _, m := range members {
		b := m.base()
		b.instance = &b.name
	}
}

func (m *kafkaMember) base() *kafkaMember { return m }

// live is a member from its join to the end of the scene, or until it leaves.
func (m *classic) live() *classic {
	m.s.members.Go(func() {
		defer close(m.ended)
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
	m.lose()
}

func (m *classic) lose() {
	for _, p := range m.have {
		m.s.give(m.name, p)
	}
	m.have = nil
}

// protocol is how the group's leader assigns.
func (m *classic) protocol() string {
	if m.cooperative {
		return "cooperative-sticky"
	}
	return "range"
}

func (m *classic) join() {
	if !m.cooperative {
		m.release()
	}
	if !m.pass(m.s, "join") {
		return
	}
	m.state.Lock()
	req, version := m.joinRequest(), m.version
	m.state.Unlock()
	asked := m.s.generation()
	m.does("join")
	resp := m.peer.ask(req).(*kmsg.JoinGroupResponse)
	m.state.Lock()
	defer m.state.Unlock()
	m.joined(resp, asked, version)
}

// joinRequest is how the member joins. Under state.
func (m *classic) joinRequest() *kmsg.JoinGroupRequest {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version, req.Group, req.MemberID, req.InstanceID, req.ProtocolType = 9, m.s.group, m.id, m.instance, "consumer"
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = int32(lostSession.Milliseconds()), int32(lostSession.Milliseconds())
	meta := kmsg.NewConsumerMemberMetadata()
	meta.Version, meta.Topics, meta.UserData = 1, []string{lostTopic}, []byte{m.version}
	if len(m.have) > 0 {
		meta.OwnedPartitions = []kmsg.ConsumerMemberMetadataOwnedPartition{{Topic: lostTopic, Partitions: m.have}}
	}
	req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: m.protocol(), Metadata: meta.AppendTo(nil)}}
	return req
}

// joined takes the answer to a JoinGroup with a version of the subscription; asked is the highest generation of before. Under state.
func (m *classic) joined(resp *kmsg.JoinGroupResponse, asked int32, version byte) {
	switch resp.ErrorCode {
	case 0:
		m.s.rose(m.name, asked, resp.Generation)
		m.id, m.generation, m.leader, m.members = resp.MemberID, resp.Generation, resp.LeaderID == resp.MemberID, resp.Members
		m.skip, m.in, m.synced, m.joins = resp.SkipAssignment, m.version == version, false, m.joins+1
	case kerr.MemberIDRequired.Code:
		m.id = resp.MemberID
	case kerr.UnknownMemberID.Code, kerr.RebalanceInProgress.Code:
		m.out("JoinGroup", resp.ErrorCode)
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
	req.Version, req.Group, req.MemberID, req.InstanceID, req.Generation = 5, m.s.group, m.id, m.instance, m.generation
	consumer, protocol := "consumer", m.protocol()
	req.ProtocolType, req.Protocol = &consumer, &protocol
	switch {
	case !m.leader || m.skip:
	case m.cooperative:
		req.GroupAssignment = m.sticky()
	default:
		req.GroupAssignment = shares(m.members)
	}
	m.state.Unlock()
	m.does(gate)
	resp := m.peer.ask(req).(*kmsg.SyncGroupResponse)
	if resp.ErrorCode != 0 {
		m.state.Lock()
		defer m.state.Unlock()
		m.out("SyncGroup", resp.ErrorCode)
		return
	}
	var a kmsg.ConsumerMemberAssignment
	if err := a.ReadFrom(resp.MemberAssignment); err != nil {
		m.s.fatal("%s: assignment: %v", m.name, err)
	}
	var told []int32
	for _, t := range a.Topics {
		told = append(told, t.Partitions...)
	}
	m.follow(told)
}

// follow moves to what the member was given. A cooperative one that lost something joins again, so that others get it.
func (m *classic) follow(told []int32) {
	m.state.Lock()
	lost := slices.DeleteFunc(slices.Clone(m.have), func(p int32) bool { return slices.Contains(told, p) })
	m.state.Unlock()
	if len(lost) > 0 && !m.pass(m.s, "revoke") {
		return
	}
	m.state.Lock()
	defer m.state.Unlock()
	for _, p := range lost {
		m.s.give(m.name, p)
	}
	for _, p := range told {
		m.s.take(m.name, p)
	}
	m.have, m.revoked = told, append(m.revoked, lost...)
	if m.synced = m.in; len(lost) > 0 {
		m.in, m.synced = false, false
	}
}

// out has a member join again for an error that says so. Unless others are merely to join too, it has lost what it had. Under state.
func (m *classic) out(what string, code int16) {
	switch code {
	case kerr.UnknownMemberID.Code:
		m.id = ""
	case kerr.RebalanceInProgress.Code, kerr.IllegalGeneration.Code:
	default:
		m.s.fatal("%s: %s: %v", m.name, what, kerr.ErrorForCode(code))
	}
	if code != kerr.RebalanceInProgress.Code {
		m.lose()
	}
	m.in, m.synced = false, false
}

func (m *classic) heartbeat() {
	m.state.Lock()
	req := kmsg.NewPtrHeartbeatRequest()
	req.Version, req.Group, req.MemberID, req.InstanceID, req.Generation = 4, m.s.group, m.id, m.instance, m.generation
	m.state.Unlock()
	resp := m.peer.ask(req).(*kmsg.HeartbeatResponse)
	m.state.Lock()
	defer m.state.Unlock()
	if resp.ErrorCode != 0 && m.generation == req.Generation && m.in {
		m.out("Heartbeat", resp.ErrorCode)
	}
}

// vanish ends the member's process without a word.
func (m *classic) vanish() {
	m.state.Lock()
	m.leaving = true
	m.state.Unlock()
	<-m.ended
	m.release()
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
		var mine []int32
		for p := range int32(lostPartitions) {
			if int(p)%len(members) == i {
				mine = append(mine, p)
			}
		}
		all = append(all, assignment(m.MemberID, mine))
	}
	return all
}

// sticky deals the partitions out so that each member keeps as much as it may; what it loses nobody gets before it has given it up.
func (m *classic) sticky() (all []kmsg.SyncGroupRequestGroupAssignment) {
	owned, free := map[string][]int32{}, []int32{}
	for p := range int32(lostPartitions) {
		free = append(free, p)
	}
	for _, o := range m.members {
		var meta kmsg.ConsumerMemberMetadata
		if err := meta.ReadFrom(o.ProtocolMetadata); err != nil {
			m.s.fatal("%s: the subscription of %s: %v", m.name, o.MemberID, err)
		}
		for _, t := range meta.OwnedPartitions {
			owned[o.MemberID] = append(owned[o.MemberID], t.Partitions...)
		}
		free = slices.DeleteFunc(free, func(p int32) bool { return slices.Contains(owned[o.MemberID], p) })
	}
	q, r := lostPartitions/len(m.members), lostPartitions%len(m.members)
	members := slices.Clone(m.members) // who has most gets one more
	slices.SortStableFunc(members, func(a, b kmsg.JoinGroupResponseMember) int { return len(owned[b.MemberID]) - len(owned[a.MemberID]) })
	for i, o := range members {
		share := q
		if i < r {
			share++
		}
		keeps := owned[o.MemberID][:min(share, len(owned[o.MemberID]))]
		n := min(share-len(keeps), len(free))
		keeps, free = append(slices.Clone(keeps), free[:n]...), free[n:]
		all = append(all, assignment(o.MemberID, keeps))
	}
	return all
}

func assignment(member string, partitions []int32) kmsg.SyncGroupRequestGroupAssignment {
	a, t := kmsg.NewConsumerMemberAssignment(), kmsg.NewConsumerMemberAssignmentTopic()
	t.Topic, t.Partitions = lostTopic, partitions
	a.Topics = append(a.Topics, t)
	return kmsg.SyncGroupRequestGroupAssignment{MemberID: member, MemberAssignment: a.AppendTo(nil)}
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

func (m *classic) leads() bool {
	m.state.Lock()
	defer m.state.Unlock()
	return m.leader
}

// answered is how often it has joined.
func (m *classic) answered() int {
	m.state.Lock()
	defer m.state.Unlock()
	return m.joins
}

func (m *classic) parts() []int32 {
	m.state.Lock()
	defer m.state.Unlock()
	return slices.Sorted(slices.Values(m.have))
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
	req.InstanceID, req.RebalanceTimeoutMillis = m.instance, int32(lostSession.Milliseconds())
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

func (m *consumer) leave() { m.leaves(-1) }

// leaves ends the member; epoch -2 says that it will be back.
func (m *consumer) leaves(epoch int32) {
	m.state.Lock()
	m.leaving = true
	for _, p := range m.own {
		m.s.give(m.name, p)
	}
	m.own = nil
	req := m.request(epoch)
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
