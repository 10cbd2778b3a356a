package state

import (
	"slices"
	"strings"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// MaxPartitions bounds a topic; more would only hurt.
const MaxPartitions = 100_000

// ValidTopicName reports why Kafka would refuse a topic name (org.apache.kafka.common.internals.Topic), or "".
func ValidTopicName(name string) string {
	switch {
	case name == "":
		return "topic name is empty"
	case name == "." || name == "..":
		return "topic name cannot be . or .."
	case len(name) > 249:
		return "topic name is longer than 249 characters"
	}
	for _, r := range name {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", r) {
			return "topic name may hold only ASCII letters, digits, '.', '_' and '-'"
		}
	}
	return ""
}

// OffsetsTopic is the topic that shows committed offsets and classic groups to readers of Kafka's own topic of that name.
const OffsetsTopic = "__consumer_offsets"

// InternalTopic reports whether a topic is written by the cluster alone. ZooKeeper clients do not see it: consumers of 0.8.1 cannot
// exclude internal topics, and a mirror of all topics would feed it by reading it (groups.md, "Export").
func InternalTopic(name string) bool { return name == OffsetsTopic }

func (s *State) createTopic(c *statepb.CreateTopic) *statepb.Result {
	if why := ValidTopicName(c.Name); why != "" {
		return s.refuse(statepb.Code_INVALID, "%s", why)
	}
	if len(c.TopicId) != 16 || len(c.Assignments) == 0 || len(c.Assignments) > MaxPartitions {
		return s.refuse(statepb.Code_INVALID, "a topic needs an id of 16 bytes and 1 to %d partitions", MaxPartitions)
	}
	if _, ok := s.topics.get(c.Name); ok {
		return s.refuse(statepb.Code_TOPIC_EXISTS, "topic %s exists", c.Name)
	}
	if r := s.checkAssignments(c.Assignments); r != nil {
		return r
	}
	t := &Topic{Name: c.Name, ID: id.TopicID(c.TopicId)}
	if _, ok := s.names.get(string(t.ID[:])); ok {
		return s.refuse(statepb.Code_INVALID, "topic id %s is in use", t.ID)
	}
	if !c.KeepConfig || !s.hasConfig("topics", c.Name) {
		s.writeConfig("topics", c.Name, c.Configs, true)
	}
	zx := s.zxid()
	t.Stat = s.newStat(zx, 0)
	t.Stat.Creates, t.Stat.Children, t.Stat.Pzxid = 1, 1, zx
	s.addPartitions(t, c.Assignments, zx)
	if !InternalTopic(t.Name) {
		s.bumpParent("/brokers/topics", 1, zx)
	}
	s.changed(Change{Kind: TopicCreated, ZXID: zx, Topic: t.Name, TopicID: t.ID})
	return &statepb.Result{Zxid: int64(zx)}
}

func (s *State) checkAssignments(as []*statepb.Assignment) *statepb.Result {
	for p, a := range as {
		if len(a.Replicas) == 0 {
			return s.refuse(statepb.Code_INVALID, "partition %d (of those given) has no replicas", p)
		}
		for i, b := range a.Replicas {
			if _, ok := s.brokers.get(keyU32(uint32(b))); !ok {
				return s.refuse(statepb.Code_UNKNOWN_BROKER, "broker %d is not registered", b)
			}
			if slices.Contains(a.Replicas[:i], b) {
				return s.refuse(statepb.Code_INVALID, "broker %d twice in one partition", b)
			}
		}
	}
	return nil
}

// addPartitions appends partitions to a topic's chunks and puts the topic's row.
func (s *State) addPartitions(t *Topic, as []*statepb.Assignment, zx id.ZXID) {
	for _, a := range as {
		p := &Partition{ControllerEpoch: s.meta.ControllerEpoch, Leader: id.NoBroker, Czxid: zx, Mzxid: zx, Ctime: s.wallMs, Mtime: s.wallMs}
		for _, r := range a.Replicas {
			b := id.BrokerID(r)
			p.Replicas = append(p.Replicas, b)
			if s.liveBroker(b) {
				p.ISR = append(p.ISR, b)
				if p.Leader == id.NoBroker {
					p.Leader = b
				}
			}
		}
		if len(p.ISR) == 0 {
			p.ISR = p.Replicas // an empty log: whoever comes first may lead
		}
		key := partitionsKey(t.Name, t.Partitions)
		c := &partitions{}
		if old, ok := s.partitions.get(key); ok {
			c.rows = slices.Clone(old.rows)
		}
		c.rows = append(c.rows, p)
		s.partitions.put(key, c)
		t.Partitions++
	}
	t.Pzxid = zx
	s.topics.put(t.Name, t)
	s.names.put(string(t.ID[:]), t)
}

func (s *State) deleteTopic(c *statepb.DeleteTopic) *statepb.Result {
	t, ok := s.topics.get(c.Name)
	if !ok || len(c.TopicId) > 0 && string(c.TopicId) != string(t.ID[:]) {
		return s.refuse(statepb.Code_UNKNOWN_TOPIC, "topic %s does not exist", c.Name)
	}
	zx := s.zxid()
	keys, _ := s.partitions.collect(keyName(t.Name))
	for _, k := range keys {
		s.partitions.del(k)
	}
	s.topics.del(t.Name)
	s.names.del(string(t.ID[:]))
	if !InternalTopic(t.Name) {
		s.bumpParent("/brokers/topics", -1, zx)
	}
	s.changed(Change{Kind: TopicDeleted, ZXID: zx, Topic: t.Name, TopicID: t.ID, Partition: t.Partitions})
	s.removeConfig("topics", t.Name, zx)
	_, groups := s.groups.collect("")
	for _, g := range groups {
		s.dropOffsets(g.Name, t.Name, zx)
	}
	return &statepb.Result{Zxid: int64(zx)}
}

func (s *State) createPartitions(c *statepb.CreatePartitions) *statepb.Result {
	old, ok := s.topics.get(c.Name)
	if !ok {
		return s.refuse(statepb.Code_UNKNOWN_TOPIC, "topic %s does not exist", c.Name)
	}
	if old.Partitions != c.From {
		return s.refuse(statepb.Code_STALE, "topic %s has %d partitions, not %d", c.Name, old.Partitions, c.From)
	}
	if len(c.Assignments) == 0 || int(old.Partitions)+len(c.Assignments) > MaxPartitions {
		return s.refuse(statepb.Code_INVALID, "topic %s with %d partitions cannot get %d more", c.Name, old.Partitions, len(c.Assignments))
	}
	if r := s.checkAssignments(c.Assignments); r != nil {
		return r
	}
	zx := s.zxid()
	t := *old
	t.Stat.Version++
	t.Stat.Mzxid, t.Stat.Mtime = zx, s.wallMs
	s.addPartitions(&t, c.Assignments, zx)
	s.changed(Change{Kind: TopicGrown, ZXID: zx, Topic: t.Name, TopicID: t.ID, Partition: old.Partitions})
	return &statepb.Result{Zxid: int64(zx), Value: int64(t.Partitions)}
}

func (s *State) partition(topic string, p int32) (*Partition, bool) {
	return partitionIn(s.partitions.rows, topic, p)
}

// putPartition replaces a partition's row: its epoch and its state znode's version go up by one.
func (s *State) putPartition(t *Topic, n int32, p *Partition, zx id.ZXID) {
	p.Epoch++
	p.Mzxid, p.Mtime, p.ControllerEpoch = zx, s.wallMs, s.meta.ControllerEpoch
	key := partitionsKey(t.Name, n)
	old, _ := s.partitions.get(key)
	c := &partitions{rows: slices.Clone(old.rows)}
	c.rows[n%partitionChunk] = p
	s.partitions.put(key, c)
	s.changed(Change{Kind: PartitionChanged, ZXID: zx, Topic: t.Name, TopicID: t.ID, Partition: n})
}

// alterPartition is a leader's change of its ISR, compare-and-set on both epochs (KIP-497); stale members are refused
// by their broker epoch (KIP-903).
func (s *State) alterPartition(c *statepb.AlterPartition) *statepb.Result {
	if len(c.TopicId) != 16 {
		return s.refuse(statepb.Code_INVALID, "a topic id of %d bytes", len(c.TopicId))
	}
	t, ok := s.names.get(string(c.TopicId))
	if !ok {
		return s.refuse(statepb.Code_UNKNOWN_TOPIC, "topic id %x does not exist", c.TopicId)
	}
	old, ok := s.partition(t.Name, c.Partition)
	if !ok {
		return s.refuse(statepb.Code_UNKNOWN_PARTITION, "%s-%d does not exist", t.Name, c.Partition)
	}
	b, ok := s.brokers.get(keyU32(uint32(c.Broker)))
	if !ok || uint64(b.Epoch) != c.BrokerEpoch || b.Liveness != Live {
		return s.refuse(statepb.Code_FENCED, "broker %d is not live at epoch %d", c.Broker, c.BrokerEpoch)
	}
	if old.Leader != b.ID || int32(old.LeaderEpoch) != c.LeaderEpoch || int32(old.Epoch) != c.PartitionEpoch {
		r := s.refuse(statepb.Code_STALE, "%s-%d: leader %d epoch %d, partition epoch %d", t.Name, c.Partition, old.Leader, old.LeaderEpoch, old.Epoch)
		r.Epoch = uint64(old.Epoch)
		return r
	}
	p := *old
	p.ISR = nil
	for i, m := range c.Isr {
		member := id.BrokerID(m)
		row, ok := s.brokers.get(keyU32(uint32(m)))
		switch {
		case !slices.Contains(p.Replicas, member) || slices.Contains(p.ISR, member):
			return s.refuse(statepb.Code_INVALID, "%s-%d: broker %d is no replica, or twice in the ISR", t.Name, c.Partition, m)
		case !ok || row.Liveness != Live || i < len(c.IsrEpochs) && c.IsrEpochs[i] != 0 && c.IsrEpochs[i] != uint64(row.Epoch):
			return s.refuse(statepb.Code_FENCED, "%s-%d: broker %d is not live at the epoch given", t.Name, c.Partition, m)
		}
		p.ISR = append(p.ISR, member)
	}
	if !slices.Contains(p.ISR, p.Leader) {
		return s.refuse(statepb.Code_INVALID, "%s-%d: the ISR lacks its leader", t.Name, c.Partition)
	}
	if c.Waited {
		p.GraceNeeded = false
	}
	zx := s.zxid()
	s.putPartition(t, c.Partition, &p, zx)
	return &statepb.Result{Zxid: int64(zx), Epoch: uint64(p.Epoch)}
}

// electLeaders applies the controller's decisions, each on the partition epoch that it was decided on.
func (s *State) electLeaders(c *statepb.ElectLeaders) *statepb.Result {
	res := &statepb.Result{}
	for _, e := range c.Elections {
		res.Parts = append(res.Parts, s.electLeader(e))
	}
	res.Zxid = int64(s.meta.ZXID)
	return res
}

func (s *State) electLeader(e *statepb.Election) *statepb.Result {
	if len(e.TopicId) != 16 {
		return s.refuse(statepb.Code_INVALID, "a topic id of %d bytes", len(e.TopicId))
	}
	t, ok := s.names.get(string(e.TopicId))
	if !ok {
		return s.refuse(statepb.Code_UNKNOWN_TOPIC, "topic id %x does not exist", e.TopicId)
	}
	old, ok := s.partition(t.Name, e.Partition)
	switch {
	case !ok:
		return s.refuse(statepb.Code_UNKNOWN_PARTITION, "%s-%d does not exist", t.Name, e.Partition)
	case int32(old.Epoch) != e.PartitionEpoch:
		return s.refuse(statepb.Code_STALE, "%s-%d is at partition epoch %d, not %d", t.Name, e.Partition, old.Epoch, e.PartitionEpoch)
	case e.Leader >= 0 && (!slices.Contains(old.ISR, id.BrokerID(e.Leader)) || !s.liveBroker(id.BrokerID(e.Leader))):
		return s.refuse(statepb.Code_INVALID, "%s-%d: broker %d is not live in the ISR", t.Name, e.Partition, e.Leader)
	}
	p := *old
	if len(e.Isr) > 0 {
		p.ISR = nil
		for _, m := range e.Isr {
			p.ISR = append(p.ISR, id.BrokerID(m))
		}
	}
	s.lead(&p, id.BrokerID(e.Leader), false)
	s.putPartition(t, e.Partition, &p, s.zxid())
	return &statepb.Result{Epoch: uint64(p.Epoch)}
}

// lead makes a broker the leader. resigned: the one before it has stopped for certain. That says nothing about the ones before
// that, which it may not have waited out: a grace stays until a leader says that it has.
func (s *State) lead(p *Partition, to id.BrokerID, resigned bool) {
	if p.Leader != id.NoBroker && !resigned {
		p.GraceNeeded = true
	}
	p.Leader = to
	p.LeaderEpoch++
}

// handOver takes a broker that is gone out of every ISR and moves what it led to the first live replica of the ISR. The
// last of an ISR stays in it: nobody else may lead until it returns. returned: the broker is only restarted and has its
// log; it stays in the ISRs (all brokers may restart at once, and those elected meanwhile may be dead too), and leads on,
// at a new epoch, where nobody else can.
func (s *State) handOver(gone id.BrokerID, zx id.ZXID, proven, returned bool) {
	s.eachPartition(func(t *Topic, n int32, old *Partition) {
		in := slices.Contains(old.ISR, gone)
		leaves := in && len(old.ISR) > 1 && !returned
		if !leaves && old.Leader != gone {
			return
		}
		p := *old
		if leaves {
			p.ISR = slices.DeleteFunc(slices.Clone(p.ISR), func(b id.BrokerID) bool { return b == gone })
		}
		if p.Leader == gone {
			s.lead(&p, s.nextLeader(&p, gone), proven)
		}
		s.putPartition(t, n, &p, zx)
	})
}

func (s *State) nextLeader(p *Partition, not id.BrokerID) id.BrokerID {
	for _, b := range p.Replicas {
		if b != not && slices.Contains(p.ISR, b) && s.liveBroker(b) {
			return b
		}
	}
	return id.NoBroker
}

// takeBack gives a broker that has registered the partitions that only wait for it.
func (s *State) takeBack(b id.BrokerID, zx id.ZXID) {
	s.eachPartition(func(t *Topic, n int32, old *Partition) {
		if old.Leader == id.NoBroker && slices.Contains(old.ISR, b) {
			p := *old
			s.lead(&p, b, true)
			s.putPartition(t, n, &p, zx)
		}
	})
}

// forgetReplica takes a broker out of every ISR because its data directory is another one now: what it had is gone. A
// partition that had only it stays without a leader until an operator decides.
func (s *State) forgetReplica(b id.BrokerID, zx id.ZXID) {
	s.eachPartition(func(t *Topic, n int32, old *Partition) {
		if !slices.Contains(old.ISR, b) {
			return
		}
		p := *old
		p.ISR = slices.DeleteFunc(slices.Clone(p.ISR), func(m id.BrokerID) bool { return m == b })
		if p.Leader == b {
			s.lead(&p, s.nextLeader(&p, b), true)
		}
		s.putPartition(t, n, &p, zx)
	})
}

func (s *State) eachPartition(fn func(*Topic, int32, *Partition)) {
	_, topics := s.topics.collect("")
	for _, t := range topics {
		for n := int32(0); n < t.Partitions; n++ {
			p, _ := s.partition(t.Name, n)
			fn(t, n, p)
		}
	}
}

// ---- configuration ----

func (s *State) hasConfig(typ, name string) bool {
	_, ok := s.configs.get(keyNames(typ, name))
	return ok
}

func (s *State) setConfig(c *statepb.SetConfig) *statepb.Result {
	if !ConfigType(c.Type) && c.Type != GroupConfigs || c.Name == "" {
		return s.refuse(statepb.Code_INVALID, "no configuration of type %q for %q", c.Type, c.Name)
	}
	old, ok := s.configs.get(keyNames(c.Type, c.Name))
	switch {
	case ok && c.CreateOnly:
		return s.refuse(statepb.Code_NODE_EXISTS, "/config/%s/%s exists", c.Type, c.Name)
	case !ok && (c.ExistsOnly || c.RemoveRow):
		return s.refuse(statepb.Code_NO_NODE, "/config/%s/%s does not exist", c.Type, c.Name)
	case ok && c.ZnodeVersion >= 0 && (c.ExistsOnly || c.RemoveRow) && old.Stat.Version != c.ZnodeVersion:
		return s.refuse(statepb.Code_BAD_VERSION, "/config/%s/%s is at version %d", c.Type, c.Name, old.Stat.Version)
	}
	if c.RemoveRow {
		s.removeConfig(c.Type, c.Name, s.zxid())
		return &statepb.Result{Zxid: int64(s.meta.ZXID)}
	}
	s.writeConfig(c.Type, c.Name, c.Entries, c.Replace)
	return &statepb.Result{Zxid: int64(s.meta.ZXID)}
}

func (s *State) writeConfig(typ, name string, entries []*statepb.ConfigEntry, replace bool) {
	zx := s.zxid()
	key := keyNames(typ, name)
	n := Config{Type: typ, Name: name}
	old, ok := s.configs.get(key)
	if ok {
		n = *old
		n.Stat.Version++
		n.Stat.Mzxid, n.Stat.Mtime = zx, s.wallMs
	} else {
		n.Stat = s.newStat(zx, 0)
	}
	merged := map[string]string{}
	if !replace {
		for _, kv := range n.Entries {
			merged[kv.Name] = kv.Value
		}
	}
	for _, e := range entries {
		if e.Remove {
			delete(merged, e.Name)
		} else {
			merged[e.Name] = e.Value
		}
	}
	n.Entries = nil
	for k, v := range merged {
		n.Entries = append(n.Entries, KV{k, v})
	}
	slices.SortFunc(n.Entries, func(a, b KV) int { return strings.Compare(a.Name, b.Name) })
	s.configs.put(key, &n)
	kind := ConfigData
	if !ok {
		kind = ConfigCreated
		s.bumpConfigs(typ, 1, zx)
	}
	s.changed(Change{Kind: kind, ZXID: zx, Type: typ, Name: name})
}

func (s *State) bumpConfigs(typ string, by int32, zx id.ZXID) {
	if ConfigType(typ) {
		s.bumpParent("/config/"+typ, by, zx)
	}
}

func (s *State) removeConfig(typ, name string, zx id.ZXID) {
	if s.configs.del(keyNames(typ, name)) {
		s.bumpConfigs(typ, -1, zx)
		s.changed(Change{Kind: ConfigDeleted, ZXID: zx, Type: typ, Name: name})
	}
}
