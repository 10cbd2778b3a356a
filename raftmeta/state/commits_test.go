package state

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

var (
	numbers = rapid.OneOf(rapid.Just(int64(0)), rapid.Just(int64(-1)), rapid.Int64())
	strs    = rapid.OneOf(rapid.Just(""), rapid.String(), rapid.StringN(100, 300, -1), rapid.Just("\xff"))
)

func drawCommand(t *rapid.T) *pb.Command {
	c := &pb.Command{Version: rapid.Uint32Max(2).Draw(t, "version"), Level: rapid.Uint32Max(2).Draw(t, "level"), Lane: rapid.Uint64Max(300).Draw(t, "lane"),
		Seq: rapid.Uint64Max(300).Draw(t, "seq"), Seen: rapid.Uint64Max(2).Draw(t, "seen"), Term: rapid.Uint64Max(2).Draw(t, "term")}
	switch rapid.IntRange(0, 9).Draw(t, "kind") {
	case 0:
		c.Body = &pb.Command_Tick{Tick: &pb.Tick{}}
		return c
	case 1:
		c.Origin = &pb.Origin{Session: 7}
	}
	o := &pb.CommitOffsets{Group: strs.Draw(t, "group"), Member: strs.Draw(t, "member"), Generation: int32(numbers.Draw(t, "generation")), By: strs.Draw(t, "by"),
		From: pb.OffsetOrigin(rapid.Int32Range(0, 3).Draw(t, "from")), Instance: strs.Draw(t, "instance"), NoEpochs: rapid.Bool().Draw(t, "no epochs"),
		NotSince: numbers.Draw(t, "not since")}
	for range rapid.IntRange(0, 4).Draw(t, "items") {
		o.Items = append(o.Items, &pb.OffsetItem{Topic: strs.Draw(t, "topic"), Partition: int32(numbers.Draw(t, "partition")), Offset: numbers.Draw(t, "offset"),
			LeaderEpoch: int32(numbers.Draw(t, "epoch")), Metadata: strs.Draw(t, "metadata"), RetentionMs: numbers.Draw(t, "retention"),
			TopicId: rapid.SliceOfN(rapid.Byte(), 0, 16).Draw(t, "id")})
	}
	c.Body = &pb.Command_CommitOffsets{CommitOffsets: o}
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 200, protowire.VarintType), 1)
	switch rapid.IntRange(0, 9).Draw(t, "unknown") {
	case 0:
		c.ProtoReflect().SetUnknown(unknown)
	case 1:
		o.ProtoReflect().SetUnknown(unknown)
	case 2:
		for _, it := range o.Items {
			it.ProtoReflect().SetUnknown(unknown)
		}
	}
	return c
}

func wrap(num protowire.Number, b []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), b)
}

// What is written by hand is what protobuf writes, and it is read as protobuf reads it.
func TestCommitsAreProtobuf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := &pb.Entry{ClockStepMs: rapid.Uint64Max(300).Draw(t, "step"), WallMs: numbers.Draw(t, "wall")}
		for range rapid.IntRange(0, 4).Draw(t, "commands") {
			c := drawCommand(t)
			want, wantErr := proto.Marshal(c)
			got, err := AppendCommand([]byte("before"), c)
			if (err != nil) != (wantErr != nil) || err == nil && string(got) != "before"+string(want) {
				t.Fatalf("%v\nis    %x, %v\nnot   %x, %v", c, got[min(len(got), 6):], err, want, wantErr)
			}
			if err == nil {
				e.Commands = append(e.Commands, c)
			}
		}
		b, err := proto.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		var got pb.Entry
		if err := unmarshalEntry(b, &got); err != nil || !proto.Equal(&got, e) {
			t.Fatalf("%v\nread as %v\n%v", e, &got, err)
		}
	})
}

// A length takes one byte more at each power of 128.
func TestCommitsOfEveryLength(t *testing.T) {
	for _, n := range []int{0, 100, 127, 128, 16_300, 16_384, 1 << 20, 1<<21 + 5} {
		c := &pb.Command{Body: &pb.Command_CommitOffsets{CommitOffsets: &pb.CommitOffsets{Items: []*pb.OffsetItem{{Metadata: strings.Repeat("x", n)}}}}}
		want, err := proto.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := AppendCommand(nil, c); err != nil || !bytes.Equal(got, want) {
			t.Errorf("metadata of %d bytes: %v, or other bytes", n, err)
		}
	}
	empty := &pb.Command{Body: &pb.Command_CommitOffsets{CommitOffsets: &pb.CommitOffsets{Items: []*pb.OffsetItem{nil}}}}
	want, err := proto.Marshal(empty)
	if got, err2 := AppendCommand(nil, empty); err2 != err || !bytes.Equal(got, want) {
		t.Errorf("an item that is nil: %x, %v", got, err2)
	}
}

// Whoever adds a field to one of these messages must add it to commits.go too, or it is left out without a word.
func TestCommitsKnowTheirFields(t *testing.T) {
	for _, m := range []struct {
		message proto.Message
		below   protowire.Number // of those that commits.go writes
		want    int
	}{{&pb.CommitOffsets{}, 1000, 9}, {&pb.OffsetItem{}, 1000, 7}, {&pb.Command{}, 16, fieldTerm + 1}, {&pb.Entry{}, 1000, 3}} {
		n := 0
		for i, fields := 0, m.message.ProtoReflect().Descriptor().Fields(); i < fields.Len(); i++ {
			if fields.Get(i).Number() < m.below {
				n++
			}
		}
		if n != m.want {
			t.Errorf("%T has %d fields, commits.go knows %d", m.message, n, m.want)
		}
	}
}

// FuzzEntry: any bytes come to what protobuf makes of them.
func FuzzEntry(f *testing.F) {
	for _, c := range []*pb.Command{
		{Version: 1, Term: 3, Body: &pb.Command_CommitOffsets{CommitOffsets: &pb.CommitOffsets{Group: "g", Member: "m", Generation: -1, By: "c@h", From: pb.OffsetOrigin_ORIGIN_KAFKA,
			Instance: "i", NoEpochs: true, NotSince: 9, Items: []*pb.OffsetItem{{Topic: "t", Partition: 1, Offset: 2, LeaderEpoch: -1, Metadata: "x", RetentionMs: -1, TopicId: make([]byte, 16)},
				{Topic: "u"}}}}},
		{Version: 1, Body: &pb.Command_Tick{Tick: &pb.Tick{}}},
	} {
		b, err := proto.Marshal(&pb.Entry{ClockStepMs: 10, WallMs: 20, Commands: []*pb.Command{c, c}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	body := func(b []byte) []byte { return wrap(3, append(protowire.AppendVarint([]byte{8}, 1), b...)) }
	for _, b := range [][]byte{ // what the usual way is for
		body(slices.Concat(wrap(61, wrap(1, []byte("g"))), wrap(61, wrap(2, []byte("m"))))),                   // bodies of one kind merge
		body(slices.Concat(wrap(61, wrap(1, []byte("g"))), wrap(17, nil))),                                    // the last one counts
		body(slices.Concat(wrap(17, nil), wrap(61, wrap(1, []byte("g"))))),                                    //
		body(wrap(61, wrap(1, []byte("\xff")))),                                                               // no UTF-8
		body(wrap(61, wrap(6, wrap(1, []byte("\xff"))))),                                                      //
		body(wrap(61, wrap(6, protowire.AppendVarint(protowire.AppendTag(nil, 7, protowire.VarintType), 1)))), // of another type
		body(wrap(61, wrap(200, []byte("x")))),                                                                // of a newer build
		body(wrap(61, []byte{0x0a, 9, 'x'})),                                                                  // cut
		wrap(3, []byte{0xff}), wrap(3, wrap(17, []byte{0xff})), wrap(4, []byte("x")), {0x18, 1},
	} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var want, got pb.Entry
		wantErr, err := proto.Unmarshal(b, &want), unmarshalEntry(b, &got)
		if (err != nil) != (wantErr != nil) || err == nil && !proto.Equal(&got, &want) {
			t.Fatalf("%v, %v\nnot %v, %v", &got, err, &want, wantErr)
		}
		for _, c := range got.Commands {
			if o := c.GetCommitOffsets(); err == nil && !utf8.ValidString(o.GetGroup()) {
				t.Fatalf("a group of %q", o.GetGroup())
			}
		}
	})
}
