package state

import (
	"bytes"
	"reflect"
	"testing"

	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

func consumerGroup(f *fold, version uint64, generation int32, delta bool, gone []string, members ...*pb.GroupMember) *pb.Command {
	st := pb.GroupState_GROUP_STABLE
	row, _ := f.s.View().Group("g")
	left := len(members)
	if delta {
		left += len(row.Members) - len(gone)
	}
	if left == 0 {
		st = pb.GroupState_GROUP_EMPTY
	}
	return &pb.Command{Body: &pb.Command_PutGroup{PutGroup: &pb.PutGroup{Group: "g", GroupVersion: version, Generation: generation, State: st,
		ProtocolType: "consumer", Protocol: "uniform", Consumer: true, Subscribed: 7, Delta: delta, Gone: gone, Members: members}}}
}

func consumerMember(name string, epoch int32, given ...int32) *pb.GroupMember {
	parts := []*pb.TopicPartitions{{TopicId: topicID(1), Partitions: given}}
	for range given {
		parts[0].Epochs = append(parts[0].Epochs, epoch)
	}
	return &pb.GroupMember{Id: name, Client: "c", Host: "h", SessionMs: 45_000, RebalanceMs: 60_000, Consumer: &pb.ConsumerMember{Epoch: epoch, Previous: epoch - 1,
		State: pb.MemberState_MEMBER_UNREVOKED, Topics: []string{"t", "u"}, Regex: "x.*", Assignor: "range", Rack: "r", Assigned: parts,
		Revoking: []*pb.TopicPartitions{{TopicId: topicID(2), Partitions: []int32{3}, Epochs: []int32{1}}},
		Target:   []*pb.TopicPartitions{{TopicId: topicID(1), Partitions: given}}}}
}

func (f *fold) groupVersion() uint64 {
	row, _ := f.s.View().Group("g")
	return row.Version
}

// A delta changes the members that it names, takes out those gone, and leaves the others; the row comes back from a snapshot.
func TestConsumerGroupRows(t *testing.T) {
	f := newFold(t)
	f.ok(consumerGroup(f, 0, 2, false, nil, consumerMember("a", 2, 0, 1), consumerMember("b", 2, 2)))
	f.ok(consumerGroup(f, f.groupVersion(), 3, true, []string{"a"}, consumerMember("b", 3, 0, 1, 2), consumerMember("c", 3)))
	row, _ := f.s.View().Group("g")
	if len(row.Members) != 2 || row.Members[0].ID != "b" || row.Members[1].ID != "c" || !row.Consumer || row.Subscribed != 7 || row.Generation != 3 {
		t.Fatalf("%+v", row)
	}
	b := row.Member("b").Consumer
	if !b.Held(idOf(1), 2) || !b.Held(idOf(2), 3) || b.Held(idOf(1), 3) || b.Held(idOf(3), 0) {
		t.Errorf("%+v", b)
	}
	var e enc
	row.encode(&e)
	got := new(Group)
	d := dec{b: e.b}
	got.decode(&d)
	if d.err != nil || !reflect.DeepEqual(got, row) {
		t.Errorf("%v\n%+v\n%+v", d.err, got, row)
	}
	if r := f.do(consumerGroup(f, f.groupVersion()-1, 4, true, nil))[0]; r.Code != pb.Code_STALE {
		t.Errorf("a delta on an older row: %v", r)
	}
	f.ok(consumerGroup(f, f.groupVersion(), 4, true, []string{"b", "c"}))
	if row, _ = f.s.View().Group("g"); len(row.Members) != 0 || row.EmptySinceMs == 0 {
		t.Errorf("%+v", row)
	}
}

func idOf(n byte) (t [16]byte) { copy(t[:], bytes.Repeat([]byte{n}, 16)); return t }

// A member commits in its epoch, or in an older one for partitions that it had then; nobody else does.
func TestConsumerCommits(t *testing.T) {
	f := newFold(t)
	f.ok(register(1, "d", "n"))
	f.ok(mkTopic("t", 1, []int32{1}, []int32{1}))
	f.ok(consumerGroup(f, 0, 2, false, nil, consumerMember("a", 2, 0)))
	later := consumerMember("a", 5, 0, 1)
	later.Consumer.Assigned[0].Epochs[0] = 2
	classic := consumerMember("k", 5)
	classic.Protocols = []*pb.GroupProtocol{{Name: "range"}}
	f.ok(consumerGroup(f, f.groupVersion(), 5, true, nil, later, classic))
	for _, c := range []struct {
		member    string
		epoch     int32
		partition int32
		old       bool
		want      pb.Code
	}{
		{"a", 5, 0, false, pb.Code_OK}, {"a", 5, 1, false, pb.Code_OK}, {"a", 3, 0, false, pb.Code_OK}, {"a", 2, 0, false, pb.Code_OK},
		{"a", 1, 0, false, pb.Code_STALE_EPOCH}, {"a", 4, 1, false, pb.Code_STALE_EPOCH}, {"a", 6, 0, false, pb.Code_STALE_EPOCH},
		{"a", 5, 0, true, pb.Code_OLD_REQUEST}, {"x", 5, 0, false, pb.Code_UNKNOWN_MEMBER}, {"", -1, 0, false, pb.Code_UNKNOWN_MEMBER},
		{"k", 5, 0, true, pb.Code_OK}, {"k", 4, 0, true, pb.Code_ILLEGAL_GENERATION}, {"k", 6, 0, true, pb.Code_ILLEGAL_GENERATION},
	} {
		r := f.do(&pb.Command{Body: &pb.Command_CommitOffsets{CommitOffsets: &pb.CommitOffsets{Group: "g", Member: c.member, Generation: c.epoch,
			NoEpochs: c.old, From: pb.OffsetOrigin_ORIGIN_KAFKA, Items: []*pb.OffsetItem{{Topic: "t", Partition: c.partition, Offset: 1, LeaderEpoch: -1}}}}})[0]
		if r.Code != c.want {
			t.Errorf("%+v: %v %s", c, r.Code, r.Text)
		}
	}
	f.ok(consumerGroup(f, f.groupVersion(), 6, true, []string{"a", "k"}))
	r := f.do(&pb.Command{Body: &pb.Command_CommitOffsets{CommitOffsets: &pb.CommitOffsets{Group: "g", Generation: -1,
		From: pb.OffsetOrigin_ORIGIN_KAFKA, Items: []*pb.OffsetItem{{Topic: "t", Offset: 1, LeaderEpoch: -1}}}}})[0]
	if r.Code != pb.Code_OK {
		t.Errorf("a tool's commit for an empty group: %v %s", r.Code, r.Text)
	}
}
