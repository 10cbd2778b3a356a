package core

import (
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// prepare begins a rebalance: heartbeats answer 27 from now on, and members come to join again. The first cause is the one
// that is told.
func (c *Coordinator) prepare(g *group, cause, text string) {
	if g.reb != nil {
		return
	}
	c.failSyncs(g, kerr.RebalanceInProgress)
	g.syncBy, g.unusedAt = never, never
	if g.draft != nil {
		g.draft.assigns = false
	}
	g.reb = &rebalance{cause: cause, text: text, began: c.now}
	for _, m := range g.members() {
		g.reb.before = append(g.reb.before, m.ID)
	}
	for _, j := range g.arrived() {
		g.reb.last = j.member.ID
	}
	all := longest(g.everyone())
	g.reb.ends = c.mark(c.now + all)
	if len(g.members()) == 0 && c.cfg.InitialDelay > 0 {
		first := min(c.cfg.InitialDelay, all)
		g.reb.settling, g.reb.settled, g.reb.left = true, c.mark(c.now+first), all-first
	}
}

// settle runs the initial delay (DelayedInitialRebalance) and reports whether it is over.
func (c *Coordinator) settle(r *rebalance) bool {
	switch {
	case !r.settling:
		return true
	case c.now < r.settled:
		return false
	case r.fresh && r.left > 0:
		d := min(c.cfg.InitialDelay, r.left)
		r.fresh, r.settled, r.left = false, c.mark(c.now+d), r.left-d
		return false
	}
	r.settling = false
	c.mark(r.ends)
	return true
}

// complete ends a rebalance when all are here or the time is over: the draft becomes the next generation.
func (c *Coordinator) complete(g *group) {
	r := g.reb
	first := r.settling // then nobody waits for ids that were given out
	if !c.settle(r) {
		return
	}
	all := g.pending() == 0 || first
	for _, m := range g.members() {
		all = all && g.joins[m.ID] != nil
	}
	if !all && c.now < r.ends {
		return
	}
	for _, m := range slices.Clone(g.members()) {
		if g.joins[m.ID] == nil && m.Instance == "" { // static members keep their place until their session ends
			c.drop(g, m.ID, kerr.UnknownMemberID)
			g.edit().without(m.ID)
			r.last = m.ID + ", in vain"
		}
	}
	members, arrived := g.everyone(), g.arrived()
	switch {
	case len(members) == 0:
		if len(g.members()) == 0 && g.draft == nil {
			g.reb = nil // whoever began it has gone
			c.watchUnused(g)
			return
		}
	case len(arrived) == 0:
		r.ends = c.mark(c.now + max(longest(members), time.Second))
		return
	case len(g.members()) == 0 && arrived[0].protocolType() == "consumer" && c.mixed(g): // consumers by ZooKeeper have come: nobody leads
		c.refuseAll(g, kerr.RebalanceInProgress)
		return
	case arrived[0].protocolType() == "consumer" && c.legacyRefusal(g) != "":
		c.refuseAll(g, kerr.InconsistentGroupProtocol)
		return
	}
	d := g.edit()
	d.completes = true
	d.record = c.record(g, members)
	d.row.Members = members
	d.row.State, d.row.Generation = state.GroupCompleting, d.record.Generation
	if len(members) == 0 {
		return
	}
	d.row.Consumer, d.row.Subscribed = false, 0
	d.row.ProtocolType = arrived[0].protocolType()
	d.row.Protocol, _ = vote(members)
	if g.joins[d.row.Leader] == nil {
		d.row.Leader = arrived[0].member.ID
	}
}

func (c *Coordinator) record(g *group, members []*state.Member) *statepb.Rebalance {
	r := &statepb.Rebalance{Generation: g.highest + 1, Cause: g.reb.cause, Text: g.reb.text, Before: int32(len(g.reb.before)),
		After: int32(len(members)), WaitedMs: (c.now - g.reb.began).Milliseconds(), WaitedFor: g.reb.last}
	before := map[string]bool{}
	for _, id := range g.reb.before {
		before[id] = true
	}
	for _, m := range members {
		if !before[m.ID] {
			r.Joined = listed(r.Joined, m.ID)
		}
		delete(before, m.ID)
	}
	for _, id := range g.reb.before {
		if before[id] {
			r.Left = listed(r.Left, id)
		}
	}
	return r
}

// listed bounds the lists of an explanation.
func listed(ids []string, id string) []string {
	const most = 10
	switch {
	case len(ids) < most:
		return append(ids, clip(id))
	case len(ids) == most:
		return append(ids, "...")
	}
	return ids
}

// busy reports whether the group's row may move under us: a put is in flight, or one with an unknown outcome was.
func (c *Coordinator) busy(g *group) bool { return g.put != nil || g.retryAt != never }

// resume goes on with a group that was busy, or whose time may have come.
func (c *Coordinator) resume(g *group) {
	if c.now >= g.retryAt {
		g.retryAt = never
	}
	if !c.busy(g) {
		if g.modern() && (g.reb != nil || len(g.joins) > 0) { // its way back to a classic group did not come about
			c.refuseAll(g, kerr.RebalanceInProgress)
		}
		if c.now >= g.planAt {
			c.admit(g)
		}
		c.answerSyncs(g)
		queue := g.queue
		g.queue = nil
		for _, r := range queue {
			c.carryOut(g, r)
		}
		c.goOn(g)
		c.expireIn(g)
		c.step(g)
	}
	c.markAll(g)
}

// step is the end of every event of a group: it completes what is complete and proposes what changed.
func (c *Coordinator) step(g *group) {
	if c.busy(g) {
		return
	}
	c.topicsMoved(g)
	c.planConsumers(g)
	if g.reb != nil {
		c.complete(g)
	}
	if g.draft != nil {
		c.propose(g)
		return
	}
	if c.now >= g.unusedAt {
		g.unusedAt = never
		g.put = &put{id: c.number(g), reap: true}
		c.do(Action{Request: g.put.id, Propose: &statepb.Command{Body: &statepb.Command_DeleteGroup{
			DeleteGroup: &statepb.DeleteGroup{Group: g.name, OnlyUnused: true}}}})
		return
	}
	if g.reb == nil && !g.joining() && g.moved == nil && len(g.sessions) == 0 && g.unusedAt == never {
		delete(c.groups, g.name)
	}
}

func (c *Coordinator) number(g *group) RequestID {
	c.last++
	c.puts[c.last] = g
	return c.last
}

func (c *Coordinator) propose(g *group) {
	d := g.draft
	g.draft = nil
	row := &d.row
	if row.Consumer {
		c.proposeConsumers(g, d)
		return
	}
	if len(row.Members) == 0 {
		row.State, row.Protocol, row.Leader = state.GroupEmpty, "", ""
		row.Generation = g.highest + 1
		if d.record == nil && g.reb != nil {
			d.record = c.record(g, nil)
		}
	}
	if g.reb != nil && !d.completes && len(row.Members) > 0 {
		row.State = state.GroupPreparing
	}
	cmd := &statepb.PutGroup{Group: g.name, Generation: row.Generation, State: statepb.GroupState(row.State), ProtocolType: row.ProtocolType,
		Protocol: row.Protocol, Leader: row.Leader, Rebalance: d.record}
	if g.row != nil {
		cmd.GroupVersion = g.row.Version
	}
	for _, m := range row.Members {
		cmd.Members = append(cmd.Members, memberMessage(m, row.State))
	}
	g.put = &put{draft: *d, id: c.number(g)}
	c.do(Action{Request: g.put.id, Propose: &statepb.Command{Body: &statepb.Command_PutGroup{PutGroup: cmd}}})
}

func memberMessage(m *state.Member, s state.GroupState) *statepb.GroupMember {
	out := &statepb.GroupMember{Id: m.ID, Instance: m.Instance, Client: m.Client, Host: m.Host, SessionMs: m.SessionMs,
		RebalanceMs: m.RebalanceMs}
	if s == state.GroupStable || s == state.GroupPreparing { // in force until they join again
		out.Assignment = m.Assignment
	}
	out.Consumer = consumerMessage(m.Consumer)
	for _, p := range m.Protocols {
		out.Protocols = append(out.Protocols, &statepb.GroupProtocol{Name: p.Name, Metadata: p.Metadata})
	}
	return out
}

// settled goes on after a put: it stands, or it is decided again on what is true now.
func (c *Coordinator) settled(g *group, res *statepb.Result) {
	p := g.put
	g = c.group(g.name)
	g.put = nil
	if r := p.record; r != nil && p.row.Consumer && res.Code != statepb.Code_OK { // nobody else may ask for this plan again
		g.moved = &plan{r.Cause, r.Text}
		if g.told == r {
			g.told = nil
		}
	}
	switch {
	case p.reap:
	case res.Code == statepb.Code_OK:
		g.retries = 0
		c.stands(g, p)
	case g.retries < maxRetries && (res.Code == statepb.Code_STALE || res.Code == statepb.Code_STALE_TERM):
		// Refused although the row is the one that was decided on: decided again at once, it would be refused again.
		same := g.row != nil && g.row.Version == p.row.Version
		if res.Code == statepb.Code_STALE_TERM || same {
			g.retries++
			g.retryAt = c.mark(c.now + retryAfter)
		}
		c.adopt(g)
		for i := range p.requests {
			p.requests[i].Repeat = true
		}
		g.queue = append(p.requests, g.queue...)
	default:
		c.do(Action{Note: &Note{"a group's change was refused; its members are told to try again",
			[]any{"group", g.name, "code", res.Code.String(), "why", res.Text}}})
		for _, r := range p.requests {
			c.fail(r, kerr.CoordinatorNotAvailable)
		}
		c.refuseAll(g, kerr.CoordinatorNotAvailable)
		c.adopt(g)
	}
	c.resume(g)
}

// stands answers those who waited for a put.
func (c *Coordinator) stands(g *group, p *put) {
	for _, a := range p.answers {
		c.do(a)
	}
	if r := p.record; r != nil && r != g.told { // one whose members are still coming to it is told later
		c.do(Action{Note: rebalanced(g.name, r), Count: counted(g, r)})
	}
	switch {
	case g.row == nil:
		return
	case p.completes:
		g.reb = nil
		for _, j := range g.arrived() {
			delete(g.joins, j.member.ID)
			c.startSession(g, j.member.ID, ms(j.member.SessionMs), false)
			c.do(Action{Request: j.req.ID, Answer: joined(g.row, j.member.ID, j.version)})
		}
		c.adopt(g) // those whose connection broke while the generation was being put
		g.syncBy = never
		if g.row.State == state.GroupCompleting {
			g.syncBy = c.mark(c.now + longest(g.row.Members))
		}
	case p.assigns:
		g.syncBy = never
	}
	c.watchUnused(g)
}

func rebalanced(group string, r *statepb.Rebalance) *Note {
	return &Note{"group rebalanced", []any{"group", group, "generation", r.Generation, "cause", r.Cause, "why", r.Text, "before", r.Before,
		"after", r.After, "joined", r.Joined, "left", r.Left, "waited_ms", r.WaitedMs, "waited_for", r.WaitedFor}}
}

// counted is a rebalance for the metrics.
func counted(g *group, r *statepb.Rebalance) *Count {
	kind := "classic"
	if g.row != nil && g.row.Consumer {
		kind = "consumer"
	}
	return &Count{Kind: kind, Reason: r.Cause}
}

// answerSyncs answers those who wait for an assignment, once it stands.
func (c *Coordinator) answerSyncs(g *group) {
	if g.reb != nil || g.row == nil || g.row.State != state.GroupStable {
		return
	}
	for _, id := range sorted(g.syncs) {
		c.do(Action{Request: g.syncs[id].id, Answer: synced(g.row, id, g.syncs[id].version)})
		c.revive(g, id)
		delete(g.syncs, id)
	}
}

// refuseAll ends a rebalance that cannot be completed.
func (c *Coordinator) refuseAll(g *group, e *kerr.Error) {
	for _, j := range g.arrived() {
		c.fail(j.req, e)
		delete(g.joins, j.member.ID)
		if g.cur().Member(j.member.ID) != nil {
			c.startSession(g, j.member.ID, ms(j.member.SessionMs), false)
		} else {
			delete(g.sessions, j.member.ID)
		}
	}
	c.failSyncs(g, e)
	g.reb, g.retries = nil, 0
}

func (c *Coordinator) failSyncs(g *group, e *kerr.Error) {
	for _, id := range sorted(g.syncs) {
		c.failSync(g.syncs[id], e)
		delete(g.syncs, id)
		c.revive(g, id)
	}
}

// markAll sets the next deadline after a look at a whole group.
func (c *Coordinator) markAll(g *group) {
	if g.put != nil || c.groups[g.name] == nil { // what is due is looked at when the put has settled
		return
	}
	if g.retryAt != never {
		c.mark(g.retryAt)
		return
	}
	for _, s := range g.sessions {
		c.mark(min(s.ends, s.revokeBy, s.joinBy, s.syncBy))
	}
	c.mark(g.planAt)
	c.mark(g.syncBy)
	c.mark(g.unusedAt)
	if r := g.reb; r != nil {
		if r.settling {
			c.mark(r.settled)
		} else {
			c.mark(r.ends)
		}
	}
}

// names are the groups in a fixed order: equal inputs give equal actions.
func (c *Coordinator) names() []string {
	return sorted(c.groups)
}

func sorted[V any](m map[string]V) []string {
	return slices.Sorted(maps.Keys(m))
}

func due(sessions map[string]*session, now time.Duration) []string {
	var ids []string
	for id, s := range sessions {
		if now >= s.ends {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}
