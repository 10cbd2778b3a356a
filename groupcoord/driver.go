// Package groupcoord is the group coordinator: a Client on every node, and a Driver that runs a mind (core) while its
// node is the Raft leader. A request travels over the cluster port; the node that has the client keeps it parked, repeats
// it to the next coordinator after a fail-over, and answers only when its own view has reached the answer's index.
//
// Goroutines: Driver.Run has one that calls the mind. A Client starts none.
package groupcoord

import (
	"context"
	"encoding/binary"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
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

// TermProposer proposes commands of a mind, in order: only in that term, never forwarded. It does not wait. done is told once of each
// command, in runs, what cs[from:to] came to; an error means that the outcome is unknown, or that the term has ended.
type TermProposer interface {
	ProposeAllInTerm(term id.Term, cs []*statepb.Command, done func(from, to int, rs []state.Settled, err error))
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
	term *term       // nil: this node is not the coordinator
	last *state.View // newest that Applied was given; it may be ahead of Views

	counts Counts
}

// Counts is what happened in the terms of this node, for the metrics.
type Counts struct {
	Rebalances map[RebalanceKind]int64
	Gates      map[string]GateCount // by gate (state.Gate)
}

// RebalanceKind is of whose members a rebalance was, and its cause in one of few words.
type RebalanceKind struct{ Kind, Reason string }

// GateCount is how often a gate did something and for how long it held requests in all.
type GateCount struct {
	Times int64
	Held  time.Duration
}

// Counts returns a copy.
func (d *Driver) Counts() Counts {
	d.mu.Lock()
	defer d.mu.Unlock()
	return Counts{Rebalances: maps.Clone(d.counts.Rebalances), Gates: maps.Clone(d.counts.Gates)}
}

func (d *Driver) count(n *core.Count) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n.Gate == "" {
		d.counts.Rebalances[RebalanceKind{n.Kind, n.Reason}]++
		return
	}
	g := d.counts.Gates[n.Gate]
	d.counts.Gates[n.Gate] = GateCount{g.Times + 1, g.Held + n.Held}
}

// NewDriver starts nothing.
func NewDriver(cfg DriverConfig) *Driver {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Driver{cfg: cfg, counts: Counts{Rebalances: map[RebalanceKind]int64{}, Gates: map[string]GateCount{}}}
}

type applied struct {
	view    *state.View
	changes []state.Change
}

type request struct {
	core.Request
	reply chan *reply // buffered: the mind never waits for a caller; nil: look for the next coordinator
}

// reply is the answer to a request: res, or answer from a view at index.
type reply struct {
	res    *statepb.Result
	answer kmsg.Response
	index  id.Index
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
		closed    bool
		next      core.RequestID
		requests  []*request
		cancels   []core.RequestID
		settled   []settled
		committed []committed
		applied   []applied
	}

	mind core.Mind
	open map[core.RequestID]*request
	view *state.View

	proposed struct { // by the actions of this turn
		ids  []core.RequestID
		cmds []*statepb.Command
	}
}

type settled struct {
	id  core.RequestID
	res *statepb.Result // nil: unknown
}

type committed struct {
	group, member string
	res           *statepb.Result
}

// Run is the coordinator's work in one term, after the term's barrier has applied; it returns when ctx ends. Waiting requests are
// told to look for the next coordinator.
func (d *Driver) Run(ctx context.Context, n id.Term) {
	t := &term{d: d, n: n, ctx: ctx, wake: make(chan struct{}, 1), mind: d.cfg.NewMind(), open: map[core.RequestID]*request{},
		start: d.cfg.Clock.Boot()}
	d.mu.Lock()
	d.term = t
	// After the term can be fed, so no entry falls between; one that was fed just before may not be in View yet.
	if t.view = d.cfg.Views.View(); d.last != nil && d.last.Index() > t.view.Index() {
		t.view = d.last
	}
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
	d.last = v
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
	flags, waited, body, err := decodeHead(payload)
	r := core.Request{Repeat: flags&flagRepeat != 0, Waited: waited}
	switch {
	case err != nil:
	case flags&flagKafka != 0:
		r.Kafka, err = decodeKafka(body)
	default:
		r.Command = new(statepb.Command)
		err = proto.Unmarshal(body, r.Command)
	}
	if err != nil {
		return nil, &cluster.Error{Code: codeMalformed, Message: "group request: " + err.Error()}
	}
	re, err := d.do(ctx, r)
	switch {
	case err != nil:
		return nil, err
	case re.answer != nil:
		return re.answer.AppendTo(binary.BigEndian.AppendUint64(nil, uint64(re.index))), nil
	}
	return proto.Marshal(re.res)
}

var errNotCoordinator = &cluster.Error{Code: CodeNotCoordinator, Message: "this node is not the group coordinator"}

// do waits for the answer until ctx ends.
func (d *Driver) do(ctx context.Context, req core.Request) (*reply, error) {
	d.mu.Lock()
	t := d.term
	d.mu.Unlock()
	if t == nil {
		return nil, errNotCoordinator
	}
	r := &request{Request: req, reply: make(chan *reply, 1)}
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
	case re := <-r.reply:
		if re == nil {
			return nil, errNotCoordinator
		}
		return re, nil
	case <-ctx.Done():
	}
	t.in.Lock()
	if !t.in.closed {
		t.in.cancels = append(t.in.cancels, r.ID)
	}
	t.in.Unlock()
	t.poke()
	return nil, ctx.Err()
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
		now := t.now() // a system call: once a turn is enough
		t.drain(now)   // before what is due: who was heard from in time has not expired
		wait := time.Hour
		if at, ok := t.mind.Deadline(); ok {
			if now >= at {
				t.act(t.mind.Expire(t.view, now))
				at, ok = t.mind.Deadline()
			}
			if ok {
				wait = min(max(at-now, time.Millisecond), wait)
			}
		}
		t.propose()
		timer.Reset(wait)
		select {
		case <-t.ctx.Done():
			return
		case <-t.wake:
		case <-timer.C:
		}
	}
}

// drain takes the inbox in the order that keeps promises: what is applied first, then results, commits, new requests, cancels.
func (t *term) drain(now time.Duration) {
	t.in.Lock()
	entries, done, made, gone, fresh := t.in.applied, t.in.settled, t.in.committed, t.in.cancels, t.in.requests
	t.in.applied, t.in.settled, t.in.committed, t.in.cancels, t.in.requests = nil, nil, nil, nil, nil
	t.in.Unlock()
	for _, a := range entries {
		if a.view.Index() > t.view.Index() {
			t.view = a.view
			t.act(t.mind.Changed(a.view, a.changes, now))
		}
	}
	for _, s := range done {
		if s.res != nil {
			t.act(t.mind.Settled(t.view, s.id, s.res, now))
			continue
		}
		// Unknown: the node that asked repeats it; a proposal of the mind's own is decided again.
		r, ok := t.open[s.id]
		if !ok {
			t.act(t.mind.Settled(t.view, s.id, &statepb.Result{Code: statepb.Code_STALE_TERM}, now))
			continue
		}
		delete(t.open, s.id)
		r.reply <- nil
		t.act(t.mind.Cancel(t.view, s.id, now))
	}
	for _, c := range made {
		t.act(t.mind.Committed(t.view, c.group, c.member, c.res, now))
	}
	for _, r := range fresh {
		t.open[r.ID] = r
		t.act(t.mind.Request(t.view, r.Request, now))
	}
	for _, id := range gone {
		if _, ok := t.open[id]; ok {
			delete(t.open, id)
			t.act(t.mind.Cancel(t.view, id, now))
		}
	}
}

func (t *term) act(actions []core.Action) {
	for _, a := range actions {
		if a.Propose != nil {
			t.proposed.ids = append(t.proposed.ids, a.Request)
			t.proposed.cmds = append(t.proposed.cmds, a.Propose)
		}
		if a.Note != nil {
			t.d.cfg.Log.Info(a.Note.Message, append([]any{"term", t.n}, a.Note.Args...)...)
		}
		if a.Count != nil {
			t.d.count(a.Count)
		}
		if r, ok := t.open[a.Request]; ok && (a.Reply != nil || a.Answer != nil) {
			delete(t.open, a.Request)
			r.reply <- &reply{res: a.Reply, answer: a.Answer, index: t.view.Index()}
		}
	}
}

// propose hands on what the actions of this turn propose, together: so they share an entry. By the time of a result its entry is in
// the inbox (Applied comes first), so the mind sees the view that the result is of.
func (t *term) propose() {
	ids := t.proposed.ids
	if len(ids) == 0 {
		return
	}
	cmds := t.proposed.cmds
	t.proposed.ids, t.proposed.cmds = nil, nil
	t.d.cfg.Proposer.ProposeAllInTerm(t.n, cmds, func(from, to int, rs []state.Settled, err error) {
		if err != nil {
			t.d.cfg.Log.Debug("group commands are left to the next coordinator", "term", t.n, "commands", to-from, "err", err)
		}
		t.in.Lock()
		defer t.poke()
		defer t.in.Unlock()
		if t.in.closed {
			return
		}
		for i, id := range ids[from:to] {
			s := settled{id: id}
			if err == nil && rs[i].Result.Code != statepb.Code_STALE_TERM {
				s.res = rs[i].Result
			}
			t.in.settled = append(t.in.settled, s)
		}
	})
}

// end releases everybody who still waits.
func (t *term) end() {
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
