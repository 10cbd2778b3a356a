package partition

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/lease"
	"github.com/barnabas-mq/barnabas/partition/log"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// role is what a replica does.
type role uint8

const (
	// idle: no leader is known, or this incarnation may not lead the row's epoch. Everything is answered ErrNotLeader.
	idle role = iota
	// following: a fetcher pulls from the leader.
	following
	// leading: appends and answers, within the right to serve.
	leading
	// failed: the disk failed; nothing is written or served until the replica is opened again.
	failed
	// gone: closed for good (deleted, or the manager stopped).
	gone
)

func (r role) String() string {
	return [...]string{"idle", "following", "leading", "failed", "gone"}[r]
}

// replica is this broker's copy of one partition.
type replica struct {
	m       *Manager
	tp      id.TopicPartition
	topicID id.TopicID
	dir     string
	logger  *slog.Logger

	// row is the newest applied row; role decisions follow it, but what it fences is fenced at once.
	row  atomic.Pointer[state.Partition]
	conf atomic.Pointer[topicConfig]

	// appendMu is held by whoever writes the log or changes the role. The log pointer changes only under it and mu.
	appendMu sync.Mutex

	mu sync.Mutex
	s  replicaState
}

// replicaState is guarded by replica.mu.
type replicaState struct {
	log       *log.Log
	role      role
	epoch     id.LeaderEpoch    // of the role
	rowEpoch  id.PartitionEpoch // of the row that isr is from
	leader    id.BrokerID
	replicas  []id.BrokerID
	isr       []id.BrokerID
	hw        id.Offset
	followed  lease.Following
	hwWatch   watchers // consumers: the high watermark, the right to serve or the role changed
	endWatch  watchers // replicas: the log end or the role changed
	failure   error
	full      error          // why the disk refused the last append (no space left, say); nil once one succeeded
	failEpoch id.LeaderEpoch // this process may not lead at or below it: what followers have of that epoch may not be here
	damagedAt id.Offset      // bytes from here on are damaged; -1: none
	retryAt   time.Duration  // Boot time at which a failed replica is opened again, or a refusing disk is told of again
	lostBelow id.Offset      // records up to here were durable and are gone; 0: none
	refused   id.LeaderEpoch // the last leadership refused, so that it is logged once

	lead leadState // meaningful while leading
}

// leadState is what only a leader has.
type leadState struct {
	since      id.Index  // of the view that made this replica leader
	epochStart id.Offset // log end at the takeover: the high watermark is not shown below it
	remotes    map[id.BrokerID]*remote
	pending    *isrChange
	right      *lease.Leading
	acks       []*ackWait // ascending offsets
	// resigning: leadership is being handed over, nothing is served any more.
	resigning bool
	// proposeAfter is the Boot time before which no change of the ISR is proposed, after a refusal.
	proposeAfter time.Duration
}

// remote is what a leader knows of a follower (kafka.cluster.Replica).
type remote struct {
	epoch        id.BrokerEpoch // of its last fetch; 0 before the first
	end          id.Offset      // what it has, synced; -1: unknown
	caughtUp     time.Duration  // when it last had all, by the lag clock; valid if everCaughtUp
	everCaughtUp bool
	fetched      time.Duration // of its last fetch, or of the end of its being parked, by the lag clock; 0: none
	fetchedEnd   id.Offset     // our log end then
	leaving      bool          // it asked to be taken out of the ISR
	sent         time.Duration // its own Boot time at its last fetch
}

// newer says whether a fetch was sent after the last one that was noted, and notes it.
func (f *remote) newer(epoch id.BrokerEpoch, sent time.Duration) bool {
	if epoch < f.epoch || epoch == f.epoch && sent < f.sent {
		return false
	}
	f.sent = sent
	return true
}

// leaderAt returns the open log if the replica leads and nothing newer is known. epoch is the caller's idea of the leader
// epoch, -1 for none (KIP-320).
func (r *replica) leaderAt(epoch id.LeaderEpoch) (*log.Log, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.s.log, r.leadsLocked(epoch)
}

// leadsLocked checks role and epochs.
func (r *replica) leadsLocked(epoch id.LeaderEpoch) error {
	row := r.row.Load()
	known := max(row.LeaderEpoch, r.s.epoch)
	switch {
	case row == deletedRow || r.s.role == gone:
		return fmt.Errorf("%w: %s is deleted or closed", r.goneLocked(), r)
	case epoch >= 0 && epoch > known:
		return fmt.Errorf("%w: %s is at %d, asked for %d", ErrUnknownLeaderEpoch, r, known, epoch)
	case epoch >= 0 && epoch < known:
		return fmt.Errorf("%w: %s is at %d, asked for %d", ErrFencedLeaderEpoch, r, known, epoch)
	case r.s.role != leading || row.LeaderEpoch != r.s.epoch:
		return fmt.Errorf("%w: %s (%v at epoch %d, leader %d)", ErrNotLeader, r, r.s.role, row.LeaderEpoch, row.Leader)
	}
	return nil
}

func (r *replica) goneLocked() error {
	if r.row.Load() == deletedRow {
		return ErrUnknownTopicOrPartition
	}
	return ErrNotLeader
}

func (r *replica) String() string { return fmt.Sprintf("%s-%d", r.tp.Topic, r.tp.Partition) }

// syncedEnd is the end that counts for replication.
func (r *replica) syncedEnd(l *log.Log) id.Offset {
	if r.m.cfg.UnsyncedAcks {
		return l.LogEnd()
	}
	return l.SyncedEnd()
}

// advanceLocked raises the high watermark as far as every member of the ISR, as the leader must count it, has synced; and as any
// follower that is about to join has (so that it can join), unless fewer than min.insync.replicas are in the ISR (KIP-966).
func (r *replica) advanceLocked() {
	if r.s.role != leading || len(r.s.isr) < r.minISRLocked() {
		return
	}
	hw := r.syncedEnd(r.s.log)
	for b, f := range r.s.lead.remotes {
		if f.end < hw && (r.countsLocked(b) || r.joiningLocked(b, f)) {
			hw = f.end
		}
	}
	if hw <= r.s.hw {
		return
	}
	r.s.hw = hw
	r.s.hwWatch.wake()
	n := 0
	for n < len(r.s.lead.acks) && r.s.lead.acks[n].need <= hw {
		r.s.lead.acks[n].settle(nil)
		n++
	}
	r.s.lead.acks = slices.Delete(r.s.lead.acks, 0, n)
}

func (r *replica) minISRLocked() int { return r.conf.Load().minISRFor(len(r.s.replicas)) }

// countsLocked: a member counts from the moment it was asked to be added until its removal is answered (KIP-497).
func (r *replica) countsLocked(b id.BrokerID) bool {
	return slices.Contains(r.s.isr, b) || r.s.lead.pending != nil && slices.Contains(r.s.lead.pending.isr, b)
}

// joiningLocked: a follower out of the ISR that is nearly caught up is waited for (Partition.maybeIncrementLeaderHW).
func (r *replica) joiningLocked(b id.BrokerID, f *remote) bool {
	return f.everCaughtUp && !f.leaving && r.m.eligible(b, f.epoch) && r.m.lag.at(r.m.deps.Clock.Boot())-f.caughtUp <= r.m.cfg.ReplicaLagMax
}

// shownLocked says whether a high watermark of this epoch may be shown to consumers: it had reached what was taken over when
// it was read, and the right to serve is held now. hw and data must have been read before. wait is how long until it is worth to ask again; 0 with an
// error: answer it at once.
func (r *replica) shownLocked(hw id.Offset) (wait time.Duration, err error) {
	if wait, err := r.rightLocked(r.m.deps.Clock.Boot()); err != nil {
		return wait, err
	}
	if hw < r.s.lead.epochStart {
		return parkedForEvent, fmt.Errorf("%w: the high watermark of %s was %d, epoch %d began at %d", ErrOffsetNotAvailable, r, hw, r.s.epoch, r.s.lead.epochStart)
	}
	return 0, nil
}

// rightLocked is the right to serve (metadata.md "Who may answer").
func (r *replica) rightLocked(now time.Duration) (wait time.Duration, err error) {
	if r.s.lead.resigning {
		return 0, fmt.Errorf("%w: %s hands its leadership over", ErrNotLeader, r)
	}
	if from := r.s.lead.right.ServesFrom(); now < from {
		return from - now, fmt.Errorf("%w: %s waits for the lease of an earlier leader to end", ErrOffsetNotAvailable, r)
	}
	if _, may := r.s.lead.right.MayServe(now, r.m.deps.Lease(), r.membersLocked()); !may {
		return 0, fmt.Errorf("%w: %s: neither the broker's lease nor its followers' fetches are recent", ErrNotLeader, r)
	}
	return 0, nil
}

// parkedForEvent as a wait: only an event changes the answer.
const parkedForEvent = time.Duration(1<<63 - 1)

// membersLocked lists the other members of the ISR as the leader must count it.
func (r *replica) membersLocked() []lease.Member {
	members := make([]lease.Member, 0, len(r.s.lead.remotes))
	for b, f := range r.s.lead.remotes {
		if r.countsLocked(b) {
			members = append(members, lease.Member{Broker: b, Epoch: max(f.epoch, r.m.brokerEpoch(b))})
		}
	}
	return members
}

// fail stops the replica after a disk error: it answers ErrNotLeader and fetches no more until it is opened again. It logs once.
func (r *replica) fail(what string, cause error) {
	r.mu.Lock()
	if r.s.role == failed || r.s.role == gone {
		r.mu.Unlock()
		return
	}
	r.logger.Error("replica stopped after a disk error", slog.String("doing", what), slog.Any("error", cause),
		slog.String("was", r.s.role.String()), slog.Duration("retry", r.m.cfg.RetryFailed))
	led, epoch := r.s.role == leading, r.s.epoch
	r.failLocked(cause)
	r.mu.Unlock()
	r.m.detach(r)
	if led {
		r.m.resign(r, epoch)
	}
}

// refusedByDisk notes an append that the disk refused and the log survived: a line at most once per retry interval.
func (r *replica) refusedByDisk(err error) {
	r.mu.Lock()
	boot := r.m.deps.Clock.Boot()
	quiet := boot < r.s.retryAt
	if !quiet {
		r.s.retryAt = boot + r.m.cfg.RetryFailed
	}
	r.s.full = err
	role := r.s.role
	r.mu.Unlock()
	if !quiet {
		r.logger.Error("append refused by the disk; nothing is lost", slog.String("role", role.String()), slog.Any("error", err))
	}
}

func (r *replica) failLocked(cause error) {
	if r.s.role == leading {
		r.s.failEpoch = max(r.s.failEpoch, r.s.epoch)
	}
	r.leaveRoleLocked(fmt.Errorf("%w: %s stopped: %w", ErrNotLeader, r, cause))
	r.s.role, r.s.failure = failed, cause
	r.s.retryAt = r.m.deps.Clock.Boot() + r.m.cfg.RetryFailed
}

// leaveRoleLocked answers whoever waits and forgets what belonged to the role.
func (r *replica) leaveRoleLocked(why error) {
	for _, a := range r.s.lead.acks {
		a.settle(why)
	}
	r.s.lead = leadState{}
	r.s.hwWatch.wake()
	r.s.endWatch.wake()
}

// checkDisk translates an error of the log, and fails the replica if the log cannot go on. Damage that a read found is noted and
// logged: what is damaged is never served; a leader resigns if another can take over, else the rest goes on; and the replica is
// repaired from its leader once it is out of the ISR.
func (r *replica) checkDisk(what string, l *log.Log, err error) error {
	if err == nil {
		return nil
	}
	if l.Failed() != nil {
		r.fail(what, err)
		return fmt.Errorf("%w: %w", ErrStorage, err)
	}
	var corrupt *log.CorruptError
	if errors.As(err, &corrupt) {
		r.mu.Lock()
		first := r.s.damagedAt < 0 || corrupt.Offset < r.s.damagedAt
		if first {
			r.s.damagedAt = corrupt.Offset
		}
		led, epoch := r.s.role == leading, r.s.epoch
		r.mu.Unlock()
		if first {
			if led {
				r.m.resign(r, epoch)
			}
			r.logger.Error("damaged bytes in the log, they are not served", slog.String("doing", what), slog.Any("error", err))
		}
	}
	return translate(err)
}
