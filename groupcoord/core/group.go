package core

import (
	"cmp"
	"math"
	"regexp"
	"slices"
	"time"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

const never = time.Duration(math.MaxInt64)

// Times that Kafka does not let anybody set.
const (
	// unusedFor is how long a group without members, offsets and znodes is kept.
	unusedFor = 10 * time.Minute
	// retryAfter is the pause before a put whose outcome is unknown is decided again; after maxRetries its requests fail.
	retryAfter = 100 * time.Millisecond
	maxRetries = 20
	// lateness is from when on a late Expire says that this process stood still: then its members get the time back.
	lateness = time.Second
)

// group is the memory of one group in this term. What counts is the row; this is who waits, and for how long.
//
// States as Kafka names them (ClassicGroupState):
//
//	Empty                row without members, no rebalance
//	PreparingRebalance   reb is set: the row's generation is in force, members are asked (27) to join again. The row is
//	                     GroupPreparing when members were taken out, so that a fail-over does not forget it
//	CompletingRebalance  row is GroupCompleting: the members wait in syncs for the leader's assignment
//	Stable               row is GroupStable
//
// One put at a time: while it is in flight, requests that may change the group wait in queue; heartbeats and commits do not.
type group struct {
	name     string
	row      *state.Group          // newest; nil: none
	draft    *draft                // the next row, being made by this call
	put      *put                  // the next row, being proposed
	queue    []Request             // behind put
	sessions map[string]*session   // of members, and of ids that were given out and have not joined
	joins    map[string]*join      // parked JoinGroups by member id
	syncs    map[string]parkedSync // parked SyncGroups by member id
	reb      *rebalance
	syncBy   time.Duration // when a completing generation ends for members that have not synced
	unusedAt time.Duration // when an empty group is looked at
	retryAt  time.Duration
	retries  int
	highest  int32 // generation seen in this term
	arrivals int

	// Of a consumer group.
	waits     []Request // joins and new subscriptions that wait for others to come
	waitFrom  time.Duration
	planAt    time.Duration // when waits are carried out
	admitting bool
	moved     *plan              // why its topics are to be looked at
	told      *statepb.Rebalance // of the epoch that members are coming to
	since     time.Duration
	regexes   map[string]*regexp.Regexp
}

// session is the clock of a member that does not wait here.
type session struct {
	timeout, ends time.Duration // ends never: it waits in joins
	pending       bool          // the id was given out (79), no join with it yet

	// Of a member of a consumer group; never: not running.
	revokeBy time.Duration // it must have given up partitions
	joinBy   time.Duration // a classic member must have joined again
	syncBy   time.Duration // a classic member must have asked for its assignment
}

func newSession(timeout, ends time.Duration) *session {
	return &session{timeout: timeout, ends: ends, revokeBy: never, joinBy: never, syncBy: never}
}

// join is a parked JoinGroup.
type join struct {
	req     Request
	version int16
	member  *state.Member // as it will be
	order   int
}

type parkedSync struct {
	id      RequestID
	version int16
}

// rebalance is a generation that is about to end.
type rebalance struct {
	cause, text string
	before      []string // members when it began
	began       time.Duration
	ends        time.Duration // members that are not here by then are out
	last        string        // the member that joined last
	// Of a group that was empty: the initial delay, begun anew as long as members come.
	settling bool
	settled  time.Duration
	left     time.Duration
	fresh    bool
}

// draft is a row being made.
type draft struct {
	row       state.Group // Members is a copy; the members themselves are not written to
	completes bool        // a new generation: joins are answered
	assigns   bool        // an assignment: syncs are answered
	record    *statepb.Rebalance
	answers   []Action  // when it stands
	requests  []Request // asked again when it is refused

	// Of a consumer group.
	plan    *plan           // it is to be assigned anew
	tell    []telling       // who hears of the plan
	changed map[string]bool // members
	gone    []string
	whole   bool // the group changes its kind
}

// put is a draft, proposed.
type put struct {
	draft
	id RequestID
	// reap: not a row but the group's end
	reap bool
}

func (c *Coordinator) group(name string) *group {
	g := c.groups[name]
	if g == nil {
		g = &group{name: name, sessions: map[string]*session{}, joins: map[string]*join{}, syncs: map[string]parkedSync{},
			syncBy: never, unusedAt: never, retryAt: never, planAt: never}
		c.groups[name] = g
	}
	g.row, _ = c.v.Group(name)
	if g.row != nil {
		g.highest = max(g.highest, g.row.Generation)
	}
	return g
}

// load takes over a group at the start of the term: every session begins anew.
func (c *Coordinator) load(row *state.Group) {
	g := c.group(row.Name)
	c.adopt(g)
	if row.State == state.GroupCompleting {
		g.syncBy = c.mark(c.now + longest(row.Members))
	}
	if row.Consumer {
		g.moved = &plan{"topics", "its topics changed while there was no coordinator"}
		c.mark(c.now)
	}
	c.goOn(g)
	c.watchUnused(g)
}

// goOn begins the rebalance that the row asks for.
func (c *Coordinator) goOn(g *group) {
	if g.reb == nil && g.row != nil && g.row.State == state.GroupPreparing {
		c.prepare(g, "failover", "an earlier coordinator had begun a rebalance")
	}
}

func (c *Coordinator) mark(at time.Duration) time.Duration {
	c.next = min(c.next, at)
	return at
}

func (c *Coordinator) startSession(g *group, member string, timeout time.Duration, pending bool) {
	s := newSession(timeout, c.mark(c.now+timeout))
	s.pending = pending
	g.sessions[member] = s
}

// alive renews a member's session. A member that waits here needs none.
func (c *Coordinator) alive(g *group, member string) {
	if s := g.sessions[member]; s != nil && s.ends != never {
		s.ends = c.now + s.timeout // later than before: next stays a lower bound
	}
}

// revive starts the session of a member that has waited here.
func (c *Coordinator) revive(g *group, member string) {
	if s := g.sessions[member]; s != nil {
		s.ends = c.mark(c.now + s.timeout)
	}
}

// watchUnused sets when a group without members may be forgotten.
func (c *Coordinator) watchUnused(g *group) {
	g.unusedAt = never
	if cur := g.cur(); cur != nil && len(cur.Members) == 0 && !g.joining() {
		g.unusedAt = c.mark(c.now + unusedFor)
	}
}

// cur is the row with what this call has changed.
func (g *group) cur() *state.Group {
	if g.draft != nil {
		return &g.draft.row
	}
	return g.row
}

func (g *group) members() []*state.Member {
	if cur := g.cur(); cur != nil {
		return cur.Members
	}
	return nil
}

func (g *group) edit() *draft {
	if g.draft == nil {
		g.draft = &draft{row: state.Group{Name: g.name}}
		if g.row != nil {
			g.draft.row = *g.row
			g.draft.row.Members = slices.Clone(g.row.Members)
		}
	}
	return g.draft
}

func (g *group) pending() int {
	n := 0
	for _, s := range g.sessions {
		if s.pending {
			n++
		}
	}
	return n
}

// joining reports whether somebody is on the way into the group.
func (g *group) joining() bool {
	return len(g.joins) > 0 || len(g.queue) > 0 || len(g.waits) > 0 || g.put != nil || g.pending() > 0
}

// everyone is the group as it would be if all came back: joins count in place of the members they will become.
func (g *group) everyone() []*state.Member {
	var all []*state.Member
	for _, m := range g.members() {
		if j := g.joins[m.ID]; j != nil {
			m = j.member
		}
		all = append(all, m)
	}
	for _, j := range g.arrived() {
		if g.cur().Member(j.member.ID) == nil {
			all = append(all, j.member)
		}
	}
	return all
}

// arrived are the parked joins in their order.
func (g *group) arrived() []*join {
	js := make([]*join, 0, len(g.joins))
	for _, j := range g.joins {
		js = append(js, j)
	}
	slices.SortFunc(js, func(a, b *join) int { return a.order - b.order })
	return js
}

// state is the group's state in Kafka's words.
func (g *group) state() string {
	switch {
	case g.reb != nil:
		return "PreparingRebalance"
	case g.row == nil, g.row.State == state.GroupEmpty:
		return "Empty"
	case g.row.Consumer:
		if slices.ContainsFunc(g.row.Members, func(m *state.Member) bool { return !reconciled(m.Consumer, g.row.Generation) }) {
			return "Reconciling"
		}
		return "Stable"
	case g.row.State == state.GroupPreparing:
		return "PreparingRebalance"
	case g.row.State == state.GroupCompleting:
		return "CompletingRebalance"
	}
	return "Stable"
}

func ms(n int32) time.Duration { return time.Duration(n) * time.Millisecond }

func longest(members []*state.Member) time.Duration {
	t := int32(0)
	for _, m := range members {
		t = max(t, m.RebalanceMs)
	}
	return ms(t)
}

// onlyLegacy reports whether znode consumers have the group for themselves. Beside classic members they get no partition: their
// claims are refused (state.claimOwner).
func (c *Coordinator) onlyLegacy(g *group) bool {
	return (g.row == nil || len(g.row.Members) == 0) && legacy(c.v, g.name)
}

// adopt starts the sessions of members that have none: at the start of the term, and when a change did not come about.
func (c *Coordinator) adopt(g *group) {
	if g.row == nil {
		return
	}
	for _, m := range g.row.Members {
		if s := g.sessions[m.ID]; s == nil || s.pending {
			c.startSession(g, m.ID, ms(m.SessionMs), false)
			if m.Consumer != nil && m.Consumer.State == state.MemberUnrevoked && !m.Classic() {
				g.sessions[m.ID].revokeBy = c.mark(c.now + ms(m.RebalanceMs))
			}
		}
	}
}

// legacy reports whether znode consumers are members of a group.
func legacy(v *state.View, group string) bool {
	found := false
	v.Members(group, func(string, *state.Znode) bool { found = true; return false })
	return found
}

// vote chooses the protocol that all members know and most prefer (ClassicGroup.selectProtocol); the first members decide a tie.
func vote(members []*state.Member) (string, bool) {
	common := map[string]int{}
	for _, m := range members {
		seen := map[string]bool{}
		for _, p := range m.Protocols {
			if !seen[p.Name] {
				seen[p.Name] = true
				common[p.Name]++
			}
		}
	}
	var names []string // in the order of the first vote
	votes := map[string]int{}
	for _, m := range members {
		for _, p := range m.Protocols {
			if common[p.Name] < len(members) {
				continue
			}
			if votes[p.Name]++; votes[p.Name] == 1 {
				names = append(names, p.Name)
			}
			break
		}
	}
	if len(names) == 0 {
		return "", false
	}
	return slices.MaxFunc(names, func(a, b string) int { return cmp.Compare(votes[a], votes[b]) }), true
}

// metadata is what a member tells the leader under a protocol.
func metadata(m *state.Member, protocol string) []byte {
	for _, p := range m.Protocols {
		if p.Name == protocol {
			return p.Metadata
		}
	}
	return nil
}

func sameProtocols(a, b *state.Member) bool {
	return slices.EqualFunc(a.Protocols, b.Protocols, func(x, y state.GroupProtocol) bool {
		return x.Name == y.Name && string(x.Metadata) == string(y.Metadata)
	})
}
