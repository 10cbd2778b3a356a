package raftmeta

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// A leader that was cut off with a long tail of its own gets a snapshot that ends below that tail: raft is opened again
// in this process, the node goes on, and its subscriber is told of the jump.
func TestReopenAfterConflictingSnapshot(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, func(k *Config) { k.SnapshotBytes, k.TrailingBytes = 4<<10, 1 })
	c.bootstrapState()
	for _, n := range c.up() {
		c.register(n)
	}
	var old *testNode
	var first *instance
	var resets chan Update
	var common, tail uint64
	noop := mustMarshal(&statepb.Entry{Commands: []*statepb.Command{{Version: 1, Body: &statepb.Command_Tick{Tick: &statepb.Tick{}}}}})
	for tail < common+100 { // on a busy machine the lease may end before the tail is long
		c.m.heal()
		c.converge()
		old, resets = c.leader(), make(chan Update, 64)
		first = old.inst.Load()
		old.Subscribe(func(u Update) {
			if u.Reset {
				resets <- u
			}
		})
		c.m.isolate(old.id, c.ids)
		common = uint64(old.View().Index())
		var wg sync.WaitGroup
		for range 512 { // each waits until the lease ends; they share the syncs
			wg.Go(func() {
				if first.r.Apply(noop, time.Second).Error() == nil {
					t.Error("committed without a quorum")
				}
			})
		}
		wg.Wait()
		tail = first.r.LastIndex()
	}

	c.elect(old.id)
	var other *testNode
	eventually(t, "another leader", func() bool {
		for _, n := range c.up() {
			if n.id != old.id && n.leaderTerm() > 0 {
				other = n
			}
		}
		return other != nil
	})
	compacted := func() bool { // so an append can not reach back to what all have
		for _, n := range c.up() {
			lo, err := n.stores.log.FirstIndex()
			must(t, err)
			if n.id != old.id && lo <= common+1 {
				return false
			}
		}
		return true
	}
	for i := 0; i < 50 && !compacted(); i++ {
		c := createZnode(fmt.Sprintf("/after-%d", i), false)
		c.GetCreateZnode().Data = make([]byte, 1<<10)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, err := other.Propose(ctx, c)
		cancel()
		must(t, err)
		eventuallyOr(compacted)
	}
	if !compacted() {
		t.Fatal("the logs of the new leader and its follower were not compacted")
	}
	// Another leader, whose first append to the old one is made from the compacted log.
	must(t, other.TransferLeadership(c.ctx()))
	eventually(t, "the third node leads", func() bool {
		for _, n := range c.up() {
			if n.id != old.id && n.id != other.id && n.leaderTerm() > 0 {
				return true
			}
		}
		return false
	})
	if other.inst.Load().r.LastIndex() >= tail {
		t.Fatalf("the old leader's tail ends at %d, the new one's log at %d", tail, other.inst.Load().r.LastIndex())
	}
	c.stop(other.id) // so that no append of its term is still on its way: it could cut the tail off as usual
	c.m.heal()
	c.converge()
	eventually(t, "raft was opened again", func() bool { return old.inst.Load() != first })
	select {
	case u := <-resets:
		if _, ok := u.View.Znode("/after-0"); !ok || u.Changes != nil {
			t.Errorf("reset without the new state: %v", u)
		}
	default:
		t.Error("no reset was told")
	}
	if _, err := old.Propose(c.ctx(), createZnode("/old-goes-on", false)); err != nil {
		t.Fatal(err)
	}
	c.start(other.id, nil)
	c.converge()
	if err := old.Err(); err != nil {
		t.Fatal(err)
	}
}
