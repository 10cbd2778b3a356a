package state

import (
	"github.com/barnabas-mq/barnabas/internal/id"
)

// View is the whole state as it was after one Raft entry. It never changes; any goroutine may read it for as long as it
// likes. Rows that it returns must not be written to.
type View struct {
	index id.Index
	term  id.Term
	meta  meta

	brokers    *tree[*Broker]
	topics     *tree[*Topic]
	names      *tree[*Topic] // by id: key 16 bytes
	partitions *tree[*partitions]
	configs    *tree[*Config]
	sessions   *tree[*Session]
	znodes     *tree[*Znode]
	ephemerals *tree[*marker]
	groups     *tree[*Group]
	offsets    *tree[*offsets]
	legacies   *tree[*Legacy]
	fences     *tree[*Fence]
}

// Index is the last Raft entry that the view shows, Term that entry's term.
func (v *View) Index() id.Index { return v.index }

// Term is the term of the entry at Index.
func (v *View) Term() id.Term { return v.term }

// ZXID is the last change that ZooKeeper clients can see.
func (v *View) ZXID() id.ZXID { return v.meta.ZXID }

// ClockMs is cluster time in milliseconds: it only advances as leaders' monotonic clocks do.
func (v *View) ClockMs() int64 { return v.meta.ClockMs }

// Level is the feature level of the state.
func (v *View) Level() uint32 { return v.meta.Level }

// ClusterID is "" until the bootstrap.
func (v *View) ClusterID() string { return v.meta.ClusterID }

// Controller is the broker whose minds decide, and the epoch of that (as in /controller and /controller_epoch).
func (v *View) Controller() (id.BrokerID, int32) { return v.meta.Controller, v.meta.ControllerEpoch }

// ControllerTerm is the Raft term in which Controller took over.
func (v *View) ControllerTerm() id.Term { return v.meta.ControllerTerm }

// NextProducerID is the first producer id not yet given out.
func (v *View) NextProducerID() int64 { return v.meta.NextProducer }

// Broker returns the row of a broker id, live or not.
func (v *View) Broker(b id.BrokerID) (*Broker, bool) { return v.brokers.Get(keyU32(uint32(b))) }

// Brokers calls fn for each broker in ascending id until it returns false.
func (v *View) Brokers(fn func(*Broker) bool) { walk(v.brokers, "", fn) }

// BrokerByDirectory finds the broker that has a data directory.
func (v *View) BrokerByDirectory(d id.DirectoryID) (*Broker, bool) {
	var found *Broker
	v.Brokers(func(b *Broker) bool {
		if b.Directory == d {
			found = b
		}
		return found == nil
	})
	return found, found != nil
}

// LiveBrokers returns the live brokers in ascending id.
func (v *View) LiveBrokers() []*Broker {
	var live []*Broker
	v.Brokers(func(b *Broker) bool {
		if b.Liveness == Live {
			live = append(live, b)
		}
		return true
	})
	return live
}

// Topic returns a topic by name.
func (v *View) Topic(name string) (*Topic, bool) { return v.topics.Get(name) }

// TopicByID returns a topic by id.
func (v *View) TopicByID(t id.TopicID) (*Topic, bool) { return v.names.Get(string(t[:])) }

// Topics calls fn for each topic in ascending name until it returns false.
func (v *View) Topics(fn func(*Topic) bool) { walk(v.topics, "", fn) }

// Partition returns a partition's row.
func (v *View) Partition(topic string, p int32) (*Partition, bool) {
	return partitionIn(v.partitions, topic, p)
}

func partitionIn(t *tree[*partitions], topic string, p int32) (*Partition, bool) {
	if p < 0 {
		return nil, false
	}
	c, ok := t.Get(partitionsKey(topic, p))
	if !ok || int(p%partitionChunk) >= len(c.rows) {
		return nil, false
	}
	return c.rows[p%partitionChunk], true
}

// Partitions calls fn for each partition of a topic in ascending order until it returns false.
func (v *View) Partitions(topic string, fn func(int32, *Partition) bool) {
	n := int32(0)
	walk(v.partitions, keyName(topic), func(c *partitions) bool {
		for _, p := range c.rows {
			if !fn(n, p) {
				return false
			}
			n++
		}
		return true
	})
}

// Config returns the dynamic configuration of an entity of a type (topics, brokers, clients, users).
func (v *View) Config(typ, name string) (*Config, bool) { return v.configs.Get(keyNames(typ, name)) }

// Configs calls fn for each configured entity of a type in ascending name until it returns false.
func (v *View) Configs(typ string, fn func(*Config) bool) { walk(v.configs, keyName(typ), fn) }

// Session returns a live session.
func (v *View) Session(s id.SessionID) (*Session, bool) { return v.sessions.Get(keyU64(uint64(s))) }

// Sessions calls fn for each session until it returns false.
func (v *View) Sessions(fn func(*Session) bool) { walk(v.sessions, "", fn) }

// Ephemerals returns the paths of a session's ephemeral nodes in ascending order.
func (v *View) Ephemerals(s id.SessionID) []string {
	var paths []string
	walkKeys(v.ephemerals, keyU64(uint64(s)), func(k string, _ *marker) bool {
		paths = append(paths, k[8:])
		return true
	})
	return paths
}

// Znode returns a stored node: free nodes, directories, members, owners, and the Stat rows of singletons. Brokers,
// topics, configs and offsets are not here: ztree puts the whole tree together.
func (v *View) Znode(path string) (*Znode, bool) { return v.znodes.Get(znodeKey(path)) }

// ZnodeChildren calls fn for each stored child of a path in ascending name until it returns false.
func (v *View) ZnodeChildren(path string, fn func(name string, z *Znode) bool) {
	prefix := keyName(path)
	walkKeys(v.znodes, prefix, func(k string, z *Znode) bool { return fn(k[len(prefix):], z) })
}

// Group returns a group's head.
func (v *View) Group(g string) (*Group, bool) { return v.groups.Get(g) }

// Groups calls fn for each group in ascending name until it returns false.
func (v *View) Groups(fn func(*Group) bool) { walk(v.groups, "", fn) }

// Members calls fn for each znode registration of a group in ascending id until it returns false.
func (v *View) Members(g string, fn func(memberID string, z *Znode) bool) {
	v.ZnodeChildren("/consumers/"+g+"/ids", fn)
}

// Owner returns the claim of a literal owner name.
func (v *View) Owner(g, topic, name string) (*Znode, bool) {
	return v.Znode("/consumers/" + g + "/owners/" + topic + "/" + name)
}

// Owners calls fn for each claim on a topic in ascending name until it returns false.
func (v *View) Owners(g, topic string, fn func(name string, z *Znode) bool) {
	v.ZnodeChildren("/consumers/"+g+"/owners/"+topic, fn)
}

// GroupOwners calls fn for each claim in a group, by topic as in its path and then by name, ascending.
func (v *View) GroupOwners(g string, fn func(topic, name string, z *Znode)) {
	v.ZnodeChildren("/consumers/"+g+"/owners", func(topic string, _ *Znode) bool {
		v.Owners(g, topic, func(name string, z *Znode) bool {
			fn(topic, name, z)
			return true
		})
		return true
	})
}

// Offset returns a group's committed offset.
func (v *View) Offset(g, topic string, p int32) (*Offset, bool) {
	return offsetIn(v.offsets, g, topic, p)
}

func offsetIn(t *tree[*offsets], g, topic string, p int32) (*Offset, bool) {
	c, ok := t.Get(offsetsKey(g, topic, p))
	if !ok {
		return nil, false
	}
	i, ok := c.find(p)
	if !ok {
		return nil, false
	}
	return c.rows[i], true
}

// TopicOffsets calls fn for each committed offset of a group and topic in ascending partition until it returns false.
func (v *View) TopicOffsets(g, topic string, fn func(*Offset) bool) {
	walk(v.offsets, keyNames(g, topic), func(c *offsets) bool {
		for _, o := range c.rows {
			if !fn(o) {
				return false
			}
		}
		return true
	})
}

// Offsets calls fn for each committed offset of a group, by topic and partition, until it returns false.
func (v *View) Offsets(g string, fn func(topic string, o *Offset) bool) {
	prefix := keyName(g)
	walkKeys(v.offsets, prefix, func(k string, c *offsets) bool {
		topic := k[len(prefix) : len(k)-5]
		for _, o := range c.rows {
			if !fn(topic, o) {
				return false
			}
		}
		return true
	})
}
