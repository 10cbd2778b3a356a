package core

import (
	"fmt"
	"hash/fnv"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// Groups that the coordinator assigns (KIP-848). The row holds everything that a member was told: its epoch, what it may own, what it
// must give up, its target. A change of members, subscriptions or topics is a new epoch of the group with new targets at once, in
// one put; members then come to their target heartbeat by heartbeat (reconcile). Members that came by JoinGroup are in the same
// plan while a member by ConsumerGroupHeartbeat is in the group (consumer_classic.go).
//
// States as Kafka names them: Empty, Reconciling (a member is not at its target), Stable. Assigning is never seen.

// Hooks let another engine have a part in consumer groups (mixed groups). A nil function means what Kafka does. They are asked within
// a call of the mind, with its view, and must be pure in what they know of it.
type Hooks struct {
	// Universe is which partitions of a topic there are to give; default: all. When it comes to another answer, Replan is called.
	Universe func(v *state.View, group string, t *state.Topic) []int32
	// Free tells whether a partition that no member holds may be given to one now; default: yes. It is asked again at each heartbeat.
	Free func(v *state.View, group string, t id.TopicID, partition int32) bool
	// Refuse tells why a classic or consumer member may not join; "": it may. Default: it may not while znode consumers live.
	Refuse func(v *state.View, group string) string
	// Mixed tells whether classic members of a group are in the coordinator's plan although no consumer member is in it; default: no.
	Mixed func(v *state.View, group string) bool
}

// Held reports whether a member of a consumer group may still be reading a partition: it is in what the member was told to own, or to
// give up and has not.
func (c *Coordinator) Held(group string, t id.TopicID, partition int32) bool {
	row, ok := c.v.Group(group)
	if !ok {
		return false
	}
	return slices.ContainsFunc(row.Members, func(m *state.Member) bool { return m.Consumer != nil && m.Consumer.Held(t, partition) })
}

// Threads is how many members of a consumer group read a topic.
func (c *Coordinator) Threads(group, topic string) (n int) {
	row, ok := c.v.Group(group)
	t, exists := c.v.Topic(topic)
	if !ok || !exists || !row.Consumer {
		return 0
	}
	for _, m := range row.Members {
		if slices.Contains(c.reads(c.group(group), m.Consumer), t.ID) {
			n++
		}
	}
	return n
}

// Replan gives a consumer group a new epoch and new targets, if what there is to give has changed.
func (c *Coordinator) Replan(group, cause, text string) {
	g := c.group(group)
	g.moved = &plan{cause: cause, text: text}
	c.step(g)
	c.markAll(g)
}

// plan is why a consumer group is assigned anew.
type plan struct{ cause, text string }

// telling is a member that hears what it has to do when the plan is made.
type telling struct {
	req    Request
	member string
	before *state.ConsumerMember // as it was told last; nil: it is new
	owned  parts
	heard  bool
	full   bool // the answer names the assignment whether it has changed or not
}

// modern reports whether a group is one that the coordinator assigns now.
func (g *group) modern() bool {
	cur := g.cur()
	return cur != nil && cur.Consumer && len(cur.Members) > 0
}

// refuseHeartbeat checks what needs no group (GroupCoordinatorService.throwIfConsumerGroupHeartbeatRequestIsInvalid).
func refuseHeartbeat(req *kmsg.ConsumerGroupHeartbeatRequest) (*kerr.Error, string) {
	empty := func(s *string) bool { return s != nil && *s == "" }
	switch {
	case (req.Version >= 1 || req.MemberEpoch > 0 || req.MemberEpoch == -1) && req.MemberID == "":
		return kerr.InvalidRequest, "MemberId can't be empty."
	case req.Group == "":
		return kerr.InvalidRequest, "GroupId can't be empty."
	case empty(req.InstanceID):
		return kerr.InvalidRequest, "InstanceId can't be empty."
	case empty(req.RackID):
		return kerr.InvalidRequest, "RackId can't be empty."
	case req.MemberEpoch == 0 && req.RebalanceTimeoutMillis == -1:
		return kerr.InvalidRequest, "RebalanceTimeoutMs must be provided in first request."
	case req.MemberEpoch == 0 && (req.Topics == nil || len(req.Topics) > 0):
		return kerr.InvalidRequest, "TopicPartitions must be empty when (re-)joining."
	case req.MemberEpoch == 0 && req.SubscribedTopicNames == nil && req.SubscribedTopicRegex == nil:
		return kerr.InvalidRequest, "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
	case req.MemberEpoch == state.StaticLeft && req.InstanceID == nil:
		return kerr.InvalidRequest, "InstanceId can't be null."
	case req.MemberEpoch < state.StaticLeft:
		return kerr.InvalidRequest, "MemberEpoch is invalid."
	case req.ServerAssignor != nil && !slices.Contains(assignors, *req.ServerAssignor):
		return kerr.UnsupportedAssignor, "ServerAssignor " + *req.ServerAssignor + " is not supported. Supported assignors: uniform, range."
	case req.SubscribedTopicRegex != nil && *req.SubscribedTopicRegex != "":
		if _, err := compileRegex(*req.SubscribedTopicRegex); err != nil {
			return kerr.InvalidRegularExpression, "SubscribedTopicRegex `" + clip(*req.SubscribedTopicRegex) + "` is not a valid regular expression: " + err.Error() + "."
		}
	}
	return nil, ""
}

// compileRegex reads a subscription of whole topic names; RE2 is Go's own syntax.
func compileRegex(re string) (*regexp.Regexp, error) {
	if _, err := regexp.Compile(re); err != nil {
		return nil, err
	}
	return regexp.Compile(`\A(?:` + re + `)\z`)
}

// consumerHeartbeat is GroupMetadataManager.consumerGroupHeartbeat.
func (c *Coordinator) consumerHeartbeat(g *group, r Request, req *kmsg.ConsumerGroupHeartbeatRequest) {
	if req.MemberEpoch < 0 {
		c.consumerLeave(g, r, req)
		return
	}
	if !g.modern() && req.MemberEpoch > 0 { // it was in the group before: it may join again
		c.refuse(r, kerr.UnknownMemberID, fmt.Sprintf("Member %s is not a member of group %s.", clip(req.MemberID), req.Group))
		return
	}
	if e, why := c.refuseConsumer(g, r, req); e != nil {
		c.refuse(r, e, why)
		return
	}
	member := req.MemberID
	if member == "" {
		member = r.Kafka.Nonce
	}
	var owned parts
	for _, t := range req.Topics {
		owned = append(owned, state.TopicPartitions{TopicID: t.TopicID, Partitions: t.Partitions})
	}
	owned = owned.sorted()
	old, e, why := c.findConsumer(g, member, req, owned)
	if e != nil {
		c.refuse(r, e, why)
		return
	}
	m, changed := updated(old, member, r.Kafka, req)
	if changed && c.await(g, r) {
		return
	}
	t := telling{req: r, member: member, owned: owned, heard: req.Topics != nil}
	// A repeated one may have been carried out before, and its answer was lost.
	t.full = req.MemberEpoch == 0 || r.Repeat || req.RebalanceTimeoutMillis != -1 && (req.SubscribedTopicNames != nil || req.SubscribedTopicRegex != nil) && t.heard
	if old != nil && old.Consumer != nil {
		t.before = old.Consumer
	}
	if !g.modern() {
		c.upgrade(g, who(m)+" joined")
	}
	_, session := c.consumerTimes(g.name)
	m.SessionMs = int32(session.Milliseconds())
	if old == nil || old.ID != m.ID || !equalMembers(old, m) {
		if old != nil && old.ID != m.ID {
			g.dropMember(old.ID)
			delete(g.sessions, old.ID)
		}
		g.putMember(m)
	}
	if changed {
		if old == nil || old.Consumer == nil {
			g.replan("join", who(m)+" joined")
		} else {
			g.replan("subscription", who(m)+" changed its subscription")
		}
	}
	if s := g.sessions[member]; s == nil || s.pending {
		c.startSession(g, member, ms(m.SessionMs), false)
	} else {
		s.timeout = ms(m.SessionMs)
		c.alive(g, member)
	}
	if g.draft != nil && g.draft.plan != nil {
		g.draft.tell = append(g.draft.tell, t)
		return
	}
	c.tell(g, t)
}

// consumerTimes are how often members of a consumer group shall ask, and for how long they may be silent: the group's own, or the
// broker's. Each is checked when it is set; together, with the other one from a broker's file, they may not fit.
func (c *Coordinator) consumerTimes(group string) (beat, session time.Duration) {
	beat, session = c.cfg.ConsumerHeartbeat, c.cfg.ConsumerSession
	if row, ok := c.v.Config(state.GroupConfigs, group); ok {
		for name, to := range map[string]*time.Duration{state.GroupHeartbeat: &beat, state.GroupSession: &session} {
			v, _ := row.Get(name)
			if n, err := strconv.ParseInt(v, 10, 32); err == nil && n > 0 {
				*to = time.Duration(n) * time.Millisecond
			}
		}
	}
	if beat >= session {
		beat = max(session/3, time.Millisecond)
	}
	return beat, session
}

// refuseConsumer tells why a member may not be in the group at all.
func (c *Coordinator) refuseConsumer(g *group, r Request, req *kmsg.ConsumerGroupHeartbeatRequest) (*kerr.Error, string) {
	if why := c.legacyRefusal(g); why != "" && g.cur().Member(req.MemberID) == nil {
		c.explainRefused(g.name, clientAt(r.Kafka.ClientID, r.Kafka.Host), why)
		return kerr.InconsistentGroupProtocol, why
	}
	if !g.modern() && (len(g.members()) > 0 || len(g.joins) > 0) {
		if e, why := c.refuseUpgrade(g); e != nil {
			return e, why
		}
	}
	instance := req.InstanceID != nil && g.cur().Instance(*req.InstanceID) != nil
	if g.cur().Member(req.MemberID) == nil && !instance && len(g.members()) >= c.cfg.ConsumerMaxSize {
		return kerr.GroupMaxSizeReached, fmt.Sprintf("The consumer group has reached its maximum capacity of %d members.", c.cfg.ConsumerMaxSize)
	}
	return nil, ""
}

func (c *Coordinator) mixed(g *group) bool { return c.hooks.Mixed != nil && c.hooks.Mixed(c.v, g.name) }

// legacyRefusal tells why no classic or consumer member may join now, "" if one may.
func (c *Coordinator) legacyRefusal(g *group) string {
	if c.hooks.Refuse != nil {
		return c.hooks.Refuse(c.v, g.name)
	}
	if c.onlyLegacy(g) {
		return "consumers by ZooKeeper are live in the group, and both would read the same partitions"
	}
	return ""
}

// findConsumer finds who sends a heartbeat: nil for a new member. A static member may take the place of one that said that it would
// come back, or of a classic one.
func (c *Coordinator) findConsumer(g *group, member string, req *kmsg.ConsumerGroupHeartbeatRequest, owned parts) (*state.Member, *kerr.Error, string) {
	old := g.cur().Member(member)
	if req.InstanceID != nil {
		in := g.cur().Instance(*req.InstanceID)
		switch {
		case in == nil && req.MemberEpoch != 0:
			return nil, kerr.UnknownMemberID, fmt.Sprintf("Instance id %s is unknown.", clip(*req.InstanceID))
		case in == nil:
			return old, nil, ""
		case req.MemberEpoch == 0 && in.ID == member && in.Consumer != nil && in.Consumer.Epoch != state.StaticLeft:
			old = in // its join is repeated
		case req.MemberEpoch == 0 && !in.Classic() && in.Consumer.Epoch != state.StaticLeft:
			return nil, kerr.UnreleasedInstanceID, fmt.Sprintf("Static member %s with instance id %s cannot join the group because the instance id is owned by %s member.",
				clip(member), clip(*req.InstanceID), clip(in.ID))
		case req.MemberEpoch == 0:
			return in, nil, ""
		case in.ID != member:
			return nil, kerr.FencedInstanceID, fmt.Sprintf("Static member %s with instance id %s was fenced by member %s.", clip(member), clip(*req.InstanceID), clip(in.ID))
		default:
			old = in
		}
	}
	if old == nil && req.MemberEpoch != 0 {
		return nil, kerr.UnknownMemberID, fmt.Sprintf("Member %s is not a member of group %s.", clip(member), req.Group)
	}
	if old != nil && old.Consumer != nil {
		if why := checkEpoch(old.Consumer, req.MemberEpoch, owned, req.Topics != nil); why != "" {
			return nil, kerr.FencedMemberEpoch, why
		}
	}
	return old, nil, ""
}

// updated is the member as its heartbeat wants it, and whether the group must be assigned anew for it.
func updated(old *state.Member, member string, k *KafkaRequest, req *kmsg.ConsumerGroupHeartbeatRequest) (m *state.Member, replan bool) {
	m, cm := &state.Member{ID: member}, &state.ConsumerMember{}
	if old != nil {
		*m = *old
		if old.Consumer != nil {
			*cm = *old.Consumer
		}
		if m.ID != member { // it takes a static member's place, with all that this one held
			m.ID, cm.Epoch, cm.Previous = member, 0, 0
		}
	}
	was := *cm
	m.Client, m.Host, m.Protocols, m.Assignment = k.ClientID, k.Host, nil, nil
	if req.InstanceID != nil {
		m.Instance = *req.InstanceID
	}
	if req.RebalanceTimeoutMillis != -1 {
		m.RebalanceMs = req.RebalanceTimeoutMillis
	}
	if req.RackID != nil {
		cm.Rack = *req.RackID
	}
	if req.ServerAssignor != nil {
		cm.Assignor = *req.ServerAssignor
	}
	if req.SubscribedTopicNames != nil {
		cm.Topics = slices.Clone(req.SubscribedTopicNames)
		slices.Sort(cm.Topics)
		cm.Topics = slices.Compact(cm.Topics)
	}
	if req.SubscribedTopicRegex != nil {
		cm.Regex = *req.SubscribedTopicRegex
	}
	m.Consumer = cm
	return m, old == nil || old.Consumer == nil || !slices.Equal(was.Topics, cm.Topics) || was.Regex != cm.Regex || was.Assignor != cm.Assignor
}

// equalMembers compares what a heartbeat without a new plan can change.
func equalMembers(a, b *state.Member) bool {
	return a.Client == b.Client && a.Host == b.Host && a.Instance == b.Instance && a.SessionMs == b.SessionMs && a.RebalanceMs == b.RebalanceMs &&
		len(a.Protocols) == len(b.Protocols) && a.Consumer != nil && a.Consumer.Rack == b.Consumer.Rack && a.Consumer.Assignor == b.Consumer.Assignor &&
		a.Consumer.Regex == b.Consumer.Regex && slices.Equal(a.Consumer.Topics, b.Consumer.Topics)
}

// await parks a request that asks for a new plan for a moment: members that start together are assigned together.
func (c *Coordinator) await(g *group, r Request) bool {
	if c.cfg.Settle <= 0 || g.admitting {
		return false
	}
	if len(g.waits) == 0 {
		g.waitFrom = c.now
	}
	g.waits = append(g.waits, r)
	g.planAt = c.mark(min(c.now+c.cfg.Settle, g.waitFrom+maxSettle))
	return true
}

// admit carries out what await has parked.
func (c *Coordinator) admit(g *group) {
	waits := g.waits
	g.waits, g.planAt, g.admitting = nil, never, true
	for _, r := range waits {
		c.carryOut(g, r)
	}
	g.admitting = false
}

// consumerLeave takes a member out (-1), or lets a static one be away for a while (-2).
func (c *Coordinator) consumerLeave(g *group, r Request, req *kmsg.ConsumerGroupHeartbeatRequest) {
	m := g.cur().Member(req.MemberID)
	if req.InstanceID != nil {
		in := g.cur().Instance(*req.InstanceID)
		if in != nil && in.ID != req.MemberID {
			c.refuse(r, kerr.FencedInstanceID, fmt.Sprintf("Static member %s was fenced by member %s.", clip(req.MemberID), clip(in.ID)))
			return
		}
		m = in
	}
	if !g.modern() || m == nil {
		c.refuse(r, kerr.UnknownMemberID, fmt.Sprintf("Member %s is not a member of group %s.", clip(req.MemberID), req.Group))
		return
	}
	resp := req.ResponseKind().(*kmsg.ConsumerGroupHeartbeatResponse)
	resp.MemberID, resp.MemberEpoch = &req.MemberID, req.MemberEpoch
	if req.MemberEpoch == state.StaticLeft {
		n, cm := *m, *m.Consumer
		cm.Epoch, cm.Revoking, n.Consumer = state.StaticLeft, nil, &cm
		g.putMember(&n)
		if s := g.sessions[m.ID]; s != nil {
			s.revokeBy = never
		}
	} else {
		c.removeConsumer(g, m, "leave", who(m)+" left")
	}
	g.draft.answers = append(g.draft.answers, Action{Request: r.ID, Answer: resp})
	g.draft.requests = append(g.draft.requests, r)
}

// removeConsumer takes a member out of a consumer group, which becomes a classic one again with its last consumer member.
func (c *Coordinator) removeConsumer(g *group, m *state.Member, cause, text string) {
	delete(g.sessions, m.ID)
	g.dropMember(m.ID)
	if c.downgrades(g) {
		c.downgrade(g, cause, text)
		return
	}
	g.replan(cause, text)
}

// ---- drafts of consumer groups ----

func (g *group) putMember(m *state.Member) {
	d := g.edit()
	d.touch(m.ID)
	for i := range d.row.Members {
		if d.row.Members[i].ID == m.ID {
			d.row.Members[i] = m
			return
		}
	}
	d.row.Members = append(d.row.Members, m)
}

func (g *group) dropMember(member string) {
	d := g.edit()
	d.without(member)
	delete(d.changed, member)
	d.gone = append(d.gone, member)
}

func (d *draft) touch(member string) {
	if d.changed == nil {
		d.changed = map[string]bool{}
	}
	d.changed[member] = true
	d.gone = slices.DeleteFunc(d.gone, func(m string) bool { return m == member })
}

// replan asks for a new epoch; the first cause is the one that is told.
func (g *group) replan(cause, text string) {
	if d := g.edit(); d.plan == nil {
		d.plan = &plan{cause, text}
	}
}

// planConsumers makes the draft's new epoch, then tells those who wait for it.
func (c *Coordinator) planConsumers(g *group) {
	d := g.draft
	if d == nil || d.plan == nil {
		return
	}
	row := &d.row
	row.Generation = max(g.highest, row.Generation, 1) + 1 // a new group's first is 2, as at Kafka
	row.ProtocolType, row.Consumer = "consumer", true
	row.Protocol = preferredAssignor(row.Members)
	partitions, seats := c.seats(g)
	row.Subscribed = digest(partitions)
	targets := assign(row.Protocol, seats, partitions)
	for i, m := range row.Members {
		if to := targets[m.ID]; !to.same(m.Consumer.Target) {
			n, cm := *m, *m.Consumer
			cm.Target, n.Consumer = to, &cm
			row.Members[i] = &n
			d.touch(m.ID)
		}
	}
	if old := g.told; old != nil {
		old.WaitedMs, old.WaitedFor = (c.now - g.since).Milliseconds(), "another change came before all were there"
		c.do(Action{Note: rebalanced(g.name, old), Count: counted(g, old)})
	}
	d.record = c.planned(g, d)
	if g.since, g.told = c.now, d.record; len(row.Members) == 0 {
		g.told = nil // nobody is to come to it
	}
	tell := d.tell
	d.tell, d.plan = nil, nil
	for _, t := range tell {
		c.tell(g, t)
	}
}

// planned explains a new epoch.
func (c *Coordinator) planned(g *group, d *draft) *statepb.Rebalance {
	r := &statepb.Rebalance{Generation: d.row.Generation, Cause: d.plan.cause, Text: d.plan.text, After: int32(len(d.row.Members))}
	if g.row != nil {
		r.Before = int32(len(g.row.Members))
		for _, m := range g.row.Members {
			if d.row.Member(m.ID) == nil {
				r.Left = listed(r.Left, m.ID)
			}
		}
	}
	for _, m := range d.row.Members {
		if g.row.Member(m.ID) == nil {
			r.Joined = listed(r.Joined, m.ID)
		}
	}
	return r
}

// tell moves a member on and answers it, at once when nothing has changed.
func (c *Coordinator) tell(g *group, t telling) {
	m := g.cur().Member(t.member)
	_, classic := t.req.Kafka.Body.(*kmsg.JoinGroupRequest)
	if m == nil || classic != (len(m.Protocols) > 0) {
		c.refuse(t.req, kerr.UnknownMemberID, "the member was taken out, or replaced by another one, meanwhile")
		return
	}
	m = c.advance(g, m, t.owned, t.heard)
	a := Action{Request: t.req.ID}
	switch req := t.req.Kafka.Body.(type) {
	case *kmsg.ConsumerGroupHeartbeatRequest:
		a.Answer = c.heartbeatAnswer(req, m, t)
	case *kmsg.JoinGroupRequest:
		a.Answer = joinedConsumer(m, req.Version)
		if s := g.sessions[m.ID]; s != nil {
			s.joinBy, s.syncBy = never, c.mark(c.now+ms(m.RebalanceMs))
		}
	}
	if g.draft == nil {
		c.do(a)
		return
	}
	g.draft.answers = append(g.draft.answers, a)
	g.draft.requests = append(g.draft.requests, t.req)
}

// advance reconciles a member and keeps its clock.
func (c *Coordinator) advance(g *group, m *state.Member, owned parts, heard bool) *state.Member {
	epoch := g.cur().Generation
	if reconciled(m.Consumer, epoch) {
		return m
	}
	cm := reconcile(m.Consumer, epoch, owned, heard, c.freeIn(g))
	if cm == m.Consumer {
		return m
	}
	n := *m
	n.Consumer = cm
	g.putMember(&n)
	s := g.sessions[m.ID]
	switch {
	case s == nil || n.Classic(): // classic members have the time for a join and for a sync
	case cm.State == state.MemberUnrevoked:
		s.revokeBy = c.mark(c.now + ms(n.RebalanceMs))
	default:
		s.revokeBy = never
	}
	c.converged(g, m.ID)
	return &n
}

// converged tells the explanation of an epoch to its end when the last member has come to it.
func (c *Coordinator) converged(g *group, last string) {
	row := g.cur()
	if g.told == nil || g.told.Generation != row.Generation || slices.ContainsFunc(row.Members, func(m *state.Member) bool { return !reconciled(m.Consumer, row.Generation) }) {
		return
	}
	g.told.WaitedMs, g.told.WaitedFor = (c.now - g.since).Milliseconds(), clip(last)
	g.draft.record, g.told = g.told, nil
}

// freeIn tells which partitions nobody holds.
func (c *Coordinator) freeIn(g *group) func(partition) bool {
	var held map[partition]bool
	return func(p partition) bool {
		if held == nil {
			held = map[partition]bool{}
			for _, m := range g.members() {
				hold := func(p partition, _ int32) { held[p] = true }
				parts(m.Consumer.Assigned).each(hold)
				parts(m.Consumer.Revoking).each(hold)
			}
		}
		return !held[p] && (c.hooks.Free == nil || c.hooks.Free(c.v, g.name, p.topic, p.n))
	}
}

func (c *Coordinator) heartbeatAnswer(req *kmsg.ConsumerGroupHeartbeatRequest, m *state.Member, t telling) *kmsg.ConsumerGroupHeartbeatResponse {
	resp := req.ResponseKind().(*kmsg.ConsumerGroupHeartbeatResponse)
	resp.MemberID, resp.MemberEpoch = &m.ID, m.Consumer.Epoch
	beat, _ := c.consumerTimes(req.Group)
	resp.HeartbeatIntervalMillis = int32(beat.Milliseconds())
	if t.full || t.before == nil || !parts(t.before.Assigned).same(m.Consumer.Assigned) {
		a := kmsg.NewConsumerGroupHeartbeatResponseAssignment()
		a.Topics = []kmsg.ConsumerGroupHeartbeatResponseAssignmentTopic{}
		for _, tp := range m.Consumer.Assigned {
			out := kmsg.NewConsumerGroupHeartbeatResponseAssignmentTopic()
			out.TopicID, out.Partitions = tp.TopicID, tp.Partitions
			a.Topics = append(a.Topics, out)
		}
		resp.Assignment = &a
	}
	return resp
}

// refuse answers with an error and a text that clients log.
func (c *Coordinator) refuse(r Request, e *kerr.Error, why string) {
	resp := failure(r.Kafka.Body, e, "")
	if resp, ok := resp.(*kmsg.ConsumerGroupHeartbeatResponse); ok && why != "" {
		resp.ErrorMessage = &why
	}
	c.do(Action{Request: r.ID, Answer: resp})
}

// ---- what there is to read ----

// reads are the topics that a member reads and that exist, in order of id.
func (c *Coordinator) reads(g *group, m *state.ConsumerMember) []id.TopicID {
	var out []id.TopicID
	for _, name := range m.Topics {
		if t, ok := c.v.Topic(name); ok {
			out = append(out, t.ID)
		}
	}
	if re := g.regex(m.Regex); re != nil {
		c.v.Topics(func(t *state.Topic) bool {
			if !state.InternalTopic(t.Name) && re.MatchString(t.Name) {
				out = append(out, t.ID)
			}
			return true
		})
	}
	slices.SortFunc(out, compareTopics)
	return slices.Compact(out)
}

func (g *group) regex(re string) *regexp.Regexp {
	if re == "" {
		return nil
	}
	if r, ok := g.regexes[re]; ok {
		return r
	}
	r, _ := compileRegex(re) // checked when it came
	if g.regexes == nil || len(g.regexes) >= 100 {
		g.regexes = map[string]*regexp.Regexp{}
	}
	g.regexes[re] = r
	return r
}

// seats are the members in order of their ids, and what there is to give them.
func (c *Coordinator) seats(g *group) (map[id.TopicID][]int32, []seat) {
	partitions, seats := map[id.TopicID][]int32{}, []seat{}
	byRegex := map[string][]id.TopicID{}
	for _, m := range g.members() {
		s := seat{id: m.ID, instance: m.Instance, has: m.Consumer.Target}
		if m.Consumer.Regex == "" {
			s.topics = c.reads(g, m.Consumer)
		} else {
			key := fmt.Sprintf("%q%q", m.Consumer.Regex, m.Consumer.Topics)
			if _, ok := byRegex[key]; !ok {
				byRegex[key] = c.reads(g, m.Consumer)
			}
			s.topics = byRegex[key]
		}
		for _, t := range s.topics {
			if _, ok := partitions[t]; !ok {
				partitions[t] = c.universe(g, t)
			}
		}
		seats = append(seats, s)
	}
	slices.SortFunc(seats, func(a, b seat) int { return strings.Compare(a.id, b.id) })
	return partitions, seats
}

func (c *Coordinator) universe(g *group, t id.TopicID) []int32 {
	row, ok := c.v.TopicByID(t)
	if !ok {
		return nil
	}
	if c.hooks.Universe != nil {
		return c.hooks.Universe(c.v, g.name, row)
	}
	all := make([]int32, row.Partitions)
	for i := range all {
		all[i] = int32(i)
	}
	return all
}

// digest is equal for equal topics with equal partitions to give.
func digest(partitions map[id.TopicID][]int32) uint64 {
	topics := make([]id.TopicID, 0, len(partitions))
	for t := range partitions {
		topics = append(topics, t)
	}
	slices.SortFunc(topics, compareTopics)
	h := fnv.New64a()
	for _, t := range topics {
		_, _ = h.Write(t[:])
		for _, n := range partitions[t] {
			_, _ = h.Write([]byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)})
		}
		_, _ = h.Write([]byte{0xff, 0xff, 0xff, 0xff})
	}
	return h.Sum64()
}

// preferredAssignor is the one that most members ask for (ConsumerGroup.computePreferredServerAssignor).
func preferredAssignor(members []*state.Member) string {
	votes := map[string]int{}
	for _, m := range members {
		votes[m.Consumer.Assignor]++
	}
	best := assignors[0]
	for _, a := range assignors {
		if votes[a] > votes[best] {
			best = a
		}
	}
	return best
}

// topicsMoved looks whether a consumer group's topics are still what it was assigned by.
func (c *Coordinator) topicsMoved(g *group) {
	p := g.moved
	g.moved = nil
	if p == nil || !g.modern() {
		return
	}
	if partitions, _ := c.seats(g); digest(partitions) != g.cur().Subscribed {
		g.replan(p.cause, p.text)
	}
}

// topicsChanged has the consumer groups look at their topics.
func (c *Coordinator) topicsChanged(changes []state.Change) {
	text := ""
	for _, ch := range changes {
		switch ch.Kind {
		case state.TopicCreated:
			text = "topic " + ch.Topic + " was created"
		case state.TopicDeleted:
			text = "topic " + ch.Topic + " was deleted"
		case state.TopicGrown:
			text = "topic " + ch.Topic + " has more partitions"
		}
	}
	if text == "" {
		return
	}
	for _, name := range c.names() {
		if row, ok := c.v.Group(name); ok && row.Consumer || c.groups[name].put != nil { // which may be a consumer group when it stands
			c.Replan(name, "topics", text)
		}
	}
}

// expireConsumers takes out members whose time is over.
func (c *Coordinator) expireConsumers(g *group) {
	g.syncBy = never
	for _, id := range sorted(g.sessions) {
		s, m := g.sessions[id], g.cur().Member(id)
		switch {
		case m == nil || m.Consumer == nil: // its change did not come about
			if c.now >= min(s.ends, s.revokeBy, s.joinBy, s.syncBy) {
				delete(g.sessions, id)
			}
		case c.now >= s.ends:
			c.removeConsumer(g, m, "session", fmt.Sprintf("%s was not heard from for %s", who(m), s.timeout))
		case c.now >= s.revokeBy:
			c.removeConsumer(g, m, "revoke", fmt.Sprintf("%s did not give up its partitions within %s", who(m), ms(m.RebalanceMs)))
		case c.now >= s.joinBy:
			c.removeConsumer(g, m, "rejoin", fmt.Sprintf("%s did not join again within %s", who(m), ms(m.RebalanceMs)))
		case c.now >= s.syncBy:
			c.removeConsumer(g, m, "sync", fmt.Sprintf("%s did not ask for its assignment within %s", who(m), ms(m.RebalanceMs)))
		}
		if !g.modern() { // it is empty or classic now
			return
		}
	}
}

// proposeConsumers proposes a draft of a consumer group: what changed, unless its kind did.
func (c *Coordinator) proposeConsumers(g *group, d *draft) {
	row := &d.row
	if row.State = state.GroupStable; len(row.Members) == 0 {
		row.State, row.Protocol, row.Subscribed = state.GroupEmpty, "", 0
	}
	cmd := &statepb.PutGroup{Group: g.name, Generation: max(row.Generation, 1), State: statepb.GroupState(row.State), ProtocolType: "consumer",
		Protocol: row.Protocol, Rebalance: d.record, Consumer: true, Subscribed: row.Subscribed, Gone: d.gone}
	cmd.Delta = g.row != nil && g.row.Consumer && !d.whole
	if g.row != nil {
		cmd.GroupVersion = g.row.Version
	}
	for _, m := range row.Members {
		if !cmd.Delta || d.changed[m.ID] {
			cmd.Members = append(cmd.Members, memberMessage(m, row.State))
		}
	}
	g.put = &put{draft: *d, id: c.number(g)}
	c.do(Action{Request: g.put.id, Propose: &statepb.Command{Body: &statepb.Command_PutGroup{PutGroup: cmd}}})
}

func consumerMessage(m *state.ConsumerMember) *statepb.ConsumerMember {
	if m == nil {
		return nil
	}
	return &statepb.ConsumerMember{Epoch: m.Epoch, Previous: m.Previous, State: statepb.MemberState(m.State), Topics: m.Topics, Regex: m.Regex,
		Assignor: m.Assignor, Rack: m.Rack, Assigned: partsMessage(m.Assigned), Revoking: partsMessage(m.Revoking), Target: partsMessage(m.Target)}
}

func partsMessage(ps parts) (out []*statepb.TopicPartitions) {
	for _, tp := range ps {
		out = append(out, &statepb.TopicPartitions{TopicId: tp.TopicID[:], Partitions: tp.Partitions, Epochs: tp.Epochs})
	}
	return out
}

// maxSettle bounds how long members that keep coming put off a plan.
const maxSettle = time.Second
