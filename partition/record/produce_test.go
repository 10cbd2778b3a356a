package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/klauspost/compress/s2"
	"pgregory.net/rapid"

	"github.com/barnabas-mq/barnabas/internal/id"
)

func must(t interface {
	Helper()
	Fatal(...any)
}, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func build(t testing.TB, h BatchHeader, recs ...Record) Batch {
	t.Helper()
	for i := range recs {
		recs[i].Offset = id.Offset(i)
	}
	b, err := NewCodecs(0).Build(nil, h, recs)
	must(t, err)
	return b
}

func set(ms ...message) (out []byte) {
	for i := range ms {
		out = appendMessage(out, &ms[i])
	}
	return out
}

// wrap packs messages of one magic into a wrapper.
func wrap(t testing.TB, codec Codec, outer message, inner []byte) message {
	t.Helper()
	packed, err := NewCodecs(0).compress(nil, codec, outer.magic, inner)
	must(t, err)
	outer.codec, outer.value = codec, packed
	return outer
}

const testNow = 1_600_000_000_000

func TestProduceRefusals(t *testing.T) {
	plain := PlainHeader()
	rec := Record{Timestamp: testNow, Value: []byte("v")}
	good := build(t, plain, rec)
	edit := func(fn func(Batch)) []byte {
		b := Batch(bytes.Clone(good))
		fn(b)
		b.seal()
		return b
	}
	put16 := func(at int, v uint16) func(Batch) { return func(b Batch) { binary.BigEndian.PutUint16(b[at:], v) } }
	put32 := func(at int, v uint32) func(Batch) { return func(b Batch) { binary.BigEndian.PutUint32(b[at:], v) } }
	put64 := func(at int, v uint64) func(Batch) { return func(b Batch) { binary.BigEndian.PutUint64(b[at:], v) } }
	badCRC := bytes.Clone(good)
	badCRC[len(badCRC)-1] ^= 1
	zstd := plain
	zstd.Codec = Zstd
	m0, m1 := message{magic: 0, value: []byte("v")}, message{magic: 1, timestamp: testNow, value: []byte("v")}
	late := message{magic: 1, timestamp: testNow + 2000, value: []byte("v")}
	stamped := message{magic: 1, timestamp: testNow, tsType: LogAppendTime, value: []byte("v")}
	badMsg := set(m0)
	badMsg[len(badMsg)-1] ^= 1
	nullWrapper := set(message{magic: 0, codec: Gzip})
	wrongMagic := wrap(t, Gzip, message{magic: 1}, set(m0))
	nested := wrap(t, Gzip, message{magic: 0}, set(wrap(t, Gzip, message{magic: 0}, set(m0))))
	empty := wrap(t, Gzip, message{magic: 0}, nil)
	garbage := message{magic: 0, codec: Snappy, value: []byte("garbage")}

	for _, c := range []struct {
		name    string
		version int16
		payload []byte
		want    *Error // nil: fine
	}{
		{"good", 3, good, nil},
		{"v3 nothing", 3, nil, ErrInvalidRecord},
		{"v3 two batches", 3, append(bytes.Clone(good), good...), ErrInvalidRecord},
		{"v3 magic 1", 3, set(m1), ErrInvalidRecord},
		{"v2 magic 2", 2, good, nil}, // as Kafka 1.1.1 does
		{"garbage", 3, []byte("garbage garbage garbage garbage"), ErrInvalidRecord},
		{"short", 3, good[:10], ErrCorrupt},
		{"cut off", 3, good[:len(good)-1], ErrCorrupt},
		{"negative length", 3, edit(put32(atLength, 1<<31)), ErrCorrupt},
		{"length of a short header", 3, edit(put32(atLength, 20)), ErrCorrupt},
		{"announces 2 GB", 3, edit(put32(atLength, 1<<31-1)), ErrCorrupt},
		{"crc", 3, badCRC, ErrCorrupt},
		{"no records", 3, edit(put32(atCount, 0)), ErrInvalidRecord},
		{"count beyond bytes", 3, edit(func(b Batch) { put32(atCount, 1000)(b); put32(atLastDelta, 999)(b) }), ErrCorrupt},
		{"count and last delta differ", 3, edit(put32(atLastDelta, 5)), ErrInvalidRecord},
		{"more records than offsets", 3, edit(put32(atCount, 2)), ErrCorrupt},
		{"negative last delta", 3, edit(put32(atLastDelta, 1<<31)), ErrCorrupt},
		{"negative base offset", 3, edit(put64(atBaseOffset, 1<<63)), ErrCorrupt},
		{"control", 3, edit(put16(atAttributes, attrControl)), ErrInvalidRecord},
		{"transactional without producer", 3, edit(put16(atAttributes, attrTransactional)), ErrInvalidRecord},
		{"log append time", 3, edit(put16(atAttributes, attrLogAppendTime)), ErrInvalidTimestamp},
		{"codec 5", 3, edit(put16(atAttributes, 5)), ErrUnsupportedCompression},
		{"producer without sequence", 3, edit(put64(atProducerID, 9)), ErrInvalidRecord},
		{"sequence without producer, as franz-go sends when it is not idempotent", 3, edit(put32(atBaseSequence, 9)), nil},
		{"timestamp -5", 3, edit(put64(atMaxTimestamp, ^uint64(4))), ErrInvalidTimestamp},
		{"too far in the future", 3, edit(put64(atMaxTimestamp, testNow+1001)), ErrInvalidTimestamp},
		{"record is garbage", 3, edit(func(b Batch) { b[HeaderSize] = 0x7f }), ErrInvalidRecord},
		{"zstd before v7", 6, build(t, zstd, rec), ErrUnsupportedCompression},
		{"zstd in v7", 7, build(t, zstd, rec), nil},
		{"too large", 3, build(t, plain, Record{Timestamp: testNow, Value: make([]byte, 2000)}), ErrTooLarge},

		{"v0 magic 0", 0, set(m0), nil},
		{"v0 nothing", 0, nil, nil},
		{"v0 magic 1", 0, set(m1), nil}, // as Kafka 1.1.1 does
		{"v2 mixed", 2, set(m0, m1), nil},
		{"v2 magic 7", 2, set(message{magic: 7}), ErrUnsupportedFormat},
		{"v2 crc", 2, badMsg, ErrCorrupt},
		{"v2 cut off", 2, set(m0)[:20], ErrCorrupt},
		{"v2 cut off after a good one", 2, append(set(m0), set(m0)[:20]...), ErrCorrupt},
		{"v2 a byte too many", 2, append(set(m0), 0), ErrCorrupt},
		{"v2 log append time", 2, set(stamped), ErrInvalidTimestamp},
		{"v2 late", 2, set(late), ErrInvalidTimestamp},
		{"v2 message too large", 2, set(message{magic: 0, value: make([]byte, 2000)}), ErrTooLarge},
		{"v2 codec 4", 2, set(message{magic: 1, codec: Zstd, value: []byte("v")}), ErrUnsupportedCompression},
		{"wrapper with null", 2, nullWrapper, ErrInvalidRecord},
		{"wrapper of another magic", 2, set(wrongMagic), ErrInvalidRecord},
		{"wrapper in a wrapper", 2, set(nested), ErrInvalidRecord},
		{"wrapper around nothing", 2, set(empty), ErrInvalidRecord},
		{"wrapper around garbage", 2, set(garbage), ErrCorrupt},
	} {
		t.Run(c.name, func(t *testing.T) {
			rules := ProduceRules{Version: c.version, MaxBatchBytes: 1000, Now: testNow, MaxTimestampDiff: 1000}
			p, err := NewCodecs(10_000).PrepareProduce(bytes.Clone(c.payload), rules)
			if c.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				if _, err := readBatches(NewCodecs(0), p.Batches); err != nil {
					t.Fatal(err)
				}
				return
			}
			if !errors.Is(err, c.want) || p.Batches != nil {
				t.Fatalf("%v, want %v", err, c.want)
			}
			if code, ok := Code(fmt.Errorf("wrapped: %w", err)); !ok || code != c.want.Code {
				t.Fatal(code, ok)
			}
		})
	}
}

func TestDeepLooksIntoPackedBatches(t *testing.T) {
	h := PlainHeader()
	h.Codec = Gzip
	good := build(t, h, Record{Value: []byte("v")})
	bad := Batch(append(bytes.Clone(good[:HeaderSize]), "not gzip"...))
	binary.BigEndian.PutUint32(bad[atLength:], uint32(len(bad)-PrefixSize))
	bad.seal()
	for _, deep := range []bool{false, true} {
		rules := ProduceRules{Version: 3, MaxBatchBytes: 1000, Deep: deep}
		_, err := NewCodecs(0).PrepareProduce(bad, rules)
		if deep != errors.Is(err, ErrCorrupt) {
			t.Errorf("deep %t: %v", deep, err)
		}
		_, err = NewCodecs(0).PrepareProduce(good, rules)
		must(t, err)
	}
}

// A small request must not unpack to a large one.
func TestBombs(t *testing.T) {
	zeros := make([]byte, 1<<20)
	inner := set(message{magic: 1, timestamp: testNow, value: zeros})
	for _, codec := range []Codec{Gzip, Snappy, LZ4} {
		w := wrap(t, codec, message{magic: 1}, inner)
		if _, err := NewCodecs(1<<19).PrepareProduce(set(w), ProduceRules{Version: 2, MaxBatchBytes: 1 << 20}); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%v: %v", codec, err)
		}
	}
	for _, codec := range []Codec{Gzip, Snappy, LZ4, Zstd} {
		h := PlainHeader()
		h.Codec = codec
		b := build(t, h, Record{Value: zeros})
		if _, err := NewCodecs(1 << 19).Records(b); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%v: %v", codec, err)
		}
		if _, err := NewCodecs(1 << 21).Records(b); err != nil {
			t.Errorf("%v: %v", codec, err)
		}
	}
	// Lies about the size allocate nothing.
	lie := binary.AppendUvarint(nil, 1<<31)
	if _, err := NewCodecs(0).decompress(Snappy, 2, append(lie, "abc"...)); err == nil {
		t.Error("raw snappy of 2 GB from 8 bytes")
	}
}

// cases.md 7: raw snappy, as clients that are not of the JVM write it.
func TestRawSnappy(t *testing.T) {
	w := message{magic: 0, codec: Snappy, value: s2.EncodeSnappy(nil, set(message{offset: 0, value: []byte("a")}, message{offset: 1, value: []byte("b")}))}
	p, err := NewCodecs(0).PrepareProduce(set(w), ProduceRules{Version: 0, MaxBatchBytes: 1000})
	must(t, err)
	if p.Records != 2 || Batch(p.Batches).Codec() != Snappy {
		t.Fatal(p)
	}
}

// A producer of old limits each message, not the set: the set may become several batches.
func TestLargeSetsBecomeSeveralBatches(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, codec := range []Codec{None, Gzip} {
		var in []byte
		for range 100 {
			value := make([]byte, 100)
			for i := range value {
				value[i] = byte(rng.Uint32())
			}
			m := message{magic: 1, timestamp: testNow, value: value}
			if codec != None {
				m = wrap(t, codec, message{magic: 1, timestamp: testNow}, set(m))
			}
			in = append(in, set(m)...)
		}
		c := NewCodecs(0)
		p, err := c.PrepareProduce(in, ProduceRules{Version: 2, MaxBatchBytes: 3000})
		must(t, err)
		batches := 0
		for rest := p.Batches; len(rest) > 0; batches++ {
			var b Batch
			b, rest, err = Next(rest)
			if err != nil || len(b) > 3000 || b.Codec() != codec {
				t.Fatal(err, len(b), b.Codec())
			}
		}
		got, err := readBatches(c, p.Batches)
		if err != nil || len(got) != 100 || got[99].Offset != 99 || batches < 4 || p.Records != 100 {
			t.Fatal(err, len(got), batches)
		}
	}
}

func TestLogAppendTime(t *testing.T) {
	rules := ProduceRules{Version: 3, MaxBatchBytes: 1000, TimestampType: LogAppendTime, Now: testNow}
	for version, payload := range map[int16][]byte{3: build(t, PlainHeader(), Record{Timestamp: 5, Value: []byte("a")}, Record{Timestamp: 1 << 60}),
		2: set(message{magic: 1, timestamp: 5}, message{magic: 0})} {
		rules.Version = version
		c := NewCodecs(0)
		p, err := c.PrepareProduce(payload, rules)
		must(t, err)
		got, err := readBatches(c, p.Batches)
		must(t, err)
		for _, r := range got {
			if r.Timestamp != testNow {
				t.Fatalf("v%d: %d", version, r.Timestamp)
			}
		}
		down, err := c.DownConvert(nil, p.Batches, DownRules{Magic: 1, MaxBytes: 1000})
		must(t, err)
		if m, _, err := nextMessage(down.Set); err != nil || m.tsType != LogAppendTime || m.timestamp != testNow {
			t.Fatal(m, err)
		}
	}
}

func TestDownConvertLimits(t *testing.T) {
	c := NewCodecs(0)
	value := make([]byte, 100)
	one := msgOverheadV0 + len(value)
	packed := PlainHeader()
	packed.Codec = Gzip
	control := PlainHeader()
	control.Control, control.ProducerID, control.ProducerEpoch = true, 1, 0
	var run []byte
	add := func(h BatchHeader, n int) {
		recs := make([]Record, n)
		for i := range recs {
			recs[i].Value = value
		}
		b := build(t, h, recs...)
		last := id.Offset(-1)
		for rest := run; len(rest) > 0; {
			var x Batch
			x, rest, _ = Next(rest)
			last = x.LastOffset()
		}
		b.Assign(last+1, 0)
		run = append(run, b...)
	}
	add(PlainHeader(), 5) // 0-4
	add(control, 1)       // 5
	add(packed, 5)        // 6-10
	add(control, 1)       // 11
	for _, x := range []struct {
		name  string
		r     DownRules
		first id.Offset
		count int
		next  id.Offset
		size  int // -1: not asked
	}{
		{"all", DownRules{MaxBytes: 1 << 20}, 0, 10, 12, -1},
		{"from inside", DownRules{MaxBytes: 1 << 20, From: 3}, 3, 7, 12, -1},
		{"from inside the packed one", DownRules{MaxBytes: 1 << 20, From: 8}, 8, 3, 12, -1},
		{"two and a half", DownRules{MaxBytes: 2*one + 20}, 0, 2, 2, 2 * one},
		{"too small", DownRules{MaxBytes: 20}, 0, 0, 0, 20},
		{"nothing at all", DownRules{MaxBytes: 0}, 0, 0, 0, 0},
		{"too small, at least one", DownRules{MaxBytes: 20, AtLeastOne: true}, 0, 1, 1, one},
		{"packed, too small for the wrapper", DownRules{MaxBytes: 60, From: 6, AtLeastOne: true}, 6, 1, 7, one},
		{"only a marker", DownRules{MaxBytes: 1 << 20, From: 11}, 0, 0, 12, 0},
		{"up to", DownRules{MaxBytes: 1 << 20, UpTo: 8}, 0, 7, 8, -1},
		{"up to the marker", DownRules{MaxBytes: 1 << 20, From: 6, UpTo: 11}, 6, 5, 11, -1},
	} {
		d, err := c.DownConvert([]byte("x"), run, x.r)
		must(t, err)
		if x.size >= 0 && len(d.Set) != x.size {
			t.Errorf("%s: %d bytes, want %d", x.name, len(d.Set), x.size)
		}
		whole := d.Set
		if x.count == 0 {
			whole = nil
		}
		got, err := readSet(c, whole)
		if err != nil || len(got) != x.count || d.Next != x.next || x.count > 0 && got[0].Offset != x.first {
			t.Errorf("%s: %d records, next %d, want %d from %d, next %d (%v)", x.name, len(got), d.Next, x.count, x.first, x.next, err)
		}
	}
}

// Up, then down to the same magic, is the same set; down from magic 2 keeps all but headers.
func TestRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := NewCodecs(0)
		magic := rapid.Int8Range(0, 1).Draw(t, "magic")
		codec := Codec(rapid.Int8Range(0, 3).Draw(t, "codec"))
		bytesOrNull := func(name string) []byte {
			switch rapid.IntRange(0, 3).Draw(t, name+"Kind") {
			case 0:
				return nil
			case 1:
				return []byte{}
			}
			return rapid.SliceOfN(rapid.Byte(), 1, 300).Draw(t, name)
		}
		n := rapid.IntRange(1, 20).Draw(t, "records")
		want := make([]Record, n)
		var in []byte
		for i := range want {
			want[i] = Record{Offset: id.Offset(i), Timestamp: NoTimestamp, Key: bytesOrNull("key"), Value: bytesOrNull("value")}
			if magic == 1 {
				want[i].Timestamp = rapid.Int64Range(-1, 1<<45).Draw(t, "ts")
			}
			in = append(in, set(message{offset: int64(i), magic: magic, timestamp: want[i].Timestamp, key: want[i].Key, value: want[i].Value})...)
		}
		if codec != None {
			outer := message{offset: int64(n - 1), magic: magic, codec: codec}
			var err error
			outer.value, err = c.compress(nil, codec, magic, in)
			must(t, err)
			in = set(outer)
		}
		p, err := c.PrepareProduce(in, ProduceRules{Version: 2, MaxBatchBytes: 1 << 20})
		must(t, err)
		up, err := readBatches(c, p.Batches)
		must(t, err)
		must(t, diffRecords(up, want))
		d, err := c.DownConvert(nil, p.Batches, DownRules{Magic: magic, MaxBytes: 1 << 20})
		must(t, err)
		down, err := readSet(c, d.Set)
		must(t, err)
		must(t, diffRecords(down, want))
		if d.Next != id.Offset(n) {
			t.Fatal(d.Next)
		}
	})
}

func TestXXH32(t *testing.T) {
	// From the xxHash specification's test vectors (seed 0).
	for in, want := range map[string]uint32{"": 0x02CC5D05, "a": 0x550D7456, "abc": 0x32D153FF,
		"Nobody inspects the spammish repetition": 0xE2293B2F} {
		if got := xxh32([]byte(in)); got != want {
			t.Errorf("%q: %#x, want %#x", in, got, want)
		}
	}
}

func TestBuildRefuses(t *testing.T) {
	c := NewCodecs(0)
	if _, err := c.Build(nil, PlainHeader(), nil); !errors.Is(err, ErrInvalidRecord) {
		t.Error(err)
	}
	if _, err := c.Build(nil, PlainHeader(), []Record{{Offset: 1}, {Offset: 1}}); !errors.Is(err, ErrInvalidRecord) {
		t.Error(err)
	}
	if _, err := c.DownConvert(nil, nil, DownRules{Magic: 2}); !errors.Is(err, ErrUnsupportedFormat) {
		t.Error(err)
	}
}

func TestAddSequence(t *testing.T) {
	for _, c := range [][3]int32{{0, 0, 0}, {5, 3, 8}, {1<<31 - 1, 0, 1<<31 - 1}, {1<<31 - 1, 1, 0}, {1<<31 - 2, 3, 1}} {
		if got := AddSequence(c[0], c[1]); got != c[2] {
			t.Errorf("%d+%d: %d, want %d", c[0], c[1], got, c[2])
		}
	}
}

// No allocation per record, nor any but the iterator's, in what every produced batch goes through.
func TestPrepareAllocatesNothing(t *testing.T) {
	recs := make([]Record, 500)
	for i := range recs {
		recs[i] = Record{Timestamp: testNow, Value: make([]byte, 32)}
	}
	b := build(t, PlainHeader(), recs...)
	c := NewCodecs(0)
	rules := ProduceRules{Version: 7, MaxBatchBytes: 1 << 20, Now: testNow}
	if n := testing.AllocsPerRun(100, func() {
		if _, err := c.PrepareProduce(b, rules); err != nil {
			t.Fatal(err)
		}
	}); n > 1 {
		t.Errorf("%v allocations for 500 records", n)
	}
}

// FuzzProduce: whatever comes in, no panic; what is accepted is good, and converts down.
func FuzzProduce(f *testing.F) {
	for magic := 0; magic <= 2; magic++ {
		for _, codec := range []string{"none", "gzip", "snappy", "lz4"} {
			f.Add(int16(3*(magic/2)+2), golden(f, fmt.Sprintf("m%d-%s", magic, codec)))
		}
	}
	f.Add(int16(7), []byte(build(f, BatchHeader{Codec: Zstd, ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1}, Record{Value: []byte("z")})))
	f.Fuzz(func(t *testing.T, version int16, payload []byte) {
		c := NewCodecs(1 << 20)
		p, err := c.PrepareProduce(payload, ProduceRules{Version: version, MaxBatchBytes: 1 << 20})
		if err != nil {
			if _, ok := Code(err); !ok {
				t.Fatalf("error without a code: %v", err)
			}
			return
		}
		for rest := p.Batches; len(rest) > 0; {
			var b Batch
			if b, rest, err = Next(rest); err != nil {
				t.Fatal(err)
			}
			if err := b.Check(); err != nil {
				t.Fatal(err)
			}
		}
		all, err := readBatches(c, p.Batches)
		if err != nil {
			if _, ok := Code(err); !ok {
				t.Fatalf("error without a code: %v", err)
			}
			return // a packed batch of magic 2 may hold anything
		}
		for magic := int8(0); magic <= 1; magic++ {
			d, err := c.DownConvert(nil, p.Batches, DownRules{Magic: magic, MaxBytes: 1 << 26})
			if err != nil {
				t.Fatal(err)
			}
			got, err := readSet(NewCodecs(1<<26), d.Set)
			if err != nil || len(got) != len(all) {
				t.Fatalf("%d records, want %d: %v", len(got), len(all), err)
			}
		}
	})
}

// FuzzRecords: a batch with the right header and CRC but any body.
func FuzzRecords(f *testing.F) {
	f.Add(uint8(0), int32(4), golden(f, "m2-none")[HeaderSize:])
	f.Add(uint8(2), int32(4), golden(f, "m2-snappy")[HeaderSize:])
	f.Add(uint8(4), int32(1), []byte{})
	f.Fuzz(func(t *testing.T, codec uint8, count int32, body []byte) {
		b := Batch(append(make([]byte, HeaderSize), body...))
		b[atMagic] = 2
		binary.BigEndian.PutUint32(b[atLength:], uint32(len(b)-PrefixSize))
		binary.BigEndian.PutUint16(b[atAttributes:], uint16(codec&attrCodec))
		binary.BigEndian.PutUint32(b[atCount:], uint32(count))
		binary.BigEndian.PutUint32(b[atLastDelta:], uint32(max(0, count-1)))
		b.seal()
		if b.Check() != nil {
			return
		}
		all, err := readBatches(NewCodecs(1<<20), b)
		if _, ok := Code(err); err != nil && !ok {
			t.Fatalf("error without a code: %v", err)
		}
		for i := range all {
			all[i].Headers()
		}
	})
}

// FuzzSet: messages of magic 0 and 1 with a right CRC, and any content within a wrapper that unpacks.
func FuzzSet(f *testing.F) {
	f.Add(uint8(0), uint8(0), []byte("plain"))
	for magic := uint8(0); magic <= 1; magic++ {
		for codec := uint8(1); codec <= 3; codec++ {
			f.Add(magic, codec, set(message{magic: int8(magic), value: []byte("v")}, message{offset: 1, magic: int8(magic), key: []byte("k")}))
		}
	}
	f.Fuzz(func(t *testing.T, magic, codec uint8, inner []byte) {
		m := message{magic: int8(magic % 2), codec: Codec(codec % 4), value: inner, timestamp: testNow}
		c := NewCodecs(1 << 20)
		if m.codec != None {
			var err error
			m.value, err = c.compress(nil, m.codec, m.magic, inner)
			must(t, err)
		}
		in := set(m)
		p, err := c.PrepareProduce(in, ProduceRules{Version: 2, MaxBatchBytes: 1 << 20})
		if err != nil {
			if _, ok := Code(err); !ok {
				t.Fatalf("error without a code: %v", err)
			}
			return
		}
		var want []Record
		must(t, c.MessageSet(in, func(r *Record) error { want = append(want, r.clone()); return nil }))
		for i := range want {
			want[i].Offset = id.Offset(i)
		}
		up, err := readBatches(c, p.Batches)
		must(t, err)
		must(t, diffRecords(up, want))
		d, err := c.DownConvert(nil, p.Batches, DownRules{Magic: m.magic, MaxBytes: 1 << 26})
		must(t, err)
		down, err := readSet(c, d.Set)
		must(t, err)
		must(t, diffRecords(down, want))
	})
}

// What an old consumer costs: 500 records of 32 bytes to magic 0.
func BenchmarkDownConvert(b *testing.B) {
	recs := make([]Record, 500)
	for i := range recs {
		recs[i] = Record{Timestamp: testNow, Value: make([]byte, 32)}
	}
	for _, codec := range []Codec{None, Snappy} {
		b.Run(codec.String(), func(b *testing.B) {
			h := PlainHeader()
			h.Codec = codec
			in := build(b, h, recs...)
			c := NewCodecs(0)
			buf := make([]byte, 0, 1<<20)
			b.ReportAllocs()
			for b.Loop() {
				d, err := c.DownConvert(buf[:0], in, DownRules{MaxBytes: 1 << 20})
				must(b, err)
				_ = d
			}
		})
	}
}
