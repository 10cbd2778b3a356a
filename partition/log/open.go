package log

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/vfs"
	"github.com/barnabas-mq/barnabas/partition/record"
)

// Recovery is what Open found.
type Recovery struct {
	// Clean says that the log was closed in order, so that nothing had to be scanned.
	Clean bool
	// ScannedBytes were read and checked.
	ScannedBytes int64
	// RebuiltIndexes counts the segments whose index files were missing or damaged.
	RebuiltIndexes int
	// CutBytes is what was cut off the newest segment, from offset CutAt on, since it was not a good batch: CutCause. Normal after a
	// crash: what was not synced may be torn.
	CutBytes int64
	CutAt    id.Offset
	CutCause error
	// Rot says that good batches lie behind the bad one: the disk lost bytes in the middle. What was cut is kept in a .damaged file.
	Rot bool
	// LostBelow, unless 0, says that offsets from the log end up to it were durable once and are gone: the replica is not what
	// it promised to be.
	LostBelow id.Offset
	// Damaged are the places in older segments that cannot be read. Nothing was cut there: refetch, or lose the rest.
	Damaged []*CorruptError
}

// Open opens a log, or makes an empty one, and repairs what a crash left: it cuts a torn tail off the newest segment and makes its
// indexes, epochs and producer state anew. Everything that is there afterwards is durable. now is in milliseconds, as for appends: it is
// when producers found by the scan count as seen. Errors: ErrTopicMismatch, a bad Config, the disk's. The caller sees to it that no
// two processes open one directory.
func Open(fsys vfs.FS, dir string, cfg Config, now int64) (*Log, Recovery, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, Recovery{}, fmt.Errorf("open log %s: %w", dir, err)
	}
	o := opener{l: &Log{fs: fsys, dir: dir}, now: now}
	o.l.writer.cfg = cfg
	o.l.holes.Store(cfg.Compacted)
	if err := o.open(); err != nil {
		for _, f := range o.files {
			err = errors.Join(err, f.Close())
		}
		return nil, Recovery{}, fmt.Errorf("open log %s: %w", dir, err)
	}
	o.log()
	return o.l, o.report, nil
}

// opener holds what Open needs on the way.
type opener struct {
	l      *Log
	now    int64
	files  []vfs.File
	cp     checkpoint
	report Recovery
	v      view
	// What scans found: the epochs from offset epochsFrom on.
	scanned     []EpochStart
	scannedFrom id.Offset
	// epochsOnDisk is what the file says; nil if there is none that can be read.
	epochsOnDisk []EpochStart
}

func (o *opener) open() (err error) {
	l := o.l
	if err := vfs.EnsureDir(l.fs, l.dir); err != nil {
		return err
	}
	if err := checkTopic(l.fs, l.dir, l.writer.cfg.TopicID); err != nil {
		return err
	}
	var known bool
	if o.cp, known, err = readCheckpoint(l.fs, l.dir); err != nil {
		return err
	}
	bases, err := o.segments()
	if err != nil {
		return err
	}
	o.scannedFrom = All
	for i, base := range bases[:max(0, len(bases)-1)] {
		if err := o.openSealed(base, bases[i+1]); err != nil {
			return err
		}
	}
	if len(bases) > 0 {
		err = o.openNewest(bases[len(bases)-1])
	} else {
		err = o.create(o.cp.start)
	}
	if err != nil {
		return err
	}
	if err := o.settleStart(); err != nil {
		return err
	}
	if err := o.loadEpochs(); err != nil {
		return err
	}
	l.view.Store(&o.v)
	l.synced.Store(int64(o.v.end))
	l.writer.recoveryPoint = o.v.end
	if l.writer.producers, err = l.rebuildProducers(&o.v, func(int64) int64 { return o.now }); err != nil {
		return err
	}
	if o.report.Clean {
		l.writer.settled = true
		return nil
	}
	if !slices.Equal(o.v.epochs, o.epochsOnDisk) {
		if err := l.writeEpochs(o.v.epochs); err != nil {
			return err
		}
	}
	if !known && o.v.end == 0 && len(o.v.epochs) == 0 && len(l.writer.producers) == 0 {
		// Nothing was ever in it, and no checkpoint says the same as one of zeros. Thousands of partitions are made at once.
		l.writer.settled, o.report.Clean = true, len(bases) > 0
		return nil
	}
	return l.writeCheckpoint(checkpoint{start: o.v.start, recovery: o.v.end})
}

// create makes the first segment of an empty log: a new one, or one whose TruncateFullyAndStartAt was interrupted.
func (o *opener) create(base id.Offset) error {
	if err := o.l.forget(); err != nil {
		return err
	}
	a, err := createSegment(o.l.fs, o.l.dir, base, o.now)
	if err != nil {
		return err
	}
	o.files = append(o.files, a.log)
	o.v.active, o.v.end = a, base
	return nil
}

// segments lists the bases of the segments that count, oldest first. Segments wholly below the log start are the rest of an
// interrupted SetLogStart, index files without a log of an interrupted truncation: they go.
func (o *opener) segments() ([]id.Offset, error) {
	l := o.l
	names, err := l.fs.ReadDir(l.dir)
	if err != nil {
		return nil, err
	}
	var bases []id.Offset
	have := map[id.Offset]bool{}
	for _, name := range names {
		if base, ok := parseSegmentName(name, logSuffix); ok {
			bases = append(bases, base)
			have[base] = true
		}
	}
	for len(bases) > 1 && bases[1] <= o.cp.start {
		if err := removeFiles(l.fs, l.dir, bases[0], logSuffix); err != nil {
			return nil, err
		}
		delete(have, bases[0])
		bases = bases[1:]
	}
	for _, name := range names {
		for _, suffix := range []string{indexSuffix, timeIndexSuffix} {
			if base, ok := parseSegmentName(name, suffix); ok && !have[base] {
				if err := removeFiles(l.fs, l.dir, base, suffix); err != nil {
					return nil, err
				}
			}
		}
		if strings.HasSuffix(name, ".tmp") {
			if err := l.fs.Remove(filepath.Join(l.dir, name)); err != nil {
				return nil, err
			}
		}
	}
	return bases, nil
}

func (o *opener) openFile(base id.Offset) (vfs.File, int64, error) {
	f, err := o.l.fs.OpenRW(segmentPath(o.l.dir, base, logSuffix))
	if err != nil {
		return nil, 0, err
	}
	o.files = append(o.files, f)
	size, err := f.Size()
	return f, size, err
}

func (o *opener) damaged(base id.Offset, end scanEnd) {
	o.report.Damaged = append(o.report.Damaged,
		&CorruptError{Dir: o.l.dir, Segment: base, Position: end.position, Offset: end.next, Cause: end.cause})
}

// openSealed opens a segment that another follows. Its data were durable before that one existed, so whatever is wrong is damage,
// not a crash's doing: it is reported and left alone.
func (o *opener) openSealed(base, next id.Offset) error {
	l := o.l
	f, size, err := o.openFile(base)
	if err != nil {
		return err
	}
	a := newActive(base, f, o.now)
	trusted := false
	if next <= o.cp.recovery {
		var end scanEnd
		if end, trusted, err = o.loadIndexed(&a, size); err != nil {
			return err
		}
		trusted = trusted && end.cause == nil && (end.next == next || l.writer.cfg.Compacted && end.next <= next)
	}
	if !trusted {
		end, err := o.scan(&a, size, next > o.cp.recovery)
		if err != nil {
			return err
		}
		if end.cause == nil && end.next != next && !(l.writer.cfg.Compacted && end.next < next) {
			end.cause = fmt.Errorf("%w: the segment ends at offset %d, the next begins at %d", record.ErrCorrupt, end.next, next)
		}
		if end.cause != nil {
			o.damaged(base, end)
		}
		if err := a.writeIndexes(l.fs, l.dir); err != nil {
			return err
		}
		o.report.RebuiltIndexes++
	}
	a.size = size
	o.v.sealed = append(o.v.sealed, a.seal(next))
	return nil
}

// loadIndexed fills a from the index files and walks the headers behind the last entry. ok is false if the files cannot be used.
func (o *opener) loadIndexed(a *active, size int64) (end scanEnd, ok bool, err error) {
	l := o.l
	end.next = a.base
	a.index, a.times, err = loadIndexes(l.fs, l.dir, a.base, size)
	if errors.Is(err, errBadIndex) || errors.Is(err, vfs.ErrNotExist) {
		return end, false, nil
	}
	if err != nil {
		return end, false, err
	}
	if n := len(a.times); n > 0 {
		a.maxTimestamp = maxTimestamp{a.times[n-1].timestamp, a.base + id.Offset(a.times[n-1].offset)}
	}
	first := true
	_, _, _, err = seek(a.log, 0, size, func(b record.Batch) bool {
		a.firstTS = b.MaxTimestamp()
		first = false
		return true
	})
	if err == nil && !first {
		from := int64(0)
		if n := len(a.index); n > 0 {
			from = int64(a.index[n-1].position)
		}
		l.writer.bytesSince = 0
		end.position, _, _, err = seek(a.log, from, size, func(b record.Batch) bool {
			end.next = b.LastOffset() + 1
			return false
		})
		l.writer.bytesSince = end.position - from
	}
	if errors.Is(err, record.ErrCorrupt) {
		end.cause, err = err, nil
	}
	a.size = size
	return end, true, err
}

// scan reads and checks a whole segment and makes its indexes, in memory, anew. epochs says that all later segments are scanned
// too, so that their epochs are found anew and those of the file do not count.
func (o *opener) scan(a *active, size int64, epochs bool) (scanEnd, error) {
	l := o.l
	*a = newActive(a.base, a.log, o.now)
	since := int64(0)
	if epochs {
		o.scannedFrom = min(o.scannedFrom, a.base)
	}
	end, err := scan(a.log, 0, size, a.base, l.writer.cfg.Compacted, func(b record.Batch, _ int64) error {
		since = a.add(b, since, l.writer.cfg.IndexIntervalBytes)
		if !epochs {
			return nil
		}
		// Epochs that fall cannot be: the first of them stands.
		if found, err := addEpoch(o.scanned, EpochStart{b.LeaderEpoch(), b.BaseOffset()}); err == nil {
			o.scanned = found
		}
		return nil
	})
	l.writer.bytesSince = since
	o.report.ScannedBytes += end.position
	return end, err
}

// openNewest opens the segment that is written. If Close left it as it is, its indexes are good; else it is scanned, and a bad
// tail is cut off.
func (o *opener) openNewest(base id.Offset) error {
	l := o.l
	f, size, err := o.openFile(base)
	if err != nil {
		return err
	}
	a := newActive(base, f, o.now)
	if o.cp.clean && o.cp.activeBase == base && o.cp.activeSize == size {
		end, ok, err := o.loadIndexed(&a, size)
		if err != nil {
			return err
		}
		if ok && end.cause == nil && (end.next == o.cp.recovery || l.writer.cfg.Compacted) {
			o.report.Clean = o.report.ScannedBytes == 0
			o.v.active, o.v.end = a, o.cp.recovery
			return nil
		}
	}
	end, err := o.scan(&a, size, true)
	if err != nil {
		return err
	}
	if end.cause != nil {
		if err := o.cutTail(&a, size, end); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil { // what survived a kill may be in the page cache only
		return err
	}
	o.v.active, o.v.end = a, end.next
	if o.v.end < o.cp.recovery {
		o.report.LostBelow = o.cp.recovery
	}
	return nil
}

// cutTail cuts the newest segment behind its last good batch.
func (o *opener) cutTail(a *active, size int64, end scanEnd) error {
	o.report.CutBytes, o.report.CutAt, o.report.CutCause = size-end.position, end.next, end.cause
	if o.goodBehind(a, size, end) {
		o.report.Rot = true
		name := segmentPath(o.l.dir, a.base, logSuffix) + fmt.Sprintf(".%d.damaged", end.position)
		if err := copyTail(o.l.fs, name, a.log, end.position, size); err != nil {
			return fmt.Errorf("keep what is cut off: %w", err)
		}
	}
	return a.log.Truncate(end.position)
}

// goodBehind says whether a good, later batch follows the bad one.
func (o *opener) goodBehind(a *active, size int64, end scanEnd) bool {
	var prefix [record.HeaderSize]byte
	if n, _ := a.log.ReadAt(prefix[:], end.position); n < len(prefix) {
		return false
	}
	total, _, err := record.Peek(prefix[:])
	if err != nil || total > size-end.position {
		return false
	}
	good := false
	_, err = scan(a.log, end.position+total, size, end.next, true, func(record.Batch, int64) error {
		good = true
		return errStop
	})
	return good && errors.Is(err, errStop)
}

func copyTail(fsys vfs.FS, name string, from vfs.File, pos, size int64) error {
	to, err := fsys.Create(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(vfs.NewWriter(to, 0), io.NewSectionReader(from, pos, size-pos))
	if err == nil {
		err = to.Sync()
	}
	return errors.Join(err, to.Close())
}

// settleStart decides the log start. One above the log end is the rest of an interrupted TruncateFullyAndStartAt, which goes on.
func (o *opener) settleStart() error {
	first := o.v.active.base
	if len(o.v.sealed) > 0 {
		first = o.v.sealed[0].base
	}
	o.v.start = max(o.cp.start, first)
	if o.v.start <= o.v.end {
		return nil
	}
	l := o.l
	err := l.removeSegment(o.v.active.base, o.v.active.log)
	for _, s := range slices.Backward(o.v.sealed) {
		if err == nil {
			err = l.removeSegment(s.base, s.log)
		}
	}
	if err != nil {
		return err
	}
	o.files, o.v = nil, view{start: o.cp.start}
	o.scanned, o.scannedFrom = nil, o.cp.start
	o.report.Clean = false
	o.l.writer.bytesSince = 0
	return o.create(o.cp.start)
}

// loadEpochs takes the file for what was not scanned, and the scan for the rest. Without a good file all headers are read.
func (o *opener) loadEpochs() error {
	l := o.l
	epochs, err := readEpochs(l.fs, l.dir)
	switch {
	case errors.Is(err, errBadEpochs) || errors.Is(err, vfs.ErrNotExist):
		epochs = nil
		v := o.v
		if err := l.headers(&v, 0, func(b record.Batch) {
			if next, err := addEpoch(epochs, EpochStart{b.LeaderEpoch(), b.BaseOffset()}); err == nil {
				epochs = next
			}
		}); err != nil {
			return err
		}
	case err != nil:
		return err
	default:
		o.epochsOnDisk = epochs
		epochs = cutEpochs(epochs, min(o.scannedFrom, o.v.end+1))
		for _, e := range o.scanned {
			if next, err := addEpoch(epochs, e); err == nil {
				epochs = next
			}
		}
	}
	o.v.epochs = cutEpochsBelow(epochs, o.v.start)
	return nil
}

// log tells what is worth telling.
func (o *opener) log() {
	r, logger := &o.report, o.l.writer.cfg.Logger.With("dir", o.l.dir, "log_end", o.l.LogEnd())
	for _, d := range r.Damaged {
		logger.Error("log segment is damaged; the replica must be repaired from another", "offset", d.Offset, "error", d.Error())
	}
	if r.LostBelow > 0 {
		logger.Error("records that were durable are gone", "lost_below", r.LostBelow)
	}
	if r.CutBytes > 0 {
		logger.Warn("cut a torn tail off the log", "bytes", r.CutBytes, "offset", r.CutAt, "bit_rot", r.Rot, "cause", r.CutCause.Error())
	}
}
