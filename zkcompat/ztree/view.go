package ztree

import (
	"strings"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// View is the znode tree of one state. It never changes; any goroutine may read it.
type View struct{ s *state.View }

// New shows a state as znodes.
func New(s *state.View) View { return View{s} }

// State is what the view shows.
func (v View) State() *state.View { return v.s }

// Index is the last applied log entry, Zxid the last change that ZooKeeper clients can see.
func (v View) Index() id.Index { return v.s.Index() }

// Zxid is the last change that ZooKeeper clients can see.
func (v View) Zxid() id.ZXID { return v.s.ZXID() }

// Session tells whether a session lives and which attachment is its newest.
func (v View) Session(s id.SessionID) (attachEpoch uint64, ok bool) {
	row, ok := v.s.Session(s)
	if !ok {
		return 0, false
	}
	return row.AttachEpoch, true
}

// Node returns the node at path as o sees it; "" is the root, as in ZooKeeper.
func (v View) Node(path string, o Observer) (Node, bool) {
	if path == "" {
		path = "/"
	}
	if g := v.generation(path, o); g != nil {
		return v.shownNode(path, g, o)
	}
	if z, ok := v.s.Znode(path); ok {
		return v.stored(path, z), true
	}
	switch {
	case strings.HasPrefix(path, idsDir):
		return v.broker(path[len(idsDir):])
	case strings.HasPrefix(path, topicsDir):
		return v.topic(path[len(topicsDir):])
	case strings.HasPrefix(path, configDir):
		return v.config(path[len(configDir):])
	case strings.HasPrefix(path, groupsDir):
		return v.offset(path)
	}
	return Node{}, false
}

const (
	idsDir    = "/brokers/ids/"
	topicsDir = "/brokers/topics/"
	configDir = "/config/"
	groupsDir = "/consumers/"
)

// stored is a row of the znode table; of a few the data comes from elsewhere.
func (v View) stored(path string, z *state.Znode) Node {
	n := Node{Data: z.Data, ACL: acls(z.ACL)}
	if z.Null {
		n.Data = nil
	} else if n.Data == nil {
		n.Data = []byte{}
	}
	switch path {
	case "/controller":
		b, _ := v.s.Controller()
		n.Data = controllerJSON(b, z.Stat.Ctime)
	case "/controller_epoch":
		_, epoch := v.s.Controller()
		n.Data = decimal(int64(epoch))
	case "/cluster/id":
		n.Data = clusterJSON(v.s.ClusterID())
	case "/latest_producer_id_block":
		if next := v.s.NextProducerID(); next > 0 {
			b, _ := v.s.Controller()
			n.Data = producerBlockJSON(b, next)
		}
	}
	n.Stat = stat(&z.Stat, len(n.Data))
	return n
}

func acls(in []state.ACL) []ACL {
	if len(in) == 0 {
		return nil
	}
	out := make([]ACL, len(in))
	for i, a := range in {
		out[i] = ACL(a)
	}
	return out
}

// stat is a stored Stat as clients see it.
func stat(s *state.Stat, length int) Stat {
	return Stat{
		Czxid: int64(s.Czxid), Mzxid: int64(s.Mzxid), Pzxid: int64(s.Pzxid), Ctime: s.Ctime, Mtime: s.Mtime, Version: s.Version,
		Cversion: s.Cversion(), Aversion: s.Aversion, EphemeralOwner: s.EphemeralOwner, DataLength: int32(length), NumChildren: s.Children,
	}
}

func (v View) broker(name string) (Node, bool) {
	n, ok := state.ParsePartition(name) // a broker id is written like a partition
	if !ok {
		return Node{}, false
	}
	b, ok := v.s.Broker(id.BrokerID(n))
	if !ok || !b.Visible {
		return Node{}, false
	}
	data := brokerJSON(b)
	return Node{Data: data, Stat: stat(&b.Stat, len(data))}, true
}

// topicPath takes apart what stands below /brokers/topics: depth 0 is the topic, 1 its partitions, 2 one of them, 3 that
// one's state; -1 is nothing.
func topicPath(rest string) (topic string, p int32, depth int) {
	topic, rest, more := strings.Cut(rest, "/")
	if !more {
		return topic, -1, 0
	}
	rest, ok := strings.CutPrefix(rest, "partitions")
	if !ok {
		return topic, -1, -1
	}
	if rest == "" {
		return topic, -1, 1
	}
	number, last, more := strings.Cut(rest[1:], "/")
	p, ok = state.ParsePartition(number)
	switch {
	case rest[0] != '/' || !ok:
		return topic, -1, -1
	case !more:
		return topic, p, 2
	case last == "state":
		return topic, p, 3
	}
	return topic, p, -1
}

func (v View) topic(rest string) (Node, bool) {
	name, num, depth := topicPath(rest)
	if depth < 0 || state.InternalTopic(name) {
		return Node{}, false
	}
	t, ok := v.s.Topic(name)
	if !ok {
		return Node{}, false
	}
	switch depth {
	case 0:
		data := v.topicJSON(t, t.Partitions)
		return Node{Data: data, Stat: stat(&t.Stat, len(data))}, true
	case 1:
		return Node{Stat: partitionsStat(t)}, true
	}
	p, ok := v.s.Partition(name, num)
	if !ok {
		return Node{}, false
	}
	if depth == 2 {
		return Node{Stat: directoryStat(int64(p.Czxid), int64(p.Czxid), p.Ctime, 1)}, true
	}
	data := stateJSON(p)
	return Node{Data: data, Stat: Stat{
		Czxid: int64(p.Czxid), Mzxid: int64(p.Mzxid), Pzxid: int64(p.Czxid), Ctime: p.Ctime, Mtime: p.Mtime,
		Version: int32(p.Epoch), DataLength: int32(len(data)),
	}}, true
}

// partitionsStat is of /brokers/topics/<t>/partitions: only growth changes it.
func partitionsStat(t *state.Topic) Stat {
	return directoryStat(int64(t.Stat.Czxid), int64(t.Pzxid), t.Stat.Ctime, t.Partitions)
}

// directoryStat is of a directory without data whose children were all created and never deleted.
func directoryStat(czxid, pzxid, ctime int64, children int32) Stat {
	return Stat{Czxid: czxid, Mzxid: czxid, Pzxid: pzxid, Ctime: ctime, Mtime: ctime, Cversion: children, NumChildren: children}
}

func (v View) config(rest string) (Node, bool) {
	typ, name, _ := strings.Cut(rest, "/")
	c, ok := v.s.Config(typ, name)
	if !ok || !state.ConfigType(typ) {
		return Node{}, false
	}
	data := configJSON(c)
	return Node{Data: data, Stat: stat(&c.Stat, len(data))}, true
}

func (v View) offset(path string) (Node, bool) {
	p := state.ParsePath(path)
	if p.Kind != state.PathOffset {
		return Node{}, false
	}
	o, ok := v.s.Offset(p.Group, p.Topic, p.Partition)
	if !ok {
		return Node{}, false
	}
	data := decimal(int64(o.Offset))
	return Node{Data: data, Stat: Stat{
		Czxid: int64(o.Czxid), Mzxid: int64(o.Mzxid), Pzxid: int64(o.Czxid), Ctime: o.Ctime, Mtime: o.Mtime, Version: o.Version,
		DataLength: int32(len(data)),
	}}, true
}

// Children appends the names below path to names, in no order, and returns the node's Stat.
func (v View) Children(path string, o Observer, names []string) ([]string, Stat, bool) {
	if path == "" {
		path = "/"
	}
	if g := v.generation(path, o); g != nil {
		return v.shownChildren(path, g, o, names)
	}
	n, ok := v.Node(path, o)
	if !ok {
		return names, Stat{}, false
	}
	if n.Stat.NumChildren == 0 {
		return names, n.Stat, true
	}
	v.s.ZnodeChildren(path, func(name string, _ *state.Znode) bool {
		names = append(names, name)
		return true
	})
	switch {
	case path == "/brokers/ids":
		v.s.Brokers(func(b *state.Broker) bool {
			if b.Visible {
				names = append(names, string(decimal(int64(b.ID))))
			}
			return true
		})
	case path == "/brokers/topics":
		v.s.Topics(func(t *state.Topic) bool {
			if !state.InternalTopic(t.Name) {
				names = append(names, t.Name)
			}
			return true
		})
	case strings.HasPrefix(path, topicsDir):
		names = appendBelowTopic(path[len(topicsDir):], n.Stat.NumChildren, names)
	case strings.HasPrefix(path, configDir) && state.ConfigType(path[len(configDir):]):
		v.s.Configs(path[len(configDir):], func(c *state.Config) bool {
			names = append(names, c.Name)
			return true
		})
	case strings.HasPrefix(path, groupsDir):
		if p := state.ParsePath(path); p.Kind == state.PathGroupDir && p.Topic != "" && strings.HasPrefix(path[len(groupsDir)+len(p.Group):], "/offsets/") {
			v.s.TopicOffsets(p.Group, p.Topic, func(o *state.Offset) bool {
				names = append(names, string(decimal(int64(o.Partition))))
				return true
			})
		}
	}
	return names, n.Stat, true
}

func appendBelowTopic(rest string, count int32, names []string) []string {
	switch _, _, depth := topicPath(rest); depth {
	case 0:
		return append(names, "partitions")
	case 1:
		for p := range count {
			names = append(names, string(decimal(int64(p))))
		}
	case 2:
		return append(names, "state")
	}
	return names
}
