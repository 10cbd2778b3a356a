package raftmeta

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

const (
	forwardTimeout = 2 * time.Second
	forwardPause   = 20 * time.Millisecond
)

// StartLane begins the lane of this incarnation; epoch is the broker epoch of its registration (Result.Epoch of
// RegisterBroker). An earlier lane ends. Proposals made before wait for it.
func (n *Node) StartLane(epoch id.BrokerEpoch) error {
	n.mu.Lock()
	if n.ended || !n.started {
		n.mu.Unlock()
		return ErrStopped
	}
	old := n.lane
	l := newLane(uint64(epoch), 0)
	n.lane = l
	close(n.laneSet)
	n.laneSet = make(chan struct{})
	n.wg.Go(func() { n.runLane(l) })
	n.mu.Unlock()
	if old != nil {
		old.finish(fmt.Errorf("%w: %w", ErrUnknown, ErrLaneEnded))
	}
	return nil
}

// LaneEnded is closed when the present lane's incarnation has been fenced; nil before the first StartLane.
func (n *Node) LaneEnded() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.lane == nil {
		return nil
	}
	return n.lane.ended
}

// Propose takes one command through this node's lane into the log and returns what it came to, once it is applied here.
// A refusal is a Result with a Code, not an error. Errors: ErrUnknown when ctx ends first (the command may still be
// applied), ErrLaneEnded, ErrNoLane, ErrTooLarge, ErrStopped. Version, lane, seq and seen are set by the lane; c is not
// written to.
func (n *Node) Propose(ctx context.Context, c *statepb.Command) (*statepb.Result, error) {
	l, err := n.currentLane(ctx)
	if err != nil {
		return nil, err
	}
	return l.propose(ctx, n.stopped, c)
}

func (n *Node) currentLane(ctx context.Context) (*lane, error) {
	for {
		n.mu.Lock()
		l, set := n.lane, n.laneSet
		n.mu.Unlock()
		if l != nil {
			return l, nil
		}
		select {
		case <-set:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrNoLane, ctx.Err())
		case <-n.stopped:
			return nil, ErrStopped
		}
	}
}

// ProposeInTerm proposes a mind's command: on the leader of that term only, never forwarded. Errors: ErrNotLeader when it
// was not and will not be applied, ErrUnknown otherwise; and ErrTooLarge, ErrStopped.
func (n *Node) ProposeInTerm(ctx context.Context, term id.Term, c *statepb.Command) (*statepb.Result, error) {
	if n.leaderTerm() != uint64(term) {
		return nil, ErrNotLeader
	}
	raw, err := encodeCommand(c)
	if err != nil {
		return nil, err
	}
	r, err := n.proposeHere(ctx, appendUint(raw, fieldTerm, uint64(term)))
	if err == nil && r.Code == statepb.Code_STALE_TERM {
		return nil, ErrNotLeader
	}
	return r, err
}

// ProposeAllInTerm is ProposeInTerm for many commands of one moment, and does not wait: they go into the log in order and share
// entries. done is told, once for each command and for runs of them, what cs[from:to] came to: rs has a result for each, or err is one
// of ProposeInTerm's; a command of another term comes to Code_STALE_TERM. It is called by whom others wait for, or before
// ProposeAllInTerm returns, so it must not block. Who calls bounds how many commands are under way.
func (n *Node) ProposeAllInTerm(term id.Term, cs []*statepb.Command, done func(from, to int, rs []state.Settled, err error)) {
	if n.leaderTerm() != uint64(term) {
		done(0, len(cs), nil, ErrNotLeader)
		return
	}
	var data []byte
	from := 0
	send := func(to int) {
		if first := from; first < to {
			k := chunk{data: data, count: to - first, done: func(rs []state.Settled, err error) { done(first, to, rs, err) }}
			k.quiet = !slices.ContainsFunc(cs[first:to], func(c *statepb.Command) bool { return c.GetCommitOffsets() == nil })
			if _, err := n.comb.offer(k, math.MaxInt); err != nil {
				done(first, to, nil, err)
			}
		}
		from, data = to, nil
	}
	for i, c := range cs {
		raw, err := encodeCommand(c)
		if err != nil {
			send(i)
			done(i, i+1, nil, err)
			from = i + 1
			continue
		}
		if len(data) > 0 && len(data)+len(raw) > entryTarget {
			send(i)
		}
		data = appendCommand(data, appendUint(raw, fieldTerm, uint64(term)), 0)
	}
	send(len(cs))
}

// proposeHere puts one encoded command without a lane into an entry of this leader.
func (n *Node) proposeHere(ctx context.Context, raw []byte) (*statepb.Result, error) {
	type answer struct {
		res *statepb.Result
		err error
	}
	done := make(chan answer, 1)
	k := chunk{data: appendCommand(nil, raw, 0), count: 1, done: func(rs []state.Settled, err error) {
		if err != nil {
			done <- answer{nil, err}
			return
		}
		done <- answer{rs[0].Result, nil}
	}}
	if err := n.comb.submit(ctx, n.stopped, k); err != nil {
		return nil, fmt.Errorf("raftmeta: not proposed: %w", err)
	}
	select {
	case a := <-done:
		return a.res, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", ErrUnknown, ctx.Err())
	case <-n.stopped:
		return nil, fmt.Errorf("%w: the node is stopping", ErrUnknown)
	}
}

// ProposeRaw proposes a command that has no lane, through whoever leads, again and again until it is known to be applied:
// only for commands that Apply recognises when repeated (RegisterBroker by its nonce, Bootstrap, FenceBroker by epoch).
// It returns after local apply. Errors: ErrUnknown when ctx ends first, ErrTooLarge, ErrStopped.
func (n *Node) ProposeRaw(ctx context.Context, c *statepb.Command) (*statepb.Result, error) {
	raw, err := encodeCommand(c)
	if err != nil {
		return nil, err
	}
	for {
		lead, change := n.leaderChange()
		var pause <-chan time.Time
		if lead.ID != "" {
			r, err := n.rawTo(ctx, lead, raw)
			if err == nil {
				if err := n.WaitIndex(ctx, id.Index(r.Index)); err != nil {
					return nil, fmt.Errorf("%w: %w", ErrUnknown, err)
				}
				return r, nil
			}
			if errors.Is(err, ErrStopped) || errors.Is(err, errBadRequest) {
				return nil, err
			}
			pause = time.After(forwardPause)
		}
		select {
		case <-change:
		case <-pause:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrUnknown, ctx.Err())
		case <-n.stopped:
			return nil, fmt.Errorf("%w: the node is stopping", ErrUnknown)
		}
	}
}

func (n *Node) rawTo(ctx context.Context, lead Leader, raw []byte) (*statepb.Result, error) {
	if lead.ID == n.cfg.ID {
		return n.proposeHere(ctx, raw)
	}
	cctx, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	b, err := n.cfg.Peers.Call(cctx, lead.ID, MethodRaw, raw)
	switch {
	case err != nil:
		return nil, err
	case len(b) == 0 || b[0] != answerTaken:
		return nil, ErrNotLeader
	}
	r := new(statepb.Result)
	if err := proto.Unmarshal(b[1:], r); err != nil {
		return nil, fmt.Errorf("raftmeta: answer of %s: %w", lead.ID, err)
	}
	return r, nil
}

func (n *Node) handleRaw(ctx context.Context, _ id.DirectoryID, p []byte) ([]byte, error) {
	if n.leaderTerm() == 0 {
		return []byte{answerNotLeader}, nil
	}
	if len(p) > entryMax {
		return nil, ErrTooLarge
	}
	if err := checkCommand(p, 0, 0); err != nil {
		return nil, err
	}
	r, err := n.proposeHere(ctx, p)
	if errors.Is(err, ErrNotLeader) {
		return []byte{answerNotLeader}, nil
	}
	if err != nil {
		return nil, err
	}
	return append([]byte{answerTaken}, mustMarshal(r)...), nil
}

// runLane sends the lane's commands to whoever leads, in order, one batch under way at a time, and again when the leader
// has changed, numbers are missing or nothing was heard of them.
func (n *Node) runLane(l *lane) {
	heard := time.NewTimer(n.cfg.ResendAfter) // runs while commands wait for results
	defer heard.Stop()
	running := true
	var last Leader
	var before uint64
	stuck := false
	for {
		lead, change := n.leaderChange()
		if lead.ID != "" && lead != last {
			if last.ID != "" {
				l.rewind()
			}
			last = lead
		}
		var wake <-chan struct{} = l.wake
		var pause <-chan time.Time
		if lead.ID == "" {
			wake = nil
		} else if b := l.gather(); len(b.chunk) > 0 {
			err := n.forward(lead, b)
			if err == nil {
				l.accepted(b)
				continue
			}
			n.cfg.Logger.Debug("commands not taken", "leader", lead.ID, "lane", l.id, "first", b.first, "err", err)
			l.rewind()
			wake, pause = nil, time.After(forwardPause)
		}
		if !running && !l.idle() {
			heard.Reset(n.cfg.ResendAfter)
			running = true
		}
		select {
		case <-wake:
		case <-pause:
		case <-change:
		case <-heard.C:
			running = false
			seen := l.progress()
			if stuck && seen == before && !l.idle() {
				l.rewind()
			}
			stuck, before = !l.idle(), seen
		case <-l.ended:
			return
		case <-n.stopped:
			return
		}
	}
}

func (n *Node) forward(lead Leader, b batch) error {
	ctx, cancel := context.WithTimeout(n.ctx, forwardTimeout)
	defer cancel()
	if lead.ID == n.cfg.ID {
		if n.leaderTerm() == 0 {
			return ErrNotLeader
		}
		return n.comb.submit(ctx, n.stopped, chunk{data: b.chunk, count: int(b.last - b.first + 1)})
	}
	r, err := n.cfg.Peers.Call(ctx, lead.ID, MethodForward, encodeBatch(b))
	if err != nil {
		return err
	}
	if len(r) != 1 || r[0] != answerTaken {
		return ErrNotLeader
	}
	return nil
}

func (n *Node) handleForward(ctx context.Context, _ id.DirectoryID, p []byte) ([]byte, error) {
	if n.leaderTerm() == 0 {
		return []byte{answerNotLeader}, nil
	}
	b, err := decodeBatch(p)
	if err != nil {
		return nil, err
	}
	if err := n.comb.submit(ctx, n.stopped, chunk{data: b.chunk, count: int(b.last - b.first + 1)}); err != nil {
		return nil, err
	}
	return []byte{answerTaken}, nil
}

// applyEntry is the combiner's way into raft.
func (n *Node) applyEntry(data []byte) func() (outcome, error) {
	i := n.inst.Load()
	f := i.r.Apply(data, enqueueLimit)
	return func() (outcome, error) {
		if err := n.await(i, f); err != nil {
			return outcome{}, err
		}
		o, ok := f.Response().(outcome)
		if !ok || o.settled == nil {
			return outcome{}, errors.New("raftmeta: this node has stopped applying")
		}
		return o, nil
	}
}

func (n *Node) pushCommit(o outcome, quiet bool) {
	if f := n.followers(); f != nil {
		n.pusher.push(target{o.index, o.term}, f, !quiet)
	}
}

// Tell pushes the newest commit to a follower if it was not told yet: what is answered next has it wait for that. It may come before
// Start, and before the entry's own proposer has gone on here: an answer may be of a view that was just applied.
func (n *Node) Tell(follower id.DirectoryID) {
	if i := n.inst.Load(); i != nil {
		n.pusher.tell(raft.ServerID(follower), i.r.CommitIndex())
	}
}

// told is the newest commit that a follower's pipeline has carried.
func (n *Node) told(follower raft.ServerID) uint64 { return n.inst.Load().p.told(follower) }

// followers are the other servers of the newest configuration; nil when raft has ended.
func (n *Node) followers() (others []raft.Server) {
	conf := n.inst.Load().r.GetConfiguration()
	if conf.Error() != nil {
		return nil
	}
	for _, s := range conf.Configuration().Servers {
		if s.ID != raft.ServerID(n.cfg.ID) {
			others = append(others, s)
		}
	}
	return others
}
