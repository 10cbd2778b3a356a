package state

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/barnabas-mq/barnabas/internal/id"
)

// Legacy is what the coordinator decided about the znode members of a group: the generation that they are shown in place of
// the raw tree, and the partitions that are reserved for members whose session expired (groups.md).
type Legacy struct {
	Group     string
	Number    int32    // of the generation; 0: there never was one
	Index     uint64   // of the entry that published it
	Zxid      id.ZXID  // of that change: a claim with a later Czxid was made in this generation
	Withdrawn bool     // members are shown the raw tree
	Complete  bool     // joins of the next one are let in
	IDs       Stat     // of /consumers/<group>/ids as members see it
	Members   []*Shown // ascending by id
	Topics    []ShownTopic
	AllTopics bool     // All is shown in place of the list of topics
	All       []string // ascending
	AllZxid   id.ZXID  // when All last changed
	Reserved  []*Reservation
	Strategy  int32 // by which the coordinator expected the members to share partitions out; its own numbers
}

// Shown is a registration as members see it.
type Shown struct {
	ID   string
	Pool bool  // made by the coordinator for members that are no znodes
	Node Znode // raw registration and Stat, as they were
}

// ShownTopic is how much of a topic members see. Without an id the topic was not there, and is not shown.
type ShownTopic struct {
	Name       string
	ID         id.TopicID
	Partitions int32
}

// Reservation keeps a partition from everybody but the consumer whose session expired while it had it.
type Reservation struct {
	Topic     string // as in the owner's path: pykafka may write b'topic'
	Name      string // of the owner znode
	Partition int32
	Member    string // consumer id
	Host      string // of its session
	Session   id.SessionID
	TimeoutMs int32   // of its session: a reservation lasts no longer
	SinceMs   int64   // cluster clock
	Claimed   id.ZXID // when its owner had claimed it
}

// Shows returns the registration of an id, nil if it is not shown.
func (g *Legacy) Shows(memberID string) *Shown {
	if g == nil {
		return nil
	}
	i, ok := slices.BinarySearchFunc(g.Members, memberID, func(m *Shown, id string) int { return cmp.Compare(m.ID, id) })
	if !ok {
		return nil
	}
	return g.Members[i]
}

// Topic returns how much of a topic is shown; ok is false when the generation does not speak of it.
func (g *Legacy) Topic(name string) (t ShownTopic, ok bool) {
	if g == nil {
		return ShownTopic{}, false
	}
	i, ok := slices.BinarySearchFunc(g.Topics, name, func(t ShownTopic, name string) int { return cmp.Compare(t.Name, name) })
	if !ok {
		return ShownTopic{}, false
	}
	return g.Topics[i], true
}

// Reservation returns who a partition is reserved for, nil for nobody.
func (g *Legacy) Reservation(topic string, partition int32) *Reservation {
	if g == nil {
		return nil
	}
	for _, r := range g.Reserved {
		if r.Partition == partition && r.Topic == topic {
			return r
		}
	}
	return nil
}

func (g *Legacy) encode(e *enc) {
	e.str(1, g.Group)
	e.i64(2, int64(g.Number))
	e.u64(3, g.Index)
	e.i64(4, int64(g.Zxid))
	e.flag(5, g.Withdrawn)
	e.flag(6, g.Complete)
	e.sub(7, g.IDs.encode)
	for _, m := range g.Members {
		e.sub(8, func(e *enc) { e.str(1, m.ID); e.flag(2, m.Pool); e.sub(3, m.Node.encode) })
	}
	for _, t := range g.Topics {
		e.sub(9, func(e *enc) { e.str(1, t.Name); e.bytes(2, t.ID[:]); e.i64(3, int64(t.Partitions)) })
	}
	e.flag(10, g.AllTopics)
	for _, t := range g.All {
		e.put(11, []byte(t))
	}
	e.i64(12, int64(g.AllZxid))
	for _, r := range g.Reserved {
		e.sub(13, r.encode)
	}
	e.i64(14, int64(g.Strategy))
}

func (g *Legacy) decode(d *dec) {
	for d.next() {
		switch d.num {
		case 1:
			g.Group = d.str()
		case 2:
			g.Number = d.i32()
		case 3:
			g.Index = d.u64()
		case 4:
			g.Zxid = id.ZXID(d.i64())
		case 5:
			g.Withdrawn = d.flag()
		case 6:
			g.Complete = d.flag()
		case 7:
			d.sub(g.IDs.decode)
		case 8:
			m := new(Shown)
			d.sub(m.decode)
			g.Members = append(g.Members, m)
		case 9:
			var t ShownTopic
			d.sub(t.decode)
			g.Topics = append(g.Topics, t)
		case 10:
			g.AllTopics = d.flag()
		case 11:
			g.All = append(g.All, d.str())
		case 12:
			g.AllZxid = id.ZXID(d.i64())
		case 13:
			r := new(Reservation)
			d.sub(r.decode)
			g.Reserved = append(g.Reserved, r)
		case 14:
			g.Strategy = d.i32()
		default:
			d.unknown()
		}
	}
}

func (m *Shown) decode(d *dec) {
	for d.next() {
		switch d.num {
		case 1:
			m.ID = d.str()
		case 2:
			m.Pool = d.flag()
		case 3:
			d.sub(m.Node.decode)
		default:
			d.unknown()
		}
	}
}

func (t *ShownTopic) decode(d *dec) {
	for d.next() {
		switch d.num {
		case 1:
			t.Name = d.str()
		case 2:
			copy(t.ID[:], d.raw())
		case 3:
			t.Partitions = d.i32()
		default:
			d.unknown()
		}
	}
}

func (r *Reservation) encode(e *enc) {
	e.str(1, r.Topic)
	e.str(2, r.Name)
	e.i64(3, int64(r.Partition))
	e.str(4, r.Member)
	e.i64(5, int64(r.Session))
	e.i64(6, int64(r.TimeoutMs))
	e.i64(7, r.SinceMs)
	e.str(8, r.Host)
	e.i64(9, int64(r.Claimed))
}

func (r *Reservation) decode(d *dec) {
	for d.next() {
		switch d.num {
		case 1:
			r.Topic = d.str()
		case 2:
			r.Name = d.str()
		case 3:
			r.Partition = d.i32()
		case 4:
			r.Member = d.str()
		case 5:
			r.Session = id.SessionID(d.i64())
		case 6:
			r.TimeoutMs = d.i32()
		case 7:
			r.SinceMs = d.i64()
		case 8:
			r.Host = d.str()
		case 9:
			r.Claimed = id.ZXID(d.i64())
		default:
			d.unknown()
		}
	}
}

// ClientKey is a client id as the registry of fetches has it, which all brokers report five times a second: a long one is cut, and told from
// others by its digest.
func ClientKey(clientID string) string {
	const most = 128
	if len(clientID) <= most {
		return clientID
	}
	sum := sha256.Sum256([]byte(clientID))
	return strings.ToValidUTF8(clientID[:most-2*8], "") + hex.EncodeToString(sum[:8])
}

// Fence cuts one connection at one broker off from a partition.
type Fence struct {
	Broker    id.BrokerID
	Epoch     id.BrokerEpoch
	Conn      uint64
	Topic     string
	Partition int32
	Group     string
	Member    string // consumer id whose connection it was
}

func fenceKey(b id.BrokerID, conn uint64, topic string, partition int32) string {
	return keyU32(uint32(b)) + keyU64(conn) + keyU32(uint32(partition)) + topic
}

func (f *Fence) encode(e *enc) {
	e.i64(1, int64(f.Broker))
	e.u64(2, uint64(f.Epoch))
	e.u64(3, f.Conn)
	e.str(4, f.Topic)
	e.i64(5, int64(f.Partition))
	e.str(6, f.Group)
	e.str(7, f.Member)
}

func (f *Fence) decode(d *dec) {
	for d.next() {
		switch d.num {
		case 1:
			f.Broker = id.BrokerID(d.i32())
		case 2:
			f.Epoch = id.BrokerEpoch(d.u64())
		case 3:
			f.Conn = d.u64()
		case 4:
			f.Topic = d.str()
		case 5:
			f.Partition = d.i32()
		case 6:
			f.Group = d.str()
		case 7:
			f.Member = d.str()
		default:
			d.unknown()
		}
	}
}

// Registration is what a member's datum means.
type Registration struct {
	Dialect Dialect
	Pattern string // white_list or black_list: Topics has one entry, the expression; "static" otherwise
	Topics  []Subscription
}

// Subscription is a topic and the number of threads that read it.
type Subscription struct {
	Topic   string
	Threads int32
}

// Key is equal for registrations that mean the same: each registering anew writes another timestamp.
func (r *Registration) Key() string {
	var b strings.Builder
	b.WriteString(r.Dialect.String() + " " + r.Pattern)
	for _, t := range r.Topics {
		b.WriteString(" " + strconv.Quote(t.Topic) + ":" + strconv.Itoa(int(t.Threads)))
	}
	return b.String()
}

// ParseRegistration reads a member's datum as the readers of its own kind do; ok is false for what some old reader cannot bear: such a
// datum fails the rebalances of a whole group (zk-paths.md 6.8).
func ParseRegistration(raw []byte) (reg Registration, ok bool) {
	if len(raw) == 0 {
		return reg, false
	}
	if raw[0] != '{' {
		topic := string(raw)
		if ValidTopicName(topic) != "" {
			return reg, false
		}
		return Registration{Dialect: DialectPykafka, Pattern: "static", Topics: []Subscription{{topic, 1}}}, true
	}
	var doc struct {
		Pattern *string          `json:"pattern"`
		Topics  map[string]int32 `json:"subscription"`
	}
	if json.Unmarshal(raw, &doc) != nil {
		// 0.8.1 writes expressions without escapes (`\.`); later readers double the backslashes when they cannot read it.
		if json.Unmarshal(bytes.ReplaceAll(raw, []byte(`\`), []byte(`\\`)), &doc) != nil {
			return reg, false
		}
	}
	if doc.Pattern == nil || doc.Topics == nil {
		return reg, false
	}
	reg = Registration{Dialect: registrationDialect(raw), Pattern: *doc.Pattern}
	if reg.Dialect == DialectUnknown {
		reg.Dialect = DialectJVM
	}
	if reg.Dialect == DialectKafkaNode {
		reg.Pattern = "static" // it says white_list and means the topics themselves
	}
	for t, n := range doc.Topics {
		reg.Topics = append(reg.Topics, Subscription{t, n})
	}
	slices.SortFunc(reg.Topics, func(a, b Subscription) int { return cmp.Compare(a.Topic, b.Topic) })
	return reg, true
}

// OwnersTopic is the topic that a directory below owners means: pykafka on Python 3 writes b'topic'.
func OwnersTopic(dir string) string {
	if t, ok := strings.CutPrefix(dir, "b'"); ok && strings.HasSuffix(t, "'") {
		return t[:len(t)-1]
	}
	return dir
}

// Legacy returns what was decided about a group's znode members.
func (v *View) Legacy(group string) (*Legacy, bool) { return v.legacies.Get(group) }

// MemberOf returns the consumer id that a session is registered with in a group.
func (v *View) MemberOf(s id.SessionID, group string) (memberID string, ok bool) {
	return memberOf(v.ephemerals, int64(s), group)
}

func memberOf(ephemerals *tree[*marker], session int64, group string) (memberID string, ok bool) {
	if ephemerals.Len() == 0 || session == 0 {
		return "", false
	}
	prefix := ephemeralKey(session, "/consumers/"+group+"/ids/")
	walkKeys(ephemerals, prefix, func(k string, _ *marker) bool {
		memberID, ok = k[len(prefix):], true
		return false
	})
	return memberID, ok
}

// GroupsOf calls fn for each group that a session is a member of, ascending, until it returns false.
func (v *View) GroupsOf(s id.SessionID, fn func(group string) bool) {
	if s == 0 {
		return
	}
	const dir = "/consumers/"
	prefix := ephemeralKey(int64(s), dir)
	walkKeys(v.ephemerals, prefix, func(k string, _ *marker) bool {
		g, rest, _ := strings.Cut(k[len(prefix):], "/")
		return !strings.HasPrefix(rest, "ids/") || fn(g)
	})
}

// Generation returns the generation that a session is shown as a member of a group, nil when it sees the raw tree.
func (v *View) Generation(s id.SessionID, group string) *Legacy {
	if v.legacies.Len() == 0 || s == 0 {
		return nil
	}
	g, ok := v.Legacy(group)
	if !ok || g.Number == 0 || g.Withdrawn {
		return nil
	}
	if _, ok := v.MemberOf(s, group); !ok {
		return nil
	}
	return g
}

// Fenced reports whether a connection at a broker is cut off from a partition.
func (v *View) Fenced(b id.BrokerID, e id.BrokerEpoch, conn uint64, topic string, partition int32) bool {
	if v.fences.Len() == 0 {
		return false
	}
	f, ok := v.fences.Get(fenceKey(b, conn, topic, partition))
	return ok && f.Epoch == e
}

// AnyFence reports whether there is a fence at all.
func (v *View) AnyFence() bool { return v.fences.Len() > 0 }

// Fences calls fn for each fence until it returns false.
func (v *View) Fences(fn func(*Fence) bool) { walk(v.fences, "", fn) }

// Gate names one of the ways in which a group's znode members are treated otherwise than by a plain ZooKeeper.
type Gate string

// The gates. Each can be switched off for a group by GatesOff.
const (
	GateBarrier     Gate = "barrier"     // generations: held joins, merged events, one view for all
	GateClaim       Gate = "claim"       // creates of owners wait for the release
	GateOffset      Gate = "offset"      // members' reads of offsets wait for the release
	GateReservation Gate = "reservation" // partitions of an expired session are kept a while
	GateDelete      Gate = "delete"      // owners are deleted by their own sessions and by tools only
	GateGhost       Gate = "ghost"       // sessions of members that gave up are expired
	GateDialect     Gate = "dialect"     // members that cannot agree are refused
	GateCommit      Gate = "commit"      // late commits of members that lost a partition are not applied
	GateFence       Gate = "fence"       // connections of an expired member fetch nothing more from partitions with a new owner
	GatePause       Gate = "pause"       // connections under the group's name fetch nothing from partitions that their owners are to release
	GateLoad        Gate = "load"        // sessions that spin are slowed down
)

// Gates are all of them.
var Gates = []Gate{GateBarrier, GateClaim, GateOffset, GateReservation, GateDelete, GateGhost, GateDialect, GateCommit, GateFence, GatePause, GateLoad}

// GatesOff is the configuration key of a group (entity type groups) with the gates that are off, separated by commas; "all" is all.
const GatesOff = "legacy.gates.off"

// Configuration keys of consumer groups (org.apache.kafka.coordinator.group.GroupConfig), in milliseconds; without one the broker's holds.
const (
	GroupHeartbeat = "consumer.heartbeat.interval.ms"
	GroupSession   = "consumer.session.timeout.ms"
)

// GateOn reports whether a gate is on for a group.
func (v *View) GateOn(group string, g Gate) bool {
	c, ok := v.Config(GroupConfigs, group)
	return !ok || gateOn(c, g)
}

func gateOn(c *Config, g Gate) bool {
	off, ok := c.Get(GatesOff)
	if !ok {
		return true
	}
	for name := range strings.SplitSeq(off, ",") {
		if name = strings.TrimSpace(name); name == string(g) || name == "all" {
			return false
		}
	}
	return true
}

// OwnerOf returns the claim on a partition, whatever it is called, and the directory of its topic.
func (v *View) OwnerOf(group, topic string, partition int32) (dir, name string, z *Znode) {
	number := strconv.Itoa(int(partition))
	for _, dir := range []string{topic, "b'" + topic + "'"} {
		if _, ok := v.Znode("/consumers/" + group + "/owners/" + dir); !ok {
			continue
		}
		if z, ok := v.Owner(group, dir, number); ok {
			return dir, number, z
		}
		found := ""
		v.Brokers(func(b *Broker) bool {
			n := strconv.Itoa(int(b.ID)) + "-" + number
			if o, ok := v.Owner(group, dir, n); ok {
				found, z = n, o
			}
			return z == nil
		})
		if z != nil {
			return dir, found, z
		}
	}
	return "", "", nil
}

// GivesUp reports whether a partition still has the owner that it had before the generation that is being claimed: all members have been
// told to release what they have.
func (v *View) GivesUp(group, topic string, partition int32) bool {
	if v.legacies.Len() == 0 {
		return false
	}
	g, ok := v.Legacy(group)
	if !ok || g.Number == 0 || g.Withdrawn || g.Complete {
		return false
	}
	_, _, z := v.OwnerOf(group, topic, partition)
	return z != nil && z.gives() && z.Stat.EphemeralOwner != 0 && z.Stat.Czxid <= g.Zxid
}

// gives reports whether the owner releases all that it has before it claims again. pykafka and wvanbergen do not: they read offsets
// after they have claimed, and pykafka keeps what stays its own.
func (z *Znode) gives() bool { return z.Dialect == DialectJVM || z.Dialect == DialectKafkaNode }

// OffsetAwaited reports whether a member's read of an offset is to wait: another session owns the partition since before the
// present generation and is about to give it up, or it is reserved for another consumer whose session expired.
func (v *View) OffsetAwaited(s id.SessionID, group, topic string, partition int32) bool {
	if v.Generation(s, group) == nil {
		return false
	}
	_, waits := v.OffsetWaits(s, group, topic, partition)
	return waits
}

// OffsetWaits tells for whose session the read of an offset waits, 0 for one that expired. s is the reader's session, 0 when its member
// is not known: then nothing is awaited once the generation is complete.
func (v *View) OffsetWaits(s id.SessionID, group, topic string, partition int32) (by id.SessionID, waits bool) {
	g, ok := v.Legacy(group)
	if !ok || g.Number == 0 || g.Withdrawn || s == 0 && g.Complete || !v.GateOn(group, GateOffset) {
		return 0, false
	}
	dir, _, z := v.OwnerOf(group, topic, partition)
	if z != nil {
		by = id.SessionID(z.Stat.EphemeralOwner)
		return by, z.gives() && by != 0 && by != s && z.Stat.Czxid <= g.Zxid
	}
	if dir == "" {
		dir = topic
	}
	r := g.Reservation(dir, partition)
	if r == nil {
		return 0, false
	}
	member, _ := v.MemberOf(s, group)
	return 0, r.Member != member
}
