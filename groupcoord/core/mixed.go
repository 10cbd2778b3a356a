package core

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// Mixed groups: consumers by ZooKeeper and members by Kafka's protocols (JoinGroup, ConsumerGroupHeartbeat) in one group. Binding:
// groups.md, "Mixed groups".
//
// There is no third engine. The barrier shows the znode consumers, beside their own registrations, a pool that stands for the other
// members; they compute their shares as ever and leave the pool its block. The engine of consumer groups (Hooks) divides the block. A
// change goes in three steps, each of which follows from the state:
//
//	give up   what would be shown next has another block: the engine plans over that one (Universe), so members give up what is not in it
//	publish   when no member by Kafka's protocol has anything outside of the next block (May)
//	receive   what is in the published block and no znode consumer owns any more is given (Free)
//
// So this file keeps nothing but what it computed last. That a partition has one owner does not rest on it: the state refuses a claim
// of what a member holds and a put that gives what an owner znode or a reservation keeps.

// mix is what a group with znode consumers comes to, computed from one state of it.
type mix struct {
	of     mixKey
	modern map[string]int
	view   *state.View // that it was last found to hold in, at that time, unless a draft was being made
	at     time.Duration

	// why tells why members of other kinds cannot be in the group; "": they can.
	why      string
	strategy strategy
	pool     []planMember
	now      layout // as published
	next     layout // as it would be published now
}

// mixKey is equal while nothing has changed that a mix is computed from.
type mixKey struct {
	group  *state.Group
	legacy *state.Legacy
	topics uint64
	claims int    // that have waited for a while
	told   bool   // those that were granted in a generation that is not complete tell too
	modern string // how many members by Kafka's protocols read each topic, those that are just joining included
	off    bool
}

// layout is how a view of the znode consumers parts the partitions.
type layout struct {
	all    bool                      // nobody can tell which topics they read: it may be any
	reads  map[string]bool           // topics
	blocks map[string]map[int32]bool // of reads: what they leave
}

// may reports whether a partition is not the znode consumers' by this layout.
func (l *layout) may(topic string, partition int32) bool {
	return !l.all && (!l.reads[topic] || l.blocks[topic][partition])
}

// mixes is the memory of mixed groups in this term.
type mixes struct {
	groups map[string]*mix
	asked  map[string]string        // the pool that was asked for, by group
	told   map[string]time.Duration // refusals that were explained, by group and member
}

func newMixes() mixes {
	return mixes{groups: map[string]*mix{}, asked: map[string]string{}, told: map[string]time.Duration{}}
}

// mixHooks joins the engine of consumer groups to the pool. Hooks of a test stay.
func (c *Coordinator) mixHooks() {
	if c.hooks.Universe == nil {
		c.hooks = Hooks{Universe: c.mixUniverse, Free: c.mixFree, Refuse: c.mixRefuse, Mixed: c.mixAssigns}
	}
}

// hasLegacy reports whether a group has znode consumers, live or still shown, or what they have left behind.
func (c *Coordinator) hasLegacy(v *state.View, group string) bool {
	if legacy(v, group) {
		return true
	}
	row, ok := v.Legacy(group)
	return ok && (len(row.Reserved) > 0 || !row.Withdrawn && slices.ContainsFunc(row.Members, func(m *state.Shown) bool { return !m.Pool }))
}

// ---- what a group comes to ----

// waitedClaim is from when on a held claim tells how its member computes. Before, it may come from the view before.
const waitedClaim = time.Second

func (c *Coordinator) mixOf(group string) *mix {
	m, g := c.plans.groups[group], c.groups[group]
	settled := g == nil || g.draft == nil
	if m != nil && settled && m.view == c.v && m.at == c.now {
		return m
	}
	modern := c.modernReaders(group)
	if key := c.mixKeyOf(group, modern); m == nil || m.of != key {
		m = &mix{of: key, modern: modern}
		m.compute(c, group)
		c.plans.groups[group] = m
	}
	if m.view, m.at = nil, c.now; settled {
		m.view = c.v
	}
	return m
}

// modernReaders counts the members by Kafka's protocols by the topics that they read.
func (c *Coordinator) modernReaders(group string) map[string]int {
	readers := map[string]int{}
	if row, ok := c.v.Group(group); c.groups[group] == nil && (!ok || len(row.Members) == 0) {
		return readers
	}
	g := c.group(group)
	for _, o := range g.members() {
		if o.Consumer != nil {
			for _, t := range c.reads(g, o.Consumer) {
				readers[c.topicName(t)]++
			}
		}
	}
	return readers
}

func (c *Coordinator) mixKeyOf(group string, modern map[string]int) mixKey {
	k := mixKey{off: !c.v.GateOn(group, state.GateBarrier), modern: fmt.Sprint(modern)}
	k.group, _ = c.v.Group(group)
	k.legacy, _ = c.v.Legacy(group)
	h := fnv.New64a()
	c.v.Topics(func(t *state.Topic) bool {
		_, _ = h.Write(t.ID[:])
		_, _ = h.Write([]byte{byte(t.Partitions), byte(t.Partitions >> 8), byte(t.Partitions >> 16), byte(t.Partitions >> 24)})
		return true
	})
	k.topics = h.Sum64()
	if g := c.legacy.groups[group]; g != nil {
		for _, h := range g.claims {
			if h.since+waitedClaim <= c.now {
				k.claims++
			}
		}
		k.told = c.claimsTell(g)
	}
	return k
}

func (m *mix) compute(c *Coordinator, group string) {
	row := m.of.legacy
	shown := row != nil && row.Number > 0 && !row.Withdrawn && len(row.Members) > 0
	var names []string
	counts := map[string][]int32{}
	c.v.Topics(func(t *state.Topic) bool {
		if !state.InternalTopic(t.Name) {
			names = append(names, t.Name)
			counts[t.Name] = numbers(t.Partitions)
		}
		return true
	})
	var raw []registered
	c.v.Members(group, func(memberID string, z *state.Znode) bool {
		if p := c.registrationIn(group, memberID, z); p.ok { // others are never shown
			raw = append(raw, registered{memberID, p.reg})
		}
		return true
	})
	var err error
	if shown {
		err = m.computeNow(c, group, names)
	} else if row != nil {
		m.strategy = strategy(row.Strategy)
	}
	err = errors.Join(err, m.computeNext(c, group, raw, names, counts))
	switch {
	case err != nil:
		m.why, _, _ = strings.Cut(err.Error(), "\n")
	case m.of.off && len(raw) > 0:
		m.why = fmt.Sprintf("the group's gate %q is off: its consumers by ZooKeeper cannot be shown a pool", state.GateBarrier)
	}
}

func numbers(n int32) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(i)
	}
	return out
}

// computeNow is what the published generation comes to, and by which strategy.
func (m *mix) computeNow(c *Coordinator, group string, names []string) error {
	row := m.of.legacy
	var all []registered
	for _, s := range row.Members {
		if p := c.shownIn(group, s); p.ok {
			all = append(all, registered{s.ID, p.reg})
		}
	}
	if row.AllTopics {
		names = row.All
	}
	counts := map[string][]int32{}
	for _, t := range row.Topics {
		counts[t.Name] = numbers(t.Partitions)
	}
	members, err := c.planShown(group, all, names)
	if err != nil {
		m.now = unknownLayout(all)
		return err
	}
	granted, waiting := c.claimsIn(group, row)
	var fits bool
	m.strategy, fits = strategy(row.Strategy).learn(members, counts, append(granted, waiting...))
	if !fits && !row.Complete { // some of what was granted may come from the view before
		m.strategy, fits = strategy(row.Strategy).learn(members, counts, waiting)
	}
	if !fits {
		err = fmt.Errorf("what its consumers by ZooKeeper claim is neither range nor roundrobin, of any release, over one list of members")
	}
	m.now = layoutOf(m.strategy, group, members, counts)
	return err
}

// planShown counts shown members: kafka-node counts its own and the pool's ids, the JVM threads.
func (c *Coordinator) planShown(group string, all []registered, names []string) ([]planMember, error) {
	real := slices.DeleteFunc(slices.Clone(all), func(r registered) bool { return isPool(group, r.id) })
	members, err := planMembersOf(real, names)
	if err != nil {
		return nil, err
	}
	pooled, err := planMembersOf(slices.DeleteFunc(all, func(r registered) bool { return !isPool(group, r.id) }), names)
	return append(members, pooled...), err
}

// unknownLayout has all topics that the members name be theirs; all of them if one has a pattern.
func unknownLayout(all []registered) layout {
	l := layout{reads: map[string]bool{}}
	for _, r := range all {
		l.all = l.all || r.reg.Pattern != "static"
		for _, t := range r.reg.Topics {
			l.reads[t.Topic] = true
		}
	}
	return l
}

func layoutOf(s strategy, group string, members []planMember, counts map[string][]int32) layout {
	l := layout{reads: map[string]bool{}, blocks: map[string]map[int32]bool{}}
	for _, m := range members {
		for topic := range m.streams {
			l.reads[topic] = l.reads[topic] || !isPool(group, m.id)
		}
	}
	all, err := s.share(members, counts)
	if err != nil {
		return l // everything is theirs
	}
	for topic := range l.reads {
		l.blocks[topic] = map[int32]bool{}
		for _, n := range all.of(topic, func(thread string) bool { return isPool(group, thread) }) {
			l.blocks[topic][n] = true
		}
	}
	return l
}

// claimsTell reports whether what was claimed in a generation that is being claimed still tells how its members compute: nothing was for a
// while.
func (c *Coordinator) claimsTell(g *legacyGroup) bool {
	return g.row != nil && !g.row.Complete && g.claimedBy != "" && g.claimedAt+waitedClaim <= c.now
}

// claimsIn are the claims that tell how members compute: those that were granted in a generation that is complete, or in which nobody has
// claimed for a while, and those that have waited long.
func (c *Coordinator) claimsIn(group string, row *state.Legacy) (granted, waiting []claimed) {
	g := c.legacy.groups[group]
	if row.Complete || g != nil && g.number == row.Number && c.claimsTell(g) {
		c.v.GroupOwners(group, func(topic, name string, z *state.Znode) {
			if n, ok := state.ParsePartition(name); ok && z.Stat.Czxid > row.Zxid {
				granted = append(granted, claimed{topic, n, string(z.Data)})
			}
		})
	}
	if g != nil {
		for _, h := range g.claims {
			if h.since+waitedClaim <= c.now && h.partition >= 0 {
				waiting = append(waiting, claimed{h.topic, h.partition, string(h.req.Command.GetClaimOwner().GetData())})
			}
		}
	}
	return granted, waiting
}

// computeNext is what the registrations come to with the pool that the other members need.
func (m *mix) computeNext(c *Coordinator, group string, raw []registered, names []string, counts map[string][]int32) error {
	members, err := planMembersOf(raw, names)
	if err != nil {
		m.next = unknownLayout(raw)
		return err
	}
	if slices.ContainsFunc(members, func(p planMember) bool { return p.bare }) {
		m.strategy = strategyRange
	}
	sizes, err := poolSizes(m.strategy, members, counts, m.modern)
	if err == nil {
		m.pool = pool(group, sizes)
	}
	m.next = layoutOf(m.strategy, group, append(slices.Clone(members), m.pool...), counts)
	return err
}

// ---- hooks of the engine of consumer groups ----

func (c *Coordinator) mixUniverse(v *state.View, group string, t *state.Topic) []int32 {
	all := numbers(t.Partitions)
	if !c.hasLegacy(v, group) {
		return all
	}
	m := c.mixOf(group)
	return slices.DeleteFunc(all, func(n int32) bool { return !m.next.may(t.Name, n) })
}

func (c *Coordinator) mixFree(v *state.View, group string, t id.TopicID, partition int32) bool {
	topic := c.topicName(t)
	if g := c.legacy.groups[group]; g != nil && len(c.unfenced(g, id.TopicPartition{Topic: topic, Partition: partition}, "")) > 0 {
		return false
	}
	if !c.hasLegacy(v, group) && !c.zooKeeperOwners(group) {
		return true
	}
	if _, owned := v.Owner(group, topic, strconv.Itoa(int(partition))); owned {
		return false
	}
	row, _ := v.Legacy(group)
	if row.Reservation(topic, partition) != nil {
		return false
	}
	m := c.mixOf(group)
	return m.now.may(topic, partition) && m.next.may(topic, partition)
}

// zooKeeperOwners reports whether there are owner znodes that nobody's registration speaks for, a tool's for example.
func (c *Coordinator) zooKeeperOwners(group string) bool {
	z, ok := c.v.Znode("/consumers/" + group + "/owners")
	return ok && z.Stat.Children > 0
}

// mixRefuse tells why the first member by Kafka's protocols is not let into a group. Once there are some, it is the znode consumers that
// do not fit.
func (c *Coordinator) mixRefuse(v *state.View, group string) string {
	if row, ok := v.Group(group); ok && len(row.Members) > 0 || !c.hasLegacy(v, group) {
		return ""
	}
	return c.mixOf(group).why
}

// mixAssigns reports whether the coordinator assigns a group for the sake of its znode consumers.
func (c *Coordinator) mixAssigns(v *state.View, group string) bool {
	if !c.hasLegacy(v, group) {
		return false
	}
	row, ok := v.Group(group)
	return ok && row.Consumer && len(row.Members) > 0 || c.mixOf(group).why == ""
}

// ---- what the barrier asks ----

// mixPool is which registrations stand for modern members in the next generation.
func (c *Coordinator) mixPool(group string) []*statepb.PoolMember {
	if !legacy(c.v, group) {
		return nil
	}
	var out []*statepb.PoolMember
	if len(c.modernReaders(group)) == 0 {
		return nil
	}
	for _, p := range c.mixOf(group).pool {
		out = append(out, &statepb.PoolMember{Id: p.id, Topics: sorted(p.streams)})
	}
	return out
}

// mixStrategy is how the members are expected to share partitions out: Legacy.Strategy of the next generation.
func (c *Coordinator) mixStrategy(group string) int32 { return int32(c.mixOf(group).strategy) }

// mixMay lets a generation be published when the other members have given up what leaves their block, or have not within the bound of a
// held join: then claims of what they keep wait for them one by one.
func (c *Coordinator) mixMay(group string) bool {
	row, ok := c.v.Group(group)
	if !ok || len(row.Members) == 0 {
		return true
	}
	if row.Consumer && !c.keeps(row, &c.mixOf(group).next) {
		return true
	}
	g := c.legacyGroup(group)
	if g.since == never || c.now >= g.since+joinBound {
		return true
	}
	g.wake(g.since + joinBound)
	return false
}

// keeps reports whether a member holds a partition that a layout gives to znode consumers.
func (c *Coordinator) keeps(row *state.Group, l *layout) bool {
	for _, m := range row.Members {
		if m.Consumer == nil {
			return true
		}
		kept := false
		look := func(p partition, _ int32) {
			if t := c.topicName(p.topic); t != "" && !l.may(t, p.n) {
				kept = true
			}
		}
		parts(m.Consumer.Assigned).each(look)
		parts(m.Consumer.Revoking).each(look)
		if kept {
			return true
		}
	}
	return false
}

// mixTheirs reports whether a partition is in the modern members' block of the published generation.
func (c *Coordinator) mixTheirs(group, topic string, partition int32) bool {
	row, ok := c.v.Legacy(group)
	if !ok || !slices.ContainsFunc(row.Members, func(m *state.Shown) bool { return m.Pool }) {
		return false // asked for each partition: without a pool there is nothing to compute
	}
	return c.mixOf(group).now.blocks[topic][partition]
}

// mixHeld reports whether a modern member still has a partition.
func (c *Coordinator) mixHeld(group, topic string, partition int32) bool {
	row, ok := c.v.Group(group)
	if !ok || len(row.Members) == 0 {
		return false
	}
	if !row.Consumer {
		return true
	}
	t, ok := c.v.Topic(topic)
	return ok && c.Held(group, t.ID, partition)
}

// mixRefuseLegacy tells why a znode consumer cannot be let into a group that has members of other kinds; "": it can.
func (c *Coordinator) mixRefuseLegacy(group, memberID string, reg state.Registration) string {
	g, row := c.groups[group], (*state.Group)(nil)
	if row, _ = c.v.Group(group); (row == nil || len(row.Members) == 0) && (g == nil || !g.joining()) {
		return ""
	}
	all := []registered{{memberID, reg}}
	c.v.Members(group, func(other string, z *state.Znode) bool {
		if p := c.registrationIn(group, other, z); p.ok && other != memberID {
			all = append(all, registered{other, p.reg})
		}
		return true
	})
	if _, err := planMembersOf(all, nil); err != nil {
		return "the group has members by Kafka's protocol, and " + err.Error()
	}
	g = c.group(group)
	switch {
	case len(g.members())+len(g.joins) == 0: // consumer members are on their way in
		return ""
	case g.modern():
		if !c.v.GateOn(group, state.GateBarrier) {
			return fmt.Sprintf("the group has members by Kafka's protocol, and its gate %q is off", state.GateBarrier)
		}
		return ""
	case g.protocolType() != "consumer":
		return fmt.Sprintf("the group has members of the protocol %q", clip(g.protocolType()))
	}
	if e, why := c.refuseUpgrade(g); e != nil {
		return why
	}
	return ""
}

// ---- a group's turn ----

// loadMixes looks at every group at the start of the term.
func (c *Coordinator) loadMixes() {
	c.v.Groups(func(row *state.Group) bool {
		c.mixTurn(row.Name)
		return true
	})
}

// mixChanged follows the state, after both engines have.
func (c *Coordinator) mixChanged(changes []state.Change) {
	touched, all := map[string]bool{}, false
	for i := range changes {
		switch ch := &changes[i]; ch.Kind {
		case state.ZnodeCreated, state.ZnodeDeleted, state.ZnodeData:
			if strings.HasPrefix(ch.Path, "/consumers/") {
				if p := state.ParsePath(ch.Path); p.Kind == state.PathMember || p.Kind == state.PathOwner {
					touched[p.Group] = true
				}
			}
		case state.GroupChanged, state.GenerationShown:
			touched[ch.Group] = true
		case state.TopicCreated, state.TopicDeleted, state.TopicGrown, state.ConfigCreated, state.ConfigData, state.ConfigDeleted:
			all = true
		}
	}
	if all {
		for group := range c.plans.groups {
			touched[group] = true
		}
	}
	for _, group := range sorted(touched) {
		c.mixTurn(group)
	}
}

// expireMixes looks at groups whose members claim: after a while their claims tell how they compute.
func (c *Coordinator) expireMixes() {
	for _, group := range sorted(c.plans.groups) {
		if g := c.legacy.groups[group]; g != nil && (len(g.claims) > 0 || c.claimsTell(g)) {
			c.mixTurn(group)
		}
	}
}

// mixTurn has both engines look at a group that has members of both kinds.
func (c *Coordinator) mixTurn(group string) {
	row, ok := c.v.Group(group)
	if !ok || !c.hasLegacy(c.v, group) {
		if _, was := c.plans.groups[group]; !was {
			return
		}
		delete(c.plans.groups, group)
		delete(c.plans.asked, group)
		if g := c.legacy.groups[group]; g != nil {
			g.all = true // whether the barrier is on may rest on it
		}
		if ok && row.Consumer && len(row.Members) > 0 {
			c.Replan(group, "legacy", "the last consumer by ZooKeeper has gone")
		}
		return
	}
	if len(row.Members) == 0 && c.plans.asked[group] == "" {
		return // of znode consumers alone: computed when somebody asks, not with each claim
	}
	m := c.mixOf(group)
	if g := c.legacy.groups[group]; g != nil && g.mixed != m { // what nobody needs to claim may be another block
		g.mixed = m
		c.countMissing(g)
		c.legacyTurn(g)
	}
	if len(row.Members) > 0 && !row.Consumer {
		if row.ProtocolType == "consumer" && m.why == "" {
			c.takeOver(group)
		}
		return
	}
	if asked := digestPool(m.pool); asked != c.plans.asked[group] {
		c.plans.asked[group] = asked
		if g := c.legacy.groups[group]; g != nil {
			g.all = true
			if legacy(c.v, group) {
				c.poolChanged(group, "members", poolText(m.pool, len(row.Members)))
			}
		}
	}
	if row.Consumer && len(row.Members) > 0 {
		c.Replan(group, "legacy", "the share of the consumers by ZooKeeper changes")
	}
}

func digestPool(pool []planMember) string {
	var b strings.Builder
	for _, p := range pool {
		fmt.Fprintf(&b, "%s %q\n", p.id, sorted(p.streams))
	}
	return b.String()
}

func poolText(pool []planMember, members int) string {
	switch {
	case len(pool) == 0:
		return "no topic is read by members of both kinds any more"
	case members == 1 && len(pool) == 1:
		return "the member by Kafka's protocol counts as a thread"
	}
	return fmt.Sprintf("members by Kafka's protocol: %d, which count as %d threads", members, len(pool))
}

// takeOver makes a group whose leader assigns one that the coordinator assigns, for a znode consumer has come.
func (c *Coordinator) takeOver(group string) {
	g := c.group(group)
	if c.busy(g) {
		return // it is looked at again when the put stands
	}
	if e, why := c.refuseUpgrade(g); e != nil { // it was let in before the others came
		c.explainRefused(group, "a consumer by ZooKeeper", why)
		return
	}
	c.upgrade(g, "a consumer by ZooKeeper joined")
	g.replan("legacy", "a consumer by ZooKeeper joined: the coordinator assigns the group's partitions")
	c.step(g)
	c.markAll(g)
}

// ---- refusals ----

// explainAgain is how often the same refusal is told.
const explainAgain = time.Minute

// explainRefused tells people that a member was not let in, in the log and in the group's history.
func (c *Coordinator) explainRefused(group, member, text string) {
	key := group + "\x00" + member
	if at, ok := c.plans.told[key]; ok && c.now < at+explainAgain {
		return
	}
	if len(c.plans.told) > 1000 {
		clear(c.plans.told)
	}
	c.plans.told[key] = c.now
	c.do(Action{Note: &Note{"a member was refused: " + text, []any{"group", group, "member", member}}})
	r := &statepb.Rebalance{Cause: "refused", Text: clip(member) + " was refused: " + text}
	if row, ok := c.v.Group(group); ok {
		r.Generation = row.Generation
	}
	c.last++
	c.do(Action{Request: c.last, Propose: &statepb.Command{Body: &statepb.Command_ExplainRefusal{
		ExplainRefusal: &statepb.ExplainRefusal{Group: group, Rebalance: r}}}})
}
