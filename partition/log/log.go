// Package log is one partition's log directory: segments, indexes, epochs and producer state, on a vfs.FS.
//
// Files. NNN.log, NNN.index, NNN.timeindex and leader-epoch-checkpoint and partition.metadata are byte-compatible with Apache
// Kafka's (1.1 to 4.x). Of our own: barnabas.checkpoint (log start, recovery point, how the last close left things) and
// NNN.producers (producer state as of offset NNN, five batches each; Kafka's .snapshot keeps one). The active segment's indexes
// live in memory; their files are written when it is sealed or the log is closed, and made again by a scan after a crash.
//
// Durability. An appended batch is durable after a later Sync returned its end. Everything but the newest segment is durable, with
// its indexes, before the newest exists. Names are synced before data below them counts. After a failed sync the log takes no
// more writes: see ErrFailed.
//
// Concurrency. One writer at a time (appends, truncation, checkpoints, Close), guarded by a mutex all the same. Readers load an
// immutable view and never wait. Sync runs beside appends. No goroutine, timer or clock inside: time comes in arguments, as
// milliseconds.
package log

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/vfs"
)

// Config of one log. The zero value of each field means its default.
type Config struct {
	// SegmentBytes is segment.bytes: a segment that would pass it is sealed. 14 to 2^31-1; default 1 GiB.
	SegmentBytes int64
	// SegmentMs is segment.ms: a segment whose first batch is older than a new one by more is sealed. Default 7 days.
	SegmentMs int64
	// IndexIntervalBytes is index.interval.bytes, the distance of index entries. Default 4096.
	IndexIntervalBytes int64
	// Compacted allows holes in the offsets, within and between batches (cleanup.policy=compact). Without it a hole is damage.
	Compacted bool
	// TopicID, unless zero, is kept in partition.metadata; Open refuses a directory of another topic.
	TopicID id.TopicID
	// Logger gets what recovery found. Default: none.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.SegmentBytes == 0 {
		c.SegmentBytes = 1 << 30
	}
	if c.SegmentMs == 0 {
		c.SegmentMs = 7 * 24 * 3600 * 1000
	}
	if c.IndexIntervalBytes == 0 {
		c.IndexIntervalBytes = 4096
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if c.SegmentBytes < 14 || c.SegmentBytes > math.MaxInt32 {
		errs = append(errs, fmt.Errorf("segment.bytes is %d, allowed are 14 to %d", c.SegmentBytes, math.MaxInt32))
	}
	if c.SegmentMs < 1 {
		errs = append(errs, fmt.Errorf("segment.ms is %d, allowed is 1 and more", c.SegmentMs))
	}
	if c.IndexIntervalBytes < 0 || c.IndexIntervalBytes > math.MaxInt32 {
		errs = append(errs, fmt.Errorf("index.interval.bytes is %d, allowed are 1 to %d", c.IndexIntervalBytes, math.MaxInt32))
	}
	return errors.Join(errs...)
}

// Log is an open log. See the package comment for who may call what.
type Log struct {
	fs  vfs.FS
	dir string

	view   atomic.Pointer[view]
	synced atomic.Int64
	failed atomic.Pointer[error]
	holes  atomic.Bool // Config.Compacted, for readers

	// syncMu keeps the active file from being swapped or cut under a running Sync. Taken after writer.Mutex.
	syncMu sync.Mutex

	// writer is what only the writer touches.
	writer struct {
		sync.Mutex
		cfg           Config
		bytesSince    int64 // bytes appended since the last index entry
		producers     producers
		recoveryPoint id.Offset
		settled       bool // the directory is as Close would leave it, or the log as new
	}
}

// view is what readers see: one immutable state of the log. The backing arrays of its slices are append-only while gen stays.
type view struct {
	gen    uint64 // raised when what was there may be gone or other: truncation, removal of segments, close
	closed bool
	start  id.Offset // log start
	end    id.Offset // log end: the next offset
	sealed []*segment
	active active
	epochs []EpochStart
}

// LogStart is the first offset that may be read. It falls only by truncation below it.
func (l *Log) LogStart() id.Offset { return l.view.Load().start }

// LogEnd is the offset that the next record gets.
func (l *Log) LogEnd() id.Offset { return l.view.Load().end }

// SyncedEnd is the offset below which everything is durable. It may be read without a Sync, and falls only by truncation.
func (l *Log) SyncedEnd() id.Offset { return id.Offset(l.synced.Load()) }

// Size is how many bytes the .log files hold.
func (l *Log) Size() int64 {
	v := l.view.Load()
	total := v.active.size
	for _, s := range v.sealed {
		total += s.size
	}
	return total
}

// Dir is the log's directory.
func (l *Log) Dir() string { return l.dir }

// Failed returns why the log takes no more writes, or nil.
func (l *Log) Failed() error {
	if p := l.failed.Load(); p != nil {
		return *p
	}
	return nil
}

// SetConfig changes the configuration; it counts from the next append on. TopicID and Logger stay.
func (l *Log) SetConfig(cfg Config) error {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return err
	}
	l.writer.Lock()
	defer l.writer.Unlock()
	cfg.TopicID, cfg.Logger = l.writer.cfg.TopicID, l.writer.cfg.Logger
	l.writer.cfg = cfg
	l.holes.Store(cfg.Compacted)
	return nil
}

// Sync makes all that was appended before the call durable and returns the offset below which everything now is. It may run
// beside appends and reads; one fdatasync, none if nothing is dirty. After an error the log has failed.
func (l *Log) Sync() (id.Offset, error) {
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	return l.syncLocked()
}

// syncLocked needs syncMu. Only the active segment can be dirty.
func (l *Log) syncLocked() (id.Offset, error) {
	v := l.view.Load()
	if v.closed {
		return 0, ErrClosed
	}
	if err := l.Failed(); err != nil {
		return 0, err
	}
	if l.SyncedEnd() == v.end {
		return v.end, nil
	}
	if err := v.active.log.Sync(); err != nil {
		return 0, l.fail("sync", err)
	}
	l.synced.Store(int64(v.end))
	return v.end, nil
}

// fail records that the log must not be written any more.
func (l *Log) fail(what string, cause error) error {
	err := fmt.Errorf("%w: %s: %s: %w", ErrFailed, l.dir, what, cause)
	if l.failed.CompareAndSwap(nil, &err) {
		return err
	}
	return l.Failed()
}

// writable is asked by every writing call, with the writer lock held.
func (l *Log) writable() (*view, error) {
	v := l.view.Load()
	if v.closed {
		return nil, fmt.Errorf("%s: %w", l.dir, ErrClosed)
	}
	if err := l.Failed(); err != nil {
		return nil, err
	}
	return v, nil
}

// Checkpoint makes the log durable and writes what shortens the next recovery: recovery point, epochs, producer state. Rolls and
// Close do it by themselves.
func (l *Log) Checkpoint() error {
	l.writer.Lock()
	defer l.writer.Unlock()
	v, err := l.writable()
	if err != nil || l.writer.settled {
		return err
	}
	if _, err := l.Sync(); err != nil {
		return err
	}
	if err := l.writeEpochs(v.epochs); err != nil {
		return err
	}
	l.writer.recoveryPoint = v.end
	return l.writeCheckpoint(checkpoint{start: v.start, recovery: v.end})
}

// Close makes everything durable, so that the next Open needs no scan, and closes the files. A log that failed is only closed.
// Calls that still run, and later ones, get ErrClosed.
func (l *Log) Close() error {
	l.writer.Lock()
	defer l.writer.Unlock()
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	v := l.view.Load()
	if v.closed {
		return nil
	}
	var err error
	if l.Failed() == nil && !l.writer.settled {
		err = l.settle(v)
	}
	return errors.Join(err, l.closeFiles(v))
}

// settle writes all that Open needs to trust the directory unseen.
func (l *Log) settle(v *view) error {
	if _, err := l.syncLocked(); err != nil {
		return err
	}
	if err := v.active.writeIndexes(l.fs, l.dir); err != nil {
		return err
	}
	if err := l.writeProducers(v.end); err != nil {
		return err
	}
	if err := l.writeEpochs(v.epochs); err != nil {
		return err
	}
	return l.writeCheckpoint(checkpoint{start: v.start, recovery: v.end, clean: true, activeBase: v.active.base, activeSize: v.active.size})
}

// closeFiles publishes the closed state and closes every file.
func (l *Log) closeFiles(v *view) error {
	next := *v
	next.closed = true
	next.gen++
	l.view.Store(&next)
	err := v.active.log.Close()
	for _, s := range v.sealed {
		err = errors.Join(err, s.log.Close())
	}
	return err
}

// SegmentInfo describes a segment, for ListOffsets v0 and for retention.
type SegmentInfo struct {
	Base         id.Offset
	Size         int64 // bytes of the .log file
	ModTime      int64 // of the .log file, milliseconds since 1970
	MaxTimestamp int64 // largest record timestamp, or record.NoTimestamp
}

// Segments lists the segments, oldest first; the last is the active one.
func (l *Log) Segments() ([]SegmentInfo, error) {
	v := l.view.Load()
	if v.closed {
		return nil, fmt.Errorf("%s: %w", l.dir, ErrClosed)
	}
	out := make([]SegmentInfo, 0, len(v.sealed)+1)
	for _, s := range v.sealed {
		out = append(out, SegmentInfo{Base: s.base, Size: s.size, MaxTimestamp: s.maxTS})
	}
	out = append(out, SegmentInfo{Base: v.active.base, Size: v.active.size, MaxTimestamp: v.active.maxTS})
	for i := range out {
		info, err := l.fs.Stat(segmentPath(l.dir, out[i].Base, logSuffix))
		if err != nil && l.view.Load().gen != v.gen {
			return l.Segments() // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		out[i].ModTime = info.ModTime.UnixMilli()
	}
	return out, nil
}

// publish lets readers see v; the writer lock is held.
func (l *Log) publish(v *view) {
	l.writer.settled = false
	l.view.Store(v)
}

// find returns the position in v.sealed of the segment that holds offset, or len(v.sealed) for the active one.
func (v *view) find(offset id.Offset) int {
	if offset >= v.active.base {
		return len(v.sealed)
	}
	i, found := slices.BinarySearchFunc(v.sealed, offset, func(s *segment, o id.Offset) int { return int(max(-1, min(1, s.base-o))) })
	if !found && i > 0 {
		i--
	}
	return i
}

// latestEpoch is the epoch of the newest entry, or -1.
func (v *view) latestEpoch() id.LeaderEpoch {
	if len(v.epochs) == 0 {
		return -1
	}
	return v.epochs[len(v.epochs)-1].Epoch
}
