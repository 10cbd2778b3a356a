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
	stop()
	defer w.lead("b")()
	if res, err := untilTaken(t, b, commitOf(3)); err != nil || res.Code != pb.Code_OK {
		t.Fatal(res, err)
	}
	if _, err := a.Commit(within(t), time.Minute, commitOf(2)); !errors.Is(err, ErrNotCoordinator) || at() != 3 {
		t.Fatal("at the old one:", err, at())
	}
}

// A commit that is not carried out in time ends, and the mind is told; so does one whose client has gone.
func TestCommitEndsInTime(t *testing.T) {
	p := newParker(time.Hour)
	w := newWorld(t, func() core.Mind { return p })
	defer w.lead("a")()
	c := NewClient(ClientConfig{Caller: w, Leaders: w, Views: w, Local: w.drivers["a"]})
	for ctx := within(t); ; time.Sleep(time.Millisecond) {
		_, err := c.Commit(ctx, 20*time.Millisecond, commitOf(1))
		if errors.Is(err, ErrNotCoordinator) {
			continue // its term has not begun
		}
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			t.Fatal(err)
		}
		break
	}
	if r, c := <-p.parked, <-p.cancelled; r != c {
		t.Fatalf("cancelled %d, parked was %d", c, r)
	}
	p.leaves(t, func(ctx context.Context) error { _, err := c.Commit(ctx, time.Hour, commitOf(2)); return err })
}
