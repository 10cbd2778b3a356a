package state

// Group is a group's head: its classic part (members that came by JoinGroup, their generation and assignment) and the
// version of all of it. Znode members and owners are the Znodes below /consumers/<name>; offsets are rows of their own.
type Group struct {
	Name    string
	Version uint64 // Raft index of the last change of members or owners of any kind: what a mind decides on

	Generation   int32 // of the classic part; 0: there never was one
	State        GroupState
	ProtocolType string // "consumer", "connect", ...: of the last members
	Protocol     string // that all members chose; "" without members
	Leader       string // id of the member that assigns
	Members      []*Member
	Rebalances   []*Rebalance // the last ones, oldest first

	// Consumer: the coordinator assigns (KIP-848). Generation is then the group's epoch, Protocol the assignor, State GroupEmpty or
	// GroupStable, and each member has its Consumer part, also those that came by JoinGroup.
	Consumer bool
	// Subscribed is a digest of the topics that the members of a consumer group read, as they were when it was assigned.
	Subscribed uint64

	// EmptySinceMs is the cluster clock when the last member of any kind left, at least 1; 0 while there are members.
	EmptySinceMs int64
}

// Classic reports whether the group has, or had, members that came by JoinGroup or ConsumerGroupHeartbeat.
func (g *Group) Classic() bool { return g.Generation > 0 }

// Member returns a classic member by its id, nil if there is none.
func (g *Group) Member(memberID string) *Member {
	if g == nil {
		return nil
	}
	for _, m := range g.Members {
		if m.ID == memberID {
			return m
		}
	}
	return nil
}

// Instance returns the static member that has a group.instance.id, nil if there is none.
func (g *Group) Instance(instance string) *Member {
	if g == nil || instance == "" {
		return nil
	}
	for _, m := range g.Members {
		if m.Instance == instance {
			return m
		}
	}
	return nil
}

// GroupState is how far a generation is.
type GroupState uint8

// A rebalance that has begun is memory of the coordinator, and the generation stays in force, unless members have been taken out:
// then GroupPreparing makes sure that the next coordinator goes on with it.
const (
	GroupEmpty GroupState = iota
	GroupCompleting
	GroupStable
	GroupPreparing
)

// Member is a member of a group that is no znode.
type Member struct {
	ID          string
	Instance    string // group.instance.id; "": dynamic
	Client      string // client id
	Host        string
	SessionMs   int32
	RebalanceMs int32
	Protocols   []GroupProtocol // preferred first
	Assignment  []byte          // opaque; nil while the group is completing
	Consumer    *ConsumerMember // in a consumer group
}

// GroupProtocol is one way of assigning that a member knows, with what it tells the leader about itself.
type GroupProtocol struct {
	Name     string
	Metadata []byte // opaque
}

// Rebalance explains how a generation came about.
type Rebalance struct {
	WallMs        int64 // only shown
	Generation    int32
	Cause         string // one of few words
	Text          string // with member, client and address
	Before, After int32  // members
	Joined, Left  []string
	WaitedMs      int64
	WaitedFor     string
	Kind          string   // KindLegacy; "": classic or consumer members
	Holds         []string // requests that were held for it
}

// MaxRebalances bounds how many Rebalances a group keeps.
const MaxRebalances = 100

func (g *Group) encode(e *enc) {
	e.str(1, g.Name)
	e.u64(2, g.Version)
	e.i64(3, int64(g.Generation))
	e.u64(4, uint64(g.State))
	e.str(5, g.ProtocolType)
	e.str(6, g.Protocol)
	e.str(7, g.Leader)
	for _, m := range g.Members {
		e.sub(8, m.encode)
	}
	for _, r := range g.Rebalances {
		e.sub(9, r.encode)
	}
	e.flag(10, g.Consumer)
	e.u64(11, g.Subscribed)
	e.i64(20, g.EmptySinceMs)
}

func (g *Group) decode(d *dec) {
	for d.next() {
		switch d.num {
		case 1:
			g.Name = d.str()
		case 2:
			g.Version = d.u64()
		case 3:
			g.Generation = d.i32()
		case 4:
			g.State = GroupState(d.u64())
		case 5:
			g.ProtocolType = d.str()
		case 6:
			g.Protocol = d.str()
		case 7:
			g.Leader = d.str()
		case 8:
			m := new(Member)
			d.sub(m.decode)
			g.Members = append(g.Members, m)
		case 9:
			r := new(Rebalance)
			d.sub(r.decode)
			g.Rebalances = append(g.Rebalances, r)
		case 10:
			g.Consumer = d.flag()
		case 11:
			g.Subscribed = d.u64()
		case 20:
			g.EmptySinceMs = d.i64()
		default:
			d.unknown()
		}
	}
}

func (m *Member) encode(e *enc) {
	e.str(1, m.ID)
	e.str(2, m.Instance)
	e.str(3, m.Client)
	e.str(4, m.Host)
	e.i64(5, int64(m.SessionMs))
	e.i64(6, int64(m.RebalanceMs))
	for _, p := range m.Protocols {
		e.sub(7, func(e *enc) { e.str(1, p.Name); e.bytes(2, p.Metadata) })
	}
	e.bytes(8, m.Assignment)
	if m.Consumer != nil {
		e.sub(9, m.Consumer.encode)
	}
}

func (m *Member) decode(d *dec) {
	for d.next() {
		switch d.num {
		case 1:
			m.ID = d.str()
		case 2:
			m.Instance = d.str()
		case 3:
			m.Client = d.str()
		case 4:
			m.Host = d.str()
		case 5:
			m.SessionMs = d.i32()
		case 6:
			m.RebalanceMs = d.i32()
		case 7:
			var p GroupProtocol
			d.sub(func(d *dec) {
				for d.next() {
					switch d.num {
					case 1:
						p.Name = d.str()
					case 2:
						p.Metadata = d.copy()
					default:
						d.unknown()
					}
				}
			})
			m.Protocols = append(m.Protocols, p)
		case 8:
			m.Assignment = d.copy()
		case 9:
			m.Consumer = new(ConsumerMember)
			d.sub(m.Consumer.decode)
		default:
			d.unknown()
		}
	}
}

func (r *Rebalance) encode(e *enc) {
	e.i64(1, r.WallMs)
	e.i64(2, int64(r.Generation))
	e.str(3, r.Cause)
	e.str(4, r.Text)
	e.i64(5, int64(r.Before))
	e.i64(6, int64(r.After))
	for _, m := range r.Joined {
		e.put(7, []byte(m))
	}
	for _, m := range r.Left {
		e.put(8, []byte(m))
	}
	e.i64(9, r.WaitedMs)
	e.str(10, r.WaitedFor)
	e.str(11, r.Kind)
	for _, h := range r.Holds {
		e.put(12, []byte(h))
	}
}

func (r *Rebalance) decode(d *dec) {
	for d.next() {
		switch d.num {
		case 1:
			r.WallMs = d.i64()
		case 2:
			r.Generation = d.i32()
		case 3:
			r.Cause = d.str()
		case 4:
			r.Text = d.str()
		case 5:
			r.Before = d.i32()
		case 6:
			r.After = d.i32()
		case 7:
			r.Joined = append(r.Joined, d.str())
		case 8:
			r.Left = append(r.Left, d.str())
		case 9:
			r.WaitedMs = d.i64()
		case 10:
			r.WaitedFor = d.str()
		case 11:
			r.Kind = d.str()
		case 12:
			r.Holds = append(r.Holds, d.str())
		default:
			d.unknown()
		}
	}
}
