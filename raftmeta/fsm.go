package raftmeta

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// Update is what a subscriber is told: one applied entry, or, with Reset, that entries were skipped by a restored snapshot:
// then View is the whole new state and Changes is nil.
type Update struct {
	View    *state.View
	Changes []state.Change
	Reset   bool
}

// fsm drives the pure state. Apply, Snapshot and Restore are called by raft's FSM goroutine alone, which owns st.
type fsm struct {
	track     bool
	onSettled func(*state.State, []state.Settled) // the lane's results of an entry
	onRestore func(*state.State)
	onNewer   func(error) // an entry of a newer build: the node must stop
	newer     bool        // since then nothing is applied
	onBroken  func()      // a restore failed: raft goes on as if nothing had been installed, so it must be opened again

	st     *state.State
	broken error // a snapshot could not be restored: no older one is tried in its place
	view   atomic.Pointer[state.View]
	hash   atomic.Pointer[hashAt] // with track

	bytes, entries atomic.Int64 // of the log since the last snapshot
	restores       atomic.Int64

	mu      sync.Mutex // held while subscribers are called and the view changes
	subs    []*subscription
	waiters waitHeap
}

type hashAt struct {
	index id.Index
	hash  uint64
}

type subscription struct{ fn func(Update) }

var _ raft.FSM = (*fsm)(nil)

func newFSM(track bool) *fsm {
	f := &fsm{track: track, st: state.New()}
	if track {
		f.st.TrackHash()
	}
	f.view.Store(f.st.View())
	return f
}

// outcome is what Apply answers to the combiner on the leader.
type outcome struct {
	index   uint64
	term    uint64
	settled []state.Settled
}

// Apply implements raft.FSM. The order is what zkcompat stands on: subscribers have their events before the new view can
// be read, and waiters go on after both.
func (f *fsm) Apply(l *raft.Log) any {
	if f.newer {
		return outcome{index: l.Index, term: l.Term}
	}
	defer func() {
		switch r := recover().(type) {
		case nil:
		case *state.Newer: // a log line and an exit tell more than a stack
			f.newer = true
			f.onNewer(fmt.Errorf("raftmeta: %w", r))
		default:
			panic(r)
		}
	}()
	a := f.st.Apply(id.Index(l.Index), id.Term(l.Term), l.Data)
	f.bytes.Add(int64(len(l.Data)) + 64)
	f.entries.Add(1)
	f.publish(Update{View: a.View, Changes: a.Changes})
	f.onSettled(f.st, a.Settled)
	return outcome{l.Index, l.Term, a.Settled}
}

func (f *fsm) publish(u Update) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.subs {
		s.fn(u)
	}
	if f.track {
		f.hash.Store(&hashAt{u.View.Index(), f.st.Hash()})
	}
	f.view.Store(u.View)
	for len(f.waiters) > 0 && f.waiters[0].index <= u.View.Index() {
		close(heap.Pop(&f.waiters).(*indexWaiter).done)
	}
}

// Snapshot implements raft.FSM.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	if f.newer {
		return nil, errors.New("raftmeta: no snapshot of a state that stopped before an entry of a newer build")
	}
	return &fsmSnapshot{f: f, snap: f.st.Snapshot(), bytes: f.bytes.Load(), entries: f.entries.Load()}, nil
}

type fsmSnapshot struct {
	f              *fsm
	snap           *state.Snapshot
	bytes, entries int64
}

// Persist implements raft.FSMSnapshot.
func (s *fsmSnapshot) Persist(k raft.SnapshotSink) error {
	if _, err := s.snap.WriteTo(k); err != nil {
		return err // raft cancels the sink
	}
	if err := k.Close(); err != nil {
		return err
	}
	s.f.bytes.Add(-s.bytes)
	s.f.entries.Add(-s.entries)
	return nil
}

// Release implements raft.FSMSnapshot.
func (s *fsmSnapshot) Release() {}

// Restore implements raft.FSM.
func (f *fsm) Restore(r io.ReadCloser) error {
	if f.broken != nil {
		return f.broken
	}
	st, err := state.Restore(r, f.track)
	if err != nil {
		f.broken = fmt.Errorf("raftmeta: restore: %w", err)
		f.onBroken()
		return f.broken
	}
	f.st = st
	f.restores.Add(1)
	f.bytes.Store(0)
	f.entries.Store(0)
	f.publish(Update{View: st.View(), Reset: true})
	f.onRestore(st)
	return nil
}

func (f *fsm) subscribe(fn func(Update)) (*state.View, func()) {
	s := &subscription{fn}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.subs = append(f.subs[:len(f.subs):len(f.subs)], s)
	return f.view.Load(), func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		var rest []*subscription
		for _, x := range f.subs {
			if x != s {
				rest = append(rest, x)
			}
		}
		f.subs = rest
	}
}

type indexWaiter struct {
	index id.Index
	done  chan struct{}
	pos   int
}

type waitHeap []*indexWaiter

func (h waitHeap) Len() int           { return len(h) }
func (h waitHeap) Less(i, j int) bool { return h[i].index < h[j].index }
func (h waitHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].pos, h[j].pos = i, j }
func (h *waitHeap) Push(x any) {
	w := x.(*indexWaiter)
	w.pos = len(*h)
	*h = append(*h, w)
}
func (h *waitHeap) Pop() any {
	old := *h
	w := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	w.pos = -1
	return w
}

func (f *fsm) waitIndex(ctx context.Context, stopped <-chan struct{}, index id.Index) error {
	if f.view.Load().Index() >= index {
		return nil
	}
	w := &indexWaiter{index: index, done: make(chan struct{})}
	f.mu.Lock()
	if f.view.Load().Index() >= index {
		f.mu.Unlock()
		return nil
	}
	heap.Push(&f.waiters, w)
	f.mu.Unlock()
	var err error
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
		err = fmt.Errorf("raftmeta: waiting for entry %d, applied %d: %w", index, f.view.Load().Index(), ctx.Err())
	case <-stopped:
		err = ErrStopped
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if w.pos >= 0 {
		heap.Remove(&f.waiters, w.pos)
	}
	return err
}
