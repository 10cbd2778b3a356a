package broker

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/partition/record"
)

// batch is one magic 2 batch of records without compression.
func batch(t testing.TB, values ...string) []byte {
	t.Helper()
	var rs []record.Record
	for i, v := range values {
		rs = append(rs, record.Record{Offset: id.Offset(i), Timestamp: 5, Value: []byte(v)})
	}
	b, err := record.NewCodecs(0).Build(nil, record.PlainHeader(), rs)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func produceOne(version, acks int16, topic string, partition int32, records []byte) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks, req.TimeoutMillis = version, acks, 5000
	rt := kmsg.NewProduceRequestTopic()
	rt.Topic = topic
	rp := kmsg.NewProduceRequestTopicPartition()
	rp.Partition, rp.Records = partition, records
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	return req
}

func produced1(c *client, req *kmsg.ProduceRequest) kmsg.ProduceResponseTopicPartition {
	c.t.Helper()
	return ask[*kmsg.ProduceResponse](c, req).Topics[0].Partitions[0]
}

// alive is the next client, which must be served whatever came before.
func (f *fixture) alive(t testing.TB) {
	t.Helper()
	c := f.dial(t)
	defer func() { _ = c.c.Close() }()
	req := kmsg.NewPtrApiVersionsRequest()
	if got := ask[*kmsg.ApiVersionsResponse](c, req); len(got.ApiKeys) != len(f.sorted) {
		t.Fatalf("the next client is not served: %+v", got)
	}
}

// head is a request's first bytes: size, key, version, correlation id.
func head(size uint32, key, version int16) []byte {
	b := binary.BigEndian.AppendUint32(nil, size)
	b = binary.BigEndian.AppendUint16(b, uint16(key))
	b = binary.BigEndian.AppendUint16(b, uint16(version))
	return binary.BigEndian.AppendUint32(b, 9)
}

func TestBrokenFramesCloseWithOneLine(t *testing.T) {
	client := append([]byte{0, 3}, "cli"...)
	whole := frameOf(produceOne(7, 1, "t", 0, []byte("x")), 1)
	cases := []struct {
		name string
		send []byte
		half bool // the client ends its sending side
		want string
	}{
		{"two gigabytes announced", append(head(1<<31-1, 0, 7), client...), false, "at most 104857600"},
		{"a large admin frame", append(head(64<<20, 19, 5), client...), false, "at most 4194304"},
		{"negative size", head(1<<31, 0, 7), false, "no Kafka request"},
		{"tiny size", head(7, 0, 7), false, "no Kafka request"},
		{"HTTP", []byte("GET / HTTP/1.1\r\nHost: kafka\r\n\r\n"), false, "API key 12064 is not served"},
		{"TLS hello", append([]byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}, make([]byte, 500)...), false, "at most"},
		{"unknown key", append(head(13, 999, 0), client...), false, "API key 999 is not served"},
		{"negative key", append(head(13, -5, 0), client...), false, "API key -5 is not served"},
		{"unknown version", append(head(13, 0, 99), client...), false, "Produce version 99 is not served; 0 to 9 are"},
		{"negative version", append(head(13, 3, -1), client...), false, "Metadata version -1 is not served"},
		{"truncated", whole[:len(whole)-3], true, "middle of a frame"},
		{"truncated head", head(100, 0, 7)[:6], true, "middle of a frame"},
		{"cut-off body", func() []byte {
			b := bytes.Clone(whole[:len(whole)-4])
			binary.BigEndian.PutUint32(b, uint32(len(b)-4))
			return b
		}(), false, "cannot be decoded: cut off"},
		{"client id longer than the frame", append(head(10, 3, 1), 0x7f, 0xff), false, "cannot be decoded"},
		{"array of two billion", append(append(head(17, 3, 1), client...), 0x7f, 0xff, 0xff, 0xff), false, "cannot be decoded: it ends"},
		{"header tags without end", append(append(head(18, 3, 9), client...), 0xff, 0xff, 0xff, 0xff, 0x0f), false, "cannot be decoded"},
	}
	f := start(t, nil)
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			f.lines.take()
			c := f.dial(t)
			c.write(tc.send)
			if tc.half {
				if err := c.c.(*net.TCPConn).CloseWrite(); err != nil {
					t.Fatal(err)
				}
			}
			c.closed()
			waitFor(t, func() bool { return f.Connections() == 0 })
			got := f.lines.take()
			if len(got) != 1 || !strings.Contains(got[0], tc.want) || !strings.Contains(got[0], c.c.LocalAddr().String()) {
				t.Errorf("want one line with %q and the address, got %q", tc.want, got)
			}
			if strings.Contains(string(tc.send), "cli") && !strings.Contains(got[0], "client=cli") {
				t.Errorf("the line does not name the client: %q", got)
			}
			f.alive(t)
		})
	}
}

func waitFor(t testing.TB, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it did not happen within a minute")
		}
	}
}

// heap is what is live after a collection.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestAnnouncedBytesCostNothing(t *testing.T) {
	f := start(t, nil)
	before := heap()
	for range 200 {
		c := f.dial(t)
		c.write(head(100<<20, 0, 7))           // 20 GB announced in all,
		c.write(bytes.Repeat([]byte{0}, 1000)) // and a little sent
	}
	waitFor(t, func() bool { return f.Connections() == 200 })
	f.alive(t)
	if grown := int64(heap()) - int64(before); grown > 64<<20 {
		t.Errorf("200 connections that announced 100 MiB each hold %d MiB", grown>>20)
	}
}

// TestHostileArraysStaySmall sends the bodies that decode to the most memory per byte.
func TestHostileArraysStaySmall(t *testing.T) {
	f := start(t, func(c *Config) { c.NoAutoCreate = true })
	body := func(key, version int16, prefix []byte, fill int) []byte {
		b := append(head(0, key, version), 0, 3, 'c', 'l', 'i')
		b = append(b, prefix...)
		b = append(b, make([]byte, fill)...)
		binary.BigEndian.PutUint32(b, uint32(len(b)-4))
		return b
	}
	count := func(n int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(n)) }
	frames := [][]byte{
		body(3, 1, count(500<<10), 1<<20-100),                                        // Metadata of empty names
		body(1, 0, append(make([]byte, 12), count(600<<10)...), 4<<20-100),           // Fetch of empty topics
		body(0, 2, append([]byte{0, 1, 0, 0, 0, 1}, count(10<<20)...), 100<<20-1000), // Produce of empty topics
		body(19, 0, count(190<<10), 4<<20-100),
	}
	peak := func() uint64 { var m runtime.MemStats; runtime.ReadMemStats(&m); return m.HeapSys - m.HeapReleased }
	before := peak()
	for _, b := range frames {
		c := f.dial(t)
		_, _ = c.c.Write(b)
		_, _, _ = c.frame()
		_ = c.c.Close()
	}
	f.alive(t)
	if grown := int64(peak()) - int64(before); grown > 700<<20 {
		t.Errorf("hostile bodies took %d MiB", grown>>20)
	}
}

func TestUnknownApiVersionsVersionIsAnswered(t *testing.T) {
	f := start(t, nil)
	c := f.dial(t)
	// Version 127 with a body that nobody knows.
	c.write(append(append(head(8+5+9, 18, 127), 0, 3, 'c', 'l', 'i'), "something"...))
	corr, body, err := c.frame()
	if err != nil || corr != 9 {
		t.Fatal(corr, err)
	}
	want := []byte{0, 35, 0, 0, 0, 1, 0, 18, 0, 0, 0, 4}
	if !bytes.Equal(body, want) {
		t.Errorf("got % x, want % x", body, want)
	}
	for _, v := range []int16{0, 3, 1, 4, 2} { // the connection goes on
		req := kmsg.NewPtrApiVersionsRequest()
		req.Version, req.ClientSoftwareName, req.ClientSoftwareVersion = v, "test", "1.0"
		if got := ask[*kmsg.ApiVersionsResponse](c, req); got.ErrorCode != 0 || len(got.ApiKeys) != len(f.sorted) {
			t.Errorf("v%d: %+v", v, got)
		}
	}
	req := kmsg.NewPtrApiVersionsRequest()
	req.Version, req.ClientSoftwareName, req.ClientSoftwareVersion = 3, "bad name", "1.0"
	if got := ask[*kmsg.ApiVersionsResponse](c, req); got.ErrorCode != 42 {
		t.Errorf("a software name with a space: %+v", got)
	}
	if got := f.lines.take(); len(got) != 0 {
		t.Errorf("log: %q", got)
	}
}

func TestBadContentIsAnsweredWithKafkasErrors(t *testing.T) {
	f := start(t, nil)
	c := f.dial(t)
	if got := createTopic(c, 5, "t", 2, 1, nil); got.ErrorCode != 0 {
		t.Fatalf("%+v", got)
	}
	good := batch(t, "one", "two")
	wrongCRC := bytes.Clone(good)
	wrongCRC[len(wrongCRC)-1] ^= 1
	short := good[:len(good)-1]
	large := batch(t, strings.Repeat("x", 2<<20))
	countWrong := bytes.Clone(good)
	binary.BigEndian.PutUint32(countWrong[57:], 1000)
	binary.BigEndian.PutUint32(countWrong[17:], crc32.Checksum(countWrong[21:], crc32.MakeTable(crc32.Castagnoli)))
	for _, tc := range []struct {
		name      string
		topic     string
		partition int32
		records   []byte
		want      int16
	}{
		{"no such partition", "t", 7, good, 3},
		{"negative partition", "t", -1, good, 3},
		{"no such topic", "nope", 0, good, 3},
		{"illegal topic", "a/b", 0, good, 3},
		{"wrong CRC", "t", 0, wrongCRC, 2},
		{"cut off", "t", 0, short, 2},
		{"too large", "t", 0, large, 10},
		{"wrong record count", "t", 0, countWrong, 2},
		{"no records", "t", 0, nil, 2},
		{"garbage", "t", 0, []byte("this is no batch at all, whatever it is"), 2},
	} {
		got := produced1(c, produceOne(7, -1, tc.topic, tc.partition, bytes.Clone(tc.records)))
		if tc.want == 2 && (got.ErrorCode == 87 || got.ErrorCode == 43) {
			t.Errorf("%s: code %d is unknown to Produce v7", tc.name, got.ErrorCode)
		}
		if got.ErrorCode == 0 || tc.want != 2 && got.ErrorCode != tc.want || got.BaseOffset != -1 {
			t.Errorf("%s: %+v, want error %d", tc.name, got, tc.want)
		}
	}
	if got := produced1(c, produceOne(7, -1, "t", 0, bytes.Clone(good))); got.ErrorCode != 0 || got.BaseOffset != 0 {
		t.Errorf("a good batch after the bad ones: %+v", got)
	}
	for name, want := range map[string]int16{"": 17, ".": 17, "a b": 17, strings.Repeat("n", 250): 17, "ä": 17} {
		if got := createTopic(c, 4, name, 1, 1, nil); got.ErrorCode != want {
			t.Errorf("create %q: %+v", name, got)
		}
		req := kmsg.NewPtrMetadataRequest()
		req.Version, req.Topics, req.AllowAutoTopicCreation = 8, []kmsg.MetadataRequestTopic{{Topic: &name}}, true
		if got := ask[*kmsg.MetadataResponse](c, req).Topics[0]; got.ErrorCode != want {
			t.Errorf("metadata of %q: %+v", name, got)
		}
	}
	for value, name := range map[string]string{
		"soon": "retention.ms", "-2": "retention.bytes", "maybe": "preallocate", "shred": "cleanup.policy", "2": "min.cleanable.dirty.ratio",
		"1": "no.such.config", "NaN": "min.cleanable.dirty.ratio", "99999999999": "segment.bytes",
	} {
		got := createTopic(c, 5, "bad", 1, 1, map[string]string{name: value})
		if got.ErrorCode != 40 || got.ErrorMessage == nil || !strings.Contains(*got.ErrorMessage, name) || got.Configs == nil {
			t.Errorf("%s=%s: %+v", name, value, got)
		}
	}
	for _, tc := range []struct {
		partitions int32
		rf         int16
		want       int16
	}{{0, 1, 37}, {-2, 1, 37}, {1 << 30, 1, 37}, {1, 0, 38}, {1, 2, 38}, {1, -3, 38}} {
		if got := createTopic(c, 4, "bad", tc.partitions, tc.rf, nil); got.ErrorCode != tc.want {
			t.Errorf("%d partitions, %d replicas: %+v", tc.partitions, tc.rf, got)
		}
	}
	if _, ok := f.meta.View().Topic("bad"); ok {
		t.Error("a refused topic exists")
	}
}

func TestAcksZeroErrorClosesTheConnection(t *testing.T) {
	f := start(t, nil)
	c := f.dial(t)
	if got := createTopic(c, 5, "t", 1, 1, nil); got.ErrorCode != 0 {
		t.Fatalf("%+v", got)
	}
	c.send(produceOne(7, 0, "t", 0, batch(t, "kept")))
	c.send(produceOne(7, 0, "t", 5, batch(t, "lost")))
	c.closed()
	if got := f.lines.take(); len(got) != 1 || !strings.Contains(got[0], "acks=0 failed: unknown topic") {
		t.Errorf("log: %q", got)
	}
	l, _ := f.parts.log("t", 0)
	if l.end != 1 {
		t.Errorf("end %d", l.end)
	}
}

// Old producers ask for a number of replicas (request.required.acks=2): more than one means all that are in sync, which is
// never less (decisions.md 12).
func TestMoreThanOneAckMeansAll(t *testing.T) {
	f := start(t, nil)
	c := f.dial(t)
	if got := createTopic(c, 5, "t", 1, 1, nil); got.ErrorCode != 0 {
		t.Fatalf("%+v", got)
	}
	for _, acks := range []int16{1, 2, 3, 32767, -1} {
		for _, version := range []int16{0, 2, 9} {
			if got := produced1(c, produceOne(version, acks, "t", 0, batch(t, "x"))); got.ErrorCode != 0 {
				t.Errorf("acks %d, version %d: error %d", acks, version, got.ErrorCode)
			}
			f.parts.mu.Lock()
			if all := f.parts.acks == -1; all != (acks != 1) {
				t.Errorf("acks %d is passed on as %d", acks, f.parts.acks)
			}
			f.parts.mu.Unlock()
		}
	}
}

// TestSlowSenderIsCutOff: a frame that has begun must end.
func TestSlowSenderIsCutOff(t *testing.T) {
	f := start(t, func(c *Config) { c.FrameTimeout = time.Second })
	c := f.dial(t)
	c.write(head(1000, 0, 7))
	c.closed()
	f.alive(t)
	if got := f.lines.take(); len(got) != 1 || !strings.Contains(got[0], "did not end in time") {
		t.Errorf("log: %q", got)
	}
}

func TestBudgetIsGivenBack(t *testing.T) {
	f := start(t, func(c *Config) { c.RequestMaxBytes, c.QueuedMaxBytes = 2<<20, 2<<20 })
	c := f.dial(t)
	if got := createTopic(c, 5, "t", 1, 1, nil); got.ErrorCode != 0 {
		t.Fatalf("%+v", got)
	}
	big := batch(t, strings.Repeat("x", 900<<10))
	for i := range 5 {
		cut := f.dial(t) // takes budget and goes away
		b := frameOf(produceOne(7, 1, "t", 0, big), 1)
		cut.write(b[:len(b)/2])
		_ = cut.c.Close()
		if got := produced1(c, produceOne(7, 1, "t", 0, bytes.Clone(big))); got.ErrorCode != 0 || got.BaseOffset != int64(i) {
			t.Fatalf("%d: %+v", i, got)
		}
	}
	waitFor(t, func() bool { return f.Connections() == 1 })
	waitFor(t, func() bool { // the last response may arrive before its frame's budget is given back
		f.budget.mu.Lock()
		defer f.budget.mu.Unlock()
		return f.budget.free == 2<<20 && f.budget.waiters.Len() == 0
	})
}
