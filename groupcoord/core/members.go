package core

import (
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// check finds a member as requests name it (ClassicGroup.validateMember).
func check(row *state.Group, member string, instance *string) *kerr.Error {
	if instance != nil && *instance != "" {
		switch in := row.Instance(*instance); {
		case in == nil:
			return kerr.UnknownMemberID
		case in.ID != member:
			return kerr.FencedInstanceID
		}
	}
	if row.Member(member) == nil {
		return kerr.UnknownMemberID
	}
	return nil
}

func (c *Coordinator) heartbeat(r Request, req *kmsg.HeartbeatRequest) {
	resp := req.ResponseKind().(*kmsg.HeartbeatResponse)
	c.do(Action{Request: r.ID, Answer: resp})
	if state.ValidGroupID(req.Group) != "" {
		resp.ErrorCode = kerr.InvalidGroupID.Code
		return
	}
	g := c.groups[req.Group]
	if g == nil {
		resp.ErrorCode = kerr.UnknownMemberID.Code
		return
	}
	g = c.group(req.Group)
	var e *kerr.Error
	switch {
	case g.modern():
		e = c.heartbeatConsumer(g, req)
	default:
		if e = check(g.row, req.MemberID, req.InstanceID); e == nil && req.Generation != g.row.Generation {
			e = kerr.IllegalGeneration
		}
	}
	if e == nil && !g.modern() {
		c.alive(g, req.MemberID)
		if g.reb != nil {
			e = kerr.RebalanceInProgress
		}
	}
	if e != nil {
		resp.ErrorCode = e.Code
	}
}

func (c *Coordinator) sync(g *group, r Request, req *kmsg.SyncGroupRequest) {
	row := g.cur()
	e := check(row, req.MemberID, req.InstanceID)
	other := func(asked *string, is string) bool { return asked != nil && *asked != is }
	switch {
	case e != nil:
	case req.Generation != row.Generation:
		e = kerr.IllegalGeneration
	case other(req.ProtocolType, row.ProtocolType) || other(req.Protocol, row.Protocol):
		e = kerr.InconsistentGroupProtocol
	case g.reb != nil:
		e = kerr.RebalanceInProgress
	}
	if e != nil {
		c.fail(r, e)
		return
	}
	c.alive(g, req.MemberID)
	if row.State == state.GroupStable {
		c.do(Action{Request: r.ID, Answer: synced(row, req.MemberID, req.Version)})
		return
	}
	if old, ok := g.syncs[req.MemberID]; ok && old.id != r.ID {
		c.failSync(old, kerr.RebalanceInProgress)
	}
	g.syncs[req.MemberID] = parkedSync{r.ID, req.Version}
	g.sessions[req.MemberID].ends = never // old clients are silent while they wait
	if req.MemberID == row.Leader {
		d := g.edit()
		d.assigns = true
		d.requests = append(d.requests, r)
		d.assign(req)
	}
}

// assign makes the generation stable by what its leader decided; who is not named gets nothing.
func (d *draft) assign(req *kmsg.SyncGroupRequest) {
	of := map[string][]byte{}
	for _, a := range req.GroupAssignment {
		of[a.MemberID] = a.MemberAssignment
	}
	for i, m := range d.row.Members {
		n := *m
		n.Assignment = of[m.ID]
		d.row.Members[i] = &n
	}
	d.row.State = state.GroupStable
}

func synced(row *state.Group, member string, version int16) *kmsg.SyncGroupResponse {
	resp := kmsg.NewPtrSyncGroupResponse()
	resp.Version = version
	resp.ProtocolType, resp.Protocol = &row.ProtocolType, &row.Protocol
	resp.MemberAssignment = []byte{}
	if m := row.Member(member); m != nil && m.Assignment != nil {
		resp.MemberAssignment = m.Assignment
	}
	return resp
}

func (c *Coordinator) leave(g *group, r Request, req *kmsg.LeaveGroupRequest) {
	resp := req.ResponseKind().(*kmsg.LeaveGroupResponse)
	if req.Version < 3 {
		if e := c.leaver(g, req.MemberID, nil, nil); e != nil {
			resp.ErrorCode = e.Code
		}
	}
	for _, m := range req.Members {
		out := kmsg.NewLeaveGroupResponseMember()
		out.MemberID, out.InstanceID = m.MemberID, m.InstanceID
		if e := c.leaver(g, m.MemberID, m.InstanceID, m.Reason); e != nil {
			out.ErrorCode = e.Code
		}
		resp.Members = append(resp.Members, out)
	}
	a := Action{Request: r.ID, Answer: resp}
	if g.draft == nil {
		c.do(a)
		return
	}
	g.draft.answers = append(g.draft.answers, a)
	g.draft.requests = append(g.draft.requests, r)
}

// leaver takes one member out; an operator names static ones by their instance alone (KIP-345).
func (c *Coordinator) leaver(g *group, member string, instance, reason *string) *kerr.Error {
	if instance != nil && *instance != "" {
		in := g.cur().Instance(*instance)
		if j := g.instanceJoin(*instance); in == nil && j != nil {
			in = j.member
		}
		switch {
		case in == nil:
			return kerr.UnknownMemberID
		case member != "" && member != in.ID:
			return kerr.FencedInstanceID
		}
		member = in.ID
	}
	m := g.cur().Member(member)
	if m != nil && m.Consumer != nil {
		c.removeConsumer(g, m, "leave", fmt.Sprintf("%s left%s", who(m), because(reason)))
		return nil
	}
	if j := g.joins[member]; m == nil && j != nil {
		m = j.member
	}
	switch {
	case g.sessions[member] == nil:
		return kerr.UnknownMemberID
	case m == nil: // an id that was given out and not used
		delete(g.sessions, member)
		return nil
	}
	c.remove(g, m, "leave", fmt.Sprintf("%s left%s", who(m), because(reason)))
	return nil
}

// remove takes a member out of the group, whatever it waits for.
func (c *Coordinator) remove(g *group, m *state.Member, cause, text string) {
	c.drop(g, m.ID, kerr.UnknownMemberID)
	if g.cur().Member(m.ID) == nil {
		return
	}
	c.prepare(g, cause, text)
	g.edit().without(m.ID)
}

func (d *draft) without(member string) {
	kept := d.row.Members[:0]
	for _, m := range d.row.Members {
		if m.ID != member {
			kept = append(kept, m)
		}
	}
	d.row.Members = kept
	if d.row.Leader == member {
		d.row.Leader = ""
		if len(kept) > 0 {
			d.row.Leader = kept[0].ID
		}
	}
}

// expire looks at every group; it is called about as often as the shortest session lasts.
func (c *Coordinator) expire() {
	late := c.now - c.next
	if c.next == never || late < 0 {
		return
	}
	c.next = never
	for _, name := range c.names() {
		g := c.group(name)
		if late > lateness { // this process stood still, and nobody could be heard: as after a fail-over
			for id, s := range g.sessions {
				if s.ends != never {
					c.revive(g, id)
				}
				for _, by := range []*time.Duration{&s.revokeBy, &s.joinBy, &s.syncBy} {
					if *by != never {
						*by += late
					}
				}
			}
		}
		c.resume(g)
	}
}

func (c *Coordinator) expireIn(g *group) {
	if g.modern() {
		c.expireConsumers(g)
		return
	}
	for _, s := range g.sessions { // of a consumer group that it no longer is
		s.revokeBy, s.joinBy, s.syncBy = never, never, never
	}
	for _, id := range due(g.sessions, c.now) {
		m := g.cur().Member(id)
		if m == nil {
			delete(g.sessions, id)
			continue
		}
		c.remove(g, m, "session", fmt.Sprintf("%s was not heard from for %s", who(m), ms(m.SessionMs)))
	}
	if c.now >= g.syncBy {
		g.syncBy = never
		for _, m := range g.unsynced() {
			c.remove(g, m, "sync", fmt.Sprintf("%s did not ask for its assignment within %s", who(m), ms(m.RebalanceMs)))
		}
	}
}

// unsynced are the members of a completing generation that have not asked for their assignment.
func (g *group) unsynced() (out []*state.Member) {
	if cur := g.cur(); g.reb == nil && cur != nil && cur.State == state.GroupCompleting {
		for _, m := range cur.Members {
			if _, ok := g.syncs[m.ID]; !ok {
				out = append(out, m)
			}
		}
	}
	return out
}
