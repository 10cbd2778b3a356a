package partition

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/lease"
	"github.com/barnabas-mq/barnabas/internal/vfs"
	"github.com/barnabas-mq/barnabas/partition/record"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// quick shrinks ISRs soon.
var quick = Config{ReplicaLagMax: 300 * time.Millisecond, RetryFailed: 100 * time.Millisecond}

func (c *cluster) waitISR(topic string, p int32, n int) {
	c.t.Helper()
	eventually(c.t, fmt.Sprintf("an ISR of %d", n), func() bool { return len(c.row(topic, p).ISR) == n })
}

// mustProduce produces until it is acked; on a busy machine a slow follower may be out of the ISR for a moment.
func mustProduce(t *testing.T, b *broker, topic string, p int32, values ...string) id.Offset {
	t.Helper()
	var res AppendResult
	eventually(t, "enough replicas in sync", func() bool {
		res = b.produce(topic, p, -1, 20*time.Second, batchOf(t, values...))
		return !errors.Is(res.Err, ErrNotEnoughReplicas)
	})
	if res.Err != nil {
		t.Fatalf("produce: %v", res.Err)
	}
	return res.BaseOffset
}

func TestThreeReplicasHoldTheSameBytes(t *testing.T) {
	synctest.Test(t, testThreeReplicasHoldTheSameBytes)
}

func testThreeReplicasHoldTheSameBytes(t *testing.T) {
	c := newCluster(t, 3, Config{})
	c.createTopic("t", 1, []int32{1, 2, 3}, []int32{2, 3, 1}, []int32{3, 1, 2})
	for p := range int32(3) {
		b := c.leader("t", p)
		for i := range 20 {
			if at := mustProduce(t, b, "t", p, fmt.Sprint(i)); at != id.Offset(i) {
				t.Fatalf("record %d at offset %d", i, at)
			}
		}
	}
	for p := range int32(3) {
		for _, b := range c.brokers {
			r := b.m.find(id.TopicPartition{Topic: "t", Partition: p})
			// acks=all has returned, so every member of the ISR has it all on disk.
			if end := r.s.log.SyncedEnd(); end != 20 {
				t.Errorf("broker %d has synced partition %d up to %d", b.id, p, end)
			}
		}
	}
}

// Nothing is acked before the sync on a follower has returned.
func TestAckWaitsForTheFollowersSync(t *testing.T) { synctest.Test(t, testAckWaitsForTheFollowersSync) }

func testAckWaitsForTheFollowersSync(t *testing.T) {
	c := newCluster(t, 2, Config{MinISR: 2})
	c.createTopic("t", 1, []int32{1, 2})
	b := c.leader("t", 0)
	mustProduce(t, b, "t", 0, "first")
	release := make(chan struct{})
	slow := func(op vfs.Op) error {
		if op.Kind == vfs.OpSync {
			<-release
		}
		return nil
	}
	c.brokers[2].fault.Store(&slow)
	pending := b.m.BeginAppend([]AppendItem{{Topic: "t", Records: batchOf(t, "second"), Version: 9}}, -1)
	follower := c.brokers[2].m.find(id.TopicPartition{Topic: "t"})
	eventually(t, "the follower to append", func() bool { return follower.s.log.LogEnd() == 2 })
	eventually(t, "the leader to sync", func() bool { return b.m.find(id.TopicPartition{Topic: "t"}).s.log.SyncedEnd() == 2 })
	synctest.Wait() // whatever the follower may say before its sync, it has said
	if pending.Settled() {
		t.Error("acked before the follower's sync")
	}
	if res := b.fetch("t", 0, 1); res.HighWatermark != 1 || len(res.Records) > 0 {
		t.Errorf("shown before the follower's sync: %+v", res)
	}
	close(release)
	if res := pending.Wait(context.Background(), 20*time.Second)[0]; res.Err != nil || res.BaseOffset != 1 {
		t.Errorf("after the sync: %+v", res)
	}
}

// The leader's own sync counts as a follower's: what is on no disk is neither acked nor shown, also what was sent with acks=1.
func TestAckWaitsForTheLeadersSync(t *testing.T) { synctest.Test(t, testAckWaitsForTheLeadersSync) }

func testAckWaitsForTheLeadersSync(t *testing.T) {
	c := newCluster(t, 2, Config{MinISR: 2})
	c.createTopic("t", 1, []int32{1, 2})
	b := c.leader("t", 0)
	mustProduce(t, b, "t", 0, "first")
	release := make(chan struct{})
	slow := func(op vfs.Op) error {
		if op.Kind == vfs.OpSync {
			<-release
		}
		return nil
	}
	b.fault.Store(&slow)
	if res := b.produce("t", 0, 1, time.Second, batchOf(t, "second")); res.Err != nil || res.BaseOffset != 1 {
		t.Fatalf("acks=1 waits for the disk: %+v", res)
	}
	pending := b.m.BeginAppend([]AppendItem{{Topic: "t", Records: batchOf(t, "third"), Version: 9}}, -1)
	follower := c.brokers[2].m.find(id.TopicPartition{Topic: "t"})
	eventually(t, "the follower to sync", func() bool { return follower.s.log.SyncedEnd() == 3 })
	synctest.Wait()
	if pending.Settled() {
		t.Error("acked before the leader's sync")
	}
	if res := b.fetch("t", 0, 1); res.HighWatermark != 1 || len(res.Records) > 0 {
		t.Errorf("shown before the leader's sync: %+v", res)
	}
	close(release)
	if res := pending.Wait(context.Background(), 20*time.Second)[0]; res.Err != nil || res.BaseOffset != 2 {
		t.Errorf("after the sync: %+v", res)
	}
	if res := b.fetch("t", 0, 1); res.HighWatermark != 3 {
		t.Errorf("after the sync: %+v", res)
	}
}

// With UnsyncedAcks the page cache is enough.
func TestUnsyncedAcksDoNotWaitForTheDisk(t *testing.T) {
	synctest.Test(t, testUnsyncedAcksDoNotWaitForTheDisk)
}

func testUnsyncedAcksDoNotWaitForTheDisk(t *testing.T) {
	c := newCluster(t, 2, Config{MinISR: 2, UnsyncedAcks: true})
	c.createTopic("t", 1, []int32{1, 2})
	b := c.leader("t", 0)
	synctest.Wait() // the follower may still be making its log
	var syncs atomic.Int64
	count := func(op vfs.Op) error {
		if op.Kind == vfs.OpSync {
			syncs.Add(1)
		}
		return nil
	}
	for _, b := range c.brokers {
		b.fault.Store(&count)
	}
	for range 10 {
		mustProduce(t, b, "t", 0, "x")
	}
	if n := syncs.Load(); n != 0 {
		t.Errorf("%d syncs", n)
	}
}

// Many appends to many partitions share syncs, and a sync never comes before what it covers.
func TestCommitTickIsShared(t *testing.T) { synctest.Test(t, testCommitTickIsShared) }

func testCommitTickIsShared(t *testing.T) {
	c := newCluster(t, 1, Config{})
	c.createTopic("t", 1, []int32{1})
	b := c.leader("t", 0)
	var syncs atomic.Int64
	slow := func(op vfs.Op) error {
		if op.Kind == vfs.OpSync {
			syncs.Add(1)
			time.Sleep(10 * time.Millisecond)
		}
		return nil
	}
	b.fault.Store(&slow)
	const n = 200
	var waits []*Appending
	for range n {
		waits = append(waits, b.m.BeginAppend([]AppendItem{{Topic: "t", Records: batchOf(t, "x"), Version: 9}}, -1))
	}
	for i, w := range waits {
		if res := w.Wait(context.Background(), 20*time.Second)[0]; res.Err != nil || res.BaseOffset != id.Offset(i) {
			t.Fatalf("append %d: %+v", i, res)
		}
	}
	if got := syncs.Load(); got > n/4 {
		t.Errorf("%d syncs for %d appends that came together", got, n)
	}
}

func TestISRShrinksAndGrows(t *testing.T) { synctest.Test(t, testISRShrinksAndGrows) }

func testISRShrinksAndGrows(t *testing.T) {
	c := newCluster(t, 3, quick)
	c.createTopic("t", 1, []int32{1, 2, 3})
	b := c.leader("t", 0)
	mustProduce(t, b, "t", 0, "a")
	c.brokers[3].cut.Store(id.BrokerID(1), struct{}{})
	// Waits until the lagging member is out, then is acked by the two that are left.
	if at := mustProduce(t, b, "t", 0, "b"); at != 1 {
		t.Fatalf("offset %d", at)
	}
	if isr := c.row("t", 0).ISR; len(isr) != 2 || slices.Contains(isr, 3) {
		t.Fatalf("ISR %v", isr)
	}
	c.brokers[3].cut.Delete(id.BrokerID(1))
	c.waitISR("t", 0, 3)
	mustProduce(t, b, "t", 0, "c")
}

// A fenced broker leaves at once, and one that comes back joins after it has caught up.
func TestFencedReplicaLeavesAndReturns(t *testing.T) {
	synctest.Test(t, testFencedReplicaLeavesAndReturns)
}

func testFencedReplicaLeavesAndReturns(t *testing.T) {
	c := newCluster(t, 3, Config{})
	c.createTopic("t", 1, []int32{1, 2, 3})
	b := c.leader("t", 0)
	mustProduce(t, b, "t", 0, "a")
	c.brokers[2].stop()
	c.fence(2, true)
	if isr := c.row("t", 0).ISR; len(isr) != 2 {
		t.Fatalf("ISR %v", isr)
	}
	for range 10 {
		mustProduce(t, b, "t", 0, "b")
	}
	c.brokers[2].start()
	c.waitISR("t", 0, 3)
	if end := c.brokers[2].m.find(id.TopicPartition{Topic: "t"}).s.log.SyncedEnd(); end != 11 {
		t.Errorf("joined with %d records", end)
	}
}

func TestMinISR(t *testing.T) { synctest.Test(t, testMinISR) }

func testMinISR(t *testing.T) {
	c := newCluster(t, 3, quick)
	c.createTopic("t", 1, []int32{1, 2, 3})
	b := c.leader("t", 0)
	mustProduce(t, b, "t", 0, "a")
	for _, f := range []id.BrokerID{2, 3} {
		c.brokers[f].cut.Store(id.BrokerID(1), struct{}{})
	}
	// Appended while the ISR is whole, then it shrinks below the minimum.
	res := b.produce("t", 0, -1, time.Second, batchOf(t, "after"))
	if !errors.Is(res.Err, ErrNotEnoughReplicasAfterAppend) {
		t.Errorf("appended before the shrink: %v", res.Err)
	}
	c.waitISR("t", 0, 1)
	res = b.produce("t", 0, -1, time.Second, batchOf(t, "refused"))
	if !errors.Is(res.Err, ErrNotEnoughReplicas) {
		t.Errorf("below the minimum: %v", res.Err)
	}
	if res = b.produce("t", 0, 1, time.Second, batchOf(t, "one")); res.Err != nil || res.BaseOffset != 2 {
		t.Errorf("acks=1 below the minimum: %+v", res)
	}
	// KIP-966: the high watermark stays.
	if got := b.fetch("t", 0, 1); got.Err != nil || got.HighWatermark != 1 || len(got.Records) > 0 {
		t.Errorf("below the minimum shown: %+v", got)
	}
	c.brokers[2].cut.Delete(id.BrokerID(1))
	c.waitISR("t", 0, 2)
	eventually(t, "the high watermark to go on", func() bool { return b.fetch("t", 0, 1).HighWatermark == 3 })
	// A lower minimum counts at once.
	c.brokers[2].cut.Store(id.BrokerID(1), struct{}{})
	c.waitISR("t", 0, 1)
	c.do(&statepb.Command{Body: &statepb.Command_SetConfig{SetConfig: &statepb.SetConfig{
		Type: "topics", Name: "t", ZnodeVersion: -1, Entries: []*statepb.ConfigEntry{{Name: "min.insync.replicas", Value: "1"}},
	}}})
	eventually(t, "the new minimum to count", func() bool {
		return b.produce("t", 0, -1, time.Second, batchOf(t, "ok")).Err == nil
	})
}

func TestEpochFencing(t *testing.T) { synctest.Test(t, testEpochFencing) }

func testEpochFencing(t *testing.T) {
	c := newCluster(t, 3, quick)
	c.createTopic("t", 1, []int32{1, 2, 3})
	old := c.leader("t", 0)
	mustProduce(t, old, "t", 0, "a")
	epoch := c.row("t", 0).LeaderEpoch
	// The old leader learns nothing; its lease is gone, and its followers leave it.
	old.lag(true)
	c.elect("t", 0, 2)
	b := c.leader("t", 0)
	if b.id != 2 {
		t.Fatalf("broker %d leads", b.id)
	}
	pending := old.m.BeginAppend([]AppendItem{{Topic: "t", Records: batchOf(t, "lost"), Version: 9}}, -1)
	eventually(t, "the old leader to refuse consumers", func() bool {
		res := old.fetch("t", 0, 0)
		_, err := old.m.ListOffset("t", 0, TimestampLatest, -1, ReadUncommitted)
		return errors.Is(res.Err, ErrNotLeader) && errors.Is(err, ErrNotLeader)
	})
	c.fence(1, false)
	for i := range 3 {
		mustProduce(t, b, "t", 0, fmt.Sprint("b", i))
	}
	if res := pending.Wait(context.Background(), 50*time.Millisecond)[0]; !errors.Is(res.Err, ErrRequestTimedOut) {
		t.Errorf("append at a deposed leader: %+v", res)
	}
	for _, tt := range []struct {
		epoch id.LeaderEpoch
		want  error
	}{{epoch, ErrFencedLeaderEpoch}, {epoch + 5, ErrUnknownLeaderEpoch}, {c.row("t", 0).LeaderEpoch, nil}, {-1, nil}} {
		res := b.m.Fetch(context.Background(), &FetchRequest{Version: 12, Items: []FetchItem{{Topic: "t", LeaderEpoch: tt.epoch, MaxBytes: 100}}})[0]
		if !errors.Is(res.Err, tt.want) {
			t.Errorf("fetch at epoch %d: %v", tt.epoch, res.Err)
		}
	}
	// The first epoch ends at 1, the newest at the log end.
	if e, end, err := b.m.EndOffsetForEpoch("t", 0, -1, epoch); err != nil || e != epoch || end != 1 {
		t.Errorf("epoch %d ends at %d of %d, %v", epoch, end, e, err)
	}
	// When it hears of it, it cuts its tail off and follows.
	old.lag(false)
	if res := old.fetch("t", 0, 0); !errors.Is(res.Err, ErrNotLeader) {
		t.Errorf("the moment it knows: %v", res.Err)
	}
	r := old.m.find(id.TopicPartition{Topic: "t"})
	eventually(t, "the old leader to follow", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.s.role == following && r.s.log.LogEnd() == 4 && r.s.log.EpochAt(1) > epoch
	})
}

// A new leader whose predecessor may still answer waits for that one's leases.
func TestNewLeaderWaitsOutTheOldOne(t *testing.T) { synctest.Test(t, testNewLeaderWaitsOutTheOldOne) }

func testNewLeaderWaitsOutTheOldOne(t *testing.T) {
	c := newCluster(t, 2, Config{MinISR: 1})
	c.createTopic("t", 1, []int32{1, 2})
	mustProduce(t, c.leader("t", 0), "t", 0, "a")
	old, next := c.brokers[1], c.brokers[2]
	old.lag(true) // it goes on leading, by its lease
	c.elect("t", 0, 2)
	r := next.m.find(id.TopicPartition{Topic: "t"})
	eventually(t, "the new leader", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.s.role == leading
	})
	if _, err := next.m.Marks("t", 0); !errors.Is(err, ErrOffsetNotAvailable) {
		t.Errorf("a new leader shows its marks at once: %v", err)
	}
	if waits := next.m.WaitsFor(); !slices.Equal(waits, []id.BrokerID{1}) {
		t.Errorf("waits for %v", waits)
	}
	if len(c.row("t", 0).ISR) != 2 {
		t.Fatal("the ISR changed")
	}
	// Proof of death ends the wait; the mark then needs the ISR, in which the dead one still is.
	next.m.ProvenDead(1, id.BrokerEpoch(old.epoch.Load()))
	if waits := next.m.WaitsFor(); len(waits) != 0 {
		t.Errorf("still waits for %v", waits)
	}
	old.stop()
	c.fence(1, true)
	mustProduce(t, c.leader("t", 0), "t", 0, "b")
}

func TestIdempotentRetryAfterFailover(t *testing.T) {
	synctest.Test(t, testIdempotentRetryAfterFailover)
}

func testIdempotentRetryAfterFailover(t *testing.T) {
	c := newCluster(t, 3, Config{})
	c.createTopic("t", 1, []int32{1, 2, 3})
	b := c.leader("t", 0)
	const pid = 77
	var first []id.Offset
	for seq := range int32(5) {
		res := b.produce("t", 0, -1, 20*time.Second, batchWith(t, idempotent(pid, 0, seq), fmt.Sprint(seq)))
		if res.Err != nil {
			t.Fatal(res.Err)
		}
		first = append(first, res.BaseOffset)
	}
	for range 3 {
		b.stop()
		c.fence(b.id, true)
		gone := b
		b = c.leader("t", 0)
		for seq := range int32(5) {
			res := b.produce("t", 0, -1, 20*time.Second, batchWith(t, idempotent(pid, 0, seq), fmt.Sprint(seq)))
			if res.Err != nil || res.BaseOffset != first[seq] {
				t.Fatalf("repeat of %d: %+v, was at %d", seq, res, first[seq])
			}
		}
		gone.start()
		c.waitISR("t", 0, 3)
	}
	if m, err := b.m.Marks("t", 0); err != nil || m.LogEnd != 5 {
		t.Errorf("%+v, %v", m, err)
	}
	if res := b.produce("t", 0, -1, time.Second, batchWith(t, idempotent(pid, 0, 7), "gap")); !errors.Is(res.Err, ErrOutOfOrderSequence) {
		t.Errorf("gap: %v", res.Err)
	}
	if res := b.produce("t", 0, -1, time.Second, batchWith(t, idempotent(pid, 1, 0), "newer")); res.Err != nil {
		t.Errorf("newer epoch: %v", res.Err)
	}
	if res := b.produce("t", 0, -1, time.Second, batchWith(t, idempotent(pid, 0, 5), "zombie")); !errors.Is(res.Err, ErrInvalidProducerEpoch) {
		t.Errorf("older epoch: %v", res.Err)
	}
}

// An idle cluster's followers are parked at their leaders, and an append answers them.
func TestParkedFetches(t *testing.T) { synctest.Test(t, testParkedFetches) }

func testParkedFetches(t *testing.T) {
	c := newCluster(t, 2, Config{})
	c.createTopic("t", 1, []int32{1, 2}, []int32{1, 2})
	b := c.leader("t", 0)
	mustProduce(t, b, "t", 0, "a")
	before := c.brokers[2].calls.Load()
	time.Sleep(2 * time.Second)
	if n := c.brokers[2].calls.Load() - before; n > 10 {
		t.Errorf("%d replica fetches in 2 s without an append", n)
	}
	// A consumer's long poll ends by MaxWait, and by an append. Not by one to a partition it does not read.
	poll := func(wait time.Duration, from id.Offset) (FetchResult, time.Duration) {
		start := time.Now()
		res := b.m.Fetch(context.Background(), &FetchRequest{Version: 12, MinBytes: 1, MaxWait: wait, MaxBytes: 1 << 20,
			Items: []FetchItem{{Topic: "t", Offset: from, LeaderEpoch: -1, MaxBytes: 1 << 20}}})[0]
		return res, time.Since(start)
	}
	if res, took := poll(300*time.Millisecond, 1); res.Err != nil || len(res.Records) != 0 || took < 300*time.Millisecond {
		t.Errorf("idle poll: %+v after %v", res, took)
	}
	done := make(chan FetchResult)
	go func() {
		res, _ := poll(time.Minute, 1)
		done <- res
	}()
	r := b.m.find(id.TopicPartition{Topic: "t"})
	eventually(t, "the poll to be parked", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.s.hwWatch) == 1
	})
	mustProduce(t, b, "t", 1, "other")
	mustProduce(t, b, "t", 0, "b")
	if res := <-done; res.Err != nil || len(res.Records) == 0 || res.HighWatermark != 2 {
		t.Errorf("woken poll: %+v", res)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.s.hwWatch) != 0 {
		t.Errorf("%d watchers left", len(r.s.hwWatch))
	}
}

// A poll of nothing (Kafka 4.4's clients send one when they close) waits like another: it neither spins nor outlives its client.
func TestEmptyPollWaits(t *testing.T) { synctest.Test(t, testEmptyPollWaits) }

func testEmptyPollWaits(t *testing.T) {
	c := newCluster(t, 1, Config{})
	m := c.brokers[1].m
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.Fetch(ctx, &FetchRequest{Version: 12, MinBytes: 1, MaxWait: time.Hour, MaxBytes: 1 << 20})
	}()
	cancel()
	<-done
	start := time.Now()
	if m.Fetch(context.Background(), &FetchRequest{Version: 12, MinBytes: 1, MaxWait: 50 * time.Millisecond}); time.Since(start) < 50*time.Millisecond {
		t.Errorf("answered after %v", time.Since(start))
	}
}

func TestLongPollEndsWithClientAndLeader(t *testing.T) {
	synctest.Test(t, testLongPollEndsWithClientAndLeader)
}

func testLongPollEndsWithClientAndLeader(t *testing.T) {
	c := newCluster(t, 2, Config{})
	c.createTopic("t", 1, []int32{1, 2})
	b := c.leader("t", 0)
	r := b.m.find(id.TopicPartition{Topic: "t"})
	park := func(ctx context.Context) chan FetchResult {
		done := make(chan FetchResult, 1)
		go func() {
			done <- b.m.Fetch(ctx, &FetchRequest{Version: 12, MinBytes: 1, MaxWait: time.Minute, MaxBytes: 1 << 20,
				Client: Client{Conn: 7, ClientID: "c", Host: "a"},
				Items:  []FetchItem{{Topic: "t", LeaderEpoch: -1, MaxBytes: 1 << 20}}})[0]
		}()
		eventually(t, "the poll to be parked", func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return len(r.s.hwWatch) == 1
		})
		return done
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := park(ctx)
	if got := b.m.Fetches(); len(got) != 2 || got[0].ClientID != "c" || got[0].Topic != "t" || !got[1].Closed {
		t.Errorf("fetches %+v", got)
	}
	cancel()
	<-done
	b.m.ConnectionClosed(7)
	if got := b.m.Fetches(); len(got) != 2 || !got[0].Closed || !got[1].Closed {
		t.Errorf("fetches of a closed connection: %+v", got)
	}
	done = park(context.Background())
	c.elect("t", 0, 2)
	if res := <-done; !errors.Is(res.Err, ErrNotLeader) {
		t.Errorf("leader change: %+v", res)
	}
}

// KIP-74 and the formats of old versions.
func TestFetchVersions(t *testing.T) { synctest.Test(t, testFetchVersions) }

func testFetchVersions(t *testing.T) {
	c := newCluster(t, 1, Config{})
	c.createTopic("t", 1, []int32{1})
	b := c.leader("t", 0)
	big := string(make([]byte, 2000))
	mustProduce(t, b, "t", 0, big)
	mustProduce(t, b, "t", 0, big)
	at := func(version int16, maxBytes, total int) FetchResult {
		return b.m.Fetch(context.Background(), &FetchRequest{Version: version, MaxBytes: total,
			Items: []FetchItem{{Topic: "t", LeaderEpoch: -1, MaxBytes: maxBytes}}})[0]
	}
	for _, v := range []int16{4, 12} {
		if res := at(v, 100, 100); res.Err != nil || len(res.Records) < 2000 || len(res.Records) > 2200 {
			t.Errorf("v%d: %d bytes, %v", v, len(res.Records), res.Err)
		}
	}
	if res := at(3, 100, 100); len(res.Records) < 2000 || len(res.Records) > 2200 || res.Records[16] != 1 {
		t.Errorf("v3: %d bytes, magic %d", len(res.Records), res.Records[16])
	}
	for _, v := range []int16{0, 1, 2} {
		if res := at(v, 100, 0); res.Err != nil || len(res.Records) != 100 { // cut off, which tells the client its size is too small
			t.Errorf("v%d: %d bytes, %v", v, len(res.Records), res.Err)
		}
		res := at(v, 1<<20, 0)
		n := 0
		if err := record.NewCodecs(0).MessageSet(res.Records, func(*record.Record) error { n++; return nil }); err != nil || n != 2 {
			t.Errorf("v%d: %d messages, %v", v, n, err)
		}
	}
	h := record.PlainHeader()
	h.Codec = record.Zstd
	if res := b.produce("t", 0, -1, time.Second, batchWith(t, h, "z")); res.Err != nil {
		t.Fatal(res.Err)
	}
	if res := at(9, 1<<20, 1<<20); res.Err != nil || len(res.Records) < 4000 {
		t.Errorf("v9 before zstd: %v", res.Err)
	}
	res := b.m.Fetch(context.Background(), &FetchRequest{Version: 9, Items: []FetchItem{{Topic: "t", Offset: 2, LeaderEpoch: -1, MaxBytes: 1 << 20}}})[0]
	if Code(res.Err) != 76 {
		t.Errorf("v9 at zstd: %v", res.Err)
	}
}

func TestDirectories(t *testing.T) { synctest.Test(t, testDirectories) }

func testDirectories(t *testing.T) {
	c := newCluster(t, 1, Config{})
	c.createTopic("a", 1, []int32{1})
	c.createTopic("b", 2, []int32{1})
	b := c.brokers[1]
	mustProduce(t, c.leader("a", 0), "a", 0, "old")
	mustProduce(t, c.leader("b", 0), "b", 0, "old")
	b.stop()
	// While it is down: a is deleted and made again; b is deleted. It hears of neither delete, only of the outcome.
	c.deleteTopic("a")
	c.createTopic("a", 3, []int32{1})
	c.deleteTopic("b")
	b.start()
	if got, err := c.leader("a", 0).read("a", 0, 0); err != nil || len(got) != 0 {
		t.Errorf("the new topic shows %v, %v", got, err)
	}
	eventually(t, "both to be reported", func() bool { return len(b.m.Unknown()) == 2 })
	names, _ := b.disk.ReadDir("data")
	want := []string{"a-0", "a-0.AQEAAAAAAAAAAAAAAAAAAA-stray", "b-0"}
	if !slices.Equal(names, want) {
		t.Errorf("directories %v, want %v", names, want)
	}
}

// A disk that is full refuses appends and is not forgotten; a sync that fails ends the leadership, and what was acked stays.
func TestDiskErrors(t *testing.T) { synctest.Test(t, testDiskErrors) }

func testDiskErrors(t *testing.T) {
	c := newCluster(t, 3, quick)
	c.createTopic("t", 1, []int32{1, 2, 3})
	b := c.leader("t", 0)
	mustProduce(t, b, "t", 0, "a")
	full := func(op vfs.Op) error {
		if op.Kind == vfs.OpWriteAt {
			return &vfs.ShortWrite{N: 10, Err: unix.ENOSPC}
		}
		return nil
	}
	b.fault.Store(&full)
	if res := b.produce("t", 0, -1, time.Second, batchOf(t, "full")); !errors.Is(res.Err, ErrStorage) || !errors.Is(res.Err, unix.ENOSPC) {
		t.Errorf("full disk: %v", res.Err)
	}
	if why := b.m.DescribeLogs()[0].Failure; why == nil || !strings.Contains(why.Error(), unix.ENOSPC.Error()) {
		t.Errorf("full disk of a leader, described as %v", why)
	}
	b.fault.Store(nil)
	mustProduce(t, b, "t", 0, "b")
	if why := b.m.DescribeLogs()[0].Failure; why != nil {
		t.Errorf("described as %v when there is space again", why)
	}
	// A follower whose disk is full leaves the ISR, says why, and comes back by itself.
	f := c.brokers[3]
	f.fault.Store(&full)
	mustProduce(t, b, "t", 0, "b2")
	c.waitISR("t", 0, 2)
	if why := f.m.DescribeLogs()[0].Failure; why == nil || !strings.Contains(why.Error(), unix.ENOSPC.Error()) {
		t.Errorf("full disk of a follower, described as %v", why)
	}
	f.fault.Store(nil)
	c.waitISR("t", 0, 3)
	if why := f.m.DescribeLogs()[0].Failure; why != nil {
		t.Errorf("follower described as %v when there is space again", why)
	}
	broken := func(op vfs.Op) error {
		if op.Kind == vfs.OpSync || op.Kind == vfs.OpCreate {
			return unix.EIO
		}
		return nil
	}
	b.fault.Store(&broken)
	if res := b.produce("t", 0, -1, 5*time.Second, batchOf(t, "eio")); !errors.Is(res.Err, ErrNotLeader) {
		t.Errorf("failed sync: %v", res.Err)
	}
	if res := b.fetch("t", 0, 0); !errors.Is(res.Err, ErrNotLeader) {
		t.Errorf("fetch after a failed sync: %v", res.Err)
	}
	b.fault.Store(nil)
	eventually(t, "the leadership to be handed over", func() bool { return c.row("t", 0).Leader != 1 })
	if got, err := c.leader("t", 0).read("t", 0, 0); err != nil || got[0] != "a" || got[1] != "b" {
		t.Errorf("read %v, %v", got, err)
	}
	c.waitISR("t", 0, 3)
	mustProduce(t, c.leader("t", 0), "t", 0, "c")
}

// Fail-over is driven by events: it waits for no poll to run out, however many partitions change hands at once.
func TestFailoverWaitsForNothing(t *testing.T) { synctest.Test(t, testFailoverWaitsForNothing) }

func testFailoverWaitsForNothing(t *testing.T) {
	c := newCluster(t, 3, Config{})
	const partitions = 12
	var assignments [][]int32
	for range partitions {
		assignments = append(assignments, []int32{1, 2, 3})
	}
	c.createTopic("t", 1, assignments...)
	for i := range 12 {
		var b *broker
		for p := range int32(partitions) {
			b = c.leader("t", p)
			mustProduce(t, b, "t", p, "a")
		}
		b.stop()
		start := time.Now()
		c.fence(b.id, true)
		for p := range int32(partitions) {
			c.leader("t", p)
		}
		if took := time.Since(start); took > 400*time.Millisecond { // a parked fetch takes 500
			t.Errorf("fail-over %d took as long as a poll: %v", i, took)
		}
		b.start()
		for p := range int32(partitions) {
			c.waitISR("t", p, 3)
		}
	}
}

// Losing the Raft leader does not stop the data: fetches keep the right to serve, and without them it ends.
func TestFetchesReplaceTheLease(t *testing.T) { synctest.Test(t, testFetchesReplaceTheLease) }

func testFetchesReplaceTheLease(t *testing.T) {
	c := newCluster(t, 3, Config{}) // ReplicaLagMax 10 s: the ISR stays
	c.createTopic("t", 1, []int32{1, 2, 3})
	b := c.leader("t", 0)
	mustProduce(t, b, "t", 0, "a")
	for _, b := range c.brokers {
		b.leased.Store(false)
	}
	for i := range 20 {
		mustProduce(t, b, "t", 0, "x")
		res := b.m.Fetch(context.Background(), &FetchRequest{Version: 12, MinBytes: 1, MaxWait: 100 * time.Millisecond, MaxBytes: 1 << 20,
			Items: []FetchItem{{Topic: "t", Offset: 2 + id.Offset(i), LeaderEpoch: -1, MaxBytes: 1 << 20}}})[0] // idle: followers are parked
		if res.Err != nil {
			t.Fatalf("without the broker's lease, after %d polls: %v", i, res.Err)
		}
	}
	c.brokers[3].cut.Store(id.BrokerID(1), struct{}{})
	eventually(t, "the right to end with the fetches of one member", func() bool {
		return errors.Is(b.fetch("t", 0, 0).Err, ErrNotLeader)
	})
	if res := b.produce("t", 0, 1, 0, batchOf(t, "y")); res.Err != nil {
		t.Errorf("writes need no lease: %v", res.Err)
	}
	c.brokers[3].cut.Delete(id.BrokerID(1))
	c.leader("t", 0)
	// The last of an ISR serves whatever happens: nobody else can be elected.
	for _, b := range c.brokers {
		b.leased.Store(true)
	}
	for _, f := range []id.BrokerID{2, 3} {
		c.brokers[f].stop()
		c.fence(f, true)
	}
	b.leased.Store(false)
	eventually(t, "the rows to be adopted", func() bool { return b.fetch("t", 0, 0).Err == nil })
	time.Sleep(lease.Duration)
	if res := b.fetch("t", 0, 0); res.Err != nil {
		t.Errorf("the last of the ISR: %v", res.Err)
	}
}

// A poll at a new leader that waits for the old one's lease is parked, not refused, and answered when the wait ends.
func TestPollWaitsOutTheGrace(t *testing.T) { synctest.Test(t, testPollWaitsOutTheGrace) }

func testPollWaitsOutTheGrace(t *testing.T) {
	c := newCluster(t, 2, Config{MinISR: 1, ReplicaLagMax: 300 * time.Millisecond})
	c.createTopic("t", 1, []int32{1, 2})
	mustProduce(t, c.leader("t", 0), "t", 0, "a")
	c.brokers[1].lag(true)
	c.elect("t", 0, 2)
	next := c.brokers[2]
	r := next.m.find(id.TopicPartition{Topic: "t"})
	eventually(t, "the new leader", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.s.role == leading
	})
	start := time.Now()
	res := next.m.Fetch(context.Background(), &FetchRequest{Version: 12, MinBytes: 1, MaxWait: 20 * time.Second, MaxBytes: 1 << 20,
		Items: []FetchItem{{Topic: "t", LeaderEpoch: -1, MaxBytes: 1 << 20}}})[0]
	if took := time.Since(start); res.Err != nil || len(res.Records) == 0 || took < time.Second || took > 15*time.Second {
		t.Errorf("%+v after %v", res, took)
	}
	c.fence(1, true)
}
