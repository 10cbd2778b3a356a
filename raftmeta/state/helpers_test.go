package state

import (
	"bytes"
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/barnabas-mq/barnabas/internal/id"
	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// fold drives a State as raftmeta does, one command an entry unless told otherwise.
type fold struct {
	t     testing.TB
	s     *State
	index id.Index
	term  id.Term
	last  Applied
}

func newFold(t testing.TB) *fold {
	f := &fold{t: t, s: New(), term: 1}
	f.s.TrackHash()
	f.ok(&pb.Command{Body: &pb.Command_Bootstrap{Bootstrap: &pb.Bootstrap{ClusterId: "clusterclusterclusterc", Level: 1}}})
	return f
}

func encode(t testing.TB, cmds ...*pb.Command) []byte {
	t.Helper()
	for _, c := range cmds {
		if c.Version == 0 {
			c.Version = CommandVersion
		}
	}
	b, err := proto.Marshal(&pb.Entry{ClockStepMs: 10, WallMs: 1_700_000_000_000, Commands: cmds})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (f *fold) do(cmds ...*pb.Command) []*pb.Result {
	f.t.Helper()
	f.index++
	f.last = f.s.Apply(f.index, f.term, encode(f.t, cmds...))
	var rs []*pb.Result
	for _, s := range f.last.Settled {
		rs = append(rs, s.Result)
	}
	return rs
}

func (f *fold) ok(c *pb.Command) *pb.Result {
	f.t.Helper()
	r := f.do(c)[0]
	if r.Code != pb.Code_OK {
		f.t.Fatalf("%v: %v %s", c, r.Code, r.Text)
	}
	return r
}

func (f *fold) want(code pb.Code, c *pb.Command) *pb.Result {
	f.t.Helper()
	r := f.do(c)[0]
	if r.Code != code {
		f.t.Fatalf("%v: got %v (%s), want %v", c, r.Code, r.Text, code)
	}
	return r
}

func (f *fold) broker(n int32, nonce string) *pb.Result {
	f.t.Helper()
	return f.ok(register(n, fmt.Sprintf("dir-%d", n), nonce))
}

func (f *fold) part(topic string, p int32) *Partition {
	f.t.Helper()
	row, ok := f.s.View().Partition(topic, p)
	if !ok {
		f.t.Fatalf("no partition %s-%d", topic, p)
	}
	return row
}

func register(n int32, dir, nonce string) *pb.Command {
	return &pb.Command{Body: &pb.Command_RegisterBroker{RegisterBroker: &pb.RegisterBroker{
		DirectoryId: dir, Nonce: nonce, WantedId: n, MinLevel: 1, MaxLevel: 1,
		Endpoints: []*pb.Endpoint{{Listener: "PLAINTEXT", Host: "127.0.0.1", Port: 9091 + n}},
	}}}
}

func topicID(n byte) []byte { return bytes.Repeat([]byte{n}, 16) }

func mkTopic(name string, n byte, replicas ...[]int32) *pb.Command {
	c := &pb.CreateTopic{Name: name, TopicId: topicID(n)}
	for _, r := range replicas {
		c.Assignments = append(c.Assignments, &pb.Assignment{Replicas: r})
	}
	return &pb.Command{Body: &pb.Command_CreateTopic{CreateTopic: c}}
}

func create(path, data string) *pb.Command {
	return &pb.Command{Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: path, Data: []byte(data)}}}
}

func ephemeral(session int64, epoch uint64, path string) *pb.Command {
	return &pb.Command{Origin: &pb.Origin{Session: session, AttachEpoch: epoch}, Body: &pb.Command_CreateZnode{
		CreateZnode: &pb.CreateZnode{Path: path, Ephemeral: true}}}
}

func del(path string, version int32) *pb.Command {
	return &pb.Command{Body: &pb.Command_DeleteZnode{DeleteZnode: &pb.DeleteZnode{Path: path, Version: version}}}
}

func set(path, data string, version int32) *pb.Command {
	return &pb.Command{Body: &pb.Command_SetZnode{SetZnode: &pb.SetZnode{Path: path, Data: []byte(data), Version: version}}}
}

func session() *pb.Command {
	return &pb.Command{Body: &pb.Command_CreateSession{CreateSession: &pb.CreateSession{TimeoutMs: 6000, Password: topicID(7), Broker: 1}}}
}

func commit(group, topic string, p int32, offset int64) *pb.Command {
	return &pb.Command{Body: &pb.Command_CommitOffsets{CommitOffsets: &pb.CommitOffsets{Generation: -1,
		Group: group, By: "c@h", From: pb.OffsetOrigin_ORIGIN_KAFKA,
		Items: []*pb.OffsetItem{{Topic: topic, Partition: p, Offset: offset, LeaderEpoch: -1, RetentionMs: -1}}}}}
}

// roundTrip restores a snapshot of the state and checks that nothing got lost.
func roundTrip(t testing.TB, s *State) *State {
	t.Helper()
	var b, again bytes.Buffer
	if _, err := s.Snapshot().WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	r, err := Restore(bytes.NewReader(b.Bytes()), true)
	if err != nil {
		t.Fatal(err)
	}
	if r.Hash() != s.Hash() {
		t.Fatalf("restored hash %x, want %x", r.Hash(), s.Hash())
	}
	if _, err := r.Snapshot().WriteTo(&again); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes(), again.Bytes()) {
		t.Fatal("the snapshot of a restored state differs")
	}
	return r
}

func snapshotBytes(t testing.TB, s *State) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	if _, err := s.Snapshot().WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return &b
}
