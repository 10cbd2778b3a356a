package core

import (
	"bytes"
	"slices"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// Claims are creates of owner znodes. One that meets an older claim, or a reservation, waits for its end instead of being refused:
// a refusal costs a JVM consumer one of four attempts and all that it has claimed already (zk-paths.md 6.3).

// claimTries bounds how often a claim that looked free and was refused is proposed again.
const claimTries = 5

func (c *Coordinator) claim(g *legacyGroup, h *held) {
	if !c.v.GateOn(g.name, state.GateClaim) {
		c.proposeHeld(h)
		return
	}
	if _, waits := c.blocked(g, h); waits {
		c.budget(g, h, claimBound)
	}
	c.hold(&g.claims, h)
	c.legacyTurn(g)
}

func (c *Coordinator) claimSettled(g *legacyGroup, h *held, res *statepb.Result) {
	g.dueFor(state.OwnersTopic(h.topic), h.partition)
	if res.Code == statepb.Code_NODE_EXISTS && h.req.Repeat {
		if path, own := ownClaim(c.v, h.req.Command); own {
			res = &statepb.Result{Index: res.Index, Zxid: int64(c.v.ZXID()), Path: path}
		}
	}
	if res.Code == statepb.Code_NODE_EXISTS && h.tries < claimTries {
		if _, waits := c.blocked(g, h); waits {
			h.tries++
			if h.until == 0 {
				c.budget(g, h, claimBound)
			}
			c.hold(&g.claims, h)
			return
		}
	}
	switch res.Code {
	case statepb.Code_OK:
		delete(g.failed, h.session)
	case statepb.Code_NODE_EXISTS:
		c.claimFailed(g, h)
	}
	c.letGo(g, h, res)
}

// ownClaim reports whether the owner that a claim met is the claim itself.
func ownClaim(v *state.View, cmd *statepb.Command) (path string, own bool) {
	c := cmd.GetClaimOwner()
	z, ok := v.Owner(c.Group, c.Topic, c.Name)
	session := cmd.GetOrigin().GetSession()
	own = ok && session != 0 && id.SessionID(z.Stat.EphemeralOwner) == id.SessionID(session) && bytes.Equal(z.Data, c.Data)
	return "/consumers/" + c.Group + "/owners/" + c.Topic + "/" + c.Name, own
}

// blocked tells whether a claim waits, and for which session (0: for nobody that could wait itself).
func (c *Coordinator) blocked(g *legacyGroup, h *held) (by id.SessionID, waits bool) {
	if h.partition < 0 || !c.v.GateOn(g.name, state.GateClaim) {
		return 0, false
	}
	topic := state.OwnersTopic(h.topic)
	if c.mixHeld(g.name, topic, h.partition) {
		return 0, true
	}
	if _, _, z := c.v.OwnerOf(g.name, topic, h.partition); z != nil {
		owner := id.SessionID(z.Stat.EphemeralOwner)
		return owner, owner != 0 && owner != h.session
	}
	member, _ := c.v.MemberOf(h.session, g.name)
	if r := g.row.Reservation(h.topic, h.partition); r != nil && c.v.GateOn(g.name, state.GateReservation) {
		return 0, member != r.Member
	}
	return 0, len(c.unfenced(g, id.TopicPartition{Topic: topic, Partition: h.partition}, member)) > 0
}

// turnClaims grants what is free, the oldest claim first, and refuses what has waited too long or for itself.
func (c *Coordinator) turnClaims(g *legacyGroup) {
	for _, h := range slices.Clone(g.claims) {
		if h.until != 0 && h.until <= c.now {
			h.due = true
		}
		if !g.looksAt(h, &c.legacy.work) {
			c.wakeForClaim(g, h)
			continue
		}
		by, waits := c.blocked(g, h)
		taken := h.partition >= 0 && c.isTaken(g.name, h.topic, h.partition)
		if !waits && !taken {
			g.dropClaim(h)
			c.stopWaiting(h)
			c.proposeHeld(h)
			continue
		}
		if h.until == 0 { // it looked free, and another claim of the partition is under way
			c.budget(g, h, claimBound)
		}
		if h.until <= c.now {
			c.refuseClaim(g, h, "the partition was not released in time")
			continue
		}
		c.wakeForClaim(g, h)
		h.waited = true
		if waits && by == 0 && g.row.Reservation(h.topic, h.partition) != nil {
			h.kept = min(h.kept, c.now)
		}
		if h.check {
			h.check = false
			if young := c.cycle(h, by); young != nil {
				c.breakCycle(young)
			}
		}
	}
}

// wakeForClaim has a claim looked at when its bound has passed, and when it tells how its member computes.
func (c *Coordinator) wakeForClaim(g *legacyGroup, h *held) {
	g.wake(h.until)
	if tells := h.since + waitedClaim; tells > c.now {
		g.wake(tells)
	}
}

// isTaken reports whether another claim of a partition is under way.
func (c *Coordinator) isTaken(group, topic string, partition int32) bool {
	return c.legacy.taken[takenKey{group, topic, partition}] > 0
}

func (g *legacyGroup) dropClaim(h *held) bool {
	i := slices.Index(g.claims, h)
	if i >= 0 {
		g.claims = slices.Delete(g.claims, i, i+1)
	}
	return i >= 0
}

// refuseClaim says what ZooKeeper would have said at once.
func (c *Coordinator) refuseClaim(g *legacyGroup, h *held, why string) {
	if !g.dropClaim(h) {
		return
	}
	c.claimFailed(g, h)
	c.letGo(g, h, &statepb.Result{Code: statepb.Code_NODE_EXISTS, Text: why})
}

// waitsFor lists the sessions that a held request waits for.
func (c *Coordinator) waitsFor(h *held) []id.SessionID {
	g := c.legacy.groups[h.group]
	if g == nil {
		return nil
	}
	switch h.gate {
	case state.GateClaim:
		if by, waits := c.blocked(g, h); waits && by != 0 {
			return []id.SessionID{by}
		}
	case state.GateOffset:
		return c.readWaitsFor(g, h)
	case state.GateBarrier: // a join waits until those who claim have claimed
		var all []id.SessionID
		if g.row != nil && !g.row.Complete {
			for _, o := range g.claims {
				all = append(all, o.session)
			}
		}
		return all
	}
	return nil
}

// cycle returns the youngest claim or read on a cycle of sessions that wait for each other through h, nil if there is none. by is what
// h waits for.
func (c *Coordinator) cycle(h *held, by id.SessionID) *held {
	if by == 0 && h.gate == state.GateClaim {
		return nil
	}
	seen := map[id.SessionID]bool{}
	var path []*held
	var walk func(*held) bool
	walk = func(at *held) bool {
		path = append(path, at)
		for _, s := range c.waitsFor(at) {
			if s == h.session {
				return true
			}
			next := c.legacy.waiting[s]
			if next == nil || seen[s] {
				continue
			}
			seen[s] = true
			if walk(next) {
				return true
			}
		}
		path = path[:len(path)-1]
		return false
	}
	if h.session == 0 || !walk(h) {
		return nil
	}
	var young *held
	for _, p := range path {
		if p.gate != state.GateBarrier && (young == nil || p.order > young.order) {
			young = p
		}
	}
	return young
}

// breakCycle lets the youngest waiter of a cycle go.
func (c *Coordinator) breakCycle(h *held) {
	g := c.legacy.groups[h.group]
	if h.gate == state.GateClaim {
		c.refuseClaim(g, h, "the owner of the partition waits for a partition of the claimer")
		return
	}
	if i := slices.Index(g.reads, h); i >= 0 {
		g.reads = slices.Delete(g.reads, i, i+1)
		c.letGo(g, h, &statepb.Result{})
	}
}

// ---- reads of offsets ----

// awaitOffsets holds a read until those who had its partitions before the generation have committed and gone.
func (c *Coordinator) awaitOffsets(g *legacyGroup, h *held) {
	if len(c.readBlockers(g, h)) == 0 {
		c.do(Action{Request: h.req.ID, Reply: &statepb.Result{Index: uint64(c.v.Index())}})
		return
	}
	bound := claimBound
	if h.session == 0 {
		bound = fetchBound
	}
	c.budget(g, h, bound)
	c.hold(&g.reads, h)
	c.legacyTurn(g)
}

// readBlockers lists what a read waits for: owners' sessions, 0 for a reservation.
func (c *Coordinator) readBlockers(g *legacyGroup, h *held) []id.SessionID {
	var by []id.SessionID
	for _, p := range h.req.Command.GetAwaitOffsets().GetPartitions() {
		if s, waits := c.v.OffsetWaits(h.session, g.name, p.Topic, p.Partition); waits {
			by = append(by, s)
		}
	}
	return by
}

func (c *Coordinator) readWaitsFor(g *legacyGroup, h *held) []id.SessionID {
	return slices.DeleteFunc(c.readBlockers(g, h), func(s id.SessionID) bool { return s == 0 })
}

func (c *Coordinator) turnReads(g *legacyGroup) {
	for _, h := range slices.Clone(g.reads) {
		if h.until > c.now && !g.looksAt(h, &c.legacy.work) {
			g.wake(h.until)
			continue
		}
		by := c.readBlockers(g, h)
		if len(by) > 0 && h.until > c.now {
			g.wake(h.until)
			h.waited = true
			if slices.Contains(by, 0) { // a reservation
				h.kept = min(h.kept, c.now)
			}
			if !h.check {
				continue
			}
			h.check = false
			if young := c.cycle(h, by[0]); young != nil {
				c.breakCycle(young)
			}
			continue
		}
		if i := slices.Index(g.reads, h); i >= 0 {
			g.reads = slices.Delete(g.reads, i, i+1)
			c.letGo(g, h, &statepb.Result{})
		}
	}
}

// ownedByLegacy returns the consumer that owns a partition by a znode; "" for nobody.
func (c *Coordinator) ownedByLegacy(group, topic string, partition int32) string {
	_, _, z := c.v.OwnerOf(group, topic, partition)
	if z == nil {
		return ""
	}
	if member, ok := c.v.MemberOf(id.SessionID(z.Stat.EphemeralOwner), group); ok {
		return member
	}
	return string(z.Data)
}
