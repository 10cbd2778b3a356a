package raftmeta

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/lease"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// raft's VerifyLeader counts non-voters: it is not used anywhere here.
func TestVerifyLeaderIsNotUsed(t *testing.T) {
	files, err := filepath.Glob("*.go")
	must(t, err)
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		b, err := os.ReadFile(f)
		must(t, err)
		if strings.Contains(string(b), "VerifyLeader(") {
			t.Errorf("%s calls VerifyLeader", f)
		}
	}
}

// One voter with any number of non-voters around it, and both other voters gone, proves nothing.
func TestProofAsksVotersOnly(t *testing.T) {
	c := newCluster(t, 3, nil)
	for _, x := range []string{"o1", "o2"} {
		c.ids = append(c.ids, x)
		c.dirs[x] = filepath.Join(t.TempDir(), x)
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		c.addr[x] = ln.Addr().String()
		c.m.mu.Lock()
		c.m.addrs[c.addr[x]] = x
		c.m.mu.Unlock()
		c.tune = func(k *Config) { k.Bootstrap = nil }
		n := c.start(x, &meshLayer{ln, c.m, x})
		if has, err := n.HasState(); err != nil || has {
			t.Fatalf("%s has state: %v %v", x, has, err)
		}
		// Any node passes the request on, and a repeat changes nothing.
		for _, at := range c.ids[:3] {
			c.join(x, at)
		}
	}
	l, voters := c.leader(), 0
	eventually(t, "five members", func() bool {
		l, voters = c.leader(), 0
		for _, m := range l.Members() {
			if m.Voter {
				voters++
			}
		}
		return len(l.Members()) == 5
	})
	if voters != MaxVoters {
		t.Fatalf("%d voters", voters)
	}
	eventually(t, "proof of a leader whose term all are in", func() bool { // on a busy machine it changes
		l = c.leader()
		p, err := l.Prove(c.ctx())
		return err == nil && !slices.ContainsFunc(c.up(), func(n *testNode) bool { return n.Vote() != p.Term })
	})
	for _, x := range c.ids[:3] {
		if x != l.id {
			c.m.cut(l.id, x)
		}
	}
	if _, err := l.Prove(c.ctx()); err == nil {
		t.Error("proven by non-voters")
	}
}

// join asks a node, or the leader, to take a new one in, until it does: a busy machine changes leaders.
func (c *testCluster) join(x, at string) {
	c.t.Helper()
	eventually(c.t, "join of "+x, func() bool {
		n := c.leader()
		if at != "" {
			n = c.node(at)
		}
		_, err := n.Handlers()[MethodJoin](c.ctx(), id.DirectoryID(x), EncodeJoin(Server{id.DirectoryID(x), c.addr[x]}))
		return err == nil
	})
}

// Joining one by one makes voters up to three.
func TestJoinMakesVoters(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.bootstrapState()
	for _, x := range []string{"j1", "j2"} {
		c.dirs[x] = filepath.Join(t.TempDir(), x)
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		c.addr[x] = ln.Addr().String()
		c.ids = append(c.ids, x)
		c.m.mu.Lock()
		c.m.addrs[c.addr[x]] = x
		c.m.mu.Unlock()
		c.tune = func(k *Config) { k.Bootstrap = nil }
		c.start(x, &meshLayer{ln, c.m, x})
		c.join(x, "")
	}
	for _, m := range c.leader().Members() {
		if !m.Voter {
			t.Errorf("%s has no vote", m.ID)
		}
	}
	n := c.follower()
	c.register(n)
	if _, err := n.Propose(c.ctx(), createZnode("/joined", false)); err != nil {
		t.Fatal(err)
	}
	c.converge()
}

func TestVoterMemory(t *testing.T) {
	v := voterMemory{proofs: lease.NewProofs(100 * time.Second)}
	at := func(term uint64, now time.Duration, want time.Duration) {
		t.Helper()
		if got := v.confirm(term, now*time.Second); got != want*time.Second {
			t.Errorf("term %d at %ds: since %v, want %ds", term, now, got, want)
		}
	}
	at(3, 110, 10) // nothing older is known: counted from the start
	at(3, 115, 15)
	at(4, 116, 1) // term 3 was confirmed at 115
	at(4, 120, 5)
	at(7, 121, 1)
}

// The cluster clock: it moves by what passes on the boot clock within one term, is clamped, never goes back, and starts
// at nothing in a new term; wall time is only carried along.
func TestClockStamps(t *testing.T) {
	c := newCombiner()
	var boot time.Duration
	var wall time.Time
	term := uint64(1)
	var steps []int64
	fail := false
	c.term = func() uint64 { return term }
	c.clock = func() (time.Duration, time.Time) { return boot, wall }
	c.pushed = func(outcome, bool) {}
	c.apply = func(b []byte) func() (outcome, error) {
		if fail {
			return func() (outcome, error) { return outcome{}, raft.ErrLeadershipLost }
		}
		var e statepb.Entry
		must(t, proto.Unmarshal(b, &e))
		if e.WallMs != wall.UnixMilli() || len(e.Commands) != 1 {
			t.Errorf("entry %v", &e)
		}
		steps = append(steps, int64(e.ClockStepMs))
		return func() (outcome, error) { return outcome{term: term}, nil }
	}
	at := func(b time.Duration, w time.Time) {
		boot, wall = b, w
		e, ok := c.propose([]chunk{{data: tickChunk, count: 1}}, len(tickChunk))
		if !ok {
			t.Fatal("refused")
		}
		c.finish(e)
	}
	now := time.Unix(1_700_000_000, 0)
	at(50*time.Second, now)
	at(50*time.Second+1500*time.Microsecond, now.Add(time.Hour)) // wall time jumps an hour
	at(50*time.Second+2000*time.Microsecond, now)                // half milliseconds are not lost
	fail = true
	at(51*time.Second, now)
	fail = false
	at(51*time.Second+2*time.Millisecond, now) // what a failed entry carried comes with the next
	at(2*time.Hour, now)                       // suspended: the hours are dropped
	at(2*time.Hour+time.Second, now)
	term = 2
	at(3*time.Hour, now)
	at(3*time.Hour+5*time.Millisecond, now)
	want := []int64{0, 1, 1, 1000, 20_000, 1000, 0, 5}
	if len(steps) != len(want) {
		t.Fatalf("steps %v, want %v", steps, want)
	}
	for i := range want {
		if steps[i] != want[i] {
			t.Fatalf("steps %v, want %v", steps, want)
		}
	}
}

// An idle leader moves the clock by itself.
func TestIdleLeaderTicks(t *testing.T) {
	c := newCluster(t, 1, func(k *Config) { k.TickEvery = 20 * time.Millisecond })
	c.bootstrapState()
	n := c.leader()
	was := n.View().ClockMs()
	eventually(t, "the clock moves", func() bool { return n.View().ClockMs() > was+100 })
}

// Entries hold up to the target, one large command alone, and no command larger than the maximum is taken.
func TestEntrySizes(t *testing.T) {
	c := newCombiner()
	var wg sync.WaitGroup
	for _, size := range []int{40 << 10, 20 << 10, 10 << 10, 900 << 10, 1} {
		must(t, c.submit(t.Context(), nil, chunk{data: make([]byte, size), count: 1}))
	}
	var got []int
	for {
		ks, size := c.take()
		if len(ks) == 0 {
			break
		}
		got = append(got, size)
	}
	if len(got) != 4 || got[0] != 60<<10 || got[1] != 10<<10 || got[2] != 900<<10 || got[3] != 1 {
		t.Errorf("entries of %v", got)
	}
	big := createZnode("/big", false)
	big.GetCreateZnode().Data = make([]byte, entryMax)
	if _, err := encodeCommand(big); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a command of %d bytes: %v", proto.Size(big), err)
	}
	// A full queue makes submitters wait, and ends with their context.
	must(t, c.submit(t.Context(), nil, chunk{data: make([]byte, queueMaxBytes), count: 1}))
	ctx, cancel := context.WithCancel(t.Context())
	wg.Go(func() {
		if err := c.submit(ctx, nil, chunk{data: []byte{1}, count: 1}); !errors.Is(err, context.Canceled) {
			t.Errorf("a full queue: %v", err)
		}
	})
	cancel()
	wg.Wait()
	wg.Go(func() { must(t, c.submit(t.Context(), nil, chunk{data: []byte{1}, count: 1})) })
	c.take()
	wg.Wait()
}

// hashicorp/raft #300: with a snapshot after every entry, a leader that loses its leadership in the middle of a commit
// learns it, others are elected, and Shutdown returns.
func TestTinySnapshotsAndLostLeadership(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, func(k *Config) { k.SnapshotBytes, k.TrailingBytes = 1, 1 })
	c.bootstrapState()
	for _, n := range c.up() {
		c.register(n)
	}
	for range 3 {
		l := c.leader()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for ctx.Err() == nil {
					_, _ = l.Propose(ctx, createZnode("/s", true))
				}
			})
		}
		eventuallyOr(func() bool { m, _ := l.stores.snaps.List(); return len(m) == snapKeep })
		c.m.isolate(l.id, c.ids)
		eventually(t, "the old leader knows", func() bool { return l.leaderTerm() == 0 && l.Leader().ID == "" })
		eventually(t, "another leads", func() bool {
			for _, n := range c.up() {
				if n.id != l.id && n.leaderTerm() > 0 {
					return true
				}
			}
			return false
		})
		cancel()
		wg.Wait()
		c.m.heal()
	}
	n := c.leader()
	if _, err := n.Propose(c.ctx(), createZnode("/s", true)); err != nil {
		t.Fatal(err)
	}
	c.converge()
	c.stopAll()
}

// A leader frozen in the middle of a snapshot does not hold the main loop: the read ends, and so do all after it.
func TestStalledSnapshotReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, out := net.Pipe()
		defer func() { must(t, errors.Join(in.Close(), out.Close())) }()
		r := &stallReader{c: out, limit: time.Minute}
		go func() { _, _ = in.Write([]byte("half")) }()
		b := make([]byte, 16)
		if n, err := r.Read(b); n != 4 || err != nil {
			t.Fatalf("%d %v", n, err)
		}
		for range 2 {
			if n, err := r.Read(b); n != 0 || err == nil {
				t.Fatalf("%d %v", n, err)
			}
		}
	})
}

// What a peer sends reaches the log only if every node can apply it.
func TestDecodeBatch(t *testing.T) {
	l := newLane(9, 0)
	for i := range 3 {
		raw, err := encodeCommand(createZnode("/x", i == 1))
		must(t, err)
		must(t, l.enqueue(raw, &proposal{done: make(chan struct{})}))
	}
	b := l.batch()
	good := encodeBatch(b)
	got, err := decodeBatch(good)
	if err != nil || got.first != 1 || got.last != 3 || got.lane != 9 {
		t.Fatalf("%+v %v", got, err)
	}
	for n := range good {
		if _, err := decodeBatch(good[:n]); err == nil {
			t.Errorf("a batch cut to %d of %d bytes is taken", n, len(good))
		}
	}
	for field, raw := range map[string][]byte{
		"an unknown body": appendCommand(nil, append(appendUint(appendUint(appendUint(nil, fieldVersion, 1), fieldLane, 9), fieldSeq, 1), 0xfa, 0x7f, 0), 0),
		"another lane":    appendCommand(nil, mustMarshal(&statepb.Command{Version: 1, Lane: 8, Seq: 1, Body: &statepb.Command_Tick{Tick: &statepb.Tick{}}}), 0),
		"another version": appendCommand(nil, mustMarshal(&statepb.Command{Version: 2, Lane: 9, Seq: 1, Body: &statepb.Command_Tick{Tick: &statepb.Tick{}}}), 0),
		"no body":         appendCommand(nil, mustMarshal(&statepb.Command{Version: 1, Lane: 9, Seq: 1}), 0),
	} {
		if _, err := decodeBatch(encodeBatch(batch{lane: 9, first: 1, last: 1, chunk: raw})); !errors.Is(err, errBadRequest) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func FuzzDecodeBatch(f *testing.F) {
	f.Add(encodeBatch(batch{lane: 9, first: 1, last: 1, chunk: appendCommand(nil, mustMarshal(&statepb.Command{
		Version: 1, Lane: 9, Seq: 1, Body: &statepb.Command_Tick{Tick: &statepb.Tick{}}}), 0)}))
	f.Add(binary.BigEndian.AppendUint64(nil, 1))
	f.Fuzz(func(t *testing.T, p []byte) {
		b, err := decodeBatch(p)
		if err != nil {
			return
		}
		var e statepb.Entry
		if err := proto.Unmarshal(b.chunk, &e); err == nil && uint64(len(e.Commands)) != b.last-b.first+1 {
			t.Errorf("%d commands in a batch of %d..%d", len(e.Commands), b.first, b.last)
		}
	})
}

func FuzzDecodeJoin(f *testing.F) {
	f.Add(EncodeJoin(Server{"abc", "host:1"}))
	f.Fuzz(func(t *testing.T, p []byte) {
		if s, err := decodeJoin(p); err == nil && string(EncodeJoin(s)) != string(p) {
			t.Errorf("%q is not %+v", p, s)
		}
	})
}

// A snapshot that this build can not read stops the node; an older one is not taken in its place.
func TestUnreadableSnapshotStopsStart(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.bootstrapState()
	n := c.leader()
	must(t, n.snapshot())
	index, _ := n.Hash()
	s := n.stores.snaps
	s.describe = nil
	must(t, writeSnap(s, uint64(index)+1, 9, []byte("of a newer build")))
	c.stop(n.id)
	cfg := Config{Dir: c.dirs[n.id], ID: id.DirectoryID(n.id), Stream: newLayer(t), Peers: meshPeers{c.m, n.id}}
	again, err := New(cfg)
	must(t, err)
	if err := again.Start(); !errors.Is(err, state.ErrSnapshot) {
		t.Fatalf("start: %v", err)
	}
	must(t, again.Stop())
}

// TrailingBytes of log stay behind a snapshot, so that a follower a little behind needs no snapshot.
func TestTrailingLogByBytes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, func(k *Config) { k.TrailingBytes = 20 << 10 })
	c.bootstrapState()
	n := c.leader()
	c.register(n)
	cmd := createZnode("/t", true)
	cmd.GetCreateZnode().Data = make([]byte, 1<<10)
	for range 200 {
		_, err := n.Propose(c.ctx(), cmd)
		must(t, err)
	}
	must(t, n.snapshot())
	m, err := n.stores.snaps.List()
	must(t, err)
	first, last, err := n.stores.log.bounds()
	must(t, err)
	if len(m) != 1 || last-first < 14 || last-first > 22 { // an entry is a little over 1 KiB
		t.Errorf("snapshots %v, log %d..%d", m, first, last)
	}
}
