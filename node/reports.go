package node

import (
	"context"
	"errors"
	"time"

	"github.com/barnabas-mq/barnabas/cluster"
	"github.com/barnabas-mq/barnabas/groupcoord"
	"github.com/barnabas-mq/barnabas/groupcoord/core"
	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/lease"
	"github.com/barnabas-mq/barnabas/node/config"
	"github.com/barnabas-mq/barnabas/node/minds"
	"github.com/barnabas-mq/barnabas/raftmeta"
)

// assembleMinds makes what runs on the Raft leader, and what every node reports to it.
func (n *node) assembleMinds() {
	n.groups = groupcoord.NewDriver(groupcoord.DriverConfig{
		Proposer: n.raft, Views: n.raft, Clock: n.clock, NewMind: n.newMind,
		Log: n.log.With("room", "groupcoord"),
	})
	n.collector = cluster.NewCollector(cluster.CollectorConfig{
		Clock: n.clock, ClockMs: func() int64 { return n.raft.View().ClockMs() },
		Prove: n.raft.ProveWith,
	})
	n.deaths = minds.NewDeaths(minds.DeathsConfig{
		Views: n.raft, Clock: n.clock, Log: n.log.With("room", "deaths"),
		Probe: func(ctx context.Context, d id.DirectoryID) error {
			_, err := n.cluster.Probe(ctx, cluster.ToDirectory(d))
			return err
		},
		Dead:  n.provenDead,
		Waits: func() []id.BrokerID { return n.parts.WaitsFor() },
	})
	n.controller = minds.NewController(minds.ControllerConfig{
		Clock: n.clock, Proposer: n.raft, Views: n.raft, Collector: n.collector, Suspect: n.suspect, Log: n.log.With("room", "controller"),
		Prove: func(ctx context.Context) (id.Term, time.Duration, error) {
			p, err := n.raft.Prove(ctx)
			return p.Term, p.SinceOlder, err
		},
	})
	n.reporter = cluster.NewReporter(cluster.ReporterConfig{
		Caller: n.cluster, Clock: n.clock, Directory: n.dir.Directory, Self: n.selfEpoch, Vote: n.raft.Vote, Leader: leaders{n.raft}.Leader, Log: n.log.With("room", "cluster"),
		// Partitions are fenced before a view can be read, so they follow the state up to the view.
		Applied: func() id.Index { return n.raft.View().Index() },
		Sessions: func() ([]id.SessionID, func()) {
			r := n.zk.Touches()
			return r.Sessions, func() { n.zk.AckTouches(r) }
		},
		Fetches: n.fetches,
	})
}

func groupsConfig(g config.Groups) core.Config {
	c := core.Config{InitialDelay: g.InitialRebalanceDelay, MinSession: g.MinSessionTimeout, MaxSession: g.MaxSessionTimeout, MaxSize: g.MaxSize,
		OffsetsRetention: g.OffsetsRetention, OffsetsCheck: g.OffsetsCheck}
	c.ConsumerHeartbeat, c.ConsumerSession, c.ConsumerMaxSize = g.ConsumerHeartbeat, g.ConsumerSession, g.ConsumerMaxSize
	c.Migration = map[string]core.Migration{"upgrade": core.MigrateUp, "downgrade": core.MigrateDown, "disabled": core.MigrateNone}[g.Migration]
	if c.InitialDelay == 0 {
		c.InitialDelay = -1
	}
	return c
}

// suspect has a broker probed that the controller has not heard for a while; this one reports to itself less often, and lives.
func (n *node) suspect(b id.BrokerID) {
	if self, _ := n.selfEpoch(); b != self {
		n.deaths.Suspect(b)
	}
}

// provenDead passes a proof of death on: to leaders that wait, to the controller here, and to the voters' fail-over if it
// was the Raft leader that died.
func (n *node) provenDead(b id.BrokerID, e id.BrokerEpoch) {
	n.parts.ProvenDead(b, e)
	n.controller.Dead(b, e)
	if row, ok := n.raft.View().Broker(b); ok && row.Epoch == e {
		n.raft.LeaderIsDead(row.Directory)
	}
}

func (n *node) lease() lease.Lease { return n.reporter.Lease() }

// fetches is who fetches what from this broker, as a report tells it.
func (n *node) fetches() []cluster.Fetch {
	now := n.clock.Boot()
	infos := n.parts.Fetches()
	out := make([]cluster.Fetch, len(infos))
	for i, f := range infos {
		out[i] = cluster.Fetch{Conn: f.Conn, ClientID: f.ClientID, Host: f.Host, TopicPartition: f.TopicPartition, Age: now - f.Last, Closed: f.Closed, End: f.End}
	}
	return out
}

// leave hands over what this node has, so that nobody waits for it: the Raft leadership, then its place among the brokers.
// Partitions and client ports have stopped.
func (n *node) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveLimit)
	defer cancel()
	if err := n.raft.TransferLeadership(ctx); err != nil && !errors.Is(err, raftmeta.ErrNotLeader) {
		n.log.Info("the Raft leadership was not handed over", "err", err)
	}
	if err := n.reporter.Leave(ctx); err != nil {
		n.log.Info("the others learn of this node's end only by its silence", "err", err)
	}
}
