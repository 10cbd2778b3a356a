package core

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"google.golang.org/protobuf/proto"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// pass moves the cluster clock and the mind's by the same time.
func (s *stage) pass(d time.Duration) {
	for d > 0 {
		step := min(d, time.Minute)
		d -= step
		b, _ := proto.Marshal(&pb.Entry{ClockStepMs: uint64(step.Milliseconds()), Commands: []*pb.Command{{Version: 1, Body: &pb.Command_Tick{Tick: &pb.Tick{}}}}})
		s.index++
		a := s.s.Apply(s.index, s.term, b)
		s.act(s.mind.Changed(a.View, a.Changes, s.now-s.start))
		s.advance(step)
	}
}

type commit struct {
	group, topic string
	retention    int64
	from         pb.OffsetOrigin
	member       string
	generation   int32
}

func (s *stage) commit(c commit) {
	s.t.Helper()
	if c.from == 0 {
		c.from = pb.OffsetOrigin_ORIGIN_KAFKA
	}
	if c.member == "" {
		c.generation = -1
	}
	res := s.apply(&pb.Command{Body: &pb.Command_CommitOffsets{CommitOffsets: &pb.CommitOffsets{Group: c.group, Member: c.member, Generation: c.generation,
		From: c.from, Items: []*pb.OffsetItem{{Topic: c.topic, Offset: 7, LeaderEpoch: -1, RetentionMs: cmpOr(c.retention, -1)}}}}})
	if res.Code != pb.Code_OK {
		s.t.Fatalf("commit %+v: %v", c, res)
	}
}

func cmpOr(a, b int64) int64 {
	if a != 0 {
		return a
	}
	return b
}

// left lists group/topic of the offsets that are there.
func (s *stage) left() (out []string) {
	v := s.s.View()
	v.Groups(func(g *state.Group) bool {
		v.Offsets(g.Name, func(topic string, _ *state.Offset) bool { out = append(out, g.Name+"/"+topic); return true })
		return true
	})
	return out
}

func (s *stage) wantLeft(when string, want ...string) {
	s.t.Helper()
	if got := s.left(); !slices.Equal(got, want) {
		s.t.Fatalf("%s: offsets %v, want %v", when, got, want)
	}
}

const hour = time.Hour

func expiryStage(t *testing.T) *stage {
	return newStage(t, Config{InitialDelay: -1, MaxSession: 300 * hour, OffsetsRetention: 10 * hour, OffsetsCheck: time.Minute})
}

// TestSimpleOffsetsExpire: of a group that never had members, each offset by itself; those of znodes never.
func TestSimpleOffsetsExpire(t *testing.T) {
	s := expiryStage(t)
	s.commit(commit{group: "g", topic: "old"})
	s.commit(commit{group: "g", topic: "short", retention: hour.Milliseconds()})
	s.commit(commit{group: "g", topic: "long", retention: 30 * hour.Milliseconds()})
	s.commit(commit{group: "g", topic: "znode", from: pb.OffsetOrigin_ORIGIN_ZNODE})
	s.pass(hour - 2*time.Minute)
	s.wantLeft("before the hour", "g/long", "g/old", "g/short", "g/znode")
	s.pass(4 * time.Minute)
	s.wantLeft("after the hour", "g/long", "g/old", "g/znode")
	s.pass(5 * hour)
	s.commit(commit{group: "g", topic: "young"})
	s.pass(4 * hour)
	s.wantLeft("after the retention", "g/long", "g/young", "g/znode")
	s.pass(21 * hour)
	s.wantLeft("after all", "g/znode")
	if _, ok := s.s.View().Znode("/consumers/g/offsets/old"); ok {
		t.Error("the directory of expired offsets is still there")
	}
}

// TestGroupGoesWithItsLastOffset: what only commits have made is gone without a trace.
func TestGroupGoesWithItsLastOffset(t *testing.T) {
	s := expiryStage(t)
	for i := range 2*maxExpired + 10 {
		s.commit(commit{group: "g", topic: fmt.Sprintf("t%04d", i)})
	}
	s.pass(11 * hour)
	s.wantLeft("after the retention")
	if _, ok := s.s.View().Group("g"); ok {
		t.Error("the group is still there")
	}
	if _, ok := s.s.View().Znode("/consumers/g"); ok {
		t.Error("its directory is still there")
	}
}

// TestQuietMembersKeepOffsets (cases.md 11): a member that commits nothing for long loses nothing; the time begins when it has left.
func TestQuietMembersKeepOffsets(t *testing.T) {
	s := expiryStage(t)
	meta := kmsg.ConsumerMemberMetadata{Topics: []string{"t"}}
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version, req.Group, req.ProtocolType = 3, "g", "consumer"
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = int32((200 * hour).Milliseconds()), 60_000
	req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: meta.AppendTo(nil)}}
	s.kafka("a", req)
	s.tell(parse("sync a assign=a:x"))
	s.commit(commit{group: "g", topic: "t", member: s.members["a"], generation: 1})
	s.commit(commit{group: "g", topic: "unread", member: s.members["a"], generation: 1})
	s.commit(commit{group: "g", topic: "named", member: s.members["a"], generation: 1, retention: 60_000})
	s.pass(9 * hour)
	s.wantLeft("while it lives", "g/t", "g/unread")
	s.pass(20 * hour)
	s.wantLeft("what nobody reads goes", "g/t")
	s.tell(parse("leave a"))
	s.pass(9 * hour)
	s.wantLeft("soon after it left", "g/t")
	s.commit(commit{group: "g", topic: "t"}) // an operator's reset begins the time anew
	s.pass(9 * hour)
	s.wantLeft("soon after the reset", "g/t")
	s.pass(2 * hour)
	s.wantLeft("long after the reset")
}

// TestZnodeConsumersKeepOffsets: a live znode consumer keeps what it committed by Kafka's API; the time begins when it has gone.
func TestZnodeConsumersKeepOffsets(t *testing.T) {
	s := expiryStage(t)
	for _, path := range []string{"/consumers/g", "/consumers/g/ids"} {
		s.apply(&pb.Command{Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: path}}})
	}
	id := &pb.Command{Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: "/consumers/g/ids/c", Data: []byte("{}")}}}
	if res := s.apply(id); res.Code != pb.Code_OK {
		t.Fatal(res)
	}
	s.commit(commit{group: "g", topic: "t"})
	s.pass(30 * hour)
	s.wantLeft("while it lives", "g/t")
	s.apply(&pb.Command{Body: &pb.Command_DeleteZnode{DeleteZnode: &pb.DeleteZnode{Path: "/consumers/g/ids/c", Version: -1}}})
	s.pass(9 * hour)
	s.wantLeft("soon after it went", "g/t")
	s.pass(2 * hour)
	s.wantLeft("long after")
	if _, ok := s.s.View().Znode("/consumers/g/ids"); !ok {
		t.Error("directories that a client made stay")
	}
}

// TestExpiryMeetsCommit: what was committed, or joined, between the decision and its entry stays.
func TestExpiryMeetsCommit(t *testing.T) {
	s := expiryStage(t)
	s.commit(commit{group: "g", topic: "a"})
	s.commit(commit{group: "g", topic: "b"})
	s.hold = true
	s.pass(10*hour + time.Minute)
	if len(s.held) == 0 {
		t.Fatal("nothing was proposed")
	}
	s.commit(commit{group: "g", topic: "a"})
	s.release()
	s.wantLeft("after", "g/a")

	s.hold = true
	s.pass(10*hour + time.Minute)
	if len(s.held) == 0 {
		t.Fatal("nothing was proposed")
	}
	for _, path := range []string{"/consumers/g/ids", "/consumers/g/ids/c"} {
		s.apply(&pb.Command{Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: path, Data: []byte("{}")}}})
	}
	s.release()
	s.wantLeft("after a consumer came", "g/a")
}

// TestOffsetsOfAMixedGroup: what members by Kafka's protocol do not read, consumers by ZooKeeper may.
func TestOffsetsOfAMixedGroup(t *testing.T) {
	s := expiryStage(t)
	s.apply(&pb.Command{Body: &pb.Command_PutGroup{PutGroup: &pb.PutGroup{Group: "g", Generation: 2, State: pb.GroupState_GROUP_STABLE, ProtocolType: "consumer",
		Protocol: "uniform", Consumer: true, Members: []*pb.GroupMember{{Id: "m", Client: "c", Host: "h", SessionMs: int32((200 * hour).Milliseconds()), RebalanceMs: 60_000,
			Consumer: &pb.ConsumerMember{Epoch: 2, Previous: 2, Topics: []string{"other"}}}}}}})
	s.mind = NewCoordinator(s.cfg)
	for _, path := range []string{"/consumers/g", "/consumers/g/ids"} {
		s.apply(&pb.Command{Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: path}}})
	}
	s.apply(&pb.Command{Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: "/consumers/g/ids/c", Data: []byte("{}")}}})
	s.commit(commit{group: "g", topic: "t", member: "m", generation: 2})
	s.pass(30 * hour)
	s.wantLeft("while the consumer by ZooKeeper lives", "g/t")
	s.apply(&pb.Command{Body: &pb.Command_DeleteZnode{DeleteZnode: &pb.DeleteZnode{Path: "/consumers/g/ids/c", Version: -1}}})
	s.pass(2 * time.Minute)
	s.wantLeft("when it has gone")
}

// TestOffsetsOfAJoiningMember: a member that is on its way into an empty group finds what is there.
func TestOffsetsOfAJoiningMember(t *testing.T) {
	s := expiryStage(t)
	s.commit(commit{group: "g", topic: "t"})
	s.pass(9 * hour)
	s.tell(parse("join a v=5 session=360000")) // it was given an id (79) and has not come back yet
	s.pass(5 * hour)
	s.wantLeft("while it is on its way", "g/t")
	s.tell(parse("leave a"))
	s.pass(2 * time.Minute)
	s.wantLeft("when it did not come")
}
