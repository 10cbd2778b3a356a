package zkcompat

import (
	"context"
	"fmt"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
	"github.com/barnabas-mq/barnabas/zkcompat/ztree"
)

// AwaitRead is Backend's. A member's read of an offset waits until the owner of the partition from before the present generation has
// committed and gone: old consumers read their offsets before they claim (zk-paths.md 6.6). Reads of others are never held.
func (b *StateBackend) AwaitRead(ctx context.Context, c Caller, path string) (id.Index, error) {
	p := state.ParsePath(path)
	if p.Kind != state.PathOffset || b.cfg.Coordinator == nil {
		return 0, nil
	}
	v := b.view.Load() // never older than what the session has seen
	if !v.OffsetAwaited(c.Session, p.Group, p.Topic, p.Partition) {
		return 0, nil
	}
	r, err := b.cfg.Coordinator.Do(ctx, &statepb.Command{Version: state.CommandVersion, Level: state.MinLevel,
		Origin: &statepb.Origin{Session: int64(c.Session), AttachEpoch: c.AttachEpoch},
		Body: &statepb.Command_AwaitOffsets{AwaitOffsets: &statepb.AwaitOffsets{Group: p.Group,
			Partitions: []*statepb.OwnedPartition{{Topic: p.Topic, Partition: p.Partition}}}}})
	if err != nil {
		return 0, fmt.Errorf("group coordinator: %w", err)
	}
	return id.Index(r.Index), nil
}

// count counts what was answered otherwise than by a plain ZooKeeper.
func (b *StateBackend) count(plan ztree.Plan, r *statepb.Result) {
	switch {
	case r.Code == statepb.Code_OK && r.Text != "":
		b.late.Add(1)
	case r.Code == statepb.Code_NO_NODE && plan.Command.GetDeleteZnode() != nil:
		if _, there := b.view.Load().Znode(plan.Command.GetDeleteZnode().Path); there {
			b.guarded.Add(1)
		}
	}
}

// GateCounts tells how many offsets written by members that had lost the partition were answered and not applied, and how many
// deletes of other members' owner nodes were answered as if there was none.
func (b *StateBackend) GateCounts() map[state.Gate]int64 {
	return map[state.Gate]int64{state.GateCommit: b.late.Load(), state.GateDelete: b.guarded.Load()}
}
