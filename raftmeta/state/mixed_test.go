package state

import (
	"fmt"
	"testing"

	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// mixedFold is a group g with consumers by ZooKeeper a and b, of which a owns t-0, and the consumer member m, which owns t-1.
func mixedFold(t *testing.T) (*fold, map[string]*pb.Origin) {
	f := newFold(t)
	f.broker(1, "n")
	var as []*pb.Assignment
	for range 4 {
		as = append(as, &pb.Assignment{Replicas: []int32{1}})
	}
	f.ok(&pb.Command{Body: &pb.Command_CreateTopic{CreateTopic: &pb.CreateTopic{Name: "t", TopicId: topicID(1), Assignments: as}}})
	who := f.consumers("g", "a", "b")
	f.ok(claimAs(who["a"], "0", "a-0"))
	f.ok(f.give("m", 1))
	return f, who
}

// give has a member own some partitions of t in epoch 3, beside what others own.
func (f *fold) give(member string, partitions ...int32) *pb.Command {
	g, _ := f.s.View().Group("g")
	return &pb.Command{Body: &pb.Command_PutGroup{PutGroup: &pb.PutGroup{Group: "g", GroupVersion: g.Version, Generation: 3, State: pb.GroupState_GROUP_STABLE,
		ProtocolType: "consumer", Protocol: "uniform", Consumer: true, Delta: g.Consumer, Members: []*pb.GroupMember{{Id: member, Client: "c", Host: "h", SessionMs: 45_000, RebalanceMs: 60_000,
			Consumer: &pb.ConsumerMember{Epoch: 3, Previous: 3, Topics: []string{"t"},
				Assigned: []*pb.TopicPartitions{{TopicId: topicID(1), Partitions: partitions, Epochs: make([]int32, len(partitions))}}}}}}}}
}

func commitOf(member string, epoch int32, from pb.OffsetOrigin, by string, offset int64, partitions ...int32) *pb.Command {
	c := &pb.CommitOffsets{Group: "g", Member: member, Generation: epoch, From: from, By: by}
	for _, p := range partitions {
		c.Items = append(c.Items, &pb.OffsetItem{Topic: "t", Partition: p, Offset: offset, LeaderEpoch: -1, RetentionMs: -1})
	}
	return &pb.Command{Body: &pb.Command_CommitOffsets{CommitOffsets: c}}
}

func (f *fold) offset(p int32) int64 {
	o, ok := f.s.View().Offset("g", "t", p)
	if !ok {
		return -1
	}
	return int64(o.Offset)
}

// codes are those of a commit's items; a whole refusal counts for all.
func codes(r *pb.Result, n int) []pb.Code {
	out := make([]pb.Code, n)
	for i := range out {
		if out[i] = r.Code; r.Code == pb.Code_OK && r.Parts != nil {
			out[i] = r.Parts[i].Code
		}
	}
	return out
}

// Whatever the coordinator proposes: a partition has one owner, of one kind.
func TestAPartitionHasOneOwnerOfAllKinds(t *testing.T) {
	f, who := mixedFold(t)
	f.want(pb.Code_NODE_EXISTS, claimAs(who["b"], "1", "b-0")) // m has it
	f.want(pb.Code_STALE, f.give("m", 0, 1))                   // a has it
	f.want(pb.Code_STALE, f.give("n", 0))
	f.ok(claimAs(who["b"], "2", "b-0"))
	f.want(pb.Code_STALE, f.give("m", 1, 2))
	f.ok(f.give("m", 1, 3))
	f.ok(expireSession(who["b"]))
	f.want(pb.Code_STALE, f.give("m", 1, 2, 3)) // it is reserved for b
	f.ok(&pb.Command{Body: &pb.Command_ReleaseOwners{ReleaseOwners: &pb.ReleaseOwners{Group: "g", Session: who["b"].Session, Owned: []*pb.OwnedPartition{{Topic: "t", Partition: 2}}}}})
	f.ok(f.give("m", 2, 3))
	f.ok(claimAs(who["a"], "1", "a-0")) // m gave it up

	// What a member is to give up is still its own.
	c := f.give("m", 3)
	c.GetPutGroup().Members[0].Consumer.Revoking = []*pb.TopicPartitions{{TopicId: topicID(1), Partitions: []int32{2}}}
	f.ok(c)
	f.want(pb.Code_NODE_EXISTS, claimAs(who["a"], "2", "a-0"))
	f.ok(f.give("m", 3))
	f.ok(claimAs(who["a"], "2", "a-0"))
}

// Commits are judged by the owner's kind, item by item.
func TestCommitsOfAMixedGroup(t *testing.T) {
	const kafka, znode = pb.OffsetOrigin_ORIGIN_KAFKA, pb.OffsetOrigin_ORIGIN_ZNODE
	f, who := mixedFold(t)
	f.ok(commitOf("m", 3, kafka, "c@h", 10, 1))
	for _, c := range []struct {
		name   string
		commit *pb.Command
		want   []pb.Code
	}{
		{"an old consumer's, of its own, a member's and nobody's", commitOf("", -1, kafka, "g@10.0.0.0", 20, 0, 1, 2), []pb.Code{pb.Code_OK, pb.Code_UNKNOWN_MEMBER, pb.Code_OK}},
		{"by v0", commitOf("", -1, znode, "g@10.0.0.0", 21, 0, 1, 2), []pb.Code{pb.Code_OK, pb.Code_OFFSET_STALE, pb.Code_OK}},
		{"a member's, of its own, an old consumer's and nobody's", commitOf("m", 3, kafka, "c@h", 30, 0, 1, 2), []pb.Code{pb.Code_STALE_EPOCH, pb.Code_OK, pb.Code_OK}},
		{"of an epoch before", commitOf("m", 2, kafka, "c@h", 31, 2), []pb.Code{pb.Code_STALE_EPOCH}},
		{"of nobody known", commitOf("x", 3, kafka, "c@h", 32, 1), []pb.Code{pb.Code_UNKNOWN_MEMBER}},
	} {
		got := codes(f.do(c.commit)[0], len(c.want))
		for i := range c.want {
			if got[i] != c.want[i] {
				t.Errorf("%s: %v, want %v", c.name, got, c.want)
				break
			}
		}
	}
	if f.offset(0) != 21 || f.offset(1) != 30 || f.offset(2) != 30 {
		t.Errorf("offsets %d %d %d", f.offset(0), f.offset(1), f.offset(2))
	}

	// A write of the znode by a consumer that lost the partition is answered and not applied; a tool's always wins.
	set := func(o *pb.Origin, p, data string) *pb.Command {
		return &pb.Command{Origin: o, Body: &pb.Command_SetZnode{SetZnode: &pb.SetZnode{Path: "/consumers/g/offsets/t/" + p, Data: []byte(data), Version: -1}}}
	}
	if f.ok(set(who["a"], "1", "5")); f.offset(1) != 30 {
		t.Errorf("a zombie set the offset to %d", f.offset(1))
	}
	if f.ok(set(who["a"], "0", "22")); f.offset(0) != 22 {
		t.Errorf("the owner's write is not applied: %d", f.offset(0))
	}
	tool := f.ok(&pb.Command{Body: &pb.Command_CreateSession{CreateSession: &pb.CreateSession{TimeoutMs: 6000, Password: make([]byte, 16)}}})
	if f.ok(set(&pb.Origin{Session: tool.Value, AttachEpoch: tool.Epoch}, "1", "7")); f.offset(1) != 7 {
		t.Errorf("a tool's write is not applied: %d", f.offset(1))
	}

	// When the last consumer by ZooKeeper has gone, nobody but members may commit.
	for _, o := range who {
		f.ok(&pb.Command{Body: &pb.Command_CloseSession{CloseSession: &pb.CloseSession{Session: o.Session, AttachEpoch: o.AttachEpoch}}})
	}
	f.want(pb.Code_UNKNOWN_MEMBER, commitOf("", -1, kafka, "g@10.0.0.0", 40, 2))
}

// A refusal is told beside the rebalances and changes nothing else.
func TestRefusalIsExplained(t *testing.T) {
	f, _ := mixedFold(t)
	before, _ := f.s.View().Group("g")
	f.ok(&pb.Command{Body: &pb.Command_ExplainRefusal{ExplainRefusal: &pb.ExplainRefusal{Group: "g", Rebalance: &pb.Rebalance{Generation: 3, Cause: "refused", Text: "why"}}}})
	after, _ := f.s.View().Group("g")
	r := after.Rebalances[len(after.Rebalances)-1]
	if after.Version != before.Version || len(after.Rebalances) != len(before.Rebalances)+1 || r.Cause != "refused" || r.Text != "why" || r.WallMs == 0 {
		t.Errorf("%+v after %+v", after, before)
	}
	f.want(pb.Code_UNKNOWN_GROUP, &pb.Command{Body: &pb.Command_ExplainRefusal{ExplainRefusal: &pb.ExplainRefusal{Group: "none", Rebalance: &pb.Rebalance{}}}})
}

// A generation's explanation counts and names consumers by ZooKeeper; the pool that stands for the others is nobody.
func TestThePoolIsNoMember(t *testing.T) {
	f, _ := mixedFold(t)
	publish := func(n int32, members []string, pool ...string) {
		c := &pb.PublishGeneration{Group: "g", Generation: n, Members: members, Topics: []string{"t"}, Rebalance: &pb.Rebalance{Cause: "members"}}
		for _, id := range pool {
			c.Pool = append(c.Pool, &pb.PoolMember{Id: id, Topics: []string{"t"}})
		}
		f.ok(&pb.Command{Body: &pb.Command_PublishGeneration{PublishGeneration: c}})
	}
	publish(1, []string{"a", "b"})
	publish(2, []string{"b"}, "g_~barnabas-000", "g_~barnabas-001")
	publish(3, []string{"a", "b"}, "g_~barnabas-001")
	defer func() { // a group of znode consumers keeps no more explanations than any other
		for n := int32(4); n < MaxRebalances+10; n++ {
			publish(n, []string{"a"})
		}
		if g, _ := f.s.View().Group("g"); len(g.Rebalances) != MaxRebalances {
			t.Errorf("%d explanations are kept, want %d", len(g.Rebalances), MaxRebalances)
		}
	}()
	g, _ := f.s.View().Group("g")
	for i, want := range []string{"2 -> 1 [] [a]", "1 -> 2 [a] []"} {
		r := g.Rebalances[len(g.Rebalances)-2+i]
		if got := fmt.Sprint(r.Before, " -> ", r.After, " ", r.Joined, " ", r.Left); got != want {
			t.Errorf("generation %d: %s, want %s", r.Generation, got, want)
		}
	}
}
