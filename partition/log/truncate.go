package log

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sort"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/vfs"
	"github.com/barnabas-mq/barnabas/partition/record"
)

// errStop ends a scan that has seen enough.
var errStop = errors.New("stop")

// TruncateTo removes every batch that holds offset or a later one, durably, and what epochs and producer state say of them; it
// returns the new log end, which is below offset if that lay within a batch. At or above the log end only epochs without records
// that begin there go. Below the log start it is TruncateFullyAndStartAt. It also cuts at damage that lies before offset.
// After an error the log has failed.
func (l *Log) TruncateTo(offset id.Offset) (id.Offset, error) {
	l.writer.Lock()
	defer l.writer.Unlock()
	v, err := l.writable()
	if err != nil {
		return 0, err
	}
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	switch {
	case offset >= v.end:
		next := *v
		next.epochs = cutEpochs(v.epochs, offset)
		l.publish(&next)
		return v.end, nil
	case offset < v.start:
		return offset, l.restartAt(v, offset, 0)
	}
	end, err := l.cut(v, offset)
	if err != nil {
		return 0, l.fail(fmt.Sprintf("truncate to %d", offset), err)
	}
	return end, nil
}

// cut does the work of TruncateTo for an offset in the log.
func (l *Log) cut(v *view, offset id.Offset) (id.Offset, error) {
	i := v.find(offset)
	next := *v
	next.gen++
	next.sealed = v.sealed[:i:i]
	var since int64
	var err error
	next.active, next.end, since, err = l.reopenAt(v, i, offset)
	if err != nil {
		return 0, err
	}
	next.epochs = cutEpochs(v.epochs, next.end)
	next.start = min(v.start, next.end) // lower only if the log start lay within a batch that goes
	recovery := min(l.writer.recoveryPoint, next.active.base)
	if err := l.writeCheckpoint(checkpoint{start: next.start, recovery: recovery}); err != nil {
		return 0, err
	}
	// Readers leave what goes before it goes.
	l.publish(&next)
	l.writer.recoveryPoint, l.writer.bytesSince = recovery, since
	l.synced.Store(min(l.synced.Load(), int64(next.end)))
	// Newest first, each durable before the next: whatever a crash leaves has no hole.
	if i < len(v.sealed) {
		if err := l.removeSegment(v.active.base, v.active.log); err != nil {
			return 0, err
		}
		for _, s := range slices.Backward(v.sealed[i+1:]) {
			if err := l.removeSegment(s.base, s.log); err != nil {
				return 0, err
			}
		}
	}
	if err := next.active.log.Truncate(next.active.size); err != nil {
		return 0, err
	}
	if err := next.active.log.Sync(); err != nil {
		return 0, err
	}
	l.synced.Store(int64(next.end))
	if err := l.writeEpochs(next.epochs); err != nil {
		return 0, err
	}
	old := l.writer.producers
	l.writer.producers, err = l.rebuildProducers(&next, func(pid int64) int64 {
		if p := old[pid]; p != nil {
			return p.lastSeen
		}
		return 0
	})
	return next.end, err
}

// reopenAt is the state of segment i as the active one, cut before the batch that holds offset. It resumes at the last index entry
// before the cut, and reads from there.
func (l *Log) reopenAt(v *view, i int, offset id.Offset) (a active, end id.Offset, since int64, err error) {
	if i == len(v.sealed) {
		a = v.active
	} else {
		s := v.sealed[i]
		a = active{base: s.base, log: s.log, size: s.size, firstTS: s.firstTS}
		if a.index, a.times, err = loadIndexes(l.fs, l.dir, s.base, s.size); err != nil {
			a.index, a.times = nil, nil
		}
	}
	size, rel := a.size, int64(offset-a.base)
	n := sort.Search(len(a.index), func(i int) bool { return int64(a.index[i].offset) >= rel })
	at, next := indexEntry{}, a.base
	m := 0
	if n > 0 {
		at = a.index[n-1]
		m = sort.Search(len(a.times), func(i int) bool { return a.times[i].offset > at.offset })
	}
	a.index, a.times = a.index[:n:n], a.times[:m:m]
	a.maxTimestamp = maxTimestamp{record.NoTimestamp, a.base}
	if m > 0 {
		a.maxTimestamp = maxTimestamp{a.times[m-1].timestamp, a.base + id.Offset(a.times[m-1].offset)}
	}
	a.size = int64(at.position)
	holes := true // the first batch at an index entry begins at an offset that is not known here
	if n == 0 {
		holes = l.writer.cfg.Compacted
	}
	found, err := scan(a.log, a.size, size, next, holes, func(b record.Batch, _ int64) error {
		if b.LastOffset() >= offset {
			return errStop
		}
		since = a.add(b, since, l.writer.cfg.IndexIntervalBytes)
		return nil
	})
	if err != nil && !errors.Is(err, errStop) {
		return a, 0, 0, err
	}
	return a, min(found.next, offset), since, nil
}

// removeSegment deletes the files of a segment, durably.
func (l *Log) removeSegment(base id.Offset, f vfs.File) error {
	if err := removeFiles(l.fs, l.dir, base, logSuffix, indexSuffix, timeIndexSuffix); err != nil {
		return err
	}
	if err := l.fs.SyncDir(l.dir); err != nil {
		return err
	}
	return f.Close()
}

func removeFiles(fsys vfs.FS, dir string, base id.Offset, suffixes ...string) error {
	for _, suffix := range suffixes {
		if err := fsys.Remove(segmentPath(dir, base, suffix)); err != nil && !errors.Is(err, vfs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// rebuildProducers loads the newest usable producers file and replays the batches after it. Files beyond the end are removed,
// durably: a later log must not meet them.
func (l *Log) rebuildProducers(v *view, lastSeen func(pid int64) int64) (producers, error) {
	offsets, err := producerFiles(l.fs, l.dir)
	if err != nil {
		return nil, err
	}
	removed := false
	for _, o := range offsets {
		if o > v.end {
			removed = true
			if err := removeFiles(l.fs, l.dir, o, producersSuffix); err != nil {
				return nil, err
			}
		}
	}
	if removed {
		if err := l.fs.SyncDir(l.dir); err != nil {
			return nil, err
		}
	}
	ps, from, err := loadProducers(l.fs, l.dir, v.end)
	if err != nil || from >= v.end {
		return ps, err
	}
	err = l.headers(v, from, func(b record.Batch) {
		if b.BaseOffset() >= from && b.LastOffset() < v.end {
			ps.update(b, lastSeen(b.ProducerID()))
		}
	})
	return ps, err
}

// headers calls fn with the header of each batch that reaches from or more. Damage in a sealed segment ends that segment.
func (l *Log) headers(v *view, from id.Offset, fn func(record.Batch)) error {
	for i := v.find(from); i <= len(v.sealed); i++ {
		r := l.reader(v, i)
		_, _, _, err := seek(r.log, r.floor(max(0, int64(from-r.base))), r.size, func(b record.Batch) bool {
			if b.LastOffset() >= from {
				fn(b)
			}
			return false
		})
		if err != nil && !errors.Is(err, record.ErrCorrupt) {
			return err
		}
	}
	return nil
}

// TruncateFullyAndStartAt empties the log and lets it begin and end at offset: a follower whose leader has nothing older. now is as
// for appends. After an error the log has failed.
func (l *Log) TruncateFullyAndStartAt(offset id.Offset, now int64) error {
	l.writer.Lock()
	defer l.writer.Unlock()
	v, err := l.writable()
	if err != nil {
		return err
	}
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	return l.restartAt(v, offset, now)
}

func (l *Log) restartAt(v *view, offset id.Offset, now int64) error {
	if offset < 0 {
		return fmt.Errorf("%w: a log cannot start at %d", ErrOffsetOutOfRange, offset)
	}
	if err := l.restart(v, offset, now); err != nil {
		return l.fail(fmt.Sprintf("start anew at %d", offset), err)
	}
	return nil
}

func (l *Log) restart(v *view, offset id.Offset, now int64) error {
	if err := l.writeCheckpoint(checkpoint{start: offset, recovery: min(l.writer.recoveryPoint, v.start, offset)}); err != nil {
		return err
	}
	next := view{gen: v.gen + 1, start: offset, end: offset, active: newActive(offset, nil, now)}
	l.synced.Store(int64(offset))
	l.publish(&next)
	if err := l.removeSegment(v.active.base, v.active.log); err != nil {
		return err
	}
	for _, s := range slices.Backward(v.sealed) {
		if err := l.removeSegment(s.base, s.log); err != nil {
			return err
		}
	}
	if err := l.forget(); err != nil {
		return err
	}
	a, err := createSegment(l.fs, l.dir, offset, now)
	if err != nil {
		return err
	}
	ready := next
	ready.active = a
	l.writer.producers, l.writer.bytesSince, l.writer.recoveryPoint = producers{}, 0, offset
	l.publish(&ready)
	return l.writeCheckpoint(checkpoint{start: offset, recovery: offset})
}

// forget removes, durably, what is known of records that are gone: a log that starts anew must not take a new batch for a duplicate
// of an old one, nor a new leader's epoch for stale.
func (l *Log) forget() error {
	offsets, err := producerFiles(l.fs, l.dir)
	if err != nil {
		return err
	}
	for _, o := range offsets {
		if err := removeFiles(l.fs, l.dir, o, producersSuffix); err != nil {
			return err
		}
	}
	_, err = l.fs.Stat(filepath.Join(l.dir, epochsFile))
	if errors.Is(err, vfs.ErrNotExist) && len(offsets) == 0 {
		return nil // a new directory
	}
	return l.writeEpochs(nil) // syncs the directory
}

// SetLogStart raises the log start, durably, and removes the segments that lie below it wholly (DeleteRecords, retention). A lower
// or equal offset does nothing. Producer state stays. Errors: ErrOffsetOutOfRange above the log end, ErrClosed, ErrFailed, the disk's.
func (l *Log) SetLogStart(offset id.Offset) error {
	l.writer.Lock()
	defer l.writer.Unlock()
	v, err := l.writable()
	if err != nil || offset <= v.start {
		return err
	}
	if offset > v.end {
		return fmt.Errorf("%w: log start %d above the log end %d", ErrOffsetOutOfRange, offset, v.end)
	}
	if offset > l.SyncedEnd() { // a durable log start above a log end that a crash could take back would empty the log
		if _, err := l.Sync(); err != nil {
			return err
		}
	}
	if err := l.writeCheckpoint(checkpoint{start: offset, recovery: l.writer.recoveryPoint}); err != nil {
		return err
	}
	next := *v
	next.start = offset
	n := 0
	for n < len(v.sealed) && v.sealed[n].next <= offset {
		n++
	}
	next.sealed = v.sealed[n:]
	next.epochs = cutEpochsBelow(v.epochs, offset)
	next.gen++
	l.publish(&next)
	for _, s := range v.sealed[:n] {
		err = errors.Join(err, removeFiles(l.fs, l.dir, s.base, logSuffix, indexSuffix, timeIndexSuffix), s.log.Close())
	}
	return errors.Join(err, l.pruneProducers(&next))
}
