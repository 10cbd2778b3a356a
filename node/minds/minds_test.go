package minds

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/barnabas-mq/barnabas/cluster"
	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/lease"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

type bubbleClock struct{ start time.Time }

func (c bubbleClock) Now() time.Time      { return time.Now() }
func (c bubbleClock) Boot() time.Duration { return time.Hour + time.Since(c.start) }

// rig is a state, the controller over it, and a broker process each that reports while it is up.
type rig struct {
	t  *testing.T
	mu sync.Mutex
	st *state.State
	v  *state.View
	n  uint64

	c       *Controller
	deaths  *Deaths
	col     *cluster.Collector
	up      map[id.DirectoryID]bool
	refused bool // proposals' outcomes stay unknown
	cancel  context.CancelFunc
	wg      sync.WaitGroup
}

func newRig(t *testing.T, brokers int) *rig {
	clk := bubbleClock{time.Now()}
	r := &rig{t: t, st: state.New(), up: map[id.DirectoryID]bool{}}
	prove := func(context.Context) (id.Term, time.Duration, error) { return 1, time.Hour, nil }
	r.col = cluster.NewCollector(cluster.CollectorConfig{Clock: clk, ClockMs: func() int64 { return 0 }, Prove: func(ctx context.Context, _ id.DirectoryID, _ id.Term) (id.Term, error) {
		term, _, err := prove(ctx)
		return term, err
	}})
	r.c = NewController(ControllerConfig{Clock: clk, Proposer: r, Views: r, Prove: prove, Collector: r.col,
		Suspect: func(b id.BrokerID) { r.deaths.Suspect(b) }})
	r.deaths = NewDeaths(DeathsConfig{Views: r, Dead: r.c.Dead, Probe: func(_ context.Context, d id.DirectoryID) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.up[d] {
			return nil
		}
		return fmt.Errorf("dial: %w", cluster.ErrRefused)
	}})
	r.apply(&statepb.Command{Body: &statepb.Command_Bootstrap{Bootstrap: &statepb.Bootstrap{ClusterId: "c", Level: 1}}})
	for b := 1; b <= brokers; b++ {
		r.register(id.BrokerID(b))
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	r.wg.Go(func() { r.deaths.Run(ctx) })
	r.wg.Go(func() { r.c.Run(ctx, 1) })
	r.wg.Go(func() { r.report(ctx) })
	return r
}

func (r *rig) stop() {
	r.cancel()
	r.wg.Wait()
}

func (r *rig) View() *state.View {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.v
}

func (r *rig) apply(c *statepb.Command) *statepb.Result {
	c.Version, c.Level = state.CommandVersion, 1
	data, err := proto.Marshal(&statepb.Entry{Commands: []*statepb.Command{c}})
	if err != nil {
		r.t.Error(err)
	}
	r.mu.Lock()
	r.n++
	a := r.st.Apply(id.Index(r.n), 1, data)
	r.mu.Unlock()
	r.c.Applied(a.View, a.Changes) // subscribers first, as raftmeta does
	r.mu.Lock()
	r.v = a.View
	r.mu.Unlock()
	return a.Settled[0].Result
}

func (r *rig) register(b id.BrokerID) {
	d := fmt.Sprint("d", b)
	r.mu.Lock()
	r.up[id.DirectoryID(d)] = true
	r.mu.Unlock()
	res := r.apply(&statepb.Command{Body: &statepb.Command_RegisterBroker{RegisterBroker: &statepb.RegisterBroker{
		DirectoryId: d, Nonce: fmt.Sprint(time.Now()), WantedId: int32(b), MinLevel: 1, MaxLevel: 1}}})
	if res.Code != statepb.Code_OK {
		r.t.Error(res)
	}
}

func (r *rig) ProposeInTerm(ctx context.Context, _ id.Term, c *statepb.Command) (*statepb.Result, error) {
	r.mu.Lock()
	refused := r.refused
	r.mu.Unlock()
	if refused {
		return nil, errors.New("unknown")
	}
	return r.apply(c), nil
}

// report has every broker that is up report, as its Reporter would.
func (r *rig) report(ctx context.Context) {
	tick := time.NewTicker(lease.ReportEvery)
	defer tick.Stop()
	for {
		r.View().Brokers(func(b *state.Broker) bool {
			r.mu.Lock()
			up := r.up[b.Directory]
			r.mu.Unlock()
			r.c.mu.Lock()
			t := r.c.term
			r.c.mu.Unlock()
			if up && t != nil {
				t.Heard(&cluster.Report{Broker: b.ID, Epoch: b.Epoch, Applied: r.View().Index()})
			}
			return true
		})
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (r *rig) liveness(b id.BrokerID) state.Liveness {
	row, ok := r.View().Broker(b)
	if !ok {
		r.t.Fatal("no broker", b)
	}
	return row.Liveness
}

func (r *rig) set(d id.DirectoryID, up bool) {
	r.mu.Lock()
	r.up[d] = up
	r.mu.Unlock()
}

func TestDeadBrokerIsFencedByProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3)
		defer r.stop()
		time.Sleep(5 * time.Second)
		for b := range id.BrokerID(3) {
			if r.liveness(b+1) != state.Live {
				t.Fatal("a healthy broker was fenced", b+1)
			}
		}
		r.set("d2", false)
		r.deaths.PeerLost(cluster.Peer{Member: true, Identity: cluster.Identity{Broker: 2}})
		synctest.Wait()
		if r.liveness(2) != state.Fenced {
			t.Fatal("not fenced at once on a lost connection")
		}
		r.set("d3", false) // nobody notices a connection: silence makes it a suspect
		time.Sleep(time.Second)
		if r.liveness(3) != state.Fenced || r.liveness(1) != state.Live {
			t.Fatal("not fenced by a probe")
		}
		r.register(2)
		time.Sleep(5 * time.Second)
		if r.liveness(2) != state.Live {
			t.Fatal("the next incarnation was fenced")
		}
	})
}

func TestUnknownOutcomesAreDecidedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2)
		defer r.stop()
		time.Sleep(time.Second)
		r.mu.Lock()
		r.refused = true
		r.mu.Unlock()
		r.set("d2", false)
		time.Sleep(5 * time.Second)
		if r.liveness(2) != state.Live {
			t.Fatal("fenced without a command")
		}
		r.mu.Lock()
		r.refused = false
		r.mu.Unlock()
		time.Sleep(time.Second)
		if r.liveness(2) != state.Fenced {
			t.Fatal("not decided again")
		}
	})
}

func TestGoodbyeReturnsWhenCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2)
		time.Sleep(time.Second)
		row, _ := r.View().Broker(2)
		payload := func(epoch id.BrokerEpoch) []byte {
			return []byte{0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, byte(epoch)}
		}
		_, err := r.col.HandleGoodbye(t.Context(), cluster.Peer{}, payload(row.Epoch))
		synctest.Wait() // it returns from within the subscriber; the view is readable after that
		if err != nil || r.liveness(2) != state.Left {
			t.Fatal(err, r.liveness(2))
		}
		if _, err := r.col.HandleGoodbye(t.Context(), cluster.Peer{}, payload(row.Epoch)); err != nil {
			t.Fatal("a repeated goodbye:", err)
		}
		r.mu.Lock()
		r.refused = true
		r.mu.Unlock()
		row, _ = r.View().Broker(1)
		result := make(chan error, 1)
		go func() {
			_, err := r.col.HandleGoodbye(context.Background(), cluster.Peer{}, []byte{0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, byte(row.Epoch)})
			result <- err
		}()
		time.Sleep(time.Second)
		r.stop()
		if err := <-result; cluster.CodeOf(err) != cluster.CodeNotLeader {
			t.Fatal("goodbye at the end of a term:", err)
		}
		if err := r.c.Move(id.TopicPartition{}, 1); !errors.Is(err, ErrNotLeader) {
			t.Fatal(err)
		}
	})
}

// An entry that was given to Applied before the term began, but is not yet in View, is not missed.
func TestNoEntryFallsBetweenViewAndTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		r.stop()
		before := r.View()
		r.register(2)
		r.mu.Lock()
		r.v = before // Views still shows the former
		r.mu.Unlock()
		ctx, cancel := context.WithCancel(context.Background())
		r.wg.Go(func() { r.c.Run(ctx, 1) })
		synctest.Wait()
		r.c.mu.Lock()
		quiet := r.c.term.mind.Quiet(r.c.cfg.Clock.Boot() + time.Hour)
		r.c.mu.Unlock()
		if !slices.Contains(quiet, 2) {
			t.Error("broker 2 is not watched")
		}
		cancel()
		r.wg.Wait()
	})
}

func TestProbeStopsAtAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		defer r.stop()
		probes, dead := 0, 0
		d := NewDeaths(DeathsConfig{Views: r, Dead: func(id.BrokerID, id.BrokerEpoch) { dead++ }, Probe: func(context.Context, id.DirectoryID) error {
			if probes++; probes == 3 {
				return nil
			}
			return cluster.ErrUnreachable
		}, Waits: func() []id.BrokerID { return []id.BrokerID{1, 77} }})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			d.Run(ctx)
		}()
		time.Sleep(waitsEvery + 150*time.Millisecond)
		cancel()
		<-done
		if probes != 3 || dead != 0 {
			t.Fatal(probes, dead)
		}
	})
}

type stillClock time.Duration

func (stillClock) Now() time.Time        { return time.Time{} }
func (c stillClock) Boot() time.Duration { return time.Duration(c) }

// The controller decides on the beat, before it when something falls due, and not at once again when its timer was early.
func TestDecidesOnTheBeat(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct{ boot, next, want time.Duration }{
		{1000 * ms, 200 * ms, 200 * ms},
		{1086 * ms, 200 * ms, 114 * ms},
		{1086 * ms, 30 * ms, 30 * ms},
		{1199 * ms, 200 * ms, 200 * ms},
		{1000 * ms, 0, ms},
	} {
		tm := &term{d: &Controller{cfg: ControllerConfig{Clock: stillClock(c.boot)}}}
		if got := tm.pause(c.next); got != c.want {
			t.Errorf("at %v, due within %v: %v, want %v", c.boot, c.next, got, c.want)
		}
	}
}
