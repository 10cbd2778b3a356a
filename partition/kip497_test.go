package partition

import (
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
