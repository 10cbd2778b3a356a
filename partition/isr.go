package partition

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/lease"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// isrChange is an AlterPartition that was asked for and is not answered. It is repeated until there is an answer: an unknown
// outcome may still come true.
type isrChange struct {
	base   id.PartitionEpoch // the row it was decided on
	isr    []id.BrokerID
	epochs []id.BrokerEpoch // of isr; 0: not checked
	waited bool             // earlier leaders were waited out, which the row does not say yet
}

// proposeTimeout bounds one attempt. A proposer's retries and the lane settle the command; this only frees the goroutine.
const proposeTimeout = 10 * time.Second

// proposePause is the pause after an attempt without an answer, and after a refusal.
const proposePause = 200 * time.Millisecond

// lagClock is the time that followers are measured by. It is Boot time, of which a stretch without a check counts as no more than
// most: a broker that was starved, frozen or suspended could not answer fetches either, and their absence says nothing.
type lagClock struct {
	most time.Duration

	mu      sync.Mutex
	checked time.Duration // Boot time of the last check
	lag     time.Duration // what this clock said then
}

func newLagClock(boot, most time.Duration) lagClock {
	return lagClock{most: most, checked: boot, lag: boot}
}

// at is the time at a Boot time that was just read. It never goes back by more than its callers' own delay.
func (c *lagClock) at(boot time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lag + min(boot-c.checked, c.most)
}

// check says that the broker runs.
func (c *lagClock) check(boot time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lag += min(boot-c.checked, c.most)
	c.checked = boot
}

// eligible: a broker may be added to an ISR if the metadata holds it live, in the incarnation that fetches (KIP-903).
func (m *Manager) eligible(b id.BrokerID, epoch id.BrokerEpoch) bool {
	row, ok := m.view().Broker(b)
	return ok && row.Liveness == state.Live && row.Epoch <= epoch
}

func (m *Manager) brokerEpoch(b id.BrokerID) id.BrokerEpoch {
	if row, ok := m.view().Broker(b); ok {
		return row.Epoch
	}
	return 0
}

// noteFetchLocked takes in what a follower's fetch says, at its receipt: it has synced everything below offset, of the epoch
// that the caller has checked.
func (r *replica) noteFetchLocked(from lease.Member, offset id.Offset, stamp time.Duration, stamped bool, now time.Duration) {
	f, ok := r.s.lead.remotes[from.Broker]
	if !ok || from.Epoch < f.epoch {
		return // not a replica, or a dead incarnation
	}
	r.s.lead.right.Fetched(from, stamp, stamped, now)
	if from.Epoch > f.epoch && f.epoch != 0 {
		*f = remote{end: -1, sent: f.sent} // a new incarnation: what its disk kept is not known
	}
	end, lag := r.s.log.LogEnd(), r.m.lag.at(now)
	switch {
	case offset < f.end: // it was cut: whatever it had, nobody waits for it
		f.caughtUp, f.everCaughtUp = 0, false
	case offset >= end:
		f.caughtUp, f.everCaughtUp = lag, true
	case f.fetched != 0 && offset >= f.fetchedEnd:
		f.caughtUp, f.everCaughtUp = max(f.caughtUp, f.fetched), true
	}
	f.epoch, f.end, f.fetched, f.fetchedEnd = from.Epoch, offset, lag, end
	r.advanceLocked()
	r.considerISRLocked(now)
}

// noteParkedLocked says that a follower's last fetch, sent at its Boot time sent, was parked until now: it had all until then, and what
// it does next is measured from here. The leader's own wait is no lag.
func (r *replica) noteParkedLocked(from lease.Member, sent, now time.Duration) {
	f := r.s.lead.remotes[from.Broker]
	if f == nil || f.epoch != from.Epoch || f.sent != sent || !f.everCaughtUp {
		return
	}
	f.caughtUp = r.m.lag.at(now)
	f.fetched, f.fetchedEnd = f.caughtUp, r.s.log.LogEnd()
}

// considerISRLocked decides on one change of the ISR, if one is due and none is under way: members that were not caught up for
// ReplicaLagMax by the lag clock, that the metadata holds dead, or that ask for it (while enough remain) leave; a follower that has
// all up to the high watermark and the start of this epoch joins. Joining needs the right to serve: whoever may be elected must have waited out the leaders before.
func (r *replica) considerISRLocked(now time.Duration) {
	if r.s.role != leading || r.s.lead.pending != nil || now < r.s.lead.proposeAfter {
		return
	}
	isr := slices.DeleteFunc(slices.Clone(r.s.isr), func(b id.BrokerID) bool {
		f := r.s.lead.remotes[b]
		return f != nil && r.laggingLocked(b, f, now)
	})
	for b, f := range r.s.lead.remotes {
		if f.leaving && len(isr) > r.minISRLocked() {
			isr = slices.DeleteFunc(isr, func(m id.BrokerID) bool { return m == b })
		}
	}
	for _, b := range r.s.replicas {
		f := r.s.lead.remotes[b]
		if f == nil || f.leaving || slices.Contains(r.s.isr, b) || f.end < max(r.s.hw, r.s.lead.epochStart) || !r.m.eligible(b, f.epoch) || r.laggingLocked(b, f, now) {
			continue
		}
		if _, no := r.rightLocked(now); no != nil {
			break
		}
		isr = append(isr, b)
	}
	_, no := r.rightLocked(now)
	row := r.row.Load()
	waited := no == nil && row.Epoch == r.s.rowEpoch && row.GraceNeeded
	if slices.Equal(isr, r.s.isr) && !waited {
		return
	}
	self, selfEpoch := r.m.deps.Self()
	c := &isrChange{base: r.s.rowEpoch, isr: isr, waited: waited}
	for _, b := range isr {
		e := selfEpoch
		if b != self {
			e = r.s.lead.remotes[b].epoch
		}
		c.epochs = append(c.epochs, e)
	}
	r.s.lead.pending = c
	r.m.propose(r, r.s.epoch, c)
}

func (r *replica) laggingLocked(b id.BrokerID, f *remote, now time.Duration) bool {
	if row, ok := r.m.view().Broker(b); !ok || row.Liveness != state.Live {
		return true
	}
	lag := r.m.lag.at(now)
	if f.end >= r.s.log.LogEnd() && f.fetched != 0 && lag-f.fetched <= r.m.cfg.ReplicaLagMax {
		return false
	}
	return !f.everCaughtUp || lag-f.caughtUp > r.m.cfg.ReplicaLagMax
}

// propose sends a change of the ISR until it is answered or moot, on a goroutine of its own.
func (m *Manager) propose(r *replica, epoch id.LeaderEpoch, c *isrChange) {
	m.spawn(func(ctx context.Context) {
		for m.proposeOnce(ctx, r, epoch, c) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(proposePause):
			}
		}
	})
}

// proposeOnce makes one attempt; again says that its outcome is unknown and still matters.
func (m *Manager) proposeOnce(ctx context.Context, r *replica, epoch id.LeaderEpoch, c *isrChange) (again bool) {
	r.mu.Lock()
	moot := r.s.lead.pending != c
	was := r.s.isr
	r.mu.Unlock()
	if moot {
		return false
	}
	self, selfEpoch := m.deps.Self()
	cmd := &statepb.AlterPartition{
		TopicId: r.topicID[:], Partition: r.tp.Partition, Broker: int32(self), BrokerEpoch: uint64(selfEpoch),
		LeaderEpoch: int32(epoch), PartitionEpoch: int32(c.base), Waited: c.waited,
	}
	for i, b := range c.isr {
		cmd.Isr = append(cmd.Isr, int32(b))
		cmd.IsrEpochs = append(cmd.IsrEpochs, uint64(c.epochs[i]))
	}
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	res, err := m.deps.Proposer.Propose(ctx, &statepb.Command{
		Version: state.CommandVersion, Level: state.MinLevel, Body: &statepb.Command_AlterPartition{AlterPartition: cmd},
	})
	if err != nil {
		return true
	}
	if res.Code == statepb.Code_OK {
		r.logger.Info("ISR changed", slog.Any("from", was), slog.Any("to", c.isr), slog.Uint64("partitionEpoch", res.Epoch))
	} else {
		r.logger.Info("ISR change refused", slog.Any("from", was), slog.Any("to", c.isr), slog.String("code", res.Code.String()), slog.String("why", res.Text))
	}
	// Answered: an earlier attempt of unknown outcome is either this one (the lane) or older than what the view shows now.
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.s.lead.pending == c {
		r.s.lead.pending = nil
		if res.Code != statepb.Code_OK {
			r.s.lead.proposeAfter = m.deps.Clock.Boot() + proposePause
		}
	}
	if row := r.row.Load(); r.s.role == leading && row.LeaderEpoch == r.s.epoch {
		r.adoptLocked(row)
	}
	return false
}

// adoptLocked takes over a newer row of the epoch that the replica leads or follows.
func (r *replica) adoptLocked(row *state.Partition) {
	if row.Epoch <= r.s.rowEpoch {
		return
	}
	r.s.rowEpoch, r.s.isr, r.s.replicas = row.Epoch, row.ISR, row.Replicas
	if r.s.role != leading {
		return
	}
	if p := r.s.lead.pending; p != nil && p.base < row.Epoch {
		r.s.lead.pending = nil
	}
	r.setRemotesLocked()
	r.advanceLocked()
	r.considerISRLocked(r.m.deps.Clock.Boot())
	r.s.hwWatch.wake() // the right to serve may have come
}

// setRemotesLocked keeps one remote per other replica. A member of the ISR was caught up when it became one.
func (r *replica) setRemotesLocked() {
	self, _ := r.m.deps.Self()
	if r.s.lead.remotes == nil {
		r.s.lead.remotes = map[id.BrokerID]*remote{}
	}
	for _, b := range r.s.replicas {
		if b != self && r.s.lead.remotes[b] == nil {
			f := &remote{end: -1}
			if slices.Contains(r.s.isr, b) {
				f.caughtUp, f.everCaughtUp = r.m.lag.at(r.m.deps.Clock.Boot()), true
			}
			r.s.lead.remotes[b] = f
		}
	}
	for b := range r.s.lead.remotes {
		if !slices.Contains(r.s.replicas, b) {
			delete(r.s.lead.remotes, b)
		}
	}
}
