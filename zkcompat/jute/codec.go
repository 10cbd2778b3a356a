// Package jute is ZooKeeper's wire format: records as bytes and back. It is pure: no sockets, no clocks, no
// goroutines. A frame is four bytes of length and a body; this package reads and writes bodies only.
//
// Decoding is bounded by the body's length: a count or a length that the remaining bytes cannot hold is refused
// before anything is allocated for it. Encoding appends to a caller's slice and cannot fail.
// Source: org.apache.jute.BinaryInputArchive and zookeeper.jute of ZooKeeper 3.9.5.
package jute

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// MaxFrame is the largest body a server accepts, in bytes (jute.maxbuffer of ZooKeeper: 0xfffff).
const MaxFrame = 0xfffff

// ErrShort means that a body ends before its record does.
var ErrShort = errors.New("jute: the body ends inside a record")

// ErrLength means that a body announces a length or count it cannot hold.
var ErrLength = errors.New("jute: impossible length")

// Decoder reads a body from its front. The first error sticks and every later read returns zero values, so a
// record is read whole and Err is asked once.
type Decoder struct {
	rest []byte
	err  error
}

// NewDecoder reads b, which the caller must not change while decoded byte slices are in use: they alias it.
func NewDecoder(b []byte) Decoder { return Decoder{rest: b} }

// Err is the first error met, or nil.
func (d *Decoder) Err() error { return d.err }

// Len is the number of bytes not yet read.
func (d *Decoder) Len() int { return len(d.rest) }

func (d *Decoder) take(n int) []byte {
	if d.err != nil {
		return nil
	}
	if len(d.rest) < n {
		d.err = ErrShort
		return nil
	}
	b := d.rest[:n:n]
	d.rest = d.rest[n:]
	return b
}

// Int reads a 32-bit integer.
func (d *Decoder) Int() int32 {
	if b := d.take(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

// Long reads a 64-bit integer.
func (d *Decoder) Long() int64 {
	if b := d.take(8); b != nil {
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

// Bool reads a byte; anything but 0 is true.
func (d *Decoder) Bool() bool {
	b := d.take(1)
	return b != nil && b[0] != 0
}

// Bytes reads a buffer: nil for null (length -1), not nil for an empty one. The result aliases the body.
func (d *Decoder) Bytes() []byte {
	n := d.length(1)
	if n < 0 {
		return nil
	}
	b := d.take(n)
	if b == nil && d.err == nil {
		return []byte{}
	}
	return b
}

// String reads a string; null reads as "".
func (d *Decoder) String() string { return string(d.Bytes()) }

// Strings reads a vector of strings; null reads as none.
func (d *Decoder) Strings() []string {
	n := d.length(4)
	if n <= 0 {
		return nil
	}
	out := make([]string, 0, n)
	for range n {
		out = append(out, d.String())
	}
	if d.err != nil {
		return nil
	}
	return out
}

// length reads a length whose items take at least size bytes each: -1 for null, or when an error is set.
func (d *Decoder) length(size int) int {
	n := d.Int()
	switch {
	case d.err != nil || n == -1:
		return -1
	case n < 0 || int64(n)*int64(size) > int64(len(d.rest)):
		d.err = fmt.Errorf("%w: %d items of at least %d bytes in %d", ErrLength, n, size, len(d.rest))
		return -1
	}
	return int(n)
}

// AppendInt appends a 32-bit integer.
func AppendInt(b []byte, v int32) []byte { return binary.BigEndian.AppendUint32(b, uint32(v)) }

// AppendLong appends a 64-bit integer.
func AppendLong(b []byte, v int64) []byte { return binary.BigEndian.AppendUint64(b, uint64(v)) }

// AppendBool appends a byte, 0 or 1.
func AppendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

// AppendBytes appends a buffer: null when v is nil, else its bytes, even none.
func AppendBytes(b, v []byte) []byte {
	if v == nil {
		return AppendInt(b, -1)
	}
	return append(AppendInt(b, int32(len(v))), v...)
}

// AppendString appends a string.
func AppendString(b []byte, v string) []byte { return append(AppendInt(b, int32(len(v))), v...) }

// AppendStrings appends a vector of strings, null when v is nil.
func AppendStrings(b []byte, v []string) []byte {
	if v == nil {
		return AppendInt(b, -1)
	}
	b = AppendInt(b, int32(len(v)))
	for _, s := range v {
		b = AppendString(b, s)
	}
	return b
}

// BeginFrame appends room for a frame's length; EndFrame fills it in.
func BeginFrame(b []byte) (frame []byte, start int) { return append(b, 0, 0, 0, 0), len(b) }

// EndFrame sets the length of the frame that BeginFrame started at start.
func EndFrame(b []byte, start int) []byte {
	binary.BigEndian.PutUint32(b[start:], uint32(len(b)-start-4))
	return b
}
