package raftmeta

import (
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"
)

// errGap says that an append would leave a hole in the log which no local snapshot covers. raft answers it by
// stepping down (leader) or refusing the request (follower).
var errGap = errors.New("raftmeta: append would leave a gap in the log")

// ErrLogBehindSnapshot is returned at open when the log begins after the end of the newest readable snapshot: entries
// are missing, and a voter that went on could forget what it acknowledged. Remove the data directory and join again.
var ErrLogBehindSnapshot = errors.New("raftmeta: the log begins after the newest readable snapshot ends")

// snapRef names the last entry that a snapshot contains.
type snapRef struct{ index, term uint64 }

// healStore is the log that raft sees. It keeps log and snapshot consistent where raft 1.7.3 does not:
//
//   - After a *received* snapshot is final the log stays only if it holds exactly the snapshot's last entry (index and
//     term; Raft paper, figure 13, rules 6 and 7), or at open begins right after it. Else all of it is deleted.
//     A bare bolt log keeps stale entries below the snapshot and never compares terms; a bare raft-wal killed between
//     "snapshot final" and "old log removed" ends below the snapshot and refuses every append for ever.
//   - An append that would leave a gap which a local snapshot covers deletes the log first; any other gap is refused.
//   - When the deleted log reached up to the snapshot's end or past it, raft's memory of its last index is wrong and the instance must be
//     opened again: reopen is called.
//   - The snapshot's own last entry can be asked for when the log begins right after it, so that the consistency check
//     of an append to exactly there succeeds (raft looks only at the log's end and would ask for a snapshot for ever).
//
// It does not implement raft.MonotonicLogStore: raft would then delete the whole log after every InstallSnapshot, also a
// tail that this node has acknowledged.
type healStore struct {
	inner  raft.LogStore // raft.LogCache over raft-wal: deletions must pass the cache
	step   func(string)  // test hook at every step, nil otherwise
	reopen func()        // called at most once per heal, from raft's main goroutine; must not block
	// ahead is told, if set, of entries that are about to be written, and of the entry before them; it must not block.
	ahead func(logs []*raft.Log, prevIndex, prevTerm uint64)

	mu   sync.Mutex
	snap snapRef // newest final snapshot
}

var _ raft.LogStore = (*healStore)(nil)

func newHealStore(inner raft.LogStore, reopen func()) *healStore {
	if reopen == nil {
		reopen = func() {}
	}
	return &healStore{inner: inner, reopen: reopen}
}

func (h *healStore) at(step string) {
	if h.step != nil {
		h.step(step)
	}
}

func (h *healStore) snapshot() snapRef {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.snap
}

func (h *healStore) setSnapshot(s snapRef) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.index > h.snap.index {
		h.snap = s
	}
}

// open heals what a kill in the middle of an InstallSnapshot left; s is the newest readable snapshot, zero if none.
// Called before raft sees the log.
func (h *healStore) open(s snapRef) error {
	h.setSnapshot(s)
	first, last, err := h.bounds()
	if err != nil || last == 0 || first == s.index+1 {
		return err
	}
	if first > s.index+1 {
		return fmt.Errorf("%w: first entry %d, snapshot ends at %d", ErrLogBehindSnapshot, first, s.index)
	}
	if s.index == 0 {
		return nil
	}
	_, err = h.dropUnlessHolds(s)
	return err
}

// received makes the log agree with a received snapshot that has just become final.
func (h *healStore) received(s snapRef) error {
	h.setSnapshot(s)
	h.at("heal-begin")
	past, err := h.dropUnlessHolds(s)
	if err != nil {
		h.reopen() // raft goes on without the snapshot that the next open finds: it must not
		return err
	}
	h.at("heal-end")
	if past {
		h.reopen()
	}
	return nil
}

// dropUnlessHolds deletes the whole log unless it holds exactly s; past says that a deleted log reached s or
// beyond: raft then still believes in its last entry, and at s itself in the wrong term.
func (h *healStore) dropUnlessHolds(s snapRef) (past bool, err error) {
	var l raft.Log
	switch err := h.inner.GetLog(s.index, &l); {
	case err == nil && l.Term == s.term:
		return false, nil
	case err != nil && !errors.Is(err, raft.ErrLogNotFound):
		return false, fmt.Errorf("raftmeta: read log entry %d: %w", s.index, err)
	}
	first, last, err := h.bounds()
	if err != nil || last == 0 {
		return false, err
	}
	h.at("heal-delete")
	if err := h.inner.DeleteRange(first, last); err != nil {
		return false, fmt.Errorf("raftmeta: delete log %d..%d that conflicts with snapshot %d: %w", first, last, s.index, err)
	}
	return last >= s.index, nil
}

func (h *healStore) bounds() (first, last uint64, err error) {
	if first, err = h.inner.FirstIndex(); err != nil {
		return 0, 0, fmt.Errorf("raftmeta: first log index: %w", err)
	}
	if last, err = h.inner.LastIndex(); err != nil {
		return 0, 0, fmt.Errorf("raftmeta: last log index: %w", err)
	}
	return first, last, nil
}

// FirstIndex implements raft.LogStore; 0 when empty.
func (h *healStore) FirstIndex() (uint64, error) { return h.inner.FirstIndex() }

// LastIndex implements raft.LogStore; 0 when empty.
func (h *healStore) LastIndex() (uint64, error) { return h.inner.LastIndex() }

// GetLog implements raft.LogStore. For the last entry of the newest snapshot it answers index and term even when the log
// begins after it; the entry then has no data. raft can not send such an entry: sending index i needs the term of i-1.
func (h *healStore) GetLog(index uint64, l *raft.Log) error {
	err := h.inner.GetLog(index, l)
	if err == nil || !errors.Is(err, raft.ErrLogNotFound) {
		return err
	}
	if s := h.snapshot(); s.index == index && index > 1 {
		*l = raft.Log{Index: s.index, Term: s.term, Type: raft.LogNoop}
		return nil
	}
	return raft.ErrLogNotFound
}

// StoreLog implements raft.LogStore.
func (h *healStore) StoreLog(l *raft.Log) error { return h.StoreLogs([]*raft.Log{l}) }

// StoreLogs implements raft.LogStore; see the type for gaps.
func (h *healStore) StoreLogs(logs []*raft.Log) error {
	if len(logs) == 0 {
		return nil
	}
	first, last, err := h.bounds()
	if err != nil {
		return err
	}
	next, s := logs[0].Index, h.snapshot()
	switch {
	case last == 0 && next > s.index+1, last != 0 && next > last+1 && next > s.index+1:
		return fmt.Errorf("%w: entry %d after log end %d and snapshot %d", errGap, next, last, s.index)
	case last != 0 && next > last+1:
		h.at("gap-delete")
		if err := h.inner.DeleteRange(first, last); err != nil {
			return fmt.Errorf("raftmeta: delete log %d..%d below snapshot %d: %w", first, last, s.index, err)
		}
	}
	if h.ahead != nil {
		if next == s.index+1 {
			h.ahead(logs, s.index, s.term)
		} else if prev := new(raft.Log); h.inner.GetLog(next-1, prev) == nil {
			h.ahead(logs, prev.Index, prev.Term)
		}
	}
	h.at("store")
	err = h.inner.StoreLogs(logs)
	h.at("stored")
	return err
}

// DeleteRange implements raft.LogStore.
func (h *healStore) DeleteRange(lo, hi uint64) error {
	first, last, err := h.bounds()
	if err != nil || last == 0 || hi < first || lo > last {
		return err
	}
	h.at("delete")
	err = h.inner.DeleteRange(max(lo, first), min(hi, last))
	h.at("deleted")
	return err
}
