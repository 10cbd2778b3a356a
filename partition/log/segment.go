package log

import (
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/vfs"
	"github.com/barnabas-mq/barnabas/partition/record"
)

// Suffixes of the files of a segment; the name is the base offset in 20 digits.
const (
	logSuffix       = ".log"
	indexSuffix     = ".index"
	timeIndexSuffix = ".timeindex"
	producersSuffix = ".producers"
)

func segmentPath(dir string, base id.Offset, suffix string) string {
	return filepath.Join(dir, fmt.Sprintf("%020d%s", int64(base), suffix))
}

// parseSegmentName is the inverse of segmentPath for one suffix.
func parseSegmentName(name, suffix string) (id.Offset, bool) {
	digits, ok := strings.CutSuffix(name, suffix)
	if !ok || len(digits) != 20 {
		return 0, false
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 {
		return 0, false
	}
	return id.Offset(n), true
}

// segment is a sealed segment: durable, with its index files. Immutable.
type segment struct {
	base id.Offset
	next id.Offset // base of the segment that follows
	log  vfs.File
	size int64
	maxTimestamp
	firstTS int64 // largest timestamp of the first batch, or NoTimestamp
}

// maxTimestamp is the largest timestamp of a segment and the last offset of the first batch that has it.
type maxTimestamp struct {
	maxTS       int64
	maxTSOffset id.Offset
}

// active is the segment that is written; its indexes are in memory. A value: the view holds one state of it.
type active struct {
	base  id.Offset
	log   vfs.File
	size  int64
	index []indexEntry
	times []timeEntry
	maxTimestamp
	firstTS int64 // largest timestamp of the first batch, for the roll by age; NoTimestamp before the first
	created int64 // milliseconds, for the roll by age without timestamps
}

// newActive describes an empty segment.
func newActive(base id.Offset, f vfs.File, now int64) active {
	return active{base: base, log: f, maxTimestamp: maxTimestamp{record.NoTimestamp, base}, firstTS: record.NoTimestamp, created: now}
}

// createSegment makes the three files of a new segment, durably named.
func createSegment(fsys vfs.FS, dir string, base id.Offset, now int64) (active, error) {
	for _, suffix := range []string{indexSuffix, timeIndexSuffix} {
		f, err := fsys.Create(segmentPath(dir, base, suffix))
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			return active{}, err
		}
	}
	f, err := fsys.Create(segmentPath(dir, base, logSuffix))
	if err != nil {
		return active{}, err
	}
	if err := fsys.SyncDir(dir); err != nil {
		_ = f.Close()
		return active{}, err
	}
	return newActive(base, f, now), nil
}

// add takes note of a batch that lies at position a.size; bytesSince counts bytes since the last index entry. As in Kafka's
// LogSegment: an index entry is a batch's last offset and its position.
func (a *active) add(b record.Batch, bytesSince, interval int64) int64 {
	ts := b.MaxTimestamp()
	if a.size == 0 {
		a.firstTS = ts
	}
	if ts > a.maxTS {
		a.maxTimestamp = maxTimestamp{ts, b.LastOffset()}
	}
	if bytesSince > interval {
		a.index = append(a.index, indexEntry{uint32(b.LastOffset() - a.base), uint32(a.size)})
		a.times = appendTime(a.times, a.base, a.maxTimestamp)
		bytesSince = 0
	}
	a.size += int64(len(b))
	return bytesSince + int64(len(b))
}

// seal turns the active segment's state into a sealed one that ends where next begins.
func (a *active) seal(next id.Offset) *segment {
	return &segment{base: a.base, next: next, log: a.log, size: a.size, maxTimestamp: a.maxTimestamp, firstTS: a.firstTS}
}

// writeIndexes writes and syncs both index files.
func (a *active) writeIndexes(fsys vfs.FS, dir string) error {
	err := writeSynced(fsys, segmentPath(dir, a.base, indexSuffix), encodeIndex(a.index))
	if err != nil {
		return err
	}
	return writeSynced(fsys, segmentPath(dir, a.base, timeIndexSuffix), encodeTimes(appendTime(a.times[:len(a.times):len(a.times)], a.base, a.maxTimestamp)))
}

// writeSynced rewrites a file in place; a crash half-way is found by the scan that follows it.
func writeSynced(fsys vfs.FS, name string, data []byte) error {
	f, err := fsys.Create(name)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, 0)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}

// scanChunk is how much a scan reads at once.
const scanChunk = 1 << 20

// scanEnd says where and why a scan stopped.
type scanEnd struct {
	position int64     // of the first byte that is not a good batch
	next     id.Offset // offset expected there
	cause    error     // nil at the end of the file
}

// scan reads batches from position from, where offset next is expected, to position size, checks them, and calls fn with each and
// its position. Errors of the disk and of fn are returned; bad bytes only end the scan.
func scan(f vfs.File, from, size int64, next id.Offset, holes bool, fn func(b record.Batch, pos int64) error) (scanEnd, error) {
	end := scanEnd{position: from, next: next}
	var buf []byte
	var have []byte // unread part of buf
	for end.position < size {
		need := int64(record.HeaderSize)
		if total, _, err := record.Peek(have); err == nil {
			need = total
		}
		if int64(len(have)) < need {
			want := min(max(need, scanChunk), size-end.position)
			if want < need {
				end.cause = fmt.Errorf("%w: batch of %d bytes is cut off after %d", record.ErrCorrupt, need, want)
				return end, nil
			}
			if int64(cap(buf)) < want {
				buf = make([]byte, want)
			}
			n, err := f.ReadAt(buf[:want], end.position)
			if err != nil && !(err == io.EOF && int64(n) == want) {
				return end, err
			}
			have = buf[:want]
			continue
		}
		b, rest, err := record.Next(have)
		if err == nil {
			err = b.Check()
		}
		if err == nil {
			err = follows(b, end.next, holes)
		}
		if err != nil {
			end.cause = err
			return end, nil
		}
		if err := fn(b, end.position); err != nil {
			return end, err
		}
		have = rest
		end.position += int64(len(b))
		end.next = b.LastOffset() + 1
	}
	return end, nil
}

// follows says whether b may stand where offset next is expected.
func follows(b record.Batch, next id.Offset, holes bool) error {
	if b.BaseOffset() == next || holes && b.BaseOffset() > next {
		return nil
	}
	return fmt.Errorf("%w: batch begins at offset %d, expected %d", record.ErrCorrupt, b.BaseOffset(), next)
}
