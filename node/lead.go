package node

import (
	"context"
	"sync"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// lead is this node's work while it is the Raft leader: it founds the state if there is none, says who leads, and runs
// the minds. It returns when ctx, the term, has ended.
func (n *node) lead(ctx context.Context, term id.Term) {
	if !n.found(ctx, term) || !n.announce(ctx, term) {
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { n.groups.Run(ctx, term) })
	wg.Go(func() { n.controller.Run(ctx, term) })
	wg.Wait()
}

// found puts the first command into an empty log; false when the term ended.
func (n *node) found(ctx context.Context, term id.Term) bool {
	if n.raft.View().ClusterID() != "" {
		return true
	}
	return n.decide(ctx, term, &statepb.Command{Body: &statepb.Command_Bootstrap{Bootstrap: &statepb.Bootstrap{ClusterId: n.clusterID(), Level: state.MinLevel}}})
}

// announce waits until this node is a broker and puts it into /controller.
func (n *node) announce(ctx context.Context, term id.Term) bool {
	select {
	case <-ctx.Done():
		return false
	case <-n.registered:
	}
	self, _ := n.selfEpoch()
	return n.decide(ctx, term, &statepb.Command{Body: &statepb.Command_TermStarted{TermStarted: &statepb.TermStarted{Broker: int32(self)}}})
}

// decide proposes a command of this term until it is in the log; false when the term ended.
func (n *node) decide(ctx context.Context, term id.Term, cmd *statepb.Command) bool {
	for ctx.Err() == nil {
		res, err := n.raft.ProposeInTerm(ctx, term, cmd)
		if err == nil && res.Code != statepb.Code_STALE_TERM {
			if res.Code != statepb.Code_OK {
				n.log.Error("a command of the leader was refused", "term", term, "command", cmd.Body, "why", res.Text)
			}
			return true
		}
		n.log.Debug("a command of the leader is proposed again", "term", term, "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(registerPause):
		}
	}
	return false
}

// clusterID is the id given beforehand (dev), or one made now.
func (n *node) clusterID() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.foundID == "" {
		if n.foundID = n.cfg.ClusterID; n.foundID == "" {
			n.foundID = newUUID()
		}
	}
	return n.foundID
}
