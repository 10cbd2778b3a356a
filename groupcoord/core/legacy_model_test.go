package core

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
	"github.com/barnabas-mq/barnabas/zkcompat/ztree"
)

// park is a group of znode consumers that do as the real ones (zk-paths.md 2 and 3), at one mind over a real state. Members see
// what ztree shows them, and are told of changes by watches as zkcompat fires them.
type park struct {
	*stage
	members  []*zkMember
	fetching []Fetcher
	events   int // sent to members
	failures int // attempts that failed
	check    func()
	gone     []RequestID
}

type act int

const (
	actIdle    act = iota // not registered
	actJoining            // the create of its id is not answered
	actSteady
	actRebalance // to begin an attempt
	actReading   // an offset
	actClaiming
	actBackoff
	actGivenUp // after four attempts
	actGone
)

type zkMember struct {
	p       *park
	name    string // consumer id
	dialect state.Dialect
	topics  string // t:1,u:2; a pattern begins with ~
	session int64
	expired bool // the session, and the client does not know yet
	act     act
	paused  bool
	watch   map[string]bool // armed, by path
	pending bool            // an event is on its way
	want    []id.TopicPartition
	owned   []id.TopicPartition // as the client believes
	threads map[id.TopicPartition]string
	deals   strategy // JVM: partition.assignment.strategy
	tries   int
	until   time.Duration
	asked   RequestID // newest; a new coordinator is asked under another number
	waits   bool
	seenGen int32
	refused int
}

func newPark(t testing.TB) *park {
	p := &park{}
	p.stage = newStage(t, Config{InitialDelay: -1})
	p.apply(&pb.Command{Body: &pb.Command_RegisterBroker{RegisterBroker: &pb.RegisterBroker{DirectoryId: "d", Nonce: "n", WantedId: 1, MinLevel: 1, MaxLevel: 1}}})
	p.onReply = func(name string, r Request, _ kmsg.Response, res *pb.Result) { p.replied(name, r, res) }
	p.onApply = p.applied
	return p
}

func (p *park) topic(name string, partitions int) {
	var as []*pb.Assignment
	for range partitions {
		as = append(as, &pb.Assignment{Replicas: []int32{1}})
	}
	if t, ok := p.s.View().Topic(name); ok {
		p.apply(&pb.Command{Body: &pb.Command_CreatePartitions{CreatePartitions: &pb.CreatePartitions{Name: name, From: t.Partitions, Assignments: as[t.Partitions:]}}})
		return
	}
	h := fnv.New128()
	h.Write([]byte(name + strconv.Itoa(int(p.index))))
	p.apply(&pb.Command{Body: &pb.Command_CreateTopic{CreateTopic: &pb.CreateTopic{Name: name, TopicId: h.Sum(nil), Assignments: as}}})
}

func (p *park) must(c *pb.Command) *pb.Result {
	r := p.apply(c)
	if r.Code != pb.Code_OK {
		p.t.Fatalf("%v: %v", c, r)
	}
	return r
}

func (p *park) openSession(ms int32) int64 {
	return p.must(&pb.Command{Body: &pb.Command_CreateSession{CreateSession: &pb.CreateSession{TimeoutMs: ms, Password: make([]byte, 16), Host: "10.0.0.1"}}}).Value
}

func (p *park) add(name string, d state.Dialect, topics string) *zkMember {
	m := &zkMember{p: p, name: name, dialect: d, topics: topics, watch: map[string]bool{}, threads: map[id.TopicPartition]string{}}
	p.members = append(p.members, m)
	return m
}

func (p *park) member(name string) *zkMember {
	for _, m := range p.members {
		if m.name == name {
			return m
		}
	}
	return nil
}

func (m *zkMember) view() ztree.View { return ztree.New(m.p.s.View()) }

func (m *zkMember) observer() ztree.Observer {
	return ztree.Observer{Session: id.SessionID(m.session)}
}

func (m *zkMember) origin() *pb.Origin {
	s, _ := m.p.s.View().Session(id.SessionID(m.session))
	if s == nil {
		return &pb.Origin{Session: m.session, AttachEpoch: 1}
	}
	return &pb.Origin{Session: m.session, AttachEpoch: s.AttachEpoch}
}

func (m *zkMember) registration() string {
	ms := m.p.now.Milliseconds()
	switch m.dialect {
	case state.DialectPykafka:
		return strings.Split(m.topics, ":")[0]
	case state.DialectKafkaNode:
		return fmt.Sprintf(`{"version":1,"subscription":{"%s": 1},"pattern":"white_list","timestamp":"%d"}`, strings.Split(m.topics, ":")[0], ms)
	}
	if re, ok := strings.CutPrefix(m.topics, "~"); ok {
		return fmt.Sprintf(`{"version":1,"subscription":{"%s":1},"pattern":"white_list","timestamp":"%d"}`, re, ms)
	}
	var subs []string
	for s := range strings.SplitSeq(m.topics, ",") {
		topic, n, _ := strings.Cut(s, ":")
		subs = append(subs, fmt.Sprintf(`"%s":%s`, topic, n))
	}
	return fmt.Sprintf(`{"version":1,"subscription":{%s},"pattern":"static","timestamp":"%d"}`, strings.Join(subs, ","), ms)
}

// start registers the member in a new session.
func (m *zkMember) start() {
	p := m.p
	m.session, m.expired, m.owned, m.tries = p.openSession(6000), false, nil, 0
	m.act, m.pending, m.watch = actJoining, false, map[string]bool{}
	for _, dir := range []string{"/consumers/g", "/consumers/g/ids", "/consumers/g/owners", "/consumers/g/offsets"} {
		p.apply(&pb.Command{Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: dir, Null: true}}})
	}
	path := "/consumers/g/ids/" + m.name
	if m.dialect == state.DialectKafkaNode {
		if r := p.apply(&pb.Command{Origin: m.origin(), Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: path, Null: true, Ephemeral: true}}}); r.Code != pb.Code_OK {
			p.t.Fatal(r)
		}
		m.ask(&pb.Command{Body: &pb.Command_SetZnode{SetZnode: &pb.SetZnode{Path: path, Data: []byte(m.registration()), Version: -1}}})
		return
	}
	m.ask(&pb.Command{Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: path, Data: []byte(m.registration()), Ephemeral: true}}})
}

func (m *zkMember) ask(c *pb.Command) {
	c.Origin = m.origin()
	m.asked, m.waits = m.p.next+1, true
	m.p.ask(m.name, Request{Command: c})
}

// quit ends the session: cleanly, or because nobody heard of it.
func (m *zkMember) quit(expired bool) {
	p := m.p
	c := &pb.CloseSession{Session: m.session, AttachEpoch: m.origin().AttachEpoch}
	if expired {
		m.expired = true
		p.disconnect(m)
		p.apply(&pb.Command{Body: &pb.Command_ExpireSessions{ExpireSessions: &pb.ExpireSessions{Sessions: []*pb.CloseSession{c}}}})
		return
	}
	m.act, m.owned = actGone, nil
	p.disconnect(m)
	p.apply(&pb.Command{Body: &pb.Command_CloseSession{CloseSession: c}})
}

// disconnect cancels what a member waits for.
func (p *park) disconnect(m *zkMember) {
	for _, r := range sortedRequests(p.open) {
		if p.names[r] == m.name {
			delete(p.open, r)
			p.gone = append(p.gone, r)
		}
	}
}

func sortedRequests(m map[RequestID]Request) []RequestID {
	ids := make([]RequestID, 0, len(m))
	for r := range m {
		ids = append(ids, r)
	}
	slices.Sort(ids)
	return ids
}

// cancelGone tells the mind of connections that have ended.
func (p *park) cancelGone() {
	for len(p.gone) > 0 {
		r := p.gone[0]
		p.gone = p.gone[1:]
		p.act(p.mind.Cancel(p.s.View(), r, p.now-p.start))
	}
}

// applied fires watches as zkcompat does: raw changes for what is not gated, Shown for what is.
func (p *park) applied(v *state.View, changes []state.Change) {
	events, _ := ztree.Events(v, changes, nil, nil)
	for _, m := range p.members {
		if m.act == actIdle || m.act == actGone || m.expired {
			continue
		}
		if _, alive := v.Session(id.SessionID(m.session)); !alive { // the server closes the connection
			m.expired = true
			p.disconnect(m)
			continue
		}
		for _, e := range events {
			for _, path := range []string{e.Path, ztree.Parent(e.Path)} {
				if !m.watch[path] {
					continue
				}
				_, gated := ztree.New(v).Gated(path, m.observer())
				if gated == (e.Type == ztree.Shown) {
					delete(m.watch, path)
					m.pending = true
					p.events++
				}
			}
		}
	}
	if p.check != nil {
		p.check()
	}
}

func (p *park) replied(name string, r Request, res *pb.Result) {
	m := p.member(name)
	if m == nil || !m.waits || r.ID < m.asked {
		return // an answer to a former life
	}
	m.waits = false
	switch m.act {
	case actJoining:
		if res.Code != pb.Code_OK {
			m.refused++
			m.act = actIdle
			return
		}
		m.act = actRebalance
	case actReading:
		m.claimNext()
	case actClaiming:
		if res.Code == pb.Code_OK {
			m.owned = append(m.owned, m.want[0])
			m.want = m.want[1:]
			m.readNext()
			return
		}
		m.refused++
		m.fail()
	}
}

// arm is what a member watches: the ids, its topics, and with a pattern the list of topics.
func (m *zkMember) arm() {
	m.watch = map[string]bool{"/consumers/g/ids": true}
	for _, t := range m.shownTopics() {
		m.watch["/brokers/topics/"+t] = true
	}
	if strings.HasPrefix(m.topics, "~") {
		m.watch["/brokers/topics"] = true
	}
}

func (m *zkMember) shownTopics() []string {
	if re, ok := strings.CutPrefix(m.topics, "~"); ok {
		all, _, _ := m.view().Children("/brokers/topics", m.observer(), nil)
		slices.Sort(all)
		return slices.DeleteFunc(all, func(t string) bool { return !compilePattern(re).matches(t) })
	}
	var out []string
	for s := range strings.SplitSeq(m.topics, ",") {
		out = append(out, strings.Split(s, ":")[0])
	}
	return out
}

// step does the next thing that a running client does by itself; false: nothing.
func (m *zkMember) step() bool {
	if m.paused || m.act == actGone {
		return false
	}
	m.p.cancelGone()
	if m.expired { // it learns of it when it connects again
		m.start()
		return true
	}
	switch {
	case m.act == actSteady && m.pending, m.act == actGivenUp && m.pending:
		m.tries = 0
		m.act = actRebalance
	case m.act == actRebalance:
		m.rebalance()
	case m.act == actBackoff && m.p.now >= m.until:
		m.act = actRebalance
	default:
		return false
	}
	return true
}

func (m *zkMember) ownerPath(tp id.TopicPartition) string {
	name := strconv.Itoa(int(tp.Partition))
	if m.dialect == state.DialectPykafka {
		name = "1-" + name
	}
	return "/consumers/g/owners/" + tp.Topic + "/" + name
}

func (m *zkMember) release(tps []id.TopicPartition) {
	for _, tp := range tps {
		m.owned = slices.DeleteFunc(m.owned, func(o id.TopicPartition) bool { return o == tp })
		m.p.apply(&pb.Command{Origin: m.origin(), Body: &pb.Command_DeleteZnode{DeleteZnode: &pb.DeleteZnode{Path: m.ownerPath(tp), Version: -1}}})
	}
}

// rebalance is one attempt: release, read the view, claim. pykafka keeps what stays its own.
func (m *zkMember) rebalance() {
	m.pending = false
	m.arm()
	if _, registered := m.view().Node("/consumers/g/ids/"+m.name, m.observer()); !registered && m.dialect == state.DialectJVM {
		m.failed() // it reads its own registration first, and releases nothing
		return
	}
	if m.dialect != state.DialectPykafka {
		m.release(slices.Clone(m.owned))
	}
	want, ok := m.assignment()
	if !ok {
		m.fail()
		return
	}
	if g, ok := m.p.s.View().Legacy("g"); ok {
		m.seenGen = g.Number
	}
	if m.dialect == state.DialectPykafka {
		var surplus []id.TopicPartition
		for _, o := range m.owned {
			if !slices.Contains(want, o) {
				surplus = append(surplus, o)
			}
		}
		m.release(surplus)
		want = slices.DeleteFunc(want, func(tp id.TopicPartition) bool { return slices.Contains(m.owned, tp) })
	}
	m.want = want
	m.readNext()
}

func (m *zkMember) readNext() {
	if len(m.want) == 0 {
		m.act = actSteady
		return
	}
	m.act = actReading
	tp := m.want[0]
	if m.dialect == state.DialectJVM && m.p.s.View().OffsetAwaited(id.SessionID(m.session), "g", tp.Topic, tp.Partition) {
		m.ask(&pb.Command{Body: &pb.Command_AwaitOffsets{AwaitOffsets: &pb.AwaitOffsets{Group: "g", Partitions: []*pb.OwnedPartition{{Topic: tp.Topic, Partition: tp.Partition}}}}})
		return
	}
	m.claimNext()
}

func (m *zkMember) claimNext() {
	tp := m.want[0]
	m.act = actClaiming
	p := state.ParsePath(m.ownerPath(tp))
	dir, _ := state.SplitPath(m.ownerPath(tp))
	m.p.apply(&pb.Command{Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: dir, Null: true}}})
	m.ask(&pb.Command{Body: &pb.Command_ClaimOwner{ClaimOwner: &pb.ClaimOwner{Group: "g", Topic: p.Topic, Name: p.Name, Partition: tp.Partition,
		Data: []byte(m.threads[tp]), Ephemeral: true}}})
}

func (m *zkMember) fail() {
	m.release(slices.Clone(m.owned))
	m.failed()
}

func (m *zkMember) failed() {
	m.p.failures++
	m.tries++
	m.want = nil
	if m.act = actBackoff; m.tries >= 4 {
		m.act = actGivenUp
		return
	}
	m.until = m.p.now + 2*time.Second
}

// assignment is the range of Kafka over threads (JVM) or ids (the others), from what the member is shown.
func (m *zkMember) assignment() ([]id.TopicPartition, bool) {
	v, o := m.view(), m.observer()
	ids, _, ok := v.Children("/consumers/g/ids", o, nil)
	if !ok {
		return nil, false
	}
	if m.deals != strategyRange {
		return m.dealtOut(ids)
	}
	threads := map[string][]string{} // by topic
	for _, memberID := range ids {
		n, ok := v.Node("/consumers/g/ids/"+memberID, o)
		if !ok {
			return nil, false
		}
		reg, ok := state.ParseRegistration(n.Data)
		if !ok {
			return nil, false // every JVM reader throws
		}
		for _, t := range reg.Topics {
			topics := []string{t.Topic}
			if reg.Pattern != "static" {
				topics = m.shownTopics()
			}
			for _, topic := range topics {
				if m.dialect != state.DialectJVM {
					threads[topic] = append(threads[topic], memberID)
					continue
				}
				for i := range t.Threads {
					threads[topic] = append(threads[topic], fmt.Sprintf("%s-%d", memberID, i))
				}
			}
		}
	}
	var want []id.TopicPartition
	for _, topic := range m.shownTopics() {
		n, ok := v.Node("/brokers/topics/"+topic, o)
		if !ok {
			continue
		}
		var doc struct{ Partitions map[string][]int32 }
		if err := json.Unmarshal(n.Data, &doc); err != nil {
			m.p.t.Fatal(err)
		}
		all := threads[topic]
		slices.Sort(all)
		parts := make([]int32, len(doc.Partitions))
		for i := range parts {
			parts[i] = int32(i)
		}
		if m.dialect == state.DialectPykafka {
			slices.SortFunc(parts, func(a, b int32) int {
				return strings.Compare(fmt.Sprintf("%s-1-%d", topic, a), fmt.Sprintf("%s-1-%d", topic, b))
			})
		}
		q, r := len(parts)/len(all), len(parts)%len(all)
		for i, th := range all {
			if mine := th == m.name || m.dialect == state.DialectJVM && th[:strings.LastIndexByte(th, '-')] == m.name; !mine {
				continue
			}
			for _, n := range parts[q*i+min(i, r) : q*(i+1)+min(i+1, r)] {
				tp := id.TopicPartition{Topic: topic, Partition: n}
				want = append(want, tp)
				m.threads[tp] = th
			}
		}
	}
	return want, true
}

// run lets everybody act until nobody has anything to do.
func (p *park) run() {
	for range 1000 {
		p.cancelGone()
		acted := false
		for _, m := range p.members {
			acted = m.step() || acted
		}
		if !acted {
			return
		}
	}
	p.t.Fatal("the members never come to rest")
}

// pass lets time go by while everybody acts.
func (p *park) pass(d time.Duration) {
	for end := p.now + d; ; {
		p.run()
		if p.now >= end {
			return
		}
		p.advance(min(50*time.Millisecond, end-p.now))
	}
}

// owners is who has what: topic-partition=owner's datum, in order.
func (p *park) owners() string {
	var out []string
	v := p.s.View()
	v.ZnodeChildren("/consumers/g/owners", func(topic string, _ *state.Znode) bool {
		v.Owners("g", topic, func(name string, z *state.Znode) bool {
			out = append(out, fmt.Sprintf("%s/%s=%s", topic, name, z.Data))
			return true
		})
		return true
	})
	return strings.Join(out, " ")
}
