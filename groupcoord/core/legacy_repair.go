package core

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// Fetcher is a client connection that fetches a partition, or did, as the brokers report it.
type Fetcher struct {
	Broker   id.BrokerID
	Epoch    id.BrokerEpoch
	Conn     uint64
	ClientID string
	Host     string
	Idle     time.Duration // since its last fetch of the partition, as far as is known: at most activeFetch when it goes on
	// Closed: the connection is no more, and got no record from End on. A leader tells the last one of each client id and host; one without
	// a host stands for all others, and for what other leaders gave before.
	Closed bool
	End    id.Offset
}

func (f Fetcher) is(x Fetcher) bool {
	return f.Broker == x.Broker && f.Epoch == x.Epoch && f.Conn == x.Conn
}

// from names what the connection fetches from a partition.
func (f Fetcher) from(tp id.TopicPartition) *statepb.FencedFetch {
	return &statepb.FencedFetch{Broker: int32(f.Broker), Epoch: uint64(f.Epoch), Conn: f.Conn, Topic: tp.Topic, Partition: tp.Partition}
}

// activeFetch is how long ago the last fetch may seem to be of a connection that goes on: reports refresh it every five seconds.
const activeFetch = 6 * time.Second

// How long the brokers' reports are waited for: they come every 200 ms, and to a new coordinator all of them anew.
const (
	reservationBeat = 200 * time.Millisecond
	reportsSettle   = 500 * time.Millisecond
	reportsBegin    = 2 * time.Second
)

// reservedFetch is what is known of the connections that fetched a reserved partition.
type reservedFetch struct {
	session id.SessionID
	member  string
	seen    time.Duration // in this term, first
	fetch   []Fetcher     // the connections, as they were when it ended
	reader  *Fetcher      // the member's, whatever its client id; nil: it cannot be told
	seems   *Fetcher      // to be the reader
	seemsAt time.Duration // since when
	asked   time.Duration // for a fence, last
}

// isOf reports whether a connection is surely one of the group: old JVM consumers that set no client id give the group's name.
func (f *reservedFetch) isOf(group string, x Fetcher) bool {
	return x.ClientID == state.ClientKey(group) || f.reader != nil && f.reader.is(x)
}

// ownedSince is a claim that was seen in this term.
type ownedSince struct {
	claimed id.ZXID
	at      time.Duration
}

// turnReservations ends reservations: when the connections that fetched the partition are gone, or one session timeout after the
// session's end.
func (c *Coordinator) turnReservations(g *legacyGroup) {
	if g.row == nil || len(g.row.Reserved) == 0 {
		return
	}
	over := map[id.SessionID]*statepb.ReleaseOwners{}
	for _, r := range g.row.Reserved {
		if g.releases[r.Session] != 0 {
			continue
		}
		if left := c.reservedFor(g, r); left > 0 {
			g.wake(c.now + left)
			continue
		}
		if over[r.Session] == nil {
			over[r.Session] = &statepb.ReleaseOwners{Group: g.name, Session: int64(r.Session)}
		}
		over[r.Session].Owned = append(over[r.Session].Owned, &statepb.OwnedPartition{Topic: r.Topic, Partition: r.Partition})
	}
	if len(over) > 0 && g.retryAt != never && g.retryAt > c.now {
		g.wake(g.retryAt)
		return
	}
	for _, s := range slices.Sorted(maps.Keys(over)) {
		c.last++
		g.releases[s], c.legacy.puts[c.last] = c.last, g
		c.do(Action{Request: c.last, Propose: &statepb.Command{Body: &statepb.Command_ReleaseOwners{ReleaseOwners: over[s]}}})
	}
}

// reservedFor is how long it is until a reservation is over, or to be looked at again; 0 when it is over.
func (c *Coordinator) reservedFor(g *legacyGroup, r *state.Reservation) time.Duration {
	if !c.v.GateOn(g.name, state.GateReservation) {
		return 0
	}
	tp := id.TopicPartition{Topic: state.OwnersTopic(r.Topic), Partition: r.Partition}
	f := g.fetchers[tp]
	if f == nil || f.session != r.Session {
		f = &reservedFetch{session: r.Session, member: r.Member, seen: c.now}
		g.fetchers[tp] = f
	}
	age := max(c.now-f.seen, time.Duration(c.v.ClockMs()-r.SinceMs)*time.Millisecond) // the cluster's clock is coarse
	left := max(time.Duration(r.TimeoutMs)*time.Millisecond-age, 0)
	if c.cfg.Fetching == nil {
		return left
	}
	lines := c.cfg.Fetching(tp)
	c.findReader(g, f, r, tp, lines)
	switch settled := max(f.seen+reportsSettle, reportsBegin); {
	case !c.stopped(g, f, r, tp, lines):
		return min(left, reservationBeat)
	case c.now < settled:
		return min(left, reservationBeat, settled-c.now)
	}
	return 0
}

// stopped reports whether none of the connections goes on that fetched a partition when the session ended: from its host, or, as a
// machine may have several addresses, under the group's name. One that is there and asks for nothing, as that of a frozen process,
// counts as stopped when it can be cut off before the partition has another owner.
func (c *Coordinator) stopped(g *legacyGroup, f *reservedFetch, r *state.Reservation, tp id.TopicPartition, lines []Fetcher) bool {
	now := open(lines)
	if c.now-f.seen <= reportsSettle || c.now <= reportsBegin {
		since := c.sinceClaim(g, r, tp) // what fetched before is of an owner before, who may be the next
		for _, x := range now {
			if (x.Host == r.Host || f.isOf(g.name, x)) && x.Idle <= since && !slices.ContainsFunc(f.fetch, x.is) {
				f.fetch = append(f.fetch, x)
			}
		}
	}
	return !slices.ContainsFunc(now, func(x Fetcher) bool {
		frozen := x.Idle > activeFetch && f.isOf(g.name, x) && c.v.GateOn(g.name, state.GateFence)
		return !frozen && slices.ContainsFunc(f.fetch, x.is)
	})
}

// fetching lists the open connections that fetch a partition.
func (c *Coordinator) fetching(tp id.TopicPartition) []Fetcher {
	if c.cfg.Fetching == nil {
		return nil
	}
	return open(c.cfg.Fetching(tp))
}

// open are those of the connections that have not closed.
func open(lines []Fetcher) []Fetcher {
	return slices.DeleteFunc(slices.Clone(lines), func(x Fetcher) bool { return x.Closed })
}

// sinceClaim is how long ago a partition that is reserved was claimed, as far as is known in this term.
func (c *Coordinator) sinceClaim(g *legacyGroup, r *state.Reservation, tp id.TopicPartition) time.Duration {
	if own := g.owned[tp]; own.claimed == r.Claimed {
		return max(c.now-own.at, activeFetch)
	}
	return math.MaxInt64
}

// findReader settles on the connection of an expired member when the reports have named the same one for a while: one report may be from
// before the partition has moved.
func (c *Coordinator) findReader(g *legacyGroup, f *reservedFetch, r *state.Reservation, tp id.TopicPartition, lines []Fetcher) {
	if f.reader != nil {
		return
	}
	x := c.readerOf(g, r, tp, lines)
	if x == nil || f.seems == nil || !f.seems.is(*x) {
		f.seems, f.seemsAt = x, c.now
	}
	if x != nil && c.now >= max(f.seemsAt+reportsSettle, reportsBegin) {
		f.reader = x
	}
}

// readerOf finds the connection of an expired member that has a client id of its own, or one that its library gives to all (kafka-node,
// pykafka): others on its machine may read the same partition under it, simple consumers or another group. The member committed the
// partition since it had claimed it, so it read it, up to the record below its offset: over which connections that was possible the leader
// knows. When of all that fetched since the claim, under its address and client id if they are known from the commit, there is but one, that
// is the member's. nil: it cannot be told, and the reservation's bound is what there is. It is wrong only if the commit is the late one of an
// owner before with the same client id and address, the member never fetched, and somebody else did under these too.
func (c *Coordinator) readerOf(g *legacyGroup, r *state.Reservation, tp id.TopicPartition, lines []Fetcher) *Fetcher {
	o, ok := c.v.Offset(g.name, tp.Topic, tp.Partition)
	p, there := c.v.Partition(tp.Topic, tp.Partition)
	if !ok || !there || r.Claimed == 0 || o.Mzxid <= r.Claimed {
		return nil
	}
	client, byKafka := strings.CutSuffix(o.By, "@"+r.Host) // as the broker names who commits without a member
	client = state.ClientKey(client)
	if !byKafka && o.By != r.Member {
		return nil
	}
	since := c.sinceClaim(g, r, tp)
	var all []Fetcher
	told := false
	for _, x := range lines {
		others := x.Closed && x.Host == ""
		switch {
		case x.Broker != p.Leader:
		case x.Closed && o.Offset > x.End: // it did not get that record
			told = told || others
		case others:
			return nil
		case (!byKafka || x.Host == r.Host && x.ClientID == client) && (x.Closed || x.Idle <= since):
			all = append(all, x)
		}
	}
	if !told || len(all) != 1 {
		return nil
	}
	return &all[0]
}

// fenceBeat is how often connections of expired members are looked at: whether they are to be cut off, and whether they are gone.
const fenceBeat = time.Second

// unfenced lists the connections that are to be cut off from a partition before it gets another owner: they fetched it when the session of
// its last one expired, and may go on. Only those that are surely the member's (readerOf), or under the group's name: others on the same
// machine may fetch the same partition.
func (c *Coordinator) unfenced(g *legacyGroup, tp id.TopicPartition, claimer string) []Fetcher {
	f := g.fetchers[tp]
	if f == nil || f.member == claimer || !c.v.GateOn(g.name, state.GateFence) {
		return nil
	}
	live := c.liveFetches(f, tp)
	return slices.DeleteFunc(slices.Clone(f.fetch), func(x Fetcher) bool {
		return !f.isOf(g.name, x) || !slices.ContainsFunc(live, x.is) || c.v.Fenced(x.Broker, x.Epoch, x.Conn, tp.Topic, tp.Partition)
	})
}

// turnFences cuts connections of an expired member off from the partitions that others claim, or have, before the claims are granted;
// and lifts what is over.
func (c *Coordinator) turnFences(g *legacyGroup) {
	fences := c.fencesOf(g)
	g.fenced = len(fences) > 0
	if len(g.fetchers) == 0 && !g.fenced {
		return
	}
	claimed := map[id.TopicPartition]bool{}
	for _, h := range g.claims {
		if member, _ := c.v.MemberOf(h.session, g.name); g.row.Reservation(h.topic, h.partition) == nil {
			tp := id.TopicPartition{Topic: state.OwnersTopic(h.topic), Partition: h.partition}
			claimed[tp] = len(c.unfenced(g, tp, member)) > 0
		}
	}
	if row, _ := c.v.Group(g.name); row != nil && len(row.Members) > 0 { // members by Kafka's protocols are given partitions without a claim
		for tp := range g.fetchers {
			claimed[tp] = claimed[tp] || len(c.unfenced(g, tp, "")) > 0
		}
	}
	for _, tp := range sortedPartitions(g.fetchers) {
		if claimed[tp] || c.now >= g.fenceAt {
			c.turnFence(g, g.fetchers[tp], tp, claimed[tp])
		}
	}
	if c.now >= g.fenceAt {
		g.fenceAt = c.now + fenceBeat
		c.liftFences(g, fences)
	}
	g.wake(g.fenceAt)
}

func (c *Coordinator) turnFence(g *legacyGroup, f *reservedFetch, tp id.TopicPartition, claimed bool) {
	if g.row.Reservation(tp.Topic, tp.Partition) != nil || g.row.Reservation("b'"+tp.Topic+"'", tp.Partition) != nil {
		return
	}
	owner := c.ownedByLegacy(g.name, tp.Topic, tp.Partition)
	if len(c.liveFetches(f, tp)) == 0 || owner == f.member {
		delete(g.fetchers, tp)
		return
	}
	cut := &statepb.FenceFetches{Group: g.name, Member: f.member}
	if (claimed || owner != "") && c.now >= f.asked+retryAfter {
		for _, x := range c.unfenced(g, tp, owner) {
			cut.Fetches = append(cut.Fetches, x.from(tp))
		}
	}
	if len(cut.Fetches) > 0 {
		f.asked = c.now
		c.fence(cut)
		c.do(Action{Count: &Count{Gate: string(state.GateFence)}, Note: &Note{"group: connections of an expired member get no more records of a partition that others claim",
			[]any{"group", g.name, "member", f.member, "topic", tp.Topic, "partition", tp.Partition}}})
	}
}

func (c *Coordinator) fence(cmd *statepb.FenceFetches) {
	c.last++
	c.do(Action{Request: c.last, Propose: &statepb.Command{Body: &statepb.Command_FenceFetches{FenceFetches: cmd}}})
}

// fencesOf lists a group's fences.
func (c *Coordinator) fencesOf(g *legacyGroup) (all []*state.Fence) {
	c.v.Fences(func(f *state.Fence) bool {
		if f.Group == g.name {
			all = append(all, f)
		}
		return true
	})
	return all
}

// liftFences ends the fences whose connections are gone, and those of a member that has the partition again, whoever set them.
func (c *Coordinator) liftFences(g *legacyGroup, fences []*state.Fence) {
	lift := &statepb.FenceFetches{Group: g.name, Lift: true}
	for _, f := range fences {
		tp := id.TopicPartition{Topic: f.Topic, Partition: f.Partition}
		x := Fetcher{Broker: f.Broker, Epoch: f.Epoch, Conn: f.Conn}
		gone := c.now >= reportsBegin && !slices.ContainsFunc(c.fetching(tp), x.is)
		if gone || c.ownedByLegacy(g.name, f.Topic, f.Partition) == f.Member || !c.v.GateOn(g.name, state.GateFence) {
			lift.Fetches = append(lift.Fetches, x.from(tp))
		}
	}
	if len(lift.Fetches) > 0 {
		c.fence(lift)
	}
}

// liveFetches are the connections of f that still fetch. A new coordinator has no reports yet: then all of them.
func (c *Coordinator) liveFetches(f *reservedFetch, tp id.TopicPartition) []Fetcher {
	if c.now < reportsBegin {
		return f.fetch
	}
	now := c.fetching(tp)
	return slices.DeleteFunc(slices.Clone(f.fetch), func(x Fetcher) bool { return !slices.ContainsFunc(now, x.is) })
}

func sortedPartitions[V any](m map[id.TopicPartition]V) []id.TopicPartition {
	keys := make([]id.TopicPartition, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b id.TopicPartition) int {
		return cmp.Or(strings.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return keys
}

// failedMember is a member that was refused a claim in this generation, or one that squats: its registration is gone, it is not, and it
// keeps its partitions.
type failedMember struct {
	memberID string
	at       time.Duration
	squats   bool
}

// ghostAfter is two back-offs of a JVM consumer (rebalance.backoff.ms): one that was silent for longer after a refusal has given up.
const ghostAfter = 4 * time.Second

func (c *Coordinator) claimFailed(g *legacyGroup, h *held) {
	if member, ok := c.v.MemberOf(h.session, g.name); ok {
		g.failed[h.session] = &failedMember{memberID: member, at: c.now}
	}
}

// turnGhosts expires the sessions of members that have given up: refused, without any partition, and silent for two back-offs after the
// generation closed. A JVM consumer then registers anew and has four fresh attempts (zk-paths.md 6.3, L5).
func (c *Coordinator) turnGhosts(g *legacyGroup) {
	switch {
	case len(g.failed) == 0:
		return
	case numberOf(g.row) == 0: // there are no generations whose partitions would be missing
		clear(g.failed)
		return
	case !g.row.Complete:
		return
	}
	for _, s := range slices.Sorted(maps.Keys(g.failed)) {
		f := g.failed[s]
		ses, alive := c.v.Session(s)
		_, registered := c.v.MemberOf(s, g.name)
		why := "a member gave up and owns nothing"
		if f.squats {
			why = "a member whose registration was deleted keeps its partitions"
		}
		switch {
		case f.squats && (registered || !alive || !c.v.GateOn(g.name, state.GateGhost) || !c.ownsAny(s, g.name)):
			delete(g.failed, s)
		case f.squats && f.at+ghostAfter <= c.now:
			c.expireGhost(g, s, f, ses, why)
		case f.squats:
			g.wake(f.at + ghostAfter)
		case !alive || len(g.missing) == 0 || !c.v.GateOn(g.name, state.GateGhost), c.ownsAny(s, g.name):
			delete(g.failed, s)
		case c.legacy.waiting[s] != nil:
			f.at = c.now
			g.wake(c.now + ghostAfter)
		case f.at+ghostAfter > c.now:
			g.wake(f.at + ghostAfter)
		default:
			c.expireGhost(g, s, f, ses, why)
		}
	}
}

func (c *Coordinator) expireGhost(g *legacyGroup, s id.SessionID, f *failedMember, ses *state.Session, why string) {
	delete(g.failed, s)
	c.do(Action{Note: &Note{"group: " + why + ": its session is expired so that it joins anew",
		[]any{"group", g.name, "member", f.memberID, "session", fmt.Sprintf("0x%x", uint64(s))}}})
	c.do(Action{Count: &Count{Gate: string(state.GateGhost)}})
	c.last++
	c.do(Action{Request: c.last, Propose: &statepb.Command{Body: &statepb.Command_ExpireSessions{ExpireSessions: &statepb.ExpireSessions{
		Sessions: []*statepb.CloseSession{{Session: int64(s), AttachEpoch: ses.AttachEpoch}}}}}})
}

// squats remembers a session that has partitions of a group and no registration in it: an operator may have deleted that. Old consumers
// never register again in the same session, and fail each rebalance from then on.
func (c *Coordinator) squats(g *legacyGroup, s id.SessionID, memberID string) {
	if _, registered := c.v.MemberOf(s, g.name); !registered && s != 0 && c.ownsAny(s, g.name) {
		g.failed[s] = &failedMember{memberID: clip(memberID), at: c.now, squats: true}
	}
}

// findSquatters looks for them at the start of a term.
func (c *Coordinator) findSquatters(g *legacyGroup) {
	c.v.GroupOwners(g.name, func(_, _ string, z *state.Znode) {
		c.squats(g, id.SessionID(z.Stat.EphemeralOwner), string(z.Data))
	})
}

// ownsAny reports whether a session has a partition of a group.
func (c *Coordinator) ownsAny(s id.SessionID, group string) bool {
	return slices.ContainsFunc(c.v.Ephemerals(s), func(path string) bool {
		p := state.ParsePath(path)
		return p.Kind == state.PathOwner && p.Group == group
	})
}

// ---- members that cannot agree ----

// family is who computes the same partitions from the same input. Readers of one family cannot even read what another one registers.
func family(d state.Dialect) string {
	switch d {
	case state.DialectPykafka, state.DialectWvanbergen:
		return d.String()
	}
	return "jvm"
}

// mixes tells why a registration cannot be beside the members that the group has: they are of another family, or of another kind and do
// not know how it computes. "": it can.
func (c *Coordinator) mixes(g *legacyGroup, h *held) string {
	if !h.reg.ok {
		return ""
	}
	if why := c.mixRefuseLegacy(g.name, h.memberID, h.reg.reg); why != "" {
		return why
	}
	if !c.v.GateOn(g.name, state.GateDialect) {
		return ""
	}
	c.look(g)
	mine, others := family(h.reg.reg.Dialect), len(g.want.members)
	others -= g.families[mine]
	if own := g.regs[h.memberID]; own.ok && family(own.reg.Dialect) != mine {
		others--
	}
	other := others > 0
	for _, a := range c.legacy.asked {
		if a.group == g.name && a.gate == "" && a.memberID != h.memberID && a.reg.ok && family(a.reg.reg.Dialect) != mine {
			other = true
		}
	}
	if other {
		return "the group has members of another library, which assign partitions otherwise"
	}
	return ""
}

// turnMixes lets members in when those that they do not agree with have left, and refuses them when the bound is over: old
// clients create again at once for ever, so only the hold paces them (zk-paths.md 6.8).
func (c *Coordinator) turnMixes(g *legacyGroup) {
	for _, h := range slices.Clone(g.mixes) {
		why := c.mixes(g, h)
		if why != "" && h.until > c.now {
			h.waited = true
			g.wake(h.until)
			continue
		}
		i := slices.Index(g.mixes, h)
		g.mixes = slices.Delete(g.mixes, i, i+1)
		if why == "" {
			c.stopWaiting(h)
			h.gate, h.until = "", c.now+joinBound
			c.proposeHeld(h)
			continue
		}
		c.explainRefused(g.name, h.memberID, why)
		c.letGo(g, h, &statepb.Result{Code: statepb.Code_NODE_EXISTS, Text: why})
	}
}

// countLate counts what was committed by members that had lost the partition: it was answered, and not applied.
func (c *Coordinator) countLate(res *statepb.Result) {
	for _, p := range res.Parts {
		if p.Code == statepb.Code_OFFSET_STALE {
			c.do(Action{Count: &Count{Gate: string(state.GateCommit)}})
		}
	}
}
