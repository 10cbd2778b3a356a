package node

import (
	"context"

	"github.com/barnabas-mq/barnabas/cluster"
)

// discover finds peers by gossip: their addresses go into the cluster port's book, so that a node is reached at a new
// address before its registration tells it, and one that knows a single seed reaches all voters.
func (n *node) discover(ctx context.Context) error {
	seeds := append([]string(nil), n.cfg.Join...)
	for _, v := range n.cfg.Voters {
		if v.Directory != n.dir.Directory {
			seeds = append(seeds, v.Address)
		}
	}
	g, err := n.cluster.StartGossip(cluster.GossipConfig{Seeds: seeds})
	if err != nil {
		return err
	}
	defer func() {
		if err := g.Stop(); err != nil {
			n.log.Debug("discovery did not end cleanly", "err", err)
		}
	}()
	for {
		peers, changed := g.Peers()
		for _, p := range peers {
			n.cluster.SetAddress(p.Directory, p.Addr)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}
