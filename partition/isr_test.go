package partition

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/lease"
)

// changes returns how often the row of t-0 changed while fn ran, and its ISR after that.
func (c *cluster) changes(fn func()) (int, []id.BrokerID) {
	before := c.row("t", 0).Epoch
	fn()
	row := c.row("t", 0)
	return int(row.Epoch - before), row.ISR
}

// The time for which a leader parks fetches is no lag, however long followers ask for and however short the allowed lag is.
func TestIdleFollowersStayInTheISR(t *testing.T) {
	for _, lag := range []time.Duration{100 * time.Millisecond, time.Second, 10 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, 3, Config{ReplicaLagMax: lag, ReplicaFetchWait: lease.Duration / 2})
			c.createTopic("t", 1, []int32{1, 2, 3})
			mustProduce(t, c.leader("t", 0), "t", 0, "a")
			fetches := c.brokers[2].calls.Load()
			n, isr := c.changes(func() { time.Sleep(time.Minute) })
			if n != 0 || len(isr) != 3 {
				t.Errorf("allowed lag %v: %d changes in an idle minute, ISR %v", lag, n, isr)
			}
			if fetches = c.brokers[2].calls.Load() - fetches; fetches > int64(3*time.Minute/min(lag, lease.Duration)) {
				t.Errorf("allowed lag %v: %d fetches in an idle minute", lag, fetches)
			}
		})
	}
}

// A follower that falls silent leaves after the allowed lag; one that is there again joins.
func TestSilentFollowerLeavesInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lag = 10 * time.Second
		c := newCluster(t, 3, Config{ReplicaLagMax: lag})
		c.createTopic("t", 1, []int32{1, 2, 3})
		mustProduce(t, c.leader("t", 0), "t", 0, "a")
		c.brokers[3].cut.Store(id.BrokerID(1), struct{}{})
		if n, isr := c.changes(func() { time.Sleep(lag - 2*time.Second) }); n != 0 {
			t.Fatalf("it left before its time: ISR %v", isr)
		}
		if _, isr := c.changes(func() { time.Sleep(4 * time.Second) }); !slices.Equal(isr, []id.BrokerID{1, 2}) {
			t.Fatalf("ISR %v", isr)
		}
		c.brokers[3].cut.Delete(id.BrokerID(1))
		if n, isr := c.changes(func() { time.Sleep(time.Minute) }); n != 1 || len(isr) != 3 {
			t.Fatalf("%d changes, ISR %v", n, isr)
		}
	})
}

// A leader that did not run for longer than the allowed lag has nobody to blame for it.
func TestFrozenLeaderKeepsItsISR(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, Config{ReplicaLagMax: 10 * time.Second})
		c.createTopic("t", 1, []int32{1, 2, 3})
		mustProduce(t, c.leader("t", 0), "t", 0, "a")
		n, isr := c.changes(func() {
			for range 5 {
				c.clock.jump.Add(int64(30 * time.Second))
				time.Sleep(2 * time.Second)
			}
		})
		if n != 0 || len(isr) != 3 {
			t.Fatalf("%d changes, ISR %v", n, isr)
		}
		// One that is silent leaves all the same.
		c.brokers[3].cut.Store(id.BrokerID(1), struct{}{})
		c.clock.jump.Add(int64(30 * time.Second))
		if _, isr := c.changes(func() { time.Sleep(12 * time.Second) }); !slices.Equal(isr, []id.BrokerID{1, 2}) {
			t.Fatalf("ISR %v", isr)
		}
	})
}

func TestLagClock(t *testing.T) {
	const s = time.Second
	c := newLagClock(100*s, 2*s)
	if got := c.at(101 * s); got != 101*s {
		t.Error(got)
	}
	c.check(101 * s)
	if got := c.at(131 * s); got != 103*s {
		t.Error("before the check that ends a freeze", got)
	}
	c.check(131 * s)
	if got := c.at(132 * s); got != 104*s {
		t.Error("after it", got)
	}
	if got := c.at(131*s - 1); got != 103*s-1 {
		t.Error("read before the check", got)
	}
}
