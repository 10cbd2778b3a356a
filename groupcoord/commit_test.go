package groupcoord

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/groupcoord/core"
	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

func commitOf(offset int64) *pb.CommitOffsets {
	return &pb.CommitOffsets{Group: "h", Generation: -1, From: pb.OffsetOrigin_ORIGIN_KAFKA, Items: []*pb.OffsetItem{{Topic: "t", Offset: offset, LeaderEpoch: -1}}}
}

// untilTaken commits until the term of a driver that was told to lead has begun.
func untilTaken(t *testing.T, c *Client, cmd *pb.CommitOffsets) (res *pb.Result, err error) {
	for ctx := within(t); ctx.Err() == nil; time.Sleep(time.Millisecond) {
		if res, err = c.Commit(ctx, time.Minute, cmd); !errors.Is(err, ErrNotCoordinator) {
			break
		}
	}
	return res, err
}

// TestCommitIsNotRepeated (S24): a commit whose answer was lost with its coordinator is not carried out by the next one, where the
// client has committed a later offset since.
func TestCommitIsNotRepeated(t *testing.T) {
	w := newWorld(t, func() core.Mind { return core.NewCoordinator(core.Config{}) })
	client := func(local *Driver) *Client {
		return NewClient(ClientConfig{Caller: w, Leaders: w, Views: w, Local: local})
	}
	at := func() int64 {
		o, ok := w.View().Offset("h", "t", 0)
		if !ok {
			return -1
		}
		return int64(o.Offset)
	}
	a, b := client(w.drivers["a"]), client(w.drivers["b"])
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
	c := NewClient(ClientConfig{Caller: w, Leaders: w, Views: w, Local: w.drivers["a"]})
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

// The mind is not asked for a commit. It is told of those that are something to it: a member's, and those that were not taken whole.
func TestCommitIsToldToTheMind(t *testing.T) {
	p := newParker(time.Hour)
	w := newWorld(t, func() core.Mind { return p })
	defer w.lead("a")()
	c := NewClient(ClientConfig{Caller: w, Leaders: w, Views: w, Local: w.drivers["a"]})
	if _, err := untilTaken(t, c, commitOf(1)); err != nil {
		t.Fatal(err)
	}
	member := commitOf(2)
	member.Member = "m"
	gone := commitOf(3)
	gone.Items[0].TopicId = make([]byte, 16) // of a topic that was deleted
	ctx, cancel := context.WithTimeout(within(t), 10*time.Second)
	defer cancel()
	for _, cmd := range []*pb.CommitOffsets{member, gone} {
		if _, err := c.Commit(ctx, time.Minute, cmd); err != nil {
			t.Fatal(err)
		}
		select {
		case told := <-p.committed:
			if told != cmd {
				t.Fatalf("told of %v", told)
			}
		case <-ctx.Done():
			t.Fatalf("not told of %v", cmd)
		}
	}
	select {
	case r := <-p.parked:
		t.Fatalf("the mind was asked: request %d", r)
	default:
	}
}
