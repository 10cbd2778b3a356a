package core

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// kafka hands a request to its group. What may change the group waits behind a put in flight.
func (c *Coordinator) kafka(r Request) {
	switch req := r.Kafka.Body.(type) {
	case *kmsg.HeartbeatRequest:
		c.heartbeat(r, req)
	case *kmsg.DescribeGroupsRequest:
		c.describe(r, req)
	case *kmsg.ListGroupsRequest:
		c.list(r, req)
	case *kmsg.JoinGroupRequest:
		c.change(req.Group, r)
	case *kmsg.SyncGroupRequest:
		c.change(req.Group, r)
	case *kmsg.LeaveGroupRequest:
		c.change(req.Group, r)
	case *kmsg.ConsumerGroupHeartbeatRequest:
		if e, why := refuseHeartbeat(req); e != nil {
			c.refuse(r, e, why)
			return
		}
		c.change(req.Group, r)
	case *kmsg.ConsumerGroupDescribeRequest:
		c.describeConsumers(r, req)
	default: // nobody sends it: the node asks only what is above
		c.do(Action{Request: r.ID, Answer: r.Kafka.Body.ResponseKind()})
	}
}

func (c *Coordinator) change(name string, r Request) {
	if state.ValidGroupID(name) != "" || !utf8.ValidString(name) {
		c.fail(r, kerr.InvalidGroupID)
		return
	}
	if !readable(r.Kafka) {
		c.fail(r, kerr.InvalidRequest)
		return
	}
	g := c.group(name)
	if c.busy(g) {
		g.queue = append(g.queue, r)
		return
	}
	c.carryOut(g, r)
	c.step(g)
}

// readable reports whether the texts of a request are texts: a command with others cannot be written, and would keep those of the group's
// other members from being written with it. The client's name is made one.
func readable(k *KafkaRequest) bool {
	k.ClientID = strings.ToValidUTF8(k.ClientID, "?")
	texts := []string{k.Host, k.Nonce}
	add := func(ss ...*string) {
		for _, s := range ss {
			if s != nil {
				texts = append(texts, *s)
			}
		}
	}
	switch req := k.Body.(type) {
	case *kmsg.JoinGroupRequest:
		add(&req.MemberID, req.InstanceID, &req.ProtocolType, req.Reason)
		for i := range req.Protocols {
			add(&req.Protocols[i].Name)
		}
	case *kmsg.LeaveGroupRequest:
		for i := range req.Members {
			add(req.Members[i].Reason)
		}
	case *kmsg.ConsumerGroupHeartbeatRequest:
		add(&req.MemberID, req.InstanceID, req.RackID, req.SubscribedTopicRegex)
		texts = append(texts, req.SubscribedTopicNames...)
	}
	return !slices.ContainsFunc(texts, func(s string) bool { return !utf8.ValidString(s) })
}

func (c *Coordinator) carryOut(g *group, r Request) {
	switch req := r.Kafka.Body.(type) {
	case *kmsg.JoinGroupRequest:
		if g.modern() || req.ProtocolType == "consumer" && c.mixed(g) {
			c.joinConsumer(g, r, req)
		} else {
			c.join(g, r, req)
		}
	case *kmsg.SyncGroupRequest:
		if g.modern() {
			c.syncConsumer(g, r, req)
		} else {
			c.sync(g, r, req)
		}
	case *kmsg.LeaveGroupRequest:
		c.leave(g, r, req)
	case *kmsg.ConsumerGroupHeartbeatRequest:
		c.consumerHeartbeat(g, r, req)
	}
}

// fail answers a request with an error.
func (c *Coordinator) fail(r Request, e *kerr.Error) {
	member := ""
	if req, ok := r.Kafka.Body.(*kmsg.JoinGroupRequest); ok {
		member = req.MemberID
	}
	c.do(Action{Request: r.ID, Answer: failure(r.Kafka.Body, e, member)})
}

// failure is an answer with an error. member is what a JoinGroup's answer names.
func failure(req kmsg.Request, e *kerr.Error, member string) kmsg.Response {
	resp := req.ResponseKind()
	switch resp := resp.(type) {
	case *kmsg.JoinGroupResponse:
		resp.ErrorCode, resp.Generation, resp.MemberID = e.Code, -1, member
		if resp.Version < 7 {
			resp.Protocol = new(string)
		}
	case *kmsg.SyncGroupResponse:
		resp.ErrorCode = e.Code
	case *kmsg.LeaveGroupResponse:
		resp.ErrorCode = e.Code
	case *kmsg.HeartbeatResponse:
		resp.ErrorCode = e.Code
	case *kmsg.ConsumerGroupHeartbeatResponse:
		resp.ErrorCode = e.Code
		resp.ErrorMessage = &e.Description
	}
	return resp
}

// join is GroupMetadataManager.classicGroupJoin.
func (c *Coordinator) join(g *group, r Request, req *kmsg.JoinGroupRequest) {
	m := memberOf(r.Kafka, req)
	if e := c.refuseJoin(g, m, req); e != nil {
		c.fail(r, e)
		return
	}
	if in := g.cur().Instance(m.Instance); m.ID == "" && in != nil {
		m.ID = m.Instance + "-" + r.Kafka.Nonce
		if in.ID != m.ID { // else repeated: it has its place
			c.replaceStatic(g, r, in, m)
			return
		}
	}
	if j := g.instanceJoin(m.Instance); m.ID == "" && j != nil && j.req.ID != r.ID { // it joins for the first time and has been restarted meanwhile
		c.drop(g, j.member.ID, kerr.FencedInstanceID)
	}
	known := true
	switch {
	case m.ID == "" && m.Instance != "":
		m.ID, known = m.Instance+"-"+r.Kafka.Nonce, false
	case m.ID == "":
		m.ID, known = r.Kafka.ClientID+"-"+r.Kafka.Nonce, false
		if old := g.cur().Member(m.ID); old != nil {
			known = true // repeated: an earlier coordinator took it in
		} else if req.Version >= 4 {
			c.startSession(g, m.ID, ms(m.SessionMs), true)
			c.do(Action{Request: r.ID, Answer: failure(req, kerr.MemberIDRequired, m.ID)})
			return
		}
	}
	old := g.cur().Member(m.ID)
	switch {
	case !known, old == nil:
		c.park(g, r, m, req)
		c.prepare(g, "join", fmt.Sprintf("%s joined%s", who(m), because(req.Reason)))
	case g.reb != nil:
		c.park(g, r, m, req)
	case sameProtocols(old, m) && (g.cur().State == state.GroupCompleting || m.ID != g.cur().Leader):
		c.alive(g, m.ID)
		c.do(Action{Request: r.ID, Answer: joined(g.cur(), m.ID, req.Version)})
	default:
		c.park(g, r, m, req)
		what := "changed its subscription"
		if m.ID == g.cur().Leader && sameProtocols(old, m) {
			what = "asked for a rebalance as leader"
		}
		c.prepare(g, "rejoin", fmt.Sprintf("%s %s%s", who(m), what, because(req.Reason)))
	}
}

// maxMetadata is how much the members of a group may tell its leader in all: with their assignment they are one entry of the log (1 MiB).
// One that tells more is refused: if its join were taken, no member of the group could go on.
const maxMetadata = 768 << 10

func metadataBytes(members []*state.Member) (n int) {
	for _, m := range members {
		for _, p := range m.Protocols {
			n += len(p.Name) + len(p.Metadata)
		}
	}
	return n
}

// refuseJoin checks what needs no place in the group.
func (c *Coordinator) refuseJoin(g *group, m *state.Member, req *kmsg.JoinGroupRequest) *kerr.Error {
	session := ms(m.SessionMs)
	cur := g.cur()
	in := cur.Instance(m.Instance)
	if in == nil {
		if j := g.instanceJoin(m.Instance); j != nil {
			in = j.member
		}
	}
	switch {
	case session < c.cfg.MinSession || session > c.cfg.MaxSession:
		return kerr.InvalidSessionTimeout
	case m.ID != "" && m.Instance != "" && in != nil && in.ID != m.ID:
		return kerr.FencedInstanceID
	case m.ID != "" && g.sessions[m.ID] == nil:
		return kerr.UnknownMemberID
	case m.ID != "" && m.Instance != "" && in == nil:
		return kerr.UnknownMemberID
	case req.ProtocolType == "" || len(m.Protocols) == 0:
		return kerr.InconsistentGroupProtocol
	case req.ProtocolType == "consumer" && c.legacyRefusal(g) != "":
		c.explainRefused(g.name, clientAt(m.Client, m.Host), c.legacyRefusal(g))
		return kerr.InconsistentGroupProtocol
	}
	others := g.everyone()
	for i, o := range others {
		if o.ID == m.ID || in != nil && o.ID == in.ID {
			others = append(others[:i:i], others[i+1:]...)
			break
		}
	}
	known := cur.Member(m.ID) != nil || g.joins[m.ID] != nil || in != nil
	if n := metadataBytes(append(others[:len(others):len(others)], m)); n > maxMetadata {
		why := fmt.Sprintf("its members' metadata would be %d bytes, at most %d fit", n, maxMetadata)
		c.explainRefused(g.name, clientAt(m.Client, m.Host), why)
		if !known {
			delete(g.sessions, m.ID)
		}
		return kerr.GroupMaxSizeReached
	}
	if len(others) == 0 {
		return nil
	}
	if _, ok := vote(append(others, m)); !ok || req.ProtocolType != g.protocolType() {
		return kerr.InconsistentGroupProtocol
	}
	if !known && len(others) >= c.cfg.MaxSize {
		delete(g.sessions, m.ID)
		return kerr.GroupMaxSizeReached
	}
	return nil
}

// protocolType is that of the members, or of those that join an empty group.
func (g *group) protocolType() string {
	if len(g.members()) > 0 {
		return g.cur().ProtocolType
	}
	for _, j := range g.arrived() {
		return j.protocolType()
	}
	return ""
}

func (j *join) protocolType() string { return j.req.Kafka.Body.(*kmsg.JoinGroupRequest).ProtocolType }

func (g *group) instanceJoin(instance string) *join {
	if instance == "" {
		return nil
	}
	for _, j := range g.joins {
		if j.member.Instance == instance {
			return j
		}
	}
	return nil
}

func memberOf(k *KafkaRequest, req *kmsg.JoinGroupRequest) *state.Member {
	m := &state.Member{ID: req.MemberID, Client: k.ClientID, Host: k.Host, SessionMs: req.SessionTimeoutMillis,
		RebalanceMs: req.RebalanceTimeoutMillis}
	if req.Version < 1 || m.RebalanceMs < 0 {
		m.RebalanceMs = m.SessionMs
	}
	if req.InstanceID != nil {
		m.Instance = *req.InstanceID
	}
	for _, p := range req.Protocols {
		m.Protocols = append(m.Protocols, state.GroupProtocol{Name: p.Name, Metadata: p.Metadata})
	}
	return m
}

// park keeps a join until the generation is complete. An older one of the same member is told to try again.
func (c *Coordinator) park(g *group, r Request, m *state.Member, req *kmsg.JoinGroupRequest) {
	if old := g.joins[m.ID]; old != nil && old.req.ID != r.ID {
		c.fail(old.req, kerr.RebalanceInProgress)
	}
	g.arrivals++
	g.joins[m.ID] = &join{req: r, version: req.Version, member: m, order: g.arrivals}
	g.sessions[m.ID] = newSession(ms(m.SessionMs), never)
	if g.reb != nil {
		g.reb.last, g.reb.fresh = m.ID, true
	}
}

// replaceStatic lets a restarted static member take its place: without a rebalance while nothing else changes (KIP-345).
func (c *Coordinator) replaceStatic(g *group, r Request, old, m *state.Member) {
	req := r.Kafka.Body.(*kmsg.JoinGroupRequest)
	d := g.edit()
	m.Assignment = old.Assignment
	for i := range d.row.Members {
		if d.row.Members[i].ID == old.ID {
			d.row.Members[i] = m
		}
	}
	led := d.row.Leader == old.ID
	if led {
		d.row.Leader = m.ID
	}
	c.drop(g, old.ID, kerr.FencedInstanceID)
	c.startSession(g, m.ID, ms(m.SessionMs), false)
	chosen, _ := vote(g.everyone())
	d.requests = append(d.requests, r)
	if g.reb != nil || g.row.State != state.GroupStable || chosen != d.row.Protocol {
		c.park(g, r, m, req)
		c.prepare(g, "join", fmt.Sprintf("%s took the place of %s%s", who(m), old.ID, because(req.Reason)))
		return
	}
	resp := joined(&d.row, m.ID, req.Version)
	if led {
		// A leader before KIP-814 would assign anew without being asked to: it is told that another one leads.
		if resp.SkipAssignment = req.Version >= 9; !resp.SkipAssignment {
			resp.LeaderID, resp.Members = old.ID, nil
		}
	}
	d.answers = append(d.answers, Action{Request: r.ID, Answer: resp})
}

// joined is the answer that tells a member its generation; the leader gets the members and what they say.
func joined(row *state.Group, member string, version int16) *kmsg.JoinGroupResponse {
	resp := kmsg.NewPtrJoinGroupResponse()
	resp.Version = version
	resp.Generation, resp.ProtocolType, resp.Protocol = row.Generation, &row.ProtocolType, &row.Protocol
	resp.LeaderID, resp.MemberID = row.Leader, member
	if member != row.Leader {
		return resp
	}
	for _, m := range row.Members {
		out := kmsg.NewJoinGroupResponseMember()
		out.MemberID, out.ProtocolMetadata = m.ID, metadata(m, row.Protocol)
		if m.Instance != "" {
			out.InstanceID = &m.Instance
		}
		resp.Members = append(resp.Members, out)
	}
	return resp
}

// who names a member for people.
func who(m *state.Member) string {
	return fmt.Sprintf("member %s (%s)", clip(m.ID), clientAt(m.Client, m.Host))
}

func clientAt(client, host string) string { return fmt.Sprintf("client %s at %s", clip(client), host) }

func because(reason *string) string {
	if reason == nil || *reason == "" {
		return ""
	}
	return ": " + clip(*reason)
}

// clip bounds what clients put into the state's explanations.
func clip(s string) string {
	const most = 200
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

// drop answers and forgets what a member has parked, and its session.
func (c *Coordinator) drop(g *group, member string, e *kerr.Error) {
	if j := g.joins[member]; j != nil {
		c.fail(j.req, e)
		delete(g.joins, member)
	}
	if s, ok := g.syncs[member]; ok {
		c.failSync(s, e)
		delete(g.syncs, member)
	}
	delete(g.sessions, member)
}

func (c *Coordinator) failSync(s parkedSync, e *kerr.Error) {
	c.do(Action{Request: s.id, Answer: failure(&kmsg.SyncGroupRequest{Version: s.version}, e, "")})
}

// cancel forgets a request whose client is gone. A member that was waiting here must be heard from within its session timeout.
func (c *Coordinator) cancel(r RequestID) {
	for _, g := range c.groups {
		if c.cancelIn(g, r) {
			g = c.group(g.name)
			c.step(g)
			return
		}
	}
}

func (c *Coordinator) cancelIn(g *group, r RequestID) (found bool) {
	for i := range g.waits {
		if g.waits[i].ID == r {
			g.waits, found = append(g.waits[:i:i], g.waits[i+1:]...), true
			break
		}
	}
	for i := range g.queue { // it may be parked as well, when it is to be carried out again
		if g.queue[i].ID == r {
			g.queue, found = append(g.queue[:i:i], g.queue[i+1:]...), true
			break
		}
	}
	for member, j := range g.joins {
		if j.req.ID == r {
			delete(g.joins, member)
			if g.row.Member(member) != nil || j.version >= 4 {
				c.startSession(g, member, ms(j.member.SessionMs), g.row.Member(member) == nil)
			} else {
				delete(g.sessions, member)
			}
			return true
		}
	}
	for member, s := range g.syncs {
		if s.id == r {
			delete(g.syncs, member)
			c.revive(g, member)
			return true
		}
	}
	return found
}
