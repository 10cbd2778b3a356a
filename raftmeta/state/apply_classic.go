package state

import (
	"slices"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// moveGroup makes a group's head if there is none and moves its version.
func (s *State) moveGroup(name string) {
	g := Group{Name: name}
	if old, ok := s.groups.get(name); ok {
		g = *old
	}
	g.Version = uint64(s.index)
	s.putRow(&g)
}

// putRow puts a group's head. Every change of a group's members goes through here: it keeps the time since which the group is empty.
func (s *State) putRow(g *Group) {
	switch ids, _ := s.znodes.get(znodeKey("/consumers/" + g.Name + "/ids")); {
	case len(g.Members) > 0 || ids != nil && ids.Stat.Children > 0:
		g.EmptySinceMs = 0
	case g.EmptySinceMs == 0:
		g.EmptySinceMs = max(1, s.meta.ClockMs)
	}
	s.groups.put(g.Name, g)
}

// hasClassicMembers reports whether a path is a directory or an offset of a group with members that are no znodes: a delete of
// the whole group by an old tool would hit them.
func (s *State) hasClassicMembers(p Path) bool {
	if p.Kind != PathGroupDir && p.Kind != PathOffset {
		return false
	}
	g, ok := s.groups.get(p.Group)
	return ok && len(g.Members) > 0
}

// putGroup puts the coordinator's decision in place of a group's classic part, if the group is as the coordinator saw it.
func (s *State) putGroup(c *statepb.PutGroup) *statepb.Result {
	if why := ValidGroupID(c.Group); why != "" {
		return s.refuse(statepb.Code_INVALID, "%s", why)
	}
	old, ok := s.groups.get(c.Group)
	switch {
	case ok != (c.GroupVersion != 0), ok && old.Version != c.GroupVersion:
		return s.refuse(statepb.Code_STALE, "group %s has changed", c.Group)
	case ok && c.Generation < old.Generation, c.Generation <= 0:
		return s.refuse(statepb.Code_INVALID, "generation %d of group %s would go back", c.Generation, c.Group)
	}
	if r := s.checkGiven(old, c); r != nil {
		return r
	}
	all := members(old, c)
	if (len(all) == 0) != (c.State == statepb.GroupState_GROUP_EMPTY) {
		return s.refuse(statepb.Code_INVALID, "group %s with %d members cannot be %s", c.Group, len(all), c.State)
	}
	if c.Consumer && slices.ContainsFunc(all, func(m *Member) bool { return m.Consumer == nil }) {
		return s.refuse(statepb.Code_INVALID, "a member of the consumer group %s has no epoch", c.Group)
	}
	g := &Group{Name: c.Group, Version: uint64(s.index), Generation: c.Generation, State: GroupState(c.State),
		ProtocolType: c.ProtocolType, Protocol: c.Protocol, Leader: c.Leader, Members: all, Consumer: c.Consumer, Subscribed: c.Subscribed}
	if ok {
		g.Rebalances, g.EmptySinceMs = old.Rebalances, old.EmptySinceMs
	}
	if r := c.Rebalance; r != nil {
		if i := lastRecord(g.Rebalances, r.Generation); c.Consumer && i >= 0 { // told to its end
			g.Rebalances = slices.Delete(slices.Clone(g.Rebalances), i, i+1)
		}
		keep := g.Rebalances[max(0, len(g.Rebalances)+1-MaxRebalances):]
		g.Rebalances = append(slices.Clone(keep), &Rebalance{WallMs: s.wallMs, Generation: r.Generation, Cause: r.Cause, Text: r.Text,
			Before: r.Before, After: r.After, Joined: r.Joined, Left: r.Left, WaitedMs: r.WaitedMs, WaitedFor: r.WaitedFor})
	}
	s.putRow(g)
	s.changed(Change{Kind: GroupChanged, Group: c.Group})
	return &statepb.Result{Zxid: int64(s.meta.ZXID)}
}

// lastRecord finds what was told of a generation of members that are no znodes, -1 if nothing was.
func lastRecord(records []*Rebalance, generation int32) int {
	for i := len(records) - 1; i >= 0; i-- {
		if records[i].Kind != KindLegacy && records[i].Cause != "refused" {
			if records[i].Generation == generation {
				return i
			}
			return -1
		}
	}
	return -1
}

func memberRow(m *statepb.GroupMember) *Member {
	row := &Member{ID: m.Id, Instance: m.Instance, Client: m.Client, Host: m.Host, SessionMs: m.SessionMs, RebalanceMs: m.RebalanceMs,
		Assignment: m.Assignment, Consumer: consumerRow(m.Consumer)}
	for _, p := range m.Protocols {
		row.Protocols = append(row.Protocols, GroupProtocol{Name: p.Name, Metadata: p.Metadata})
	}
	return row
}

// checkCommit is Kafka's ClassicGroup.validateOffsetCommit: nil lets the commit in. A commit without member and generation
// comes from a consumer that assigns partitions itself, or a tool: it is refused while classic members live. OffsetCommit v0
// (origin znode) is not refused, since that kills kafka-node, but not applied either (groups.md, "Commits"); a tool's write of
// the znode itself does not come this way.
func (s *State) checkCommit(g *Group, mixed bool, c *statepb.CommitOffsets) *statepb.Result {
	simple := c.Generation < 0 && c.Member == "" && c.Instance == ""
	if mixed && simple {
		return nil // judged item by item: mixedParts
	}
	if c.From == statepb.OffsetOrigin_ORIGIN_ZNODE {
		if g != nil && len(g.Members) > 0 {
			return s.refuse(statepb.Code_OFFSET_STALE, "group %s has members that are no znodes", c.Group)
		}
		return nil
	}
	if g != nil && g.Consumer {
		return s.checkConsumerCommit(g, c)
	}
	switch {
	case g == nil && c.Generation >= 0:
		return s.refuse(statepb.Code_ILLEGAL_GENERATION, "there is no group %s", c.Group)
	case g == nil, g.State == GroupEmpty && c.Generation < 0:
		return nil
	case simple:
		return s.refuse(statepb.Code_UNKNOWN_MEMBER, "group %s has members: only they may commit", c.Group)
	}
	if in := g.Instance(c.Instance); c.Instance != "" && in == nil {
		return s.refuse(statepb.Code_UNKNOWN_MEMBER, "group %s has no instance %s", c.Group, c.Instance)
	} else if in != nil && in.ID != c.Member {
		return s.refuse(statepb.Code_FENCED_INSTANCE, "instance %s of group %s is member %s now", c.Instance, c.Group, in.ID)
	}
	switch {
	case g.Member(c.Member) == nil:
		return s.refuse(statepb.Code_UNKNOWN_MEMBER, "group %s has no member %s", c.Group, c.Member)
	case c.Generation != g.Generation:
		return s.refuse(statepb.Code_ILLEGAL_GENERATION, "group %s is at generation %d, not %d", c.Group, g.Generation, c.Generation)
	case g.State == GroupCompleting:
		return s.refuse(statepb.Code_REBALANCE_IN_PROGRESS, "generation %d of group %s has no assignment yet", g.Generation, c.Group)
	}
	return nil
}

// deleteGroup removes a group without live members of any kind. Free znodes below its directory keep the directory.
func (s *State) deleteGroup(c *statepb.DeleteGroup) *statepb.Result {
	g, ok := s.groups.get(c.Group)
	dir := "/consumers/" + c.Group
	_, hasDir := s.znodes.get(znodeKey(dir))
	switch ids, _ := s.znodes.get(znodeKey(dir + "/ids")); {
	case !ok || ValidGroupID(c.Group) != "":
		return s.refuse(statepb.Code_UNKNOWN_GROUP, "there is no group %s", c.Group)
	case len(g.Members) > 0, ids != nil && ids.Stat.Children > 0:
		return s.refuse(statepb.Code_NOT_EMPTY, "group %s has members", c.Group)
	case c.OnlyUnused && hasDir:
		return s.refuse(statepb.Code_NOT_EMPTY, "group %s has offsets or znodes", c.Group)
	}
	s.groups.del(c.Group)
	s.changed(Change{Kind: GroupChanged, Group: c.Group})
	if !hasDir {
		return &statepb.Result{Zxid: int64(s.meta.ZXID)}
	}
	zx := s.zxid()
	keys, _ := s.offsets.collect(keyName(c.Group))
	for _, k := range keys {
		s.dropOffsets(c.Group, k[len(c.Group)+1:len(k)-5], zx)
	}
	for _, sub := range []string{"/owners", "/offsets"} {
		topics, _ := s.znodes.collect(keyName(dir + sub))
		for _, k := range topics {
			s.removeEmptyDir(dir+sub+"/"+k[len(dir+sub)+1:], zx)
		}
	}
	for _, d := range []string{dir + "/owners", dir + "/offsets", dir + "/ids", dir} {
		s.removeEmptyDir(d, zx)
	}
	if _, left := s.znodes.get(znodeKey(dir)); left {
		s.moveGroup(c.Group)
	}
	return &statepb.Result{Zxid: int64(zx)}
}

func (s *State) removeEmptyDir(path string, zx id.ZXID) {
	if z, ok := s.znodes.get(znodeKey(path)); ok && z.Stat.Children == 0 && z.Stat.EphemeralOwner == 0 {
		s.removeNode(path, zx)
	}
}
