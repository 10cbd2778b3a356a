package partition

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/barnabas-mq/barnabas/internal/clock"
	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/lease"
	"github.com/barnabas-mq/barnabas/internal/vfs"
	"github.com/barnabas-mq/barnabas/partition/log"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// Manager is all replicas of this broker. Its calls may be made from any goroutine, before Run too (they find no partition
// then) and after (ErrNotLeader).
type Manager struct {
	cfg     Config
	deps    Deps
	log     *slog.Logger
	commits *commitTick
	clients clients
	lag     lagClock

	current atomic.Pointer[state.View] // the newest view handed over
	ready   chan struct{}
	work    workQueue

	mu       sync.RWMutex
	replicas map[id.TopicPartition]*replica
	fetchers map[id.BrokerID]*fetcher
	unknown  []UnknownDirectory
	stopped  bool

	// ctx is Run's, for goroutines that calls and fetches start; set under mu, as is wg's last Add.
	ctx context.Context
	wg  sync.WaitGroup
}

// New makes a Manager that does nothing until Run.
func New(cfg Config, deps Deps) (*Manager, error) {
	cfg, deps = cfg.withDefaults(), deps.withDefaults()
	if err := errors.Join(cfg.validate(), deps.validate()); err != nil {
		return nil, fmt.Errorf("partition: %w", err)
	}
	return &Manager{
		cfg: cfg, deps: deps, log: deps.Logger, commits: newCommitTick(), work: newWorkQueue(), ready: make(chan struct{}),
		lag:      newLagClock(deps.Clock.Boot(), 2*cfg.checkEvery()),
		replicas: map[id.TopicPartition]*replica{}, fetchers: map[id.BrokerID]*fetcher{},
	}, nil
}

// Run opens what the metadata gives to this broker and serves it until ctx ends; then it closes the logs cleanly and returns when
// every goroutine has ended. Calls that wait are answered ErrNotLeader. An error: the data directory cannot be used.
func (m *Manager) Run(ctx context.Context) error {
	if err := m.prepareDir(); err != nil {
		return fmt.Errorf("partition: data directory %s: %w", m.cfg.Dir, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.mu.Lock()
	m.ctx = ctx
	m.mu.Unlock()
	m.current.CompareAndSwap(nil, m.deps.Views.View()) // unless a newer one was handed over already
	m.SelfChanged()
	m.spawn(m.reconcile)
	m.spawn(func(ctx context.Context) { m.commits.run(ctx, m.cfg.Workers) })
	m.spawn(m.housekeep)
	<-ctx.Done()
	m.mu.Lock()
	m.stopped = true
	m.mu.Unlock()
	m.closeRoles()
	m.wg.Wait()
	m.closeRoles() // of what the reconciler was opening
	m.closeLogs()
	return nil
}

// spawn runs fn on a goroutine that Run waits for; not at all before Run or after its end.
func (m *Manager) spawn(fn func(context.Context)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped || m.ctx == nil {
		return
	}
	ctx := m.ctx
	m.wg.Go(func() { fn(ctx) })
}

// closeRoles answers whoever waits.
func (m *Manager) closeRoles() {
	for _, r := range m.all() {
		r.appendMu.Lock()
		r.mu.Lock()
		r.leaveRoleLocked(fmt.Errorf("%w: %w", ErrNotLeader, ErrStopped))
		r.s.role = gone
		r.mu.Unlock()
		r.appendMu.Unlock()
	}
}

func (m *Manager) closeLogs() {
	inParallel(m.all(), m.cfg.Workers, func(r *replica) {
		r.appendMu.Lock()
		defer r.appendMu.Unlock()
		if r.s.log == nil {
			return
		}
		if err := r.s.log.Close(); err != nil {
			r.logger.Error("log not closed cleanly", slog.Any("error", err))
		}
	})
}

func (m *Manager) all() []*replica {
	m.mu.RLock()
	defer m.mu.RUnlock()
	out := make([]*replica, 0, len(m.replicas))
	for _, r := range m.replicas {
		out = append(out, r)
	}
	return out
}

// view is the newest view that was handed over; never nil after Run began.
func (m *Manager) view() *state.View {
	if v := m.current.Load(); v != nil {
		return v
	}
	return m.deps.Views.View()
}

// find returns the replica or nil.
func (m *Manager) find(tp id.TopicPartition) *replica {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.replicas[tp]
}

// replica finds the replica of a partition, or says which error a client is to see.
func (m *Manager) replica(topic string, partition int32) (*replica, error) {
	if r := m.find(id.TopicPartition{Topic: topic, Partition: partition}); r != nil {
		return r, nil
	}
	if _, ok := m.view().Partition(topic, partition); ok {
		return nil, fmt.Errorf("%w: %s-%d has no open replica here", ErrNotLeader, topic, partition)
	}
	return nil, fmt.Errorf("%w: %s-%d", ErrUnknownTopicOrPartition, topic, partition)
}

// ApplyChanges takes in one applied Raft entry: the view after it and its changes. The node calls it synchronously, entry by
// entry, in order, before it calls itself applied: from its return on, nothing is answered by an older leader epoch. It touches
// no disk and waits for none.
func (m *Manager) ApplyChanges(v *state.View, changes []state.Change) {
	m.current.Store(v)
	for i := range changes {
		c := &changes[i]
		switch c.Kind {
		case state.TopicDeleted:
			m.work.delete(c.Topic, c.TopicID)
			m.fenceTopic(c.Topic, c.TopicID)
		case state.TopicCreated, state.TopicGrown:
			m.work.topic(c.Topic)
		case state.PartitionChanged:
			tp := id.TopicPartition{Topic: c.Topic, Partition: c.Partition}
			m.fence(v, tp, c.TopicID)
			m.work.partition(tp)
		case state.ConfigCreated, state.ConfigData, state.ConfigDeleted:
			if c.Type == "topics" {
				m.work.config(c.Name)
			}
		case state.BrokerRegistered, state.BrokerFenced:
			m.work.broker(c.Broker)
		}
	}
	m.work.wake()
}

// Reset takes in a whole view, of which no changes are known: at the start, and after a snapshot was restored.
func (m *Manager) Reset(v *state.View) {
	m.current.Store(v)
	for _, r := range m.all() {
		m.fence(v, r.tp, r.topicID)
	}
	m.work.everything()
	m.work.wake()
}

// Ready is closed when every log that the metadata gave to this broker was opened (or failed to) for the first time. It needs the
// broker's id from Self, not its epoch: a node that knows its id from the metadata can open its logs, which may take long after
// a crash, before it registers and gets leaderships.
func (m *Manager) Ready() <-chan struct{} { return m.ready }

// SelfChanged says that Self returns something new, after a registration: leaderships of the new incarnation begin.
func (m *Manager) SelfChanged() {
	m.work.everything()
	m.work.wake()
}

// fence hands a replica its newest row, so that what it answers by an older one stops now; the role follows later.
func (m *Manager) fence(v *state.View, tp id.TopicPartition, topic id.TopicID) {
	r := m.find(tp)
	if r == nil || r.topicID != topic {
		return
	}
	if row, ok := v.Partition(tp.Topic, tp.Partition); ok {
		if t, ok := v.Topic(tp.Topic); ok && t.ID == topic {
			r.fence(row)
			return
		}
	}
	r.fence(deletedRow)
}

// fence never goes back: the reconciler may hand over a row that is older than one just applied.
func (r *replica) fence(row *state.Partition) {
	for {
		old := r.row.Load()
		if old.Epoch >= row.Epoch || r.row.CompareAndSwap(old, row) {
			return
		}
	}
}

// deletedRow is the row of a partition that has none.
var deletedRow = &state.Partition{Leader: id.NoBroker, LeaderEpoch: 1<<31 - 1, Epoch: 1<<31 - 1}

func (m *Manager) fenceTopic(topic string, tid id.TopicID) {
	for _, r := range m.all() {
		if r.tp.Topic == topic && r.topicID == tid {
			r.fence(deletedRow)
		}
	}
}

// ProvenDead says that an incarnation of a broker surely runs no more (its port refuses connections, it said goodbye): leaders
// need not wait for its leases. Proofs that the metadata holds are noticed without it.
func (m *Manager) ProvenDead(b id.BrokerID, epoch id.BrokerEpoch) {
	now := m.deps.Clock.Boot()
	for _, r := range m.all() {
		r.mu.Lock()
		if r.s.role == leading {
			r.s.lead.right.Dead(lease.Member{Broker: b, Epoch: epoch}, now)
			if m.brokerEpoch(b) <= epoch {
				r.s.lead.right.Gone(b)
			}
			r.s.hwWatch.wake()
		}
		r.mu.Unlock()
	}
}

// WaitsFor returns the brokers that new leaders here wait for before they answer: proof of their death (ProvenDead) ends it.
func (m *Manager) WaitsFor() []id.BrokerID {
	seen := map[id.BrokerID]bool{}
	var out []id.BrokerID
	now := m.deps.Clock.Boot()
	for _, r := range m.all() {
		r.mu.Lock()
		if r.s.role == leading && r.s.lead.right.ServesFrom() > now {
			for _, b := range r.s.lead.right.Waits() {
				if !seen[b] {
					seen[b] = true
					out = append(out, b)
				}
			}
		}
		r.mu.Unlock()
	}
	return out
}

// housekeep shrinks ISRs, opens failed replicas again, forgets idle producers, and notices a new incarnation.
func (m *Manager) housekeep(ctx context.Context) {
	beat := clock.NewBeat(m.deps.Clock, m.cfg.checkEvery())
	defer beat.Stop()
	_, epoch := m.deps.Self()
	expire := m.logNow() + expireEvery.Milliseconds()
	for {
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
			beat.Next()
		}
		if _, e := m.deps.Self(); e != epoch {
			epoch = e
			m.SelfChanged()
		}
		now, logNow := m.deps.Clock.Boot(), m.logNow()
		m.lag.check(now)
		expiring := logNow >= expire
		if expiring {
			expire = logNow + expireEvery.Milliseconds()
		}
		for _, r := range m.all() {
			r.mu.Lock()
			r.considerISRLocked(now)
			retry := r.s.role == failed && now >= r.s.retryAt
			l := r.s.log
			r.mu.Unlock()
			if expiring && l != nil {
				l.ExpireProducers(logNow - m.cfg.ProducerExpiry.Milliseconds())
			}
			if retry {
				m.work.partition(r.tp)
				m.work.wake()
			}
		}
	}
}

// expireEvery is how often idle producers are looked for.
const expireEvery = 10 * time.Minute

// logNow is the time that logs are told, in milliseconds: the cluster's, so that no jump of a wall clock expires a producer.
func (m *Manager) logNow() int64 { return m.view().ClockMs() }

// prepareDir makes the data directory and ends interrupted deletions.
func (m *Manager) prepareDir() error {
	if err := vfs.EnsureDir(m.deps.FS, m.cfg.Dir); err != nil {
		return err
	}
	ended, err := log.FinishDeletes(m.deps.FS, m.cfg.Dir)
	for _, name := range ended {
		m.log.Info("ended an interrupted deletion", slog.String("directory", name))
	}
	return err
}
