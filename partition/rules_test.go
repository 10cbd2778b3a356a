package partition

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
)

// KIP-497: a replica counts as in sync from the moment its leader asks to add it, and until the leader knows that it was
// removed. So no record is committed that a member of an ISR which may come true does not have.
func TestISRChangesOfUnknownOutcomeCount(t *testing.T) {
	synctest.Test(t, testISRChangesOfUnknownOutcomeCount)
}

func testISRChangesOfUnknownOutcomeCount(t *testing.T) {
	c := newCluster(t, 3, quick)
	c.createTopic("t", 1, []int32{1, 2, 3})
	b := c.leader("t", 0)
	mustProduce(t, b, "t", 0, "a")
	// ask has the leader ask for 3 to be added, or removed, and leaves it without an answer.
	ask := func(add bool) {
		r, third := b.m.find(id.TopicPartition{Topic: "t"}), c.brokers[3]
		reach := func(ok bool) {
			if ok {
				third.cut.Delete(b.id)
			} else {
				third.cut.Store(b.id, struct{}{})
			}
		}
		for found := false; !found; { // it may ask for something else first, on a busy machine
			b.lag(false)
			reach(!add)
			eventually(t, "the ISR to be as before", func() bool { return slices.Contains(c.row("t", 0).ISR, 3) != add })
			b.lag(true)
			reach(add)
			eventually(t, "a change of the ISR to be asked for", func() bool {
				r.mu.Lock()
				defer r.mu.Unlock()
				p := r.s.lead.pending
				found = p != nil && slices.Contains(p.isr, 3) == add
				return p != nil
			})
		}
		reach(false)
	}
	notAcked := func(when, value string) {
		t.Helper()
		if res := b.produce("t", 0, -1, 300*time.Millisecond, batchOf(t, value)); res.Err == nil {
			t.Errorf("%s, offset %d is acked without broker 3", when, res.BaseOffset)
		}
	}
	ask(false)
	notAcked("while its removal is unknown", "b")
	b.lag(false)
	eventually(t, "those that are left to be enough", func() bool { return b.fetch("t", 0, 0).HighWatermark == 2 })
	ask(true)
	notAcked("while its return is unknown", "c")
	b.lag(false)
	eventually(t, "all to be committed", func() bool { return b.fetch("t", 0, 0).HighWatermark == 3 })
}

// The default of min.insync.replicas is half of a topic's replicas, rounded up.
func TestMinISRByReplicas(t *testing.T) {
	for replicas, want := range []int{1: 1, 2: 1, 3: 2, 4: 2, 5: 3} {
		if got := new(topicConfig).minISRFor(replicas); replicas > 0 && got != want {
			t.Errorf("%d replicas: %d, want %d", replicas, got, want)
		}
	}
	if got := (&topicConfig{minISR: 1}).minISRFor(3); got != 1 {
		t.Errorf("a topic's own minimum: %d", got)
	}
}

// KIP-207: a new leader does not know how far its predecessor had committed. Until its own high watermark has reached what it took
// over, it shows none: one that fell would be a consumer's lost record.
func TestNewLeaderShowsNoOlderHighWatermark(t *testing.T) {
	synctest.Test(t, testNewLeaderShowsNoOlderHighWatermark)
}

func testNewLeaderShowsNoOlderHighWatermark(t *testing.T) {
	c := newCluster(t, 3, Config{ReplicaLagMax: time.Hour})
	c.createTopic("t", 1, []int32{1, 2, 3})
	b, next := c.leader("t", 0), c.brokers[2]
	mustProduce(t, b, "t", 0, "a")
	time.Sleep(5 * time.Second) // the followers hear of it
	mustProduce(t, b, "t", 0, "b")
	// Acked and shown; the followers hear of that with the next reply, which does not come.
	for _, other := range []id.BrokerID{1, 3} {
		c.brokers[other].cut.Store(next.id, struct{}{})
	}
	next.cut.Store(b.id, struct{}{})
	if res := b.fetch("t", 0, 0); res.HighWatermark != 2 {
		t.Fatalf("%+v", res)
	}
	if !c.elect("t", 0, next.id) {
		t.Fatal("not elected")
	}
	time.Sleep(5 * time.Second) // no lease of the earlier leader is left
	if res := next.fetch("t", 0, 0); !errors.Is(res.Err, ErrOffsetNotAvailable) {
		t.Errorf("shown before anybody confirmed it: high watermark %d, %v", res.HighWatermark, res.Err)
	}
	if at, err := next.m.ListOffset("t", 0, TimestampLatest, -1, ReadUncommitted); !errors.Is(err, ErrOffsetNotAvailable) {
		t.Errorf("the end is listed as %d, %v", at.Offset, err)
	}
	for _, other := range []id.BrokerID{1, 3} {
		c.brokers[other].cut.Delete(next.id)
	}
	eventually(t, "the high watermark to be shown", func() bool {
		res := next.fetch("t", 0, 0)
		if res.Err == nil && res.HighWatermark < 2 {
			t.Fatalf("the high watermark fell to %d", res.HighWatermark)
		}
		return res.Err == nil
	})
}

// KIP-101: a follower that restarts cuts its log where it parts from the leader's, never at the high watermark that it knew. Else
// the record that was acked a moment ago is gone when it leads next.
func TestRestartedFollowerKeepsWhatWasAcked(t *testing.T) {
	synctest.Test(t, testRestartedFollowerKeepsWhatWasAcked)
}

func testRestartedFollowerKeepsWhatWasAcked(t *testing.T) {
	c := newCluster(t, 2, Config{ReplicaLagMax: time.Hour})
	c.createTopic("t", 1, []int32{1, 2})
	b, follower := c.leader("t", 0), c.brokers[2]
	mustProduce(t, b, "t", 0, "a")
	time.Sleep(5 * time.Second)
	mustProduce(t, b, "t", 0, "b")
	follower.cut.Store(b.id, struct{}{}) // it does not hear that the second record is committed, now or later
	follower.stop()
	follower.keeps = true
	follower.start()
	eventually(t, "the follower to follow", func() bool {
		r := follower.m.find(id.TopicPartition{Topic: "t"})
		if r == nil {
			return false
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.s.role == following
	})
	time.Sleep(5 * time.Second)
	b.stop()
	c.fence(b.id, true)
	if next := c.leader("t", 0); next != follower {
		t.Fatalf("broker %d leads", next.id)
	}
	got, err := follower.read("t", 0, 0)
	if err != nil || len(got) != 2 || got[1] != "b" {
		t.Errorf("after the fail-over: %v, %v", got, err)
	}
}
