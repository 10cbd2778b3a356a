// Package export writes __consumer_offsets: committed offsets and classic groups, byte for byte as Apache Kafka writes them, for
// those who read that topic (Burrow and its like, kafka-console-consumer with a formatter). The metadata log is the truth and this is
// a copy: nothing here reads it back but to find out what it lacks.
//
// Each partition's leader writes it from the log that it follows (groups.md, "Export"). Changes are gathered for a moment, so a
// key that changes often is written once with its newest value, as compaction would leave it. Every record carries the Raft index
// that its batch covers. A new leader reads its partition, waits until its own view has reached that index, and writes what differs
// from the view; so does every leader after a restored snapshot. A leader that was replaced cannot append, and a writer that fails
// begins anew in this way, so a reader that keeps the last value of each key ends with the state.
//
// Without the topic nothing happens here. It is made when somebody first asks for it (package broker).
//
// Goroutines: Run is one; Applied and Reset may be called from any other, one after the other.
package export

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// Record is one record of the topic. A nil Value is a tombstone.
type Record struct {
	Key, Value []byte
	Index      id.Index // of the view that the record was made from; 0: not known
	Time       int64    // ms
}

// Batch is records for one partition.
type Batch struct {
	Partition int32
	Records   []Record
}

// Log is the topic's partitions as this broker has them; node fills it in.
type Log interface {
	// Append writes batches to partitions that this broker leads and waits until they are committed. It answers by batch.
	Append(ctx context.Context, batches []Batch) []error
	// Read calls fn for each record of a partition that this broker leads, oldest first, up to the high watermark. It fails
	// while this broker may not answer for the partition.
	Read(ctx context.Context, partition int32, fn func(Record)) error
}

// Config is what an Exporter needs; Self and Log are required.
type Config struct {
	Self   func() id.BrokerID // NoBroker until it is known
	Log    Log
	Logger *slog.Logger
	// Format is the version of the values. Default Format3.
	Format Format
	// Linger is how long changes are gathered. Default 1 s: what lag monitors take as the smallest step.
	Linger time.Duration
	// Retry is the pause after a failure. Default 500 ms.
	Retry time.Duration
	// MaxRecord is the largest record that is written; a larger one (a group of thousands) is left out with a log line. Default 900 KiB,
	// below Kafka's max.message.bytes.
	MaxRecord int
}

func (c Config) withDefaults() Config {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Format == 0 {
		c.Format = Format3
	}
	if c.Linger == 0 {
		c.Linger = time.Second
	}
	if c.Retry == 0 {
		c.Retry = 500 * time.Millisecond
	}
	if c.MaxRecord == 0 {
		c.MaxRecord = 900 << 10
	}
	return c
}

func (c Config) validate() error {
	if c.Self == nil || c.Log == nil {
		return errors.New("export: Self and Log are required")
	}
	if c.Format != Format1 && c.Format != Format3 {
		return fmt.Errorf("export: there is no format %d, only %d and %d", c.Format, Format1, Format3)
	}
	if c.Linger < 0 || c.Retry < 0 || c.MaxRecord < 0 {
		return fmt.Errorf("export: Linger %v, Retry %v and MaxRecord %d must not be negative", c.Linger, c.Retry, c.MaxRecord)
	}
	return nil
}

// maxRetry is the longest pause after failures: a topic that lacks replicas in sync may be without them for hours.
const maxRetry = 30 * time.Second

// batchTarget is the size at which a batch is closed.
const batchTarget = 256 << 10

// Exporter is one broker's part of the topic.
type Exporter struct {
	cfg  Config
	wake chan struct{} // buffered 1

	mu     sync.Mutex
	view   *state.View          // newest
	parts  map[int32]*partition // those that this broker leads
	dirty  map[key]struct{}     // keys of loaded partitions that have changed
	awaits id.Index             // wake when the view is there; 0: nothing waits
}

// partition is what Run knows of a partition that this broker leads. loaded is guarded by mu.
type partition struct {
	topic  id.TopicID
	epoch  id.LeaderEpoch
	loaded bool // the log holds what the view held once; changes since are in dirty
}

// New starts nothing.
func New(cfg Config) (*Exporter, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Exporter{cfg: cfg, wake: make(chan struct{}, 1), parts: map[int32]*partition{}, dirty: map[key]struct{}{}}, nil
}

// Applied takes in one applied entry: the view after it and its changes, in order. It does not block.
func (e *Exporter) Applied(v *state.View, changes []state.Change) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.view = v
	before := len(e.dirty)
	moved := false
	for i := range changes {
		switch c := &changes[i]; c.Kind {
		case state.OffsetCreated, state.OffsetChanged, state.OffsetDeleted:
			e.changed(key{c.Group, c.Topic, c.Partition})
		case state.GroupChanged:
			e.changed(key{group: c.Group})
		case state.TopicCreated, state.TopicDeleted, state.TopicGrown, state.PartitionChanged:
			moved = moved || c.Topic == state.OffsetsTopic
		case state.BrokerRegistered:
			moved = true
		}
	}
	if moved {
		e.roles()
	}
	if moved || len(e.dirty) > before || e.awaits != 0 && v.Index() >= e.awaits {
		e.poke()
	}
}

// Reset takes in a view whose changes are not known: everything is compared.
func (e *Exporter) Reset(v *state.View) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.view == nil || e.view.Index() < v.Index() { // Run's may be older than what was applied meanwhile
		e.view = v
	}
	clear(e.parts)
	clear(e.dirty)
	e.roles()
	e.poke()
}

// changed notes a key, if this broker writes its partition. What has not been loaded will be compared as a whole.
func (e *Exporter) changed(k key) {
	if len(e.parts) == 0 {
		return
	}
	if t, ok := e.view.Topic(state.OffsetsTopic); ok {
		if p := e.parts[PartitionOf(k.group, t.Partitions)]; p != nil && p.loaded {
			e.dirty[k] = struct{}{}
		}
	}
}

// roles finds out which partitions this broker leads now.
func (e *Exporter) roles() {
	self := e.cfg.Self()
	t, ok := e.view.Topic(state.OffsetsTopic)
	if !ok || self == id.NoBroker {
		clear(e.parts)
		clear(e.dirty)
		return
	}
	e.view.Partitions(state.OffsetsTopic, func(n int32, row *state.Partition) bool {
		p := e.parts[n]
		switch {
		case row.Leader != self:
			delete(e.parts, n)
		case p == nil || p.epoch != row.LeaderEpoch || p.topic != t.ID:
			e.parts[n] = &partition{topic: t.ID, epoch: row.LeaderEpoch}
		}
		return true
	})
}

func (e *Exporter) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Run writes until ctx ends. v is the newest view.
func (e *Exporter) Run(ctx context.Context, v *state.View) {
	e.Reset(v)
	again := e.cfg.Retry
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.wake:
		}
		if !pause(ctx, e.cfg.Linger) {
			return
		}
		f := e.round(ctx)
		if len(f) == 0 {
			again = e.cfg.Retry
			continue
		}
		level := slog.LevelDebug
		if again == e.cfg.Retry { // the first of several
			level = slog.LevelInfo
		}
		e.cfg.Logger.Log(ctx, level, "export of offsets is begun anew", "partitions", len(f), "again", again, "err", f[0])
		e.poke()
		if !pause(ctx, again) {
			return
		}
		again = min(2*again, maxRetry)
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// round writes what has changed, and what differs in partitions that are new here. It returns what failed and is to be tried again.
func (e *Exporter) round(ctx context.Context) (failures []error) {
	e.mu.Lock()
	v := e.view
	e.awaits = 0
	n := int32(0)
	if t, ok := v.Topic(state.OffsetsTopic); ok {
		n = t.Partitions
	}
	fresh := map[int32]*partition{}
	for no, p := range e.parts {
		if !p.loaded {
			p.loaded = true // from v on, changes are noted
			fresh[no] = p
		}
	}
	dirty := e.dirty
	e.dirty = map[key]struct{}{}
	e.mu.Unlock()

	w := &writer{e: e, v: v, byPartition: map[int32][]Record{}}
	for k := range dirty {
		if no := PartitionOf(k.group, n); fresh[no] == nil {
			w.write(no, k)
		}
	}
	for no, p := range fresh {
		if err := e.compare(ctx, w, no, n); err != nil {
			if e.failed(ctx, no, p, err) {
				failures = append(failures, fmt.Errorf("read partition %d: %w", no, err))
			}
			delete(w.byPartition, no)
		}
	}
	return append(failures, e.flush(ctx, w)...)
}

// errBehind: the log is ahead of this node's view.
var errBehind = errors.New("this node's view is behind what was exported")

// compare reads a partition and writes what its log and the view do not have in common.
func (e *Exporter) compare(ctx context.Context, w *writer, no, n int32) error {
	has := map[key]string{}
	covered := id.Index(0)
	err := e.cfg.Log.Read(ctx, no, func(r Record) {
		covered = max(covered, r.Index)
		k, ok := decodeKey(r.Key)
		switch {
		case !ok:
		case r.Value == nil:
			delete(has, k)
		default:
			has[k] = string(r.Value)
		}
	})
	if err != nil {
		return err
	}
	if covered > w.v.Index() {
		e.mu.Lock()
		if e.awaits == 0 || covered < e.awaits {
			e.awaits = covered
		}
		e.mu.Unlock()
		return errBehind
	}
	w.v.Groups(func(row *state.Group) bool {
		if PartitionOf(row.Name, n) == no {
			keysOf(w.v, row, func(k key) {
				b, known := value(w.v, k, e.cfg.Format)
				old, there := has[k]
				delete(has, k)
				if known && (there || b != nil) && (b == nil || !there || string(b) != old) {
					w.add(no, k, b)
				}
			})
		}
		return true
	})
	for k := range has {
		w.add(no, k, nil)
	}
	return nil
}

// failed makes a partition be compared again. It returns false when nothing needs to be tried for that: an event will come.
func (e *Exporter) failed(ctx context.Context, no int32, p *partition, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	p.loaded = false
	if errors.Is(err, errBehind) {
		return e.awaits <= e.view.Index() // it has come meanwhile
	}
	return e.parts[no] == p
}

// flush appends what was gathered and returns what failed and is to be tried again.
func (e *Exporter) flush(ctx context.Context, w *writer) (failures []error) {
	var batches []Batch
	for no, records := range w.byPartition {
		for len(records) > 0 {
			size, i := 0, 0
			for i < len(records) && (i == 0 || size+len(records[i].Key)+len(records[i].Value) <= batchTarget) {
				size += len(records[i].Key) + len(records[i].Value)
				i++
			}
			batches = append(batches, Batch{no, records[:i]})
			records = records[i:]
		}
	}
	if len(batches) == 0 {
		return nil
	}
	e.mu.Lock()
	parts := make([]*partition, len(batches))
	for i := range batches {
		parts[i] = e.parts[batches[i].Partition]
	}
	e.mu.Unlock()
	for i, err := range e.cfg.Log.Append(ctx, batches) {
		if no := batches[i].Partition; err != nil && parts[i] != nil && e.failed(ctx, no, parts[i], err) {
			failures = append(failures, fmt.Errorf("write partition %d: %w", no, err))
		}
	}
	return failures
}

// writer gathers the records of a round.
type writer struct {
	e           *Exporter
	v           *state.View
	byPartition map[int32][]Record
}

func (w *writer) write(no int32, k key) {
	if b, known := value(w.v, k, w.e.cfg.Format); known {
		w.add(no, k, b)
	}
}

func (w *writer) add(no int32, k key, b []byte) {
	if len(b) > w.e.cfg.MaxRecord {
		w.e.cfg.Logger.Warn("a group is too large to be exported", "group", k.group, "bytes", len(b), "most", w.e.cfg.MaxRecord)
		return
	}
	w.byPartition[no] = append(w.byPartition[no], Record{Key: k.encode(), Value: b, Index: w.v.Index()})
}
