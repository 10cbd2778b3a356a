package record

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/barnabas-mq/barnabas/internal/id"
)

// Record is one record of any format. Key and Value are nil if null, and not nil if empty. All slices belong to the batch
// or to the Codecs that unpacked it.
type Record struct {
	Offset    id.Offset
	Timestamp int64 // milliseconds, or NoTimestamp
	Key       []byte
	Value     []byte
	headers   []byte // encoded, as in magic 2, without the count
	nHeaders  int
}

// Header is one header of a record; Value is nil if null.
type Header struct {
	Key   string
	Value []byte
}

// HeaderCount is how many headers the record has.
func (r *Record) HeaderCount() int { return r.nHeaders }

// Headers decodes the headers.
func (r *Record) Headers() []Header {
	if r.nHeaders == 0 {
		return nil
	}
	out := make([]Header, 0, r.nHeaders)
	d := decoder{p: r.headers}
	for range r.nHeaders {
		key, value := d.varBytes(), d.varBytes()
		out = append(out, Header{string(key), value})
	}
	return out
}

// SetHeaders encodes headers into the record, for Builder.
func (r *Record) SetHeaders(headers []Header) {
	r.headers, r.nHeaders = nil, len(headers)
	for _, h := range headers {
		r.headers = binary.AppendVarint(r.headers, int64(len(h.Key)))
		r.headers = append(r.headers, h.Key...)
		r.headers = appendVarBytes(r.headers, h.Value)
	}
}

// Records iterates over the records of one batch. Zero allocation; not for concurrent use.
type Records struct {
	b    Batch
	d    decoder
	left int
	last int32 // last offset delta seen, -1 before the first
}

// Records unpacks a batch, which must have passed Check. The iterator, and each Record, live until the next use of c.
// Errors: ErrCorrupt, ErrTooLarge (unpacked size over the cap), ErrUnsupportedCompression.
func (c *Codecs) Records(b Batch) (Records, error) {
	body := []byte(b[HeaderSize:])
	if codec := b.Codec(); codec != None {
		var err error
		if body, err = c.decompress(codec, 2, body); err != nil {
			return Records{}, fmt.Errorf("batch at offset %d: %w", b.BaseOffset(), err)
		}
	}
	if b.Count() > len(body)/minRecordSize {
		return Records{}, invalidf("batch at offset %d: %d records in %d bytes", b.BaseOffset(), b.Count(), len(body))
	}
	return Records{b: b, d: decoder{p: body}, left: b.Count(), last: -1}, nil
}

// Next reads the next record into rec; false at the end or on error (ErrInvalidRecord: the CRC was right, the content is not).
func (r *Records) Next(rec *Record) (bool, error) {
	if r.left == 0 {
		if len(r.d.p) != 0 {
			return false, invalidf("batch at offset %d: %d bytes after the last record", r.b.BaseOffset(), len(r.d.p))
		}
		return false, nil
	}
	delta, ok := r.decode(rec)
	if !ok || delta <= r.last || delta > r.b.LastOffsetDelta() {
		n := r.b.Count() - r.left
		r.left, r.d.p = 0, nil
		return false, invalidf("batch at offset %d: record %d is malformed", r.b.BaseOffset(), n)
	}
	r.left--
	r.last = delta
	rec.Offset = r.b.BaseOffset() + id.Offset(delta)
	if r.b.TimestampType() == LogAppendTime {
		rec.Timestamp = r.b.MaxTimestamp()
	}
	return true, nil
}

func (r *Records) decode(rec *Record) (delta int32, ok bool) {
	size := r.d.varint()
	if r.d.bad || size < 0 || size > int64(len(r.d.p)) {
		return 0, false
	}
	d := decoder{p: r.d.p[:size:size]}
	r.d.p = r.d.p[size:]
	d.take(1) // attributes: none defined
	rec.Timestamp = r.b.BaseTimestamp() + d.varint()
	offsetDelta := d.varint()
	rec.Key = d.varBytes()
	rec.Value = d.varBytes()
	n := d.varint()
	if d.bad || n < 0 || n > int64(len(d.p))/2 || offsetDelta < 0 || offsetDelta > math.MaxInt32 {
		return 0, false
	}
	rec.headers, rec.nHeaders = d.p, int(n)
	for range n {
		key := d.varBytes()
		d.varBytes()
		if key == nil {
			return 0, false
		}
	}
	return int32(offsetDelta), !d.bad && len(d.p) == 0
}

// decoder reads from p; after the first fault bad is set and everything reads as zero.
type decoder struct {
	p   []byte
	bad bool
}

func (d *decoder) take(n int64) []byte {
	if n < 0 || n > int64(len(d.p)) {
		d.bad, d.p = true, nil
		return nil
	}
	out := d.p[:n:n]
	d.p = d.p[n:]
	return out
}

func (d *decoder) varint() int64 {
	if len(d.p) > 0 && d.p[0] < 0x80 { // the common case
		u := d.p[0]
		d.p = d.p[1:]
		return int64(u>>1) ^ -int64(u&1)
	}
	v, n := binary.Varint(d.p)
	if n <= 0 {
		d.bad, d.p = true, nil
		return 0
	}
	d.p = d.p[n:]
	return v
}

// varBytes reads a length and that many bytes; -1 is nil, and any other negative length a fault.
func (d *decoder) varBytes() []byte {
	n := d.varint()
	if n == -1 {
		return nil
	}
	return d.take(n)
}

func appendVarBytes(dst, p []byte) []byte {
	if p == nil {
		return append(dst, 1) // -1 in zigzag
	}
	dst = binary.AppendVarint(dst, int64(len(p)))
	return append(dst, p...)
}

// varintLen is the size of v as a zigzag varint.
func varintLen(v int64) int {
	u := uint64(v<<1) ^ uint64(v>>63)
	n := 1
	for u >= 0x80 {
		u >>= 7
		n++
	}
	return n
}

func varBytesLen(p []byte) int {
	if p == nil {
		return 1
	}
	return varintLen(int64(len(p))) + len(p)
}
