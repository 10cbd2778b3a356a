package record

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// The golden files come from Apache Kafka 1.1.1's own classes: testdata/GenerateGolden.java.

// writeOurs writes what we make of the golden records, for GenerateGolden.java dump. Tried on 2026-11-29: kafka-clients 1.1.1
// read all 14 files (magic 0-2; none, gzip, snappy, lz4; zstd converted down) with the CRCs, offsets, timestamps, keys and values
// that it shows for its own files; 4.4.0 also the zstd one.
var writeOurs = flag.String("write-ours", "", "directory to write our own encodings to")

const goldenTime = 1500000000000

func pattern(n int, at func(int) byte) []byte {
	out := make([]byte, n)
	for i := range out {
		out[i] = at(i)
	}
	return out
}

// goldenRecords are those of GenerateGolden.java's fill.
func goldenRecords(magic int8) []Record {
	recs := []Record{
		{Offset: 100, Timestamp: goldenTime, Value: []byte("first")},
		{Offset: 101, Timestamp: goldenTime + 1000, Key: []byte("k1"), Value: []byte{}},
		{Offset: 102, Timestamp: goldenTime - 500, Key: []byte{}},
		{Offset: 103, Timestamp: goldenTime + 20, Key: pattern(300, func(i int) byte { return byte(i) }),
			Value: pattern(20000, func(i int) byte { return byte(i * i / 7) })},
	}
	if magic == 2 {
		recs[1].SetHeaders([]Header{{"h1", []byte("one")}, {"", nil}, {"h1", []byte{}}})
	}
	if magic == 0 {
		for i := range recs {
			recs[i].Timestamp = NoTimestamp
		}
	}
	return recs
}

func golden(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "golden", name+".bin"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func sameBytes(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

func diffRecords(got, want []Record) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d records, want %d", len(got), len(want))
	}
	for i := range got {
		g, w := &got[i], &want[i]
		if g.Offset != w.Offset || g.Timestamp != w.Timestamp || !sameBytes(g.Key, w.Key) || !sameBytes(g.Value, w.Value) {
			return fmt.Errorf("record %d: got %d@%d %.20q=%.20q, want %d@%d %.20q=%.20q (nil %t %t, want %t %t)", i, g.Offset, g.Timestamp, g.Key,
				g.Value, w.Offset, w.Timestamp, w.Key, w.Value, g.Key == nil, g.Value == nil, w.Key == nil, w.Value == nil)
		}
		gh, wh := g.Headers(), w.Headers()
		if len(gh) != len(wh) || len(gh) != g.HeaderCount() {
			return fmt.Errorf("record %d: %d headers, want %d", i, len(gh), len(wh))
		}
		for j := range gh {
			if gh[j].Key != wh[j].Key || !sameBytes(gh[j].Value, wh[j].Value) {
				return fmt.Errorf("record %d header %d: %v, want %v", i, j, gh[j], wh[j])
			}
		}
	}
	return nil
}

func (r *Record) clone() Record {
	c := *r
	c.Key, c.Value, c.headers = bytes.Clone(r.Key), bytes.Clone(r.Value), bytes.Clone(r.headers)
	return c
}

func readBatches(c *Codecs, run []byte) (out []Record, err error) {
	for len(run) > 0 {
		b, rest, err := Next(run)
		if err != nil {
			return nil, err
		}
		run = rest
		if err := b.Check(); err != nil {
			return nil, err
		}
		records, err := c.Records(b)
		if err != nil {
			return nil, err
		}
		var rec Record
		for {
			more, err := records.Next(&rec)
			if err != nil {
				return nil, err
			}
			if !more {
				break
			}
			out = append(out, rec.clone())
		}
	}
	return out, nil
}

func readSet(c *Codecs, set []byte) (out []Record, err error) {
	err = c.MessageSet(set, func(r *Record) error { out = append(out, r.clone()); return nil })
	return out, err
}

func TestReadsWhatKafkaWrote(t *testing.T) {
	c := NewCodecs(0)
	for magic := int8(0); magic <= 2; magic++ {
		for _, codec := range []string{"none", "gzip", "snappy", "lz4", "none-logappend", "gzip-logappend"} {
			if magic == 0 && len(codec) > 6 {
				continue
			}
			name := fmt.Sprintf("m%d-%s", magic, codec)
			want := goldenRecords(magic)
			if len(codec) > 6 {
				for i := range want {
					want[i].Timestamp = goldenTime + 7777
				}
			}
			read := readSet
			if magic == 2 {
				read = readBatches
			}
			got, err := read(c, golden(t, name))
			if err == nil {
				err = diffRecords(got, want)
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestHeaderFieldsOfKafkasBatches(t *testing.T) {
	b, rest, err := Next(golden(t, "m2-none-transactional"))
	if err != nil || len(rest) != 0 {
		t.Fatal(err, len(rest))
	}
	if err := b.Check(); err != nil {
		t.Fatal(err)
	}
	if b.BaseOffset() != 100 || b.LastOffset() != 103 || b.LeaderEpoch() != 5 || b.ProducerID() != 4242 || b.ProducerEpoch() != 3 ||
		b.BaseSequence() != 2147483646 || b.LastSequence() != 1 || b.Count() != 4 || !b.IsTransactional() || b.IsControl() ||
		b.BaseTimestamp() != goldenTime || b.MaxTimestamp() != goldenTime+1000 || b.Codec() != None {
		t.Fatalf("%x", []byte(b[:HeaderSize]))
	}
	control, _, err := Next(golden(t, "m2-control"))
	if err != nil || control.Check() != nil || !control.IsControl() || !control.IsTransactional() {
		t.Fatal(err, control.Check())
	}
	var k kmsg.RecordBatch
	if err := k.ReadFrom(b); err != nil || k.CRC != int32(b.CRC()) || k.NumRecords != 4 || k.ProducerID != 4242 {
		t.Fatalf("kmsg reads otherwise: %+v %v", k, err)
	}
}

func TestWritesTheBytesThatKafkaWrites(t *testing.T) {
	c := NewCodecs(0)
	h := PlainHeader()
	h.LeaderEpoch = 5
	idempotent := h
	idempotent.ProducerID, idempotent.ProducerEpoch, idempotent.BaseSequence = 4242, 3, 2147483646
	transactional := idempotent
	transactional.Transactional = true
	logAppend := h
	logAppend.TimestampType, logAppend.AppendTime = LogAppendTime, goldenTime+7777
	for name, h := range map[string]BatchHeader{"m2-none": h, "m2-none-idempotent": idempotent, "m2-none-transactional": transactional,
		"m2-none-logappend": logAppend} {
		got, err := c.Build([]byte("before"), h, goldenRecords(2))
		if err != nil {
			t.Fatal(err)
		}
		if want := golden(t, name); !bytes.Equal(got[6:], want) {
			t.Errorf("%s differs:\n%x\n%x", name, got[6:80], want[:74])
		}
	}
}

func TestDownConvertsToTheBytesThatKafkaWrites(t *testing.T) {
	c := NewCodecs(0)
	for magic := int8(0); magic <= 1; magic++ {
		down, err := c.DownConvert(nil, golden(t, "m2-none"), DownRules{Magic: magic, MaxBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		if want := golden(t, fmt.Sprintf("m2-none-down%d", magic)); !bytes.Equal(down.Set, want) {
			t.Errorf("magic %d differs", magic)
		}
		if down.Next != 104 {
			t.Errorf("next %d", down.Next)
		}
		for _, codec := range []string{"gzip", "snappy", "lz4"} {
			down, err := c.DownConvert(nil, golden(t, "m2-"+codec), DownRules{Magic: magic, MaxBytes: 1 << 20})
			if err != nil {
				t.Fatal(err)
			}
			want := golden(t, fmt.Sprintf("m2-%s-down%d", codec, magic))
			kafkas, _, err := nextMessage(want)
			if err != nil {
				t.Fatal(err)
			}
			ours, rest, err := nextMessage(down.Set)
			if err != nil || len(rest) != 0 {
				t.Fatal(err, len(rest))
			}
			if ours.offset != kafkas.offset || ours.timestamp != kafkas.timestamp || ours.codec != kafkas.codec || ours.key != nil {
				t.Errorf("%s: wrapper %+v, Kafka's %+v", codec, ours, kafkas)
			}
			inner, err := c.decompress(ours.codec, magic, ours.value)
			if err != nil {
				t.Fatal(err)
			}
			inner = bytes.Clone(inner)
			theirs, err := c.decompress(kafkas.codec, magic, kafkas.value)
			if err != nil || !bytes.Equal(inner, theirs) {
				t.Errorf("%s, magic %d: inner set differs (%v)", codec, magic, err)
			}
		}
	}
}

// cases.md 7.
func TestLZ4HeaderChecksumByMagic(t *testing.T) {
	c := NewCodecs(0)
	for magic, want := range map[int8]byte{0: 0x1a, 1: 0x82} {
		for _, name := range []string{"ours", "kafka"} {
			set := golden(t, fmt.Sprintf("m%d-lz4", magic))
			if name == "ours" {
				down, err := c.DownConvert(nil, golden(t, "m2-lz4"), DownRules{Magic: magic, MaxBytes: 1 << 20})
				if err != nil {
					t.Fatal(err)
				}
				set = down.Set
			}
			m, _, err := nextMessage(set)
			if err != nil || m.value[6] != want {
				t.Errorf("%s magic %d: header checksum %#x, want %#x (%v)", name, magic, m.value[6], want, err)
			}
		}
	}
	// Magic 0 with the right checksum is read too; magic 1 with the wrong one is not.
	m, _, err := nextMessage(golden(t, "m0-lz4"))
	if err != nil {
		t.Fatal(err)
	}
	m.value = bytes.Clone(m.value)
	m.value[6] = 0x82
	if _, err := c.decompress(LZ4, 0, m.value); err != nil {
		t.Error(err)
	}
	m.value[6] = 0x1a
	if _, err := c.decompress(LZ4, 1, m.value); err == nil {
		t.Error("wrong header checksum taken for magic 1")
	}
}

func TestConvertsUpWhatOldClientsWrite(t *testing.T) {
	c := NewCodecs(0)
	for magic := int8(0); magic <= 1; magic++ {
		for codecName, codec := range map[string]Codec{"none": None, "gzip": Gzip, "snappy": Snappy, "lz4": LZ4} {
			p, err := c.PrepareProduce(golden(t, fmt.Sprintf("m%d-%s", magic, codecName)), ProduceRules{Version: 2, MaxBatchBytes: 1 << 20})
			if err != nil {
				t.Fatal(err)
			}
			b, rest, err := Next(p.Batches)
			if err != nil || len(rest) != 0 || b.Codec() != codec || p.Records != 4 || !p.Converted {
				t.Fatal(err, len(rest), b.Codec(), p.Records)
			}
			b.Assign(100, 7)
			got, err := readBatches(c, b)
			if err == nil {
				err = diffRecords(got, goldenRecords(magic))
			}
			if err != nil {
				t.Errorf("magic %d %s: %v", magic, codecName, err)
			}
		}
	}
}

func TestWriteOurs(t *testing.T) {
	dir := cmp.Or(*writeOurs, t.TempDir()) // without the flag nobody looks at it
	c := NewCodecs(0)
	for _, codec := range []Codec{None, Gzip, Snappy, LZ4, Zstd} {
		h := PlainHeader()
		h.Codec = codec
		b, err := c.Build(nil, h, goldenRecords(2))
		if err != nil {
			t.Fatal(err)
		}
		files := map[string][]byte{"m2": b}
		for magic := int8(0); magic <= 1; magic++ {
			down, err := c.DownConvert(nil, b, DownRules{Magic: magic, MaxBytes: 1 << 20})
			if err != nil {
				t.Fatal(err)
			}
			files[fmt.Sprintf("m%d", magic)] = down.Set
		}
		for name, data := range files {
			if err := os.WriteFile(filepath.Join(dir, name+"-"+codec.String()+".bin"), data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// What Kafka 0.8.2.2's own classes write (testdata/OldClient.java) is taken; they read what we convert down: tried on 2026-11-29 with
// the magic 0 files of TestWriteOurs, all five.
func TestConvertsUpWhatKafka082Writes(t *testing.T) {
	square := func(i int) byte { return byte(i * i / 7) }
	want := []Record{
		{Offset: 0, Timestamp: NoTimestamp, Value: []byte("first")},
		{Offset: 1, Timestamp: NoTimestamp, Key: []byte("k1"), Value: []byte{}},
		{Offset: 2, Timestamp: NoTimestamp, Key: []byte{}},
		{Offset: 3, Timestamp: NoTimestamp, Key: pattern(300, square), Value: pattern(20000, square)},
	}
	for _, codec := range []Codec{None, Gzip, Snappy, LZ4} {
		c := NewCodecs(0)
		p, err := c.PrepareProduce(golden(t, "old-"+codec.String()), ProduceRules{Version: 0, MaxBatchBytes: 1 << 20})
		if err != nil {
			t.Errorf("%v: %v", codec, err)
			continue
		}
		got, err := readBatches(c, p.Batches)
		if err == nil {
			err = diffRecords(got, want)
		}
		if err != nil || Batch(p.Batches).Codec() != codec {
			t.Errorf("%v: %v, stored as %v", codec, err, Batch(p.Batches).Codec())
		}
	}
}
