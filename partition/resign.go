package partition

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// resign hands the leadership of an epoch to another live member of the ISR and leaves the ISR, since this replica's disk failed
// or has damaged bytes: it must not lead, and it can be repaired only from another. With nobody to take over it waits: a damaged
// leader goes on with what is whole; a failed one that is the last of the ISR begins a new epoch once its log is open again, which
// has all that ever counted as synced. The replica must not serve at this epoch any more when a
// proposal may be under way: a damaged one stops by r.s.lead.resigning.
func (m *Manager) resign(r *replica, epoch id.LeaderEpoch) {
	m.spawn(func(ctx context.Context) {
		for m.resignOnce(ctx, r, epoch) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(proposePause):
			}
		}
	})
}

// resignOnce makes one attempt; again says that the replica still has the leadership by what is known here.
func (m *Manager) resignOnce(ctx context.Context, r *replica, epoch id.LeaderEpoch) (again bool) {
	self, _ := m.deps.Self()
	row := r.row.Load()
	if row.Leader != self || row.LeaderEpoch != epoch {
		return false
	}
	rest := slices.DeleteFunc(slices.Clone(row.ISR), func(b id.BrokerID) bool { return b == self })
	to := id.NoBroker
	for _, b := range row.Replicas {
		if other, ok := m.view().Broker(b); ok && other.Liveness == state.Live && slices.Contains(rest, b) {
			to = b
			break
		}
	}
	r.mu.Lock()
	leads, reopened := r.s.role == leading && r.s.epoch == epoch, r.s.role == idle
	if leads && to != id.NoBroker {
		r.s.lead.resigning = true
	}
	r.mu.Unlock()
	if to == id.NoBroker && len(rest) == 0 && reopened {
		to, rest = self, []id.BrokerID{self} // it may not lead this epoch, but the next
	}
	if to == id.NoBroker {
		return true
	}
	e := &statepb.Election{TopicId: r.topicID[:], Partition: r.tp.Partition, PartitionEpoch: int32(row.Epoch), Leader: int32(to)}
	for _, b := range rest {
		e.Isr = append(e.Isr, int32(b))
	}
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	res, err := m.deps.Proposer.Propose(ctx, &statepb.Command{
		Version: state.CommandVersion, Level: state.MinLevel,
		Body: &statepb.Command_ElectLeaders{ElectLeaders: &statepb.ElectLeaders{Elections: []*statepb.Election{e}}},
	})
	if err == nil && len(res.Parts) == 1 && res.Parts[0].Code == statepb.Code_OK {
		r.logger.Info("resigned", slog.Int("epoch", int(epoch)), slog.Int("to", int(to)), slog.Any("isr", rest))
		return false
	}
	return true
}
