package record

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/barnabas-mq/barnabas/internal/id"
)

// Layout of a magic 2 batch: the offset of each field. The CRC (Castagnoli) covers everything from the attributes on, so base
// offset and leader epoch are assigned without touching it.
const (
	atBaseOffset    = 0
	atLength        = 8 // of all that follows it
	atLeaderEpoch   = 12
	atMagic         = 16
	atCRC           = 17
	atAttributes    = 21
	atLastDelta     = 23
	atBaseTimestamp = 27
	atMaxTimestamp  = 35
	atProducerID    = 43
	atProducerEpoch = 51
	atBaseSequence  = 53
	atCount         = 57

	// HeaderSize is the size in bytes of a batch without records.
	HeaderSize = 61
	// PrefixSize is how many bytes tell the size of a batch or message of any magic (offset and length).
	PrefixSize = 12
)

// Attribute bits of a magic 2 batch. The low three are the codec.
const (
	attrCodec         = 0x07
	attrLogAppendTime = 0x08
	attrTransactional = 0x10
	attrControl       = 0x20
)

// minRecordSize is an empty record: length, attributes, two deltas, two lengths, header count.
const minRecordSize = 7

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// NoTimestamp marks a record without one (magic 0). NoProducer is the producer id of a batch without one; the epoch and
// sequence then are -1 too.
const (
	NoTimestamp int64 = -1
	NoProducer  int64 = -1
	NoSequence  int32 = -1
)

// TimestampType says who stamped a record.
type TimestampType int8

// The timestamp types, as in message.timestamp.type.
const (
	CreateTime    TimestampType = 0
	LogAppendTime TimestampType = 1
)

// Batch is exactly one magic 2 batch: a view, not a copy. Next makes one; accessors panic on anything shorter than a header.
type Batch []byte

// Next splits the first batch off a run of batches. It checks the magic and that the batch is whole, not its CRC: see Check.
// rest is what follows. Errors: ErrCorrupt (cut off, impossible length), ErrUnsupportedFormat (another magic).
func Next(run []byte) (b Batch, rest []byte, err error) {
	size, magic, err := Peek(run)
	if err != nil {
		return nil, nil, err
	}
	if magic != 2 {
		return nil, nil, fmt.Errorf("%w: magic %d where a magic 2 batch was expected", ErrUnsupportedFormat, magic)
	}
	if size < HeaderSize {
		return nil, nil, corruptf("batch of %d bytes is shorter than its header", size)
	}
	if size > int64(len(run)) {
		return nil, nil, corruptf("batch of %d bytes is cut off after %d", size, len(run))
	}
	return Batch(run[:size:size]), run[size:], nil
}

// Peek tells the size, in bytes with its prefix, and the magic of the batch or message that starts at p, which needs only its
// first 17 bytes. The size may exceed len(p).
func Peek(p []byte) (size int64, magic int8, err error) {
	if len(p) < atMagic+1 {
		return 0, 0, corruptf("%d bytes are too few for a batch", len(p))
	}
	size = PrefixSize + int64(int32(binary.BigEndian.Uint32(p[atLength:])))
	if size < atMagic+1 {
		return 0, 0, corruptf("batch length field is %d", size-PrefixSize)
	}
	return size, int8(p[atMagic]), nil
}

// BaseOffset is the offset of the first record (of a compacted batch: that it once had).
func (b Batch) BaseOffset() id.Offset { return id.Offset(binary.BigEndian.Uint64(b[atBaseOffset:])) }

// LastOffset is the offset of the last record, or that it once had.
func (b Batch) LastOffset() id.Offset { return b.BaseOffset() + id.Offset(b.LastOffsetDelta()) }

// LastOffsetDelta is LastOffset less BaseOffset.
func (b Batch) LastOffsetDelta() int32 { return b.int32(atLastDelta) }

// LeaderEpoch is the epoch of the leader that appended the batch; -1 if none did.
func (b Batch) LeaderEpoch() id.LeaderEpoch { return id.LeaderEpoch(b.int32(atLeaderEpoch)) }

// Codec is the compression of the records.
func (b Batch) Codec() Codec { return Codec(b.attributes() & attrCodec) }

// TimestampType says whether MaxTimestamp stands for every record's timestamp (LogAppendTime).
func (b Batch) TimestampType() TimestampType {
	if b.attributes()&attrLogAppendTime != 0 {
		return LogAppendTime
	}
	return CreateTime
}

// IsTransactional says that the batch belongs to a transaction.
func (b Batch) IsTransactional() bool { return b.attributes()&attrTransactional != 0 }

// IsControl says that the batch holds a transaction marker, not data.
func (b Batch) IsControl() bool { return b.attributes()&attrControl != 0 }

// BaseTimestamp is what record timestamps are deltas to, in milliseconds.
func (b Batch) BaseTimestamp() int64 { return b.int64(atBaseTimestamp) }

// MaxTimestamp is the largest timestamp in milliseconds, or NoTimestamp.
func (b Batch) MaxTimestamp() int64 { return b.int64(atMaxTimestamp) }

// ProducerID is NoProducer for a producer that is not idempotent.
func (b Batch) ProducerID() int64 { return b.int64(atProducerID) }

// ProducerEpoch is the epoch of the producer id, or -1.
func (b Batch) ProducerEpoch() int16 { return int16(binary.BigEndian.Uint16(b[atProducerEpoch:])) }

// BaseSequence is the sequence number of the first record, or NoSequence.
func (b Batch) BaseSequence() int32 { return b.int32(atBaseSequence) }

// LastSequence is the sequence number of the last record; sequence numbers wrap from 2^31-1 to 0. NoSequence if there is none.
func (b Batch) LastSequence() int32 {
	if b.BaseSequence() < 0 {
		return NoSequence
	}
	return AddSequence(b.BaseSequence(), b.LastOffsetDelta())
}

// AddSequence adds without leaving [0, 2^31-1] (DefaultRecordBatch.incrementSequence).
func AddSequence(seq, n int32) int32 {
	if seq > math.MaxInt32-n {
		return n - (math.MaxInt32 - seq) - 1
	}
	return seq + n
}

// Count is the number of records.
func (b Batch) Count() int { return int(b.int32(atCount)) }

// CRC is the stored checksum.
func (b Batch) CRC() uint32 { return binary.BigEndian.Uint32(b[atCRC:]) }

func (b Batch) attributes() uint16 { return binary.BigEndian.Uint16(b[atAttributes:]) }
func (b Batch) int32(at int) int32 { return int32(binary.BigEndian.Uint32(b[at:])) }
func (b Batch) int64(at int) int64 { return int64(binary.BigEndian.Uint64(b[at:])) }

// Check verifies the CRC and that the header makes sense: no record is looked at. Errors: ErrCorrupt.
func (b Batch) Check() error {
	if len(b) < HeaderSize || PrefixSize+int64(b.int32(atLength)) != int64(len(b)) || b[atMagic] != 2 {
		return corruptf("%d bytes are not one magic 2 batch", len(b))
	}
	if got := crc32.Checksum(b[atAttributes:], castagnoli); got != b.CRC() {
		return corruptf("batch at offset %d: crc %08x, stored %08x", b.BaseOffset(), got, b.CRC())
	}
	switch count, delta := b.Count(), b.LastOffsetDelta(); {
	case b.BaseOffset() < 0 || b.BaseOffset() > math.MaxInt64-math.MaxInt32:
		return corruptf("base offset is %d", b.BaseOffset())
	case delta < 0:
		return corruptf("batch at offset %d: last offset delta is %d", b.BaseOffset(), delta)
	case count < 0 || count-1 > int(delta):
		return corruptf("batch at offset %d: %d records in %d offsets", b.BaseOffset(), count, int(delta)+1)
	case b.Codec() == None && count > (len(b)-HeaderSize)/minRecordSize:
		return corruptf("batch at offset %d: %d records in %d bytes", b.BaseOffset(), count, len(b)-HeaderSize)
	}
	return nil
}

// Assign sets base offset and leader epoch in place. The CRC does not cover them.
func (b Batch) Assign(base id.Offset, epoch id.LeaderEpoch) {
	binary.BigEndian.PutUint64(b[atBaseOffset:], uint64(base))
	binary.BigEndian.PutUint32(b[atLeaderEpoch:], uint32(epoch))
}

// SetLogAppendTime stamps all records with ts (milliseconds) in place, and renews the CRC.
func (b Batch) SetLogAppendTime(ts int64) {
	binary.BigEndian.PutUint16(b[atAttributes:], b.attributes()|attrLogAppendTime)
	binary.BigEndian.PutUint64(b[atMaxTimestamp:], uint64(ts))
	b.seal()
}

// seal writes the CRC.
func (b Batch) seal() {
	binary.BigEndian.PutUint32(b[atCRC:], crc32.Checksum(b[atAttributes:], castagnoli))
}
