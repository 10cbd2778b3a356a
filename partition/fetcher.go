package partition

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/partition/log"
	"github.com/barnabas-mq/barnabas/partition/record"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// fetcher pulls all partitions that this broker follows from one leader, on one goroutine: fetch, append, sync, fetch. The
// next fetch tells the leader what is synced.
type fetcher struct {
	m      *Manager
	leader id.BrokerID

	mu      sync.Mutex
	parts   map[*replica]*followed
	changes uint64             // of parts
	cancel  context.CancelFunc // of the call that is parked at the leader
	kick    chan struct{}      // parts changed
	running bool
	stamp   stamp // of the leader's last reply; only the goroutine touches it
	stamped bool
}

// followed is one partition of a fetcher.
type followed struct {
	r     *replica
	after time.Time     // not before: the leader refused
	pause time.Duration // the last refusal's pause
}

// A refusal is mostly a leader that applies its election later than its followers do.
const (
	minFetchPause = 10 * time.Millisecond
	maxFetchPause = 250 * time.Millisecond
)

// errKicked: the call was given up since the partitions to ask for have changed, or at the end.
var errKicked = errors.New("kicked")

// attach lets the fetcher of a leader pull the replica.
func (m *Manager) attach(r *replica, leader id.BrokerID) {
	m.mu.Lock()
	f := m.fetchers[leader]
	if f == nil {
		f = &fetcher{m: m, leader: leader, parts: map[*replica]*followed{}, kick: make(chan struct{}, 1)}
		m.fetchers[leader] = f
	}
	f.mu.Lock()
	f.parts[r] = &followed{r: r}
	start := !f.running && !m.stopped
	f.running = f.running || start
	f.kickLocked()
	f.mu.Unlock()
	m.mu.Unlock()
	if start {
		m.spawn(f.run)
	}
}

// detach takes the replica from its fetcher. A reply that is being handled finds the role changed.
func (m *Manager) detach(r *replica) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range m.fetchers {
		f.mu.Lock()
		if f.parts[r] != nil {
			delete(f.parts, r)
			f.kickLocked()
		}
		f.mu.Unlock()
	}
}

// kickLocked makes the goroutine look at parts now.
func (f *fetcher) kickLocked() {
	f.changes++
	if f.cancel != nil {
		f.cancel()
	}
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

// run is the fetcher's goroutine; it lives as long as the manager and sleeps while it has nothing to pull.
func (f *fetcher) run(ctx context.Context) {
	pause := time.Duration(0)
	for ctx.Err() == nil {
		if pause > 0 {
			f.sleep(ctx, pause)
		}
		parts, changes, next := f.due(time.Now())
		if len(parts) == 0 {
			f.sleep(ctx, next)
			continue
		}
		wait := f.m.cfg.ReplicaFetchWait
		if next > 0 {
			wait = min(wait, next+time.Millisecond) // not parked beyond the time at which another is due again
		}
		err := f.round(ctx, parts, changes, wait)
		switch {
		case err == nil:
			pause = 0
		case errors.Is(err, errKicked):
			pause = 0
		default:
			pause = min(max(2*pause, minFetchPause), maxFetchPause)
			f.m.log.Debug("replica fetch failed", slog.Int("leader", int(f.leader)), slog.Any("error", err))
			f.stamped = false // the leader may be another process now
		}
	}
}

// sleep waits for d (0: for ever) or a kick.
func (f *fetcher) sleep(ctx context.Context, d time.Duration) {
	var fire <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		fire = t.C
	}
	select {
	case <-ctx.Done():
	case <-fire:
	case <-f.kick:
	}
}

// due returns the partitions to ask for now, each time in another order, so that none is always behind those that fill the
// reply. next is how long until the first that is not due; 0: none.
func (f *fetcher) due(now time.Time) (parts []*followed, changes uint64, next time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.parts {
		if wait := p.after.Sub(now); wait > 0 {
			if next == 0 || wait < next {
				next = wait
			}
			continue
		}
		parts = append(parts, p)
	}
	return parts, f.changes, next
}

// asked is what a request said of one partition.
type asked struct {
	p      *followed
	log    *log.Log
	epoch  id.LeaderEpoch
	offset id.Offset
	last   id.LeaderEpoch
}

// round is one fetch and what comes of it.
func (f *fetcher) round(ctx context.Context, parts []*followed, changes uint64, wait time.Duration) error {
	f.settle(parts)
	req, asks := f.request(parts, wait)
	if len(asks) == 0 {
		f.sleep(ctx, minFetchPause) // roles are changing
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f.mu.Lock()
	changed := f.changes != changes
	f.cancel = cancel
	f.mu.Unlock()
	if changed {
		return errKicked // a call now would be parked without the new ones
	}
	payload := req.AppendTo(binary.BigEndian.AppendUint16(nil, replicaFetchVersion))
	callCtx, done := context.WithTimeout(ctx, f.m.cfg.ReplicaFetchWait+10*time.Second)
	defer done()
	reply, err := f.m.deps.Peers.Call(callCtx, f.leader, MethodFetch, payload)
	f.mu.Lock()
	f.cancel = nil
	f.mu.Unlock()
	if err != nil {
		if ctx.Err() != nil {
			return errKicked
		}
		return err
	}
	res, err := f.decode(reply)
	if err != nil {
		return err
	}
	f.handle(res, asks)
	return nil
}

// settle syncs what a replica wrote before it followed: it is asked for from its synced end on, which must be its log end.
func (f *fetcher) settle(parts []*followed) {
	var dirty []*replica
	for _, p := range parts {
		p.r.mu.Lock()
		if l := p.r.s.log; p.r.s.role == following && p.r.syncedEnd(l) < l.LogEnd() {
			dirty = append(dirty, p.r)
		}
		p.r.mu.Unlock()
	}
	if len(dirty) > 0 {
		inParallel(dirty, f.m.cfg.Workers, func(r *replica) { _ = r.sync() })
	}
}

// request builds the request for parts that still follow this leader, topic by topic.
func (f *fetcher) request(parts []*followed, wait time.Duration) (*kmsg.FetchRequest, map[partitionKey]asked) {
	m := f.m
	self, _ := m.deps.Self()
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.ReplicaID = replicaFetchVersion, int32(self)
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes = int32(wait.Milliseconds()), 1, int32(m.cfg.ReplicaReplyBytes)
	if f.stamped {
		f.stamp.put(&req.UnknownTags)
	}
	asks := make(map[partitionKey]asked, len(parts))
	topics := map[id.TopicID]int{}
	now := m.deps.Clock.Boot()
	putSent(&req.UnknownTags, now)
	for _, p := range parts {
		r := p.r
		r.mu.Lock()
		l, epoch, ok := r.s.log, r.s.epoch, r.s.role == following && r.s.leader == f.leader
		leave := r.s.damagedAt >= 0
		if ok {
			r.s.followed.Sent(f.leader, now)
		}
		r.mu.Unlock()
		if !ok {
			continue
		}
		end := r.syncedEnd(l)
		a := asked{p: p, log: l, epoch: epoch, offset: end, last: l.EpochAt(end - 1)}
		part := kmsg.NewFetchRequestTopicPartition()
		part.Partition, part.CurrentLeaderEpoch, part.FetchOffset = r.tp.Partition, int32(epoch), int64(end)
		part.LastFetchedEpoch, part.LogStartOffset, part.PartitionMaxBytes = int32(a.last), int64(l.LogStart()), int32(m.cfg.ReplicaFetchBytes)
		if leave {
			part.UnknownTags.Set(tagLeave, nil)
		}
		t, ok := topics[r.topicID]
		if !ok {
			t = len(req.Topics)
			topics[r.topicID] = t
			topic := kmsg.NewFetchRequestTopic()
			topic.TopicID = r.topicID
			req.Topics = append(req.Topics, topic)
		}
		req.Topics[t].Partitions = append(req.Topics[t].Partitions, part)
		asks[partitionKey{r.topicID, r.tp.Partition}] = a
	}
	return req, asks
}

type partitionKey struct {
	topic     id.TopicID
	partition int32
}

func (f *fetcher) decode(reply []byte) (*kmsg.FetchResponse, error) {
	if len(reply) < 2 || int16(binary.BigEndian.Uint16(reply)) != replicaFetchVersion {
		return nil, fmt.Errorf("reply of %d bytes that is not of version %d", len(reply), replicaFetchVersion)
	}
	res := kmsg.NewPtrFetchResponse()
	res.Version = replicaFetchVersion
	if err := res.ReadFrom(reply[2:]); err != nil {
		return nil, fmt.Errorf("reply: %w", err)
	}
	if s, ok := readStamp(&res.UnknownTags); ok {
		f.stamp, f.stamped = s, true
	}
	return res, nil
}

// handle takes in a reply: all appends, then the syncs of what they wrote, in parallel.
func (f *fetcher) handle(res *kmsg.FetchResponse, asks map[partitionKey]asked) {
	var dirty []*replica
	for t := range res.Topics {
		for p := range res.Topics[t].Partitions {
			part := &res.Topics[t].Partitions[p]
			a, ok := asks[partitionKey{res.Topics[t].TopicID, part.Partition}]
			if !ok {
				continue
			}
			wrote, err := a.p.r.takeIn(a, part)
			if wrote {
				dirty = append(dirty, a.p.r)
			}
			f.mu.Lock()
			if err == nil {
				a.p.pause, a.p.after = 0, time.Time{}
			} else {
				a.p.pause = min(max(2*a.p.pause, minFetchPause), maxFetchPause)
				a.p.after = time.Now().Add(a.p.pause)
			}
			f.mu.Unlock()
			if err != nil {
				a.p.r.logger.Debug("replica fetch refused", slog.Int("leader", int(f.leader)), slog.Int("epoch", int(a.epoch)), slog.Any("error", err))
			}
		}
	}
	if len(dirty) > 0 && !f.m.cfg.UnsyncedAcks {
		inParallel(dirty, f.m.cfg.Workers, func(r *replica) { _ = r.sync() })
	}
}

// takeIn applies one partition of a reply, if the replica still follows at the epoch that was asked with.
func (r *replica) takeIn(a asked, part *kmsg.FetchResponseTopicPartition) (wrote bool, err error) {
	r.appendMu.Lock()
	defer r.appendMu.Unlock()
	r.mu.Lock()
	stale := r.s.role != following || r.s.epoch != a.epoch || r.s.log != a.log
	r.mu.Unlock()
	if stale {
		return false, nil
	}
	l := a.log
	switch {
	case part.ErrorCode == ErrOffsetOutOfRange.Code && (id.Offset(part.LogStartOffset) > l.LogEnd() || l.LogStart() == l.LogEnd()):
		// Below the leader's log, or, without a record that could tell where the two part, above it.
		r.logger.Warn("the leader does not have the offset; starting anew", slog.Int64("end", int64(l.LogEnd())), slog.Int64("leaderStart", part.LogStartOffset))
		err := l.TruncateFullyAndStartAt(id.Offset(part.LogStartOffset), r.m.logNow())
		return false, r.checkDisk("start anew", l, err)
	case part.ErrorCode != 0:
		return false, fmt.Errorf("kafka error %d from the leader", part.ErrorCode)
	case part.DivergingEpoch.Epoch >= 0:
		return false, r.truncate(l, id.LeaderEpoch(part.DivergingEpoch.Epoch), id.Offset(part.DivergingEpoch.EndOffset))
	case len(part.RecordBatches) > 0:
		before := l.LogEnd()
		_, err = l.AppendAsFollower(part.RecordBatches, r.m.logNow())
		wrote = l.LogEnd() > before
		if errors.Is(err, record.ErrCorrupt) || errors.Is(err, log.ErrNotContiguous) || errors.Is(err, log.ErrStaleEpoch) {
			r.logger.Error("batch from the leader refused", slog.Any("error", err))
		} else if err != nil {
			if err = r.checkDisk("append what was fetched", l, err); l.Failed() == nil && Code(err) == ErrStorage.Code {
				r.refusedByDisk(err)
			}
		} else {
			r.mu.Lock()
			r.s.full = nil
			r.mu.Unlock()
		}
	}
	r.followMarks(l, id.Offset(part.HighWatermark), id.Offset(part.LogStartOffset))
	return wrote, err
}

// followMarks takes over the leader's marks as far as the log reaches.
func (r *replica) followMarks(l *log.Log, hw, start id.Offset) {
	r.mu.Lock()
	r.s.hw = max(r.s.hw, min(hw, l.LogEnd()))
	r.mu.Unlock()
	if start > l.LogStart() && start <= l.LogEnd() {
		if err := l.SetLogStart(start); err != nil {
			_ = r.checkDisk("raise the log start", l, err)
		}
	}
}

// truncate cuts the log to where it left the leader's (KIP-101, KIP-279; AbstractFetcherThread.getOffsetTruncationState): the
// leader's largest epoch at most ours, and its end. If we do not have that epoch we cut to the end of the largest below it, and
// the next fetch goes on from there. appendMu is held.
func (r *replica) truncate(l *log.Log, epoch id.LeaderEpoch, end id.Offset) error {
	ours := l.EndOffsetForEpoch(epoch)
	to := min(end, l.LogEnd())
	if ours.End >= 0 {
		to = min(to, ours.End)
		if ours.Epoch != epoch {
			to = min(ours.End, l.LogEnd())
		}
	}
	r.mu.Lock()
	hw := r.s.hw
	r.mu.Unlock()
	level := slog.LevelInfo
	if to < hw {
		level = slog.LevelError // never with a leader from the ISR
	}
	r.logger.Log(context.Background(), level, "log truncated", slog.Int64("from", int64(l.LogEnd())), slog.Int64("to", int64(to)),
		slog.Int("leaderEpoch", int(epoch)), slog.Int64("leaderEnd", int64(end)), slog.Int64("highWatermark", int64(hw)))
	got, err := l.TruncateTo(to)
	if err != nil {
		return r.checkDisk("truncate", l, err)
	}
	r.mu.Lock()
	r.s.hw = min(r.s.hw, got)
	r.mu.Unlock()
	return nil
}
