package raftmeta

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barnabas-mq/barnabas/internal/id"
)

func TestPromiseRules(t *testing.T) {
	now := time.Unix(1000, 0)
	ask := candidacy{term: 5, lastTerm: 5, lastIndex: 100, dead: "L"}
	follower := raftFace{state: raft.Follower, term: 5, leader: "L", lastTerm: 5, lastIndex: 100}
	with := func(f func(*raftFace)) raftFace { x := follower; f(&x); return x }
	for name, c := range map[string]struct {
		face raftFace
		want bool
	}{
		"knows the dead leader": {follower, true},
		"knows no leader":       {with(func(f *raftFace) { f.leader = "" }), true},
		"knows another leader":  {with(func(f *raftFace) { f.leader = "X" }), false},
		"leads":                 {with(func(f *raftFace) { f.state = raft.Leader }), false},
		"is a candidate":        {with(func(f *raftFace) { f.state = raft.Candidate }), false},
		"is in a later term":    {with(func(f *raftFace) { f.term = 6 }), false},
		"is in an earlier term": {with(func(f *raftFace) { f.term = 4 }), false},
		"has a longer log":      {with(func(f *raftFace) { f.lastIndex = 101 }), false},
		"has a later log":       {with(func(f *raftFace) { f.lastTerm, f.lastIndex = 6, 1 }), false},
		"has a shorter log":     {with(func(f *raftFace) { f.lastIndex = 99 }), true},
	} {
		if got := new(promises).promise("A", ask, c.face, now); got != c.want {
			t.Errorf("a voter that %s promises: %v", name, got)
		}
	}
	var p promises
	for _, s := range []struct {
		from id.DirectoryID
		at   time.Duration
		want bool
	}{{"A", 0, true}, {"B", 900 * time.Millisecond, false}, {"A", 900 * time.Millisecond, true}, {"B", 1800 * time.Millisecond, false}, {"B", 2 * time.Second, true}, {"A", 2100 * time.Millisecond, false}} {
		if got := p.promise(s.from, ask, follower, now.Add(s.at)); got != s.want {
			t.Errorf("%s after %v: %v, want %v", s.from, s.at, got, s.want)
		}
	}
}

// Two that ask at once have each promised themselves: whoever fails takes that back.
func TestPromiseRelease(t *testing.T) {
	now := time.Unix(1000, 0)
	ask := candidacy{term: 5, dead: "L"}
	follower := raftFace{state: raft.Follower, term: 5}
	var p promises
	p.promise("A", ask, follower, now)
	p.release("B") // not its own
	if p.promise("B", ask, follower, now) {
		t.Error("A's promise was taken back for B")
	}
	p.release("A")
	if !p.promise("B", ask, follower, now) {
		t.Error("A's promise is still there")
	}
}

func TestCandidacyCodec(t *testing.T) {
	c := candidacy{1, 2, 3, "dead"}
	if got, err := decodeCandidacy(c.encode()); err != nil || got != c {
		t.Errorf("%+v %v", got, err)
	}
	if _, err := decodeCandidacy(c.encode()[:24]); err == nil {
		t.Error("no dead leader is accepted")
	}
}

// Long before any timer the survivors have a new leader, however many learn of the death at once.
func TestFailoverByPromises(t *testing.T) {
	const timers = 6 * time.Second
	c := newCluster(t, 3, func(k *Config) { k.HeartbeatTimeout, k.Lease = timers, timers/2 })
	c.bootstrapState()
	old := c.leader()
	term := old.leaderTerm()
	c.stop(old.id)
	start := time.Now()
	for _, n := range c.up() {
		n.LeaderIsDead(old.id2())
	}
	var next *testNode
	eventually(t, "a new leader", func() bool {
		for _, n := range c.up() {
			if n.leaderTerm() > term {
				next = n
			}
		}
		return next != nil
	})
	took := time.Since(start)
	t.Logf("a new leader after %v, %d terms on", took, next.leaderTerm()-term)
	if took > timers*2/3 {
		t.Errorf("took %v: the timers of %v did it", took, timers)
	}
	c.register(next)
	if _, err := next.Propose(c.ctx(), createZnode("/after", false)); err != nil {
		t.Fatal(err)
	}
	// A proof of a death that has been dealt with, or of a node that does not lead, changes nothing.
	term = next.leaderTerm()
	for _, n := range c.up() {
		n.LeaderIsDead(old.id2())
		n.LeaderIsDead("nobody")
	}
	eventually(t, "nobody asks any more", func() bool {
		for _, n := range c.up() {
			n.mu.Lock()
			busy := n.succeeding
			n.mu.Unlock()
			if busy {
				return false
			}
		}
		return true
	})
	if next.leaderTerm() != term {
		t.Errorf("term %d after %d", next.leaderTerm(), term)
	}
}

func (n *testNode) id2() id.DirectoryID { return id.DirectoryID(n.id) }

// The order is withdrawn when raft does not take it, and never given when the condition is gone.
func TestTimeoutNowIsWithdrawn(t *testing.T) {
	tr := newTransport("A", newLayer(t), nil, quiet())
	p := tr.open()
	p.run(raftFacts{applied: func() uint64 { return 0 }, term: func() uint64 { return 1 }, feeds: func(raft.ServerID, uint64) bool { return false }})
	defer func() { must(t, p.Close()); must(t, tr.close()) }()
	asked := 0
	for asked == 0 { // a machine that stands still for 20 ms does not ask at all
		if p.timeoutNow(func() bool { asked++; return true }) {
			t.Fatal("taken by nobody")
		}
	}
	select {
	case <-p.Consumer():
		t.Fatal("the order is still there")
	default:
	}
	if p.timeoutNow(func() bool { return false }) {
		t.Fatal("ordered without its condition")
	}
}
