package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// RaiseLevel raises the feature level; 0 means the highest that every live broker serves.
func (n *node) RaiseLevel(ctx context.Context, level uint32) (uint32, error) {
	if level == 0 {
		level = state.MaxLevel
		for _, b := range n.raft.View().LiveBrokers() {
			level = min(level, b.MaxLevel)
		}
	}
	if level > state.MaxLevel {
		return 0, fmt.Errorf("this build serves feature levels %d to %d, not %d: ask a newer node", state.MinLevel, state.MaxLevel, level)
	}
	res, err := n.raft.Propose(ctx, &statepb.Command{Body: &statepb.Command_RaiseLevel{RaiseLevel: &statepb.RaiseLevel{Level: level}}})
	if err != nil {
		return 0, err
	}
	if res.Code != statepb.Code_OK {
		return 0, errors.New(res.Text)
	}
	return n.raft.View().Level(), nil
}
