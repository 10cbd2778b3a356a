package raftmeta

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barnabas-mq/barnabas/internal/id"
)

// One request sent by one transport to another, as raft would take it.
func taken(t *testing.T, at *port) raft.RPC {
	t.Helper()
	select {
	case r := <-at.Consumer():
		return r
	case <-time.After(time.Minute):
		t.Fatal("the request did not reach raft")
		return raft.RPC{}
	}
}

// transports are those of two nodes, a and b, without a raft.
func transports(t *testing.T) (a, b *transport) {
	t.Helper()
	a, b = newTransport("a", newLayer(t), nil, quiet()), newTransport("b", newLayer(t), nil, quiet())
	t.Cleanup(func() { must(t, a.close()); must(t, b.close()) })
	return a, b
}

// pair is a transport that sends, and the port of another that receives.
func pair(t *testing.T) (from *transport, to *port, addr raft.ServerAddress) {
	t.Helper()
	from, at := transports(t)
	to = at.open()
	to.run(raftFacts{applied: func() uint64 { return 0 }, term: func() uint64 { return 1 }, feeds: func(raft.ServerID, uint64) bool { return false }})
	t.Cleanup(func() { must(t, to.Close()) })
	return from, to, at.net.LocalAddr()
}

// Heartbeats go through the main loop like every request (hashicorp/raft #695): raft's shortcut is not handed on.
func TestHeartbeatsHaveNoShortcut(t *testing.T) {
	from, to, addr := pair(t)
	to.SetHeartbeatHandler(func(r raft.RPC) {
		t.Error("a heartbeat took the shortcut")
		r.Respond(&raft.AppendEntriesResponse{}, nil)
	})
	sent := make(chan error, 1)
	go func() {
		sent <- from.net.AppendEntries("b", addr, &raft.AppendEntriesRequest{
			RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("a"), Addr: []byte("a:1")}, Term: 1}, new(raft.AppendEntriesResponse))
	}()
	select {
	case r := <-to.Consumer():
		r.Respond(&raft.AppendEntriesResponse{Term: 1, Success: true}, nil)
		must(t, <-sent)
	case <-sent: // answered past the main loop; the handler has said so
	case <-time.After(time.Minute):
		t.Fatal("the heartbeat is gone")
	}
}

// A push names the entry as both the previous one and the commit, in the term that the entry carries: a leader's commit
// above it would have a follower apply a tail that is not committed.
func TestPushIsWhatRaftCouldHaveSent(t *testing.T) {
	from, to, addr := pair(t)
	sent := make(chan error, 1)
	go func() {
		_, err := from.sendPush(raft.Server{ID: "b", Address: addr}, target{index: 70, term: 6})
		sent <- err
	}()
	r := taken(t, to)
	q, ok := r.Command.(*raft.AppendEntriesRequest)
	if !ok || q.Term != 6 || q.PrevLogTerm != 6 || q.PrevLogEntry != 70 || q.LeaderCommitIndex != 70 || len(q.Entries) != 0 {
		t.Errorf("sent %+v", r.Command)
	}
	if string(q.ID) != "a" || string(q.Addr) != string(from.net.LocalAddr()) {
		t.Errorf("sent as %s at %s", q.ID, q.Addr)
	}
	r.Respond(&raft.AppendEntriesResponse{Term: 6, Success: true}, nil)
	must(t, <-sent)
}

// What bounds raft's memory is counted in entries, and an entry holds up to a MiB; snapshots are ours to order.
func TestRaftLimits(t *testing.T) {
	k := (&Node{cfg: Config{Logger: quiet()}.withDefaults()}).raftConfig(nil)
	if k.MaxAppendEntries != 16 || logCacheEntries != 256 || entryTarget != 64<<10 || entryMax != 1<<20 {
		t.Errorf("%d entries a message, %d cached, entries of %d to %d bytes", k.MaxAppendEntries, logCacheEntries, entryTarget, entryMax)
	}
	if k.SnapshotThreshold < 1<<60 || k.SnapshotInterval < 24*time.Hour {
		t.Errorf("raft takes snapshots by itself: after %d entries, every %v", k.SnapshotThreshold, k.SnapshotInterval)
	}
	if d := (Config{}).withDefaults(); d.SnapshotBytes != 64<<20 || d.TrailingBytes != 32<<20 || d.HeartbeatTimeout != 800*time.Millisecond || d.Lease != 500*time.Millisecond {
		t.Errorf("defaults %+v", d)
	}
}

// The next snapshot waits for as much log as twice the last one: a large state is not written over and over.
func TestSnapshotsWaitForTwiceTheirSize(t *testing.T) {
	c := newCluster(t, 1, func(k *Config) { k.SnapshotBytes = 1 << 10 })
	c.bootstrapState()
	n := c.leader()
	c.register(n)
	big := createZnode("/big", false)
	big.GetCreateZnode().Data = make([]byte, 200<<10)
	_, err := n.Propose(c.ctx(), big)
	must(t, err)
	must(t, n.snapshot())
	m, err := n.stores.snaps.List()
	must(t, err)
	if got, want := n.limit.Load(), 2*m[0].Size; got != want || m[0].Size < 200<<10 {
		t.Errorf("the next snapshot is due after %d bytes of log; the last one has %d", got, m[0].Size)
	}
}

// Pre-vote stays on through our transport (raft drops it silently for one that lacks it): a voter that is cut off stands
// again and again, and raises no term, so it deposes nobody when it is back.
func TestCutOffVoterRaisesNoTerm(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, func(k *Config) { k.HeartbeatTimeout = 200 * time.Millisecond })
	f := c.follower()
	c.m.isolate(f.id, c.ids)
	r := f.inst.Load().r
	candidate := func() bool { return r.State() == raft.Candidate }
	eventually(t, "it stands for election", candidate)
	term := r.CurrentTerm()
	time.Sleep(5 * f.cfg.HeartbeatTimeout) // time for more tries; too little of it only hides a fault
	if now := r.CurrentTerm(); now != term {
		t.Errorf("a voter without any other went from term %d to %d", term, now)
	}
}

// A node without a vote never stands, whoever is dead.
func TestNoVoteNoPromises(t *testing.T) {
	c := newCluster(t, 1, nil)
	n := c.leader()
	f := n.face()
	ask := candidacy{term: f.term, lastTerm: f.lastTerm, lastIndex: f.lastIndex, dead: "d"}
	if n.promised(t.Context(), ask) {
		t.Error("a leader got promises to take its own place")
	}
	stranger := &Node{cfg: Config{ID: id.DirectoryID("o")}}
	stranger.inst.Store(n.inst.Load())
	if stranger.promised(t.Context(), ask) {
		t.Error("a node without a vote got promises")
	}
}
