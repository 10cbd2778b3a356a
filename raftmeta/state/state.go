// Package state is the metadata of a cluster as a fold over the Raft log.
//
// State = fold(Apply, log): Apply reads no clock, no random source and no map order, so equal indexes mean equal states
// on every node, replayed or restored. One goroutine owns a State (raftmeta's FSM); everybody else reads the View that
// Apply returns, which never changes. Domain refusals are Results; an entry that this build does not understand, or that
// breaks an invariant, panics: a node must stop rather than guess.
package state

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

const (
	// MinLevel and MaxLevel (level.go) are the feature levels that this build can serve.
	MinLevel = 1
	// CommandVersion is the version of every body's encoding.
	CommandVersion = 1
	// MaxLaneResults bounds the kept results of a lane: a proposer has at most as many commands in flight.
	MaxLaneResults = 8192
	// maxClockStepMs bounds how far one entry moves the cluster clock: leaders add time at least every 10 s.
	maxClockStepMs = 60_000
	// brokerOwner is the reserved range of ephemeral owners of broker znodes; session ids never reach it.
	brokerOwner  = int64(0x7b) << 56
	firstSession = int64(1) << 56
)

// Newer is what Apply panics with when an entry was written by a newer build than this one: the node must stop, without
// having applied it, and be started with that build. Any other panic is a fault of ours.
type Newer struct{ Why string }

func (n *Newer) Error() string { return n.Why + ": run a newer build of barnabas on this node" }

func newer(format string, args ...any) *Newer { return &Newer{Why: fmt.Sprintf(format, args...)} }

// ErrTooLarge refuses a command that fits into no entry of the log.
var ErrTooLarge = errors.New("the command is larger than an entry of the metadata log may be")

// Change says that one thing in the state is different after a command; in order of the commands.
type Change struct {
	Kind      ChangeKind
	ZXID      id.ZXID
	Path      string // of Znode kinds, and of GenerationShown
	Type      string // of Config kinds
	Name      string // of Config kinds
	Group     string // of Offset and Group kinds
	Topic     string // of Topic, Partition and Offset kinds
	TopicID   id.TopicID
	Partition int32
	Broker    id.BrokerID
	Session   id.SessionID // of Session kinds; of ZnodeDeleted: whose ephemeral it was
}

// ChangeKind tells which fields of a Change are set.
type ChangeKind uint8

// Kinds of Change.
const (
	ZnodeCreated ChangeKind = iota + 1
	ZnodeDeleted
	ZnodeData
	TopicCreated
	TopicDeleted
	TopicGrown       // more partitions
	PartitionChanged // leader, ISR or epoch
	ConfigCreated
	ConfigDeleted
	ConfigData
	BrokerRegistered
	BrokerFenced
	BrokerShown  // its znode appeared
	BrokerHidden // its znode went
	SessionCreated
	SessionAttached
	SessionEnded
	OffsetCreated
	OffsetChanged
	OffsetDeleted
	ControllerChanged
	GroupChanged    // classic members, generation or assignment; also the group's end
	GenerationShown // members of Group see something else at Path
)

// Settled is what one command of an entry came to.
type Settled struct {
	Lane, Seq uint64 // 0: not in a lane
	Result    *statepb.Result
}

// Applied is the outcome of one entry.
type Applied struct {
	View    *View
	Changes []Change
	Settled []Settled // aligned with the entry's commands
}

type lane struct {
	broker  id.BrokerID
	last    uint64            // highest applied seq
	seen    uint64            // results up to here are dropped
	results []*statepb.Result // of seen+1..last
}

// State is the fold. Not safe for concurrent use.
type State struct {
	index id.Index
	term  id.Term
	meta  meta
	lanes map[uint64]*lane

	brokers    *table[Broker, *Broker]
	topics     *table[Topic, *Topic]
	names      *table[Topic, *Topic]
	partitions *table[partitions, *partitions]
	configs    *table[Config, *Config]
	sessions   *table[Session, *Session]
	znodes     *table[Znode, *Znode]
	ephemerals *table[marker, *marker]
	groups     *table[Group, *Group]
	offsets    *table[offsets, *offsets]
	legacies   *table[Legacy, *Legacy]
	fences     *table[Fence, *Fence]

	sum     *uint64
	wallMs  int64
	changes []Change
	view    *View
}

// New returns the empty state, before the first entry.
func New() *State {
	s := &State{
		meta: meta{Controller: id.NoBroker}, lanes: map[uint64]*lane{},
		brokers:    newTable[Broker](tBrokers),
		topics:     newTable[Topic](tTopics),
		names:      newTable[Topic](tTopicNames),
		partitions: newTable[partitions](tPartitions),
		configs:    newTable[Config](tConfigs),
		sessions:   newTable[Session](tSessions),
		znodes:     newTable[Znode](tZnodes),
		ephemerals: newTable[marker](tEphemerals),
		groups:     newTable[Group](tGroups),
		offsets:    newTable[offsets](tOffsets),
		legacies:   newTable[Legacy](tLegacies),
		fences:     newTable[Fence](tFences),
	}
	s.view = s.freeze()
	return s
}

// TrackHash starts the incremental state hash. Call it on a new State only; it costs a hash per changed row.
func (s *State) TrackHash() {
	s.sum = new(uint64)
	for _, p := range []**uint64{&s.brokers.sum, &s.topics.sum, &s.names.sum, &s.partitions.sum, &s.configs.sum,
		&s.sessions.sum, &s.znodes.sum, &s.ephemerals.sum, &s.groups.sum, &s.offsets.sum, &s.legacies.sum, &s.fences.sum} {
		*p = s.sum
	}
}

// Hash is the state hash: equal on every node at an equal index. Needs TrackHash.
func (s *State) Hash() uint64 {
	if s.sum == nil {
		panic("state: Hash without TrackHash")
	}
	h := *s.sum + rowHash(tMeta, "", s.meta.encode)
	for n, l := range s.lanes {
		h += rowHash(tLanes, keyU64(n), l.encode)
	}
	return h
}

// View returns the state after the last entry.
func (s *State) View() *View { return s.view }

// LaneResult returns the kept result of a lane's command; used by a proposer after a restore has skipped entries.
// settled is false while the command has not been applied; a nil result with settled means that it was already seen,
// and ended that the lane is gone.
func (s *State) LaneResult(laneID, seq uint64) (r *statepb.Result, settled, ended bool) {
	l, ok := s.lanes[laneID]
	switch {
	case !ok:
		return nil, false, true
	case seq > l.last:
		return nil, false, false
	case seq <= l.seen:
		return nil, true, false
	}
	return l.results[seq-l.seen-1], true, false
}

// LaneLast returns the last applied number of a lane, and whether the lane exists.
func (s *State) LaneLast(laneID uint64) (last uint64, ok bool) {
	l, ok := s.lanes[laneID]
	if !ok {
		return 0, false
	}
	return l.last, true
}

// Apply folds one Raft entry in. data is a statepb.Entry; index must be above every earlier one. It panics on an entry
// that it cannot decode or does not know: never guess.
func (s *State) Apply(index id.Index, term id.Term, data []byte) Applied {
	if index <= s.index {
		panic(fmt.Sprintf("state: entry %d after %d", index, s.index))
	}
	var entry statepb.Entry
	if err := unmarshalEntry(data, &entry); err != nil {
		panic(fmt.Sprintf("state: entry %d (term %d) is not an Entry: %v", index, term, err))
	}
	s.index, s.term, s.changes = index, term, make([]Change, 0, len(entry.Commands)) // most make one
	s.meta.ClockMs += int64(min(entry.ClockStepMs, maxClockStepMs))
	s.wallMs, s.meta.WallMs = entry.WallMs, entry.WallMs
	settled := make([]Settled, len(entry.Commands))
	for i, c := range entry.Commands {
		settled[i] = Settled{Lane: c.Lane, Seq: c.Seq, Result: s.command(c)}
	}
	s.view = s.freeze()
	return Applied{View: s.view, Changes: s.changes, Settled: settled}
}

func (s *State) freeze() *View {
	return &View{
		index: s.index, term: s.term, meta: s.meta,
		brokers: s.brokers.freeze(), topics: s.topics.freeze(), names: s.names.freeze(), partitions: s.partitions.freeze(),
		configs: s.configs.freeze(), sessions: s.sessions.freeze(), znodes: s.znodes.freeze(),
		ephemerals: s.ephemerals.freeze(), groups: s.groups.freeze(), offsets: s.offsets.freeze(),
		legacies: s.legacies.freeze(), fences: s.fences.freeze(),
	}
}

// command runs one command by the rules of its envelope: version, lane, term, level, origin, in that order.
func (s *State) command(c *statepb.Command) *statepb.Result {
	if c.Version != CommandVersion {
		panic(newer("entry %d has a command of version %d, this build knows %d", s.index, c.Version, CommandVersion))
	}
	if c.Lane == 0 {
		return s.settle(c)
	}
	l, ok := s.lanes[c.Lane]
	if !ok {
		return s.refuse(statepb.Code_LANE_ENDED, "the incarnation with epoch %d was fenced", c.Lane)
	}
	l.forget(c.Seen)
	switch {
	case c.Seq <= l.seen:
		return s.refuse(statepb.Code_LANE_GAP, "the result of number %d was already seen", c.Seq)
	case c.Seq <= l.last:
		return l.results[c.Seq-l.seen-1]
	case c.Seq > l.last+1:
		return s.refuse(statepb.Code_LANE_GAP, "number %d after %d", c.Seq, l.last)
	case len(l.results) >= MaxLaneResults:
		return s.refuse(statepb.Code_LANE_GAP, "%d results unseen", len(l.results))
	}
	r := s.settle(c)
	l.last++
	l.results = append(l.results, r)
	return r
}

func (s *State) settle(c *statepb.Command) *statepb.Result {
	if c.Term != 0 && id.Term(c.Term) != s.term {
		return s.refuse(statepb.Code_STALE_TERM, "decided in term %d, the entry is of term %d", c.Term, s.term)
	}
	if c.Level > s.meta.Level && s.meta.ClusterID != "" {
		return s.refuse(statepb.Code_LEVEL, "needs feature level %d, the cluster is at %d", c.Level, s.meta.Level)
	}
	if o := c.Origin; o != nil && o.Session != 0 {
		ses, ok := s.sessions.get(keyU64(uint64(o.Session)))
		if !ok {
			return s.refuse(statepb.Code_SESSION_EXPIRED, "session %#x does not exist", o.Session)
		}
		if ses.AttachEpoch != o.AttachEpoch {
			return s.refuse(statepb.Code_SESSION_MOVED, "session %#x was attached again", o.Session)
		}
	}
	r := s.body(c)
	r.Index = uint64(s.index)
	return r
}

// body dispatches. A kind that is not here was written by a newer build at a level that this one lacks: crash.
func (s *State) body(c *statepb.Command) *statepb.Result {
	if b, ok := c.Body.(*statepb.Command_Bootstrap); ok {
		return s.bootstrap(b.Bootstrap)
	}
	if s.meta.ClusterID == "" {
		return s.refuse(statepb.Code_NOT_BOOTSTRAPPED, "the cluster has no id yet: run `barnabas cluster init` on its first node")
	}
	origin := c.GetOrigin().GetSession()
	switch b := c.Body.(type) {
	case *statepb.Command_Tick:
		return &statepb.Result{Zxid: int64(s.meta.ZXID)}
	case *statepb.Command_RaiseLevel:
		return s.raiseLevel(b.RaiseLevel)
	case *statepb.Command_RaiseZxid:
		s.meta.ZXID = max(s.meta.ZXID, id.ZXID(b.RaiseZxid.Zxid))
		return &statepb.Result{Zxid: int64(s.meta.ZXID)}
	case *statepb.Command_TermStarted:
		return s.termStarted(b.TermStarted)
	case *statepb.Command_RegisterBroker:
		return s.registerBroker(b.RegisterBroker)
	case *statepb.Command_FenceBroker:
		return s.fenceBroker(b.FenceBroker)
	case *statepb.Command_SetBrokerVisible:
		return s.setBrokerVisible(b.SetBrokerVisible)
	case *statepb.Command_CreateTopic:
		return s.createTopic(b.CreateTopic)
	case *statepb.Command_DeleteTopic:
		return s.deleteTopic(b.DeleteTopic)
	case *statepb.Command_CreatePartitions:
		return s.createPartitions(b.CreatePartitions)
	case *statepb.Command_AlterPartition:
		return s.alterPartition(b.AlterPartition)
	case *statepb.Command_ElectLeaders:
		return s.electLeaders(b.ElectLeaders)
	case *statepb.Command_SetConfig:
		return s.setConfig(b.SetConfig)
	case *statepb.Command_AllocateProducerIds:
		return s.allocateProducerIDs(b.AllocateProducerIds)
	case *statepb.Command_CreateSession:
		return s.createSession(b.CreateSession)
	case *statepb.Command_AttachSession:
		return s.attachSession(b.AttachSession)
	case *statepb.Command_CloseSession:
		return s.closeSession(b.CloseSession, false)
	case *statepb.Command_ExpireSessions:
		return s.expireSessions(b.ExpireSessions)
	case *statepb.Command_CreateZnode:
		return s.createZnode(origin, b.CreateZnode)
	case *statepb.Command_DeleteZnode:
		return s.deleteZnode(origin, b.DeleteZnode)
	case *statepb.Command_SetZnode:
		return s.setZnode(origin, b.SetZnode)
	case *statepb.Command_SetAcl:
		return s.setACL(b.SetAcl)
	case *statepb.Command_ClaimOwner:
		return s.claimOwner(origin, b.ClaimOwner)
	case *statepb.Command_CommitOffsets:
		return s.commitOffsets(b.CommitOffsets)
	case *statepb.Command_DeleteOffsets:
		return s.deleteOffsets(b.DeleteOffsets)
	case *statepb.Command_ExpireOffsets:
		return s.expireOffsets(b.ExpireOffsets)
	case *statepb.Command_PutGroup:
		return s.putGroup(b.PutGroup)
	case *statepb.Command_DeleteGroup:
		return s.deleteGroup(b.DeleteGroup)
	case *statepb.Command_PublishGeneration:
		return s.publishGeneration(b.PublishGeneration)
	case *statepb.Command_CompleteGeneration:
		return s.completeGeneration(b.CompleteGeneration)
	case *statepb.Command_ReleaseOwners:
		return s.releaseOwners(b.ReleaseOwners)
	case *statepb.Command_ExplainRefusal:
		return s.explainRefusal(b.ExplainRefusal)
	case *statepb.Command_FenceFetches:
		return s.fenceFetches(b.FenceFetches)
	case *statepb.Command_AwaitOffsets:
		return s.refuse(statepb.Code_INVALID, "a question to the coordinator is no command")
	}
	if r := s.levelTwo(c); r != nil {
		return r
	}
	panic(newer("entry %d (term %d) has a command that this build does not know (it serves feature levels %d to %d)", s.index, s.term, MinLevel, MaxLevel))
}

// zxid starts one change that ZooKeeper clients can see.
func (s *State) zxid() id.ZXID {
	s.meta.ZXID = max(s.meta.ZXID+1, id.ZXID(s.term)<<32)
	return s.meta.ZXID
}

func (s *State) changed(c Change) { s.changes = append(s.changes, c) }

func (s *State) refuse(code statepb.Code, format string, args ...any) *statepb.Result {
	return &statepb.Result{Code: code, Index: uint64(s.index), Text: fmt.Sprintf(format, args...)}
}

// forget drops results that the proposer knows.
func (l *lane) forget(seen uint64) {
	if seen > l.last {
		seen = l.last
	}
	if seen <= l.seen {
		return
	}
	n := seen - l.seen
	clear(l.results[:n]) // what is forgotten is not kept alive by the array; append moves the rest when it grows
	l.results = l.results[n:]
	l.seen = seen
}

func (l *lane) encode(e *enc) {
	e.i64(1, int64(l.broker))
	e.u64(2, l.last)
	e.u64(3, l.seen)
	for _, r := range l.results {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(r)
		if err != nil {
			panic(fmt.Sprintf("state: a result does not encode: %v", err))
		}
		e.put(4, b)
	}
}

func (l *lane) decode(d *dec) {
	for d.next() {
		switch d.num {
		case 1:
			l.broker = id.BrokerID(d.i32())
		case 2:
			l.last = d.u64()
		case 3:
			l.seen = d.u64()
		case 4:
			r := new(statepb.Result)
			if err := proto.Unmarshal(d.raw(), r); err != nil {
				d.err = err
			}
			l.results = append(l.results, r)
		default:
			d.unknown()
		}
	}
	if d.err == nil && uint64(len(l.results)) != l.last-l.seen {
		d.err = errRow
	}
}
