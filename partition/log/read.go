package log

import (
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/vfs"
	"github.com/barnabas-mq/barnabas/partition/record"
)

// Fetch says what to read.
type Fetch struct {
	// Offset is wanted first; the first batch may begin below it.
	Offset id.Offset
	// MaxBytes bounds the result.
	MaxBytes int
	// UpTo is exclusive: no batch that reaches it. Above the log end it means the log end.
	UpTo id.Offset
	// MinOneBatch returns the first batch even if it is larger than MaxBytes (KIP-74).
	MinOneBatch bool
	// Buf is used for the result if it is large enough.
	Buf []byte
}

// All as Fetch.UpTo reads to the log end.
const All id.Offset = math.MaxInt64

// Read returns whole, checked batches of one segment that continue from Offset; none if there is nothing to read. It runs beside
// everything else. Errors: ErrOffsetOutOfRange, *CorruptError (if the first batch is bad: batches before a bad one are returned),
// ErrClosed, the disk's.
func (l *Log) Read(f Fetch) ([]byte, error) {
	for {
		v := l.view.Load()
		if v.closed {
			return nil, fmt.Errorf("%s: %w", l.dir, ErrClosed)
		}
		data, err := l.readView(v, f)
		if l.view.Load().gen == v.gen {
			return data, err
		}
		// What was read may have been cut and written anew meanwhile.
	}
}

func (l *Log) readView(v *view, f Fetch) ([]byte, error) {
	if f.Offset < v.start || f.Offset > v.end {
		return nil, fmt.Errorf("%w: %d is not in [%d, %d]", ErrOffsetOutOfRange, f.Offset, v.start, v.end)
	}
	limit := min(f.UpTo, v.end)
	for i := v.find(f.Offset); i <= len(v.sealed); i++ {
		if f.Offset >= limit {
			return nil, nil
		}
		r := l.reader(v, i)
		data, err := r.read(f, limit)
		if err != nil || len(data) > 0 || i == len(v.sealed) || r.more {
			return data, err
		}
		// Compaction took the rest of the segment.
		f.Offset = max(f.Offset, r.next)
	}
	return nil, nil
}

// segmentReader reads one segment in the state of one view.
type segmentReader struct {
	fs    vfs.FS
	dir   string
	base  id.Offset
	next  id.Offset // base of the next segment, or the log end
	log   vfs.File
	size  int64
	holes bool
	floor func(rel int64) int64
	more  bool // the wanted batch is there, but was not to be returned
}

func (l *Log) reader(v *view, i int) *segmentReader {
	r := &segmentReader{fs: l.fs, dir: l.dir, holes: l.holes.Load()}
	if i < len(v.sealed) {
		s := v.sealed[i]
		r.base, r.next, r.log, r.size = s.base, s.next, s.log, s.size
		r.floor = func(rel int64) int64 { return filePosition(l.fs, l.dir, s, rel) }
		return r
	}
	a := &v.active
	r.base, r.next, r.log, r.size = a.base, v.end, a.log, a.size
	r.floor = func(rel int64) int64 { return floorPosition(a.index, rel) }
	return r
}

func (r *segmentReader) corrupt(pos int64, offset id.Offset, cause error) error {
	return &CorruptError{Dir: r.dir, Segment: r.base, Position: pos, Offset: offset, Cause: cause}
}

// locate finds the batch that holds offset, or the first after it. What the index says is only a hint: if it leads nowhere, or
// past the offset, the segment is walked from its start.
func (r *segmentReader) locate(offset id.Offset) (pos, size int64, found bool, err error) {
	base := id.Offset(-1)
	reach := func(b record.Batch) bool {
		base = b.BaseOffset()
		return b.LastOffset() >= offset
	}
	from := r.floor(int64(offset - r.base))
	pos, size, found, err = seek(r.log, from, r.size, reach)
	if from > 0 && (errors.Is(err, record.ErrCorrupt) || err == nil && (!found || base > offset)) {
		pos, size, found, err = seek(r.log, 0, r.size, reach)
	}
	if errors.Is(err, record.ErrCorrupt) {
		err = r.corrupt(pos, offset, err)
	}
	return pos, size, found, err
}

func (r *segmentReader) read(f Fetch, limit id.Offset) ([]byte, error) {
	pos, first, found, err := r.locate(f.Offset)
	if err != nil {
		return nil, err
	}
	if !found {
		if !r.holes {
			return nil, r.corrupt(r.size, f.Offset, fmt.Errorf("%w: the segment ends before offset %d, the next begins at %d", record.ErrCorrupt, f.Offset, r.next))
		}
		return nil, nil
	}
	want := min(int64(max(f.MaxBytes, 0)), r.size-pos)
	if first > want {
		if !f.MinOneBatch {
			r.more = true
			return nil, nil
		}
		want = first
	}
	buf := f.Buf
	if int64(cap(buf)) < want {
		buf = make([]byte, want)
	}
	buf = buf[:want]
	if n, err := r.log.ReadAt(buf, pos); err != nil && !(err == io.EOF && int64(n) == want) {
		if errors.Is(err, io.EOF) {
			return nil, r.corrupt(pos, f.Offset, fmt.Errorf("%w: the file is shorter than its %d bytes", record.ErrCorrupt, r.size))
		}
		return nil, err
	}
	n, err := r.check(buf, f.Offset, limit)
	if err != nil && n == 0 {
		return nil, r.corrupt(pos, f.Offset, err)
	}
	r.more = n == 0
	return buf[:n], nil
}

// check says how many bytes of buf are good whole batches below limit, and why it stopped if not for size or limit.
func (r *segmentReader) check(buf []byte, offset, limit id.Offset) (n int, err error) {
	next := id.Offset(-1)
	for n < len(buf) {
		size, _, err := record.Peek(buf[n:])
		if len(buf)-n < record.HeaderSize || err == nil && size > int64(len(buf)-n) {
			return n, nil // the rest of buf is a part of a batch
		}
		b, _, err := record.Next(buf[n:])
		if err == nil {
			err = b.Check()
		}
		if err != nil {
			return n, err
		}
		if next < 0 && !r.holes && (b.BaseOffset() > offset || b.LastOffset() < offset) {
			return n, fmt.Errorf("%w: offset %d is missing, found %d to %d", record.ErrCorrupt, offset, b.BaseOffset(), b.LastOffset())
		}
		if next >= 0 {
			if err := follows(b, next, r.holes); err != nil {
				return n, err
			}
		}
		if b.LastOffset() >= limit {
			return n, nil
		}
		next = b.LastOffset() + 1
		n += len(b)
	}
	return n, nil
}

// TimedOffset is a record found by time.
type TimedOffset struct {
	Offset      id.Offset
	Timestamp   int64
	LeaderEpoch id.LeaderEpoch
}

// OffsetForTime finds the first record, at or after the log start, whose timestamp is at least ts (ListOffsets v1, KIP-79). Records
// are unpacked with a codec of its own, bounded by record.DefaultMaxUnpacked. found is false if all are older.
func (l *Log) OffsetForTime(ts int64) (t TimedOffset, found bool, err error) {
	return l.byTime(func(v *view) (TimedOffset, bool, error) {
		for i := v.find(v.start); i <= len(v.sealed); i++ {
			m, times, err := l.segmentTimes(v, i)
			if err != nil {
				return t, false, err
			}
			if m.maxTS < ts {
				continue
			}
			r := l.reader(v, i)
			if t, found, err := r.firstWith(r.base+id.Offset(floorTime(times, ts)), v.start, func(batch, rec int64) bool { return batch >= ts && rec >= ts }); found || err != nil {
				return t, found, err
			}
		}
		return t, false, nil
	})
}

// OffsetOfMaxTimestamp finds the first record with the largest timestamp (ListOffsets v7, KIP-734).
func (l *Log) OffsetOfMaxTimestamp() (t TimedOffset, found bool, err error) {
	return l.byTime(func(v *view) (TimedOffset, bool, error) {
		best, at := maxTimestamp{maxTS: record.NoTimestamp}, -1
		for i := v.find(v.start); i <= len(v.sealed); i++ {
			m := v.active.maxTimestamp
			if i < len(v.sealed) {
				m = v.sealed[i].maxTimestamp
			}
			if m.maxTS > best.maxTS {
				best, at = m, i
			}
		}
		if at < 0 {
			return t, false, nil
		}
		r := l.reader(v, at)
		return r.firstWith(best.maxTSOffset, v.start, func(_, rec int64) bool { return rec >= best.maxTS })
	})
}

func (l *Log) byTime(find func(*view) (TimedOffset, bool, error)) (TimedOffset, bool, error) {
	for {
		v := l.view.Load()
		if v.closed {
			return TimedOffset{}, false, fmt.Errorf("%s: %w", l.dir, ErrClosed)
		}
		t, found, err := find(v)
		if found {
			t.LeaderEpoch = epochAt(v.epochs, t.Offset)
		}
		if l.view.Load().gen == v.gen {
			return t, found, err
		}
	}
}

func (l *Log) segmentTimes(v *view, i int) (maxTimestamp, []timeEntry, error) {
	if i == len(v.sealed) {
		return v.active.maxTimestamp, v.active.times, nil
	}
	s := v.sealed[i]
	_, times, err := loadIndexes(l.fs, l.dir, s.base, s.size)
	if err != nil && (errors.Is(err, errBadIndex) || errors.Is(err, vfs.ErrNotExist)) {
		times, err = nil, nil // the search begins at the segment's start
	}
	return s.maxTimestamp, times, err
}

// firstWith finds the first record that match likes, by the batch's largest timestamp and the record's, in the batches from the one
// that holds from, and not below start.
func (r *segmentReader) firstWith(from, start id.Offset, match func(batch, rec int64) bool) (TimedOffset, bool, error) {
	codecs := record.NewCodecs(0)
	from = max(from, start)
	for {
		var largest int64
		wanted := func(b record.Batch) bool {
			largest = b.MaxTimestamp()
			return b.LastOffset() >= from && match(largest, largest)
		}
		pos, size, found, err := seek(r.log, r.floor(int64(from-r.base)), r.size, wanted)
		if errors.Is(err, record.ErrCorrupt) { // the index may be what is damaged
			pos, size, found, err = seek(r.log, 0, r.size, wanted)
		}
		if errors.Is(err, record.ErrCorrupt) {
			err = r.corrupt(pos, from, err)
		}
		if err != nil || !found {
			return TimedOffset{}, false, err
		}
		buf := make([]byte, size)
		if n, err := r.log.ReadAt(buf, pos); int64(n) < size {
			return TimedOffset{}, false, r.corrupt(pos, from, fmt.Errorf("%w: %w", record.ErrCorrupt, err))
		}
		b := record.Batch(buf)
		if err := b.Check(); err != nil {
			return TimedOffset{}, false, r.corrupt(pos, from, err)
		}
		records, err := codecs.Records(b)
		if err != nil {
			return TimedOffset{}, false, err
		}
		var rec record.Record
		for {
			more, err := records.Next(&rec)
			if err != nil {
				return TimedOffset{}, false, err
			}
			if !more {
				break
			}
			if rec.Offset >= start && match(largest, rec.Timestamp) {
				return TimedOffset{Offset: rec.Offset, Timestamp: rec.Timestamp}, true, nil
			}
		}
		from = b.LastOffset() + 1
	}
}
