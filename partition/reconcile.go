package partition

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/lease"
	"github.com/barnabas-mq/barnabas/internal/vfs"
	"github.com/barnabas-mq/barnabas/partition/log"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// strayDir marks a directory that was set aside since another topic has its name now, as Kafka does: t-0.<topic id>-stray.
const strayDir = "-stray"

// UnknownDirectory is something in the data directory that the metadata does not know. It is never deleted.
type UnknownDirectory struct {
	Name string // in the data directory
	Why  string
}

// Unknown lists what was found in the data directory and belongs to nothing.
func (m *Manager) Unknown() []UnknownDirectory {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return slices.Clone(m.unknown)
}

// reconcile is the goroutine that makes replicas what the metadata says.
func (m *Manager) reconcile(ctx context.Context) {
	first := true
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.work.kick:
		}
		b := m.work.take()
		v := m.view()
		for _, d := range b.deleted {
			m.deleteTopic(d)
		}
		inParallel(m.affected(v, &b), m.cfg.Workers, func(tp id.TopicPartition) {
			if ctx.Err() == nil {
				m.reconcilePartition(v, tp)
			}
		})
		if self, _ := m.deps.Self(); b.all && self != id.NoBroker && v.Index() > 0 && ctx.Err() == nil {
			m.reportUnknown(v)
			if first {
				close(m.ready)
			}
			first = false
		}
		if len(b.brokers) > 0 || b.all {
			m.brokersChanged(v)
		}
	}
}

// affected lists the partitions that a batch of work concerns.
func (m *Manager) affected(v *state.View, b *batch) []id.TopicPartition {
	set := b.partitions
	add := func(topic string) {
		v.Partitions(topic, func(p int32, _ *state.Partition) bool {
			set[id.TopicPartition{Topic: topic, Partition: p}] = struct{}{}
			return true
		})
	}
	for t := range b.topics {
		add(t)
	}
	for t := range b.configs {
		add(t)
	}
	if b.all {
		v.Topics(func(t *state.Topic) bool { add(t.Name); return true })
		for _, r := range m.all() {
			set[r.tp] = struct{}{}
		}
	}
	out := make([]id.TopicPartition, 0, len(set))
	for tp := range set {
		out = append(out, tp)
	}
	return out
}

// reconcilePartition makes one replica what a view says.
func (m *Manager) reconcilePartition(v *state.View, tp id.TopicPartition) {
	self, _ := m.deps.Self()
	topic, ok := v.Topic(tp.Topic)
	row, ok2 := v.Partition(tp.Topic, tp.Partition)
	wanted := ok && ok2 && slices.Contains(row.Replicas, self)
	r := m.find(tp)
	if r != nil && (!wanted || r.topicID != topic.ID) {
		m.release(r)
		r = nil
	}
	if !wanted {
		return
	}
	conf := m.topicConfig(v, tp.Topic, topic.ID)
	if r == nil {
		if r = m.openReplica(tp, topic.ID, row, conf); r == nil {
			return
		}
	} else if r.reopenIfDue(conf); r.s.log == nil {
		return
	}
	r.configure(conf)
	r.setRole(v, row)
}

// openReplica opens or makes the log. nil, with a line in the log, if the name cannot be used.
func (m *Manager) openReplica(tp id.TopicPartition, topic id.TopicID, row *state.Partition, conf *topicConfig) *replica {
	r := &replica{
		m: m, tp: tp, topicID: topic, dir: filepath.Join(m.cfg.Dir, fmt.Sprintf("%s-%d", tp.Topic, tp.Partition)),
	}
	r.logger = m.log.With(slog.String("topic", tp.Topic), slog.Int("partition", int(tp.Partition)))
	r.row.Store(row)
	r.conf.Store(conf)
	r.s = replicaState{epoch: -1, rowEpoch: -1, leader: id.NoBroker, failEpoch: -1, damagedAt: -1}
	if err := m.setAsideOther(r); err != nil {
		r.logger.Error("directory of another topic cannot be set aside; the replica stays closed", slog.Any("error", err))
		return nil
	}
	r.appendMu.Lock()
	r.open(conf)
	r.appendMu.Unlock()
	m.mu.Lock()
	m.replicas[tp] = r
	m.mu.Unlock()
	// A row applied before the replica could be found fences it too.
	m.fence(m.view(), tp, topic)
	return r
}

// open opens the log; appendMu is held. On an error the replica has failed and is tried again.
func (r *replica) open(conf *topicConfig) {
	l, found, err := log.Open(r.m.deps.FS, r.dir, conf.log, r.m.logNow())
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		if r.s.role != failed || r.s.failure == nil || r.s.failure.Error() != err.Error() {
			r.logger.Error("log cannot be opened", slog.Any("error", err), slog.Duration("retry", r.m.cfg.RetryFailed))
		}
		r.failLocked(err)
		return
	}
	r.s.log, r.s.role, r.s.failure, r.s.damagedAt = l, idle, nil, -1
	r.s.hw = max(min(r.s.hw, l.LogEnd()), l.LogStart())
	for _, d := range found.Damaged {
		if r.s.damagedAt < 0 || d.Offset < r.s.damagedAt {
			r.s.damagedAt = d.Offset
		}
	}
	if found.LostBelow > 0 {
		r.s.lostBelow = found.LostBelow
	}
}

// reopenIfDue opens a failed replica again.
func (r *replica) reopenIfDue(conf *topicConfig) {
	r.appendMu.Lock()
	defer r.appendMu.Unlock()
	r.mu.Lock()
	due := r.s.role == failed && r.m.deps.Clock.Boot() >= r.s.retryAt
	l := r.s.log
	if due {
		r.s.log, r.s.epoch, r.s.rowEpoch = nil, -1, -1 // it begins as if it were new
	}
	r.mu.Unlock()
	if !due {
		return
	}
	if l != nil {
		_ = l.Close() // it has failed, which was logged; what it holds is found again by Open
	}
	r.open(conf)
	if r.s.log != nil {
		r.logger.Info("log opened again after a disk error", slog.Int64("end", int64(r.s.log.LogEnd())))
	}
}

func (r *replica) configure(conf *topicConfig) {
	old := r.conf.Swap(conf)
	if old == conf || *old == *conf {
		return
	}
	if err := r.s.log.SetConfig(conf.log); err != nil {
		r.logger.Warn("log keeps its configuration", slog.Any("error", err))
	}
	r.mu.Lock()
	r.advanceLocked() // min.insync.replicas may be lower now
	r.mu.Unlock()
}

// release closes a replica that is not this broker's any more. Its directory stays: only deleteTopic removes it.
func (m *Manager) release(r *replica) {
	m.mu.Lock()
	if m.replicas[r.tp] == r {
		delete(m.replicas, r.tp)
	}
	m.mu.Unlock()
	m.detach(r)
	r.appendMu.Lock()
	defer r.appendMu.Unlock()
	r.mu.Lock()
	r.leaveRoleLocked(fmt.Errorf("%w: %s", ErrUnknownTopicOrPartition, r))
	r.s.role = gone
	l := r.s.log
	r.mu.Unlock()
	if l != nil {
		if err := l.Close(); err != nil && !errors.Is(err, log.ErrClosed) {
			r.logger.Error("log not closed cleanly", slog.Any("error", err))
		}
	}
}

// deleteTopic removes what a committed delete names: the directories of that topic id.
func (m *Manager) deleteTopic(d deletedTopic) {
	for _, r := range m.all() {
		if r.tp.Topic == d.name && r.topicID == d.id {
			m.release(r)
		}
	}
	names, err := m.deps.FS.ReadDir(m.cfg.Dir)
	if err != nil {
		m.log.Error("deleted topic stays on disk", slog.String("topic", d.name), slog.Any("error", err))
		return
	}
	for _, name := range names {
		topic, _, ok := parseDir(strings.TrimSuffix(name, strayName(d.id)))
		if !ok || topic != d.name {
			continue
		}
		dir := filepath.Join(m.cfg.Dir, name)
		if got, err := log.ReadMetadata(m.deps.FS, dir); err != nil || got != d.id {
			continue
		}
		if err := log.DeleteDir(m.deps.FS, dir, encodeID(d.id)); err != nil {
			m.log.Error("deleted partition stays on disk", slog.String("directory", name), slog.Any("error", err))
			continue
		}
		m.log.Info("partition deleted", slog.String("directory", name), slog.String("topicID", encodeID(d.id)))
	}
}

// setAsideOther renames a directory that has the replica's name and another topic's id.
func (m *Manager) setAsideOther(r *replica) error {
	got, err := log.ReadMetadata(m.deps.FS, r.dir)
	if errors.Is(err, vfs.ErrNotExist) || err == nil && got == r.topicID {
		return nil
	}
	if err != nil {
		return err
	}
	to := r.dir + strayName(got)
	if err := m.deps.FS.Rename(r.dir, to); err != nil {
		return err
	}
	if err := m.deps.FS.SyncDir(m.cfg.Dir); err != nil {
		return err
	}
	r.logger.Warn("directory of another topic of this name set aside", slog.String("to", to))
	m.mu.Lock()
	m.unknown = append(m.unknown, UnknownDirectory{filepath.Base(to), "of an earlier topic of this name"})
	m.mu.Unlock()
	return nil
}

func strayName(topic id.TopicID) string { return "." + encodeID(topic) + strayDir }

func encodeID(t id.TopicID) string { return base64.RawURLEncoding.EncodeToString(t[:]) }

// parseDir takes a replica's directory name apart.
func parseDir(name string) (topic string, partition int32, ok bool) {
	i := strings.LastIndexByte(name, '-')
	if i < 1 {
		return "", 0, false
	}
	n, err := strconv.ParseInt(name[i+1:], 10, 32)
	if err != nil || n < 0 || state.ValidTopicName(name[:i]) != "" {
		return "", 0, false
	}
	return name[:i], int32(n), true
}

// reportUnknown names what is in the data directory and belongs to nothing.
func (m *Manager) reportUnknown(v *state.View) {
	names, err := m.deps.FS.ReadDir(m.cfg.Dir)
	if err != nil {
		m.log.Error("data directory cannot be listed", slog.Any("error", err))
		return
	}
	var found []UnknownDirectory
	for _, name := range names {
		if why := m.whyUnknown(v, name); why != "" {
			found = append(found, UnknownDirectory{name, why})
			if !slices.Contains(m.unknown, UnknownDirectory{name, why}) { // only this goroutine writes it
				m.log.Warn("unknown directory is left alone", slog.String("directory", name), slog.String("why", why))
			}
		}
	}
	m.mu.Lock()
	m.unknown = found
	m.mu.Unlock()
}

func (m *Manager) whyUnknown(v *state.View, name string) string {
	topic, partition, ok := parseDir(name)
	if !ok {
		if strings.HasSuffix(name, strayDir) {
			return "of an earlier topic of this name"
		}
		return "" // not a partition's: other rooms have files here
	}
	if m.find(id.TopicPartition{Topic: topic, Partition: partition}) != nil {
		return ""
	}
	if _, ok := v.Topic(topic); !ok {
		return "no such topic"
	}
	return "this broker is no replica"
}

// brokersChanged takes proofs from the metadata: a broker that registered anew, or said goodbye, does not lead by an older row.
func (m *Manager) brokersChanged(v *state.View) {
	now := m.deps.Clock.Boot()
	for _, r := range m.all() {
		r.mu.Lock()
		if r.s.role == leading {
			for _, b := range r.s.lead.right.Waits() {
				if row, ok := v.Broker(b); ok && (row.Liveness == state.Left || row.Epoch > id.BrokerEpoch(r.s.lead.since)) {
					r.s.lead.right.Gone(b)
					r.s.hwWatch.wake()
				}
			}
			r.considerISRLocked(now)
		}
		r.mu.Unlock()
	}
}

// setRole makes the replica what a row says.
func (r *replica) setRole(v *state.View, row *state.Partition) {
	r.appendMu.Lock()
	defer r.appendMu.Unlock()
	r.mu.Lock()
	role, epoch := r.s.role, r.s.epoch
	r.mu.Unlock()
	if role == failed || role == gone || row.LeaderEpoch < epoch {
		return
	}
	self, selfEpoch := r.m.deps.Self()
	mayLead := r.mayLead(v, row, self, selfEpoch)
	switch {
	case row.Leader == self && !mayLead:
		r.becomeIdle(row)
	case row.LeaderEpoch == epoch && (role == leading) == (row.Leader == self) && role != idle:
		r.mu.Lock()
		r.adoptLocked(row)
		r.mu.Unlock()
		if role == following {
			_ = r.repair(row, self)
		}
	case row.Leader == self:
		r.becomeLeader(v, row, self)
	case row.Leader == id.NoBroker:
		r.becomeIdle(row)
	default:
		r.becomeFollower(row, self)
	}
}

// mayLead: only an epoch that began under this incarnation may be led, and none that the log already has (or that this process
// led until its disk failed): an earlier leadership at it may have given out records that are not here.
func (r *replica) mayLead(v *state.View, row *state.Partition, self id.BrokerID, selfEpoch id.BrokerEpoch) bool {
	if row.Leader != self {
		return false
	}
	b, ok := v.Broker(self)
	if !ok || selfEpoch == 0 || b.Epoch != selfEpoch || b.Liveness != state.Live {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.s.role == leading && r.s.epoch == row.LeaderEpoch {
		return true
	}
	why := ""
	switch {
	case row.LeaderEpoch <= r.s.failEpoch:
		why = "this process led the epoch until its disk failed"
	case r.s.log.LatestEpoch() >= row.LeaderEpoch:
		why = fmt.Sprintf("the log has epoch %d", r.s.log.LatestEpoch())
	case r.s.lostBelow > r.s.log.LogEnd():
		why = fmt.Sprintf("records up to offset %d were durable and are gone; restart the broker to accept the loss", r.s.lostBelow)
	default:
		return true
	}
	if r.s.refused != row.LeaderEpoch {
		r.s.refused = row.LeaderEpoch
		r.logger.Error("leadership refused", slog.Int("epoch", int(row.LeaderEpoch)), slog.String("why", why))
	}
	return false
}

func (r *replica) becomeIdle(row *state.Partition) {
	r.m.detach(r)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaveRoleLocked(fmt.Errorf("%w: %s has no leader", ErrNotLeader, r))
	r.s.role, r.s.epoch, r.s.rowEpoch = idle, row.LeaderEpoch, row.Epoch
	r.s.leader, r.s.isr, r.s.replicas = id.NoBroker, row.ISR, row.Replicas
}

func (r *replica) becomeLeader(v *state.View, row *state.Partition, self id.BrokerID) {
	r.m.detach(r)
	if err := r.s.log.BeginEpoch(row.LeaderEpoch); err != nil {
		r.mu.Lock()
		r.leaveRoleLocked(fmt.Errorf("%w: %s", ErrNotLeader, r))
		r.s.role = idle
		r.mu.Unlock()
		_ = r.checkDisk("begin a leader epoch", r.s.log, err)
		return
	}
	now := r.m.deps.Clock.Boot()
	from := lease.TakeoverFrom{Grace: row.GraceNeeded}
	for _, b := range row.Replicas {
		if b == self {
			continue
		}
		from.Others = append(from.Others, b)
		if other, ok := v.Broker(b); ok && other.Liveness == state.Live {
			from.Live = append(from.Live, b)
		}
	}
	r.mu.Lock()
	r.leaveRoleLocked(fmt.Errorf("%w: %s begins epoch %d", ErrNotLeader, r, row.LeaderEpoch))
	r.s.role, r.s.epoch, r.s.rowEpoch = leading, row.LeaderEpoch, row.Epoch
	r.s.leader, r.s.isr, r.s.replicas = self, row.ISR, row.Replicas
	r.s.lead = leadState{epochStart: r.s.log.LogEnd(), right: lease.NewLeading(&r.s.followed, from, now), since: v.Index()}
	r.setRemotesLocked()
	r.advanceLocked()
	dirty := r.syncedEnd(r.s.log) < r.s.log.LogEnd()
	r.mu.Unlock()
	if dirty {
		r.m.commits.mark(r)
	}
	r.logger.Debug("leads", slog.Int("epoch", int(row.LeaderEpoch)), slog.Int64("end", int64(r.s.lead.epochStart)), slog.Any("isr", row.ISR))
}

func (r *replica) becomeFollower(row *state.Partition, self id.BrokerID) {
	r.m.detach(r)
	r.mu.Lock()
	r.leaveRoleLocked(fmt.Errorf("%w: %s is led by broker %d", ErrNotLeader, r, row.Leader))
	r.s.role, r.s.epoch, r.s.rowEpoch = following, row.LeaderEpoch, row.Epoch
	r.s.leader, r.s.isr, r.s.replicas = row.Leader, row.ISR, row.Replicas
	r.s.followed.Follow()
	r.mu.Unlock()
	if r.repair(row, self) != nil {
		return
	}
	r.m.attach(r, row.Leader)
	r.logger.Debug("follows", slog.Int("epoch", int(row.LeaderEpoch)), slog.Int("leader", int(row.Leader)))
}

// repair cuts a damaged log before its damage, so that the rest is fetched anew, once the replica is out of the ISR and nobody
// counts on what is here. appendMu is held.
func (r *replica) repair(row *state.Partition, self id.BrokerID) error {
	r.mu.Lock()
	l, damaged := r.s.log, r.s.damagedAt
	r.mu.Unlock()
	if damaged < 0 || slices.Contains(row.ISR, self) {
		return nil
	}
	end, err := l.TruncateTo(damaged)
	if err != nil {
		return r.checkDisk("cut damaged bytes off", l, err)
	}
	r.mu.Lock()
	r.s.damagedAt = -1
	r.s.hw = min(r.s.hw, end)
	r.mu.Unlock()
	r.logger.Warn("damaged bytes cut off; they are fetched from the leader", slog.Int64("from", int64(end)))
	return nil
}
