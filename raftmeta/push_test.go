package raftmeta

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// scripted is a follower that answers pushes as told.
type scripted struct {
	mu      sync.Mutex
	dead    bool // no answers
	got     []target
	answers []raft.AppendEntriesResponse // the last one repeats
	gate    chan struct{}                // nil: answers at once
	sending int
	most    int
}

func (s *scripted) send(_ raft.Server, t target) (raft.AppendEntriesResponse, error) {
	s.mu.Lock()
	s.got = append(s.got, t)
	s.sending++
	s.most = max(s.most, s.sending)
	a := raft.AppendEntriesResponse{Term: t.term, Success: true}
	if len(s.answers) > 0 {
		a = s.answers[0]
		if len(s.answers) > 1 {
			s.answers = s.answers[1:]
		}
	}
	gate, dead := s.gate, s.dead
	s.mu.Unlock()
	if gate != nil {
		<-gate
	}
	s.mu.Lock()
	s.sending--
	s.mu.Unlock()
	if dead {
		return a, errReopening
	}
	return a, nil
}

func (s *scripted) sent() []target {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]target(nil), s.got...)
}

var oneFollower = []raft.Server{{ID: "F"}}

const all, nobody = true, false // wait for a commit

func untold(raft.ServerID) uint64 { return 0 }

// A commit that somebody waits for is told at once, once; others when no entry has told them in a while, and never when entries follow one
// another.
func TestPushLater(t *testing.T) { synctest.Test(t, pushLaterTest) }

func pushLaterTest(t *testing.T) {
	s := &scripted{}
	var told atomic.Uint64
	p := newPusher(s.send, func(raft.ServerID) uint64 { return told.Load() })
	defer p.close()
	step := func(what string, pass time.Duration, do func(), want ...uint64) {
		t.Helper()
		do()
		time.Sleep(pass)
		synctest.Wait()
		var got []uint64
		s.mu.Lock()
		for _, g := range s.got {
			got = append(got, g.index)
		}
		s.got = nil
		s.mu.Unlock()
		if !slices.Equal(got, want) {
			t.Errorf("%s: pushed %v, want %v", what, got, want)
		}
	}
	push := func(i uint64, waits bool) func() {
		return func() { p.push(target{i, 1}, oneFollower, waits) }
	}
	step("somebody waits", 0, push(1, all), 1)
	step("nobody waits", pushLater-1, push(2, nobody))
	step("and no entry comes", 1, func() {}, 2)
	step("never again", time.Minute, func() {})
	step("nobody waits", pushLater-1, push(3, nobody))
	step("an entry tells", time.Minute, func() { told.Store(3) })
	step("an entry tells of the one before", time.Minute, push(5, nobody), 5)
	for i := uint64(6); i < 50; i++ {
		step("a stream", pushLater/2, func() { told.Store(i - 1); push(i, nobody)() })
	}
	step("ends", pushLater, func() {}, 49)
	step("nobody waits", 0, push(50, nobody))
	step("somebody waits after all", 0, func() { p.tell("F", 50) }, 50)
	step("and was told", time.Minute, func() { p.tell("F", 50); p.tell("G", 50) })
	told.Store(51)
	step("an entry tells, which a disk may hold up", 0, push(51, all), 51)
	told.Store(52)
	step("nobody waits", 0, push(52, nobody))
	step("somebody does after all", 0, func() { p.tell("F", 52) }, 52)
	step("somebody waits for what is not here yet", time.Minute, func() { p.tell("F", 53) })
	step("and then is, at an entry that tells", 0, func() { told.Store(53); push(53, nobody)() }, 53)
	step("and not for the next", pushLater-1, push(54, nobody))
	step("which is pushed later", 1, func() {}, 54)

	s.answers = []raft.AppendEntriesResponse{{Term: 1}, {Term: 1, Success: true}}
	step("a push overtakes its entry", 0, push(55, all), 55)
	step("and is repeated, whatever the next entry tells meanwhile", time.Minute, func() { told.Store(55) }, 55)
	s.gate = make(chan struct{})
	step("one is under way", 0, push(56, all), 56)
	step("while one comes for which nobody waits", 0, push(57, nobody))
	step("it has its time all the same", pushLater-1, func() { close(s.gate); s.gate = nil })
	step("and is pushed then", 1, func() {}, 57)
}

// Who is answered may wait for an entry that was just applied here and has not been pushed to anybody; and a peer may ask before Start.
func TestTell(t *testing.T) {
	ln := newLayer(t)
	defer ln.Close()
	n, err := New(Config{Dir: t.TempDir(), ID: "a", Stream: ln, Peers: meshPeers{}, Logger: quiet()})
	must(t, err)
	n.Tell("b")
	must(t, n.Stop())

	c := newCluster(t, 3, nil)
	c.bootstrapState()
	l, f := c.leader(), c.follower()
	c.register(l)
	l.pusher.mu.Lock()
	loop := l.pusher.loops[raft.ServerID(f.id)]
	l.pusher.mu.Unlock()
	var entries, early int
	_, cancel := l.Subscribe(func(u Update) {
		entries++
		l.Tell(id.DirectoryID(f.id))
		l.pusher.mu.Lock()
		defer l.pusher.mu.Unlock()
		if at := uint64(u.View.Index()); loop.must >= at && loop.want.index < at {
			early++
		}
	})
	for range 5 {
		_, err := l.Propose(c.ctx(), createZnode("/p", true))
		must(t, err)
	}
	cancel()
	if early != entries || entries < 5 {
		t.Errorf("of %d entries, %d were noted for a push before their proposer went on", entries, early)
	}
}

// Only committed offsets, and nothing beside them, are pushed later.
func TestOffsetsArePushedLater(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.bootstrapState()
	l, f := c.leader(), c.follower()
	c.register(f)
	atOnce := func(index uint64) (n int) { // at how many followers
		l.pusher.mu.Lock()
		defer l.pusher.mu.Unlock()
		for _, loop := range l.pusher.loops {
			if loop.must >= index {
				n++
			}
		}
		return n
	}
	r, err := f.Propose(c.ctx(), createZnode("/p", true))
	must(t, err)
	eventually(t, "a command of a lane", func() bool { return atOnce(r.Index) == 2 })
	r, err = f.ProposeRaw(c.ctx(), &statepb.Command{Body: &statepb.Command_Tick{Tick: &statepb.Tick{}}})
	must(t, err)
	eventually(t, "a command without a lane", func() bool { return atOnce(r.Index) == 2 })
	offsets := &statepb.Command{Body: &statepb.Command_CommitOffsets{CommitOffsets: &statepb.CommitOffsets{Group: "g"}}}
	for _, tc := range []struct {
		commands []*statepb.Command
		want     int
	}{
		{[]*statepb.Command{offsets, offsets}, 0},
		{[]*statepb.Command{offsets, createZnode("/p", true), offsets}, 2},
		{[]*statepb.Command{offsets}, 0},
	} {
		var index uint64
		for range 20 { // a tick may share its entry, and the leader may change
			l = c.leader()
			answers := make(chan uint64, len(tc.commands))
			l.ProposeAllInTerm(id.Term(l.leaderTerm()), tc.commands, func(from, to int, rs []state.Settled, err error) {
				for range to - from {
					if err != nil {
						answers <- 0
						continue
					}
					answers <- rs[0].Result.Index
				}
			})
			for range tc.commands {
				index = <-answers
			}
			if index > 0 && atOnce(index) == tc.want {
				break
			}
		}
		if n := atOnce(index); index == 0 || n != tc.want {
			t.Errorf("%d commands: pushed to %d at once, want %d", len(tc.commands), n, tc.want)
		}
	}
}

// One message is outstanding, always the newest, and it is sent again when a newer one waits.
func TestPushNewestOnly(t *testing.T) {
	s := &scripted{gate: make(chan struct{})}
	p := newPusher(s.send, untold)
	defer p.close()
	p.push(target{1, 1}, oneFollower, all)
	eventually(t, "the first push", func() bool { return len(s.sent()) == 1 })
	for i := uint64(2); i <= 9; i++ {
		p.push(target{i, 1}, oneFollower, all)
	}
	p.push(target{3, 1}, oneFollower, all) // an older one changes nothing
	close(s.gate)
	eventually(t, "the newest", func() bool { g := s.sent(); return g[len(g)-1] == target{9, 1} })
	if g := s.sent(); len(g) != 2 || s.most != 1 {
		t.Fatalf("sent %v, %d at once", g, s.most)
	}
}

// A push that overtook its entry is repeated until the follower has it; one refused in a later term never, and one without any
// answer a few times.
func TestPushRefused(t *testing.T) {
	s := &scripted{answers: []raft.AppendEntriesResponse{{Term: 7}}}
	p := newPusher(s.send, untold)
	defer p.close()
	p.push(target{5, 7}, oneFollower, all)
	eventually(t, "many tries", func() bool { return len(s.sent()) > 2*pushTries })
	s.mu.Lock()
	s.answers = []raft.AppendEntriesResponse{{Term: 7, Success: true}}
	s.mu.Unlock()
	p.push(target{6, 7}, oneFollower, all)
	eventually(t, "the newest", func() bool { g := s.sent(); return g[len(g)-1] == target{6, 7} })
	s.mu.Lock()
	s.got, s.answers = nil, []raft.AppendEntriesResponse{{Term: 8}}
	s.mu.Unlock()
	p.push(target{7, 7}, oneFollower, all)
	eventually(t, "the one refused in a later term", func() bool { return len(s.sent()) == 1 })
	s.mu.Lock()
	s.dead = true
	s.mu.Unlock()
	p.push(target{8, 7}, oneFollower, all)
	eventually(t, "all tries at a dead peer", func() bool { return len(s.sent()) == 2+pushTries })
	s.mu.Lock()
	s.dead, s.answers = false, nil
	s.mu.Unlock()
	p.push(target{9, 7}, oneFollower, all)
	eventually(t, "the next", func() bool { return len(s.sent()) == 3+pushTries })
	if g := s.sent(); g[1] != (target{8, 7}) || g[len(g)-2] != (target{8, 7}) {
		t.Fatalf("a push was repeated that should not be: %v", g)
	}
}

func TestPushEndsWithServer(t *testing.T) {
	s := &scripted{}
	p := newPusher(s.send, untold)
	p.push(target{1, 1}, []raft.Server{{ID: "F"}, {ID: "G"}}, all)
	p.push(target{2, 1}, oneFollower, all)
	if len(p.loops) != 1 {
		t.Fatalf("%d loops", len(p.loops))
	}
	p.close()
	p.push(target{3, 1}, oneFollower, all) // after the end: nothing
	if len(p.loops) != 1 {
		t.Fatal("a loop was started after close")
	}
}

// What a real follower makes of pushes that are early, late, repeated, of another term, or over a conflicting tail.
func TestPushAtFollower(t *testing.T) {
	conf := servers("F", "D", "L")
	applied := func(f *lone) (n int) { return len(f.f.copy()) }
	f := mustLone(t, loneOpts{kind: "heal", dir: t.TempDir(), id: "F", term: 2, seed: entries(conf, span{2, 5, 1}, span{6, 10, 2})})
	g := newGhost(t, "L", conf)
	push := func(index, term uint64) raft.AppendEntriesResponse { return g.append(f.addr, term, index, term, index) }

	if r := push(20, 2); r.Success || r.Term != 2 {
		t.Fatalf("early: %+v", r)
	}
	if r := push(8, 3); r.Success { // the entry at 8 is of term 2: a tail that was never committed as such
		t.Fatalf("over a conflicting tail: %+v", r)
	}
	if n := applied(f); n != 0 {
		t.Fatalf("%d entries applied by refused pushes", n)
	}
	if r := g.append(f.addr, 3, 5, 1, 5, span{6, 8, 3}); !r.Success {
		t.Fatalf("append: %+v", r)
	}
	if r := push(8, 3); !r.Success {
		t.Fatalf("push: %+v", r)
	}
	eventually(t, "8 applied", func() bool { return f.f.copy()[8] == data(8, 3) })
	n := applied(f)
	for range 3 { // repeated, and an older one
		if r := push(8, 3); !r.Success {
			t.Fatalf("repeated: %+v", r)
		}
	}
	if r := push(5, 1); r.Success || r.Term != 3 {
		t.Fatalf("of a former term: %+v", r)
	}
	if applied(f) != n || f.r.CommitIndex() != 8 {
		t.Fatalf("applied %d, commit %d", applied(f), f.r.CommitIndex())
	}
}

// A commit reaches an idle follower by push, long before CommitTimeout would tell it, in most of many tries.
func TestPushReachesFollowers(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.bootstrapState()
	f := c.follower()
	c.register(f)
	fast, others := 0, 0
	for range 40 {
		start := time.Now()
		if _, err := f.Propose(c.ctx(), createZnode("/p", true)); err != nil {
			t.Fatal(err)
		}
		if time.Since(start) < commitTimeout/2 {
			fast++
		}
		index, _ := f.Hash()
		for _, n := range c.up() {
			must(t, n.WaitIndex(c.ctx(), index))
		}
		if time.Since(start) < commitTimeout/2 {
			others++
		}
	}
	if fast < 20 || others < 20 {
		t.Errorf("only %d of 40 replies on a follower came before half of CommitTimeout, and %d were seen everywhere", fast, others)
	}
}

// Stock raft's pipeline: after a refused answer nobody reads, and the sender hangs. Ours goes on.
func TestRefusedPipelineDoesNotBlock(t *testing.T) {
	t.Parallel()
	leader, follower := transports(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case r := <-follower.net.Consumer():
				r.Respond(&raft.AppendEntriesResponse{Term: 2}, nil)
			case <-t.Context().Done():
				return
			}
		}
	}()
	t.Cleanup(func() { <-done })
	q := &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: 3, ID: []byte("a")}, Term: 1, PrevLogEntry: 1, PrevLogTerm: 1}
	sends := func(p raft.AppendPipeline, within time.Duration) bool {
		defer func() { _ = p.Close() }()
		if _, err := p.AppendEntries(q, new(raft.AppendEntriesResponse)); err != nil {
			t.Fatal(err)
		}
		<-p.Consumer() // refused: raft's reader returns here
		ok := make(chan bool, 1)
		go func() {
			for range 20 {
				if _, err := p.AppendEntries(q, new(raft.AppendEntriesResponse)); err != nil {
					ok <- false
					return
				}
			}
			ok <- true
		}()
		select {
		case v := <-ok:
			return v
		case <-time.After(within):
			_ = p.Close()
			return <-ok && false
		}
	}
	raw, err := leader.net.AppendEntriesPipeline("b", follower.net.LocalAddr())
	must(t, err)
	if sends(raw, time.Second) {
		t.Error("the fault is gone from raft: the buffer may go too")
	}
	o := leader.open()
	ours, err := o.AppendEntriesPipeline("b", follower.net.LocalAddr())
	must(t, err)
	if !sends(ours, time.Minute) {
		t.Error("the buffered pipeline blocks")
	}
}

// A push passes entries that come after what it is about, and nothing else.
func TestTurn(t *testing.T) {
	ae := func(prev uint64, entries int) raft.RPC {
		return raft.RPC{Command: &raft.AppendEntriesRequest{PrevLogEntry: prev, Entries: make([]*raft.Log, entries)}}
	}
	vote := raft.RPC{Command: &raft.RequestVoteRequest{}}
	for name, c := range map[string]struct {
		waiting []raft.RPC
		want    int
	}{
		"nobody":                         {nil, -1},
		"one":                            {[]raft.RPC{ae(7, 2)}, 0},
		"a push of what is there":        {[]raft.RPC{ae(7, 2), ae(7, 0)}, 1},
		"a push of what the entries are": {[]raft.RPC{ae(7, 2), ae(9, 0)}, 0},
		"of what the first ones are":     {[]raft.RPC{ae(7, 1), ae(8, 1), ae(8, 0)}, 0},
		"past two":                       {[]raft.RPC{ae(7, 1), ae(8, 1), ae(7, 0)}, 2},
		"the second push":                {[]raft.RPC{ae(7, 1), ae(9, 0), ae(6, 0)}, 2},
		"a heartbeat":                    {[]raft.RPC{ae(7, 1), ae(0, 0)}, 1},
		"a vote keeps its place":         {[]raft.RPC{vote, ae(7, 0)}, 0},
		"and is not passed":              {[]raft.RPC{ae(7, 1), vote, ae(7, 0)}, 0},
	} {
		if got := turn(c.waiting); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
