package raftmeta

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

func TestProposeEverywhere(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.bootstrapState()
	var wg sync.WaitGroup
	for _, n := range c.up() {
		c.register(n)
		for k := range 4 {
			wg.Go(func() {
				for i := range 25 {
					path := fmt.Sprintf("/%s-%d-%d", n.id, k, i)
					r, err := n.Propose(c.ctx(), createZnode(path, false))
					if err != nil || r.Code != statepb.Code_OK {
						t.Errorf("%s: %v %v", path, r, err)
						return
					}
					if _, ok := n.View().Znode(path); !ok {
						t.Errorf("%s is not in the local view after its reply", path)
					}
				}
			})
		}
	}
	wg.Wait()
	c.converge()
}

// Subscribers have an entry's events before the view shows it, in order, without holes; after a restart from disk the
// state is the same.
func TestSubscribeOrderAndRestart(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.bootstrapState()
	n := c.leader()
	var before atomic.Int64
	var last id.Index
	v, cancel := n.Subscribe(func(u Update) {
		if n.View().Index() >= u.View.Index() {
			before.Add(1)
		}
		if u.View.Index() <= last {
			t.Errorf("entry %d after %d", u.View.Index(), last)
		}
		last = u.View.Index()
	})
	last = v.Index()
	c.register(n)
	for i := range 50 {
		_, err := n.Propose(c.ctx(), createZnode(fmt.Sprintf("/a%d", i), false))
		must(t, err)
	}
	cancel()
	if before.Load() > 0 {
		t.Errorf("%d views were visible before their events", before.Load())
	}
	if last != n.View().Index() {
		t.Errorf("told up to %d of %d", last, n.View().Index())
	}
	index, hash := n.Hash()
	c.stop(n.id)
	n = c.start(n.id, nil)
	c.elect("")
	must(t, n.WaitIndex(c.ctx(), index))
	if i, h := n.Hash(); i != index || h != hash {
		t.Errorf("after the restart %x at %d, want %x at %d", h, i, hash, index)
	}
}

func TestMindRunsAfterBarrier(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.stopAll()
	started := make(chan id.Term, 16)
	c.beforeStart = func(n *Node) {
		var running atomic.Int64 // on one node; another's may not know yet that its term is over
		n.RunMind("test", func(ctx context.Context, term id.Term) {
			if running.Add(1) > 1 {
				t.Error("two minds of one node at once")
			}
			started <- term
			<-ctx.Done()
			running.Add(-1)
		})
	}
	for _, x := range c.ids {
		c.start(x, nil)
	}
	c.elect("")
	c.bootstrapState()
	first := <-started
	l := c.leader()
	c.register(l)
	if _, err := l.ProposeInTerm(c.ctx(), first, createZnode("/mind", false)); err != nil {
		t.Fatal(err)
	}
	if _, err := l.ProposeInTerm(c.ctx(), first+1, createZnode("/mind2", false)); !errors.Is(err, ErrNotLeader) {
		t.Fatalf("another term: %v", err)
	}
	if _, err := c.follower().ProposeInTerm(c.ctx(), first, createZnode("/mind3", false)); !errors.Is(err, ErrNotLeader) {
		t.Fatalf("a follower: %v", err)
	}
	must(t, l.TransferLeadership(c.ctx()))
	second := <-started
	if second <= first {
		t.Fatalf("term %d after %d", second, first)
	}
	n := c.leader()
	if _, ok := n.View().Znode("/mind"); !ok {
		t.Error("the second mind runs without the first one's commands")
	}
	if _, err := l.ProposeInTerm(c.ctx(), first, createZnode("/late", false)); !errors.Is(err, ErrNotLeader) {
		t.Errorf("the old mind proposes: %v", err)
	}
	c.converge()
}

// A new leader may have committed entries that it has not applied: its minds wait for them.
func TestMindWaitsForWhatWasCommitted(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.stopAll()
	type start struct {
		at   *Node
		seen bool
	}
	started := make(chan start, 64)
	c.beforeStart = func(n *Node) {
		n.RunMind("test", func(ctx context.Context, _ id.Term) {
			_, seen := n.View().Znode("/committed")
			started <- start{n, seen}
			<-ctx.Done()
		})
	}
	for _, x := range c.ids {
		c.start(x, nil)
	}
	c.elect("")
	c.bootstrapState()
	l := c.leader()
	c.register(l)
	gate := make(chan struct{})
	release := sync.OnceFunc(func() { close(gate) })
	defer release()
	for _, n := range c.up() {
		if n.id != l.id {
			_, cancel := n.Subscribe(func(Update) { <-gate })
			defer cancel()
		}
	}
	if _, err := l.Propose(c.ctx(), createZnode("/committed", false)); err != nil {
		t.Fatal(err)
	}
	c.m.isolate(l.id, c.ids)
	c.elect(l.id)
	var next *testNode
	eventually(t, "another leader", func() bool {
		for _, n := range c.up() {
			if n.id != l.id && n.leaderTerm() != 0 {
				next = n
			}
		}
		return next != nil
	})
	time.Sleep(100 * time.Millisecond) // for a mind that does not wait; too little of it only hides a fault
	release()
	for s := range started {
		if s.at == l.Node {
			continue
		}
		if !s.seen {
			t.Error("a mind began before what an earlier leader committed was applied")
		}
		return
	}
}

func TestLaneEndsWithFencing(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.bootstrapState()
	n := c.leader()
	short, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := n.Propose(short, createZnode("/early", false)); !errors.Is(err, ErrNoLane) {
		t.Fatalf("before the lane: %v", err)
	}
	c.register(n)
	ended := n.LaneEnded()
	var b *state.Broker
	n.View().Brokers(func(x *state.Broker) bool { b = x; return true })
	_, err := n.ProposeRaw(c.ctx(), &statepb.Command{Level: 1, Body: &statepb.Command_FenceBroker{FenceBroker: &statepb.FenceBroker{
		Broker: int32(b.ID), Epoch: uint64(b.Epoch), Reason: "test"}}})
	must(t, err)
	<-ended
	if _, err := n.Propose(c.ctx(), createZnode("/late", false)); !errors.Is(err, ErrLaneEnded) {
		t.Fatalf("after fencing: %v", err)
	}
	c.register(n)
	if _, err := n.Propose(c.ctx(), createZnode("/again", false)); err != nil {
		t.Fatal(err)
	}
}

func TestCancelIsUnknown(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.bootstrapState()
	f := c.follower()
	c.register(f)
	c.m.isolate(f.id, c.ids)
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan error, 1)
	go func() { _, err := f.Propose(ctx, createZnode("/kept", false)); got <- err }()
	f.mu.Lock()
	l := f.lane
	f.mu.Unlock()
	eventually(t, "it waits", func() bool { return !l.idle() })
	cancel()
	if err := <-got; !errors.Is(err, ErrUnknown) || !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled: %v", err)
	}
	c.m.heal() // numbers have no holes, so it still comes true, before the next one
	if _, err := f.Propose(c.ctx(), createZnode("/next", false)); err != nil {
		t.Fatal(err)
	}
	if _, ok := f.View().Znode("/kept"); !ok {
		t.Error("the next command overtook it")
	}
}

func TestProve(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.leader()
	p, err := l.Prove(c.ctx())
	must(t, err)
	if uint64(p.Term) != l.leaderTerm() {
		t.Fatalf("proof of term %d", p.Term)
	}
	if _, err := c.follower().Prove(c.ctx()); !errors.Is(err, ErrNotLeader) {
		t.Fatalf("a follower proves: %v", err)
	}
	// Non-voters do not count.
	c.m.isolate(l.id, c.ids)
	if _, err := l.Prove(c.ctx()); err == nil {
		t.Fatal("a leader without its quorum proves")
	}
}

// A vote that came with a request proves without a round, but only with a voter's vote for the term of this leader.
func TestProveWithVote(t *testing.T) {
	c := newCluster(t, 3, nil)
	l, f := c.leader(), c.follower()
	fid := id.DirectoryID(f.id)
	eventually(t, "the follower's vote", func() bool { return uint64(f.Vote()) == l.leaderTerm() })
	voted := f.Vote()
	older := l.voter.confirm(uint64(voted), l.cfg.Clock.Boot())
	c.m.isolate(l.id, c.ids) // a round would fail from here on; the vote was made before
	if term, err := l.ProveWith(c.ctx(), fid, voted); err != nil || term != voted {
		t.Fatalf("with a vote for term %d: %d, %v", voted, term, err)
	}
	if since := l.voter.confirm(uint64(voted), l.cfg.Clock.Boot()); since < older {
		t.Errorf("an earlier term was confirmed %v ago, then %v ago", older, since)
	}
	for name, try := range map[string]struct {
		voter id.DirectoryID
		voted id.Term
	}{"no vote": {fid, 0}, "an earlier term": {fid, voted - 1}, "a later term": {fid, voted + 1},
		"its own vote": {id.DirectoryID(l.id), voted}, "no voter": {"stranger", voted}} {
		if term, err := l.ProveWith(c.ctx(), try.voter, try.voted); err == nil {
			t.Errorf("%s: proven in term %d", name, term)
		}
	}
	// Whoever leads next finds that its quorum took part in the proof.
	c.elect(l.id)
	eventually(t, "another leader", func() bool { return f.Vote() > voted })
	if since := f.voter.confirm(uint64(f.Vote()), f.cfg.Clock.Boot()); since > time.Minute {
		t.Errorf("the vote is forgotten: %v", since)
	}
	if term, err := l.ProveWith(c.ctx(), fid, f.Vote()); err == nil {
		t.Errorf("a deposed leader proves term %d by a later vote", term)
	}
}

// Stop ends although entries wait for the FSM, which raft forgets when it is shut down.
func TestStopWhileEntriesWaitForTheFSM(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.bootstrapState()
	l := c.leader()
	busy, free := make(chan struct{}), make(chan struct{})
	_, cancel := l.Subscribe(func(Update) {
		select {
		case busy <- struct{}{}:
			<-free
		case <-free:
		}
	})
	defer cancel()
	answered := make(chan error, 2)
	propose := func(path string) {
		l.ProposeAllInTerm(id.Term(l.leaderTerm()), []*statepb.Command{createZnode(path, false)}, func(_, _ int, _ []state.Settled, err error) { answered <- err })
	}
	propose("/first")
	<-busy
	r := l.inst.Load().r
	queue := func(what string, add func()) { // as a batch of its own
		before := r.AppliedIndex() // what raft has handed to the FSM
		add()
		eventually(t, what+" waits for the FSM", func() bool { return r.AppliedIndex() > before })
	}
	for range 10 { // before each of them the FSM may notice that raft ends, by chance
		queue("a barrier", func() { r.Barrier(0) })
	}
	queue("the second", func() { propose("/second") })
	stopped := make(chan struct{})
	go func() { defer close(stopped); c.stop(l.id) }()
	eventually(t, "raft is shut down", func() bool { return r.State() == raft.Shutdown })
	close(free)
	<-stopped
	for range 2 {
		if err := <-answered; err != nil && !errors.Is(err, ErrUnknown) {
			t.Error(err)
		}
	}
}
