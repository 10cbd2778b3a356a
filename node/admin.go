package node

import (
	"context"
	"errors"

	"github.com/barnabas-mq/barnabas/console"
	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/partition"
	"github.com/barnabas-mq/barnabas/raftmeta"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

var _ console.Node = (*node)(nil)

// Unready lists why clients are not served here yet.
func (n *node) Unready() (why []console.Reason) {
	v := n.raft.View()
	if v.ClusterID() == "" {
		why = append(why, console.Reason{Name: "cluster", Detail: "this node belongs to no cluster yet: run `barnabas cluster init` on the first node, or start with --join host:7946"})
	}
	if n.raft.Leader().ID == "" {
		why = append(why, console.Reason{Name: "raft", Detail: "no Raft leader is known: a majority of voters must run and reach each other"})
	}
	if _, epoch := n.selfEpoch(); epoch == 0 {
		why = append(why, console.Reason{Name: "registration", Detail: "this broker is not registered yet"})
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.serving {
		why = append(why, console.Reason{Name: "ports", Detail: "the client ports are not open"})
	}
	return why
}

// Unhealthy lists what an operator should look at.
func (n *node) Unhealthy() (why []console.Reason) {
	for _, u := range n.parts.Unknown() {
		why = append(why, console.Reason{Name: "unknown directory", Detail: u.Name + ": " + u.Why})
	}
	for _, l := range n.parts.DescribeLogs() {
		if l.Failure != nil {
			why = append(why, console.Reason{Name: "replica failed", Detail: l.TopicPartition.Topic + ": " + l.Failure.Error()})
		}
	}
	return why
}

// status is what /v1/status shows.
type status struct {
	ClusterID  string              `json:"clusterId"`
	Directory  id.DirectoryID      `json:"directory"`
	Broker     id.BrokerID         `json:"broker"`
	Epoch      id.BrokerEpoch      `json:"epoch"`
	Version    string              `json:"version"`
	Controller id.BrokerID         `json:"controller"`
	Leader     id.DirectoryID      `json:"raftLeader"`
	Term       id.Term             `json:"raftTerm"`
	Index      id.Index            `json:"appliedIndex"`
	Level      uint32              `json:"level"`
	Members    []raftmeta.Member   `json:"members"`
	Brokers    []brokerStatus      `json:"brokers"`
	Logs       []partition.LogInfo `json:"logs"`
}

type brokerStatus struct {
	ID    id.BrokerID    `json:"id"`
	Epoch id.BrokerEpoch `json:"epoch"`
	Live  bool           `json:"live"`
	Kafka string         `json:"kafka"`
}

// Status describes this node and what it knows of the cluster.
func (n *node) Status() any {
	v, lead := n.raft.View(), n.raft.Leader()
	self, epoch := n.selfEpoch()
	controller, _ := v.Controller()
	s := status{
		ClusterID: v.ClusterID(), Directory: n.dir.Directory, Broker: self, Epoch: epoch, Version: n.cfg.Version, Controller: controller,
		Leader: lead.ID, Term: lead.Term, Index: v.Index(), Level: v.Level(), Members: n.raft.Members(), Logs: n.parts.DescribeLogs(),
	}
	v.Brokers(func(b *state.Broker) bool {
		bs := brokerStatus{ID: b.ID, Epoch: b.Epoch, Live: b.Liveness == state.Live}
		if len(b.Endpoints) > 0 {
			bs.Kafka = hostPort(b.Endpoints[0])
		}
		s.Brokers = append(s.Brokers, bs)
		return true
	})
	return s
}

// InitCluster founds a cluster whose first voter is this node.
func (n *node) InitCluster(context.Context) (string, error) {
	has, err := n.raft.HasState()
	switch {
	case err != nil:
		return "", err
	case has || n.dir.ClusterID != "":
		return "", errors.New("this data directory belongs to a cluster already")
	case len(n.cfg.Join) > 0:
		return "", errors.New("this node was told to join another (barnabas.join): init is for the first node of a cluster")
	}
	if err := n.raft.Bootstrap([]raftmeta.Server{{ID: n.dir.Directory, Addr: n.advertised()}}); err != nil {
		return "", err
	}
	n.cluster.SetClusterID(n.clusterID()) // others may join from now on
	return n.clusterID(), nil
}
