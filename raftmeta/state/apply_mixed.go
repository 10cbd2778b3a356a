package state

import (
	"slices"
	"strconv"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// Groups with members of more than one kind (groups.md, "Mixed groups"). What the coordinator plans is one thing; that no partition
// has two owners is checked here, whatever it planned.

// holder returns the member that came by Kafka's protocol and may still be reading a partition, nil if there is none.
func (g *Group) holder(t id.TopicID, partition int32) *Member {
	for _, m := range g.Members {
		if m.Consumer != nil && m.Consumer.Held(t, partition) {
			return m
		}
	}
	return nil
}

func (s *State) holder(g *Group, topic string, partition int32) *Member {
	t, ok := s.topics.get(topic)
	if !ok {
		return nil
	}
	return g.holder(t.ID, partition)
}

// checkHolder is nil when no member of another kind has a partition that a znode consumer claims.
func (s *State) checkHolder(g *Group, c *statepb.ClaimOwner) *statepb.Result {
	if len(g.Members) == 0 {
		return nil
	}
	if !g.Consumer {
		return s.refuse(statepb.Code_NODE_EXISTS, "group %s has members that are no znodes: they own its partitions", c.Group)
	}
	partition, _ := claimPartition(c.Name)
	if m := s.holder(g, OwnersTopic(c.Topic), partition); m != nil {
		return s.refuse(statepb.Code_NODE_EXISTS, "partition %d of %s belongs to member %s", partition, c.Topic, m.ID)
	}
	return nil
}

// checkGiven is nil when nothing that a put newly gives to members is owned by, or reserved for, a znode consumer.
func (s *State) checkGiven(old *Group, c *statepb.PutGroup) *statepb.Result {
	if !c.Consumer || old == nil || !s.zooKeeperOwns(c.Group) {
		return nil
	}
	for _, m := range c.Members {
		for _, tp := range partsRow(m.GetConsumer().GetAssigned()) {
			t, ok := s.names.get(string(tp.TopicID[:]))
			if !ok {
				continue
			}
			for _, n := range tp.Partitions {
				if was := old.Member(m.Id); was != nil && was.Consumer != nil && was.Consumer.Held(tp.TopicID, n) {
					continue
				}
				if owner := s.zooKeeperOwner(c.Group, t.Name, n); owner != "" {
					return s.refuse(statepb.Code_STALE, "partition %d of %s belongs to %s", n, t.Name, owner)
				}
			}
		}
	}
	return nil
}

// zooKeeperOwns reports whether znode consumers have, or may have, partitions of a group.
func (s *State) zooKeeperOwns(group string) bool {
	if row, ok := s.legacies.get(group); ok && len(row.Reserved) > 0 {
		return true
	}
	owners, ok := s.znodes.get(znodeKey("/consumers/" + group + "/owners"))
	return ok && owners.Stat.Children > 0
}

// zooKeeperOwner is whose a partition is by a znode, or whom it is reserved for; "" for nobody. Dialects that call the znode otherwise
// than the partition are not let into a group with other members.
func (s *State) zooKeeperOwner(group, topic string, partition int32) string {
	if z, ok := s.znodes.get(znodeKey("/consumers/" + group + "/owners/" + topic + "/" + strconv.Itoa(int(partition)))); ok {
		return string(z.Data)
	}
	row, _ := s.legacies.get(group)
	if r := row.Reservation(topic, partition); r != nil {
		return r.Member
	}
	return ""
}

// mixes reports whether a group has members of both kinds, those whose session expired while they owned something included.
func (s *State) mixes(g *Group) bool {
	if !g.Consumer || len(g.Members) == 0 {
		return false
	}
	if row, ok := s.legacies.get(g.Name); ok && len(row.Reserved) > 0 {
		return true
	}
	ids, ok := s.znodes.get(znodeKey("/consumers/" + g.Name + "/ids"))
	return ok && ids.Stat.Children > 0
}

// mixedParts judges a commit to a mixed group item by item, by the kind of the partition's owner (groups.md, "Commits"); nil: all
// are taken.
//
// A consumer by ZooKeeper names no member. What it commits of a partition that a member by Kafka's protocol has is refused, or, by
// the znodes' face (v0), silently not applied once others have committed, since a refusal kills kafka-node. A member by Kafka's protocol was checked as such;
// what a znode consumer owns is not its own to commit.
func (s *State) mixedParts(g *Group, c *statepb.CommitOffsets) []*statepb.Result {
	var parts []*statepb.Result
	refuse := func(i int, r *statepb.Result) { parts = refusePart(parts, len(c.Items), i, r) }
	for i, it := range c.Items {
		m := s.holder(g, it.Topic, it.Partition)
		switch {
		case c.From == statepb.OffsetOrigin_ORIGIN_ZNODE && m != nil:
			if o, ok := s.offset(c.Group, it.Topic, it.Partition); !ok || o.By == c.By {
				continue // nobody else has committed since it lost the partition
			}
			refuse(i, s.refuse(statepb.Code_OFFSET_STALE, "%s-%d belongs to member %s", it.Topic, it.Partition, m.ID))
		case c.Member == "" && m != nil:
			refuse(i, s.refuse(statepb.Code_UNKNOWN_MEMBER, "%s-%d belongs to member %s: only that one may commit it", it.Topic, it.Partition, m.ID))
		case c.Member != "" && m == nil:
			if owner := s.zooKeeperOwner(c.Group, it.Topic, it.Partition); owner != "" {
				code := statepb.Code_STALE_EPOCH
				if g.Member(c.Member).Classic() {
					code = statepb.Code_ILLEGAL_GENERATION
				}
				refuse(i, s.refuse(code, "%s-%d belongs to %s now", it.Topic, it.Partition, owner))
			}
		}
	}
	return parts
}

// worse joins two judgements of the same items.
func worse(a, b []*statepb.Result) []*statepb.Result {
	if a == nil || b == nil {
		return append(a, b...)
	}
	for i := range a {
		if a[i].Code == statepb.Code_OK {
			a[i] = b[i]
		}
	}
	return a
}

// explainRefusal keeps why a member was not let in.
func (s *State) explainRefusal(c *statepb.ExplainRefusal) *statepb.Result {
	old, ok := s.groups.get(c.Group)
	if !ok {
		return s.refuse(statepb.Code_UNKNOWN_GROUP, "there is no group %s", c.Group)
	}
	g := *old // its version stays: no member and no owner has changed
	r := c.GetRebalance()
	n := int32(len(g.Members))
	g.Rebalances = append(slices.Clone(g.Rebalances[max(0, len(g.Rebalances)+1-MaxRebalances):]), &Rebalance{WallMs: s.wallMs,
		Generation: r.GetGeneration(), Cause: r.GetCause(), Text: r.GetText(), Before: n, After: n, Kind: r.GetKind()})
	s.putRow(&g)
	s.changed(Change{Kind: GroupChanged, Group: c.Group})
	return &statepb.Result{Zxid: int64(s.meta.ZXID)}
}
