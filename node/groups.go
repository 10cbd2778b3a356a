package node

import (
	"time"

	"github.com/barnabas-mq/barnabas/groupcoord"
	"github.com/barnabas-mq/barnabas/groupcoord/core"
	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// newMind is the group coordinator's of one term.
func (n *node) newMind() core.Mind {
	cfg := groupsConfig(n.cfg.Groups)
	cfg.Fetching, cfg.Silence = n.fetching, n.controller.Silence
	return core.NewCoordinator(cfg)
}

// fetching is who fetches a partition, or did, as the brokers have reported it to this node, which leads.
func (n *node) fetching(tp id.TopicPartition) []core.Fetcher {
	lines, now := n.collector.Fetching(tp), n.clock.Boot()
	v := n.raft.View()
	out := make([]core.Fetcher, 0, len(lines))
	for _, l := range lines {
		if b, ok := v.Broker(l.Broker); !ok || b.Liveness != state.Live || b.Epoch != l.Epoch {
			continue // with the process its connections are gone
		}
		out = append(out, core.Fetcher{Broker: l.Broker, Epoch: l.Epoch, Conn: l.Conn, ClientID: l.ClientID, Host: l.Host, Idle: now - l.Last,
			Closed: l.Closed, End: l.End})
	}
	return out
}

// groupCounts is what the coordinator's terms on this node did, and what its ZooKeeper port did for groups.
func (n *node) groupCounts() groupcoord.Counts {
	c := n.groups.Counts()
	add := func(g state.Gate, times int64, held time.Duration) {
		if times > 0 {
			was := c.Gates[string(g)]
			c.Gates[string(g)] = groupcoord.GateCount{Times: was.Times + times, Held: was.Held + held}
		}
	}
	for g, times := range n.zkState.GateCounts() {
		add(g, times, 0)
	}
	n.mu.Lock()
	kafka := n.kafka
	n.mu.Unlock()
	if kafka != nil {
		add(state.GatePause, kafka.Paused(), 0)
	}
	st := n.zk.Stats()
	add(state.GateLoad, st.Slowed, st.SlowedFor)
	return c
}
