package raftmeta

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// Forwards are dropped, repeated, reordered and lost after they worked, leaders change and die, followers fall behind
// and get snapshots: every acknowledged command is in the state exactly once, none twice, and all nodes agree.
// BARNABAS_RAFT_FAULTS sets the duration, for long runs by hand.
func TestLanesUnderFaults(t *testing.T) {
	t.Parallel()
	duration := 6 * time.Second
	if v := os.Getenv("BARNABAS_RAFT_FAULTS"); v != "" {
		var err error
		duration, err = time.ParseDuration(v)
		must(t, err)
	}
	seed := uint64(time.Now().UnixNano())
	if v := os.Getenv("BARNABAS_SEED"); v != "" {
		var err error
		seed, err = strconv.ParseUint(v, 10, 64)
		must(t, err)
	}
	t.Logf("BARNABAS_SEED=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	c := newCluster(t, 3, func(k *Config) {
		k.SnapshotBytes, k.TrailingBytes, k.ResendAfter = 6<<10, 1<<10, 200*time.Millisecond
		k.HeartbeatTimeout = 300 * time.Millisecond // leaders are to change often
	})
	c.bootstrapState()
	c.register(c.leader())
	_, err := c.leader().Propose(c.ctx(), createZnode("/q", false))
	must(t, err)
	c.m.mu.Lock()
	c.m.faults = func(_, _, method string) (f fault) {
		if method != MethodForward {
			return f
		}
		switch rng.IntN(12) { // under the mesh's lock
		case 0:
			f.dropRequest = true
		case 1:
			f.dropAnswer = true
		case 2:
			f.twice = true
		case 3, 4:
			f.delay = time.Duration(rng.IntN(30)) * time.Millisecond
		case 5:
			f.delay, f.dropAnswer = time.Duration(rng.IntN(300))*time.Millisecond, true // arrives late
		}
		return f
	}
	c.m.mu.Unlock()

	h := &faultHistory{acked: map[string]string{}, unknown: map[string]bool{}}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for _, n := range c.up() {
		h.drive(c, n, stop, &wg)
	}
	chaos := rand.New(rand.NewPCG(seed, 2))
	for end := time.Now().Add(duration); time.Now().Before(end); {
		h.disturb(c, chaos, stop, &wg)
	}
	c.m.heal()
	c.m.mu.Lock()
	c.m.faults = nil
	c.m.mu.Unlock()
	close(stop)
	wg.Wait()
	c.leader()
	for _, x := range c.ids { // what was given up as unknown comes true or not before a lane's next command
		if n := c.node(x); n != nil && n.registered() {
			if _, err := n.Propose(c.ctx(), createZnode("/end-"+x, false)); err != nil && !errors.Is(err, ErrLaneEnded) {
				t.Fatal(err)
			}
		}
	}
	c.converge()
	h.check(t, c.leader().View())
	t.Logf("%d acked, %d unknown, %d restarts, %d installs, term %d", len(h.acked), len(h.unknown), h.restarts, c.installs(), c.leader().leaderTerm())
}

func (n *testNode) registered() bool { return n.LaneEnded() != nil }

// installs counts the snapshots that raft restored in the running nodes' views of their logs.
func (c *testCluster) installs() (k int) {
	for _, n := range c.up() {
		k += int(n.fsm.restores.Load())
	}
	return k
}

type faultHistory struct {
	next     atomic.Int64
	restarts int

	mu      sync.Mutex
	acked   map[string]string // data -> path
	unknown map[string]bool
}

// drive registers the node and runs proposers on it until stop or the node's end.
func (h *faultHistory) drive(c *testCluster, n *testNode, stop chan struct{}, wg *sync.WaitGroup) {
	ctx, cancel := context.WithCancel(n.ctx)
	wg.Go(func() {
		<-stop
		time.AfterFunc(20*time.Second, cancel) // enough for what waits to be settled
	})
	wg.Go(func() {
		r, err := n.ProposeRaw(ctx, &statepb.Command{Level: 1, Body: &statepb.Command_RegisterBroker{RegisterBroker: &statepb.RegisterBroker{
			DirectoryId: n.id, Nonce: fmt.Sprint(rand.Uint64()), WantedId: -1, MinLevel: state.MinLevel, MaxLevel: state.MaxLevel}}})
		if err != nil {
			return
		}
		if n.StartLane(brokerEpoch(r)) != nil {
			return
		}
		for range 4 {
			wg.Go(func() { h.propose(c.t, ctx, n, stop) })
		}
	})
}

func (h *faultHistory) propose(t testing.TB, ctx context.Context, n *testNode, stop chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-ctx.Done():
			return
		default:
		}
		data := fmt.Sprintf("%s-%d", n.id, h.next.Add(1))
		one, cancel := ctx, context.CancelFunc(func() {})
		if h.next.Load()%17 == 0 {
			one, cancel = context.WithTimeout(ctx, 3*time.Millisecond)
		}
		r, err := n.Propose(one, &statepb.Command{Level: 1, Body: &statepb.Command_CreateZnode{
			CreateZnode: &statepb.CreateZnode{Path: "/q/s", Data: []byte(data), Sequential: true}}})
		cancel()
		h.mu.Lock()
		switch {
		case err == nil && r.Code == statepb.Code_OK:
			h.acked[data] = r.Path
		case err == nil:
			t.Errorf("%s: %v", data, r)
		case errors.Is(err, ErrUnknown):
			h.unknown[data] = true
		}
		h.mu.Unlock()
		if errors.Is(err, ErrLaneEnded) || errors.Is(err, ErrStopped) {
			return
		}
	}
}

func (h *faultHistory) disturb(c *testCluster, rng *rand.Rand, stop chan struct{}, wg *sync.WaitGroup) {
	pause := func(lo, hi int) { time.Sleep(time.Duration(lo+rng.IntN(hi-lo)) * time.Millisecond) }
	x := c.ids[rng.IntN(3)]
	switch rng.IntN(6) {
	case 0: // a node dies and comes back, often behind a snapshot
		c.stop(x)
		if rng.IntN(2) == 0 {
			for _, n := range c.up() {
				n.LeaderIsDead(id.DirectoryID(x))
			}
		}
		pause(50, 900)
		h.restarts++
		h.drive(c, c.start(x, nil), stop, wg)
	case 1:
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		_ = c.leader().TransferLeadership(ctx)
		cancel()
	case 2, 3:
		c.m.isolate(x, c.ids)
		if rng.IntN(3) == 0 { // a false proof costs a term at most
			c.node(c.ids[rng.IntN(3)]).LeaderIsDead(id.DirectoryID(x))
		}
		pause(100, 900)
		c.m.heal()
	case 4:
		a, b := rng.IntN(3), rng.IntN(3)
		if a != b {
			c.m.cut(c.ids[a], c.ids[b])
			pause(100, 600)
			c.m.heal()
		}
	case 5: // the leader alone: it appends a tail that the others will overwrite
		c.m.isolate(c.leader().id, c.ids)
		pause(300, 1200)
		c.m.heal()
	}
	pause(10, 200)
}

func (h *faultHistory) check(t *testing.T, v *state.View) {
	t.Helper()
	found := map[string]string{}
	v.ZnodeChildren("/q", func(name string, z *state.Znode) bool {
		if was, dup := found[string(z.Data)]; dup {
			t.Errorf("command %s was applied twice: %s and %s", z.Data, was, name)
		}
		found[string(z.Data)] = "/q/" + name
		return true
	})
	for data, path := range h.acked {
		if found[data] != path {
			t.Errorf("command %s was acknowledged with %s, the state has %q", data, path, found[data])
		}
	}
	if len(h.acked) == 0 {
		t.Error("nothing was acknowledged")
	}
}
