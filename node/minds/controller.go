// Package minds drives the decisions of the Raft leader's controller (raftmeta/controller), and finds proof of brokers'
// deaths on every node.
//
// Goroutines: Controller.Run has one that decides and one per command that is being proposed; Deaths.Run one that listens
// and one per broker that is being probed. Both return when all of theirs have ended.
package minds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/barnabas-mq/barnabas/cluster"
	"github.com/barnabas-mq/barnabas/internal/clock"
	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/controller"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// retryPause is before what failed is tried again within a term.
const retryPause = 50 * time.Millisecond

// ErrNotLeader: this node does not run the controller; ask the Raft leader.
var ErrNotLeader = errors.New("this node does not run the controller")

// TermProposer proposes a command of a mind: in that term only, never forwarded; it returns after local apply. An error
// means that the outcome is unknown, or that the term has ended.
type TermProposer interface {
	ProposeInTerm(ctx context.Context, term id.Term, c *statepb.Command) (*statepb.Result, error)
}

// Views reads the local state.
type Views interface{ View() *state.View }

// ControllerConfig is what a Controller needs; all fields but Suspect and Log are required.
type ControllerConfig struct {
	Clock    clock.Clock
	Proposer TermProposer
	Views    Views
	// Prove returns the term that a quorum of voters confirmed in a round that began after the call, and the shortest time
	// since one of them confirmed an earlier term.
	Prove     func(ctx context.Context) (term id.Term, sinceOlder time.Duration, err error)
	Collector *cluster.Collector
	// Suspect is told of brokers that are silent: whether they are dead is worth a probe. It must not block.
	Suspect func(id.BrokerID)
	Log     *slog.Logger
}

// Controller runs raftmeta/controller while this node leads.
type Controller struct {
	cfg ControllerConfig

	mu   sync.Mutex
	last *state.View // the last that Applied brought: the view of Views may be an entry behind it
	term *term       // nil: this node does not lead
}

// term is one term's decisions.
type term struct {
	d    *Controller
	n    id.Term
	ctx  context.Context
	wake chan struct{} // buffered 1
	wg   sync.WaitGroup

	// behind Controller.mu
	mind   *controller.Controller
	fenced chan struct{} // closed and replaced when a broker was fenced
}

var _ cluster.Ledger = (*term)(nil)

// NewController starts nothing.
func NewController(cfg ControllerConfig) *Controller {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Suspect == nil {
		cfg.Suspect = func(id.BrokerID) {}
	}
	return &Controller{cfg: cfg}
}

// Applied takes in an applied entry; the node calls it for each, in order, whether or not this node leads. It does not wait.
func (d *Controller) Applied(v *state.View, changes []state.Change) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last = v
	if d.term == nil {
		return
	}
	d.term.mind.Applied(v, changes, d.cfg.Clock.Boot())
	wake := false
	for i := range changes {
		switch changes[i].Kind {
		case state.BrokerFenced:
			close(d.term.fenced)
			d.term.fenced = make(chan struct{})
			wake = true
		case state.BrokerRegistered, state.BrokerShown, state.BrokerHidden, state.PartitionChanged, state.SessionCreated, state.SessionAttached:
			wake = true
		}
	}
	if wake {
		d.term.poke()
	}
}

// Reset takes in a restored state.
func (d *Controller) Reset(v *state.View) { d.Applied(v, nil) }

// Dead takes in proof that an incarnation of a broker is dead.
func (d *Controller) Dead(b id.BrokerID, epoch id.BrokerEpoch) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.term != nil && d.term.mind.Dead(b, epoch) {
		d.term.poke()
	}
}

// Move asks that a partition be led by a replica of its ISR, by its preferred leader with id.NoBroker; it returns when
// that is decided, not when it is done. Errors: ErrNotLeader, controller.ErrUnknown, controller.ErrNotReady.
func (d *Controller) Move(tp id.TopicPartition, to id.BrokerID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.term == nil {
		return ErrNotLeader
	}
	defer d.term.poke()
	return d.term.mind.Move(tp, to)
}

// Silence is for how long no broker has reported a touch of a ZooKeeper session; 0 when this node does not lead.
func (d *Controller) Silence(s id.SessionID) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.term == nil {
		return 0
	}
	return d.term.mind.Silence(s, d.cfg.Clock.Boot())
}

// Run decides until the term, ctx, has ended. It is called after the barrier of the term has been applied.
func (d *Controller) Run(ctx context.Context, n id.Term) {
	t := &term{d: d, n: n, ctx: ctx, wake: make(chan struct{}, 1), fenced: make(chan struct{})}
	youngest, ok := t.prove()
	if !ok {
		return
	}
	d.mu.Lock()
	v := d.cfg.Views.View()
	if d.last != nil && d.last.Index() > v.Index() {
		v = d.last
	}
	// Everything up to v was committed before this moment, elections of former terms among it.
	t.mind = controller.New(v, d.cfg.Clock.Boot(), youngest, v.Index())
	d.term = t
	d.mu.Unlock()
	d.cfg.Collector.Begin(n, t)
	d.cfg.Log.Info("controller starts", "term", n, "youngest proof of an older term", youngest)
	t.loop()
	d.cfg.Collector.End(n)
	d.mu.Lock()
	if d.term == t {
		d.term = nil
	}
	d.mu.Unlock()
	t.wg.Wait()
	d.cfg.Log.Info("controller ends", "term", n)
}

// prove waits for a quorum's confirmation of this term; false when the term ended.
func (t *term) prove() (youngest time.Duration, ok bool) {
	for t.ctx.Err() == nil {
		proven, since, err := t.d.cfg.Prove(t.ctx)
		if err == nil && proven == t.n {
			return since, true
		}
		t.d.cfg.Log.Debug("no proof of leadership yet", "term", t.n, "err", err)
		sleep(t.ctx, retryPause)
	}
	return 0, false
}

func (t *term) poke() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

func (t *term) loop() {
	d := t.d
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-t.wake:
		case <-timer.C:
		}
		d.mu.Lock()
		now := d.cfg.Clock.Boot()
		decisions, next := t.mind.Decide(now)
		quiet := t.mind.Quiet(now)
		d.mu.Unlock()
		for _, b := range quiet {
			d.cfg.Suspect(b)
		}
		for _, dec := range decisions {
			t.wg.Go(func() { t.propose(dec) })
		}
		timer.Reset(t.pause(next - now))
	}
}

// pause is when to decide again if it is due within next: on the beat of the reports, when this node is awake in any case, unless
// something falls due before.
func (t *term) pause(next time.Duration) time.Duration {
	if beat := clock.UntilBeat(t.d.cfg.Clock, controller.DecideEvery); beat >= controller.DecideEvery/8 { // else a timer that was early
		next = min(next, beat)
	}
	return max(next, time.Millisecond)
}

func (t *term) propose(dec controller.Decision) {
	t.d.log(dec.Command)
	res, err := t.d.cfg.Proposer.ProposeInTerm(t.ctx, t.n, dec.Command)
	if err != nil {
		if t.ctx.Err() == nil {
			t.d.cfg.Log.Warn("a decision's outcome is unknown; deciding again", "term", t.n, "err", err)
		}
		res = nil
		sleep(t.ctx, retryPause)
	} else if res.Code != statepb.Code_OK {
		t.d.cfg.Log.Info("a decision met a changed row; deciding again", "term", t.n, "code", res.Code, "why", res.Text)
	}
	t.d.mu.Lock()
	t.mind.Settled(dec.ID, res, t.d.cfg.Clock.Boot())
	t.d.mu.Unlock()
	t.poke()
}

func (d *Controller) log(c *statepb.Command) {
	switch b := c.Body.(type) {
	case *statepb.Command_FenceBroker:
		level := slog.LevelWarn
		if b.FenceBroker.Left { // it stops
			level = slog.LevelInfo
		}
		d.cfg.Log.Log(context.Background(), level, "fencing a broker", "broker", b.FenceBroker.Broker, "epoch", b.FenceBroker.Epoch, "why", b.FenceBroker.Reason)
	case *statepb.Command_SetBrokerVisible:
		d.cfg.Log.Info("hiding a broker from /brokers/ids", "broker", b.SetBrokerVisible.Broker)
	case *statepb.Command_ElectLeaders:
		d.cfg.Log.Info("electing leaders", "partitions", len(b.ElectLeaders.Elections))
	case *statepb.Command_ExpireSessions:
		d.cfg.Log.Info("expiring sessions", "sessions", len(b.ExpireSessions.Sessions))
	}
}

// Heard implements cluster.Ledger.
func (t *term) Heard(r *cluster.Report) bool {
	t.d.mu.Lock()
	defer t.d.mu.Unlock()
	return t.mind.Heard(r.Broker, r.Epoch, r.Applied, r.Sessions, t.d.cfg.Clock.Boot())
}

// MayGrant implements cluster.Ledger.
func (t *term) MayGrant(r *cluster.Report) bool {
	t.d.mu.Lock()
	defer t.d.mu.Unlock()
	return t.mind.MayGrant(r.Broker, r.Epoch, r.Applied)
}

// Goodbye implements cluster.Ledger.
func (t *term) Goodbye(ctx context.Context, b id.BrokerID, epoch id.BrokerEpoch) error {
	for {
		t.d.mu.Lock()
		waiting := t.mind.Goodbye(b, epoch)
		fenced := t.fenced
		t.d.mu.Unlock()
		if !waiting {
			return nil
		}
		t.poke()
		select {
		case <-fenced:
		case <-ctx.Done():
			return ctx.Err()
		case <-t.ctx.Done():
			return &cluster.Error{Code: cluster.CodeNotLeader, Message: fmt.Sprintf("term %d ended", t.n)}
		}
	}
}
