package core

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// Classic members of consumer groups (KIP-848, online upgrade). They join, sync and send heartbeats as ever, but nobody of them leads:
// a JoinGroup says what the member still owns and is answered at once, its SyncGroup brings what it may own now, and a Heartbeat's 27
// calls it to join again when there is something to give up or to take.

// Migration is group.consumer.migration.policy: which way a group may change its kind while it has members.
type Migration uint8

// The policies of Kafka.
const (
	MigrateBoth Migration = iota // bidirectional
	MigrateUp                    // upgrade
	MigrateDown                  // downgrade
	MigrateNone                  // disabled
)

func (m Migration) upgrades() bool   { return m == MigrateBoth || m == MigrateUp }
func (m Migration) downgrades() bool { return m == MigrateBoth || m == MigrateDown }

// subscription is what a classic member tells under its protocols; all of them tell the same.
func subscription(m *state.Member, protocol string) (*kmsg.ConsumerMemberMetadata, error) {
	raw := metadata(m, protocol)
	if raw == nil && len(m.Protocols) > 0 {
		raw = m.Protocols[0].Metadata
	}
	meta := kmsg.NewConsumerMemberMetadata()
	if err := meta.ReadFrom(raw); err != nil {
		return nil, fmt.Errorf("member %s: its subscription is malformed: %w", clip(m.ID), err)
	}
	texts := meta.Topics
	if meta.Rack != nil {
		texts = append(slices.Clone(texts), *meta.Rack)
	}
	if slices.ContainsFunc(texts, func(s string) bool { return !utf8.ValidString(s) }) {
		return nil, fmt.Errorf("member %s: its subscription is no text", clip(m.ID))
	}
	return &meta, nil
}

// refuseUpgrade tells why a classic group with members cannot become a consumer group (GroupMetadataManager.validateOnlineUpgrade).
func (c *Coordinator) refuseUpgrade(g *group) (*kerr.Error, string) {
	no := func(why string) (*kerr.Error, string) {
		return kerr.GroupIDNotFound, "Cannot upgrade classic group " + g.name + " to consumer group because " + why + "."
	}
	switch {
	case !c.cfg.Migration.upgrades():
		return no("online upgrade is disabled")
	case g.protocolType() != "consumer":
		return no("the group does not use the consumer embedded protocol")
	case len(g.members()) > c.cfg.ConsumerMaxSize:
		return no("the group size exceeds the consumer group maximum size")
	}
	for _, m := range g.members() {
		if _, err := subscription(m, g.cur().Protocol); err != nil {
			return no("the embedded consumer protocol is malformed")
		}
	}
	if why := c.ownedAside(g); why != "" {
		return no(why)
	}
	return nil, ""
}

// ownedAside tells which partition that a classic member reads has an owner by ZooKeeper as well, left behind by a tool or by a consumer that
// is registered no more: the state would refuse to give the partition to the member, for ever. "" for none.
func (c *Coordinator) ownedAside(g *group) (why string) {
	if !c.zooKeeperOwners(g.name) {
		return ""
	}
	for _, m := range g.members() {
		c.assigned(m).each(func(p partition, _ int32) {
			topic := c.topicName(p.topic)
			if _, there := c.v.Owner(g.name, topic, strconv.Itoa(int(p.n))); there && why == "" {
				why = fmt.Sprintf("the znode /consumers/%s/owners/%s/%d says that the partition has an owner: delete it if it has none", g.name, topic, p.n)
			}
		})
	}
	return why
}

// upgrade makes a consumer group of a classic one. Its members keep what they were assigned until they have been heard; those that wait
// in a rebalance are told to join again.
func (c *Coordinator) upgrade(g *group, because string) {
	if len(g.joins) > 0 || g.reb != nil || len(g.syncs) > 0 {
		c.refuseAll(g, kerr.RebalanceInProgress)
	}
	d := g.edit()
	stable := d.row.State == state.GroupStable
	held := map[partition]bool{}
	for _, m := range d.row.Members {
		c.assigned(m).each(func(p partition, _ int32) { held[p] = true })
	}
	d.completes, d.assigns, d.whole = false, false, true
	d.row.Consumer, d.row.Leader, d.row.State = true, "", state.GroupStable
	for i, m := range d.row.Members {
		n := *m
		n.Consumer = c.convert(m, &d.row, stable, held)
		n.Assignment = nil
		d.row.Members[i] = &n
	}
	if len(d.row.Members) > 0 {
		c.do(Action{Note: &Note{"a classic group becomes a consumer group", []any{"group", g.name, "members", len(d.row.Members), "because", because}}})
	}
}

// convert is a classic member as a consumer group sees it. One without an assignment, in a generation that has none yet, may still hold
// what it said that it owns.
func (c *Coordinator) convert(m *state.Member, row *state.Group, stable bool, held map[partition]bool) *state.ConsumerMember {
	meta, err := subscription(m, row.Protocol)
	if err != nil { // checked by refuseUpgrade
		meta = &kmsg.ConsumerMemberMetadata{}
	}
	cm := &state.ConsumerMember{Epoch: row.Generation, Previous: row.Generation, Topics: topicsOf(meta)}
	if meta.Rack != nil {
		cm.Rack = *meta.Rack
	}
	owned := c.assigned(m)
	if len(owned) == 0 && !stable {
		var b builder
		c.owned(meta).each(func(p partition, _ int32) {
			if !held[p] {
				b.add(p.topic, p.n)
				held[p] = true
			}
		})
		owned = b.parts()
	}
	cm.Target = owned
	cm.Assigned = owned.given(row.Generation)
	return cm
}

// assigned is what a classic member's assignment says.
func (c *Coordinator) assigned(m *state.Member) parts {
	var a kmsg.ConsumerMemberAssignment
	if len(m.Assignment) == 0 || a.ReadFrom(m.Assignment) != nil {
		return nil
	}
	var b builder
	for _, t := range a.Topics {
		c.addNamed(&b, t.Topic, t.Partitions)
	}
	return b.parts()
}

func (c *Coordinator) addNamed(b *builder, topic string, partitions []int32) {
	if t, ok := c.v.Topic(topic); ok {
		b.add(t.ID, partitions...)
	}
}

// owned is what a member's subscription says that it owns.
func (c *Coordinator) owned(meta *kmsg.ConsumerMemberMetadata) parts {
	var b builder
	for _, t := range meta.OwnedPartitions {
		c.addNamed(&b, t.Topic, t.Partitions)
	}
	return b.parts()
}

func topicsOf(meta *kmsg.ConsumerMemberMetadata) []string {
	topics := slices.Clone(meta.Topics)
	slices.Sort(topics)
	return slices.Compact(topics)
}

// given is the same partitions, each given in an epoch.
func (ps parts) given(epoch int32) parts {
	var b builder
	ps.each(func(p partition, _ int32) { b.put(p.topic, p.n, epoch) })
	return b.parts()
}

// downgrades reports whether the draft of a consumer group is to become a classic one: its members are classic ones only.
func (c *Coordinator) downgrades(g *group) bool {
	row := &g.draft.row
	if !row.Consumer || len(row.Members) == 0 || c.mixed(g) || !c.cfg.Migration.downgrades() || len(row.Members) > c.cfg.MaxSize ||
		slices.ContainsFunc(row.Members, func(m *state.Member) bool { return !m.Classic() }) {
		return false
	}
	_, ok := vote(row.Members)
	return ok
}

// downgrade makes a classic group of a consumer group and begins a rebalance, by which a member becomes the leader.
func (c *Coordinator) downgrade(g *group, cause, text string) {
	d := g.draft
	row := &d.row
	for i, m := range row.Members {
		n := *m
		// Nobody is told this assignment, for a rebalance begins: it is what the member may still be reading.
		n.Consumer, n.Assignment = nil, c.assignment(m, slices.Concat(m.Consumer.Assigned, m.Consumer.Revoking))
		row.Members[i] = &n
		if s := g.sessions[m.ID]; s != nil {
			s.revokeBy, s.joinBy, s.syncBy = never, never, never
		}
	}
	row.Consumer, row.Subscribed, row.ProtocolType = false, 0, "consumer"
	row.Protocol, _ = vote(row.Members)
	row.Leader = row.Members[0].ID
	for _, t := range d.tell { // they asked to be told of the plan that is not made
		c.refuse(t.req, kerr.RebalanceInProgress, "")
	}
	d.plan, d.tell, d.gone, d.whole = nil, nil, nil, true
	g.told = nil
	c.do(Action{Note: &Note{"a consumer group becomes a classic group", []any{"group", g.name, "members", len(row.Members), "because", text}}})
	c.prepare(g, cause, text+": the group is a classic one again")
}

// assignment tells a classic member partitions, in the version of its subscription.
func (c *Coordinator) assignment(m *state.Member, partitions parts) []byte {
	a := kmsg.NewConsumerMemberAssignment()
	if meta, err := subscription(m, ""); err == nil {
		a.Version = min(meta.Version, 2)
	}
	for _, tp := range partitions.sorted() {
		if t, ok := c.v.TopicByID(tp.TopicID); ok {
			a.Topics = append(a.Topics, kmsg.ConsumerMemberAssignmentTopic{Topic: t.Name, Partitions: tp.Partitions})
		}
	}
	slices.SortFunc(a.Topics, func(x, y kmsg.ConsumerMemberAssignmentTopic) int { return strings.Compare(x.Topic, y.Topic) })
	return a.AppendTo(nil)
}

// joinConsumer is GroupMetadataManager.classicGroupJoinToConsumerGroup.
func (c *Coordinator) joinConsumer(g *group, r Request, req *kmsg.JoinGroupRequest) {
	m := memberOf(r.Kafka, req)
	if e := c.refuseClassic(g, m, req); e != nil {
		c.fail(r, e)
		return
	}
	meta, err := subscription(m, "")
	if err != nil {
		c.explainRefused(g.name, clientAt(m.Client, m.Host), err.Error())
		c.fail(r, kerr.InconsistentGroupProtocol)
		return
	}
	session := ms(m.SessionMs)
	switch {
	case m.ID == "" && m.Instance != "":
		m.ID = m.Instance + "-" + r.Kafka.Nonce
	case m.ID == "":
		if m.ID = r.Kafka.ClientID + "-" + r.Kafka.Nonce; req.Version >= 4 && g.cur().Member(m.ID) == nil {
			c.startSession(g, m.ID, session, true)
			c.do(Action{Request: r.ID, Answer: failure(req, kerr.MemberIDRequired, m.ID)})
			return
		}
	}
	upgrades := !g.modern() && len(g.members()) > 0
	if upgrades { // before anybody else could: this member may be one of those that keep what they have
		c.upgrade(g, who(m)+" joined")
	}
	old := g.cur().Member(m.ID)
	if in := g.cur().Instance(m.Instance); in != nil {
		old = in
	}
	t := telling{req: r, member: m.ID, owned: c.owned(meta), heard: true}
	m.Consumer = &state.ConsumerMember{}
	if old != nil {
		t.before = old.Consumer
		*m.Consumer = *old.Consumer
		if old.ID != m.ID {
			m.Consumer.Epoch, m.Consumer.Previous = 0, 0
		}
	}
	changed := upgrades || old == nil || m.Consumer.Regex != "" || !slices.Equal(m.Consumer.Topics, topicsOf(meta))
	if changed && c.await(g, r) {
		return
	}
	m.Consumer.Topics, m.Consumer.Regex = topicsOf(meta), ""
	if meta.Rack != nil {
		m.Consumer.Rack = *meta.Rack
	}
	if !g.modern() {
		c.upgrade(g, who(m)+" joined")
	}
	if old != nil && old.ID != m.ID {
		g.dropMember(old.ID)
		delete(g.sessions, old.ID)
	}
	g.putMember(m)
	c.startSession(g, m.ID, ms(m.SessionMs), false)
	if c.downgrades(g) { // it took the place of the last consumer member
		c.downgrade(g, "join", who(m)+" took the place of a consumer member")
		c.park(g, r, g.cur().Member(m.ID), req)
		g.draft.requests = append(g.draft.requests, r)
		return
	}
	if changed {
		g.replan("join", fmt.Sprintf("%s joined%s", who(m), because(req.Reason)))
	}
	if g.draft.plan != nil {
		g.draft.tell = append(g.draft.tell, t)
		return
	}
	c.tell(g, t)
}

// refuseClassic tells why a classic member may not be in a consumer group.
func (c *Coordinator) refuseClassic(g *group, m *state.Member, req *kmsg.JoinGroupRequest) *kerr.Error {
	session := ms(m.SessionMs)
	in := g.cur().Instance(m.Instance)
	known := g.cur().Member(m.ID) != nil || in != nil
	switch {
	case session < c.cfg.MinSession || session > c.cfg.MaxSession:
		return kerr.InvalidSessionTimeout
	case !known && len(g.members()) >= c.cfg.ConsumerMaxSize:
		return kerr.GroupMaxSizeReached
	case req.ProtocolType != "consumer" || len(m.Protocols) == 0 || c.cfg.Migration == MigrateNone:
		return kerr.InconsistentGroupProtocol
	case m.ID != "" && (m.Instance != "" && in == nil || !known && g.sessions[m.ID] == nil):
		// Kafka lets unknown ids in; but a member that was taken out may still read what it had, and must hear of it.
		return kerr.UnknownMemberID
	case m.ID != "" && m.Instance != "" && in.ID != m.ID:
		return kerr.FencedInstanceID
	case !known && c.legacyRefusal(g) != "":
		c.explainRefused(g.name, clientAt(m.Client, m.Host), c.legacyRefusal(g))
		return kerr.InconsistentGroupProtocol
	}
	if !g.modern() && len(g.members()) > 0 {
		if e, _ := c.refuseUpgrade(g); e != nil {
			return kerr.InconsistentGroupProtocol
		}
	}
	classic := []*state.Member{m}
	for _, o := range g.members() {
		if len(o.Protocols) > 0 && o.ID != m.ID && (in == nil || o.ID != in.ID) {
			classic = append(classic, o)
		}
	}
	if _, ok := vote(classic); !ok {
		return kerr.InconsistentGroupProtocol
	}
	return nil
}

func joinedConsumer(m *state.Member, version int16) *kmsg.JoinGroupResponse {
	resp := kmsg.NewPtrJoinGroupResponse()
	consumer, protocol := "consumer", m.Protocols[0].Name
	resp.Version, resp.Generation, resp.MemberID = version, m.Consumer.Epoch, m.ID
	resp.ProtocolType, resp.Protocol = &consumer, &protocol
	return resp
}

// checkConsumer finds a classic member of a consumer group as requests name it.
func checkConsumer(row *state.Group, member string, instance *string, generation int32) (*state.Member, *kerr.Error) {
	if e := check(row, member, instance); e != nil {
		return nil, e
	}
	m := row.Member(member)
	switch {
	case len(m.Protocols) == 0:
		return nil, kerr.UnknownMemberID
	case m.Consumer.Epoch != generation:
		return nil, kerr.IllegalGeneration
	}
	return m, nil
}

// syncConsumer is GroupMetadataManager.classicGroupSyncToConsumerGroup.
func (c *Coordinator) syncConsumer(g *group, r Request, req *kmsg.SyncGroupRequest) {
	m, e := checkConsumer(g.cur(), req.MemberID, req.InstanceID, req.Generation)
	switch {
	case e != nil:
	case req.ProtocolType != nil && *req.ProtocolType != "consumer" || req.Protocol != nil && *req.Protocol != m.Protocols[0].Name:
		e = kerr.InconsistentGroupProtocol
	case g.cur().Generation > m.Consumer.Epoch && m.Consumer.State != state.MemberUnrevoked:
		c.callBack(g, m)
		e = kerr.RebalanceInProgress
	}
	if e != nil {
		c.fail(r, e)
		return
	}
	if s := g.sessions[m.ID]; s != nil {
		s.syncBy = never
	}
	c.alive(g, m.ID)
	resp := req.ResponseKind().(*kmsg.SyncGroupResponse)
	resp.ProtocolType, resp.Protocol = req.ProtocolType, req.Protocol
	resp.MemberAssignment = c.assignment(m, m.Consumer.Assigned)
	a := Action{Request: r.ID, Answer: resp}
	if g.draft == nil {
		c.do(a)
		return
	}
	g.draft.answers = append(g.draft.answers, a)
	g.draft.requests = append(g.draft.requests, r)
}

// callBack begins the time that a member has to join again.
func (c *Coordinator) callBack(g *group, m *state.Member) {
	if s := g.sessions[m.ID]; s != nil && s.joinBy == never {
		s.joinBy = c.mark(c.now + ms(m.RebalanceMs))
	}
}

// heartbeatConsumer is GroupMetadataManager.classicGroupHeartbeatToConsumerGroup.
func (c *Coordinator) heartbeatConsumer(g *group, req *kmsg.HeartbeatRequest) *kerr.Error {
	m, e := checkConsumer(g.row, req.MemberID, req.InstanceID, req.Generation)
	if e != nil {
		return e
	}
	c.alive(g, m.ID)
	if m.Consumer.Epoch < g.row.Generation || m.Consumer.State == state.MemberUnrevoked ||
		m.Consumer.State == state.MemberUnreleased && !c.waiting(g, m) {
		c.callBack(g, m)
		return kerr.RebalanceInProgress
	}
	return nil
}

// waiting reports whether somebody else still holds a partition of a member's target.
func (c *Coordinator) waiting(g *group, m *state.Member) (waits bool) {
	free := c.freeIn(g)
	parts(m.Consumer.Target).each(func(p partition, _ int32) {
		waits = waits || !parts(m.Consumer.Assigned).has(p) && !free(p)
	})
	return waits
}

// describeConsumers answers ConsumerGroupDescribe. Groups of other kinds are not found here: tools then ask DescribeGroups.
func (c *Coordinator) describeConsumers(r Request, req *kmsg.ConsumerGroupDescribeRequest) {
	resp := req.ResponseKind().(*kmsg.ConsumerGroupDescribeResponse)
	resp.Groups = []kmsg.ConsumerGroupDescribeResponseGroup{}
	for _, name := range req.Groups {
		out := kmsg.NewConsumerGroupDescribeResponseGroup()
		out.Group, out.Members = name, []kmsg.ConsumerGroupDescribeResponseGroupMember{}
		if out.AuthorizedOperations = notAsked; req.IncludeAuthorizedOperations {
			out.AuthorizedOperations = groupOperations
		}
		row, ok := c.v.Group(name)
		kind, st := c.kind(name)
		var why string
		switch {
		case state.ValidGroupID(name) != "":
			out.ErrorCode = kerr.InvalidGroupID.Code
		case kind == kindNone || !ok:
			out.ErrorCode, why = kerr.GroupIDNotFound.Code, "Group "+name+" not found."
		case kind != kindConsumer:
			out.ErrorCode, why = kerr.GroupIDNotFound.Code, "Group "+name+" is not a consumer group."
		default:
			out.State, out.Epoch, out.AssignmentEpoch, out.AssignorName = st, row.Generation, row.Generation, row.Protocol
			if out.AssignorName == "" {
				out.AssignorName = assignors[0]
			}
			for _, m := range row.Members {
				out.Members = append(out.Members, c.describeConsumer(m))
			}
			c.describeZooKeeper(&out)
		}
		if why != "" {
			out.ErrorMessage = &why
		}
		resp.Groups = append(resp.Groups, out)
	}
	c.do(Action{Request: r.ID, Answer: resp})
}

func (c *Coordinator) describeConsumer(m *state.Member) kmsg.ConsumerGroupDescribeResponseGroupMember {
	o := kmsg.NewConsumerGroupDescribeResponseGroupMember()
	o.MemberID, o.MemberEpoch, o.ClientID, o.ClientHost = m.ID, m.Consumer.Epoch, m.Client, "/"+m.Host
	o.SubscribedTopics = append([]string{}, m.Consumer.Topics...)
	if m.Instance != "" {
		o.InstanceID = &m.Instance
	}
	if m.Consumer.Rack != "" {
		o.RackID = &m.Consumer.Rack
	}
	if m.Consumer.Regex != "" {
		o.SubscribedTopicRegex = &m.Consumer.Regex
	}
	if o.MemberType = 1; len(m.Protocols) > 0 {
		o.MemberType = 0
	}
	list := func(ps parts) []kmsg.AssignmentTopicPartition {
		out := []kmsg.AssignmentTopicPartition{}
		for _, tp := range ps {
			t := kmsg.NewAssignmentTopicPartition()
			t.TopicID, t.Topic, t.Partitions = tp.TopicID, c.topicName(tp.TopicID), tp.Partitions
			if t.Topic != "" {
				out = append(out, t)
			}
		}
		slices.SortFunc(out, func(a, b kmsg.AssignmentTopicPartition) int { return strings.Compare(a.Topic, b.Topic) })
		return out
	}
	o.Assignment.TopicPartitions, o.TargetAssignment.TopicPartitions = list(parts(slices.Concat(m.Consumer.Assigned, m.Consumer.Revoking)).sorted()), list(m.Consumer.Target)
	return o
}

func (c *Coordinator) topicName(t id.TopicID) string {
	if row, ok := c.v.TopicByID(t); ok {
		return row.Name
	}
	return ""
}
