package record

import (
	"encoding/binary"
	"math"

	"github.com/barnabas-mq/barnabas/internal/id"
)

// BatchHeader is what a new batch says beside its records.
type BatchHeader struct {
	Codec         Codec
	TimestampType TimestampType
	AppendTime    int64 // with LogAppendTime: the timestamp of all records
	LeaderEpoch   id.LeaderEpoch
	ProducerID    int64 // NoProducer, with -1 in the next two, unless idempotent
	ProducerEpoch int16
	BaseSequence  int32
	Transactional bool
	Control       bool
}

// PlainHeader is the header of a batch without producer id, uncompressed, with the records' own timestamps.
func PlainHeader() BatchHeader {
	return BatchHeader{LeaderEpoch: -1, ProducerID: NoProducer, ProducerEpoch: -1, BaseSequence: NoSequence}
}

// Build appends one magic 2 batch to dst and returns it. Records must have rising offsets; the first is the batch's base. It needs
// at least one. Errors: ErrTooLarge when the batch would pass 2 GiB, ErrInvalidRecord for offsets that do not rise.
func (c *Codecs) Build(dst []byte, h BatchHeader, records []Record) ([]byte, error) {
	if len(records) == 0 {
		return nil, invalidf("a batch needs a record")
	}
	base := records[0].Offset
	baseTS, maxTS := records[0].Timestamp, records[0].Timestamp
	start := len(dst)
	dst = append(dst, make([]byte, HeaderSize)...)
	body := dst
	if h.Codec != None {
		body = c.scratch[:0]
	}
	prev := base - 1
	for i := range records {
		rec := &records[i]
		if rec.Offset <= prev || rec.Offset-base > math.MaxInt32 {
			return nil, invalidf("offset %d after %d in one batch", rec.Offset, prev)
		}
		prev = rec.Offset
		maxTS = max(maxTS, rec.Timestamp)
		body = appendRecord(body, rec, int64(rec.Offset-base), rec.Timestamp-baseTS)
		if len(body) > math.MaxInt32-HeaderSize {
			return nil, tooLarge(len(body), math.MaxInt32)
		}
	}
	if h.Codec == None {
		dst = body
	} else {
		c.scratch = body[:0]
		var err error
		if dst, err = c.compress(dst, h.Codec, 2, body); err != nil {
			return nil, err
		}
	}
	b := Batch(dst[start:])
	attrs := uint16(h.Codec)
	if h.TimestampType == LogAppendTime {
		attrs |= attrLogAppendTime
		maxTS = h.AppendTime
	}
	if h.Transactional {
		attrs |= attrTransactional
	}
	if h.Control {
		attrs |= attrControl
	}
	b.Assign(base, h.LeaderEpoch)
	b[atMagic] = 2
	binary.BigEndian.PutUint32(b[atLength:], uint32(len(b)-PrefixSize))
	binary.BigEndian.PutUint16(b[atAttributes:], attrs)
	binary.BigEndian.PutUint32(b[atLastDelta:], uint32(prev-base))
	binary.BigEndian.PutUint64(b[atBaseTimestamp:], uint64(baseTS))
	binary.BigEndian.PutUint64(b[atMaxTimestamp:], uint64(maxTS))
	binary.BigEndian.PutUint64(b[atProducerID:], uint64(h.ProducerID))
	binary.BigEndian.PutUint16(b[atProducerEpoch:], uint16(h.ProducerEpoch))
	binary.BigEndian.PutUint32(b[atBaseSequence:], uint32(h.BaseSequence))
	binary.BigEndian.PutUint32(b[atCount:], uint32(len(records)))
	b.seal()
	return dst, nil
}

func appendRecord(dst []byte, rec *Record, offsetDelta, tsDelta int64) []byte {
	size := 1 + varintLen(tsDelta) + varintLen(offsetDelta) + varBytesLen(rec.Key) + varBytesLen(rec.Value) +
		varintLen(int64(rec.nHeaders)) + len(rec.headers)
	dst = binary.AppendVarint(dst, int64(size))
	dst = append(dst, 0)
	dst = binary.AppendVarint(dst, tsDelta)
	dst = binary.AppendVarint(dst, offsetDelta)
	dst = appendVarBytes(dst, rec.Key)
	dst = appendVarBytes(dst, rec.Value)
	dst = binary.AppendVarint(dst, int64(rec.nHeaders))
	return append(dst, rec.headers...)
}
