package partition

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/lease"
	"github.com/barnabas-mq/barnabas/internal/vfs"
	"github.com/barnabas-mq/barnabas/partition/log"
	"github.com/barnabas-mq/barnabas/partition/record"
)

var (
	chaosFor  = flag.Duration("chaos", 8*time.Second, "how long TestChaos makes faults")
	chaosSeed = flag.Uint64("chaos-seed", 0, "seed of TestChaos; 0 draws one")
)

// history is what clients saw of one partition.
type history struct {
	mu     sync.Mutex
	acked  map[id.Offset]string
	values map[id.Offset]string // of acks and reads, from all brokers
	faults []string
}

func (h *history) saw(at id.Offset, value, where string) {
	if old, ok := h.values[at]; ok && old != value {
		h.faults = append(h.faults, fmt.Sprintf("offset %d held %q and %q (%s)", at, old, value, where))
	}
	h.values[at] = value
}

// produceAll sends numbered values with an idempotent producer until ctx ends, each until it is acked.
func (c *cluster) produceAll(ctx context.Context, t *testing.T, p int32, h *history, rng *rand.Rand) {
	pid := int64(1000 + p)
	for seq := int32(0); ctx.Err() == nil; seq++ {
		value := fmt.Sprintf("p%d-%d", p, seq)
		for {
			row := c.row("t", p)
			b := c.brokers[row.Leader]
			if b == nil || rng.IntN(20) == 0 { // stale metadata
				b = c.brokers[id.BrokerID(1+rng.IntN(len(c.brokers)))]
			}
			c.mu.Lock()
			m := b.m
			c.mu.Unlock()
			payload := batchWith(t, idempotent(pid, 0, seq), value)
			res := m.Append(context.Background(), []AppendItem{{Topic: "t", Partition: p, Records: payload, Version: 9}}, -1, 500*time.Millisecond)[0]
			c.mu.Lock()
			counts := b.m == m && b.up.Load() // else the ack did not leave the machine
			c.mu.Unlock()
			if res.Err == nil && counts {
				h.mu.Lock()
				h.acked[res.BaseOffset] = value
				h.saw(res.BaseOffset, value, "ack")
				h.mu.Unlock()
				break
			}
			now := c.row("t", p)
			current := b.id == row.Leader && now.LeaderEpoch == row.LeaderEpoch // a real client never goes back to an older leader
			if current && (errors.Is(res.Err, ErrOutOfOrderSequence) || errors.Is(res.Err, ErrDuplicateSequence)) {
				h.mu.Lock()
				h.faults = append(h.faults, fmt.Sprintf("%s at broker %d: %v", value, b.id, res.Err))
				h.mu.Unlock()
				return
			}
			if ctx.Err() != nil {
				return // unknown
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// observe asks any broker for marks and data until ctx ends: for one observer the marks never fall, and what an offset holds
// never changes.
func (c *cluster) observe(ctx context.Context, p int32, h *history, rng *rand.Rand) {
	var hw id.Offset
	var next id.Offset
	for ctx.Err() == nil {
		b := c.brokers[id.BrokerID(1+rng.IntN(len(c.brokers)))]
		c.mu.Lock()
		m, up := b.m, b.up.Load()
		c.mu.Unlock()
		if !up {
			time.Sleep(time.Millisecond)
			continue
		}
		latest, err := m.ListOffset("t", p, TimestampLatest, -1, ReadUncommitted)
		res := m.Fetch(ctx, &FetchRequest{Version: 12, MinBytes: 1, MaxWait: 20 * time.Millisecond, MaxBytes: 1 << 20,
			Items: []FetchItem{{Topic: "t", Partition: p, Offset: next, LeaderEpoch: -1, MaxBytes: 1 << 20}}})[0]
		c.mu.Lock()
		counts := b.m == m && b.up.Load()
		c.mu.Unlock()
		if !counts {
			continue
		}
		h.mu.Lock()
		if err == nil {
			if latest.Offset < hw {
				h.faults = append(h.faults, fmt.Sprintf("broker %d: latest fell from %d to %d", b.id, hw, latest.Offset))
			}
			hw = max(hw, latest.Offset)
		}
		if errors.Is(res.Err, ErrOffsetOutOfRange) {
			h.faults = append(h.faults, fmt.Sprintf("broker %d: %v", b.id, res.Err))
		}
		if res.Err == nil {
			if res.HighWatermark < hw {
				h.faults = append(h.faults, fmt.Sprintf("broker %d: high watermark fell from %d to %d", b.id, hw, res.HighWatermark))
			}
			hw = max(hw, res.HighWatermark)
			for rest := res.Records; len(rest) > 0; {
				batch, after, err := record.Next(rest)
				if err != nil {
					h.faults = append(h.faults, err.Error())
					break
				}
				rest = after
				records, _ := record.NewCodecs(0).Records(batch)
				var rec record.Record
				for more, _ := records.Next(&rec); more; more, _ = records.Next(&rec) {
					h.saw(rec.Offset, string(rec.Value), fmt.Sprintf("read at %d", b.id))
				}
				next = batch.LastOffset() + 1
			}
		}
		h.mu.Unlock()
		if rng.IntN(50) == 0 {
			next = 0 // from the start again
		}
		if len(res.Records) == 0 {
			time.Sleep(time.Millisecond)
		}
	}
}

// fault makes one fault and, after a while, heals it.
func (c *cluster) fault(t *testing.T, rng *rand.Rand) {
	b := c.brokers[id.BrokerID(1+rng.IntN(len(c.brokers)))]
	other := c.brokers[id.BrokerID(1+rng.IntN(len(c.brokers)))]
	pause := time.Duration(rng.IntN(200)) * time.Millisecond
	elect := func() {
		for p := range int32(2) {
			row := c.row("t", p)
			to := row.ISR[rng.IntN(len(row.ISR))]
			c.t.Logf("elect %d for %d", to, p)
			c.elect("t", p, to)
		}
	}
	switch rng.IntN(8) {
	case 0: // power loss, seen at once
		c.t.Logf("crash %d", b.id)
		b.crash(rng, rng.Float64())
		c.fence(b.id, true)
		time.Sleep(pause)
		b.start()
	case 1: // power loss, and back before anybody noticed: registration fences the old incarnation
		c.t.Logf("quick crash %d", b.id)
		b.crash(rng, rng.Float64())
		b.start()
	case 2: // cut from another, one way
		c.t.Logf("cut %d -> %d", b.id, other.id)
		b.cut.Store(other.id, struct{}{})
		time.Sleep(pause)
		b.cut.Delete(other.id)
	case 3: // planned moves
		elect()
		time.Sleep(pause)
	case 4: // cut from the metadata: fenced when its lease has surely ended
		c.t.Logf("lag %d", b.id)
		b.lag(true)
		if rng.IntN(2) == 0 {
			time.Sleep(lease.FenceAfter)
			c.fence(b.id, false)
			time.Sleep(pause)
			b.lag(false)
			b.crash(rng, 1) // it must register anew
			b.start()
		} else {
			elect()
			time.Sleep(5 * pause)
			b.lag(false)
		}
	case 5:
		time.Sleep(pause)
	case 7: // a disk that fails now and then
		c.t.Logf("disk of %d", b.id)
		broken := func(op vfs.Op) error {
			if (op.Kind == vfs.OpSync || op.Kind == vfs.OpWriteAt) && rand.IntN(20) == 0 {
				return unix.EIO
			}
			return nil
		}
		healthy := b.fault.Swap(&broken)
		time.Sleep(pause)
		b.fault.Store(healthy)
	case 6: // power loss of all at once
		c.t.Log("crash all")
		clones := map[id.BrokerID]*vfs.Mem{}
		for _, b := range c.brokers {
			b.up.Store(false)
		}
		for _, b := range c.brokers {
			clones[b.id] = b.disk.CrashClone(rng, vfs.Crash{Keep: rng.Float64(), Torn: true})
		}
		for _, b := range c.brokers {
			b.end()
			b.disk = clones[b.id]
		}
		for _, b := range c.brokers {
			b.start()
		}
	}
}

// TestChaos: with acks=all nothing acked is lost, whatever changes hands; no observer sees a mark fall or an offset change; an
// idempotent producer writes nothing twice.
func TestChaos(t *testing.T) {
	seed := *chaosSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	c := newCluster(t, 3, Config{ReplicaLagMax: 200 * time.Millisecond, RetryFailed: 50 * time.Millisecond, SegmentBytes: 20_000})
	c.flaky.Store(true)
	slow := func(op vfs.Op) error {
		if op.Kind == vfs.OpSync {
			time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond)
		}
		return nil
	}
	for _, b := range c.brokers {
		b.fault.Store(&slow)
	}
	c.createTopic("t", 1, []int32{1, 2, 3}, []int32{2, 3, 1})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	histories := make([]*history, 2)
	var wg sync.WaitGroup
	for p := range histories {
		h := &history{acked: map[id.Offset]string{}, values: map[id.Offset]string{}}
		histories[p] = h
		wg.Go(func() { c.produceAll(ctx, t, int32(p), h, rand.New(rand.NewPCG(seed, uint64(10+p)))) })
		for o := range 2 {
			wg.Go(func() { c.observe(ctx, int32(p), h, rand.New(rand.NewPCG(seed, uint64(20+2*p+o)))) })
		}
	}
	for end := time.Now().Add(*chaosFor); time.Now().Before(end); {
		c.fault(t, rng)
	}
	cancel()
	wg.Wait()
	// What is checked in the end is the settled cluster.
	c.flaky.Store(false)
	for _, b := range c.brokers {
		b.fault.Store(nil)
	}
	for p, h := range histories {
		c.checkHistory(t, int32(p), h)
	}
}

func (c *cluster) checkHistory(t *testing.T, p int32, h *history) {
	t.Helper()
	c.waitISR("t", p, 3)
	b := c.leader("t", p)
	all, err := b.read("t", p, 0)
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]id.Offset{}
	for offset, value := range all {
		if other, dup := at[value]; dup {
			h.faults = append(h.faults, fmt.Sprintf("%s at %d and %d", value, other, offset))
		}
		at[value] = offset
		h.saw(offset, value, "at the end")
	}
	lost := 0
	for offset, value := range h.acked {
		if all[offset] != value {
			lost++
		}
	}
	t.Logf("partition %d: %d acked, %d at the end, epoch %d", p, len(h.acked), len(all), c.row("t", p).LeaderEpoch)
	if lost > 0 || len(h.faults) > 0 || len(h.acked) == 0 {
		t.Errorf("partition %d: %d acked records lost, %d acked, faults: %q", p, lost, len(h.acked), h.faults[:min(len(h.faults), 10)])
	}
	// C12: equal bytes everywhere.
	var want []byte
	for _, n := range []id.BrokerID{1, 2, 3} {
		got, err := readAll(c.brokers[n].m.find(id.TopicPartition{Topic: "t", Partition: p}), 0, id.Offset(len(all)))
		if err != nil {
			t.Fatalf("broker %d: %v", n, err)
		}
		if want == nil {
			want = got
		} else if !slices.Equal(want, got) {
			t.Errorf("partition %d: broker %d holds other bytes", p, n)
		}
	}
}

// readAll returns the bytes of a replica's log between two offsets, whatever its role.
func readAll(r *replica, from, to id.Offset) ([]byte, error) {
	var got []byte
	for {
		data, err := r.s.log.Read(log.Fetch{Offset: from, MaxBytes: 1 << 20, UpTo: to, MinOneBatch: true})
		if err != nil || len(data) == 0 {
			return got, err
		}
		got = append(got, data...)
		for rest := data; len(rest) > 0; {
			var batch record.Batch
			if batch, rest, err = record.Next(rest); err != nil {
				return nil, err
			}
			from = batch.LastOffset() + 1
		}
	}
}
