package main

import (
	"bufio"
	"bytes"
	"io"
	"strconv"
)

// record is one delivery as a member writes it.
type record struct {
	partition int
	offset    int64
	key       uint64
	digest    digest
}

// parseRecord reads {"partition":p,"offset":o,"key":"k"|null,"len":n,"crc":u32}, in this form only: there are millions. Other
// lines (events) are not records.
func parseRecord(line []byte) (r record, ok bool) {
	field := func(name, end string) (int64, bool) {
		rest, found := bytes.CutPrefix(line, []byte(name))
		i := bytes.Index(rest, []byte(end))
		if !found || i < 0 {
			return 0, false
		}
		n, err := strconv.ParseInt(string(rest[:i]), 10, 64)
		line = rest[i:]
		return n, err == nil
	}
	p, ok1 := field(`{"partition":`, ",")
	o, ok2 := field(`,"offset":`, ",")
	k, ok3 := int64(0), true
	if rest, null := bytes.CutPrefix(line, []byte(`,"key":null`)); null {
		line = rest
	} else {
		k, ok3 = field(`,"key":"`, `"`)
		line = bytes.TrimPrefix(line, []byte(`"`))
	}
	n, ok4 := field(`,"len":`, ",")
	c, ok5 := field(`,"crc":`, "}")
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 || k < 0 || c < 0 || c > 1<<32-1 || n < -1 || n > 1<<31-1 {
		return record{}, false
	}
	return record{int(p), o, uint64(k), digest{int32(n), uint32(c)}}, true
}

// parseAck reads a line "partition offset key" of the producer.
func parseAck(line []byte) (partition int, offset int64, key uint64, ok bool) {
	f := bytes.Fields(line)
	if len(f) != 3 {
		return 0, 0, 0, false
	}
	p, err1 := strconv.Atoi(string(f[0]))
	o, err2 := strconv.ParseInt(string(f[1]), 10, 64)
	k, err3 := strconv.ParseUint(string(f[2]), 10, 64)
	return p, o, k, err1 == nil && err2 == nil && err3 == nil
}

// eachLine calls fn for each line of r until its end.
func eachLine(r io.Reader, fn func(line []byte)) error {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 64<<10), 1<<20)
	for s.Scan() {
		fn(s.Bytes())
	}
	return s.Err()
}
