package groupcoord

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/groupcoord/core"
	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

func commitOf(offset int64) *pb.CommitOffsets {
	return &pb.CommitOffsets{Group: "h", Generation: -1, From: pb.OffsetOrigin_ORIGIN_KAFKA, Items: []*pb.OffsetItem{{Topic: "t", Offset: offset, LeaderEpoch: -1}}}
}

// untilTaken commits until the term of a driver that was told to lead has begun.
func untilTaken(t *testing.T, c *Client, cmd *pb.CommitOffsets) (res *pb.Result, err error) {
	return untilTakenFor(t, c, cmd, time.Minute)
}

func untilTakenFor(t *testing.T, c *Client, cmd *pb.CommitOffsets, limit time.Duration) (res *pb.Result, err error) {
	for ctx := within(t); ctx.Err() == nil; time.Sleep(time.Millisecond) {
		if res, err = c.Commit(ctx, limit, cmd); !errors.Is(err, ErrNotCoordinator) {
			break
		}
	}
	return res, err
}

// TestCommitIsNotRepeated (S24): a commit whose answer was lost with its coordinator is not carried out by the next one, where the
// client has committed a later offset since.
func TestCommitIsNotRepeated(t *testing.T) {
	w := newWorld(t, func() core.Mind { return core.NewCoordinator(core.Config{}) })
	at := func() int64 {
		o, ok := w.View().Offset("h", "t", 0)
		if !ok {
			return -1
		}
		return int64(o.Offset)
	}
	a, b := w.at("a"), w.at("b")
	if _, err := a.Commit(within(t), time.Minute, commitOf(1)); !errors.Is(err, ErrNotCoordinator) {
		t.Fatal("before its term:", err)
	}
	if _, err := w.client().Commit(within(t), time.Minute, commitOf(1)); !errors.Is(err, ErrNotCoordinator) {
		t.Fatal("without a coordinator:", err)
	}
	stop := w.lead("a")
	if res, err := untilTaken(t, a, commitOf(1)); err != nil || res.Code != pb.Code_OK || at() != 1 {
		t.Fatal(res, err, at())
	}
	w.mu.Lock()
	w.loseNext = true
	w.mu.Unlock()
	if _, err := a.Commit(within(t), time.Minute, commitOf(2)); !errors.Is(err, ErrNotCoordinator) {
		t.Fatal("its outcome was lost:", err)
	}
	w.mu.Lock()
	w.term++ // the next leader is elected, and a does not know yet
	w.mu.Unlock()
	if res, err := a.Commit(within(t), time.Minute, commitOf(4)); !errors.Is(err, ErrNotCoordinator) || at() != 2 {
		t.Fatal("in the next term:", res, err, at())
	}
	stop()
	defer w.lead("b")()
	if res, err := untilTaken(t, b, commitOf(3)); err != nil || res.Code != pb.Code_OK {
		t.Fatal(res, err)
	}
	if _, err := a.Commit(within(t), time.Minute, commitOf(2)); !errors.Is(err, ErrNotCoordinator) || at() != 3 {
		t.Fatal("at the old one:", err, at())
	}
}

// A commit that is not carried out in time ends; so does one whose client has gone.
func TestCommitEndsInTime(t *testing.T) {
	w := newWorld(t, func() core.Mind { return newParker(time.Hour) })
	defer w.lead("a")()
	c := w.at("a")
	if _, err := untilTaken(t, c, commitOf(1)); err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	w.stalled = true
	w.mu.Unlock()
	if _, err := c.Commit(within(t), 20*time.Millisecond, commitOf(2)); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(within(t))
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := c.Commit(ctx, time.Hour, commitOf(2)); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// The mind is not asked for a commit. It is told of those that are something to it, a member's and those that were not taken whole, with
// a view that has them, and before the client goes on.
func TestCommitIsToldToTheMind(t *testing.T) {
	p := newParker(time.Hour)
	w := newWorld(t, func() core.Mind { return p })
	defer w.lead("a")()
	c := w.at("a")
	ctx, cancel := context.WithTimeout(within(t), 10*time.Second)
	defer cancel()
	if _, err := untilTaken(t, c, commitOf(1)); err != nil {
		t.Fatal(err)
	}
	member := commitOf(2)
	member.Member = "m"
	gone := commitOf(3)
	gone.Items[0].TopicId = make([]byte, 16) // of a topic that was deleted
	for _, tc := range []struct {
		cmd  *pb.CommitOffsets
		want told
	}{{member, told{"h", "m", 2}}, {gone, told{"h", "", 2}}} {
		if _, err := c.Commit(ctx, time.Minute, tc.cmd); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-p.committed:
			if got != tc.want {
				t.Fatalf("told of %v, not %v", got, tc.want)
			}
		case <-ctx.Done():
			t.Fatalf("not told of %v", tc.want)
		}
	}
	select {
	case r := <-p.parked:
		t.Fatalf("the mind was asked: request %d", r)
	default:
	}
}

// slowMind is a parker that is busy with a change until it is let go.
type slowMind struct {
	*parker
	busy, free chan struct{}
	order      chan string
}

func (m *slowMind) Changed(*state.View, []state.Change, time.Duration) []core.Action {
	m.busy <- struct{}{}
	<-m.free
	return nil
}

func (m *slowMind) Committed(_ *state.View, _, member string, _ *pb.Result, _ time.Duration) []core.Action {
	m.order <- "commit of " + member
	return nil
}

func (m *slowMind) Request(_ *state.View, r core.Request, _ time.Duration) []core.Action {
	m.order <- "request"
	return []core.Action{{Request: r.ID, Reply: &pb.Result{}}}
}

// What a client does after its commit was answered comes to the mind after the commit, however far the mind is behind.
func TestCommitIsToldBeforeWhatFollows(t *testing.T) {
	m := &slowMind{parker: newParker(time.Hour), busy: make(chan struct{}, 99), free: make(chan struct{}), order: make(chan string, 9)}
	w := newWorld(t, func() core.Mind { return m })
	stop := w.lead("a")
	c := w.at("a")
	if _, err := untilTaken(t, c, commitOf(1)); err != nil {
		t.Fatal(err)
	}
	<-m.busy // with that commit's entry
	member := commitOf(2)
	member.Member = "m"
	if _, err := c.Commit(within(t), time.Minute, member); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { _, err := c.Do(within(t), claim(1)); ended <- err }()
	d := w.drivers["a"]
	for asked := false; !asked; time.Sleep(time.Millisecond) { // until it is in the inbox
		d.term.in.Lock()
		asked = len(d.term.in.requests) > 0
		d.term.in.Unlock()
	}
	close(m.free)
	for _, want := range []string{"commit of m", "request"} {
		if got := <-m.order; got != want {
			t.Fatalf("%s before %s", got, want)
		}
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	stop()
}

// proposer tells the outcomes when it likes.
type proposer struct {
	*world
	proposed chan func([]state.Settled, error)
}

func (p *proposer) ProposeAllInTerm(_ id.Term, cs []*pb.Command, done func(from, to int, rs []state.Settled, err error)) {
	p.proposed <- func(rs []state.Settled, err error) { done(0, len(cs), rs, err) }
}

// An outcome that comes after its client has gone holds nobody up; one that fits no entry is told as such; and the mind is told of a
// commit whose entry it has seen long ago.
func TestCommitOutcomes(t *testing.T) {
	p := newParker(time.Hour)
	w := newWorld(t, func() core.Mind { return p })
	out := &proposer{w, make(chan func([]state.Settled, error), 1)}
	w.drivers["a"].cfg.Proposer = out
	defer w.lead("a")()
	c := w.at("a")
	if _, err := untilTakenFor(t, c, commitOf(1), 10*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); (<-out.proposed)(nil, errors.New("lost")) }()
	select {
	case <-ended:
	case <-within(t).Done():
		t.Fatal("the proposer waits for a client that has gone")
	}

	go func() { (<-out.proposed)(nil, fmt.Errorf("encode: %w", state.ErrTooLarge)) }()
	if _, err := c.Commit(within(t), time.Minute, commitOf(1)); !errors.Is(err, state.ErrTooLarge) {
		t.Fatal(err)
	}

	member := commitOf(2)
	member.Member = "m"
	go func() { (<-out.proposed)([]state.Settled{{Result: &pb.Result{}}}, nil) }()
	if _, err := c.Commit(within(t), time.Minute, member); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-p.committed:
		if got.member != "m" {
			t.Fatal(got)
		}
	case <-within(t).Done():
		t.Fatal("nobody woke the mind")
	}
}
