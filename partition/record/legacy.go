package record

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/barnabas-mq/barnabas/internal/id"
)

// Layout of a message of magic 0 and 1 (LegacyRecord), with the offset and size that precede it in a set. The CRC (IEEE) covers
// everything from the magic on.
const (
	atMsgCRC       = 12
	atMsgMagic     = 16
	atMsgAttrs     = 17
	atMsgTimestamp = 18 // magic 1 only

	msgOverheadV0 = 26 // all of a message but key and value
	msgOverheadV1 = 34
)

const msgAttrLogAppendTime = 0x08

// message is one decoded message of magic 0 or 1, perhaps a wrapper whose value is a packed set.
type message struct {
	offset    int64
	magic     int8
	codec     Codec
	tsType    TimestampType
	timestamp int64
	key       []byte
	value     []byte
}

func msgOverhead(magic int8) int {
	if magic == 0 {
		return msgOverheadV0
	}
	return msgOverheadV1
}

// nextMessage splits the first message off a set and verifies it.
func nextMessage(set []byte) (m message, rest []byte, err error) {
	size, magic, err := Peek(set)
	if err != nil {
		return m, nil, err
	}
	if magic < 0 || magic > 1 {
		return m, nil, fmt.Errorf("%w: magic %d where magic 0 or 1 was expected", ErrUnsupportedFormat, magic)
	}
	if size > int64(len(set)) {
		return m, nil, corruptf("message of %d bytes is cut off after %d", size, len(set))
	}
	if size < int64(msgOverhead(magic)) {
		return m, nil, corruptf("message of %d bytes is shorter than its header", size)
	}
	p := set[:size:size]
	if got, want := crc32.ChecksumIEEE(p[atMsgMagic:]), binary.BigEndian.Uint32(p[atMsgCRC:]); got != want {
		return m, nil, corruptf("message: crc %08x, stored %08x", got, want)
	}
	m = message{offset: int64(binary.BigEndian.Uint64(p)), magic: magic, codec: Codec(p[atMsgAttrs] & attrCodec), timestamp: NoTimestamp}
	body := p[atMsgTimestamp:]
	if magic == 1 {
		m.timestamp = int64(binary.BigEndian.Uint64(body))
		body = body[8:]
		if p[atMsgAttrs]&msgAttrLogAppendTime != 0 {
			m.tsType = LogAppendTime
		}
	}
	var ok bool
	if m.key, body, ok = takeBytes32(body); ok {
		m.value, body, ok = takeBytes32(body)
	}
	if !ok || len(body) != 0 {
		return m, nil, corruptf("message: key and value do not fill its %d bytes", size)
	}
	return m, set[size:], nil
}

// takeBytes32 reads an int32 length, -1 for null, and the bytes.
func takeBytes32(p []byte) (out, rest []byte, ok bool) {
	if len(p) < 4 {
		return nil, nil, false
	}
	n := int64(int32(binary.BigEndian.Uint32(p)))
	p = p[4:]
	if n == -1 {
		return nil, p, true
	}
	if n < 0 || n > int64(len(p)) {
		return nil, nil, false
	}
	return p[:n:n], p[n:], true
}

// appendMessage appends a message, with the CRC, to a set.
func appendMessage(dst []byte, m *message) []byte {
	start := len(dst)
	dst = binary.BigEndian.AppendUint64(dst, uint64(m.offset))
	dst = binary.BigEndian.AppendUint32(dst, uint32(msgOverhead(m.magic)-PrefixSize+len(m.key)+len(m.value)))
	attrs := byte(m.codec)
	if m.magic == 1 && m.tsType == LogAppendTime {
		attrs |= msgAttrLogAppendTime
	}
	dst = append(dst, 0, 0, 0, 0, byte(m.magic), attrs)
	if m.magic == 1 {
		dst = binary.BigEndian.AppendUint64(dst, uint64(m.timestamp))
	}
	dst = appendBytes32(dst, m.key)
	dst = appendBytes32(dst, m.value)
	binary.BigEndian.PutUint32(dst[start+atMsgCRC:], crc32.ChecksumIEEE(dst[start+atMsgMagic:]))
	return dst
}

func appendBytes32(dst, p []byte) []byte {
	if p == nil {
		return binary.BigEndian.AppendUint32(dst, math.MaxUint32)
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(p)))
	return append(dst, p...)
}

// MessageSet reads a set of magic 0 and 1 and calls fn for each record, wrappers opened, in order. Offsets are absolute
// as a fetcher is to see them. A message cut off at the end of the set is an error. The record lives until fn returns.
// It is how an old client reads what DownConvert wrote. Errors: ErrCorrupt, ErrInvalidRecord, ErrTooLarge,
// ErrUnsupportedCompression, ErrUnsupportedFormat (magic 2), and those of fn.
func (c *Codecs) MessageSet(set []byte, fn func(*Record) error) error {
	return c.walkSet(set, func(_ *message, rec *Record) error { return fn(rec) })
}

// walkSet is MessageSet with the outer message beside each record.
func (c *Codecs) walkSet(set []byte, fn func(outer *message, rec *Record) error) error {
	for len(set) > 0 {
		m, rest, err := nextMessage(set)
		if err != nil {
			return err
		}
		set = rest
		if m.codec == None {
			rec := Record{Offset: id.Offset(m.offset), Timestamp: m.timestamp, Key: m.key, Value: m.value}
			err = fn(&m, &rec)
		} else {
			err = c.walkWrapper(&m, fn)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// walkWrapper opens a packed set. Magic 0 holds absolute offsets inside, magic 1 relative ones with the last record's absolute
// offset outside (KIP-31).
func (c *Codecs) walkWrapper(outer *message, fn func(*message, *Record) error) error {
	if outer.value == nil {
		return invalidf("packed message with a null value")
	}
	inner, err := c.decompress(outer.codec, outer.magic, outer.value)
	if err != nil {
		return err
	}
	shift := int64(0)
	if outer.magic == 1 {
		last, err := lastInnerOffset(inner)
		if err != nil {
			return err
		}
		shift = outer.offset - last
	}
	if len(inner) == 0 {
		return invalidf("packed message with nothing inside")
	}
	for len(inner) > 0 {
		m, rest, err := nextMessage(inner)
		if err != nil {
			return err
		}
		inner = rest
		if m.codec != None || m.magic != outer.magic {
			return invalidf("magic %d, %v inside a packed message of magic %d", m.magic, m.codec, outer.magic)
		}
		rec := Record{Offset: id.Offset(m.offset + shift), Timestamp: m.timestamp, Key: m.key, Value: m.value}
		if outer.tsType == LogAppendTime {
			rec.Timestamp = outer.timestamp
		}
		if err := fn(outer, &rec); err != nil {
			return err
		}
	}
	return nil
}

// lastInnerOffset hops over the messages of an unpacked set without verifying them.
func lastInnerOffset(set []byte) (last int64, err error) {
	for len(set) > 0 {
		size, _, err := Peek(set)
		if err != nil {
			return 0, err
		}
		if size > int64(len(set)) {
			return 0, corruptf("message of %d bytes is cut off after %d", size, len(set))
		}
		last = int64(binary.BigEndian.Uint64(set))
		set = set[size:]
	}
	return last, nil
}
