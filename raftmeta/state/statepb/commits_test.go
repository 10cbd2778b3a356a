package statepb

import (
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

var (
	numbers = rapid.OneOf(rapid.Just(int64(0)), rapid.Just(int64(-1)), rapid.Int64())
	strs    = rapid.OneOf(rapid.Just(""), rapid.String(), rapid.StringN(100, 300, -1), rapid.Just("\xff"))
)

func drawCommand(t *rapid.T) *Command {
	c := &Command{Version: rapid.Uint32Max(2).Draw(t, "version"), Level: rapid.Uint32Max(2).Draw(t, "level"), Lane: rapid.Uint64Max(300).Draw(t, "lane"),
		Seq: rapid.Uint64Max(300).Draw(t, "seq"), Seen: rapid.Uint64Max(2).Draw(t, "seen"), Term: rapid.Uint64Max(2).Draw(t, "term")}
	switch rapid.IntRange(0, 9).Draw(t, "kind") {
	case 0:
		c.Body = &Command_Tick{Tick: &Tick{}}
		return c
	case 1:
		c.Origin = &Origin{Session: 7}
	}
	o := &CommitOffsets{Group: strs.Draw(t, "group"), Member: strs.Draw(t, "member"), Generation: int32(numbers.Draw(t, "generation")), By: strs.Draw(t, "by"),
		From: OffsetOrigin(rapid.Int32Range(0, 3).Draw(t, "from")), Instance: strs.Draw(t, "instance"), NoEpochs: rapid.Bool().Draw(t, "no epochs"),
		NotSince: numbers.Draw(t, "not since")}
	for range rapid.IntRange(0, 4).Draw(t, "items") {
		o.Items = append(o.Items, &OffsetItem{Topic: strs.Draw(t, "topic"), Partition: int32(numbers.Draw(t, "partition")), Offset: numbers.Draw(t, "offset"),
			LeaderEpoch: int32(numbers.Draw(t, "epoch")), Metadata: strs.Draw(t, "metadata"), RetentionMs: numbers.Draw(t, "retention"),
			TopicId: rapid.SliceOfN(rapid.Byte(), 0, 16).Draw(t, "id")})
	}
	c.Body = &Command_CommitOffsets{CommitOffsets: o}
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

// What is written by hand is what protobuf writes, and it is read as protobuf reads it.
func TestCommitsAreProtobuf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := &Entry{ClockStepMs: rapid.Uint64Max(300).Draw(t, "step"), WallMs: numbers.Draw(t, "wall")}
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
		var got Entry
		if err := UnmarshalEntry(b, &got); err != nil || !proto.Equal(&got, e) {
			t.Fatalf("%v\nread as %v\n%v", e, &got, err)
		}
	})
}

// FuzzEntry: any bytes come to what protobuf makes of them.
func FuzzEntry(f *testing.F) {
	for _, c := range []*Command{
		{Version: 1, Term: 3, Body: &Command_CommitOffsets{CommitOffsets: &CommitOffsets{Group: "g", Member: "m", Generation: -1, By: "c@h", From: OffsetOrigin_ORIGIN_KAFKA,
			Instance: "i", NoEpochs: true, NotSince: 9, Items: []*OffsetItem{{Topic: "t", Partition: 1, Offset: 2, LeaderEpoch: -1, Metadata: "x", RetentionMs: -1, TopicId: make([]byte, 16)},
				{Topic: "u"}}}}},
		{Version: 1, Body: &Command_Tick{Tick: &Tick{}}},
	} {
		b, err := proto.Marshal(&Entry{ClockStepMs: 10, WallMs: 20, Commands: []*Command{c, c}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var want, got Entry
		wantErr, err := proto.Unmarshal(b, &want), UnmarshalEntry(b, &got)
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
