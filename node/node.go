// Package node assembles one broker: which room gets which adapter, and in which order they start and stop. It decides
// nothing about data.
package node

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/barnabas-mq/barnabas/broker"
	"github.com/barnabas-mq/barnabas/cluster"
	"github.com/barnabas-mq/barnabas/console"
	"github.com/barnabas-mq/barnabas/groupcoord"
	"github.com/barnabas-mq/barnabas/groupcoord/export"
	"github.com/barnabas-mq/barnabas/internal/clock"
	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/vfs"
	"github.com/barnabas-mq/barnabas/node/config"
	"github.com/barnabas-mq/barnabas/node/minds"
	"github.com/barnabas-mq/barnabas/partition"
	"github.com/barnabas-mq/barnabas/raftmeta"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/zkcompat"
)

const (
	stopLimit  = 5 * time.Second // for requests on the admin port during a stop
	leaveLimit = 2 * time.Second // for handing over to the others, who may be stopping too
)

// registration is this node's incarnation as the cluster knows it.
type registration struct {
	Broker id.BrokerID
	Epoch  id.BrokerEpoch
}

// node is one broker. Fields are set by assemble and not changed afterwards, but for those behind mu and atomics.
type node struct {
	cfg   config.Config
	log   *slog.Logger
	clock clock.Clock
	dir   *dataDir

	cluster *cluster.Cluster
	raft    *raftmeta.Node
	parts   *partition.Manager
	client  *groupcoord.Client
	zk      *zkcompat.Server
	zkState *zkcompat.StateBackend
	console *console.Console
	metrics *metrics

	export     *export.Exporter   // writes __consumer_offsets
	groups     *groupcoord.Driver // runs while this node leads, as does controller
	controller *minds.Controller
	collector  *cluster.Collector
	reporter   *cluster.Reporter
	deaths     *minds.Deaths

	blank      bool                         // Raft has not run in this directory; set before anything runs
	self       atomic.Pointer[registration] // nil until the broker id is known; epoch 0 until registered
	registered chan struct{}                // closed at the first registration
	open       chan struct{}                // closed when the replicas may be opened
	openOnce   sync.Once

	mu      sync.Mutex
	kafka   *broker.Server // after the first registration
	serving bool           // both ports answer
	foundID string         // cluster id, should this node found the cluster
}

// Run runs one broker until ctx ends and its shutdown is complete, or until it cannot go on: then the error says why.
func Run(ctx context.Context, cfg config.Config, log *slog.Logger) error {
	n, err := assemble(cfg, log)
	if err != nil {
		return err
	}
	return n.run(ctx)
}

// assemble opens the data directory and makes the rooms; nothing runs yet.
func assemble(cfg config.Config, log *slog.Logger) (_ *node, err error) {
	n := &node{cfg: cfg, log: log, clock: clock.System{}, registered: make(chan struct{}), open: make(chan struct{})}
	n.dir, err = openDataDir(vfs.OS(), cfg.DataDir, identity{Directory: cfg.DirectoryID, ClusterID: cfg.ClusterID})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			n.dir.close()
		}
	}()
	if err := n.dir.acksAre(!cfg.Log.FlushOnAck); err != nil {
		return nil, err
	}
	if n.blank, err = n.dir.isBlank(); err != nil {
		return nil, err
	}
	n.cluster, err = cluster.New(cluster.Config{
		Listen: cfg.ClusterListen, Advertise: cfg.ClusterAdvertise, Directory: n.dir.Directory, ClusterID: cmp.Or(n.dir.ClusterID, cfg.ClusterID),
		Incarnation: incarnation(), Version: cfg.Version, MinLevel: state.MinLevel, MaxLevel: state.MaxLevel, Logger: log.With("room", "cluster"),
	})
	if err != nil {
		return nil, err
	}
	n.raft, err = raftmeta.New(raftmeta.Config{
		Dir: n.dir.raft(), ID: n.dir.Directory, Bootstrap: n.voters(), Stream: n.cluster.StreamLayer(),
		Addrs: n.cluster.AddressProvider(), Peers: raftPeers{n.cluster}, Clock: n.clock, Logger: log.With("room", "raftmeta"),
	})
	if err != nil {
		return nil, err
	}
	n.assembleMinds()
	if err := n.assembleRooms(); err != nil {
		return nil, err
	}
	n.wire()
	return n, nil
}

func (n *node) assembleRooms() (err error) {
	cfg, log := n.cfg, n.log
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		console.StateMetrics{View: n.raft.View, Self: n.selfID, Logs: n.marks, Counts: n.groupCounts})
	n.metrics = newMetrics(registry)
	n.metrics.watch(registry, func() int { return len(n.Unready()) + len(n.Unhealthy()) })
	n.parts, err = partition.New(partition.Config{
		Dir: n.dir.partitions(), UnsyncedAcks: !cfg.Log.FlushOnAck, MaxMessageBytes: cfg.Log.MessageMaxBytes, MinISR: int(cfg.Topics.MinISR),
		SegmentBytes: int64(cfg.Log.SegmentBytes), SegmentMs: cfg.Log.RollAfter.Milliseconds(),
		IndexIntervalBytes: int64(cfg.Log.IndexIntervalBytes), ReplicaFetchBytes: cfg.Network.ReplicaFetchMaxBytes,
	}, partition.Deps{
		Clock: n.clock, Logger: log.With("room", "partition"), Views: n.raft, Proposer: n.raft, Peers: brokerPeers{n.cluster},
		Lease: n.lease, Self: n.selfEpoch, Synced: n.metrics.synced,
	})
	if err != nil {
		return err
	}
	n.export, err = export.New(export.Config{
		Self: n.selfID, Log: offsetsLog{n.parts, n.clock}, Format: export.Format(cfg.Groups.OffsetsTopicFormat), Logger: log.With("room", "export"),
	})
	if err != nil {
		return err
	}
	n.client = groupcoord.NewClient(groupcoord.ClientConfig{
		Caller: n.cluster, Leaders: leaders{n.raft}, Views: n.raft, Local: n.groups, Log: log.With("room", "groupcoord"),
	})
	n.zkState, err = zkcompat.NewStateBackend(zkcompat.StateConfig{
		Proposer: n.raft, Views: n.raft, Coordinator: n.client, Broker: func() id.BrokerID { b, _ := n.selfEpoch(); return b }, KeepTopics: !cfg.Topics.Delete,
		CheckSetting: broker.CheckTopicSetting, Log: log.With("room", "zkcompat"),
	})
	if err != nil {
		return err
	}
	if n.zk, err = zkcompat.New(zkcompat.Config{Backend: n.zkState, Clock: n.clock, Chroots: cfg.ZooKeeperChroots, Log: log.With("room", "zkcompat")}); err != nil {
		return err
	}
	if cfg.AdminListen != "" {
		n.console = console.New(console.Config{Listen: cfg.AdminListen, Node: n, Metrics: registry, View: n.raft.View, Routes: n.routes(), Log: log.With("room", "console")})
	}
	return nil
}

// wire connects the rooms before any of them runs.
func (n *node) wire() {
	for method, h := range n.raft.Handlers() {
		h := func(ctx context.Context, p cluster.Peer, payload []byte) ([]byte, error) {
			return h(ctx, p.Directory, payload)
		}
		if method == raftmeta.MethodJoin {
			n.cluster.HandleOpen(method, h)
		} else {
			n.cluster.Handle(method, h)
		}
	}
	n.cluster.Handle(methodKnows, n.handleKnows)
	n.cluster.Handle(groupcoord.Method, func(ctx context.Context, p cluster.Peer, payload []byte) ([]byte, error) {
		answer, err := n.groups.Handle(ctx, p, payload)
		n.raft.Tell(p.Directory) // the answer names an entry that the asker waits for
		return answer, err
	})
	n.cluster.Handle(cluster.MethodReport, n.collector.HandleReport)
	n.cluster.Handle(cluster.MethodGoodbye, n.collector.HandleGoodbye)
	n.cluster.OnPeerLost(n.deaths.PeerLost)
	n.cluster.Handle(partition.MethodFetch, func(ctx context.Context, p cluster.Peer, payload []byte) ([]byte, error) {
		return n.parts.HandleReplicaFetch(ctx, p.Broker, p.Epoch, payload)
	})
	for _, v := range n.cfg.Voters {
		n.cluster.SetAddress(v.Directory, v.Address)
	}
	// A subscriber sees an entry before the new view can be read: leaders are fenced first, then watch events are queued.
	n.raft.Subscribe(func(u raftmeta.Update) {
		if u.Reset {
			n.learnAddresses(u.View)
			n.parts.Reset(u.View)
			n.zkState.Reset(u.View)
			n.controller.Reset(u.View)
			n.export.Reset(u.View)
			return
		}
		for i := range u.Changes {
			if u.Changes[i].Kind == state.BrokerRegistered {
				n.learnAddresses(u.View)
			}
		}
		n.parts.ApplyChanges(u.View, u.Changes)
		n.zkState.Applied(u.View, u.Changes)
		n.groups.Applied(u.View, u.Changes)
		n.controller.Applied(u.View, u.Changes)
		n.export.Applied(u.View, u.Changes)
	})
	n.raft.RunMind("controller", n.lead)
}

// learnAddresses fills the cluster port's address book from the registered brokers.
func (n *node) learnAddresses(v *state.View) {
	v.Brokers(func(b *state.Broker) bool {
		if b.Cluster.Port > 0 {
			n.cluster.SetAddress(b.Directory, fmt.Sprintf("%s:%d", b.Cluster.Host, b.Cluster.Port))
		}
		n.cluster.SetBroker(b.ID, b.Directory)
		return true
	})
}

// run starts the rooms, serves until ctx ends or one of them fails, and stops them in the reverse order.
func (n *node) run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, n.dir.close()) }()
	if n.console != nil {
		if err := n.console.Start(); err != nil {
			return err
		}
		defer func() {
			c, cancel := context.WithTimeout(context.Background(), stopLimit)
			defer cancel()
			n.console.Stop(c)
		}()
	}
	if err := n.cluster.Start(); err != nil {
		return err
	}
	defer n.cluster.Stop()
	if err := n.mayVote(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	if err := n.raft.Start(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.raft.Stop()) }()
	n.log.Info("node started", "directory", n.dir.Directory, "data", n.dir.path, "cluster port", n.cluster.Addr())

	work, stop := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	do := func(what string, fn func(context.Context) error) {
		wg.Go(func() {
			if err := fn(work); err != nil && work.Err() == nil {
				stop(fmt.Errorf("%s: %w", what, err))
			}
		})
	}
	do("metadata log", n.watchRaft)
	do("discovery", n.discover)
	do("joining", n.join)
	do("registration", n.register)
	do("partitions", n.runPartitions)
	do("reports", n.reporter.Run)
	do("proofs of death", n.deaths.Run)
	do("clients", n.serve)
	do("export of offsets", func(ctx context.Context) error { n.export.Run(ctx, n.raft.View()); return nil })
	<-work.Done()
	wg.Wait()
	n.leave()
	if cause := context.Cause(work); ctx.Err() == nil {
		return cause
	}
	return nil
}

func (n *node) watchRaft(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-n.raft.Failed():
		return n.raft.Err()
	}
}

// runPartitions opens the replicas once the view has caught up with what the disk holds.
func (n *node) runPartitions(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-n.open:
		return n.parts.Run(ctx)
	}
}

// serve opens the client ports once the node is registered, and closes them when ctx ends.
func (n *node) serve(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-n.registered:
	}
	kafka, err := n.newKafka()
	if err != nil {
		return err
	}
	listeners := make([]net.Listener, len(n.cfg.Listeners))
	for i, l := range n.cfg.Listeners {
		if listeners[i], err = net.Listen("tcp", l.Address()); err != nil {
			return fmt.Errorf("listener %s: %w", l.Name, err)
		}
		defer listeners[i].Close()
	}
	var zk net.Listener
	if n.cfg.ZooKeeperListen != "" {
		if zk, err = net.Listen("tcp", n.cfg.ZooKeeperListen); err != nil {
			return fmt.Errorf("ZooKeeper port: %w", err)
		}
	}
	errs := make(chan error, len(listeners)+1)
	var wg sync.WaitGroup
	for i, l := range listeners {
		wg.Go(func() { errs <- kafka.Serve(l, n.cfg.Listeners[i].Name) })
	}
	zkCtx, stopZK := context.WithCancel(ctx)
	defer stopZK()
	if zk != nil {
		wg.Go(func() { errs <- n.zk.Serve(zkCtx, zk) })
	}
	n.mu.Lock()
	n.kafka, n.serving = kafka, true
	n.mu.Unlock()
	n.log.Info("serving clients", "kafka", n.cfg.Listeners, "zookeeper", n.cfg.ZooKeeperListen)
	select {
	case <-ctx.Done():
		err = nil
	case err = <-errs:
	}
	n.mu.Lock()
	n.serving = false
	n.mu.Unlock()
	stopZK()
	kafka.Stop()
	wg.Wait()
	return err
}

func (n *node) newKafka() (*broker.Server, error) {
	c := n.cfg
	self, _ := n.selfEpoch()
	return broker.New(broker.Config{
		ID: self, NumPartitions: c.Topics.Partitions, ReplicationFactor: c.Topics.Replication, MinISR: c.Topics.MinISR,
		NoAutoCreate: !c.Topics.AutoCreate, NoDelete: !c.Topics.Delete, RequestMaxBytes: c.Network.RequestMaxBytes,
		SendBuffer: c.Network.SendBuffer, ReceiveBuffer: c.Network.ReceiveBuffer, Logger: n.log.With("room", "broker"),
		Metrics: n.metrics, Static: static(c), OffsetsTopic: broker.OffsetsTopic{Off: !c.Groups.OffsetsTopic, Partitions: c.Groups.OffsetsTopicPartitions,
			Replication: c.Groups.OffsetsTopicReplication, SegmentBytes: c.Groups.OffsetsTopicSegmentBytes},
	}, broker.Deps{Views: n.raft, Proposer: n.raft, Partitions: broker.FromManager(n.parts), Groups: n.client, ProveLeading: func(ctx context.Context) error {
		_, err := n.raft.Prove(ctx)
		return err
	}})
}

func (n *node) selfID() id.BrokerID { b, _ := n.selfEpoch(); return b }

func (n *node) selfEpoch() (id.BrokerID, id.BrokerEpoch) {
	if r := n.self.Load(); r != nil {
		return r.Broker, r.Epoch
	}
	return id.NoBroker, 0
}

// voters are the first members of a cluster that was planned before its start (dev).
func (n *node) voters() (out []raftmeta.Server) {
	for _, v := range n.cfg.Voters {
		out = append(out, raftmeta.Server{ID: v.Directory, Addr: v.Address})
	}
	return out
}

// incarnation names this run of the process: random, never 0.
func incarnation() uint64 {
	for {
		var b [8]byte
		rand.Read(b[:]) // never fails (crypto/rand)
		if v := binary.BigEndian.Uint64(b[:]); v != 0 {
			return v
		}
	}
}
