package state

import (
	"slices"
	"strings"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// roots are the znodes that clients expect before anything else happened (zk-paths.md 1.1): directories with null data,
// and the Stats of singletons whose data ztree projects. They cannot be deleted.
var roots = []string{
	"/zookeeper", "/zookeeper/quota", "/consumers", "/brokers", "/brokers/ids", "/brokers/topics", "/brokers/seqid", "/cluster",
	"/cluster/id", "/config", "/config/changes", "/config/clients", "/config/users", "/config/brokers", "/config/topics",
	"/admin", "/admin/delete_topics", "/isr_change_notification", "/log_dir_event_notification", "/latest_producer_id_block",
	"/controller_epoch",
}

// IsRoot reports whether a path is one of the nodes that exist from the start and stay.
func IsRoot(path string) bool {
	return path == "/" || path == "/controller" || slices.Contains(roots, path)
}

func (s *State) bootstrap(c *statepb.Bootstrap) *statepb.Result {
	switch {
	case s.meta.ClusterID != "":
		return s.refuse(statepb.Code_INVALID, "the cluster already has the id %s", s.meta.ClusterID)
	case c.ClusterId == "" || c.Level == 0:
		return s.refuse(statepb.Code_INVALID, "a bootstrap needs a cluster id and a level")
	}
	if c.Level > MaxLevel {
		panic(newer("the cluster was founded at feature level %d, this build serves %d to %d", c.Level, MinLevel, MaxLevel))
	}
	s.meta.ClusterID, s.meta.Level = c.ClusterId, c.Level
	zx := s.zxid()
	s.znodes.put(znodeKey("/"), &Znode{})
	for _, path := range roots {
		s.addNode(path, &Znode{Null: !strings.HasPrefix(path, "/zookeeper")}, zx, 0)
	}
	return &statepb.Result{Zxid: int64(zx)}
}

func (s *State) raiseLevel(c *statepb.RaiseLevel) *statepb.Result {
	if c.Level <= s.meta.Level {
		return &statepb.Result{}
	}
	_, brokers := s.brokers.collect("")
	for _, b := range brokers {
		if b.Liveness == Live && (c.Level > b.MaxLevel || c.Level < b.MinLevel) {
			return s.refuse(statepb.Code_LEVEL, "broker %d serves levels %d to %d, not %d: upgrade it first", b.ID, b.MinLevel, b.MaxLevel, c.Level)
		}
	}
	if c.Level > MaxLevel {
		panic(newer("the cluster is at feature level %d, this build serves %d to %d", c.Level, MinLevel, MaxLevel))
	}
	s.meta.Level = c.Level
	return &statepb.Result{}
}

// termStarted puts the new Raft leader's broker in /controller, as a new node each time: its watchers see it go and come.
func (s *State) termStarted(c *statepb.TermStarted) *statepb.Result {
	b := id.BrokerID(c.Broker)
	if s.meta.ControllerTerm == s.term {
		return &statepb.Result{Value: int64(s.meta.ControllerEpoch)}
	}
	if _, ok := s.znodes.get(znodeKey("/controller")); ok {
		s.removeNode("/controller", s.zxid())
	}
	s.meta.Controller, s.meta.ControllerTerm = b, s.term
	s.meta.ControllerEpoch++
	zx := s.zxid()
	s.addNode("/controller", &Znode{}, zx, brokerOwner|int64(b))
	z, _ := s.znodes.get(znodeKey("/controller_epoch"))
	epoch := *z
	epoch.Null = false
	s.touch(&epoch, "/controller_epoch", zx)
	s.changed(Change{Kind: ControllerChanged, ZXID: zx, Broker: b})
	return &statepb.Result{Zxid: int64(zx), Value: int64(s.meta.ControllerEpoch)}
}

func endpoint(p *statepb.Endpoint) Endpoint {
	return Endpoint{Listener: p.GetListener(), Host: p.GetHost(), Port: p.GetPort()}
}

// registerBroker starts an incarnation. A repeat with the same nonce is answered with the first result.
func (s *State) registerBroker(c *statepb.RegisterBroker) *statepb.Result {
	if c.MinLevel > s.meta.Level || c.MaxLevel < s.meta.Level {
		return s.refuse(statepb.Code_LEVEL, "the cluster is at feature level %d, this build serves %d to %d", s.meta.Level, c.MinLevel, c.MaxLevel)
	}
	old, bid, refusal := s.brokerSlot(c)
	if refusal != nil {
		return refusal
	}
	if old != nil && old.Nonce == c.Nonce && old.Liveness == Live {
		return &statepb.Result{Value: int64(bid), Epoch: uint64(old.Epoch)}
	}
	b := &Broker{
		ID: bid, Directory: id.DirectoryID(c.DirectoryId), Nonce: c.Nonce, Epoch: id.BrokerEpoch(s.index), Liveness: Live,
		MinLevel: c.MinLevel, MaxLevel: c.MaxLevel, ZooKeeper: endpoint(c.Zookeeper), Cluster: endpoint(c.Cluster),
		Admin: endpoint(c.Admin), Rack: c.Rack, Build: c.Build,
	}
	for _, p := range c.Endpoints {
		b.Endpoints = append(b.Endpoints, endpoint(p))
	}
	for s.lanes[uint64(b.Epoch)] != nil { // two registrations in one entry
		b.Epoch++
	}
	zx := s.zxid()
	if old != nil {
		delete(s.lanes, uint64(old.Epoch))
		if old.Liveness == Live {
			s.handOver(bid, zx, true, c.KeepsLog && old.Directory == b.Directory)
		}
		if old.Directory != b.Directory {
			s.forgetReplica(bid, zx)
		}
	}
	s.lanes[uint64(b.Epoch)] = &lane{broker: bid}
	s.changed(Change{Kind: BrokerRegistered, ZXID: zx, Broker: bid})
	s.showRegistered(old, b, zx)
	s.takeBack(bid, zx)
	return &statepb.Result{Zxid: int64(zx), Value: int64(bid), Epoch: uint64(b.Epoch)}
}

// showRegistered puts a new incarnation into /brokers/ids. One that is back before its znode went keeps it as it was: old
// clients rebalance on every change there.
func (s *State) showRegistered(old, b *Broker, zx id.ZXID) {
	b.Visible = true
	if old != nil && old.Visible && slices.Equal(old.Endpoints, b.Endpoints) {
		b.Stat = old.Stat
		s.brokers.put(keyU32(uint32(b.ID)), b)
		return
	}
	if old != nil && old.Visible {
		s.hideBroker(old, zx)
	}
	b.Stat = s.newStat(zx, brokerOwner|int64(b.ID))
	s.brokers.put(keyU32(uint32(b.ID)), b)
	s.bumpParent("/brokers/ids", 1, zx)
	s.changed(Change{Kind: BrokerShown, ZXID: zx, Broker: b.ID})
}

// brokerSlot finds the id of a registration and who had it.
func (s *State) brokerSlot(c *statepb.RegisterBroker) (old *Broker, bid id.BrokerID, refusal *statepb.Result) {
	_, all := s.brokers.collect("")
	taken := map[id.BrokerID]*Broker{}
	for _, b := range all {
		taken[b.ID] = b
		if string(b.Directory) == c.DirectoryId {
			if c.WantedId >= 0 && id.BrokerID(c.WantedId) != b.ID {
				return nil, 0, s.refuse(statepb.Code_INVALID, "this data directory belongs to broker %d, node.id asks for %d", b.ID, c.WantedId)
			}
			return b, b.ID, nil
		}
	}
	if c.WantedId < 0 {
		for bid = 1; taken[bid] != nil; bid++ {
		}
		return nil, bid, nil
	}
	bid = id.BrokerID(c.WantedId)
	if b := taken[bid]; b != nil && b.Liveness == Live {
		return nil, 0, s.refuse(statepb.Code_INVALID, "broker %d is live with another data directory (%s)", bid, b.Directory)
	}
	return taken[bid], bid, nil
}

func (s *State) liveBroker(b id.BrokerID) bool {
	r, ok := s.brokers.get(keyU32(uint32(b)))
	return ok && r.Liveness == Live
}

// fenceBroker ends an incarnation: its lane, its leaderships and its places in ISRs go in the same entry.
func (s *State) fenceBroker(c *statepb.FenceBroker) *statepb.Result {
	old, ok := s.brokers.get(keyU32(uint32(c.Broker)))
	if !ok {
		return s.refuse(statepb.Code_UNKNOWN_BROKER, "broker %d is not registered", c.Broker)
	}
	if uint64(old.Epoch) != c.Epoch || old.Liveness != Live {
		return s.refuse(statepb.Code_STALE, "broker %d is at epoch %d (live: %v)", c.Broker, old.Epoch, old.Liveness == Live)
	}
	b := *old
	b.Liveness = Fenced
	if c.Left {
		b.Liveness = Left
	}
	s.brokers.put(keyU32(uint32(b.ID)), &b)
	delete(s.lanes, uint64(b.Epoch))
	zx := s.zxid()
	s.handOver(b.ID, zx, c.Proven || c.Left, false)
	s.changed(Change{Kind: BrokerFenced, ZXID: zx, Broker: b.ID})
	if c.Left {
		s.setBrokerVisible(&statepb.SetBrokerVisible{Broker: c.Broker, Epoch: c.Epoch})
	}
	return &statepb.Result{Zxid: int64(zx)}
}

// setBrokerVisible hides or shows a broker's znode. The last one never goes: old clients misbehave on an empty list.
func (s *State) setBrokerVisible(c *statepb.SetBrokerVisible) *statepb.Result {
	old, ok := s.brokers.get(keyU32(uint32(c.Broker)))
	if !ok || uint64(old.Epoch) != c.Epoch {
		return s.refuse(statepb.Code_STALE, "broker %d has another epoch", c.Broker)
	}
	if old.Visible == c.Visible {
		return &statepb.Result{}
	}
	ids, _ := s.znodes.get(znodeKey("/brokers/ids"))
	if !c.Visible && ids.Stat.Children <= 1 {
		return s.refuse(statepb.Code_INVALID, "broker %d is the last in /brokers/ids", c.Broker)
	}
	zx := s.zxid()
	if !c.Visible {
		s.hideBroker(old, zx)
		return &statepb.Result{Zxid: int64(zx)}
	}
	b := *old
	b.Visible, b.Stat = true, s.newStat(zx, brokerOwner|int64(b.ID))
	s.brokers.put(keyU32(uint32(b.ID)), &b)
	s.bumpParent("/brokers/ids", 1, zx)
	s.changed(Change{Kind: BrokerShown, ZXID: zx, Broker: b.ID})
	return &statepb.Result{Zxid: int64(zx)}
}

func (s *State) hideBroker(old *Broker, zx id.ZXID) {
	b := *old
	b.Visible = false
	s.brokers.put(keyU32(uint32(b.ID)), &b)
	s.bumpParent("/brokers/ids", -1, zx)
	s.changed(Change{Kind: BrokerHidden, ZXID: zx, Broker: b.ID})
}

func (s *State) allocateProducerIDs(c *statepb.AllocateProducerIds) *statepb.Result {
	if c.Count < 1 || c.Count > 1_000_000 {
		return s.refuse(statepb.Code_INVALID, "a block of %d producer ids", c.Count)
	}
	first := s.meta.NextProducer
	s.meta.NextProducer += int64(c.Count)
	zx := s.zxid()
	z, _ := s.znodes.get(znodeKey("/latest_producer_id_block"))
	n := *z
	n.Null = false
	s.touch(&n, "/latest_producer_id_block", zx)
	return &statepb.Result{Zxid: int64(zx), Value: first}
}
