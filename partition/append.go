package partition

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/partition/log"
	"github.com/barnabas-mq/barnabas/partition/record"
)

// AppendItem is one partition's part of a Produce request.
type AppendItem struct {
	Topic     string
	Partition int32
	Records   []byte // as on the wire; belongs to the Manager from the call on, which changes it
	Version   int16  // of the Produce request: it decides which formats are allowed
}

// AppendResult answers one item.
type AppendResult struct {
	BaseOffset id.Offset // of the first record; -1 with an error, or when there was no record
	AppendTime int64     // ms, with message.timestamp.type=LogAppendTime; else -1
	LogStart   id.Offset // -1 with an error
	Err        error     // nil: appended, and with acks=all committed
}

// Appending is a set of appends that are in the logs, as far as they succeeded, and wait for their acks.
type Appending struct {
	m       *Manager
	results []AppendResult
	waits   []*ackWait // by item; nil: settled
	left    atomic.Int32
	done    chan struct{}
}

// ackWait is one append with acks=all that waits for the high watermark.
type ackWait struct {
	of      *Appending
	r       *replica
	need    id.Offset // the high watermark that settles it
	settled bool      // guarded by r.mu, as err
	err     error
}

// settle needs r.mu; a second call does nothing.
func (a *ackWait) settle(err error) {
	if a.settled {
		return
	}
	a.settled, a.err = true, err
	if a.of.left.Add(-1) == 0 {
		close(a.of.done)
	}
}

// Append appends and waits: with acks 0 and 1 not at all, with any other value until every in-sync replica, and at least
// min.insync.replicas, have the records on disk, at most for timeout (Kafka's TimeoutMs; 0 and less: no wait). Results are by
// item. An idempotent batch that is there already is answered with its first offset, and waited for like a new one.
//
// Errors of an item: ErrUnknownTopicOrPartition, ErrNotLeader, ErrNotEnoughReplicas (nothing written),
// ErrNotEnoughReplicasAfterAppend and ErrRequestTimedOut (written, may yet be committed), ErrOutOfOrderSequence,
// ErrDuplicateSequence, ErrInvalidProducerEpoch, ErrStorage, every sentinel of package record; and ctx's.
func (m *Manager) Append(ctx context.Context, items []AppendItem, acks int16, timeout time.Duration) []AppendResult {
	return m.BeginAppend(items, acks).Wait(ctx, timeout)
}

// BeginAppend is the first half of Append: when it returns, the order of the records is settled, and the caller may begin
// another append before it waits for this one. Wait must be called once.
func (m *Manager) BeginAppend(items []AppendItem, acks int16) *Appending {
	a := &Appending{m: m, results: make([]AppendResult, len(items)), waits: make([]*ackWait, len(items)), done: make(chan struct{})}
	a.left.Store(1) // held until all items are in, so that done closes once
	codecs := codecPool.Get().(*record.Codecs)
	defer codecPool.Put(codecs)
	for i := range items {
		a.results[i] = AppendResult{BaseOffset: -1, AppendTime: -1, LogStart: -1}
		if err := m.appendItem(a, i, &items[i], acks, codecs); err != nil {
			a.results[i] = AppendResult{BaseOffset: -1, AppendTime: -1, LogStart: -1, Err: err}
		}
	}
	if a.left.Add(-1) == 0 {
		close(a.done)
	}
	return a
}

var codecPool = sync.Pool{New: func() any { return record.NewCodecs(0) }}

func (m *Manager) appendItem(a *Appending, i int, item *AppendItem, acks int16, codecs *record.Codecs) error {
	r, err := m.replica(item.Topic, item.Partition)
	if err != nil {
		return err
	}
	conf := r.conf.Load()
	now := m.deps.Clock.Now().UnixMilli()
	prepared, err := codecs.PrepareProduce(item.Records, record.ProduceRules{
		Version: item.Version, MaxBatchBytes: conf.maxMessageBytes, TimestampType: conf.timestampType,
		Now: now, MaxTimestampDiff: conf.maxTimestampDiff, Deep: true,
	})
	if err != nil {
		return err
	}
	out, l, err := r.appendAsLeader(prepared.Batches, acks, a, i)
	if err != nil {
		return err
	}
	res := &a.results[i]
	res.LogStart = l.LogStart()
	if prepared.Records > 0 {
		res.BaseOffset = out.Base
		if conf.timestampType == record.LogAppendTime {
			res.AppendTime = out.Timestamp
		}
	}
	return nil
}

// appendAsLeader writes under the replica's order, wakes its followers, and enters the wait for the ack.
func (r *replica) appendAsLeader(batches []byte, acks int16, a *Appending, i int) (log.Appended, *log.Log, error) {
	r.appendMu.Lock()
	defer r.appendMu.Unlock()
	r.mu.Lock()
	err := r.leadsLocked(-1)
	all := acks != 0 && acks != 1
	if err == nil && all && len(r.s.isr) < r.minISRLocked() {
		err = fmt.Errorf("%w: %s has %d of %d", ErrNotEnoughReplicas, r, len(r.s.isr), r.minISRLocked())
	}
	l, epoch := r.s.log, r.s.epoch
	r.mu.Unlock()
	if err != nil {
		return log.Appended{}, nil, err
	}
	out, err := l.AppendAsLeader(batches, epoch, r.m.logNow())
	if err != nil {
		return out, nil, r.checkDiskOfAppend(l, err)
	}
	r.mu.Lock()
	if !out.Duplicate && len(batches) > 0 {
		r.s.endWatch.wake()
		if r.m.cfg.UnsyncedAcks {
			r.advanceLocked()
		}
	}
	if all && len(batches) > 0 {
		r.awaitLocked(epoch, out.Last+1, a, i)
	}
	r.s.full = nil
	r.mu.Unlock()
	if !out.Duplicate && len(batches) > 0 {
		r.m.commits.mark(r)
	}
	return out, l, nil
}

// checkDiskOfAppend is checkDisk for errors that may be the client's. A full disk, after which the log is as it was, is logged
// at most once per retry interval and answered; the replica goes on leading, since its readers are not harmed.
func (r *replica) checkDiskOfAppend(l *log.Log, err error) error {
	if l.Failed() != nil {
		// appendMu is held, which fail does not take.
		r.fail("append", err)
		return fmt.Errorf("%w: %w", ErrStorage, err)
	}
	err = translate(err)
	if errors.Is(err, ErrOutOfOrderSequence) || errors.Is(err, ErrDuplicateSequence) || errors.Is(err, ErrInvalidProducerEpoch) {
		// A verdict that a producer may not survive is an answer about the log: a leader that may be deposed does not give it.
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.leadsLocked(-1) == nil {
			if _, no := r.rightLocked(r.m.deps.Clock.Boot()); no != nil {
				return fmt.Errorf("%w: %s may not judge a sequence number now: %w", ErrNotLeader, r, no)
			}
		}
		return err
	}
	if Code(err) == ErrStorage.Code {
		r.refusedByDisk(err)
	}
	return err
}

// awaitLocked enters the wait for the high watermark to reach need, or settles it at once.
func (r *replica) awaitLocked(epoch id.LeaderEpoch, need id.Offset, a *Appending, i int) {
	w := &ackWait{of: a, r: r, need: need}
	a.waits[i] = w
	a.left.Add(1)
	switch {
	case r.s.role != leading || r.s.epoch != epoch: // failed since the append
		w.settle(fmt.Errorf("%w: %s lost its leadership after the append", ErrNotLeader, r))
	case r.s.hw >= need:
		w.settle(nil)
	default:
		at, _ := slices.BinarySearchFunc(r.s.lead.acks, need, func(w *ackWait, n id.Offset) int { return int(max(-1, min(1, w.need-n))) })
		if at == len(r.s.lead.acks) {
			r.s.lead.acks = append(r.s.lead.acks, w)
		} else { // the repeat of an older batch
			r.s.lead.acks = slices.Insert(r.s.lead.acks, at, w)
		}
	}
}

// Settled says that Wait will return at once.
func (a *Appending) Settled() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// Wait is the second half of Append.
func (a *Appending) Wait(ctx context.Context, timeout time.Duration) []AppendResult {
	select {
	case <-a.done:
	default:
		a.wait(ctx, timeout)
	}
	for i, w := range a.waits {
		if w == nil {
			continue
		}
		w.r.mu.Lock()
		err := w.err
		w.r.mu.Unlock()
		if err != nil {
			a.results[i] = AppendResult{BaseOffset: -1, AppendTime: -1, LogStart: -1, Err: err}
		}
	}
	return a.results
}

func (a *Appending) wait(ctx context.Context, timeout time.Duration) {
	timer := time.NewTimer(max(timeout, 0))
	defer timer.Stop()
	var late func(r *replica) error
	select {
	case <-a.done:
		return
	case <-timer.C:
		late = func(r *replica) error {
			if len(r.s.isr) < r.minISRLocked() && r.s.role == leading {
				return fmt.Errorf("%w: %s has %d of %d", ErrNotEnoughReplicasAfterAppend, r, len(r.s.isr), r.minISRLocked())
			}
			return fmt.Errorf("%w: %s was not replicated within %v", ErrRequestTimedOut, r, timeout)
		}
	case <-ctx.Done():
		late = func(r *replica) error { return fmt.Errorf("append to %s: %w", r, context.Cause(ctx)) }
	}
	for _, w := range a.waits {
		if w == nil {
			continue
		}
		w.r.mu.Lock()
		if !w.settled {
			acks := &w.r.s.lead.acks
			if at := slices.Index(*acks, w); at >= 0 {
				*acks = slices.Delete(*acks, at, at+1)
			}
			w.settle(late(w.r))
		}
		w.r.mu.Unlock()
	}
}
