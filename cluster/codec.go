package cluster

import "encoding/binary"

// appendString appends a u16 length and the bytes; longer strings are cut (every caller's strings are short names).
func appendString(b []byte, s string) []byte {
	if len(s) > 0xffff {
		s = s[:0xffff]
	}
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}

// reader decodes a bounded message. After the first field that is cut off, bad is set and every field reads as zero.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if r.bad || n > len(r.b) {
		r.bad, r.b = true, nil
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) uint8() uint8 {
	if v := r.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (r *reader) uint16() uint16 {
	if v := r.take(2); v != nil {
		return binary.BigEndian.Uint16(v)
	}
	return 0
}

func (r *reader) uint32() uint32 {
	if v := r.take(4); v != nil {
		return binary.BigEndian.Uint32(v)
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if v := r.take(8); v != nil {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

func (r *reader) string() string { return string(r.take(int(r.uint16()))) }

// count reads the u32 length of an array whose elements take at least min bytes each, so that a lying length cannot
// make the caller allocate more than the message itself.
func (r *reader) count(min int) int {
	n := int(r.uint32())
	if n < 0 || n*min > len(r.b) {
		r.bad, r.b = true, nil
		return 0
	}
	return n
}
