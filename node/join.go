package node

import (
	"context"
	"fmt"
	"time"

	"github.com/barnabas-mq/barnabas/cluster"
	"github.com/barnabas-mq/barnabas/raftmeta"
)

// joinPause is between attempts to be taken in.
const joinPause = 500 * time.Millisecond

// join asks the nodes named in barnabas.join to be taken into their cluster; a directory that belongs to one needs nobody.
func (n *node) join(ctx context.Context) error {
	if len(n.cfg.Join) == 0 || len(n.cfg.Voters) > 0 {
		return nil
	}
	if has, err := n.raft.HasState(); err != nil || has {
		return err
	}
	me := raftmeta.EncodeJoin(raftmeta.Server{ID: n.dir.Directory, Addr: n.advertised()})
	for last := ""; ; {
		for _, seed := range n.cfg.Join {
			err := n.joinThrough(ctx, seed, me)
			if err == nil {
				n.log.Info("joined the cluster", "through", seed, "cluster", n.cluster.Self().ClusterID)
				return nil
			}
			if err.Error() != last { // not a line for each attempt
				n.log.Warn("not taken into the cluster yet; trying on", "through", seed, "err", err)
				last = err.Error()
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(joinPause):
		}
	}
}

func (n *node) joinThrough(ctx context.Context, seed string, me []byte) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	peer, err := n.cluster.Probe(ctx, cluster.ToAddr(seed))
	if err != nil {
		return err
	}
	if peer.ClusterID == "" {
		return fmt.Errorf("%s belongs to no cluster yet: run `barnabas cluster init` there", seed)
	}
	n.cluster.SetClusterID(peer.ClusterID) // so that the leader's raft streams are let in
	_, err = n.cluster.Call(ctx, cluster.ToAddr(seed), raftmeta.MethodJoin, me)
	return err
}
