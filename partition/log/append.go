package log

import (
	"fmt"
	"math"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/partition/record"
)

// Appended tells where batches went.
type Appended struct {
	// Base and Last are the first and last offset. An append of nothing has Last = Base-1.
	Base, Last id.Offset
	// Duplicate says that nothing was written: the offsets are those of the first time (KIP-98).
	Duplicate bool
	// Timestamp is the largest timestamp in milliseconds, or record.NoTimestamp.
	Timestamp int64
}

// AppendAsLeader numbers batches from the log end on, stamps them with the leader epoch, and writes them, in place: the bytes are
// changed. They must come from record.PrepareProduce, or be as good: magic 2, whole, CRC right, offsets without holes. All of them
// go or none. now is in milliseconds of the clock that ExpireProducers is called by.
// Nothing is durable before Sync. Errors: ErrOutOfOrderSequence, ErrDuplicateSequence, ErrProducerFenced, ErrStaleEpoch, ErrClosed,
// ErrFailed, record's, and the disk's, after which the log is as it was (or has failed).
func (l *Log) AppendAsLeader(batches []byte, epoch id.LeaderEpoch, now int64) (Appended, error) {
	l.writer.Lock()
	defer l.writer.Unlock()
	v, err := l.writable()
	if err != nil {
		return Appended{}, err
	}
	if epoch < v.latestEpoch() {
		return Appended{}, fmt.Errorf("%w: %d, the log has %d", ErrStaleEpoch, epoch, v.latestEpoch())
	}
	out := Appended{Base: v.end, Last: v.end - 1, Timestamp: record.NoTimestamp}
	for rest := batches; len(rest) > 0; {
		var b record.Batch
		if b, rest, err = record.Next(rest); err != nil {
			return Appended{}, err
		}
		if b.ProducerID() >= 0 {
			old, err := l.writer.producers.judge(b)
			if err != nil {
				return Appended{}, err
			}
			if old != nil && len(b) == len(batches) {
				return Appended{Base: old.base, Last: old.last, Duplicate: true, Timestamp: old.timestamp}, nil
			}
			if old != nil || len(b) != len(batches) {
				return Appended{}, fmt.Errorf("%w: several batches of producer %d in one append", record.ErrInvalidRecord, b.ProducerID())
			}
		}
		b.Assign(out.Last+1, epoch)
		out.Last += id.Offset(b.LastOffsetDelta()) + 1
		out.Timestamp = max(out.Timestamp, b.MaxTimestamp())
	}
	if len(batches) == 0 {
		return out, nil
	}
	if v, err = l.rollIfNeeded(v, batches, int64(len(batches)), out.Last, now); err != nil {
		return Appended{}, err
	}
	return out, l.write(v, batches, now)
}

// AppendAsFollower writes batches as the leader numbered them, after checking each: CRC, and that it continues the log. Batches
// before a bad one are kept. Errors: ErrNotContiguous (or ErrStaleEpoch: the epochs fall) ask for truncation; record.ErrCorrupt for
// another fetch; ErrClosed, ErrFailed; the disk's.
func (l *Log) AppendAsFollower(batches []byte, now int64) (Appended, error) {
	l.writer.Lock()
	defer l.writer.Unlock()
	v, err := l.writable()
	if err != nil {
		return Appended{}, err
	}
	out := Appended{Base: v.end, Last: v.end - 1, Timestamp: record.NoTimestamp}
	for len(batches) > 0 {
		run, bad := l.goodRun(v, batches)
		if len(run.bytes) > 0 {
			if v, err = l.rollIfNeeded(v, batches, run.first, run.firstLast, now); err != nil {
				return out, err
			}
			if err := l.write(v, run.bytes, now); err != nil {
				return out, err
			}
			v = l.view.Load()
			out.Last, out.Timestamp = v.end-1, max(out.Timestamp, run.timestamp)
			batches = batches[len(run.bytes):]
		}
		if bad != nil {
			return out, bad
		}
	}
	return out, nil
}

// run is the batches that go into one segment with one write.
type run struct {
	bytes     []byte
	first     int64     // size of the first batch
	firstLast id.Offset // its last offset
	timestamp int64
}

// goodRun takes checked batches off the front, as many as one segment takes. The first always counts: it may cause a roll.
func (l *Log) goodRun(v *view, batches []byte) (r run, bad error) {
	r.timestamp = record.NoTimestamp
	next, epoch, size := v.end, epochAt(v.epochs, v.end-1), v.active.size
	n := 0
	for rest := batches; len(rest) > 0; {
		b, after, err := record.Next(rest)
		if err == nil {
			err = b.Check()
		}
		if err != nil {
			bad = err
			break
		}
		if err := follows(b, next, l.writer.cfg.Compacted); err != nil {
			bad = fmt.Errorf("%w: batch begins at offset %d, the log ends at %d", ErrNotContiguous, b.BaseOffset(), next)
			break
		}
		if b.LeaderEpoch() < epoch {
			bad = fmt.Errorf("%w: %d at offset %d, after %d", ErrStaleEpoch, b.LeaderEpoch(), b.BaseOffset(), epoch)
			break
		}
		if n == 0 {
			r.first, r.firstLast = int64(len(b)), b.LastOffset()
			if l.mustRoll(v, b, r.first, r.firstLast, math.MinInt64) {
				size = 0
			}
		} else if size+int64(len(b)) > l.writer.cfg.SegmentBytes || b.LastOffset()-v.active.base > math.MaxInt32 {
			break
		}
		size += int64(len(b))
		n += len(b)
		r.timestamp = max(r.timestamp, b.MaxTimestamp())
		next, epoch, rest = b.LastOffset()+1, b.LeaderEpoch(), after
	}
	r.bytes = batches[:n]
	return r, bad
}

// write appends batches to the active segment and publishes the new view. Nobody sees a half-written batch: readers stop at the
// published size, and a failed write is cut off.
func (l *Log) write(v *view, batches []byte, now int64) error {
	next := *v
	a := &next.active
	if a.size+int64(len(batches)) > math.MaxInt32 {
		return fmt.Errorf("%w: %d bytes do not fit a segment", record.ErrTooLarge, len(batches))
	}
	if last := lastOffset(batches); last-a.base > math.MaxInt32 {
		return fmt.Errorf("%w: offset %d is too far from the empty segment's base %d", ErrNotContiguous, last, a.base)
	}
	if _, err := a.log.WriteAt(batches, a.size); err != nil {
		if cutErr := a.log.Truncate(a.size); cutErr != nil {
			return l.fail("cut off a failed write", fmt.Errorf("%w (after %w)", cutErr, err))
		}
		return fmt.Errorf("append to %s: %w", a.log.Name(), err)
	}
	since := l.writer.bytesSince
	epochs := v.epochs
	var err error
	for rest := batches; len(rest) > 0; {
		var b record.Batch
		if b, rest, err = record.Next(rest); err != nil {
			return l.fail("append", err) // both callers checked: a broken invariant
		}
		if n := len(epochs); n == 0 || epochs[n-1].Epoch != b.LeaderEpoch() {
			if epochs, err = addEpoch(epochs, EpochStart{b.LeaderEpoch(), b.BaseOffset()}); err != nil {
				return l.fail("append", err)
			}
		}
		since = a.add(b, since, l.writer.cfg.IndexIntervalBytes)
		l.writer.producers.update(b, now)
		next.end = b.LastOffset() + 1
	}
	l.writer.bytesSince = since
	next.epochs = epochs
	l.publish(&next)
	return nil
}

// lastOffset is that of the last of several good batches.
func lastOffset(batches []byte) (last id.Offset) {
	for len(batches) > 0 {
		b, rest, err := record.Next(batches)
		if err != nil {
			return last
		}
		last, batches = b.LastOffset(), rest
	}
	return last
}

// rollIfNeeded seals the active segment if the batches, of size bytes and up to offset last, should not go into it.
func (l *Log) rollIfNeeded(v *view, batches []byte, size int64, last id.Offset, now int64) (*view, error) {
	b, _, err := record.Next(batches)
	if err != nil {
		return nil, err
	}
	if !l.mustRoll(v, b, size, last, now) {
		return v, nil
	}
	return l.roll(v, now)
}

// mustRoll is LogSegment.shouldRoll. The age is measured between the first batch's timestamp and the new one's; by the clock
// if there are none. An empty segment is rolled only if its base is too far away for the index.
func (l *Log) mustRoll(v *view, b record.Batch, size int64, last id.Offset, now int64) bool {
	a := &v.active
	if last-a.base > math.MaxInt32 {
		return v.end > a.base
	}
	if a.size == 0 {
		return false
	}
	age := now - a.created
	if ts := b.MaxTimestamp(); a.firstTS >= 0 && ts >= 0 {
		age = ts - a.firstTS
	} else if now == math.MinInt64 {
		age = 0
	}
	return a.size+size > l.writer.cfg.SegmentBytes || age > l.writer.cfg.SegmentMs
}

// Roll seals the active segment, unless it is empty, and begins a new one at the log end.
func (l *Log) Roll(now int64) error {
	l.writer.Lock()
	defer l.writer.Unlock()
	v, err := l.writable()
	if err != nil || v.active.size == 0 {
		return err
	}
	_, err = l.roll(v, now)
	return err
}

// roll makes the active segment durable with its indexes and the producer state, and begins a new one. The order is what
// recovery relies on: everything before the newest segment is durable before the newest has a name.
func (l *Log) roll(v *view, now int64) (*view, error) {
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	if _, err := l.syncLocked(); err != nil {
		return nil, err
	}
	if err := v.active.writeIndexes(l.fs, l.dir); err != nil {
		return nil, err
	}
	if err := l.writeEpochs(v.epochs); err != nil {
		return nil, err
	}
	if err := l.writeProducers(v.end); err != nil {
		return nil, err
	}
	a, err := createSegment(l.fs, l.dir, v.end, now)
	if err != nil {
		return nil, err
	}
	next := *v
	next.sealed = append(v.sealed[:len(v.sealed):len(v.sealed)], v.active.seal(v.end))
	next.active = a
	l.writer.bytesSince = 0
	l.writer.recoveryPoint = v.end
	l.publish(&next)
	if err := l.writeCheckpoint(checkpoint{start: v.start, recovery: v.end}); err != nil {
		return nil, err
	}
	return &next, l.pruneProducers(&next)
}
