package state

import (
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// Commits of offsets are most of what a busy log holds, and decoding one by reflection took a quarter of its Apply. So they are written
// and read by hand here; whatever is not a plain commit goes the usual way, and so does everything that is wrong.

const (
	fieldTerm          = 6  // of Command: 1 to 6 are the numbers of the envelope
	fieldCommitOffsets = 61 // of Command
)

// commandRoom is what AppendCommand leaves for fields that the caller appends.
const commandRoom = 40

// AppendCommand is proto.MarshalAppend.
func AppendCommand(b []byte, c *statepb.Command) ([]byte, error) {
	o := c.GetCommitOffsets()
	if o == nil || c.Origin != nil || newerFields(c) || newerFields(o) || !texts(o) || slices.ContainsFunc(o.Items, newerItem) {
		b = slices.Grow(b, proto.Size(c)+commandRoom)
		return proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, c)
	}
	e := enc{b: slices.Grow(b, 64+64*len(o.Items)+commandRoom)} // of most
	e.u64(1, uint64(c.Version))
	e.u64(2, uint64(c.Level))
	e.u64(3, c.Lane)
	e.u64(4, c.Seq)
	e.u64(5, c.Seen)
	e.u64(fieldTerm, c.Term)
	e.sub(fieldCommitOffsets, func(e *enc) { encodeCommit(e, o) })
	return e.b, nil
}

func newerFields(m proto.Message) bool { return len(m.ProtoReflect().GetUnknown()) > 0 }

func newerItem(it *statepb.OffsetItem) bool { return it == nil || newerFields(it) }

// texts reports whether all strings are UTF-8, as protobuf wants them.
func texts(o *statepb.CommitOffsets) bool {
	for _, it := range o.Items {
		if !utf8.ValidString(it.GetTopic()) || !utf8.ValidString(it.GetMetadata()) {
			return false
		}
	}
	return utf8.ValidString(o.Group) && utf8.ValidString(o.Member) && utf8.ValidString(o.By) && utf8.ValidString(o.Instance)
}

func encodeCommit(e *enc, o *statepb.CommitOffsets) {
	e.str(1, o.Group)
	e.str(2, o.Member)
	e.u64(3, uint64(o.Generation))
	e.str(4, o.By)
	e.u64(5, uint64(o.From))
	for _, it := range o.Items {
		e.sub(6, func(e *enc) {
			e.str(1, it.Topic)
			e.u64(2, uint64(it.Partition))
			e.u64(3, uint64(it.Offset))
			e.u64(4, uint64(it.LeaderEpoch))
			e.str(5, it.Metadata)
			e.u64(6, uint64(it.RetentionMs))
			e.bytes(7, it.TopicId)
		})
	}
	e.str(7, o.Instance)
	e.flag(8, o.NoEpochs)
	e.u64(9, uint64(o.NotSince))
}

// unmarshalEntry is proto.Unmarshal into an empty Entry. Topic ids of commits are parts of b.
func unmarshalEntry(b []byte, entry *statepb.Entry) error {
	d := dec{b: b}
	for d.next() {
		switch d.num {
		case 1:
			entry.ClockStepMs = d.u64()
		case 2:
			entry.WallMs = int64(d.u64())
		case 3:
			raw := d.raw()
			c := decodeCommit(raw)
			if c == nil {
				c = new(statepb.Command)
				if err := proto.Unmarshal(raw, c); err != nil {
					return err
				}
			}
			entry.Commands = append(entry.Commands, c)
		default:
			return proto.Unmarshal(b, entry)
		}
	}
	if d.err != nil {
		return proto.Unmarshal(b, entry)
	}
	return nil
}

// commitCommand is a command that commits, with its first offset.
type commitCommand struct {
	command statepb.Command
	body    statepb.Command_CommitOffsets
	offsets statepb.CommitOffsets
	items   [1]*statepb.OffsetItem
	item    statepb.OffsetItem
}

// decodeCommit returns nil for what it does not read.
func decodeCommit(b []byte) *statepb.Command {
	var c *commitCommand
	var envelope [fieldTerm + 1]uint64
	d := dec{b: b}
	for d.next() {
		switch {
		case d.num == fieldCommitOffsets && c == nil:
			c = new(commitCommand)
			if !c.decode(d.raw()) {
				return nil
			}
		case d.num > fieldTerm:
			return nil
		default:
			envelope[d.num] = d.u64()
		}
	}
	if c == nil || d.err != nil || !texts(&c.offsets) {
		return nil
	}
	c.command.Version, c.command.Level = uint32(envelope[1]), uint32(envelope[2])
	c.command.Lane, c.command.Seq, c.command.Seen, c.command.Term = envelope[3], envelope[4], envelope[5], envelope[fieldTerm]
	c.body.CommitOffsets = &c.offsets
	c.command.Body = &c.body
	return &c.command
}

func (c *commitCommand) decode(b []byte) bool {
	o := &c.offsets
	o.Items = c.items[:0]
	d := dec{b: b}
	for d.next() {
		switch d.num {
		case 1:
			o.Group = d.str()
		case 2:
			o.Member = d.str()
		case 3:
			o.Generation = int32(d.u64())
		case 4:
			o.By = d.str()
		case 5:
			o.From = statepb.OffsetOrigin(d.u64())
		case 6:
			it := &c.item
			if len(o.Items) > 0 {
				it = new(statepb.OffsetItem)
			}
			if !decodeItem(d.raw(), it) {
				return false
			}
			o.Items = append(o.Items, it)
		case 7:
			o.Instance = d.str()
		case 8:
			o.NoEpochs = d.flag()
		case 9:
			o.NotSince = int64(d.u64())
		default:
			return false
		}
	}
	return d.err == nil
}

func decodeItem(b []byte, it *statepb.OffsetItem) bool {
	d := dec{b: b}
	for d.next() {
		switch d.num {
		case 1:
			it.Topic = d.str()
		case 2:
			it.Partition = int32(d.u64())
		case 3:
			it.Offset = int64(d.u64())
		case 4:
			it.LeaderEpoch = int32(d.u64())
		case 5:
			it.Metadata = d.str()
		case 6:
			it.RetentionMs = int64(d.u64())
		case 7:
			it.TopicId = d.raw()
		default:
			return false
		}
	}
	return d.err == nil
}
