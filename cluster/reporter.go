package cluster

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/barnabas-mq/barnabas/internal/clock"
	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/lease"
)

// Methods of the reports.
const (
	MethodReport  = "cluster.report"
	MethodGoodbye = "cluster.goodbye"
)

// Caller is the part of *Cluster that the reporter needs.
type Caller interface {
	Call(ctx context.Context, t Target, method string, payload []byte) ([]byte, error)
}

// ReporterConfig is where a Reporter takes its reports from. Vote, Sessions, Fetches and Log may be nil.
type ReporterConfig struct {
	Caller Caller
	Clock  clock.Clock
	// Directory is this node's: of reports to itself, each of which costs a proof round, every third is made. "": all are.
	Directory id.DirectoryID
	// Self returns this broker and its incarnation; epoch 0 before it has registered.
	Self func() (id.BrokerID, id.BrokerEpoch)
	// Leader returns the Raft leader, "" for none known, and a channel that is closed when it changes.
	Leader func() (id.DirectoryID, <-chan struct{})
	// Applied is the index up to which this broker's partitions follow the state: with it applied, none of them answers by a
	// leadership that the state has ended.
	Applied func() id.Index
	// Vote confirms the term of this node's part in the metadata log; nil: reports carry no vote. Called after the moment from
	// which the lease counts, and only when the report before was answered.
	Vote func() id.Term
	// Sessions names the ZooKeeper sessions heard since the last answered report; answered is called when a leader that had
	// proved itself has taken them.
	Sessions func() (sessions []id.SessionID, answered func())
	// Fetches lists who fetches what from this broker, or did. It may wait for somebody who asks for the Lease.
	Fetches func() []Fetch
	Log     *slog.Logger
}

const (
	reportTimeout   = lease.Duration // a later answer is worth nothing
	maxReportsOut   = 8
	ownEvery        = 3               // beats; the lease has 0.9 s left when the next report to itself is made, which no network can lose
	registryRefresh = 5 * time.Second // how old the leader's Age of an active fetch may be
	registryBytes   = 4 << 20         // of lines in one report, far below MaxPayload
	registryIdle    = 2 * time.Second // of a fetch that is older than this the leader's Age is exact
)

// Reporter sends this broker's reports and holds its lease. Run does the work; the other methods may be called from any
// goroutine at any time.
type Reporter struct {
	cfg ReporterConfig

	mu      sync.Mutex
	left    bool
	lease   lease.Lease
	sent    time.Duration // when the last report was
	clockMs int64
	clockAt time.Duration

	registryMu sync.Mutex // not mu: Fetches waits for partitions, which ask for the lease while they hold their own
	registry   registryState
}

// NewReporter starts nothing.
func NewReporter(cfg ReporterConfig) *Reporter {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Reporter{cfg: cfg}
}

// Lease returns the broker's lease as it is now.
func (r *Reporter) Lease() lease.Lease {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lease
}

// LastAcked returns when (CLOCK_BOOTTIME) the youngest report that granted the lease was sent; false before the first.
func (r *Reporter) LastAcked() (sentAt time.Duration, ok bool) { return r.Lease().LastSent() }

// ClusterClockMs returns the cluster clock as it must be by now after the last answer; false before the first.
func (r *Reporter) ClusterClockMs() (int64, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.clockMs + (r.cfg.Clock.Boot() - r.clockAt).Milliseconds(), r.clockAt > 0
}

// Run reports until ctx ends, at once when the leader changes. Answers may come late: the next report does not wait for them.
func (r *Reporter) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out := make(chan struct{}, maxReportsOut)
	beat := clock.NewBeat(r.cfg.Clock, lease.ReportEvery)
	defer beat.Stop()
	own := 0 // beats since the last report to itself
	for {
		leader, changed := r.cfg.Leader()
		if leader != r.cfg.Directory || !r.fresh() {
			own = ownEvery
		}
		if b, epoch := r.cfg.Self(); leader != "" && epoch != 0 && own >= ownEvery {
			own = 0
			select {
			case out <- struct{}{}:
				wg.Go(func() {
					defer func() { <-out }()
					if err := r.report(ctx, leader, b, epoch); err != nil && ctx.Err() == nil {
						r.cfg.Log.Debug("report not answered", "leader", leader, "err", err)
					}
				})
			default: // the leader is stuck; so many are enough to find out when it is not
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-beat.C:
			own++
			beat.Next()
		}
	}
}

// sends notes that a report is made now, and says whether it may carry a vote.
func (r *Reporter) sends(now time.Duration) (votes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	votes = r.lease.Votes(r.sent)
	r.sent = now
	return votes
}

// fresh says that the lease is as young as reports to itself leave it; if not, one was not answered.
func (r *Reporter) fresh() bool {
	sent, ok := r.LastAcked()
	return ok && r.cfg.Clock.Boot()-sent < ownEvery*lease.ReportEvery
}

func (r *Reporter) report(ctx context.Context, leader id.DirectoryID, b id.BrokerID, epoch id.BrokerEpoch) error {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	rep := &Report{Broker: b, Epoch: epoch}
	answered := func() {}
	// The lease counts from here: everything that the report says was true no earlier.
	sent := r.cfg.Clock.Boot()
	if votes := r.sends(sent); votes && r.cfg.Vote != nil {
		rep.Voted = r.cfg.Vote()
	}
	rep.Applied = r.cfg.Applied()
	if r.cfg.Sessions != nil {
		rep.Sessions, answered = r.cfg.Sessions()
	}
	delta := r.registryDelta(leader, rep, sent)
	raw, err := r.cfg.Caller.Call(ctx, ToDirectory(leader), MethodReport, rep.encode())
	var reply ReportReply
	if err == nil {
		reply, err = decodeReportReply(raw)
	}
	if err == nil {
		r.mu.Lock()
		r.clockMs, r.clockAt = reply.ClockMs, sent
		if reply.Granted && !r.left {
			r.lease.Answered(sent)
		}
		r.mu.Unlock()
	}
	r.registryMu.Lock()
	if delta {
		r.registry.settle(leader, rep.RegistrySeq, err == nil && reply.RegistrySeq == rep.RegistrySeq)
	} else if err == nil && reply.RegistrySeq != r.registry.acked && !r.registry.flying && r.registry.leader == leader {
		r.registry.reset(leader)
	}
	r.registryMu.Unlock()
	if err != nil {
		return err
	}
	answered()
	return nil
}

// Leave tells the leader that this broker serves nothing any more and will not again in this incarnation, and waits until
// that is committed. The caller has stopped its partitions and client ports before. The lease ends here at once.
func (r *Reporter) Leave(ctx context.Context) error {
	r.mu.Lock()
	r.left, r.lease = true, lease.Lease{}
	r.mu.Unlock()
	b, epoch := r.cfg.Self()
	if epoch == 0 {
		return nil
	}
	payload := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(nil, uint32(b)), uint64(epoch))
	for {
		leader, changed := r.cfg.Leader()
		err := error(ErrUnreachable)
		if leader != "" {
			call, cancel := context.WithTimeout(ctx, reportTimeout)
			_, err = r.cfg.Caller.Call(call, ToDirectory(leader), MethodGoodbye, payload)
			cancel()
			if err == nil {
				return nil
			}
		}
		pause := time.NewTimer(lease.ReportEvery)
		select {
		case <-ctx.Done():
			pause.Stop()
			return fmt.Errorf("cluster: goodbye was not taken, the others wait for the lease to end: %w", errors.Join(err, ctx.Err()))
		case <-changed:
		case <-pause.C:
		}
		pause.Stop()
	}
}

// registryState is how much of the fetch registry one leader has.
type registryState struct {
	leader  id.DirectoryID
	seq     uint64 // of the last change made
	acked   uint64
	flying  bool // a change is on its way; the next waits for its fate
	known   map[FetchKey]toldFetch
	pending map[FetchKey]toldFetch // known once the change is taken
}

type toldFetch struct {
	at     time.Duration // last (Boot)
	closed bool
	end    id.Offset
}

func (s *registryState) reset(leader id.DirectoryID) {
	*s = registryState{leader: leader, known: map[FetchKey]toldFetch{}}
}

func (s *registryState) settle(leader id.DirectoryID, seq uint64, taken bool) {
	if !s.flying || s.leader != leader || s.seq != seq {
		return
	}
	s.flying = false
	if !taken {
		s.reset(s.leader) // whether it arrived is unknown: the whole again
		return
	}
	s.known, s.acked = s.pending, s.seq
}

// registryDelta puts the registry's change into a report, if the former one has been taken.
func (r *Reporter) registryDelta(leader id.DirectoryID, rep *Report, now time.Duration) bool {
	if r.cfg.Fetches == nil {
		return false
	}
	r.registryMu.Lock()
	defer r.registryMu.Unlock()
	s := &r.registry
	if s.leader != leader || s.known == nil {
		s.reset(leader)
	}
	if s.flying {
		return false
	}
	size := 0
	next := make(map[FetchKey]toldFetch, len(s.known))
	for _, f := range r.cfg.Fetches() {
		k := FetchKey{f.Conn, f.TopicPartition}
		told, known := s.known[k]
		moved := f.Age <= now-told.at && (now-told.at > registryRefresh || f.Age > registryIdle)
		if !known || moved || f.Closed != told.closed || f.End != told.end {
			if size += f.size(); size > registryBytes { // it goes with a later report
				if known {
					next[k] = told
				}
				continue
			}
			rep.Fetches = append(rep.Fetches, f)
			told = toldFetch{now, f.Closed, f.End}
		}
		next[k] = told
	}
	for k := range s.known {
		if _, ok := next[k]; !ok {
			rep.Gone = append(rep.Gone, k)
		}
	}
	if s.seq > 0 && len(rep.Fetches) == 0 && len(rep.Gone) == 0 {
		return false
	}
	s.seq++
	s.flying, s.pending = true, next
	rep.RegistrySeq = s.seq
	return true
}
