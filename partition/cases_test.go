package partition

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sys/unix"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/vfs"
	"github.com/barnabas-mq/barnabas/partition/record"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

func (c *cluster) setConfig(topic string, kv ...string) {
	cmd := &statepb.SetConfig{Type: "topics", Name: topic, ZnodeVersion: -1}
	for i := 0; i < len(kv); i += 2 {
		cmd.Entries = append(cmd.Entries, &statepb.ConfigEntry{Name: kv[i], Value: kv[i+1]})
	}
	c.do(&statepb.Command{Body: &statepb.Command_SetConfig{SetConfig: cmd}})
}

// conf waits until a topic's configuration has reached a replica.
func (b *broker) conf(topic string, ok func(*topicConfig) bool) {
	b.c.t.Helper()
	eventually(b.c.t, "the configuration", func() bool {
		r := b.m.find(id.TopicPartition{Topic: topic})
		return r != nil && ok(r.conf.Load())
	})
}

// cases.md 6: segments at 0, 100, 200; LEO = HW = 250.
func TestListOffsetsV0(t *testing.T) { synctest.Test(t, testListOffsetsV0) }

func testListOffsetsV0(t *testing.T) {
	c := newCluster(t, 1, Config{})
	c.createTopic("t", 1, []int32{1})
	b := c.leader("t", 0)
	if got, err := b.m.ListOffsetsV0("t", 0, TimestampLatest, 10); err != nil || !slices.Equal(got, []id.Offset{0}) {
		t.Errorf("empty log: %v, %v", got, err)
	}
	for i, n := range []int{100, 100, 50} {
		if i > 0 {
			if err := b.m.find(id.TopicPartition{Topic: "t"}).s.log.Roll(0); err != nil {
				t.Fatal(err)
			}
		}
		values := make([]string, n)
		mustProduce(t, b, "t", 0, values...)
	}
	for _, tt := range []struct {
		ts   int64
		n    int
		want []id.Offset
	}{
		{TimestampLatest, 10, []id.Offset{250, 200, 100, 0}},
		{TimestampLatest, 1, []id.Offset{250}},
		{TimestampLatest, 0, nil},
		{TimestampEarliest, 10, []id.Offset{0}},
		{1000, 10, nil},
		{time.Now().Add(time.Hour).UnixMilli(), 2, []id.Offset{250, 200}},
	} {
		if got, err := b.m.ListOffsetsV0("t", 0, tt.ts, tt.n); err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("time %d, %d at most: %v, %v; want %v", tt.ts, tt.n, got, err, tt.want)
		}
	}
	if got, err := b.m.ListOffset("t", 0, 500, -1, ReadUncommitted); err != nil || got.Offset != 0 {
		t.Errorf("v1 by the same time: %+v, %v", got, err)
	}
	if got, err := b.m.ListOffset("t", 0, TimestampMax, -1, ReadUncommitted); err != nil || got.Offset != 99 || got.Timestamp != 1099 {
		t.Errorf("largest timestamp: %+v, %v", got, err)
	}
	if got, err := b.m.ListOffset("t", 0, 1<<40, -1, ReadUncommitted); err != nil || got.Offset != -1 {
		t.Errorf("later than all: %+v, %v", got, err)
	}
}

// cases.md 10: epoch 0: offsets 0-9; epoch 2: 10-24.
func TestOffsetForLeaderEpoch(t *testing.T) { synctest.Test(t, testOffsetForLeaderEpoch) }

func testOffsetForLeaderEpoch(t *testing.T) {
	c := newCluster(t, 2, Config{MinISR: 1})
	c.createTopic("t", 1, []int32{1, 2})
	mustProduce(t, c.leader("t", 0), "t", 0, make([]string, 10)...)
	first := c.row("t", 0).LeaderEpoch
	c.elect("t", 0, 2)
	c.elect("t", 0, 1)
	mustProduce(t, c.leader("t", 0), "t", 0, make([]string, 15)...)
	b := c.leader("t", 0)
	for _, tt := range []struct {
		asked, epoch id.LeaderEpoch
		end          id.Offset
	}{{first, first, 10}, {first + 1, first, 10}, {first + 2, first + 2, 25}, {first + 3, -1, -1}} {
		e, end, err := b.m.EndOffsetForEpoch("t", 0, -1, tt.asked)
		if err != nil || e != tt.epoch || end != tt.end {
			t.Errorf("epoch %d: (%d, %d), %v; want (%d, %d)", tt.asked, e, end, err, tt.epoch, tt.end)
		}
	}
	if _, _, err := b.m.EndOffsetForEpoch("t", 0, first, first); !errors.Is(err, ErrFencedLeaderEpoch) {
		t.Errorf("an old current epoch: %v", err)
	}
}

func TestTopicConfiguration(t *testing.T) { synctest.Test(t, testTopicConfiguration) }

func testTopicConfiguration(t *testing.T) {
	c := newCluster(t, 1, Config{})
	c.createTopic("t", 1, []int32{1})
	b := c.leader("t", 0)
	c.setConfig("t", "max.message.bytes", "500", "message.timestamp.type", "LogAppendTime", "segment.bytes", "rubbish")
	b.conf("t", func(c *topicConfig) bool { return c.maxMessageBytes == 500 })
	if res := b.produce("t", 0, 1, 0, batchOf(t, string(make([]byte, 600)))); Code(res.Err) != 10 {
		t.Errorf("too large: %v", res.Err)
	}
	before := time.Now().UnixMilli()
	if res := b.produce("t", 0, -1, time.Second, batchOf(t, "x")); res.Err != nil || res.AppendTime < before {
		t.Errorf("LogAppendTime: %+v", res)
	}
	bad := batchOf(t, "x")
	bad[len(bad)-1] ^= 1
	if res := b.produce("t", 0, -1, time.Second, bad); !errors.Is(res.Err, record.ErrCorrupt) || Code(res.Err) != 2 {
		t.Errorf("bad CRC: %v", res.Err)
	}
	// An unsuccessful append leaves nothing; an empty set of an old producer is no error.
	if res := b.m.Append(context.Background(), []AppendItem{{Topic: "t", Version: 2}}, -1, time.Second)[0]; res.Err != nil || res.BaseOffset != -1 {
		t.Errorf("empty set: %+v", res)
	}
	if m, err := b.m.Marks("t", 0); err != nil || m.LogEnd != 1 {
		t.Errorf("%+v, %v", m, err)
	}
	c.do(&statepb.Command{Body: &statepb.Command_CreatePartitions{CreatePartitions: &statepb.CreatePartitions{
		Name: "t", From: 1, Assignments: []*statepb.Assignment{{Replicas: []int32{1}}},
	}}})
	c.leader("t", 1)
}

// KIP-903, and bytes that are no fetch.
func TestReplicaFetchRefused(t *testing.T) { synctest.Test(t, testReplicaFetchRefused) }

func testReplicaFetchRefused(t *testing.T) {
	c := newCluster(t, 2, Config{})
	c.createTopic("t", 1, []int32{1, 2})
	b := c.leader("t", 0)
	old := id.BrokerEpoch(c.brokers[2].epoch.Load())
	c.brokers[2].stop()
	c.brokers[2].start()
	req := kmsg.NewPtrFetchRequest()
	req.Version = replicaFetchVersion
	payload := req.AppendTo(binary.BigEndian.AppendUint16(nil, replicaFetchVersion))
	if _, err := b.m.HandleReplicaFetch(context.Background(), 2, old, payload); !errors.Is(err, ErrStaleBrokerEpoch) {
		t.Errorf("dead incarnation: %v", err)
	}
	now := id.BrokerEpoch(c.brokers[2].epoch.Load())
	if _, err := b.m.HandleReplicaFetch(context.Background(), 2, now, payload); err != nil {
		t.Errorf("no partitions: %v", err)
	}
	for _, bad := range [][]byte{nil, {0}, {0, 12}, {0, 13}, payload[:5], append(payload[:2:2], 0xff, 0xff, 0xff, 0xff, 0xff)} {
		if _, err := b.m.HandleReplicaFetch(context.Background(), 2, now, bad); !errors.Is(err, ErrInvalidRequest) {
			t.Errorf("%x: %v", bad, err)
		}
	}
	ask := func(topic id.TopicID, partition int32, epoch id.LeaderEpoch, from id.BrokerID) int16 {
		req := kmsg.NewPtrFetchRequest()
		req.Version = replicaFetchVersion
		rt, rp := kmsg.NewFetchRequestTopic(), kmsg.NewFetchRequestTopicPartition()
		rt.TopicID, rp.Partition, rp.CurrentLeaderEpoch = topic, partition, int32(epoch)
		rt.Partitions = append(rt.Partitions, rp)
		req.Topics = append(req.Topics, rt)
		out, err := b.m.HandleReplicaFetch(context.Background(), from, 1<<40, req.AppendTo(binary.BigEndian.AppendUint16(nil, replicaFetchVersion)))
		if err != nil {
			t.Fatal(err)
		}
		res := kmsg.NewPtrFetchResponse()
		res.Version = replicaFetchVersion
		if err := res.ReadFrom(out[2:]); err != nil {
			t.Fatal(err)
		}
		return res.Topics[0].Partitions[0].ErrorCode
	}
	epoch := c.row("t", 0).LeaderEpoch
	for _, tt := range []struct {
		name      string
		topic     byte
		partition int32
		epoch     id.LeaderEpoch
		from      id.BrokerID
		want      int16
	}{
		{"right", 1, 0, epoch, 2, 0}, {"no such topic", 9, 0, epoch, 2, 3}, {"no such partition", 1, 5, epoch, 2, 3},
		{"older epoch", 1, 0, epoch - 1, 2, 74}, {"newer epoch", 1, 0, epoch + 1, 2, 75}, {"no replica", 1, 0, epoch, 7, 3},
	} {
		if got := ask(id.TopicID{tt.topic, 1}, tt.partition, tt.epoch, tt.from); got != tt.want && !(tt.name == "older epoch" && tt.epoch < 0) {
			t.Errorf("%s: error %d, want %d", tt.name, got, tt.want)
		}
	}
}

// A follower whose log the leader no longer reaches starts anew; one with a flipped bit in an old segment fetches it again.
func TestFollowerRepairs(t *testing.T) { synctest.Test(t, testFollowerRepairs) }

func testFollowerRepairs(t *testing.T) {
	c := newCluster(t, 2, Config{MinISR: 1, SegmentBytes: 2000})
	c.createTopic("t", 1, []int32{1, 2})
	b := c.leader("t", 0)
	for i := range 60 {
		mustProduce(t, b, "t", 0, fmt.Sprint(i), strings.Repeat("x", 100))
	}
	f := c.brokers[2]
	r := f.m.find(id.TopicPartition{Topic: "t"})
	flip(t, f.disk, "data/t-0/00000000000000000000.log", 300)
	c.elect("t", 0, 2)
	if res := c.leader("t", 0).fetch("t", 0, 2); !errors.Is(res.Err, ErrStorage) && !errors.Is(res.Err, ErrNotLeader) {
		t.Fatalf("damaged bytes: %+v", res)
	}
	eventually(t, "the damaged leader to resign", func() bool { return c.row("t", 0).Leader == 1 })
	b = c.leader("t", 0)
	eventually(t, "the follower to leave the ISR, fetch again, and return", func() bool {
		r.mu.Lock()
		damaged := r.s.damagedAt >= 0
		r.mu.Unlock()
		return !damaged && len(c.row("t", 0).ISR) == 2
	})
	if got := r.s.log.LogEnd(); got != 120 {
		t.Errorf("log end %d", got)
	}
	if _, err := readAll(r, 0, 120); err != nil {
		t.Errorf("after the repair: %v", err)
	}
	f.stop()
	c.fence(2, true)
	mustProduce(t, b, "t", 0, "more")
	if err := b.m.find(id.TopicPartition{Topic: "t"}).s.log.SetLogStart(121); err != nil {
		t.Fatal(err)
	}
	mustProduce(t, b, "t", 0, "and more")
	f.start()
	c.waitISR("t", 0, 2)
	r = f.m.find(id.TopicPartition{Topic: "t"})
	if r.s.log.LogStart() != 121 || r.s.log.LogEnd() != 122 {
		t.Errorf("log [%d, %d)", r.s.log.LogStart(), r.s.log.LogEnd())
	}
}

func flip(t *testing.T, fsys vfs.FS, name string, at int64) {
	t.Helper()
	f, err := fsys.OpenRW(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 4
	if _, err := f.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
}

// A leader with damage does not serve the damaged bytes, and serves the rest.
func TestLeaderWithDamage(t *testing.T) { synctest.Test(t, testLeaderWithDamage) }

func testLeaderWithDamage(t *testing.T) {
	c := newCluster(t, 1, Config{SegmentBytes: 2000})
	c.createTopic("t", 1, []int32{1})
	b := c.leader("t", 0)
	for range 60 {
		mustProduce(t, b, "t", 0, strings.Repeat("x", 100))
	}
	flip(t, b.disk, "data/t-0/00000000000000000000.log", 300)
	if res := b.fetch("t", 0, 1); !errors.Is(res.Err, ErrStorage) {
		t.Errorf("damaged bytes: %+v", res)
	}
	if got, err := b.read("t", 0, 30); err != nil || len(got) != 30 {
		t.Errorf("the rest: %d, %v", len(got), err)
	}
	mustProduce(t, b, "t", 0, "y")
	if info := b.m.DescribeLogs(); len(info) != 1 || info[0].Failure == nil || info[0].Size == 0 {
		t.Errorf("%+v", info)
	}
}

// The last of an ISR whose disk lost what was durable does not lead as if nothing had been.
func TestLostRecordsAreNotLed(t *testing.T) { synctest.Test(t, testLostRecordsAreNotLed) }

func testLostRecordsAreNotLed(t *testing.T) {
	c := newCluster(t, 1, Config{})
	c.createTopic("t", 1, []int32{1})
	b := c.leader("t", 0)
	for range 10 {
		mustProduce(t, b, "t", 0, "x")
	}
	if err := b.m.find(id.TopicPartition{Topic: "t"}).s.log.Checkpoint(); err != nil {
		t.Fatal(err)
	}
	b.crash(rand.New(rand.NewPCG(1, 1)), 1)
	name := filepath.Join("data", "t-0", "00000000000000000000.log")
	f, err := b.disk.OpenRW(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(200); err != nil {
		t.Fatal(err)
	}
	f.Close()
	b.start()
	r := b.m.find
	eventually(t, "the log to be opened", func() bool { return r(id.TopicPartition{Topic: "t"}) != nil })
	for range 50 {
		if res := b.fetch("t", 0, 0); !errors.Is(res.Err, ErrNotLeader) {
			t.Fatalf("led in spite of the loss: %+v", res)
		}
		time.Sleep(time.Millisecond)
	}
	b.stop()
	b.start() // the operator accepts it
	if got, err := c.leader("t", 0).read("t", 0, 0); err != nil || len(got) != 2 {
		t.Errorf("read %d, %v", len(got), err)
	}
}

// A hundred parked consumers are woken by one append and leave nothing behind.
func TestManyParked(t *testing.T) { synctest.Test(t, testManyParked) }

func testManyParked(t *testing.T) {
	c := newCluster(t, 1, Config{})
	c.createTopic("t", 1, []int32{1}, []int32{1})
	b := c.leader("t", 1)
	r := b.m.find(id.TopicPartition{Topic: "t"})
	const n = 100
	done := make(chan []FetchResult, n)
	for i := range n {
		go func() {
			done <- b.m.Fetch(context.Background(), &FetchRequest{Version: 12, MinBytes: 1, MaxWait: time.Minute, MaxBytes: 1 << 20, Client: Client{Conn: uint64(i + 1)},
				Items: []FetchItem{{Topic: "t", LeaderEpoch: -1, MaxBytes: 1 << 20}, {Topic: "t", Partition: 1, LeaderEpoch: -1, MaxBytes: 1 << 20}}})
		}()
	}
	eventually(t, "all to be parked", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.s.hwWatch) == n })
	if got := b.m.Fetches(); len(got) != 2*n+2 { // and who is gone, of each partition
		t.Errorf("%d fetches", len(got))
	}
	mustProduce(t, b, "t", 1, "x")
	for range n {
		if res := <-done; res[0].Err != nil || res[1].Err != nil || len(res[1].Records) == 0 {
			t.Fatalf("%+v", res)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.s.hwWatch) != 0 {
		t.Errorf("%d watchers left", len(r.s.hwWatch))
	}
}

// MinBytes counts over all partitions.
func TestMinBytes(t *testing.T) { synctest.Test(t, testMinBytes) }

func testMinBytes(t *testing.T) {
	c := newCluster(t, 1, Config{})
	c.createTopic("t", 1, []int32{1}, []int32{1})
	b := c.leader("t", 1)
	done := make(chan []FetchResult, 1)
	go func() {
		done <- b.m.Fetch(context.Background(), &FetchRequest{Version: 12, MinBytes: 300, MaxWait: time.Minute, MaxBytes: 1 << 20,
			Items: []FetchItem{{Topic: "t", LeaderEpoch: -1, MaxBytes: 1 << 20}, {Topic: "t", Partition: 1, LeaderEpoch: -1, MaxBytes: 1 << 20}}})
	}()
	mustProduce(t, b, "t", 0, strings.Repeat("x", 150))
	select {
	case res := <-done:
		t.Fatalf("answered with %d bytes", len(res[0].Records)+len(res[1].Records))
	case <-time.After(50 * time.Millisecond):
	}
	mustProduce(t, b, "t", 1, strings.Repeat("x", 150))
	if res := <-done; len(res[0].Records)+len(res[1].Records) < 300 {
		t.Errorf("%d and %d bytes", len(res[0].Records), len(res[1].Records))
	}
}

func FuzzReplicaFetch(f *testing.F) {
	req := kmsg.NewPtrFetchRequest()
	req.Version = replicaFetchVersion
	rt := kmsg.NewFetchRequestTopic()
	rt.TopicID = id.TopicID{1, 1}
	rt.Partitions = append(rt.Partitions, kmsg.NewFetchRequestTopicPartition())
	req.Topics = append(req.Topics, rt)
	stamp{epoch: 3, at: time.Second}.put(&req.UnknownTags)
	f.Add(req.AppendTo(binary.BigEndian.AppendUint16(nil, replicaFetchVersion)))
	c := newCluster(f, 2, Config{})
	c.createTopic("t", 1, []int32{1, 2})
	m := c.leader("t", 0).m
	f.Fuzz(func(t *testing.T, payload []byte) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // never parked
		_, _ = m.HandleReplicaFetch(ctx, 2, 1<<40, payload)
	})
}

// The only replica comes back by itself when its disk does.
func TestOnlyReplicaComesBack(t *testing.T) { synctest.Test(t, testOnlyReplicaComesBack) }

func testOnlyReplicaComesBack(t *testing.T) {
	c := newCluster(t, 1, quick)
	c.createTopic("t", 1, []int32{1})
	b := c.leader("t", 0)
	mustProduce(t, b, "t", 0, "a")
	broken := func(op vfs.Op) error {
		if op.Kind == vfs.OpSync {
			return unix.EIO
		}
		return nil
	}
	b.fault.Store(&broken)
	if res := b.produce("t", 0, -1, 5*time.Second, batchOf(t, "lost")); !errors.Is(res.Err, ErrNotLeader) {
		t.Errorf("failed sync: %v", res.Err)
	}
	b.fault.Store(nil)
	b = c.leader("t", 0)
	if got, err := b.read("t", 0, 0); err != nil || got[0] != "a" {
		t.Errorf("read %v, %v", got, err)
	}
	mustProduce(t, b, "t", 0, "c")
}
