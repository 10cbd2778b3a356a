package statepb

import (
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Commits of offsets are most of what a busy log holds, and decoding one by reflection took a quarter of its Apply. So they are written
// and read by hand here; whatever is not a plain commit goes the usual way, and so does everything that is wrong.

const (
	fieldEntryCommands = 3  // of Entry
	fieldTerm          = 6  // of Command: 1 to 6 are the numbers of the envelope
	fieldCommitOffsets = 61 // of Command
)

// commandRoom is what AppendCommand leaves for fields that the caller appends.
const commandRoom = 40

// AppendCommand is proto.MarshalAppend.
func AppendCommand(b []byte, c *Command) ([]byte, error) {
	o := c.GetCommitOffsets()
	if o == nil || c.Origin != nil || c.unknownFields != nil || !o.plain() {
		b = slices.Grow(b, proto.Size(c)+commandRoom)
		return proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, c)
	}
	b = slices.Grow(b, 64+64*len(o.Items)+commandRoom) // of most
	b = appendNumber(b, 1, uint64(c.Version))
	b = appendNumber(b, 2, uint64(c.Level))
	b = appendNumber(b, 3, c.Lane)
	b = appendNumber(b, 4, c.Seq)
	b = appendNumber(b, 5, c.Seen)
	b = appendNumber(b, fieldTerm, c.Term)
	return appendMessage(b, fieldCommitOffsets, o.append), nil
}

// plain reports whether append writes all of it: strings are UTF-8, as protobuf wants them, and no field is of a newer build.
func (o *CommitOffsets) plain() bool {
	for _, it := range o.Items {
		if it == nil || it.unknownFields != nil || !utf8.ValidString(it.Topic) || !utf8.ValidString(it.Metadata) {
			return false
		}
	}
	return o.unknownFields == nil && utf8.ValidString(o.Group) && utf8.ValidString(o.Member) && utf8.ValidString(o.By) && utf8.ValidString(o.Instance)
}

func (o *CommitOffsets) append(b []byte) []byte {
	b = appendString(b, 1, o.Group)
	b = appendString(b, 2, o.Member)
	b = appendNumber(b, 3, uint64(o.Generation))
	b = appendString(b, 4, o.By)
	b = appendNumber(b, 5, uint64(o.From))
	for _, it := range o.Items {
		b = appendMessage(b, 6, it.append)
	}
	b = appendString(b, 7, o.Instance)
	b = appendNumber(b, 8, protowire.EncodeBool(o.NoEpochs))
	return appendNumber(b, 9, uint64(o.NotSince))
}

func (it *OffsetItem) append(b []byte) []byte {
	b = appendString(b, 1, it.Topic)
	b = appendNumber(b, 2, uint64(it.Partition))
	b = appendNumber(b, 3, uint64(it.Offset))
	b = appendNumber(b, 4, uint64(it.LeaderEpoch))
	b = appendString(b, 5, it.Metadata)
	b = appendNumber(b, 6, uint64(it.RetentionMs))
	return appendString(b, 7, string(it.TopicId))
}

func appendNumber(b []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), v)
}

func appendString(b []byte, num protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), s)
}

// appendMessage appends what fill appends, after its length.
func appendMessage(b []byte, num protowire.Number, fill func([]byte) []byte) []byte {
	b = protowire.AppendTag(b, num, protowire.BytesType)
	at := len(b)
	b = fill(append(b, 0))
	n := len(b) - at - 1
	if more := protowire.SizeVarint(uint64(n)) - 1; more > 0 { // most are shorter than 128 bytes
		b = slices.Insert(b, at+1, make([]byte, more)...)
	}
	protowire.AppendVarint(b[:at], uint64(n))
	return b
}

// UnmarshalEntry is proto.Unmarshal. Topic ids of commits are parts of b.
func UnmarshalEntry(b []byte, e *Entry) error {
	whole := b
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 || num > fieldEntryCommands {
			return proto.Unmarshal(whole, e)
		}
		b = b[n:]
		if num < fieldEntryCommands && typ == protowire.VarintType {
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return proto.Unmarshal(whole, e)
			}
			b = b[n:]
			if num == 1 {
				e.ClockStepMs = v
			} else {
				e.WallMs = int64(v)
			}
			continue
		}
		raw, n := protowire.ConsumeBytes(b)
		if n < 0 || num != fieldEntryCommands || typ != protowire.BytesType {
			return proto.Unmarshal(whole, e)
		}
		b = b[n:]
		c := unmarshalCommit(raw)
		if c == nil {
			c = new(Command)
			if err := proto.Unmarshal(raw, c); err != nil {
				return err
			}
		}
		e.Commands = append(e.Commands, c)
	}
	return nil
}

// commit is a command that commits, with its first offset.
type commit struct {
	command Command
	body    Command_CommitOffsets
	offsets CommitOffsets
	items   [1]*OffsetItem
	item    OffsetItem
}

// unmarshalCommit returns nil for what it does not read.
func unmarshalCommit(b []byte) *Command {
	var c *commit
	var envelope [fieldTerm + 1]uint64
	for len(b) > 0 {
		num, v, raw, n := consume(b)
		switch {
		case n < 0:
			return nil
		case num == fieldCommitOffsets && raw != nil && c == nil:
			if c = new(commit); !c.unmarshal(raw) {
				return nil
			}
		case num > fieldTerm || raw != nil:
			return nil
		default:
			envelope[num] = v
		}
		b = b[n:]
	}
	if c == nil {
		return nil
	}
	c.command.Version, c.command.Level = uint32(envelope[1]), uint32(envelope[2])
	c.command.Lane, c.command.Seq, c.command.Seen, c.command.Term = envelope[3], envelope[4], envelope[5], envelope[fieldTerm]
	c.body.CommitOffsets = &c.offsets
	c.command.Body = &c.body
	return &c.command
}

// consume reads one field, a number or bytes (then not nil); n < 0: it is something else.
func consume(b []byte) (num protowire.Number, v uint64, raw []byte, n int) {
	num, typ, n := protowire.ConsumeTag(b)
	if n < 0 {
		return 0, 0, nil, n
	}
	m := -1
	switch typ {
	case protowire.VarintType:
		v, m = protowire.ConsumeVarint(b[n:])
	case protowire.BytesType:
		raw, m = protowire.ConsumeBytes(b[n:])
	}
	if m < 0 {
		return 0, 0, nil, m
	}
	return num, v, raw, n + m
}

func (c *commit) unmarshal(b []byte) bool {
	o := &c.offsets
	o.Items = c.items[:0]
	for len(b) > 0 {
		num, v, raw, n := consume(b)
		if n < 0 || !utf8.Valid(raw) && num != 6 || (raw != nil) != (num == 1 || num == 2 || num == 4 || num == 6 || num == 7) {
			return false
		}
		b = b[n:]
		switch num {
		case 1:
			o.Group = string(raw)
		case 2:
			o.Member = string(raw)
		case 3:
			o.Generation = int32(v)
		case 4:
			o.By = string(raw)
		case 5:
			o.From = OffsetOrigin(v)
		case 6:
			it := &c.item
			if len(o.Items) > 0 {
				it = new(OffsetItem)
			}
			if !it.unmarshal(raw) {
				return false
			}
			o.Items = append(o.Items, it)
		case 7:
			o.Instance = string(raw)
		case 8:
			o.NoEpochs = v != 0
		case 9:
			o.NotSince = int64(v)
		default:
			return false
		}
	}
	return true
}

func (it *OffsetItem) unmarshal(b []byte) bool {
	for len(b) > 0 {
		num, v, raw, n := consume(b)
		if n < 0 || !utf8.Valid(raw) && num != 7 || (raw != nil) != (num == 1 || num == 5 || num == 7) {
			return false
		}
		b = b[n:]
		switch num {
		case 1:
			it.Topic = string(raw)
		case 2:
			it.Partition = int32(v)
		case 3:
			it.Offset = int64(v)
		case 4:
			it.LeaderEpoch = int32(v)
		case 5:
			it.Metadata = string(raw)
		case 6:
			it.RetentionMs = int64(v)
		case 7:
			it.TopicId = raw
		default:
			return false
		}
	}
	return true
}
