package state

import (
	"github.com/barnabas-mq/barnabas/internal/id"
)

// Rows are immutable once they are in a View: Apply clones, changes the clone and puts it. Readers never write to one.

// Stat is what ZooKeeper keeps of a node (org.apache.zookeeper.data.StatPersisted), with children counted here.
type Stat struct {
	Czxid, Mzxid, Pzxid id.ZXID
	Ctime, Mtime        int64 // wall clock, ms; only shown
	Version, Aversion   int32
	Creates             int32 // children ever created: the next sequence number
	Children            int32
	EphemeralOwner      int64
}

// Cversion is the child version that clients see: two per create less the children there are (DataNode.copyStat).
func (s *Stat) Cversion() int32 { return 2*s.Creates - s.Children }

func (s *Stat) encode(e *enc) {
	e.i64(1, int64(s.Czxid))
	e.i64(2, int64(s.Mzxid))
	e.i64(3, int64(s.Pzxid))
	e.i64(4, s.Ctime)
	e.i64(5, s.Mtime)
	e.i64(6, int64(s.Version))
	e.i64(7, int64(s.Aversion))
	e.i64(8, int64(s.Creates))
	e.i64(9, int64(s.Children))
	e.i64(10, s.EphemeralOwner)
}

func (s *Stat) decode(d *dec) {
	for d.next() {
		switch d.num {
		case 1:
			s.Czxid = id.ZXID(d.i64())
		case 2:
			s.Mzxid = id.ZXID(d.i64())
		case 3:
			s.Pzxid = id.ZXID(d.i64())
		case 4:
			s.Ctime = d.i64()
		case 5:
			s.Mtime = d.i64()
		case 6:
			s.Version = d.i32()
		case 7:
			s.Aversion = d.i32()
		case 8:
			s.Creates = d.i32()
		case 9:
			s.Children = d.i32()
		case 10:
			s.EphemeralOwner = d.i64()
		default:
			d.unknown()
		}
	}
}

// ACL is one ZooKeeper access rule: stored and shown, never enforced.
type ACL struct {
	Perms      int32
	Scheme, ID string
}

// Znode is a stored node: a free one, a directory, a member or owner of a group (whose raw text is the datum), or the
// Stat of a projected node whose data comes from elsewhere (ztree).
type Znode struct {
	Data []byte
	Null bool  // no data, which readers tell from empty data
	ACL  []ACL // nil: world:anyone, all
	Stat Stat
	// Of members and owners of groups: who writes like this, and the partition that an owner's name means (-1: none).
	Dialect   Dialect
	Partition int32
}

func (z *Znode) encode(e *enc) {
	e.bytes(1, z.Data)
	e.flag(2, z.Null)
	for _, a := range z.ACL {
		e.sub(3, func(e *enc) { e.i64(1, int64(a.Perms)); e.str(2, a.Scheme); e.str(3, a.ID) })
	}
	e.sub(4, z.Stat.encode)
	e.u64(5, uint64(z.Dialect))
	e.i64(6, int64(z.Partition))
}

func (z *Znode) decode(d *dec) {
	for d.next() {
		switch d.num {
		case 1:
			z.Data = d.copy()
		case 2:
			z.Null = d.flag()
		case 3:
			var a ACL
			d.sub(func(d *dec) {
				for d.next() {
					switch d.num {
					case 1:
						a.Perms = d.i32()
					case 2:
						a.Scheme = d.str()
					case 3:
						a.ID = d.str()
					default:
						d.unknown()
					}
				}
			})
			z.ACL = append(z.ACL, a)
		case 4:
			d.sub(z.Stat.decode)
		case 5:
			if z.Dialect = Dialect(d.u64()); z.Dialect > DialectWvanbergen {
				d.unknown()
			}
		case 6:
			z.Partition = d.i32()
		default:
			d.unknown()
		}
	}
}

// Endpoint is an address that a broker offers.
type Endpoint struct {
	Listener string
	Host     string
	Port     int32
}

func (p *Endpoint) encode(e *enc) {
	e.str(1, p.Listener)
	e.str(2, p.Host)
	e.i64(3, int64(p.Port))
}

func (p *Endpoint) decode(d *dec) {
	for d.next() {
		switch d.num {
		case 1:
			p.Listener = d.str()
		case 2:
			p.Host = d.str()
		case 3:
			p.Port = d.i32()
		default:
			d.unknown()
		}
	}
}

// Liveness is what the cluster holds of a broker.
type Liveness uint8

// A broker is Live from its registration, Fenced when its lease ended or it died, Left when it said goodbye.
const (
	Live Liveness = iota + 1
	Fenced
	Left
)

// Broker is a broker id and the incarnation that has it.
type Broker struct {
	ID                        id.BrokerID
	Directory                 id.DirectoryID
	Nonce                     string // of the incarnation
	Epoch                     id.BrokerEpoch
	Liveness                  Liveness
	Visible                   bool // has a znode in /brokers/ids
	MinLevel, MaxLevel        uint32
	Endpoints                 []Endpoint
	ZooKeeper, Cluster, Admin Endpoint
	Rack, Build               string
	Stat                      Stat // of its znode
}

// Endpoint returns the address of the named listener.
func (b *Broker) Endpoint(listener string) (Endpoint, bool) {
	for _, p := range b.Endpoints {
		if p.Listener == listener {
			return p, true
		}
	}
	return Endpoint{}, false
}

func (b *Broker) encode(e *enc) {
	e.i64(1, int64(b.ID))
	e.str(2, string(b.Directory))
	e.str(3, b.Nonce)
	e.u64(4, uint64(b.Epoch))
	e.u64(5, uint64(b.Liveness))
	e.flag(6, b.Visible)
	e.u64(7, uint64(b.MinLevel))
	e.u64(8, uint64(b.MaxLevel))
	for i := range b.Endpoints {
		e.sub(9, b.Endpoints[i].encode)
	}
	e.sub(10, b.ZooKeeper.encode)
	e.sub(11, b.Cluster.encode)
	e.sub(12, b.Admin.encode)
	e.str(13, b.Rack)
	e.str(14, b.Build)
	e.sub(15, b.Stat.encode)
}

func (b *Broker) decode(d *dec) {
	for d.next() {
		switch d.num {
		case 1:
			b.ID = id.BrokerID(d.i32())
		case 2:
			b.Directory = id.DirectoryID(d.str())
		case 3:
			b.Nonce = d.str()
		case 4:
			b.Epoch = id.BrokerEpoch(d.u64())
		case 5:
			b.Liveness = Liveness(d.u64())
		case 6:
			b.Visible = d.flag()
		case 7:
			b.MinLevel = uint32(d.u64())
		case 8:
			b.MaxLevel = uint32(d.u64())
		case 9:
			var p Endpoint
			d.sub(p.decode)
			b.Endpoints = append(b.Endpoints, p)
		case 10:
			d.sub(b.ZooKeeper.decode)
		case 11:
			d.sub(b.Cluster.decode)
		case 12:
			d.sub(b.Admin.decode)
		case 13:
			b.Rack = d.str()
		case 14:
			b.Build = d.str()
		case 15:
			d.sub(b.Stat.decode)
		default:
			d.unknown()
		}
	}
}

// Topic is a topic's head; its partitions are rows of their own in chunks.
type Topic struct {
	Name       string
	ID         id.TopicID
	Partitions int32
	Stat       Stat    // of /brokers/topics/<name>: Version counts changes of the partition map
	Pzxid      id.ZXID // of /brokers/topics/<name>/partitions: the last growth
}

func (t *Topic) encode(e *enc) {
	e.str(1, t.Name)
	e.bytes(2, t.ID[:])
	e.i64(3, int64(t.Partitions))
	e.sub(4, t.Stat.encode)
	e.i64(5, int64(t.Pzxid))
}

func (t *Topic) decode(d *dec) {
	for d.next() {
		switch d.num {
		case 1:
			t.Name = d.str()
		case 2:
			copy(t.ID[:], d.raw())
		case 3:
			t.Partitions = d.i32()
		case 4:
			d.sub(t.Stat.decode)
		case 5:
			t.Pzxid = id.ZXID(d.i64())
		default:
			d.unknown()
		}
	}
}

// Partition is who has a partition. Its slices are never written to.
type Partition struct {
	Replicas        []id.BrokerID // preferred leader first
	ISR             []id.BrokerID
	Leader          id.BrokerID // NoBroker: none
	LeaderEpoch     id.LeaderEpoch
	Epoch           id.PartitionEpoch // of this row: every change adds one; also the version of its state znode
	ControllerEpoch int32
	// GraceNeeded: the leader before this one was not provably dead when this one was elected, so this one answers
	// consumers only after that one's lease and fetch leases have surely ended (metadata.md, "Who may answer").
	GraceNeeded  bool
	Czxid, Mzxid id.ZXID // of the state znode
	Ctime, Mtime int64
}

func (p *Partition) encode(e *enc) {
	ints(e, 1, p.Replicas)
	ints(e, 2, p.ISR)
	e.i64(3, int64(p.Leader))
	e.i64(4, int64(p.LeaderEpoch))
	e.i64(5, int64(p.Epoch))
	e.i64(6, int64(p.ControllerEpoch))
	e.flag(7, p.GraceNeeded)
	e.i64(8, int64(p.Czxid))
	e.i64(9, int64(p.Mzxid))
	e.i64(10, p.Ctime)
	e.i64(11, p.Mtime)
}

func (p *Partition) decode(d *dec) {
	for d.next() {
		switch d.num {
		case 1:
			p.Replicas = decInts[id.BrokerID](d)
		case 2:
			p.ISR = decInts[id.BrokerID](d)
		case 3:
			p.Leader = id.BrokerID(d.i32())
		case 4:
			p.LeaderEpoch = id.LeaderEpoch(d.i32())
		case 5:
			p.Epoch = id.PartitionEpoch(d.i32())
		case 6:
			p.ControllerEpoch = d.i32()
		case 7:
			p.GraceNeeded = d.flag()
		case 8:
			p.Czxid = id.ZXID(d.i64())
		case 9:
			p.Mzxid = id.ZXID(d.i64())
		case 10:
			p.Ctime = d.i64()
		case 11:
			p.Mtime = d.i64()
		default:
			d.unknown()
		}
	}
}

const partitionChunk = 64 // partitions in a row: written together, and an array slot costs less than a row

// partitions is one chunk; every slot up to the topic's count is set.
type partitions struct{ rows []*Partition }

func (c *partitions) encode(e *enc) {
	for _, p := range c.rows {
		e.sub(1, p.encode)
	}
}

func (c *partitions) decode(d *dec) {
	for d.next() {
		if d.num != 1 {
			d.unknown()
			return
		}
		p := new(Partition)
		d.sub(p.decode)
		c.rows = append(c.rows, p)
	}
}

// KV is one configuration entry.
type KV struct{ Name, Value string }

// Config is the dynamic configuration of one entity; it may precede its topic (old tools write it first).
type Config struct {
	Type, Name string
	Entries    []KV // sorted by name
	Stat       Stat
}

// Get returns an entry's value.
func (c *Config) Get(name string) (string, bool) {
	for _, kv := range c.Entries {
		if kv.Name == name {
			return kv.Value, true
		}
	}
	return "", false
}

func (c *Config) encode(e *enc) {
	e.str(1, c.Type)
	e.str(2, c.Name)
	for _, kv := range c.Entries {
		e.sub(3, func(e *enc) { e.str(1, kv.Name); e.str(2, kv.Value) })
	}
	e.sub(4, c.Stat.encode)
}

func (c *Config) decode(d *dec) {
	for d.next() {
		switch d.num {
		case 1:
			c.Type = d.str()
		case 2:
			c.Name = d.str()
		case 3:
			var kv KV
			d.sub(func(d *dec) {
				for d.next() {
					switch d.num {
					case 1:
						kv.Name = d.str()
					case 2:
						kv.Value = d.str()
					default:
						d.unknown()
					}
				}
			})
			c.Entries = append(c.Entries, kv)
		case 4:
			d.sub(c.Stat.decode)
		default:
			d.unknown()
		}
	}
}

// Session is a ZooKeeper session.
type Session struct {
	ID          id.SessionID
	Password    []byte // 16 bytes
	TimeoutMs   int32
	AttachEpoch uint64      // raised by every attach; writes carry it
	Broker      id.BrokerID // where its connection is
	Host        string      // the client's address at its newest connection; "": unknown
}

func (s *Session) encode(e *enc) {
	e.i64(1, int64(s.ID))
	e.bytes(2, s.Password)
	e.i64(3, int64(s.TimeoutMs))
	e.u64(4, s.AttachEpoch)
	e.i64(5, int64(s.Broker))
	e.str(6, s.Host)
}

func (s *Session) decode(d *dec) {
	for d.next() {
		switch d.num {
		case 1:
			s.ID = id.SessionID(d.i64())
		case 2:
			s.Password = d.copy()
		case 3:
			s.TimeoutMs = d.i32()
		case 4:
			s.AttachEpoch = d.u64()
		case 5:
			s.Broker = id.BrokerID(d.i32())
		case 6:
			s.Host = d.str()
		default:
			d.unknown()
		}
	}
}

// OffsetOrigin says by which face an offset was last committed.
type OffsetOrigin uint8

// Offsets from a znode or OffsetCommit v0 never expire; those of later versions do.
const (
	FromZnode OffsetOrigin = iota + 1
	FromKafka
)

// Offset is a group's committed offset of one partition.
type Offset struct {
	Partition    int32
	Offset       id.Offset
	LeaderEpoch  id.LeaderEpoch // -1: none
	CommittedMs  int64          // cluster clock
	RetentionMs  int64          // -1: the broker's
	Origin       OffsetOrigin
	Metadata     string
	By           string // who committed last, for people and for the rule of lost partitions
	Since        uint64 // Raft index at which By began to commit this partition
	Czxid, Mzxid id.ZXID
	Ctime, Mtime int64
	Version      int32
}

func (o *Offset) encode(e *enc) {
	e.i64(1, int64(o.Partition))
	e.i64(2, int64(o.Offset))
	e.i64(3, int64(o.LeaderEpoch))
	e.i64(4, o.CommittedMs)
	e.i64(5, o.RetentionMs)
	e.u64(6, uint64(o.Origin))
	e.str(7, o.Metadata)
	e.str(8, o.By)
	e.u64(9, o.Since)
	e.i64(10, int64(o.Czxid))
	e.i64(11, int64(o.Mzxid))
	e.i64(12, o.Ctime)
	e.i64(13, o.Mtime)
	e.i64(14, int64(o.Version))
}

func (o *Offset) decode(d *dec) {
	for d.next() {
		switch d.num {
		case 1:
			o.Partition = d.i32()
		case 2:
			o.Offset = id.Offset(d.i64())
		case 3:
			o.LeaderEpoch = id.LeaderEpoch(d.i32())
		case 4:
			o.CommittedMs = d.i64()
		case 5:
			o.RetentionMs = d.i64()
		case 6:
			o.Origin = OffsetOrigin(d.u64())
		case 7:
			o.Metadata = d.str()
		case 8:
			o.By = d.str()
		case 9:
			o.Since = d.u64()
		case 10:
			o.Czxid = id.ZXID(d.i64())
		case 11:
			o.Mzxid = id.ZXID(d.i64())
		case 12:
			o.Ctime = d.i64()
		case 13:
			o.Mtime = d.i64()
		case 14:
			o.Version = d.i32()
		default:
			d.unknown()
		}
	}
}

const offsetChunk = 16

// offsets is one chunk of a (group, topic): set slots in ascending partition order.
type offsets struct{ rows []*Offset }

func (c *offsets) encode(e *enc) {
	for _, o := range c.rows {
		e.sub(1, o.encode)
	}
}

func (c *offsets) decode(d *dec) {
	for d.next() {
		if d.num != 1 {
			d.unknown()
			return
		}
		o := new(Offset)
		d.sub(o.decode)
		c.rows = append(c.rows, o)
	}
}

// marker is a row that is only a key.
type marker struct{}

func (*marker) encode(*enc) {}
func (*marker) decode(d *dec) {
	for d.next() {
		d.unknown()
	}
}

// meta is the one row of what the whole cluster shares.
type meta struct {
	ClusterID       string
	Level           uint32
	ZXID            id.ZXID
	ClockMs         int64 // cluster time, from the bootstrap
	WallMs          int64 // of the last entry; only shown
	NextProducer    int64
	NextSession     int64
	ControllerEpoch int32
	Controller      id.BrokerID
	ControllerTerm  id.Term
	Note            string // level 2
}

func (m *meta) encode(e *enc) {
	e.str(1, m.ClusterID)
	e.u64(2, uint64(m.Level))
	e.i64(3, int64(m.ZXID))
	e.i64(4, m.ClockMs)
	e.i64(5, m.WallMs)
	e.i64(6, m.NextProducer)
	e.i64(7, m.NextSession)
	e.i64(8, int64(m.ControllerEpoch))
	e.i64(9, int64(m.Controller))
	e.u64(10, uint64(m.ControllerTerm))
	e.str(11, m.Note)
}

func (m *meta) decode(d *dec) {
	for d.next() {
		switch d.num {
		case 1:
			m.ClusterID = d.str()
		case 2:
			m.Level = uint32(d.u64())
		case 3:
			m.ZXID = id.ZXID(d.i64())
		case 4:
			m.ClockMs = d.i64()
		case 5:
			m.WallMs = d.i64()
		case 6:
			m.NextProducer = d.i64()
		case 7:
			m.NextSession = d.i64()
		case 8:
			m.ControllerEpoch = d.i32()
		case 9:
			m.Controller = id.BrokerID(d.i32())
		case 10:
			m.ControllerTerm = id.Term(d.u64())
		case 11:
			m.Note = d.str()
		default:
			d.unknown()
		}
	}
}
