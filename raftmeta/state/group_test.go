package state

import (
	"fmt"
	"testing"

	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

func put(group string, version uint64, generation int32, st pb.GroupState, members ...string) *pb.Command {
	p := &pb.PutGroup{Group: group, GroupVersion: version, Generation: generation, State: st, ProtocolType: "consumer", Protocol: "range",
		Rebalance: &pb.Rebalance{Generation: generation, Cause: "join", Joined: members}}
	for _, m := range members {
		p.Members = append(p.Members, &pb.GroupMember{Id: m, Instance: "i-" + m, Client: "c", Host: "h", SessionMs: 10_000, RebalanceMs: 60_000,
			Protocols: []*pb.GroupProtocol{{Name: "range", Metadata: []byte("x")}}, Assignment: []byte("y")})
	}
	return &pb.Command{Body: &pb.Command_PutGroup{PutGroup: p}}
}

func memberCommit(member, instance string, generation int32) *pb.Command {
	c := commit("g", "t", 0, 7)
	c.GetCommitOffsets().Member, c.GetCommitOffsets().Instance, c.GetCommitOffsets().Generation = member, instance, generation
	return c
}

func dropGroup(group string, unused bool) *pb.Command {
	return &pb.Command{Body: &pb.Command_DeleteGroup{DeleteGroup: &pb.DeleteGroup{Group: group, OnlyUnused: unused}}}
}

func (f *fold) version(group string) uint64 {
	g, ok := f.s.View().Group(group)
	if !ok {
		f.t.Fatalf("no group %s", group)
	}
	return g.Version
}

func TestPutGroupIsConditional(t *testing.T) {
	f := newFold(t)
	f.want(pb.Code_STALE, put("g", 9, 1, pb.GroupState_GROUP_STABLE, "m"))
	f.ok(put("g", 0, 1, pb.GroupState_GROUP_COMPLETING, "m"))
	f.want(pb.Code_STALE, put("g", 0, 2, pb.GroupState_GROUP_STABLE, "m"))
	f.ok(put("g", f.version("g"), 2, pb.GroupState_GROUP_STABLE, "m", "n"))
	f.want(pb.Code_INVALID, put("g", f.version("g"), 1, pb.GroupState_GROUP_STABLE, "m"))
	f.want(pb.Code_INVALID, put("g", f.version("g"), 3, pb.GroupState_GROUP_STABLE))
	f.want(pb.Code_INVALID, put("", 0, 1, pb.GroupState_GROUP_STABLE, "m"))
	if len(f.last.Changes) != 0 {
		t.Fatal("a refusal changed something")
	}
	g, _ := f.s.View().Group("g")
	if g.Generation != 2 || g.Member("n") == nil || g.Instance("i-m") == nil || len(g.Rebalances) != 2 {
		t.Fatalf("%+v", g)
	}
	f.s = roundTrip(t, f.s)
	for i := range MaxRebalances + 5 {
		f.ok(put("g", f.version("g"), int32(3+i), pb.GroupState_GROUP_STABLE, "m"))
	}
	if g, _ = f.s.View().Group("g"); len(g.Rebalances) != MaxRebalances || g.Rebalances[0].Generation != 8 {
		t.Fatalf("%d rebalances from generation %d", len(g.Rebalances), g.Rebalances[0].Generation)
	}
}

// cases.md 21: who may commit, by the group's state.
func TestCommitsAreFenced(t *testing.T) {
	f := newFold(t)
	f.ok(memberCommit("", "", -1))
	f.want(pb.Code_UNKNOWN_MEMBER, memberCommit("m", "", 3)) // the group has a row by now, but no such member
	f.ok(put("g", f.version("g"), 4, pb.GroupState_GROUP_STABLE, "m"))
	for _, c := range []struct {
		member, instance string
		generation       int32
		want             pb.Code
	}{
		{"m", "", 4, pb.Code_OK}, {"m", "i-m", 4, pb.Code_OK}, {"m", "", 3, pb.Code_ILLEGAL_GENERATION}, {"m", "", 5, pb.Code_ILLEGAL_GENERATION},
		{"x", "", 4, pb.Code_UNKNOWN_MEMBER}, {"", "", -1, pb.Code_UNKNOWN_MEMBER}, {"m", "", -1, pb.Code_ILLEGAL_GENERATION},
		{"x", "i-m", 4, pb.Code_FENCED_INSTANCE}, {"m", "other", 4, pb.Code_UNKNOWN_MEMBER},
	} {
		f.want(c.want, memberCommit(c.member, c.instance, c.generation))
	}
	f.ok(put("g", f.version("g"), 5, pb.GroupState_GROUP_COMPLETING, "m"))
	f.want(pb.Code_REBALANCE_IN_PROGRESS, memberCommit("m", "", 5))
	f.want(pb.Code_ILLEGAL_GENERATION, memberCommit("m", "", 4))
	f.ok(put("g", f.version("g"), 6, pb.GroupState_GROUP_EMPTY))
	f.ok(memberCommit("", "", -1))
	f.want(pb.Code_UNKNOWN_MEMBER, memberCommit("m", "", 6))
	c := memberCommit("m", "", 1)
	c.GetCommitOffsets().Group = "nobody"
	f.want(pb.Code_ILLEGAL_GENERATION, c)
}

// While members live that are no znodes, old tools and old members cannot take the group apart.
func TestZnodeFaceBesideClassicMembers(t *testing.T) {
	f := newFold(t)
	f.ok(commit("g", "t", 0, 5))
	for _, p := range []string{"/consumers/g/owners", "/consumers/g/owners/t", "/consumers/g/ids"} {
		f.ok(create(p, ""))
	}
	before := f.version("g")
	f.ok(put("g", before, 1, pb.GroupState_GROUP_STABLE, "m"))
	f.want(pb.Code_NOT_EMPTY, del("/consumers/g/offsets/t/0", -1))
	f.want(pb.Code_NOT_EMPTY, del("/consumers/g/owners/t", -1))
	f.want(pb.Code_NODE_EXISTS, &pb.Command{Body: &pb.Command_ClaimOwner{ClaimOwner: &pb.ClaimOwner{Group: "g", Topic: "t", Name: "0"}}})
	f.ok(set("/consumers/g/offsets/t/0", "9", -1)) // an operator's reset
	f.want(pb.Code_NOT_EMPTY, dropGroup("g", false))
	f.ok(create("/consumers/g/ids/old", "")) // moves the version and keeps the members
	g, _ := f.s.View().Group("g")
	if len(g.Members) != 1 || g.Version == before {
		t.Fatalf("%+v", g)
	}
	f.ok(put("g", g.Version, 2, pb.GroupState_GROUP_EMPTY))
	f.want(pb.Code_NOT_EMPTY, dropGroup("g", false)) // the old member
	f.ok(del("/consumers/g/ids/old", -1))
	f.want(pb.Code_NOT_EMPTY, dropGroup("g", true))
	f.ok(dropGroup("g", false))
	if _, ok := f.s.View().Group("g"); ok {
		t.Fatal("the group is still there")
	}
	if _, ok := f.s.View().Znode("/consumers/g"); ok {
		t.Fatal("its directory is still there")
	}
	f.want(pb.Code_UNKNOWN_GROUP, dropGroup("g", false))
}

func TestDeleteGroupKeepsFreeZnodes(t *testing.T) {
	f := newFold(t)
	f.ok(commit("g", "t", 0, 5))
	f.ok(create("/consumers/g/notes", "mine"))
	f.ok(dropGroup("g", false))
	if _, ok := f.s.View().Znode("/consumers/g/notes"); !ok {
		t.Fatal("a free znode went with the group")
	}
	if _, ok := f.s.View().Offset("g", "t", 0); ok {
		t.Fatal("an offset stayed")
	}
	f.ok(put("h", 0, 1, pb.GroupState_GROUP_EMPTY))
	f.ok(dropGroup("h", true))
	if _, ok := f.s.View().Group("h"); ok {
		t.Fatal("an unused group stayed")
	}
	f.want(pb.Code_UNKNOWN_GROUP, dropGroup("", false))
}

// A topic's end takes its offsets out of every group (cases.md 25).
func TestTopicDeletionTakesOffsetsOfClassicGroups(t *testing.T) {
	f := newFold(t)
	f.broker(1, "a")
	f.ok(mkTopic("t", 1, []int32{1}))
	f.ok(put("g", 0, 1, pb.GroupState_GROUP_STABLE, "m"))
	f.ok(memberCommit("m", "", 1))
	f.ok(&pb.Command{Body: &pb.Command_DeleteTopic{DeleteTopic: &pb.DeleteTopic{Name: "t"}}})
	if o, ok := f.s.View().Offset("g", "t", 0); ok {
		t.Fatal(fmt.Sprint("still at ", o.Offset))
	}
}

// A repeated commit does not lower what was committed since it was asked first, and offsets are deleted only while the members are those
// that the deletion was decided on.
func TestRepeatedCommitAndConditionalDelete(t *testing.T) {
	f, who := mixedFold(t)
	commit := func(offset, notSince int64) []pb.Code {
		c := commitOf("", -1, pb.OffsetOrigin_ORIGIN_ZNODE, "kafka-node-client@10.0.0.1", offset, 2, 3)
		c.GetCommitOffsets().NotSince = notSince
		return codes(f.do(c)[0], 2)
	}
	asked := int64(f.s.View().ZXID())
	commit(10, 0) // it was carried out, and the answer was lost
	later := commitOf("", -1, pb.OffsetOrigin_ORIGIN_ZNODE, "kafka-node-client@10.0.0.1", 20, 2)
	f.ok(later)
	if got := commit(10, asked); got[0] != pb.Code_OFFSET_STALE || got[1] != pb.Code_OFFSET_STALE || f.offset(2) != 20 || f.offset(3) != 10 {
		t.Errorf("the repeat: %v, offsets %d %d", got, f.offset(2), f.offset(3))
	}
	if got := commit(30, int64(f.s.View().ZXID())); got[0] != pb.Code_OK || f.offset(2) != 30 || f.offset(3) != 30 {
		t.Errorf("a repeat of what was not carried out: %v, offsets %d %d", got, f.offset(2), f.offset(3))
	}

	g, _ := f.s.View().Group("g")
	del := &pb.Command{Body: &pb.Command_DeleteOffsets{DeleteOffsets: &pb.DeleteOffsets{Group: "g", GroupVersion: g.Version, Items: []*pb.OffsetItem{{Topic: "t", Partition: 2}}}}}
	f.ok(claimAs(who["b"], "2", "b-0"))
	f.want(pb.Code_STALE, del)
	if f.offset(2) != 30 {
		t.Error("the offset was deleted although a member has come to the partition")
	}
	g, _ = f.s.View().Group("g")
	del.GetDeleteOffsets().GroupVersion = g.Version
	if f.ok(del); f.offset(2) != -1 {
		t.Error("the offset was not deleted")
	}
}
