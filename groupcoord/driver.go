// Package groupcoord is the group coordinator: a Client on every node, and a Driver that runs a mind (core) while its
// node is the Raft leader. A request travels over the cluster port; the node that has the client keeps it parked, repeats
// it to the next coordinator after a fail-over, and answers only when its own view has reached the answer's index.
//
// Goroutines: Driver.Run has one that calls the mind and one per command that is being proposed; it returns when all have
// ended. A Client starts none.
package groupcoord

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/barnabas-mq/barnabas/cluster"
	"github.com/barnabas-mq/barnabas/groupcoord/core"
	"github.com/barnabas-mq/barnabas/internal/clock"
	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// Method is the RPC by which nodes ask the coordinator.
const Method = "group.request"

// Wire codes of errors that a Client meets; it repeats the request.
const (
	CodeNotCoordinator cluster.Code = cluster.CodeFirstOfRooms + 0x100 + iota
	codeMalformed
)

// TermProposer proposes a command of a mind: only in that term, never forwarded. An error means that the outcome is
// unknown, or that the term has ended.
type TermProposer interface {
	ProposeInTerm(ctx context.Context, term id.Term, c *statepb.Command) (*statepb.Result, error)
}

// Views reads the local state.
type Views interface{ View() *state.View }

// DriverConfig is what a Driver needs; all fields but Log are required.
type DriverConfig struct {
	Proposer TermProposer
	Views    Views
	Clock    clock.Clock
	NewMind  func() core.Mind // one per term
	Log      *slog.Logger
}

// Driver runs the mind.
type Driver struct {
	cfg DriverConfig

	mu   sync.Mutex
	term *term // nil: this node is not the coordinator
}

// NewDriver starts nothing.
func NewDriver(cfg DriverConfig) *Driver {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Driver{cfg: cfg}
}

type applied struct {
	view    *state.View
	changes []state.Change
}

type request struct {
	core.Request
	reply chan *statepb.Result // buffered: the mind never waits for a caller
}

// term is one term of the mind. Only its loop touches mind, open, view.
type term struct {
	d     *Driver
	n     id.Term
	ctx   context.Context
	wake  chan struct{} // buffered 1: the inbox has something
	start time.Duration

	in struct {
		sync.Mutex
		closed   bool
		next     core.RequestID
		requests []*request
		cancels  []core.RequestID
		settled  []settled
		applied  []applied
	}

	mind core.Mind
	open map[core.RequestID]*request
	view *state.View
	work sync.WaitGroup
}

type settled struct {
	id  core.RequestID
	res *statepb.Result // nil: unknown
}

// Run is the coordinator's work in one term, after the term's barrier has applied; it returns when ctx ends and every
// goroutine of the term has ended. Waiting requests are told to look for the next coordinator.
func (d *Driver) Run(ctx context.Context, n id.Term) {
	t := &term{d: d, n: n, ctx: ctx, wake: make(chan struct{}, 1), mind: d.cfg.NewMind(), open: map[core.RequestID]*request{},
		start: d.cfg.Clock.Boot()}
	d.mu.Lock()
	d.term = t
	t.view = d.cfg.Views.View() // after the term can be fed: no entry falls between
	d.mu.Unlock()
	d.cfg.Log.Info("group coordinator starts", "term", n)
	t.loop()
	d.mu.Lock()
	if d.term == t {
		d.term = nil
	}
	d.mu.Unlock()
	t.end()
	d.cfg.Log.Info("group coordinator ends", "term", n)
}

// Applied feeds an applied entry to the mind; called by the node for each, in order. It does not wait.
func (d *Driver) Applied(v *state.View, changes []state.Change) {
	d.mu.Lock()
	t := d.term
	d.mu.Unlock()
	if t == nil {
		return
	}
	t.in.Lock()
	if !t.in.closed {
		t.in.applied = append(t.in.applied, applied{v, changes})
	}
	t.in.Unlock()
	t.poke()
}

// Handle answers Method. It waits as long as the mind holds the request; when ctx ends the request is cancelled.
func (d *Driver) Handle(ctx context.Context, _ cluster.Peer, payload []byte) ([]byte, error) {
	if len(payload) < 1 {
		return nil, &cluster.Error{Code: codeMalformed, Message: "empty group request"}
	}
	var cmd statepb.Command
	if err := proto.Unmarshal(payload[1:], &cmd); err != nil {
		return nil, &cluster.Error{Code: codeMalformed, Message: "group request: " + err.Error()}
	}
	res, err := d.do(ctx, payload[0]&1 != 0, &cmd)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(res)
}

var errNotCoordinator = &cluster.Error{Code: CodeNotCoordinator, Message: "this node is not the group coordinator"}

func (d *Driver) do(ctx context.Context, repeat bool, cmd *statepb.Command) (*statepb.Result, error) {
	d.mu.Lock()
	t := d.term
	d.mu.Unlock()
	if t == nil {
		return nil, errNotCoordinator
	}
	r := &request{Request: core.Request{Repeat: repeat, Command: cmd}, reply: make(chan *statepb.Result, 1)}
	t.in.Lock()
	if t.in.closed {
		t.in.Unlock()
		return nil, errNotCoordinator
	}
	t.in.next++
	r.ID = t.in.next
	t.in.requests = append(t.in.requests, r)
	t.in.Unlock()
	t.poke()
	select {
	case res := <-r.reply:
		if res == nil {
			return nil, errNotCoordinator
		}
		return res, nil
	case <-ctx.Done():
		t.in.Lock()
		if !t.in.closed {
			t.in.cancels = append(t.in.cancels, r.ID)
		}
		t.in.Unlock()
		t.poke()
		return nil, ctx.Err()
	}
}

func (t *term) poke() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

func (t *term) now() time.Duration { return t.d.cfg.Clock.Boot() - t.start }

// loop feeds the mind until the term ends.
func (t *term) loop() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		t.drain()
		wait := time.Hour
		if at, ok := t.mind.Deadline(); ok {
			wait = max(at-t.now(), 0)
		}
		timer.Reset(wait)
		select {
		case <-t.ctx.Done():
			return
		case <-t.wake:
		case <-timer.C:
			if at, ok := t.mind.Deadline(); ok && t.now() >= at {
				t.act(t.mind.Expire(t.view, t.now()))
			}
		}
	}
}

// drain takes the inbox in the order that keeps promises: what is applied first, then results, cancels, new requests.
func (t *term) drain() {
	t.in.Lock()
	entries, done, gone, fresh := t.in.applied, t.in.settled, t.in.cancels, t.in.requests
	t.in.applied, t.in.settled, t.in.cancels, t.in.requests = nil, nil, nil, nil
	t.in.Unlock()
	for _, a := range entries {
		if a.view.Index() > t.view.Index() {
			t.view = a.view
			t.act(t.mind.Changed(a.view, a.changes, t.now()))
		}
	}
	for _, s := range done {
		if s.res != nil {
			t.act(t.mind.Settled(t.view, s.id, s.res, t.now()))
		} else if r, ok := t.open[s.id]; ok { // unknown: its node repeats it
			delete(t.open, s.id)
			r.reply <- nil
			t.act(t.mind.Cancel(t.view, s.id, t.now()))
		}
	}
	for _, r := range fresh {
		t.open[r.ID] = r
		t.act(t.mind.Request(t.view, r.Request, t.now()))
	}
	for _, id := range gone {
		if _, ok := t.open[id]; ok {
			delete(t.open, id)
			t.act(t.mind.Cancel(t.view, id, t.now()))
		}
	}
}

func (t *term) act(actions []core.Action) {
	for _, a := range actions {
		if a.Propose != nil {
			t.work.Add(1)
			go t.propose(a.Request, a.Propose)
		}
		if r, ok := t.open[a.Request]; ok && a.Reply != nil {
			delete(t.open, a.Request)
			r.reply <- a.Reply
		}
	}
}

// propose carries a command to its result: by then the entry is in the inbox (Applied comes first), so the mind sees the
// view that the result is of.
func (t *term) propose(id core.RequestID, cmd *statepb.Command) {
	defer t.work.Done()
	res, err := t.d.cfg.Proposer.ProposeInTerm(t.ctx, t.n, cmd)
	if err != nil || res.Code == statepb.Code_STALE_TERM {
		t.d.cfg.Log.Debug("a group command is left to the next coordinator", "term", t.n, "err", err)
		res = nil
	}
	t.in.Lock()
	t.in.settled = append(t.in.settled, settled{id, res})
	t.in.Unlock()
	t.poke()
}

// end waits for the proposals and releases everybody who still waits.
func (t *term) end() {
	t.work.Wait()
	t.in.Lock()
	t.in.closed = true
	waiting := t.in.requests
	t.in.requests = nil
	t.in.Unlock()
	for _, r := range waiting {
		r.reply <- nil
	}
	for _, r := range t.open {
		r.reply <- nil
	}
}
