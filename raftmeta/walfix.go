package raftmeta

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// openWAL opens raft-wal 0.4.0 around five faults of it, each with a test in walfix_test.go:
//
//   - A segment whose tail was truncated is marked sealed without an index; after a reopen no entry of it can be read
//     ("sealed segment has no index block"). walFiler.Open then scans the file, as for an unsealed one.
//   - A kill after a segment's last append and before its rotation leaves a tail that refuses every append for ever
//     (ErrSealed). finishRotation completes the rotation before the log is opened.
//   - DeleteRange does not wait for a rotation under way, which would then seal the new tail in place of the old one.
//     walLog waits for it.
//   - GetLog still answers for entries of the tail segment that were deleted from the front. walLog checks.
//   - Close leaves the meta store open, and with it its lock.
func openWAL(dir string, segmentBytes int, log *slog.Logger) (*walLog, error) {
	meta := &metadb.BoltMetaDB{}
	filer := &walFiler{SegmentFiler: segment.NewFiler(dir, walFS{fs.New()})}
	filer.idle = sync.NewCond(&filer.mu)
	if err := finishRotation(dir, meta, filer.SegmentFiler, segmentBytes, log); err != nil {
		return nil, errors.Join(fmt.Errorf("raftmeta: repair log %s: %w", dir, err), meta.Close())
	}
	w, err := wal.Open(dir, wal.WithMetaStore(meta), wal.WithSegmentFiler(filer), wal.WithSegmentSize(segmentBytes),
		wal.WithLogger(newHclog(log, "raft-wal")))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("raftmeta: open log %s: %w", dir, err), meta.Close())
	}
	return &walLog{WAL: w, filer: filer, meta: meta}, nil
}

// walLog is the log store over raft-wal. It is not a raft.MonotonicLogStore to raft, see healStore.
type walLog struct {
	*wal.WAL
	filer *walFiler
	meta  *metadb.BoltMetaDB
}

var _ raft.LogStore = (*walLog)(nil)

// DeleteRange implements raft.LogStore. What deletes the end of the log is raft's main goroutine, which is also the only one
// that appends, so no rotation begins while this runs; a deletion at the front does not touch the tail.
func (l *walLog) DeleteRange(lo, hi uint64) error {
	l.filer.waitRotation()
	return l.WAL.DeleteRange(lo, hi)
}

// GetLog implements raft.LogStore.
func (l *walLog) GetLog(index uint64, e *raft.Log) error {
	first, err := l.WAL.FirstIndex()
	if err != nil {
		return err
	}
	if index < first {
		return raft.ErrLogNotFound
	}
	return l.WAL.GetLog(index, e)
}

// Close closes the log and its meta store.
func (l *walLog) Close() error {
	l.filer.waitRotation()
	return errors.Join(l.WAL.Close(), l.meta.Close())
}

// walFiler knows of rotations: one is under way from when a segment reports that it is sealed until the next is created.
type walFiler struct {
	types.SegmentFiler
	mu       sync.Mutex
	idle     *sync.Cond
	rotating bool
}

const rotationLimit = 10 * time.Second

// waitRotation waits for a rotation under way; one that failed inside raft-wal, which only logs it, ends the waiting after
// rotationLimit.
func (f *walFiler) waitRotation() {
	t := time.AfterFunc(rotationLimit, func() { f.set(false) })
	defer t.Stop()
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.rotating {
		f.idle.Wait()
	}
}

func (f *walFiler) set(rotating bool) {
	f.mu.Lock()
	f.rotating = rotating
	f.mu.Unlock()
	f.idle.Broadcast()
}

// Create implements types.SegmentFiler.
func (f *walFiler) Create(info types.SegmentInfo) (types.SegmentWriter, error) {
	w, err := f.SegmentFiler.Create(info)
	f.set(false)
	if err != nil {
		return nil, err
	}
	return walWriter{w, f}, nil
}

// RecoverTail implements types.SegmentFiler.
func (f *walFiler) RecoverTail(info types.SegmentInfo) (types.SegmentWriter, error) {
	w, err := f.SegmentFiler.RecoverTail(info)
	if err != nil {
		return nil, err
	}
	return walWriter{w, f}, nil
}

// Open implements types.SegmentFiler.
func (f *walFiler) Open(info types.SegmentInfo) (types.SegmentReader, error) {
	if info.IndexStart == 0 {
		return f.SegmentFiler.RecoverTail(info)
	}
	return f.SegmentFiler.Open(info)
}

type walWriter struct {
	types.SegmentWriter
	f *walFiler
}

// Sealed implements types.SegmentWriter; raft-wal asks after every append and rotates when it is true.
func (w walWriter) Sealed() (bool, uint64, error) {
	sealed, index, err := w.SegmentWriter.Sealed()
	if sealed && err == nil {
		w.f.set(true)
	}
	return sealed, index, err
}

// finishRotation seals a tail segment that is full in its file but not in the meta store, and begins the next one.
func finishRotation(dir string, meta types.MetaStore, filer types.SegmentFiler, segmentBytes int, log *slog.Logger) error {
	st, err := meta.Load(dir)
	if err != nil || len(st.Segments) == 0 {
		return err
	}
	tail := &st.Segments[len(st.Segments)-1]
	if !tail.SealTime.IsZero() {
		return nil
	}
	w, err := filer.RecoverTail(*tail)
	if errors.Is(err, os.ErrNotExist) {
		return nil // raft-wal makes it
	}
	if err != nil {
		return err
	}
	sealed, _, err := w.Sealed()
	last := w.LastIndex()
	if err = errors.Join(err, w.Close()); err != nil || !sealed {
		return err
	}
	log.Info("completing the rotation of a log segment after a kill", "base", tail.BaseIndex, "last", last)
	next := types.SegmentInfo{
		ID: st.NextSegmentID, BaseIndex: tail.BaseIndex, MinIndex: tail.BaseIndex, SizeLimit: uint32(segmentBytes),
		Codec: tail.Codec, CreateTime: time.Now(),
	}
	if last == 0 { // nothing in it was committed: the new one takes its place, the file is removed at open
		st.Segments = st.Segments[:len(st.Segments)-1]
	} else {
		// IndexStart stays 0: the index block itself may not be whole, and Open scans.
		tail.SealTime, tail.MaxIndex = time.Now(), last
		next.BaseIndex, next.MinIndex = last+1, last+1
	}
	st.NextSegmentID++
	st.Segments = append(st.Segments, next)
	return meta.CommitState(st)
}
