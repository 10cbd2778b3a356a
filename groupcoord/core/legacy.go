// Legacy groups: consumers that keep their group in znodes (Kafka 0.8.1 to 1.1, kafka-node, pykafka, wvanbergen/kafka). Binding:
// groups.md "Generation barrier" and "Holds"; how old clients behave is in zk-paths.md 2, 3 and 6.
//
// The raw tree changes at once, so that everybody but the members of the group sees the truth. Members see the *published
// generation* (state.Legacy): the ids with their registrations, the partition maps of their topics and, with a pattern, the list of
// topics. The life of a generation:
//
//	change    something that members would see differs from what is published; the settle window begins
//	publish   one command, when the window is over and the last generation is complete: held joins are answered, each other member
//	          gets one event (zkcompat does that from the state's change GenerationShown)
//	complete  every partition was claimed in it, a member died, or the cap passed; the state remembers it (CompleteGeneration)
//
// What a node asks is parked here as a *held request until it may be answered: joins (legacy_barrier.go), claims and reads of
// offsets (legacy_claims.go). legacy_repair.go ends what members left behind: reservations, connections, members that gave up.
// All of it is memory of the term: a new coordinator gets the requests again from the nodes and finds the rest in the state.
//
// What members of other kinds in a group (groups.md, "Mixed groups") mean for its znode consumers is in mixed.go. The other way round,
// poolChanged asks for a new generation, and ownedByLegacy and the state's reservations tell what znode consumers have.

package core

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// Bounds of groups.md.
const (
	settleAfter    = 300 * time.Millisecond  // after the last change
	settleDeaths   = 700 * time.Millisecond  // after a session's end, when nobody knows which others are silent: they end by and by, each after its last ping
	settleAtMost   = 3 * time.Second         // after the first
	settleInBurst  = 800 * time.Millisecond  // after the last change, when a member joins within settleAtMost of a generation: more will come
	settleInStream = 1200 * time.Millisecond // likewise, when several have joined since: a process starts slower than another
	silenceBeat    = 100 * time.Millisecond  // how often silent sessions are looked at, while a crash settles
	completeWithin = 10 * time.Second        // after the publish
	completeDeaths = 1 * time.Second         // after the last claim, once a member died: what is still missing was its share
	joinBound      = 13 * time.Second        // then a generation of its own
	claimBound     = 8 * time.Second
	// OffsetFetch: the JVM consumer's socket gives up at 10 s, but at 3 s when the broker that it asked for its coordinator is the
	// coordinator (ClientUtils.channelToOffsetManager keeps that channel), and then it asks again, for ever.
	fetchBound   = 2 * time.Second
	attemptPause = time.Second // after a refusal: who asks later makes another attempt
)

// legacies is the memory of all legacy groups in this term.
type legacies struct {
	groups  map[string]*legacyGroup
	asked   map[RequestID]*held        // requests whose command is being proposed
	taken   map[takenKey]int           // partitions with a claim among asked
	waiting map[id.SessionID]*held     // what a session waits for: it has one request in flight
	puts    map[RequestID]*legacyGroup // proposals of our own
	order   int
	work    legacyWork
}

func newLegacies() legacies {
	return legacies{groups: map[string]*legacyGroup{}, asked: map[RequestID]*held{}, taken: map[takenKey]int{}, waiting: map[id.SessionID]*held{},
		puts: map[RequestID]*legacyGroup{}}
}

// takenKey is a partition that a claim names.
type takenKey struct {
	group, topic string
	partition    int32
}

// legacyGroup is the memory of one group.
type legacyGroup struct {
	name string
	row  *state.Legacy // what is published; nil: nothing ever was

	stale    bool // want is to be made again
	all      bool // look at all that waits, not only at what is due
	want     wanted
	regs     map[string]parsed // registrations by id, as they were when want was made
	fresh    map[string]parsed // and those that were read since
	pattern  map[string]pattern
	families map[string]int // readable registrations by family
	since    time.Duration  // of the first change that is not published; never: none
	last     time.Duration  // of the newest that is no session's end by silence
	why      []reason       // of the changes since the last publish
	deaths   bool           // ends of sessions by silence are among them
	died     time.Duration  // the last one

	number    int32                          // generation that missing is of
	began     time.Duration                  // when it was published, or seen first in this term
	published map[string]parsed              // registrations that it shows, by id
	digest    string                         // of what it shows, as wanted.digest
	shown     []state.Registration           // of its members, but the pool
	read      map[string]bool                // topics that they read, as far as asked
	missing   map[id.TopicPartition]struct{} // not claimed in it
	mixed     *mix                           // by which missing was counted; nil: none
	claimedBy string                         // who claimed last
	claimedAt time.Duration                  // when; began before the first
	gone      bool                           // a member died in it, left or registered anew: some of it nobody may claim
	putting   RequestID                      // proposal in flight; 0: none
	releases  map[id.SessionID]RequestID     // of what is reserved for a session: in flight
	retryAt   time.Duration                  // after one whose outcome is unknown
	joins     []*held                        // in the order of their arrival, as the others
	claims    []*held
	reads     []*held
	mixes     []*held // creates of members that do not agree with those that are there
	used      map[state.Gate]holdSum
	failed    map[id.SessionID]*failedMember
	budget    map[spender]time.Duration            // when a session began to wait
	publishAt time.Duration                        // of the last generation of this term; never: none
	fenceAt   time.Duration                        // fences are looked at no sooner
	fetchers  map[id.TopicPartition]*reservedFetch // of partitions that are, or were, reserved
	fenced    bool                                 // connections are
	owned     map[id.TopicPartition]ownedSince
	next      time.Duration
}

// held is a request that is answered later.
type held struct {
	req     Request
	gate    state.Gate
	group   string
	session id.SessionID // 0: not of a session
	since   time.Duration
	until   time.Duration
	order   int

	memberID  string // of a join
	reg       parsed // of a join: what it registers
	result    *statepb.Result
	topic     string // of a claim, as in its path
	partition int32
	tries     int
	check     bool          // for a cycle of waits
	due       bool          // what it waits for may have come: look at it
	waited    bool          // it was not answered at once
	kept      time.Duration // since when a reservation keeps it waiting; never: none does
}

// spender is a session at one of the gates: what it waits there for one partition after the other it waits for in all.
type spender struct {
	session id.SessionID
	gate    state.Gate
}

// holdSum is how much a gate was used for a generation.
type holdSum struct {
	n     int
	total time.Duration
}

// reason is one change as people are told of it.
type reason struct{ cause, text string }

// loadLegacy finds the groups of znode consumers at the start of the term.
func (c *Coordinator) loadLegacy() {
	c.v.Fences(func(f *state.Fence) bool {
		if c.legacy.groups[f.Group] == nil {
			c.legacyTurn(c.legacyGroup(f.Group))
		}
		return true
	})
	c.v.Groups(func(row *state.Group) bool {
		if _, ok := c.v.Legacy(row.Name); ok || legacy(c.v, row.Name) {
			g := c.legacyGroup(row.Name)
			c.findSquatters(g)
			c.legacyTurn(g)
		}
		return true
	})
}

func (c *Coordinator) legacyGroup(name string) *legacyGroup {
	g := c.legacy.groups[name]
	if g == nil {
		g = &legacyGroup{name: name, stale: true, since: never, retryAt: never, next: never, publishAt: never, regs: map[string]parsed{}, fresh: map[string]parsed{},
			pattern: map[string]pattern{}, used: map[state.Gate]holdSum{}, failed: map[id.SessionID]*failedMember{}, budget: map[spender]time.Duration{}, releases: map[id.SessionID]RequestID{},
			fetchers: map[id.TopicPartition]*reservedFetch{}, owned: map[id.TopicPartition]ownedSince{}}
		c.legacy.groups[name] = g
		row, _ := c.v.Legacy(name)
		c.beginGeneration(g, row)
	}
	return g
}

// legacyRequest takes a request of znode consumers; false: it is none.
func (c *Coordinator) legacyRequest(r Request) bool {
	h := &held{req: r, session: id.SessionID(r.Command.GetOrigin().GetSession()), since: c.now - r.Waited, kept: never}
	c.legacy.order++
	h.order = c.legacy.order
	path := ""
	switch b := r.Command.GetBody().(type) {
	case *statepb.Command_CreateZnode:
		path = b.CreateZnode.Path
	case *statepb.Command_SetZnode:
		path = b.SetZnode.Path
	case *statepb.Command_ClaimOwner:
		h.gate, h.group, h.topic = state.GateClaim, b.ClaimOwner.Group, b.ClaimOwner.Topic
		h.partition = b.ClaimOwner.Partition
		c.claim(c.legacyGroup(h.group), h)
		return true
	case *statepb.Command_AwaitOffsets:
		h.gate, h.group = state.GateOffset, b.AwaitOffsets.Group
		c.awaitOffsets(c.legacyGroup(h.group), h)
		return true
	default:
		return false
	}
	p := state.ParsePath(path)
	if p.Kind != state.PathMember {
		c.do(Action{Request: r.ID, Reply: &statepb.Result{Code: statepb.Code_INVALID, Text: path + " is no member of a group", Index: uint64(c.v.Index())}})
		return true
	}
	h.group, h.memberID, h.until = p.Group, p.Name, h.since+joinBound
	data := r.Command.GetCreateZnode().GetData()
	if set := r.Command.GetSetZnode(); set != nil {
		data = set.Data
	}
	h.reg = c.parse(p.Name, data)
	c.joinLegacy(c.legacyGroup(p.Group), h)
	return true
}

// legacySettled takes the result of a command of a legacy group; false: it is of another.
func (c *Coordinator) legacySettled(r RequestID, res *statepb.Result) bool {
	if g, ok := c.legacy.puts[r]; ok {
		delete(c.legacy.puts, r)
		if g.putting == r {
			g.putting = 0
		}
		maps.DeleteFunc(g.releases, func(_ id.SessionID, release RequestID) bool { return release == r })
		if res.Code == statepb.Code_STALE_TERM { // unknown: what the state then shows decides
			g.retryAt = c.now + retryAfter
		}
		c.legacyTurn(g)
		return true
	}
	h, ok := c.legacy.asked[r]
	if !ok {
		return false
	}
	c.noLongerAsked(h)
	g := c.legacyGroup(h.group)
	if h.gate == state.GateClaim {
		c.claimSettled(g, h, res)
	} else {
		c.joinSettled(g, h, res)
	}
	c.legacyTurn(g)
	return true
}

// legacyChanged follows the state.
func (c *Coordinator) legacyChanged(changes []state.Change) {
	touched := map[string]bool{}
	for i := range changes {
		ch := &changes[i]
		switch ch.Kind {
		case state.ZnodeCreated, state.ZnodeDeleted, state.ZnodeData:
			if !strings.HasPrefix(ch.Path, "/consumers/") {
				continue
			}
			p := state.ParsePath(ch.Path)
			switch p.Kind {
			case state.PathMember:
				g := c.legacyGroup(p.Group)
				g.stale = true
				g.dueOf(p.Name, ch.Session)
				if ch.Kind == state.ZnodeDeleted {
					c.memberLeft(g, p.Name, ch.Session)
				}
				touched[p.Group] = true
			case state.PathOwner:
				c.ownerChanged(c.legacyGroup(p.Group), p, ch.Kind)
				touched[p.Group] = true
			}
		case state.GroupChanged, state.GenerationShown:
			if g := c.legacy.groups[ch.Group]; g != nil || ch.Kind == state.GenerationShown {
				touched[ch.Group] = true
				c.legacyGroup(ch.Group).all = true
			}
		case state.TopicCreated, state.TopicDeleted, state.TopicGrown:
			for name, g := range c.legacy.groups {
				g.stale, g.all = true, true
				touched[name] = true
			}
		case state.ConfigCreated, state.ConfigData, state.ConfigDeleted:
			if ch.Type == state.GroupConfigs {
				touched[ch.Name] = true
				g := c.legacyGroup(ch.Name)
				g.stale, g.all = true, true
			}
		}
	}
	for _, name := range sorted(touched) {
		c.legacyTurn(c.legacyGroup(name))
	}
}

// legacyCancel forgets a request whose client is gone; false: it is none of a legacy group. What it did to the tree stands.
func (c *Coordinator) legacyCancel(r RequestID) bool {
	if h, ok := c.legacy.asked[r]; ok {
		c.noLongerAsked(h)
		if g := c.legacy.groups[h.group]; g != nil && h.gate == state.GateClaim {
			g.dueFor(state.OwnersTopic(h.topic), h.partition)
			c.legacyTurn(g)
		}
		return true
	}
	for _, g := range c.legacy.groups {
		for _, list := range []*[]*held{&g.joins, &g.claims, &g.reads, &g.mixes} {
			i := slices.IndexFunc(*list, func(h *held) bool { return h.req.ID == r })
			if i < 0 {
				continue
			}
			h := (*list)[i]
			*list = slices.Delete(*list, i, i+1)
			c.stopWaiting(h)
			c.spent(g, h)
			c.legacyTurn(g)
			return true
		}
	}
	return false
}

// expireLegacy does what is due.
func (c *Coordinator) expireLegacy() {
	for _, name := range sorted(c.legacy.groups) {
		g := c.legacy.groups[name]
		if g.next <= c.now {
			c.legacyTurn(g)
		} else {
			c.mark(g.next)
		}
	}
}

// legacyTurn decides everything that can be decided of a group now.
func (c *Coordinator) legacyTurn(g *legacyGroup) {
	g.next = never
	c.look(g)
	g.all = g.all || c.waitsForOthers(g)
	c.turnReservations(g)
	c.turnCompletion(g)
	c.turnPublish(g)
	c.turnJoins(g)
	c.turnFences(g)
	c.turnClaims(g)
	c.turnReads(g)
	c.turnMixes(g)
	c.turnGhosts(g)
	g.all = false
	if g.next <= c.now { // what is due waits for a proposal that is under way, or for others
		g.next = c.now + retryAfter
	}
	if g.next != never {
		c.mark(g.next)
	}
	idle := len(g.joins)+len(g.claims)+len(g.reads)+len(g.mixes)+len(g.failed)+len(g.fetchers) == 0 && !g.fenced && g.putting == 0 && len(g.releases) == 0 && g.since == never
	if idle && len(g.want.members) == 0 && (g.row == nil || len(g.row.Members)+len(g.row.Reserved) == 0) && !c.isAsked(g.name) {
		delete(c.legacy.groups, g.name)
	}
}

// waitsForOthers reports whether requests may wait for what no change of the group's own znodes tells of: members by Kafka's protocol, and
// connections that are fenced.
func (c *Coordinator) waitsForOthers(g *legacyGroup) bool {
	head, ok := c.v.Group(g.name)
	return len(g.fetchers) > 0 || ok && len(head.Members) > 0 || c.plans.asked[g.name] != ""
}

// looksAt reports whether a request that waits is to be looked at in this turn.
func (g *legacyGroup) looksAt(h *held, work *legacyWork) bool {
	if !h.due && !g.all {
		return false
	}
	h.due = false
	work.looked++
	return true
}

// dueOf has what a member waits for looked at: its registration has changed.
func (g *legacyGroup) dueOf(memberID string, session id.SessionID) {
	for _, h := range g.joins {
		h.due = h.due || h.memberID == memberID
	}
	for _, list := range [][]*held{g.claims, g.reads} {
		for _, h := range list {
			h.due = h.due || h.session == session
		}
	}
}

// dueFor has what waits for a partition looked at.
func (g *legacyGroup) dueFor(topic string, partition int32) {
	for _, h := range g.claims {
		h.due = h.due || h.partition == partition && state.OwnersTopic(h.topic) == topic
	}
	for _, h := range g.reads {
		h.due = h.due || slices.ContainsFunc(h.req.Command.GetAwaitOffsets().GetPartitions(), func(p *statepb.OwnedPartition) bool {
			return p.Partition == partition && state.OwnersTopic(p.Topic) == topic
		})
	}
}

func (c *Coordinator) isAsked(group string) bool {
	for _, h := range c.legacy.asked {
		if h.group == group {
			return true
		}
	}
	return false
}

// wake has a group looked at again at a moment.
func (g *legacyGroup) wake(at time.Duration) { g.next = min(g.next, at) }

// budget bounds a request by what its session has waited at the gate already in this attempt. What a new coordinator would have to refuse at
// once has until it can know what the brokers report.
func (c *Coordinator) budget(g *legacyGroup, h *held, bound time.Duration) {
	h.until = h.since + bound
	if h.session == 0 {
		return
	}
	if w := h.req.Waited; w > 0 {
		h.until = max(h.until, h.since+w+reportsBegin)
	}
	k := spender{h.session, h.gate}
	began, ok := g.budget[k]
	if !ok || began+bound+attemptPause < c.now {
		began = h.until - bound
		g.budget[k] = began
	}
	h.until = min(h.until, began+bound)
}

// hold parks a request, and says so in the graph of waits.
func (c *Coordinator) hold(list *[]*held, h *held) {
	i, _ := slices.BinarySearchFunc(*list, h, func(a, b *held) int { return a.order - b.order })
	*list = slices.Insert(*list, i, h)
	h.check, h.due = true, true
	if h.session != 0 {
		c.legacy.waiting[h.session] = h
	}
}

func (c *Coordinator) stopWaiting(h *held) {
	if c.legacy.waiting[h.session] == h {
		delete(c.legacy.waiting, h.session)
	}
}

// spent counts for how long a request was held.
func (c *Coordinator) spent(g *legacyGroup, h *held) {
	if !h.waited {
		return
	}
	c.count(g, h.gate, c.now-h.since)
	if h.kept != never {
		c.count(g, state.GateReservation, c.now-h.kept)
	}
}

func (c *Coordinator) count(g *legacyGroup, gate state.Gate, held time.Duration) {
	u := g.used[gate]
	g.used[gate] = holdSum{u.n + 1, u.total + held}
	c.do(Action{Count: &Count{Gate: string(gate), Held: held}})
}

// letGo answers a held request.
func (c *Coordinator) letGo(g *legacyGroup, h *held, res *statepb.Result) {
	c.stopWaiting(h)
	if f := g.failed[h.session]; f != nil {
		f.at = c.now // it was silent because it waited
	}
	c.spent(g, h)
	res.Index = max(res.Index, uint64(c.v.Index())) // the client is answered from a view that shows why
	c.do(Action{Request: h.req.ID, Reply: res})
}

// propose carries out a held request's own command.
func (c *Coordinator) proposeHeld(h *held) {
	c.legacy.asked[h.req.ID] = h
	if h.gate == state.GateClaim {
		c.legacy.taken[takenKey{h.group, h.topic, h.partition}]++
	}
	c.do(Action{Request: h.req.ID, Propose: h.req.Command})
}

// noLongerAsked forgets that a request's command is being proposed.
func (c *Coordinator) noLongerAsked(h *held) {
	delete(c.legacy.asked, h.req.ID)
	if h.gate != state.GateClaim {
		return
	}
	k := takenKey{h.group, h.topic, h.partition}
	if c.legacy.taken[k]--; c.legacy.taken[k] <= 0 {
		delete(c.legacy.taken, k)
	}
}

// put proposes a command of our own for a group: one at a time.
func (c *Coordinator) putLegacy(g *legacyGroup, cmd *statepb.Command) {
	c.last++
	g.putting = c.last
	c.legacy.puts[c.last] = g
	c.do(Action{Request: c.last, Propose: cmd})
}

// joinStands is the success of a request that an earlier coordinator, or an earlier connection of the session, has carried out already.
func (c *Coordinator) joinStands(h *held) (*statepb.Result, bool) {
	b := h.req.Command.GetCreateZnode()
	if b == nil {
		return nil, false
	}
	z, ok := c.v.Znode(b.Path)
	if !ok || h.session == 0 || id.SessionID(z.Stat.EphemeralOwner) != h.session || !bytes.Equal(z.Data, b.Data) {
		return nil, false
	}
	return &statepb.Result{Path: b.Path, Zxid: int64(c.v.ZXID()), Index: uint64(c.v.Index())}, true
}

// who names a member with what is known of its client.
func (c *Coordinator) who(memberID string, reg state.Registration, session int64) string {
	s, ok := c.v.Session(id.SessionID(session))
	if !ok || s.Host == "" {
		return fmt.Sprintf("%s (%s)", clip(memberID), reg.Dialect)
	}
	return fmt.Sprintf("%s (%s at %s)", clip(memberID), reg.Dialect, s.Host)
}

// legacyState is the state of a group of znode consumers in Kafka's words.
func (c *Coordinator) legacyState(name string) string {
	g := c.legacy.groups[name]
	switch {
	case g == nil, !c.barrierOn(g): // nobody is shown generations: it cannot be told when the members claim
	case g.since != never && (g.row == nil || g.row.Complete):
		return "PreparingRebalance" // a generation is about to be published
	case g.row != nil && g.row.Number > 0 && !g.row.Complete && !g.row.Withdrawn:
		return "CompletingRebalance" // it is being claimed
	}
	return "Stable"
}
