package raftmeta

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"pgregory.net/rapid"
)

// wire is a connection to a follower whose answers come when the test has them come.
type wire struct {
	mu      sync.Mutex
	sent    []*raft.AppendEntriesRequest
	refuse  error
	hold    chan struct{} // nil: sends at once
	answers chan raft.AppendFuture
}

type answered struct {
	raft.AppendFuture
	q *raft.AppendEntriesRequest
}

func (a answered) Request() *raft.AppendEntriesRequest { return a.q }

func (w *wire) AppendEntries(q *raft.AppendEntriesRequest, _ *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	w.mu.Lock()
	hold := w.hold
	w.mu.Unlock()
	if hold != nil {
		<-hold
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuse != nil {
		return nil, w.refuse
	}
	w.sent = append(w.sent, q)
	return answered{q: q}, nil
}

func (w *wire) Consumer() <-chan raft.AppendFuture { return w.answers }
func (w *wire) Close() error                       { return nil }

// spans says what was sent, as "after+entries".
func (w *wire) spans() (s []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range w.sent {
		s = append(s, fmt.Sprintf("%d+%d", q.PrevLogEntry, len(q.Entries)))
	}
	return s
}

func message(term, prev uint64, entries int) *raft.AppendEntriesRequest {
	q := &raft.AppendEntriesRequest{Term: term, PrevLogEntry: prev, LeaderCommitIndex: prev}
	for i := range entries {
		q.Entries = append(q.Entries, &raft.Log{Index: prev + 1 + uint64(i), Term: term})
	}
	return q
}

// What is sent ahead of raft goes over the wire once, and raft has its answer once, when it has asked.
func TestAhead(t *testing.T) { synctest.Test(t, aheadTest) }

func aheadTest(t *testing.T) {
	w := &wire{answers: make(chan raft.AppendFuture)}
	b := newPipeline(w)
	defer func() { must(t, b.Close()) }()
	next := 0 // of what was sent, to be answered
	answer := func() {
		w.answers <- answered{q: w.sent[next]}
		next++
		synctest.Wait()
	}
	asks := func(q *raft.AppendEntriesRequest) {
		t.Helper()
		_, err := b.AppendEntries(q, new(raft.AppendEntriesResponse))
		must(t, err)
		synctest.Wait()
	}
	sent := func(what string, want ...string) {
		t.Helper()
		if got := w.spans(); !slices.Equal(got[len(got)-len(want):], want) || len(got)-next > len(want) {
			t.Fatalf("%s: sent %v with %d answers, want %v unanswered", what, got, next, want)
		}
	}
	told := func(what string, want ...string) {
		t.Helper()
		var got []string
		for {
			select {
			case f := <-b.Consumer():
				got = append(got, fmt.Sprintf("%d+%d", f.Request().PrevLogEntry, len(f.Request().Entries)))
				continue
			default:
			}
			break
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%s: raft was told %v, want %v", what, got, want)
		}
	}
	b.ahead(message(1, 7, 1))
	sent("before raft has sent anything")
	asks(message(1, 7, 1))
	b.ahead(message(1, 8, 1))
	sent("while something is under way", "7+1")
	answer()
	told("its own", "7+1")
	for _, q := range []*raft.AppendEntriesRequest{message(2, 8, 1), message(1, 7, 1), message(1, 9, 1)} {
		b.ahead(q)
	}
	sent("another term, the entry before, the one after")
	b.ahead(message(1, 8, 1))
	sent("the next", "8+1")
	b.ahead(message(1, 9, 1))
	sent("and no second one", "8+1")
	answer()
	told("of what raft has not asked for")
	b.ahead(message(1, 9, 1))
	sent("nor when the first one is answered")
	asks(message(1, 8, 0))
	answer()
	told("its own in between", "8+0")
	asks(message(1, 8, 1))
	sent("raft's own is not sent again")
	told("the answer from before", "8+1")
	b.ahead(message(1, 9, 1))
	asks(message(1, 9, 1))
	sent("once", "9+1")
	told("before there is an answer")
	answer()
	told("the answer from after", "9+1")
	b.ahead(message(1, 10, 1))
	asks(message(1, 10, 2)) // two were written by then
	sent("with more than was sent ahead", "10+1", "10+2")
	answer()
	answer()
	told("both", "10+1", "10+2")
	b.ahead(message(1, 12, 1))
	asks(message(1, 9, 1)) // raft goes back: no reason is known, and it must not matter
	asks(message(1, 10, 3))
	answer()
	answer()
	answer()
	told("all", "12+1", "9+1", "10+3")
	if got := b.commit.Load(); got != 10 {
		t.Errorf("the last commit index sent is taken for %d", got)
	}
	w.refuse = errReopening
	b.ahead(message(1, 13, 1))
	w.refuse = nil
	if _, err := b.AppendEntries(message(1, 13, 1), nil); !errors.Is(err, errReopening) {
		t.Errorf("after a message that could not be sent: %v", err)
	}
	if got := b.commit.Load(); got != 10 {
		t.Errorf("what could not be sent counts as told: %d", got)
	}
}

// While a message of raft's own cannot be sent, nothing is sent ahead, and whoever would is not held.
func TestAheadNeverWaits(t *testing.T) { synctest.Test(t, aheadNeverWaits) }

func aheadNeverWaits(t *testing.T) {
	w := &wire{answers: make(chan raft.AppendFuture), hold: make(chan struct{})}
	b := newPipeline(w)
	go func() { _, _ = b.AppendEntries(message(1, 7, 1), nil) }()
	synctest.Wait()
	b.ahead(message(1, 8, 1))
	close(w.hold)
	synctest.Wait()
	if got := w.spans(); len(got) != 1 {
		t.Errorf("sent %v", got)
	}
	must(t, b.Close())
}

// Over a real connection, in whatever order raft writes, sends and reads: it is told once of each message, of none before it has sent
// up to there itself, and the follower gets each entry.
func TestAheadKeepsThePipeline(t *testing.T) {
	leader, follower := transports(t)
	term := uint64(0) // of one try: what a former one has left on its way is not its business
	rapid.Check(t, func(r *rapid.T) {
		term++
		p := leader.open()
		raw, err := p.AppendEntriesPipeline("b", follower.net.LocalAddr())
		must(t, err)
		defer func() { must(t, raw.Close()) }()
		have := uint64(1) // the follower's last entry
		done := make(chan struct{})
		var wg sync.WaitGroup
		end := sync.OnceFunc(func() {
			close(done)
			wg.Wait()
		})
		defer end()
		wg.Go(func() {
			for {
				select {
				case m := <-follower.net.Consumer():
					q := m.Command.(*raft.AppendEntriesRequest)
					a := &raft.AppendEntriesResponse{Term: q.Term, Success: q.PrevLogEntry <= have && q.Term == term}
					if a.Success {
						have = max(have, endOf(q))
					}
					m.Respond(a, nil)
				case <-done:
					return
				}
			}
		})
		sent, written, writing := uint64(1), uint64(1), false
		told, seen := uint64(1), map[string]bool{}
		ask := func(upTo uint64) {
			_, err := raw.AppendEntries(message(term, sent, int(upTo-sent)), new(raft.AppendEntriesResponse))
			must(t, err)
			sent = upTo
		}
		take := func(f raft.AppendFuture) {
			q := f.Request()
			name := fmt.Sprintf("%d+%d", q.PrevLogEntry, len(q.Entries))
			switch {
			case f.Error() != nil || !f.Response().Success:
				r.Fatalf("%s: %v, %+v", name, f.Error(), f.Response())
			case endOf(q) > sent:
				r.Fatalf("%s is answered, and raft has sent up to %d", name, sent)
			case len(q.Entries) > 0 && seen[name]:
				r.Fatalf("%s is answered twice", name)
			}
			seen[name], told = true, max(told, endOf(q))
		}
		ask(1)
		for range rapid.IntRange(1, 60).Draw(r, "steps") {
			switch rapid.SampledFrom([]string{"write", "written", "ask", "tick", "take"}).Draw(r, "step") {
			case "write":
				if !writing {
					p.sendAhead(message(term, written, 1))
					writing = true
				}
			case "written":
				if writing {
					written, writing = written+1, false
				}
			case "ask":
				ask(written)
			case "tick":
				ask(sent)
			case "take":
				select {
				case f := <-raw.Consumer():
					take(f)
				default:
				}
			}
		}
		ask(written)
		for told < written {
			take(<-raw.Consumer())
		}
		end()
		if have < written {
			r.Fatalf("the follower has %d entries, raft has written %d", have, written)
		}
	})
}

// What is told of a follower, and sent ahead to it, is the newest pipeline's, also when an older one ends after it was opened.
func TestNewestPipelineTells(t *testing.T) {
	leader, follower := transports(t)
	p := leader.open()
	open := func(commit uint64) raft.AppendPipeline {
		b, err := p.AppendEntriesPipeline("b", follower.net.LocalAddr())
		must(t, err)
		_, err = b.AppendEntries(message(1, commit, 0), new(raft.AppendEntriesResponse))
		must(t, err)
		return b
	}
	told := func(what string, want uint64) {
		t.Helper()
		if got := p.told("b"); got != want {
			t.Errorf("%s: told of %d, want %d", what, got, want)
		}
	}
	told("no pipeline", 0)
	first := open(7)
	told("the first", 7)
	second := open(5)
	told("the second", 5)
	must(t, first.Close())
	told("the second, when the first has ended", 5)
	must(t, second.Close())
	told("none, when both have", 0)
}

// The store says what comes before the entries that it is about to write, and says nothing when it does not know.
func TestAheadKnowsWhatIsBefore(t *testing.T) {
	h := newHealStore(raft.NewInmemStore(), nil)
	type before struct{ index, term uint64 }
	var told []before
	h.ahead = func(_ []*raft.Log, index, term uint64) { told = append(told, before{index, term}) }
	must(t, h.StoreLog(&raft.Log{Index: 1, Term: 1}))
	must(t, h.StoreLog(&raft.Log{Index: 2, Term: 3}))
	must(t, h.StoreLog(&raft.Log{Index: 3, Term: 3}))
	h.setSnapshot(snapRef{9, 4})
	must(t, h.StoreLog(&raft.Log{Index: 10, Term: 5}))
	want := []before{{0, 0}, {1, 1}, {2, 3}, {9, 4}} // nothing is before the first entry, and none is sent ahead then
	if len(told) != len(want) {
		t.Fatalf("told %v, want %v", told, want)
	}
	for i := range want {
		if told[i] != want[i] {
			t.Errorf("entry %d: told %v, want %v", i, told[i], want[i])
		}
	}
}

// The leader sends what raft would send, with the newest commit, and only what is small, a command, alone and of its term.
func TestAheadIsWhatRaftWouldSend(t *testing.T) {
	c := newCluster(t, 1, func(k *Config) { k.TickEvery = 10 * time.Second })
	c.bootstrapState()
	l := c.leader()
	term, last := l.leaderTerm(), l.inst.Load().r.LastIndex()
	sent := func(what string, want int, term, prev, prevTerm uint64, logs ...*raft.Log) *raft.AppendEntriesRequest {
		t.Helper()
		w := &wire{answers: make(chan raft.AppendFuture)}
		b := newPipeline(w)
		b.term, b.last = term, prev
		port := l.inst.Load().p
		port.fedMu.Lock()
		port.pipes["x"] = b
		port.fedMu.Unlock()
		l.aheadOf(logs, prev, prevTerm)
		must(t, b.Close())
		if len(w.sent) != want {
			t.Fatalf("%s: %d messages, want %d", what, len(w.sent), want)
		}
		if want == 0 {
			return nil
		}
		return w.sent[0]
	}
	command := func(index, term uint64, size int) *raft.Log {
		return &raft.Log{Index: index, Term: term, Type: raft.LogCommand, Data: make([]byte, size)}
	}
	next := command(last+1, term, aheadMost)
	q := sent("a command", 1, term, last, 1, next)
	h := l.tr.header()
	if q.Term != term || q.PrevLogEntry != last || q.PrevLogTerm != 1 || !slices.Equal(q.Entries, []*raft.Log{next}) ||
		q.LeaderCommitIndex != last || q.ProtocolVersion != h.ProtocolVersion || string(q.Addr) != string(h.Addr) || string(q.ID) != string(h.ID) {
		t.Errorf("sent %+v", q)
	}
	if q := sent("after an entry that is not committed", 1, term, last+1, term, command(last+2, term, 1)); q.LeaderCommitIndex != last {
		t.Errorf("commit %d, want %d", q.LeaderCommitIndex, last)
	}
	if q := sent("after one before the commit", 1, term, last-1, term, command(last, term, 1)); q.LeaderCommitIndex != last-1 {
		t.Errorf("commit %d, want %d", q.LeaderCommitIndex, last-1)
	}
	sent("a large one", 0, term, last, 1, command(last+1, term, aheadMost+1))
	sent("two", 0, term, last, 1, next, command(last+2, term, 1))
	sent("a configuration", 0, term, last, 1, &raft.Log{Index: last + 1, Term: term, Type: raft.LogConfiguration})
	sent("of another term", 0, term+1, last, 1, command(last+1, term+1, 1))
	sent("the first", 0, term, 0, 1, command(1, term, 1))
	sent("after one of no known term", 0, term, last, 0, next)
}

// A leader that dies before it has written what it sent ahead: the others have it, and it is decided as any entry of a dead leader
// that a quorum holds.
func TestAheadOutlivesItsLeader(t *testing.T) {
	t.Parallel()
	for range 10 {
		if aheadThenStop(t) {
			return
		}
	}
	t.Fatal("the leader always wrote something by itself in between")
}

func aheadThenStop(t *testing.T) bool {
	c := newCluster(t, 3, func(k *Config) { k.TickEvery = 10 * time.Second })
	c.bootstrapState()
	c.converge()
	l := c.leader()
	term, last := l.leaderTerm(), l.inst.Load().r.LastIndex()
	var prev raft.Log
	must(t, l.stores.log.GetLog(last, &prev))
	raw, err := encodeCommand(createZnode("/ahead", false))
	must(t, err)
	entry := []*raft.Log{{Index: last + 1, Term: term, Type: raft.LogCommand, Data: appendCommand(nil, raw, 0)}}
	mine := func() bool { return l.leaderTerm() == term && l.inst.Load().r.LastIndex() == last }
	eventually(t, "both followers have it", func() bool {
		if !mine() {
			return true
		}
		l.aheadOf(entry, last, prev.Term)
		n := 0
		for _, f := range c.up() {
			if f.id != l.id && f.inst.Load().r.LastIndex() == last+1 {
				n++
			}
		}
		return n == 2
	})
	// It carries no commit index above the entry before: a follower applies up to its last entry, and nobody has decided this one.
	for _, f := range c.up() {
		if got := f.inst.Load().r.CommitIndex(); got > last && mine() {
			t.Fatalf("%s counts entry %d as committed", f.id, got)
		}
	}
	if !mine() {
		c.stopAll()
		return false
	}
	f := c.follower()
	idle := newPipeline(&wire{answers: make(chan raft.AppendFuture)})
	idle.term, idle.last = term, last
	port := f.inst.Load().p
	port.fedMu.Lock()
	port.pipes["of a former term"] = idle
	port.fedMu.Unlock()
	f.aheadOf(entry, last, prev.Term)
	if idle.early != nil {
		t.Error("a follower sends entries ahead")
	}
	must(t, idle.Close())
	if got := l.inst.Load().r.CommitIndex(); got > last {
		t.Fatalf("the leader counts entry %d as committed, and has not written it", got)
	}
	c.stop(l.id)
	c.elect(l.id)
	eventually(t, "the others apply it", func() bool {
		for _, f := range c.up() {
			if _, ok := f.View().Znode("/ahead"); !ok {
				return false
			}
		}
		return true
	})
	c.stopAll()
	return true
}
