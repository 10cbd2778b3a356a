package cluster

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/barnabas-mq/barnabas/internal/clock"
	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/lease"
)

// fakeClock runs with package time, so that synctest moves it.
type fakeClock struct{ start time.Time }

func (c fakeClock) Now() time.Time      { return time.Now() }
func (c fakeClock) Boot() time.Duration { return time.Hour + time.Since(c.start) }

// fakeLeader is the caller of a reporter and the collector behind it.
type fakeLeader struct {
	mu       sync.Mutex
	col      *Collector
	down     bool
	proofs   bool
	grants   bool
	answerIn time.Duration
	heard    []Report
	left     []id.BrokerID
	changed  chan struct{}
	leader   id.DirectoryID
}

// handClock stands still until it is set.
type handClock struct{ now time.Duration }

func (c *handClock) Now() time.Time      { return time.Unix(0, 0) }
func (c *handClock) Boot() time.Duration { return c.now }

func newFakeLeader(c clock.Clock) *fakeLeader {
	f := &fakeLeader{proofs: true, grants: true, changed: make(chan struct{}), leader: "l"}
	f.col = NewCollector(CollectorConfig{Clock: c, ClockMs: func() int64 { return 777 }, Prove: func(context.Context, id.DirectoryID, id.Term) (id.Term, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if !f.proofs {
			return 0, errors.New("no quorum")
		}
		return 3, nil
	}})
	f.col.Begin(3, f)
	return f
}

func (f *fakeLeader) Call(ctx context.Context, _ Target, method string, p []byte) ([]byte, error) {
	f.mu.Lock()
	down, wait := f.down, f.answerIn
	f.mu.Unlock()
	if down {
		return nil, ErrUnreachable
	}
	h := f.col.HandleReport
	if method == MethodGoodbye {
		h = f.col.HandleGoodbye
	}
	b, err := h(ctx, Peer{}, p)
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return nil, ctxError(ctx, method)
	}
	return b, err
}

func (f *fakeLeader) Leader() (id.DirectoryID, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.leader, f.changed
}

func (f *fakeLeader) Heard(r *Report) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.heard = append(f.heard, *r)
	return r.Epoch == 9
}

func (f *fakeLeader) MayGrant(*Report) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.grants
}

func (f *fakeLeader) Goodbye(_ context.Context, b id.BrokerID, _ id.BrokerEpoch) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left = append(f.left, b)
	return nil
}

func (f *fakeLeader) set(change func(*fakeLeader)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func inBubble(t *testing.T, body func(t *testing.T, f *fakeLeader, r *Reporter, c fakeClock, cfg *ReporterConfig)) {
	synctest.Test(t, func(t *testing.T) {
		c := fakeClock{time.Now()}
		f := newFakeLeader(c)
		cfg := &ReporterConfig{Caller: f, Clock: c, Self: func() (id.BrokerID, id.BrokerEpoch) { return 4, 9 }, Leader: f.Leader,
			Applied: func() id.Index { return 55 }}
		r := NewReporter(*cfg)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.Run(ctx)
		}()
		body(t, f, r, c, cfg)
		cancel()
		<-done
	})
}

func TestLeaseIsHeldWhileReportsAreAnswered(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeLeader, r *Reporter, c fakeClock, _ *ReporterConfig) {
		held := func() bool { _, ok := r.Lease().Held(c.Boot()); return ok }
		time.Sleep(10 * time.Second)
		if !held() {
			t.Fatal("not held")
		}
		if ms, ok := r.ClusterClockMs(); !ok || ms < 777 || ms > 777+250 {
			t.Fatal("cluster clock", ms, ok)
		}
		for name, cut := range map[string]func(*fakeLeader){
			"leader down": func(f *fakeLeader) { f.down = true },
			"no proof":    func(f *fakeLeader) { f.proofs = false },
			"not granted": func(f *fakeLeader) { f.grants = false },
		} {
			last, _ := r.LastAcked()
			f.set(cut)
			time.Sleep(last + lease.Duration - c.Boot())
			synctest.Wait()
			if held() {
				t.Errorf("%s: held %v after the last answered report was sent", name, lease.Duration)
			}
			f.set(func(f *fakeLeader) { f.down, f.proofs, f.grants = false, true, true })
			time.Sleep(2 * lease.ReportEvery)
			if !held() {
				t.Errorf("%s: not held again", name)
			}
		}
	})
}

func TestLateAnswersCountFromSending(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeLeader, r *Reporter, c fakeClock, _ *ReporterConfig) {
		f.set(func(f *fakeLeader) { f.answerIn = time.Second })
		time.Sleep(10 * time.Second)
		last, _ := r.LastAcked()
		if age := c.Boot() - last; age < time.Second || age > time.Second+2*lease.ReportEvery {
			t.Fatalf("the lease counts from %v ago", age)
		}
	})
}

func TestNewLeaderIsToldAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeLeader, r *Reporter, c fakeClock, _ *ReporterConfig) {
		time.Sleep(time.Second + lease.ReportEvery/2)
		var before int
		f.set(func(f *fakeLeader) {
			before = len(f.heard)
			close(f.changed)
			f.changed, f.leader = make(chan struct{}), "m"
		})
		synctest.Wait()
		f.set(func(f *fakeLeader) {
			if len(f.heard) != before+1 {
				t.Error("no report at the change of leader")
			}
			if h := f.heard[0]; h.Broker != 4 || h.Epoch != 9 || h.Applied != 55 {
				t.Errorf("%+v", h)
			}
		})
	})
}

func TestLeaveEndsTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeLeader, r *Reporter, c fakeClock, _ *ReporterConfig) {
		time.Sleep(time.Second)
		f.set(func(f *fakeLeader) { f.down = true })
		go func() {
			time.Sleep(3 * time.Second)
			f.set(func(f *fakeLeader) { f.down = false })
		}()
		if err := r.Leave(context.Background()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // reports go on and grant nothing any more
		if _, held := r.Lease().Held(c.Boot()); held || len(f.left) != 1 || f.left[0] != 4 {
			t.Fatal(held, f.left)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		f.set(func(f *fakeLeader) { f.down = true })
		if err := r.Leave(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrUnreachable) {
			t.Fatal(err)
		}
	})
}

func TestTouchesAreAnsweredOnlyWithProof(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := fakeClock{time.Now()}
		f := newFakeLeader(c)
		answered := 0
		r := NewReporter(ReporterConfig{Caller: f, Clock: c, Self: func() (id.BrokerID, id.BrokerEpoch) { return 4, 9 }, Leader: f.Leader,
			Applied:  func() id.Index { return 1 },
			Sessions: func() ([]id.SessionID, func()) { return []id.SessionID{7, 8}, func() { answered++ } }})
		if err := r.report(t.Context(), "l", 4, 9); err != nil || answered != 1 || !reflect.DeepEqual(f.heard[0].Sessions, []id.SessionID{7, 8}) {
			t.Fatal(err, answered, f.heard)
		}
		f.proofs = false
		if err := r.report(t.Context(), "l", 4, 9); CodeOf(err) != CodeNotLeader || answered != 1 {
			t.Fatal(err, answered)
		}
		f.proofs = true
		if err := r.report(t.Context(), "l", 4, 8); CodeOf(err) != CodeRefusedReport || answered != 1 {
			t.Fatal(err, answered)
		}
		f.col.End(3)
		if err := r.report(t.Context(), "l", 4, 9); CodeOf(err) != CodeNotLeader {
			t.Fatal(err)
		}
	})
}

// The leader's registry ends equal to the broker's whatever is lost on the way: who is open and closed, and when a fetch was that is not
// the latest of one that goes on.
func TestRegistryFollows(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := &handClock{now: time.Hour}
		f := newFakeLeader(c)
		type line struct {
			Fetch
			last time.Duration
		}
		have := map[FetchKey]line{}
		var r *Reporter
		r = NewReporter(ReporterConfig{Caller: f, Clock: c, Self: func() (id.BrokerID, id.BrokerEpoch) { return 4, 9 }, Leader: f.Leader,
			Applied: func() id.Index { return 1 }, Fetches: func() (out []Fetch) {
				r.Lease() // whoever is asked may want to know
				for _, x := range have {
					x.Age = c.now - x.last
					out = append(out, x.Fetch)
				}
				return out
			}})
		report := func() error { return r.report(context.Background(), "l", 4, 9) }
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			k := FetchKey{uint64(rapid.IntRange(1, 4).Draw(rt, "conn")), id.TopicPartition{Topic: "t", Partition: int32(rapid.IntRange(0, 3).Draw(rt, "p"))}}
			switch rapid.IntRange(0, 7).Draw(rt, "what") {
			case 0, 1:
				if !have[k].Closed {
					have[k] = line{Fetch{Conn: k.Conn, ClientID: fmt.Sprint("c", k.Conn), Host: "a", TopicPartition: k.TopicPartition}, c.now}
				}
			case 2:
				delete(have, k)
			case 6:
				if x, ok := have[k]; ok {
					x.Closed, x.End = true, x.End+5
					have[k] = x
				}
			case 7:
				c.now += time.Duration(rapid.IntRange(1, 7000).Draw(rt, "ms")) * time.Millisecond
			case 3:
				_ = report()
			case 4: // the answer is lost
				f.proofs = false
				_ = report()
				f.proofs = true
			case 5: // another term on the same node
				f.col.Begin(3, f)
			}
		}
		for range 3 { // a lost change, a reset, the whole
			if err := report(); err != nil {
				rt.Fatal(err)
			}
		}
		n := 0
		for p := range int32(4) {
			for _, x := range f.col.Fetching(id.TopicPartition{Topic: "t", Partition: p}) {
				n++
				w, ok := have[FetchKey{x.Conn, x.TopicPartition}]
				if !ok || w.ClientID != x.ClientID || w.Closed != x.Closed || w.End != x.End || x.Broker != 4 {
					rt.Fatalf("the leader has %+v", x)
				}
				// What one that goes on did in the last moments may not be known yet.
				exact := w.Closed || c.now-w.last > registryIdle
				if late := w.last - x.Last; late < 0 || exact && late > 0 {
					rt.Fatalf("the leader has %+v, its last fetch was at %v, it is %v", x, w.last, c.now)
				}
			}
		}
		if n != len(have) {
			rt.Fatalf("the leader has %d lines, the broker %d", n, len(have))
		}
	})
}

// A registry that is too large for one report is told in several, in its order, and the lease is held meanwhile.
func TestLargeRegistryIsToldInParts(t *testing.T) {
	c := &handClock{now: time.Hour}
	f := newFakeLeader(c)
	var lines []Fetch
	for i := range 30_000 {
		lines = append(lines, Fetch{Conn: uint64(i + 1), ClientID: strings.Repeat("x", 255), Host: "h", Closed: true, TopicPartition: id.TopicPartition{Topic: "t"}})
	}
	r := NewReporter(ReporterConfig{Caller: sized{t, f}, Clock: c, Self: func() (id.BrokerID, id.BrokerEpoch) { return 4, 9 }, Leader: f.Leader,
		Applied: func() id.Index { return 1 }, Fetches: func() []Fetch { return lines }})
	reports := 0
	for told := 0; told < len(lines); reports++ {
		if err := r.report(t.Context(), "l", 4, 9); err != nil {
			t.Fatal(err)
		}
		now := f.col.Fetching(id.TopicPartition{Topic: "t"})
		if len(now) <= told {
			t.Fatalf("%d lines of %d after report %d, as before it", told, len(lines), reports+1)
		}
		told = len(now)
		for _, x := range now {
			if x.Conn > uint64(told) {
				t.Fatalf("line %d is told before others: %d are", x.Conn, told)
			}
		}
		c.now += lease.ReportEvery
	}
	if _, held := r.Lease().Held(c.now); !held || reports < 2 {
		t.Errorf("lease held %v after %d reports", held, reports)
	}
}

// sized refuses what the port would.
type sized struct {
	t *testing.T
	Caller
}

func (s sized) Call(ctx context.Context, to Target, method string, p []byte) ([]byte, error) {
	if len(p) > registryBytes+1<<10 {
		s.t.Errorf("a report of %d bytes", len(p))
	}
	return s.Caller.Call(ctx, to, method, p)
}

func FuzzDecodeReport(f *testing.F) {
	f.Add((&Report{Broker: 1, Epoch: 2, Applied: 3, Voted: 7, Sessions: []id.SessionID{4}, RegistrySeq: 5,
		Fetches: []Fetch{{Conn: 6, ClientID: "c", Host: "a", TopicPartition: id.TopicPartition{Topic: "t", Partition: 7}, Age: time.Second, Closed: true, End: 9}},
		Gone:    []FetchKey{{8, id.TopicPartition{Topic: "u"}}}}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeReport(b)
		if err != nil {
			return
		}
		again, err := decodeReport(r.encode())
		if err != nil || !reflect.DeepEqual(r, again) {
			t.Fatalf("%+v\n%+v\n%v", r, again, err)
		}
	})
}

// The vote in a report reaches the proof, with the directory that sent it.
func TestReportCarriesVote(t *testing.T) {
	var voter id.DirectoryID
	var voted id.Term
	col := NewCollector(CollectorConfig{Clock: fakeClock{time.Now()}, ClockMs: func() int64 { return 1 },
		Prove: func(_ context.Context, v id.DirectoryID, t id.Term) (id.Term, error) {
			voter, voted = v, t
			return 9, nil
		}})
	col.Begin(9, grantAll{})
	raw, err := col.HandleReport(context.Background(), Peer{Identity: Identity{Directory: "d"}}, (&Report{Broker: 1, Epoch: 2, Voted: 9}).encode())
	if err != nil || voter != "d" || voted != 9 {
		t.Fatalf("asked for the vote of %q in term %d: %v", voter, voted, err)
	}
	if r, err := decodeReportReply(raw); err != nil || !r.Granted {
		t.Fatalf("%+v %v", r, err)
	}
}

type grantAll struct{}

func (grantAll) Heard(*Report) bool                                         { return true }
func (grantAll) MayGrant(*Report) bool                                      { return true }
func (grantAll) Goodbye(context.Context, id.BrokerID, id.BrokerEpoch) error { return nil }

// runReporter runs a reporter of its own in a bubble for some time.
func runReporter(f *fakeLeader, cfg ReporterConfig, steps ...func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	r := NewReporter(cfg)
	go func() {
		defer close(done)
		_ = r.Run(ctx)
	}()
	for _, step := range steps {
		step()
	}
	cancel()
	<-done
}

// A voter must not go on voting for a leader that does not answer: the next leader counts from the last vote.
func TestVotesOnlyAfterAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := fakeClock{time.Now()}
		f := newFakeLeader(c)
		var votes atomic.Int64
		cfg := ReporterConfig{Caller: f, Clock: c, Self: func() (id.BrokerID, id.BrokerEpoch) { return 4, 9 }, Leader: f.Leader,
			Applied: func() id.Index { return 55 }, Vote: func() id.Term {
				votes.Add(1)
				return 3
			}}
		runReporter(f, cfg, func() {
			time.Sleep(5*lease.ReportEvery + lease.ReportEvery/2)
			f.mu.Lock()
			defer f.mu.Unlock()
			if votes.Load() < 4 || f.heard[0].Voted != 0 || f.heard[len(f.heard)-1].Voted != 3 {
				t.Errorf("%d votes in %d answered reports, first %d, last %d", votes.Load(), len(f.heard), f.heard[0].Voted, f.heard[len(f.heard)-1].Voted)
			}
		}, func() {
			f.set(func(f *fakeLeader) { f.answerIn = time.Hour }) // frozen
			votes.Store(0)
			time.Sleep(20 * lease.ReportEvery)
			if votes.Load() > 1 {
				t.Errorf("%d votes for a leader that does not answer", votes.Load())
			}
		}, func() {
			f.set(func(f *fakeLeader) { f.answerIn = 0 })
			votes.Store(0)
			time.Sleep(10 * lease.ReportEvery)
			if votes.Load() < 5 {
				t.Errorf("%d votes in ten reports after the leader is back", votes.Load())
			}
		})
	})
}

// The leader's reports to itself, each with a proof round, are rarer, and as frequent as the others when one fails.
func TestReportsToItselfAreRarer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := fakeClock{time.Now()}
		f := newFakeLeader(c)
		cfg := ReporterConfig{Caller: f, Clock: c, Directory: "l", Self: func() (id.BrokerID, id.BrokerEpoch) { return 4, 9 }, Leader: f.Leader,
			Applied: func() id.Index { return 55 }}
		count := func(d time.Duration) int {
			f.set(func(f *fakeLeader) { f.heard = nil })
			time.Sleep(d)
			f.mu.Lock()
			defer f.mu.Unlock()
			return len(f.heard)
		}
		runReporter(f, cfg, func() {
			if n := count(30 * lease.ReportEvery); n < 9 || n > 12 {
				t.Errorf("%d reports to itself in 30 beats, want one of three", n)
			}
		}, func() {
			f.set(func(f *fakeLeader) { f.proofs = false })
			if n := count(30 * lease.ReportEvery); n < 25 {
				t.Errorf("%d reports to itself in 30 beats without a proof, want one each", n)
			}
		})
	})
}
