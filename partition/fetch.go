package partition

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/partition/log"
	"github.com/barnabas-mq/barnabas/partition/record"
)

// Isolation is what a consumer wants to see (KIP-98).
type Isolation int8

// The isolation levels, as on the wire.
const (
	ReadUncommitted Isolation = 0
	ReadCommitted   Isolation = 1
)

// FetchRequest is a consumer's Fetch.
type FetchRequest struct {
	// Version is that of the request. It decides the format of the records (0 and 1: magic 0; 2 and 3: magic 1; from 4 on as
	// stored, magic 2; zstd from 10 on) and whether the first batch is returned though it is over the limits (from 3 on, KIP-74).
	Version  int16
	MinBytes int           // 0: answer at once
	MaxWait  time.Duration // how long to wait for MinBytes; 0: answer at once
	MaxBytes int           // over all partitions; 0 and before v3: Config.FetchBytes
	// Isolation: without transactions the last stable offset is the high watermark.
	Isolation Isolation
	Items     []FetchItem
	Client    Client // for Fetches
}

// FetchItem is one partition of a Fetch.
type FetchItem struct {
	Topic       string
	Partition   int32
	Offset      id.Offset
	LeaderEpoch id.LeaderEpoch // the client's current leader epoch, -1: not checked (KIP-320)
	MaxBytes    int
}

// FetchResult answers one item. The marks are -1 with an error.
type FetchResult struct {
	Err           error
	HighWatermark id.Offset
	LastStable    id.Offset
	LogStart      id.Offset
	Records       []byte // ready for the wire in the version's format; the caller's own
}

// failedResult is the answer with an error.
func failedResult(err error) FetchResult {
	return FetchResult{Err: err, HighWatermark: -1, LastStable: -1, LogStart: -1}
}

// Fetch reads for a consumer: nothing at or above the high watermark, and only while this broker surely leads. It waits until
// MinBytes are there over all partitions, until MaxWait has passed, until ctx ends (a client that went away), or until an item
// has an error. Results are by item.
//
// Errors of an item: ErrUnknownTopicOrPartition, ErrNotLeader, ErrOffsetOutOfRange (below the log start or above the log end;
// between high watermark and log end there is just nothing), ErrFencedLeaderEpoch, ErrUnknownLeaderEpoch, ErrOffsetNotAvailable (a
// new leader, after MaxWait), ErrUnsupportedForFetch, ErrStorage.
func (m *Manager) Fetch(ctx context.Context, req *FetchRequest) []FetchResult {
	m.fetched(req, m.deps.Clock.Boot())
	p := parked{wait: req.MaxWait}
	defer p.end()
	for {
		out, total, again, atOnce := m.fetchOnce(req)
		if atOnce || total >= req.MinBytes || req.MinBytes <= 0 || req.MaxWait <= 0 || p.over {
			return out
		}
		if !p.watching() {
			p.begin() // also when there is nothing to watch
			for i := range req.Items {
				if r := m.find(id.TopicPartition{Topic: req.Items[i].Topic, Partition: req.Items[i].Partition}); r != nil {
					p.watch(r, &r.s.hwWatch)
				}
			}
			continue // what happened before the watch began
		}
		if !p.sleep(ctx, again) {
			return out
		}
	}
}

// fetchOnce reads all items. again is how soon a mark that cannot be shown yet is worth another look; atOnce says that an item's
// error ends the wait.
func (m *Manager) fetchOnce(req *FetchRequest) (out []FetchResult, total int, again time.Duration, atOnce bool) {
	left := m.cfg.FetchBytes
	if req.Version >= 3 && req.MaxBytes > 0 {
		left = min(left, req.MaxBytes)
	}
	again = parkedForEvent
	out = make([]FetchResult, len(req.Items))
	for i := range req.Items {
		res, wait := m.fetchItem(req, &req.Items[i], left, total == 0)
		out[i] = res
		total += len(res.Records)
		left -= len(res.Records)
		if res.Err == nil {
			continue
		}
		again = min(again, wait)
		atOnce = atOnce || wait == 0
	}
	return out, total, again, atOnce
}

// fetchItem reads one partition. first says that nothing has been read yet, so that one batch may pass the limits.
func (m *Manager) fetchItem(req *FetchRequest, item *FetchItem, left int, first bool) (res FetchResult, wait time.Duration) {
	r, err := m.replica(item.Topic, item.Partition)
	if err != nil {
		return failedResult(err), 0
	}
	r.mu.Lock()
	err = r.leadsLocked(item.LeaderEpoch)
	l, hw, epoch := r.s.log, r.s.hw, r.s.epoch
	r.mu.Unlock()
	if err != nil {
		return failedResult(err), 0
	}
	res = FetchResult{HighWatermark: hw, LastStable: hw, LogStart: l.LogStart()}
	if item.Offset < res.LogStart || item.Offset > l.LogEnd() {
		err = fmt.Errorf("%w: %s has %d to %d, asked for %d", ErrOffsetOutOfRange, r, res.LogStart, l.LogEnd(), item.Offset)
	} else if item.Offset < hw && (left > 0 || first) {
		res.Records, err = r.readFor(req, item, l, hw, min(left, item.MaxBytes), first)
	}
	// The right is asked after the data was read; it also goes before an error, which is an answer about the log too.
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := r.leadsLocked(-1); now != nil || r.s.epoch != epoch {
		return failedResult(fmt.Errorf("%w: %s changed hands", ErrNotLeader, r)), 0
	}
	if wait, no := r.shownLocked(hw); no != nil {
		return failedResult(no), wait
	}
	if err != nil {
		return failedResult(err), 0
	}
	return res, 0
}

// readFor reads below the high watermark in the format of the request's version.
func (r *replica) readFor(req *FetchRequest, item *FetchItem, l *log.Log, hw id.Offset, limit int, first bool) ([]byte, error) {
	if req.Version < 4 {
		return r.readDown(req.Version, item, l, hw, limit, first)
	}
	data, err := l.Read(log.Fetch{Offset: item.Offset, MaxBytes: limit, UpTo: hw, MinOneBatch: first})
	if err != nil {
		return nil, r.checkDisk("fetch", l, err)
	}
	if req.Version < 10 {
		return withoutZstd(data)
	}
	return data, nil
}

// withoutZstd cuts a run of batches before the first with zstd, which clients before Fetch v10 do not know (KIP-110).
func withoutZstd(data []byte) ([]byte, error) {
	for rest := data; len(rest) > 0; {
		b, after, err := record.Next(rest)
		if err != nil {
			return nil, err
		}
		if b.Codec() == record.Zstd {
			if n := len(data) - len(rest); n > 0 {
				return data[:n], nil
			}
			return nil, fmt.Errorf("%w: batch at offset %d", ErrUnsupportedForFetch, b.BaseOffset())
		}
		rest = after
	}
	return data, nil
}

// readDown reads and converts for Fetch v0 to v3. It reads on while what it read holds nothing for old clients.
func (r *replica) readDown(version int16, item *FetchItem, l *log.Log, hw id.Offset, limit int, first bool) ([]byte, error) {
	codecs := codecPool.Get().(*record.Codecs)
	defer codecPool.Put(codecs)
	rules := record.DownRules{From: item.Offset, UpTo: hw, MaxBytes: limit, AtLeastOne: version >= 3 && first}
	if version >= 2 {
		rules.Magic = 1
	}
	for rules.From < hw {
		data, err := l.Read(log.Fetch{Offset: rules.From, MaxBytes: limit, UpTo: hw, MinOneBatch: true})
		if err != nil {
			return nil, r.checkDisk("fetch", l, err)
		}
		down, err := codecs.DownConvert(nil, data, rules)
		if err != nil {
			return nil, err
		}
		if len(down.Set) > 0 || down.Next <= rules.From {
			return down.Set, nil
		}
		rules.From = down.Next
	}
	return nil, nil
}

// parked is a call that waits: a watcher on marks, and a deadline. The zero value with wait set is ready.
type parked struct {
	wait  time.Duration
	over  bool // the deadline has passed: one more look, then answer
	w     watcher
	timer *time.Timer
	until time.Time
	marks []watchedMark
}

type watchedMark struct {
	r  *replica
	ws *watchers
}

func (p *parked) watching() bool { return p.w != nil }

// watch adds a mark; ws is guarded by r.mu.
func (p *parked) watch(r *replica, ws *watchers) {
	p.begin()
	r.mu.Lock()
	ws.add(p.w)
	r.mu.Unlock()
	p.marks = append(p.marks, watchedMark{r, ws})
}

func (p *parked) begin() {
	if p.w == nil {
		p.w = newWatcher()
		p.until = time.Now().Add(p.wait)
		p.timer = time.NewTimer(p.wait)
	}
}

// sleep waits for a mark, for again to pass, or for the deadline; false when ctx has ended.
func (p *parked) sleep(ctx context.Context, again time.Duration) bool {
	p.begin()
	left := time.Until(p.until)
	p.timer.Reset(max(min(left, again), 0))
	select {
	case <-ctx.Done():
		return false
	case <-p.w:
	case <-p.timer.C:
		p.over = !time.Now().Before(p.until)
	}
	return true
}

// end gives the marks up.
func (p *parked) end() {
	if p.timer != nil {
		p.timer.Stop()
	}
	for _, k := range p.marks {
		k.r.mu.Lock()
		k.ws.remove(p.w)
		k.r.mu.Unlock()
	}
}

var errNoReplica = errors.New("not a replica of the partition")
