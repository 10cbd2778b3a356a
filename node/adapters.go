package node

import (
	"context"

	"github.com/barnabas-mq/barnabas/cluster"
	"github.com/barnabas-mq/barnabas/groupcoord"
	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/partition"
	"github.com/barnabas-mq/barnabas/raftmeta"
)

// raftPeers is the cluster port as raftmeta asks for it.
type raftPeers struct{ c *cluster.Cluster }

var _ raftmeta.Peers = raftPeers{}

func (p raftPeers) Call(ctx context.Context, to id.DirectoryID, method string, payload []byte) ([]byte, error) {
	return p.c.Call(ctx, cluster.ToDirectory(to), method, payload)
}

// brokerPeers is the cluster port as partition asks for it: replica fetches have connections of their own.
type brokerPeers struct{ c *cluster.Cluster }

var _ partition.Peers = brokerPeers{}

func (p brokerPeers) Call(ctx context.Context, to id.BrokerID, method string, payload []byte) ([]byte, error) {
	return p.c.CallBulk(ctx, cluster.ToBroker(to), method, payload)
}

// leaders is the metadata log as groupcoord asks for it.
type leaders struct{ n *raftmeta.Node }

var _ groupcoord.Leaders = leaders{}

func (l leaders) Leader() (id.DirectoryID, <-chan struct{}) {
	lead, changed := l.n.LeaderChange()
	return lead.ID, changed
}
