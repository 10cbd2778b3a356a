package state

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// poolOwner is the ephemeral owner that pool registrations show: no session's, and no broker's.
const poolOwner = brokerOwner | 1<<40

func (s *State) gateOn(group string, g Gate) bool {
	c, ok := s.configs.get(keyNames(GroupConfigs, group))
	return !ok || gateOn(c, g)
}

// memberOf is View.MemberOf while the entry is being applied.
func (s *State) memberOf(session int64, group string) (memberID string, ok bool) {
	return memberOf(s.ephemerals.rows, session, group)
}

// publishGeneration makes what the coordinator chose from the raw tree the view of a group's members.
func (s *State) publishGeneration(c *statepb.PublishGeneration) *statepb.Result {
	old, ok := s.legacies.get(c.Group)
	if !ok {
		old = &Legacy{Group: c.Group}
	}
	head, hasHead := s.groups.get(c.Group)
	switch {
	case ValidGroupID(c.Group) != "" || !hasHead:
		return s.refuse(statepb.Code_UNKNOWN_GROUP, "there is no group %s", c.Group)
	case c.Generation != old.Number+1, c.GroupVersion != 0 && head.Version != c.GroupVersion:
		return s.refuse(statepb.Code_STALE, "group %s has changed", c.Group)
	}
	zx := s.zxid()
	g := &Legacy{Group: c.Group, Number: c.Generation, Index: uint64(s.index), Zxid: zx, Withdrawn: c.Withdraw, IDs: old.IDs,
		AllTopics: c.AllTopics, AllZxid: old.AllZxid, Reserved: old.Reserved, Strategy: c.Strategy}
	if !c.Withdraw {
		s.showMembers(g, old, c, zx)
		s.showTopics(g, c, zx, old)
	}
	g.Complete = len(g.Members) == 0
	s.legacies.put(c.Group, g)
	s.tellShown(old, g, zx)
	s.explain(c.Group, generationRecord(s.wallMs, old, g, c.Rebalance))
	return &statepb.Result{Zxid: int64(zx), Value: int64(g.Number)}
}

func (s *State) showMembers(g, old *Legacy, c *statepb.PublishGeneration, zx id.ZXID) {
	dir := "/consumers/" + c.Group + "/ids"
	for _, memberID := range c.Members {
		if z, ok := s.znodes.get(znodeKey(dir + "/" + memberID)); ok && !z.Null {
			g.Members = append(g.Members, &Shown{ID: memberID, Node: *z})
		}
	}
	for _, p := range c.Pool {
		if m := old.Shows(p.Id); m != nil && m.Pool && bytes.Equal(registrationTopics(m.Node.Data), poolTopics(p)) {
			g.Members = append(g.Members, m)
			continue
		}
		z := Znode{Data: fmt.Appendf(nil, `{"version":1,"subscription":%s,"pattern":"static","timestamp":"%d"}`, poolTopics(p), s.wallMs),
			Stat: s.newStat(zx, poolOwner), Dialect: DialectJVM}
		g.Members = append(g.Members, &Shown{ID: p.Id, Pool: true, Node: z})
	}
	slices.SortFunc(g.Members, func(a, b *Shown) int { return cmp.Compare(a.ID, b.ID) })
	g.Members = slices.CompactFunc(g.Members, func(a, b *Shown) bool { return a.ID == b.ID })
	if old.Number > 0 && !old.Withdrawn && slices.EqualFunc(old.Members, g.Members, func(a, b *Shown) bool { return a.ID == b.ID }) {
		return
	}
	if z, ok := s.znodes.get(znodeKey(dir)); ok {
		g.IDs = z.Stat
	}
	g.IDs.Pzxid, g.IDs.Children = zx, int32(len(g.Members))
}

// poolTopics is the subscription of a pool registration.
func poolTopics(p *statepb.PoolMember) []byte {
	topics := slices.Sorted(slices.Values(p.Topics))
	b := []byte{'{'}
	for i, t := range topics {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(strconv.AppendQuote(b, t), ":1"...)
	}
	return append(b, '}')
}

func registrationTopics(raw []byte) []byte {
	_, rest, _ := bytes.Cut(raw, []byte(`"subscription":`))
	topics, _, _ := bytes.Cut(rest, []byte(`,"pattern"`))
	return topics
}

func (s *State) showTopics(g *Legacy, c *statepb.PublishGeneration, zx id.ZXID, old *Legacy) {
	names := slices.Clone(c.Topics)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		st := ShownTopic{Name: name}
		if t, ok := s.topics.get(name); ok {
			st.ID, st.Partitions = t.ID, t.Partitions
		}
		g.Topics = append(g.Topics, st)
	}
	if !c.AllTopics {
		return
	}
	_, all := s.topics.collect("")
	for _, t := range all {
		if !InternalTopic(t.Name) {
			g.All = append(g.All, t.Name)
		}
	}
	if !old.AllTopics || old.Withdrawn || !slices.Equal(old.All, g.All) {
		g.AllZxid = zx
	}
}

// tellShown names the paths at which members see something else than before.
func (s *State) tellShown(old, g *Legacy, zx id.ZXID) {
	tell := func(path string) { s.changed(Change{Kind: GenerationShown, ZXID: zx, Group: g.Group, Path: path}) }
	all := old.Number == 0 || old.Withdrawn || g.Withdrawn // what they saw was the raw tree, or will be
	ids := "/consumers/" + g.Group + "/ids"
	if all || old.IDs.Pzxid != g.IDs.Pzxid {
		tell(ids)
	}
	for _, m := range g.Members {
		if o := old.Shows(m.ID); !all && o != nil && o.Node.Stat.Mzxid != m.Node.Stat.Mzxid {
			tell(ids + "/" + m.ID)
		}
	}
	for _, m := range old.Members {
		if g.Shows(m.ID) == nil {
			tell(ids + "/" + m.ID)
		}
	}
	for _, t := range g.Topics {
		if o, ok := old.Topic(t.Name); all || !ok || o != t {
			tell("/brokers/topics/" + t.Name)
			tell("/brokers/topics/" + t.Name + "/partitions")
		}
	}
	for _, t := range old.Topics {
		if _, ok := g.Topic(t.Name); !ok {
			tell("/brokers/topics/" + t.Name)
			tell("/brokers/topics/" + t.Name + "/partitions")
		}
	}
	if old.AllTopics || g.AllTopics {
		if all || old.AllTopics != g.AllTopics || old.AllZxid != g.AllZxid {
			tell("/brokers/topics")
		}
	}
}

// KindLegacy is the kind of a rebalance of znode members.
const KindLegacy = "legacy"

// generationRecord explains a generation. The pool's registrations stand for members whose own rebalances are told: they are not counted.
func generationRecord(wallMs int64, old, g *Legacy, r *statepb.Rebalance) *Rebalance {
	out := &Rebalance{WallMs: wallMs, Kind: KindLegacy, Generation: g.Number, Cause: r.GetCause(), Text: r.GetText(),
		WaitedMs: r.GetWaitedMs(), WaitedFor: r.GetWaitedFor(), Holds: r.GetHolds()}
	count := func(in, other *Legacy) (n int32, alone []string) {
		for _, m := range in.Members {
			if m.Pool {
				continue
			}
			if n++; other.Shows(m.ID) == nil {
				alone = listed(alone, m.ID)
			}
		}
		return n, alone
	}
	out.Before, out.Left = count(old, g)
	out.After, out.Joined = count(g, old)
	return out
}

// listed bounds the lists of an explanation: a hundred of them are kept, and ids are as long as clients make them.
func listed(ids []string, id string) []string {
	const most, longest = 50, 200
	switch {
	case len(ids) > most:
		return ids
	case len(ids) == most:
		return append(ids, "...")
	case len(id) > longest:
		id = id[:longest] + "..."
	}
	return append(ids, id)
}

// explain adds a record to a group's head.
func (s *State) explain(group string, r *Rebalance) {
	old, ok := s.groups.get(group)
	if !ok {
		return
	}
	g := *old
	g.Version = uint64(s.index)
	g.Rebalances = append(slices.Clone(g.Rebalances[max(0, len(g.Rebalances)+1-MaxRebalances):]), r)
	s.putRow(&g)
	s.changed(Change{Kind: GroupChanged, Group: group})
}

// completeGeneration closes a generation and its record.
func (s *State) completeGeneration(c *statepb.CompleteGeneration) *statepb.Result {
	old, ok := s.legacies.get(c.Group)
	if !ok || old.Number != c.Generation || old.Complete {
		return s.refuse(statepb.Code_STALE, "generation %d of group %s is not being claimed", c.Generation, c.Group)
	}
	g := *old
	g.Complete = true
	s.legacies.put(c.Group, &g)
	head, ok := s.groups.get(c.Group)
	if ok && c.Rebalance != nil {
		for i := len(head.Rebalances) - 1; i >= 0; i-- {
			if r := head.Rebalances[i]; r.Kind == KindLegacy && r.Generation == c.Generation {
				told := *r
				told.WaitedMs, told.WaitedFor, told.Holds = c.Rebalance.WaitedMs, c.Rebalance.WaitedFor, c.Rebalance.Holds
				h := *head
				h.Rebalances = slices.Clone(head.Rebalances)
				h.Rebalances[i] = &told
				s.putRow(&h)
				break
			}
		}
	}
	s.changed(Change{Kind: GroupChanged, Group: c.Group})
	return &statepb.Result{Zxid: int64(s.meta.ZXID)}
}

// owned is what a session has in groups: found before its nodes go.
type owned struct {
	group   string
	reserve []*Reservation
}

// ownedBy lists the partitions that a session which expires owns as a member of groups whose gate is on.
func (s *State) ownedBy(ses *Session) []owned {
	var all []owned
	keys, _ := s.ephemerals.collect(ephemeralKey(int64(ses.ID), "/consumers/"))
	for _, k := range keys {
		p := ParsePath(k[8:])
		if p.Kind != PathOwner {
			continue
		}
		member, ok := s.memberOf(int64(ses.ID), p.Group)
		z, there := s.znodes.get(znodeKey(k[8:]))
		if !ok || !there || z.Partition < 0 || !s.gateOn(p.Group, GateReservation) {
			continue
		}
		if n := len(all); n == 0 || all[n-1].group != p.Group {
			all = append(all, owned{group: p.Group})
		}
		o := &all[len(all)-1]
		o.reserve = append(o.reserve, &Reservation{Topic: p.Topic, Name: p.Name, Partition: z.Partition, Member: member, Host: ses.Host,
			Session: ses.ID, TimeoutMs: ses.TimeoutMs, SinceMs: s.meta.ClockMs, Claimed: z.Stat.Czxid})
	}
	return all
}

// reserve keeps what an expired session owned.
func (s *State) reserve(all []owned) {
	for _, o := range all {
		g := Legacy{Group: o.group}
		if old, ok := s.legacies.get(o.group); ok {
			g = *old
		}
		g.Reserved = append(slices.Clone(g.Reserved), o.reserve...)
		s.legacies.put(o.group, &g)
		s.changed(Change{Kind: GroupChanged, Group: o.group})
	}
}

// unreserve drops reservations; what is left of a group that has nothing else goes too.
func (s *State) unreserve(group string, drop func(*Reservation) bool) {
	old, ok := s.legacies.get(group)
	if !ok || !slices.ContainsFunc(old.Reserved, drop) {
		return
	}
	g := *old
	g.Reserved = slices.DeleteFunc(slices.Clone(old.Reserved), drop)
	if g.Number == 0 && len(g.Reserved) == 0 {
		s.legacies.del(group)
	} else {
		s.legacies.put(group, &g)
	}
	s.changed(Change{Kind: GroupChanged, Group: group})
}

func (s *State) releaseOwners(c *statepb.ReleaseOwners) *statepb.Result {
	s.unreserve(c.Group, func(r *Reservation) bool {
		return int64(r.Session) == c.Session && slices.ContainsFunc(c.Owned, func(o *statepb.OwnedPartition) bool {
			return o.Topic == r.Topic && o.Partition == r.Partition
		})
	})
	return &statepb.Result{Zxid: int64(s.meta.ZXID)}
}

// checkClaim keeps P3 for partitions, whatever their owners are called: nil lets the claim in.
func (s *State) checkClaim(session int64, c *statepb.ClaimOwner) *statepb.Result {
	partition, _ := claimPartition(c.Name)
	if partition < 0 {
		return nil
	}
	dir := "/consumers/" + c.Group + "/owners/" + c.Topic + "/"
	number := strconv.Itoa(int(partition))
	names := []string{number}
	_, brokers := s.brokers.collect("")
	for _, b := range brokers { // pykafka's name of it moves with the leadership
		names = append(names, strconv.Itoa(int(b.ID))+"-"+number)
	}
	for _, name := range names {
		if z, ok := s.znodes.get(znodeKey(dir + name)); ok && name != c.Name && z.Stat.EphemeralOwner != session {
			return s.refuse(statepb.Code_NODE_EXISTS, "partition %s of %s has an owner: %s%s", number, c.Topic, dir, name)
		}
	}
	g, _ := s.legacies.get(c.Group)
	if r := g.Reservation(c.Topic, partition); r != nil && s.gateOn(c.Group, GateReservation) {
		if member, ok := s.memberOf(session, c.Group); !ok || member != r.Member {
			return s.refuse(statepb.Code_NODE_EXISTS, "partition %s of %s is reserved for %s, whose session expired", number, c.Topic, r.Member)
		}
	}
	return nil
}

// claimed ends what stood between a partition and its owner.
func (s *State) claimed(session int64, c *statepb.ClaimOwner) {
	partition, _ := claimPartition(c.Name)
	s.unreserve(c.Group, func(r *Reservation) bool { return r.Topic == c.Topic && r.Partition == partition })
	member, _ := s.memberOf(session, c.Group)
	s.liftFences(func(f *Fence) bool {
		return f.Group == c.Group && f.Member == member && f.Topic == OwnersTopic(c.Topic) && f.Partition == partition
	})
}

func (s *State) liftFences(drop func(*Fence) bool) {
	keys, rows := s.fences.collect("")
	for i, f := range rows {
		if drop(f) {
			s.fences.del(keys[i])
		}
	}
}

func (s *State) fenceFetches(c *statepb.FenceFetches) *statepb.Result {
	for _, f := range c.Fetches {
		key := fenceKey(id.BrokerID(f.Broker), f.Conn, f.Topic, f.Partition)
		if c.Lift {
			s.fences.del(key)
			continue
		}
		s.fences.put(key, &Fence{Broker: id.BrokerID(f.Broker), Epoch: id.BrokerEpoch(f.Epoch), Conn: f.Conn, Topic: f.Topic,
			Partition: f.Partition, Group: c.Group, Member: c.Member})
	}
	s.changed(Change{Kind: GroupChanged, Group: c.Group})
	return &statepb.Result{Zxid: int64(s.meta.ZXID)}
}

// dropLegacy forgets a group that is gone.
func (s *State) dropLegacy(group string) {
	s.legacies.del(group)
	s.liftFences(func(f *Fence) bool { return f.Group == group })
}

// guardDelete is nil when a session may delete an owner znode: its own, one that tools clean up, one of a former session of the same
// consumer. Members of old libraries delete blindly what they once had (zk-paths.md 6.4); NONODE is success to them.
func (s *State) guardDelete(session int64, p Path, z *Znode) *statepb.Result {
	owner := z.Stat.EphemeralOwner
	if p.Kind != PathOwner || session == 0 || owner == 0 || owner == session || !s.gateOn(p.Group, GateDelete) {
		return nil
	}
	member, ok := s.memberOf(session, p.Group)
	if !ok || string(z.Data) == member || strings.HasPrefix(string(z.Data), member+"-") {
		return nil
	}
	return s.refuse(statepb.Code_NO_NODE, "%s belongs to another member", "/consumers/"+p.Group+"/owners/"+p.Topic+"/"+p.Name)
}

// ---- commits of members that lost a partition (groups.md, "Commits") ----

// ownerOf is View.OwnerOf while the entry is being applied.
func (s *State) ownerOf(group, topic string, partition int32) (*Znode, bool) {
	dir := "/consumers/" + group + "/owners/" + topic
	if z, ok := s.znodes.get(znodeKey(dir + "/" + strconv.Itoa(int(partition)))); ok {
		return z, true
	}
	d, ok := s.znodes.get(znodeKey(dir))
	if !ok || d.Stat.Children == 0 {
		return nil, false
	}
	_, brokers := s.brokers.collect("")
	for _, b := range brokers {
		if z, ok := s.znodes.get(znodeKey(fmt.Sprintf("%s/%d-%d", dir, b.ID, partition))); ok {
			return z, true
		}
	}
	return nil, false
}

// lateWrite reports whether a member's write of an offset znode comes after others have committed the partition that it lost. A
// session that is no member is a tool or an operator and always wins.
func (s *State) lateWrite(session int64, member string, p Path) (*Offset, bool) {
	if member == "" || !s.gateOn(p.Group, GateCommit) {
		return nil, false
	}
	z, ok := s.ownerOf(p.Group, p.Topic, p.Partition)
	if g, known := s.groups.get(p.Group); known && s.holder(g, p.Topic, p.Partition) != nil {
		o, had := s.offset(p.Group, p.Topic, p.Partition)
		return o, had && o.By != member
	}
	if !ok || z.Stat.EphemeralOwner == session {
		return nil, false
	}
	o, ok := s.offset(p.Group, p.Topic, p.Partition)
	return o, ok && o.By != member && o.Mzxid > z.Stat.Czxid
}

// hostOf is the address in who committed by Kafka's protocol: client id@address.
func hostOf(by string) string { return by[strings.LastIndexByte(by, '@')+1:] }

// lateParts judges a commit that names no member (old consumers never do) item by item. Who commits is known by client id and address
// (decisions.md 15). It is late when the owner has shown who it is, by a commit from its session's address since it took the partition,
// and this is somebody else, at another address. Behind a NAT, or with two addresses, nobody can tell, and all are taken. nil: all are taken.
func (s *State) lateParts(c *statepb.CommitOffsets) []*statepb.Result {
	if c.Member != "" || c.Instance != "" || c.Generation >= 0 {
		return nil
	}
	owners, ok := s.znodes.get(znodeKey("/consumers/" + c.Group + "/owners"))
	if !ok || owners.Stat.Children == 0 || !s.gateOn(c.Group, GateCommit) {
		return nil
	}
	host := hostOf(c.By)
	var parts []*statepb.Result
	for i, it := range c.Items {
		z, ok := s.ownerOf(c.Group, it.Topic, it.Partition)
		if !ok {
			continue
		}
		ses, ok := s.sessions.get(keyU64(uint64(z.Stat.EphemeralOwner)))
		o, has := s.offset(c.Group, it.Topic, it.Partition)
		if !ok || ses.Host == "" || ses.Host == host || !has || o.By == c.By || o.Mzxid <= z.Stat.Czxid {
			continue
		}
		if member, _ := s.memberOf(z.Stat.EphemeralOwner, c.Group); hostOf(o.By) != ses.Host && o.By != member {
			continue
		}
		parts = refusePart(parts, len(c.Items), i, s.refuse(statepb.Code_OFFSET_STALE, "%s-%d belongs to %s, who has committed since", it.Topic, it.Partition, z.Data))
	}
	return parts
}
