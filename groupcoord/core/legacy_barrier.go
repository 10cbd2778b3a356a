package core

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// wanted is what members would be shown if it was published now.
type wanted struct {
	members []string // ids whose registrations can be shown, ascending
	topics  []string // that they read, there or not, ascending
	all     bool     // a member has a pattern
	pool    []*statepb.PoolMember
	digest  string // of all that members compute with
}

// pattern is a member's expression; nil: it cannot be read here, so that it may mean any topic.
type pattern struct{ re *regexp.Regexp }

// compilePattern reads an expression as kafka.consumer.TopicFilter does.
func compilePattern(raw string) pattern {
	s := strings.ReplaceAll(strings.ReplaceAll(strings.TrimSpace(raw), ",", "|"), " ", "")
	s = strings.TrimRight(strings.TrimLeft(s, `"'`), `"'`)
	re, err := regexp.Compile(`^(?:` + s + `)$`)
	if err != nil {
		return pattern{}
	}
	return pattern{re}
}

func (p pattern) matches(topic string) bool { return p.re == nil || p.re.MatchString(topic) }

// barrierOn reports whether members of a group are shown generations. While they share with members of other kinds, they are: it is by the
// pool that they do.
func (c *Coordinator) barrierOn(g *legacyGroup) bool {
	return c.v.GateOn(g.name, state.GateBarrier) || c.plans.asked[g.name] != ""
}

// look takes in what the state says of a group: what is published, and what would be.
func (c *Coordinator) look(g *legacyGroup) {
	row, _ := c.v.Legacy(g.name)
	if numberOf(row) != g.number {
		c.beginGeneration(g, row)
		c.began(g)
	}
	g.row = row
	if !g.stale {
		return
	}
	g.stale = false
	before := g.want.digest
	c.desire(g)
	switch {
	case g.want.digest == g.digest:
		g.since, g.why, g.deaths = never, nil, false
	case g.since == never:
		g.since, g.last = c.now, c.now
	case g.want.digest != before && !(g.deaths && g.died == c.now):
		g.last = c.now
	}
}

// desire makes want from the raw tree.
func (c *Coordinator) desire(g *legacyGroup) {
	w := wanted{}
	seen := make(map[string]parsed, len(g.regs)+1)
	g.families = map[string]int{}
	topics := map[string]bool{}
	var patterns []state.Registration
	c.v.Members(g.name, func(memberID string, z *state.Znode) bool {
		old, ok := g.regs[memberID]
		p := c.registration(g, memberID, z)
		if p.ok && old.mzxid != p.mzxid && p.key != g.shownKey(memberID) && (!ok || p.key != old.key) {
			c.memberCame(g, memberID, p)
		}
		seen[memberID] = p
		if !p.ok {
			return true // it would fail the rebalances of all: nobody is shown it
		}
		w.members = append(w.members, memberID)
		g.families[family(p.reg.Dialect)]++
		if p.reg.Pattern != "static" {
			patterns = append(patterns, p.reg)
			return true
		}
		for _, t := range p.reg.Topics {
			topics[t.Topic] = true
		}
		return true
	})
	g.regs = seen
	clear(g.fresh)
	if w.all = len(patterns) > 0; w.all {
		c.v.Topics(func(t *state.Topic) bool {
			if !state.InternalTopic(t.Name) && slices.ContainsFunc(patterns, func(r state.Registration) bool { return g.selects(r, t.Name) }) {
				topics[t.Name] = true
			}
			return true
		})
	}
	w.topics = sorted(topics)
	w.pool = c.mixPool(g.name)
	g.want = w
	g.want.digest = c.wantedDigest(g)
}

// selects reports whether a registration with a pattern means a topic.
func (g *legacyGroup) selects(r state.Registration, topic string) bool {
	for _, t := range r.Topics {
		p, ok := g.pattern[t.Topic]
		if !ok {
			p = compilePattern(t.Topic)
			g.pattern[t.Topic] = p
		}
		if p.re == nil || p.matches(topic) == (r.Pattern != "black_list") {
			return true
		}
	}
	return false
}

func (c *Coordinator) wantedDigest(g *legacyGroup) string {
	var b strings.Builder
	for _, m := range g.want.members {
		b.WriteString(g.regs[m].line)
	}
	for _, p := range g.want.pool {
		b.WriteString(poolLine(p.Id, slices.Sorted(slices.Values(p.Topics))))
	}
	for _, name := range g.want.topics {
		st := state.ShownTopic{Name: name}
		if t, ok := c.v.Topic(name); ok {
			st.ID, st.Partitions = t.ID, t.Partitions
		}
		b.WriteString(topicLine(st))
	}
	if g.want.all {
		c.v.Topics(func(t *state.Topic) bool {
			if !state.InternalTopic(t.Name) {
				b.WriteString("+" + t.Name)
			}
			return true
		})
	}
	return b.String()
}

// memberCame and memberLeft remember what people will be told of the next generation.
func (c *Coordinator) memberCame(g *legacyGroup, memberID string, p parsed) {
	cause := "join"
	if g.row.Shows(memberID) != nil {
		cause = "registration"
		g.gone = !g.row.Complete // what it has to release others may wait for, and it for the next generation
	}
	g.because(cause, c.who(memberID, p.reg, p.owner)+map[string]string{"join": " joined", "registration": " registered anew"}[cause])
}

func (c *Coordinator) memberLeft(g *legacyGroup, memberID string, session id.SessionID) {
	if _, alive := c.v.Session(session); alive {
		g.because("leave", clip(memberID)+" left")
		c.squats(g, session, memberID)
	} else if reserved(g, c.v, session) {
		g.because("expired", fmt.Sprintf("the session of %s expired", clip(memberID)))
		g.deaths, g.died = true, c.now
	} else {
		g.because("leave", fmt.Sprintf("the session of %s ended", clip(memberID)))
	}
	if row, ok := c.v.Legacy(g.name); ok && !row.Complete && row.Shows(memberID) != nil {
		g.gone = true
	}
}

func reserved(g *legacyGroup, v *state.View, session id.SessionID) bool {
	row, ok := v.Legacy(g.name)
	return ok && slices.ContainsFunc(row.Reserved, func(r *state.Reservation) bool { return r.Session == session })
}

// maxReasons bounds what is told of one generation.
const maxReasons = 20

func (g *legacyGroup) because(cause, text string) {
	if len(g.why) < maxReasons {
		g.why = append(g.why, reason{cause, text})
	}
}

// poolChanged asks for a generation with another pool, for a reason that people are told.
func (c *Coordinator) poolChanged(group, cause, text string) {
	g := c.legacyGroup(group)
	g.stale = true
	g.because(cause, text)
	c.legacyTurn(g)
}

// ---- joins ----

// joinLegacy lets a registration into the raw tree; joinSettled then holds its reply.
func (c *Coordinator) joinLegacy(g *legacyGroup, h *held) {
	if c.mixes(g, h) != "" {
		h.gate, h.until = state.GateDialect, h.since+completeWithin
		c.hold(&g.mixes, h)
		c.legacyTurn(g)
		return
	}
	c.proposeHeld(h)
}

func (c *Coordinator) joinSettled(g *legacyGroup, h *held, res *statepb.Result) {
	if res.Code == statepb.Code_NODE_EXISTS {
		// A repeated create by the same session joins the pending one.
		if own, ok := c.joinStands(h); ok && (h.req.Repeat || !c.isShown(g, h)) {
			res = own
		}
	}
	if res.Code != statepb.Code_OK {
		c.do(Action{Request: h.req.ID, Reply: res})
		return
	}
	h.result, h.gate = res, state.GateBarrier
	c.hold(&g.joins, h)
}

// isShown reports whether the generation has a member's registration as it is now.
func (c *Coordinator) isShown(g *legacyGroup, h *held) bool {
	z, ok := c.v.Znode("/consumers/" + g.name + "/ids/" + h.memberID)
	if !ok || id.SessionID(z.Stat.EphemeralOwner) != h.session || !c.barrierOn(g) {
		return true // it is gone, nobody's that waits here, or nobody is shown generations
	}
	p := c.registration(g, h.memberID, z)
	if !p.ok {
		return true // it never will be
	}
	return g.row != nil && !g.row.Withdrawn && g.shownKey(h.memberID) == p.key
}

func (c *Coordinator) turnJoins(g *legacyGroup) {
	g.joins = slices.DeleteFunc(g.joins, func(h *held) bool {
		if !g.looksAt(h, &c.legacy.work) || !c.isShown(g, h) {
			h.waited = true
			g.wake(h.until)
			return false
		}
		c.letGo(g, h, h.result)
		return true
	})
}

// ---- publishing ----

func (c *Coordinator) turnPublish(g *legacyGroup) {
	on := c.barrierOn(g)
	shown := g.row != nil && g.row.Number > 0 && !g.row.Withdrawn
	switch {
	case g.putting != 0:
		return
	case g.retryAt != never && g.retryAt > c.now:
		g.wake(g.retryAt)
		return
	case !on && (!shown || g.since == never): // what members do not know yet they are told first
		if shown {
			c.publish(g, true)
		}
		return
	case g.since == never:
		return
	}
	at := c.settlesAt(g)
	waits := g.row != nil && g.row.Number > 0 && !g.row.Complete && !g.row.Withdrawn
	if waits {
		at = never // turnCompletion comes first; but nobody waits for ever
	}
	overdue := false
	for _, h := range g.joins { // the first to come here need not have waited longest
		at = min(at, h.until)
		overdue = overdue || h.until <= c.now
	}
	if at > c.now {
		g.wake(at)
		return
	}
	if !overdue && !c.mixMay(g.name) {
		return
	}
	c.publish(g, false)
}

// settlesAt is when the settle window is over if nothing more happens. Those who died together end one by one, each when its last
// ping is a session timeout old: they are waited for, and nobody else.
func (c *Coordinator) settlesAt(g *legacyGroup) time.Duration {
	at := g.last + settleAfter
	if len(g.joins) > 0 && g.publishAt != never && g.since-g.publishAt < settleAtMost {
		at = g.last + settleInBurst
		if len(g.joins) > 1 {
			at = g.last + settleInStream
		}
	}
	switch {
	case !g.deaths:
	case c.cfg.Silence == nil:
		at = max(at, g.died+settleDeaths)
	case c.dying(g):
		at = max(at, c.now+silenceBeat)
	}
	return min(at, g.since+settleAtMost)
}

// dying reports whether members' sessions are about to end: clients that live are heard of every third of their timeout.
func (c *Coordinator) dying(g *legacyGroup) bool {
	for _, p := range g.regs {
		s, ok := c.v.Session(id.SessionID(p.owner))
		if ok && c.cfg.Silence(s.ID) > time.Duration(s.TimeoutMs)*time.Millisecond/2 {
			return true
		}
	}
	return false
}

func (c *Coordinator) publish(g *legacyGroup, withdraw bool) {
	g.retryAt = never
	number := int32(1)
	if g.row != nil {
		number = g.row.Number + 1
	}
	r := c.explanation(g, withdraw)
	cmd := &statepb.PublishGeneration{Group: g.name, Generation: number, Withdraw: withdraw, Rebalance: r}
	if head, ok := c.v.Group(g.name); ok && len(head.Members) > 0 {
		cmd.GroupVersion = head.Version // nobody was given anything since mixMay was asked
	}
	cmd.Strategy = c.mixStrategy(g.name)
	if !withdraw {
		cmd.Members, cmd.Pool, cmd.Topics, cmd.AllTopics = g.want.members, g.want.pool, g.want.topics, g.want.all
	}
	c.putLegacy(g, &statepb.Command{Body: &statepb.Command_PublishGeneration{PublishGeneration: cmd}})
}

// explanation is why a generation is published: the first change that is not a mere consequence.
func (c *Coordinator) explanation(g *legacyGroup, withdraw bool) *statepb.Rebalance {
	r := &statepb.Rebalance{Cause: "topics", Text: "topics of the group were created, deleted or given more partitions", Kind: state.KindLegacy}
	if g.row != nil {
		real := slices.DeleteFunc(slices.Clone(g.row.Members), func(m *state.Shown) bool { return m.Pool })
		if !slices.EqualFunc(g.want.members, real, func(id string, m *state.Shown) bool { return id == m.ID }) {
			r.Cause, r.Text = "failover", "members came or went while there was no coordinator"
		}
	}
	var texts []string
	for i, w := range g.why {
		if i == 0 {
			r.Cause = w.cause
		}
		texts = append(texts, w.text)
	}
	if len(texts) > 0 {
		r.Text = strings.Join(texts, "; ")
	}
	if len(g.why) == maxReasons {
		r.Text += "; and more"
	}
	if withdraw {
		r.Cause, r.Text = "gate", "the barrier was switched off: members see the raw tree"
	} else if g.since != never {
		r.WaitedMs = (c.now - g.since).Milliseconds()
	}
	return r
}

// ---- completion ----

func numberOf(row *state.Legacy) int32 {
	if row == nil {
		return 0
	}
	return row.Number
}

// beginGeneration starts to count what a generation's members claim.
func (c *Coordinator) beginGeneration(g *legacyGroup, row *state.Legacy) {
	g.row, g.number = row, numberOf(row)
	g.missing, g.gone, g.began, g.claimedAt, g.claimedBy = nil, false, c.now, c.now, ""
	maps.DeleteFunc(g.failed, func(_ id.SessionID, f *failedMember) bool { return !f.squats })
	clear(g.budget)
	c.readPublished(g, row)
	g.digest, g.shown, g.read = c.shownDigest(g), nil, map[string]bool{}
	if g.number == 0 || row.Withdrawn {
		return
	}
	for _, m := range row.Members {
		if p := g.published[m.ID]; p.ok && !m.Pool {
			g.shown = append(g.shown, p.reg)
		}
	}
	g.missing = map[id.TopicPartition]struct{}{}
	c.countMissing(g)
}

// countMissing finds out what is not claimed in the generation.
func (c *Coordinator) countMissing(g *legacyGroup) {
	if g.missing == nil {
		return
	}
	clear(g.missing)
	for _, t := range g.row.Topics {
		if !c.isRead(g, t.Name) {
			continue
		}
		for p := range t.Partitions {
			if tp := (id.TopicPartition{Topic: t.Name, Partition: p}); !c.isClaimed(g, tp) {
				g.missing[tp] = struct{}{}
			}
		}
	}
}

// began tells of a generation that was published in this term.
func (c *Coordinator) began(g *legacyGroup) {
	g.why, g.deaths = nil, false
	g.stale = true
	g.publishAt = c.now
	if g.number == 0 {
		return
	}
	c.do(Action{Count: &Count{Kind: state.KindLegacy, Reason: c.lastCause(g)}, Note: c.publishedNote(g)})
}

// isRead reports whether a shown member of the generation reads a topic.
func (c *Coordinator) isRead(g *legacyGroup, topic string) bool {
	read, known := g.read[topic]
	if !known {
		read = slices.ContainsFunc(g.shown, func(reg state.Registration) bool {
			if reg.Pattern != "static" {
				return g.selects(reg, topic)
			}
			return slices.ContainsFunc(reg.Topics, func(t state.Subscription) bool { return t.Topic == topic && t.Threads > 0 })
		})
		g.read[topic] = read
	}
	return read
}

// isClaimed reports whether a partition has the owner that the generation gives it. All but pykafka release everything and
// claim anew; pykafka's members keep what stays theirs, and anybody can compute what that is.
func (c *Coordinator) isClaimed(g *legacyGroup, tp id.TopicPartition) bool {
	if c.mixTheirs(g.name, tp.Topic, tp.Partition) {
		return true
	}
	_, _, z := c.v.OwnerOf(g.name, tp.Topic, tp.Partition)
	if z == nil {
		return false
	}
	if z.Dialect == state.DialectPykafka {
		return string(z.Data) == c.pykafkaOwner(g, tp)
	}
	return z.Stat.Czxid > g.row.Zxid
}

// pykafkaOwner is who owns a partition by pykafka's rule: range over the members' ids, with the partitions in the order of the text
// "<topic>-<leader>-<partition>" (zk-paths.md 3.1).
func (c *Coordinator) pykafkaOwner(g *legacyGroup, tp id.TopicPartition) string {
	var ids, parts []string
	for _, m := range g.row.Members {
		if string(m.Node.Data) == tp.Topic {
			ids = append(ids, m.ID)
		}
	}
	t, _ := g.row.Topic(tp.Topic)
	mine := ""
	c.v.Partitions(tp.Topic, func(n int32, p *state.Partition) bool {
		if n >= t.Partitions {
			return false
		}
		text := fmt.Sprintf("%s-%d-%d", tp.Topic, p.Leader, n)
		if parts = append(parts, text); n == tp.Partition {
			mine = text
		}
		return true
	})
	if len(ids) == 0 {
		return ""
	}
	slices.Sort(ids)
	slices.Sort(parts)
	at := slices.Index(parts, mine)
	q, r := len(parts)/len(ids), len(parts)%len(ids)
	for i, memberID := range ids {
		if at < q*(i+1)+min(i+1, r) {
			return memberID
		}
	}
	return ""
}

// ownerChanged keeps count of the claims.
func (c *Coordinator) ownerChanged(g *legacyGroup, p state.Path, kind state.ChangeKind) {
	number := p.Name[strings.LastIndexByte(p.Name, '-')+1:]
	n, ok := state.ParsePartition(number)
	if !ok {
		return
	}
	tp := id.TopicPartition{Topic: state.OwnersTopic(p.Topic), Partition: n}
	for _, h := range g.claims {
		h.check = h.check || h.partition == n && state.OwnersTopic(h.topic) == tp.Topic
	}
	g.dueFor(tp.Topic, n)
	if z, ok := c.v.Owner(g.name, p.Topic, p.Name); ok && kind == state.ZnodeCreated {
		g.owned[tp] = ownedSince{z.Stat.Czxid, c.now}
	}
	if g.fetchers[tp] != nil {
		g.fenceAt = c.now // connections of the one before are cut off at once
	}
	row, ok := c.v.Legacy(g.name)
	if !ok || g.row == nil || row.Number != g.number || g.missing == nil {
		return
	}
	if t, ok := row.Topic(tp.Topic); !ok || n >= t.Partitions {
		return
	}
	g.row = row
	switch {
	case !c.isClaimed(g, tp):
		if c.isRead(g, tp.Topic) {
			g.missing[tp] = struct{}{}
		}
	default:
		delete(g.missing, tp)
		if z, ok := c.v.Owner(g.name, p.Topic, p.Name); ok && kind == state.ZnodeCreated {
			g.claimedBy, g.claimedAt = clip(string(z.Data)), c.now
		}
	}
}

func (c *Coordinator) turnCompletion(g *legacyGroup) {
	if g.row == nil || g.row.Number == 0 || g.row.Complete || g.row.Withdrawn || g.putting != 0 || g.retryAt != never && g.retryAt > c.now {
		return
	}
	waited, why := c.now-g.began, g.claimedBy
	switch {
	case len(g.missing) == 0:
	case g.gone && c.now >= g.claimedAt+completeDeaths:
		why = "a member that died, left or registered anew"
	case waited >= completeWithin:
		why = g.firstMissing()
	default:
		g.wake(g.began + completeWithin)
		if tells := g.claimedAt + waitedClaim; tells > c.now && c.plans.asked[g.name] != "" {
			g.wake(tells)
		}
		if g.gone {
			g.wake(g.claimedAt + completeDeaths)
		}
		return
	}
	g.retryAt = never
	c.putLegacy(g, &statepb.Command{Body: &statepb.Command_CompleteGeneration{CompleteGeneration: &statepb.CompleteGeneration{
		Group: g.name, Generation: g.row.Number,
		Rebalance: &statepb.Rebalance{WaitedMs: waited.Milliseconds(), WaitedFor: why, Holds: g.holds()}}}})
}

// firstMissing names what was still not claimed when the cap passed.
func (g *legacyGroup) firstMissing() string {
	first := id.TopicPartition{}
	for tp := range g.missing {
		if first.Topic == "" || tp.Topic < first.Topic || tp.Topic == first.Topic && tp.Partition < first.Partition {
			first = tp
		}
	}
	return fmt.Sprintf("nobody claimed %s-%d, nor %d more", first.Topic, first.Partition, len(g.missing)-1)
}

// holds sums up the gates that a generation used.
func (g *legacyGroup) holds() []string {
	var out []string
	for gate, u := range g.used {
		out = append(out, fmt.Sprintf("%s %dx, %d ms", gate, u.n, u.total.Milliseconds()))
	}
	slices.Sort(out)
	clear(g.used)
	return out
}

func (c *Coordinator) lastCause(g *legacyGroup) string {
	if r := c.lastRecord(g); r != nil {
		return r.Cause
	}
	return "unknown"
}

func (c *Coordinator) lastRecord(g *legacyGroup) *state.Rebalance {
	head, ok := c.v.Group(g.name)
	if !ok {
		return nil
	}
	for i := len(head.Rebalances) - 1; i >= 0; i-- {
		if r := head.Rebalances[i]; r.Kind == state.KindLegacy && r.Generation == g.row.Number {
			return r
		}
	}
	return nil
}

func (c *Coordinator) publishedNote(g *legacyGroup) *Note {
	r := c.lastRecord(g)
	if r == nil {
		return nil
	}
	return &Note{"group: rebalance of znode consumers", []any{"group", g.name, "generation", r.Generation, "cause", r.Cause, "why", r.Text,
		"before", r.Before, "after", r.After, "settled", time.Duration(r.WaitedMs) * time.Millisecond, "joins", len(g.joins)}}
}
