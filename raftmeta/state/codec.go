package state

import (
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// The row encoding: protobuf wire format written by hand, fields in ascending order, zero values left out. It is the
// form of a row in a snapshot and under the state hash, so equal rows have equal bytes in every build.

var errRow = errors.New("state: malformed row")

type enc struct{ b []byte }

func (e *enc) u64(f protowire.Number, v uint64) {
	if v != 0 {
		e.b = protowire.AppendTag(e.b, f, protowire.VarintType)
		e.b = protowire.AppendVarint(e.b, v)
	}
}

func (e *enc) i64(f protowire.Number, v int64) { e.u64(f, protowire.EncodeZigZag(v)) }

func (e *enc) flag(f protowire.Number, v bool) {
	if v {
		e.u64(f, 1)
	}
}

func (e *enc) str(f protowire.Number, s string) {
	if s != "" {
		e.b = protowire.AppendTag(e.b, f, protowire.BytesType)
		e.b = protowire.AppendString(e.b, s)
	}
}

func (e *enc) bytes(f protowire.Number, s []byte) {
	if len(s) > 0 {
		e.put(f, s)
	}
}

// put writes a field even when it is empty: an item of a list.
func (e *enc) put(f protowire.Number, s []byte) {
	e.b = protowire.AppendTag(e.b, f, protowire.BytesType)
	e.b = protowire.AppendBytes(e.b, s)
}

// sub writes a message that fn fills, after its length.
func (e *enc) sub(f protowire.Number, fn func(*enc)) {
	e.b = protowire.AppendTag(e.b, f, protowire.BytesType)
	at := len(e.b)
	e.b = append(e.b, 0)
	fn(e)
	n := len(e.b) - at - 1
	if more := protowire.SizeVarint(uint64(n)) - 1; more > 0 { // most are shorter than 128 bytes
		e.b = slices.Insert(e.b, at+1, make([]byte, more)...)
	}
	protowire.AppendVarint(e.b[:at], uint64(n))
}

// ints writes a packed list, nothing for an empty one.
func ints[T ~int32](e *enc, f protowire.Number, vs []T) {
	if len(vs) == 0 {
		return
	}
	var p []byte
	for _, v := range vs {
		p = protowire.AppendVarint(p, protowire.EncodeZigZag(int64(v)))
	}
	e.put(f, p)
}

type dec struct {
	b   []byte
	num protowire.Number
	typ protowire.Type
	err error
}

// next moves to the next field; false at the end or after an error.
func (d *dec) next() bool {
	if d.err != nil || len(d.b) == 0 {
		return false
	}
	num, typ, n := protowire.ConsumeTag(d.b)
	if n < 0 {
		d.err = errRow
		return false
	}
	d.num, d.typ, d.b = num, typ, d.b[n:]
	return true
}

func (d *dec) u64() uint64 {
	v, n := protowire.ConsumeVarint(d.b)
	if d.typ != protowire.VarintType || n < 0 {
		d.err, d.b = errRow, nil
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *dec) i64() int64  { return protowire.DecodeZigZag(d.u64()) }
func (d *dec) i32() int32  { return int32(d.i64()) }
func (d *dec) flag() bool  { return d.u64() != 0 }
func (d *dec) str() string { return string(d.raw()) }
func (d *dec) unknown() {
	d.err = fmt.Errorf("%w: unknown field %d (written by a newer build)", errRow, d.num)
}
func (d *dec) copy() []byte { return append([]byte(nil), d.raw()...) }

func (d *dec) raw() []byte {
	v, n := protowire.ConsumeBytes(d.b)
	if d.typ != protowire.BytesType || n < 0 {
		d.err, d.b = errRow, nil
		return nil
	}
	d.b = d.b[n:]
	return v
}

func (d *dec) sub(fn func(*dec)) {
	in := dec{b: d.raw()}
	fn(&in)
	if in.err != nil {
		d.err = in.err
	}
}

func decInts[T ~int32](d *dec) []T {
	var vs []T
	for b := d.raw(); len(b) > 0; {
		v, n := protowire.ConsumeVarint(b)
		if n < 0 {
			d.err = errRow
			return nil
		}
		vs, b = append(vs, T(protowire.DecodeZigZag(v))), b[n:]
	}
	return vs
}
