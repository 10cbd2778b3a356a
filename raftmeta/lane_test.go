package raftmeta

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// laneState is a state with one registered broker, whose lane it returns.
func laneState(t *testing.T) (*state.State, *lane) {
	t.Helper()
	st := state.New()
	a := st.Apply(1, 1, mustMarshal(&statepb.Entry{Commands: []*statepb.Command{
		{Version: 1, Body: &statepb.Command_Bootstrap{Bootstrap: &statepb.Bootstrap{ClusterId: "AAAAAAAAAAAAAAAAAAAAAA", Level: 1}}},
		{Version: 1, Level: 1, Body: &statepb.Command_RegisterBroker{RegisterBroker: &statepb.RegisterBroker{
			DirectoryId: "d", Nonce: "n", WantedId: -1, MinLevel: state.MinLevel, MaxLevel: state.MaxLevel}}},
	}}))
	r := a.Settled[1].Result
	if r.Code != statepb.Code_OK {
		t.Fatalf("register: %v", r)
	}
	return st, newLane(r.Epoch, 0)
}

type proposed struct {
	r   *statepb.Result
	err error
}

func (l *lane) start(t *testing.T, path string) chan proposed {
	t.Helper()
	ch := make(chan proposed, 1)
	before := l.queued()
	go func() {
		r, err := l.propose(context.Background(), nil, createZnode(path, true))
		ch <- proposed{r, err}
	}()
	eventually(t, "queued", func() bool { return l.queued() > before })
	return ch
}

func (l *lane) queued() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.pending)
}

func applyBatch(st *state.State, index id.Index, b batch) state.Applied {
	return st.Apply(index, 1, append([]byte(nil), b.chunk...))
}

// A snapshot skipped the entries with this lane's results: the waiters get them from the state.
func TestLaneResultsFromRestoredState(t *testing.T) {
	st, l := laneState(t)
	a, b := l.start(t, "/x-"), l.start(t, "/x-")
	batch := l.batch()
	l.accepted(batch)
	want := applyBatch(st, 2, batch) // this node does not see the entry...
	c := l.start(t, "/x-")
	l.restored(st) // ...only a state that holds it
	for i, ch := range []chan proposed{a, b} {
		if got := <-ch; got.err != nil || !proto.Equal(got.r, want.Settled[i].Result) {
			t.Errorf("command %d: %v %v, want %v", i, got.r, got.err, want.Settled[i].Result)
		}
	}
	next := l.batch() // the third is still to be sent, and says what was seen
	if next.first != 3 || next.last != 3 {
		t.Fatalf("next batch %d..%d", next.first, next.last)
	}
	if l.settle(applyBatch(st, 3, next).Settled) {
		t.Error("a gap")
	}
	if got := <-c; got.err != nil || got.r.Code != statepb.Code_OK {
		t.Errorf("third: %v %v", got.r, got.err)
	}
	if _, settled, _ := st.LaneResult(l.id, 2); !settled {
		t.Error("result 2 is not known")
	} else if r, _, _ := st.LaneResult(l.id, 2); r != nil {
		t.Error("result 2 is still kept although it was seen")
	}
}

// The lane's end within skipped entries leaves what waits unknown; its end in an entry that was seen does not.
func TestLaneEndKnownAndUnknown(t *testing.T) {
	fence := func(st *state.State, l *lane) state.Applied {
		return st.Apply(5, 1, mustMarshal(&statepb.Entry{Commands: []*statepb.Command{{Version: 1, Level: 1,
			Body: &statepb.Command_FenceBroker{FenceBroker: &statepb.FenceBroker{Broker: 1, Epoch: l.id}}}}}))
	}
	st, l := laneState(t)
	ch := l.start(t, "/x-")
	fence(st, l)
	l.restored(st)
	if got := <-ch; !errors.Is(got.err, ErrUnknown) || !errors.Is(got.err, ErrLaneEnded) {
		t.Errorf("after a restore: %v", got.err)
	}
	st, l = laneState(t)
	ch = l.start(t, "/x-")
	b := l.batch()
	fence(st, l)
	l.settle(applyBatch(st, 6, b).Settled)
	if got := <-ch; errors.Is(got.err, ErrUnknown) || !errors.Is(got.err, ErrLaneEnded) {
		t.Errorf("after an entry: %v", got.err)
	}
	if _, err := l.propose(t.Context(), nil, createZnode("/x-", true)); !errors.Is(err, ErrLaneEnded) {
		t.Errorf("later: %v", err)
	}
}

// A batch that was lost is told by the gap that the next one leaves; repeats and old results change nothing.
func TestLaneGapAndRepeat(t *testing.T) {
	st, l := laneState(t)
	a := l.start(t, "/x-")
	lost := l.batch()
	l.accepted(lost)
	b := l.start(t, "/x-")
	second := l.batch()
	l.accepted(second)
	if !l.settle(applyBatch(st, 2, second).Settled) {
		t.Fatal("no gap told")
	}
	l.gap()
	again := l.batch()
	if again.first != 1 || again.last != 2 {
		t.Fatalf("sent again %d..%d", again.first, again.last)
	}
	l.settle(applyBatch(st, 3, again).Settled)
	ra, rb := <-a, <-b
	if ra.err != nil || rb.err != nil || ra.r.Path == rb.r.Path {
		t.Fatalf("%v %v", ra, rb)
	}
	if l.settle(applyBatch(st, 4, again).Settled) { // the lost one arrives after all, with the rest
		l.gap()
	}
	if b := l.batch(); len(b.chunk) != 0 {
		t.Errorf("something is sent after all is known: %d..%d", b.first, b.last)
	}
}
