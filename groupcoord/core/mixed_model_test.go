package core

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// town is a park with members by Kafka's protocols in the same group.
type town struct {
	*park
	moderns []*modern
}

// modern is a client by Kafka's protocols that does as real ones: by ConsumerGroupHeartbeat, or by JoinGroup (eager or cooperative).
type modern struct {
	w       *town
	name    string
	topics  []string
	classic bool
	eager   bool // a classic one that gives up everything before it joins again

	up     bool
	paused bool          // its application does not poll: nothing is given up, nothing is taken
	next   time.Duration // of the next heartbeat
	asked  RequestID
	id     string
	epoch  int32
	joined bool // classic: it has an assignment
	owned  map[id.TopicPartition]bool
	told   map[id.TopicPartition]bool // consumer: what it is to own
	fresh  bool                       // consumer: what it owns was not said yet
	errors []string
	led    int32 // classic: of how many partitions it assigned as leader
}

func newTown(t testing.TB) *town {
	w := &town{park: newPark(t)}
	w.onReply = func(name string, r Request, resp kmsg.Response, res *pb.Result) {
		if m := w.member(name); m != nil && m.asked != 0 {
			if res.Code == pb.Code_STALE_TERM { // its node repeats what it does not know the outcome of
				r.Repeat = true
				w.ask(name, r)
				return
			}
			m.asked = r.ID // a fail-over numbers it anew; everybody has one request at a time
			w.replied(name, r, res)
			return
		}
		if m := w.modern(name); m != nil && m.asked != 0 {
			m.asked = 0
			m.answered(resp)
		}
	}
	w.check = w.oneOwner
	return w
}

func (w *town) consumer(name string, topics ...string) *modern {
	m := &modern{w: w, name: name, topics: topics}
	w.moderns = append(w.moderns, m)
	return m
}

func (w *town) modern(name string) *modern {
	for _, m := range w.moderns {
		if m.name == name {
			return m
		}
	}
	return nil
}

func (m *modern) start() *modern {
	*m = modern{w: m.w, name: m.name, topics: m.topics, classic: m.classic, eager: m.eager, up: true, next: m.w.now, errors: m.errors,
		owned: map[id.TopicPartition]bool{}}
	if !m.classic {
		m.id = fmt.Sprintf("%s.%d", m.name, m.w.nonces)
	}
	return m
}

// kill ends the process without a word: nothing is read any more.
func (m *modern) kill() {
	m.up, m.owned = false, nil
	for r, n := range m.w.names {
		if _, open := m.w.open[r]; open && n == m.name {
			delete(m.w.open, r)
			m.w.act(m.w.mind.Cancel(m.w.s.View(), r, m.w.now-m.w.start))
		}
	}
}

// leave ends it cleanly.
func (m *modern) leave() {
	memberID, epoch := m.id, m.epoch
	m.kill()
	switch {
	case epoch == 0 || memberID == "":
	case m.classic:
		req := kmsg.NewPtrLeaveGroupRequest()
		req.Version, req.Group = 5, "g"
		req.Members = []kmsg.LeaveGroupRequestMember{{MemberID: memberID}}
		m.w.kafka("gone", req)
	default:
		req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
		req.Version, req.Group, req.MemberID, req.MemberEpoch, req.RebalanceTimeoutMillis = 1, "g", memberID, -1, -1
		m.w.kafka("gone", req)
	}
}

func (m *modern) topicID(name string) id.TopicID {
	t, _ := m.w.s.View().Topic(name)
	return t.ID
}

// step does what is due: heartbeats once a second, at once when there is something to say.
func (m *modern) step() bool {
	if !m.up || m.asked != 0 {
		return false
	}
	if m.classic {
		return m.stepClassic()
	}
	if m.paused { // the heartbeats go on, from another thread
		if m.epoch == 0 || m.w.now < m.next {
			return false
		}
	} else if m.told != nil && m.epoch > 0 { // a poll: give up, then take
		m.owned, m.told, m.fresh = m.told, nil, true
		m.w.oneOwner()
	}
	if m.w.now < m.next && !m.fresh {
		return false
	}
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Version, req.Group, req.MemberID, req.MemberEpoch, req.RebalanceTimeoutMillis = 1, "g", m.id, m.epoch, -1
	if m.epoch == 0 {
		req.RebalanceTimeoutMillis, req.SubscribedTopicNames, req.Topics = 60_000, m.topics, []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	} else if m.fresh {
		req.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{}
		for topic, ps := range byTopic(m.owned) {
			req.Topics = append(req.Topics, kmsg.ConsumerGroupHeartbeatRequestTopic{TopicID: m.topicID(topic), Partitions: ps})
		}
	}
	m.fresh, m.next = false, m.w.now+time.Second
	m.send(req)
	return true
}

func (m *modern) send(req kmsg.Request) {
	m.asked = m.w.next + 1
	m.w.kafka(m.name, req)
}

func byTopic(owned map[id.TopicPartition]bool) map[string][]int32 {
	out := map[string][]int32{}
	for tp := range owned {
		out[tp.Topic] = append(out[tp.Topic], tp.Partition)
	}
	for _, ps := range out {
		slices.Sort(ps)
	}
	return out
}

func (m *modern) stepClassic() bool {
	switch {
	case m.paused && m.joined && m.w.now < m.next, m.paused && !m.joined, m.joined && m.w.now < m.next, m.w.now < m.next:
		return false
	case m.joined && m.led > 0 && m.led != m.w.partitions(): // a leader follows its topics
		m.joined, m.led = false, 0
		return true
	case m.joined:
		m.next = m.w.now + time.Second
		req := kmsg.NewPtrHeartbeatRequest()
		req.Version, req.Group, req.MemberID, req.Generation = 4, "g", m.id, m.epoch
		m.send(req)
		return true
	}
	if m.eager {
		clear(m.owned)
	}
	meta := kmsg.NewConsumerMemberMetadata()
	meta.Version, meta.Topics = 1, m.topics
	for topic, ps := range byTopic(m.owned) {
		meta.OwnedPartitions = append(meta.OwnedPartitions, kmsg.ConsumerMemberMetadataOwnedPartition{Topic: topic, Partitions: ps})
	}
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version, req.Group, req.MemberID, req.ProtocolType, req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 5, "g", m.id, "consumer", 10_000, 60_000
	name := "cooperative-sticky"
	if m.eager {
		name = "range"
	}
	req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: name, Metadata: meta.AppendTo(nil)}}
	m.send(req)
	return true
}

// failed takes an error of the coordinator; true: there was one.
func (m *modern) failed(code int16) bool {
	switch code {
	case 0:
		return false
	case kerr.RebalanceInProgress.Code:
		m.joined, m.next = false, m.w.now
	case kerr.MemberIDRequired.Code:
	case kerr.UnknownMemberID.Code, kerr.FencedMemberEpoch.Code, kerr.IllegalGeneration.Code:
		m.joined, m.epoch, m.told, m.fresh, m.next = false, 0, nil, false, m.w.now
		clear(m.owned)
		if m.classic && code != kerr.IllegalGeneration.Code {
			m.id = ""
		}
	default:
		m.errors = append(m.errors, errName(code))
		m.next = m.w.now + time.Second
	}
	return true
}

func (m *modern) answered(resp kmsg.Response) {
	switch resp := resp.(type) {
	case *kmsg.ConsumerGroupHeartbeatResponse:
		if m.failed(resp.ErrorCode) {
			return
		}
		m.epoch = resp.MemberEpoch
		if resp.Assignment != nil {
			m.told = map[id.TopicPartition]bool{}
			for _, t := range resp.Assignment.Topics {
				row, ok := m.w.s.View().TopicByID(t.TopicID)
				for _, n := range t.Partitions {
					if ok {
						m.told[id.TopicPartition{Topic: row.Name, Partition: n}] = true
					}
				}
			}
		}
	case *kmsg.JoinGroupResponse:
		if resp.ErrorCode == kerr.MemberIDRequired.Code {
			m.id = resp.MemberID
		}
		if m.failed(resp.ErrorCode) {
			return
		}
		m.id, m.epoch = resp.MemberID, resp.Generation
		req := kmsg.NewPtrSyncGroupRequest()
		req.Version, req.Group, req.MemberID, req.Generation = 5, "g", m.id, m.epoch
		if m.led = 0; resp.LeaderID == m.id {
			m.led = m.w.partitions()
			req.GroupAssignment = m.lead(resp)
		}
		m.send(req)
	case *kmsg.SyncGroupResponse:
		if !m.failed(resp.ErrorCode) {
			m.synced(resp)
		}
	case *kmsg.HeartbeatResponse:
		m.failed(resp.ErrorCode)
	}
}

func (w *town) partitions() (n int32) {
	w.s.View().Topics(func(t *state.Topic) bool { n += t.Partitions; return true })
	return n
}

// lead assigns as a client does: by turns. (Cooperative members give up what is not theirs and join again.)
func (m *modern) lead(resp *kmsg.JoinGroupResponse) (out []kmsg.SyncGroupRequestGroupAssignment) {
	holder, readers := map[id.TopicPartition]string{}, map[string][]string{}
	for _, o := range resp.Members {
		var meta kmsg.ConsumerMemberMetadata
		if meta.ReadFrom(o.ProtocolMetadata) != nil {
			continue
		}
		for _, t := range meta.Topics {
			readers[t] = append(readers[t], o.MemberID)
		}
		for _, t := range meta.OwnedPartitions {
			for _, n := range t.Partitions {
				holder[id.TopicPartition{Topic: t.Topic, Partition: n}] = o.MemberID
			}
		}
	}
	of := map[string]*kmsg.ConsumerMemberAssignment{}
	for _, o := range resp.Members {
		of[o.MemberID] = &kmsg.ConsumerMemberAssignment{Version: 1}
	}
	for topic, members := range readers {
		t, _ := m.w.s.View().Topic(topic)
		for n := range t.Partitions {
			to := members[int(n)%len(members)]
			if has := holder[id.TopicPartition{Topic: topic, Partition: n}]; has != "" && has != to {
				continue // when it has given it up
			}
			of[to].Topics = append(of[to].Topics, kmsg.ConsumerMemberAssignmentTopic{Topic: topic, Partitions: []int32{n}})
		}
	}
	for _, o := range resp.Members {
		out = append(out, kmsg.SyncGroupRequestGroupAssignment{MemberID: o.MemberID, MemberAssignment: of[o.MemberID].AppendTo(nil)})
	}
	return out
}

func (m *modern) synced(resp *kmsg.SyncGroupResponse) {
	var a kmsg.ConsumerMemberAssignment
	if err := a.ReadFrom(resp.MemberAssignment); err != nil && len(resp.MemberAssignment) > 0 {
		m.w.t.Fatal(err)
	}
	to, gives := map[id.TopicPartition]bool{}, false
	for _, t := range a.Topics {
		for _, n := range t.Partitions {
			to[id.TopicPartition{Topic: t.Topic, Partition: n}] = true
		}
	}
	for tp := range m.owned {
		gives = gives || !to[tp]
	}
	m.owned, m.joined, m.next = to, !gives, m.w.now
	if !gives {
		m.next += time.Second
	}
	m.w.oneOwner()
}

// run and pass are the park's, with everybody.
func (w *town) run() {
	for range 1000 {
		acted := false
		for _, m := range w.members {
			acted = m.step() || acted
		}
		for _, m := range w.moderns {
			acted = m.step() || acted
		}
		if !acted {
			return
		}
	}
	w.t.Fatal("the members never come to rest")
}

func (w *town) pass(d time.Duration) {
	for end := w.now + d; ; {
		w.run()
		if w.now >= end {
			return
		}
		w.advance(min(50*time.Millisecond, end-w.now))
	}
}

// oneOwner is P3, by the state and by what clients do: at any moment a partition is read by one member, of whatever kind.
func (w *town) oneOwner() {
	v := w.s.View()
	row, _ := v.Group("g")
	owner := map[id.TopicPartition]string{}
	own := func(tp id.TopicPartition, who string) {
		if other, ok := owner[tp]; ok && other != who {
			w.t.Fatalf("at %s %s-%d belongs to %s and %s\n%s", w.now, tp.Topic, tp.Partition, other, who, w.out.String())
		}
		owner[tp] = who
	}
	v.ZnodeChildren("/consumers/g/owners", func(topic string, _ *state.Znode) bool {
		v.Owners("g", topic, func(name string, z *state.Znode) bool {
			if n, ok := state.ParsePartition(name); ok {
				own(id.TopicPartition{Topic: topic, Partition: n}, string(z.Data))
			}
			return true
		})
		return true
	})
	if l, ok := v.Legacy("g"); ok {
		for _, r := range l.Reserved {
			own(id.TopicPartition{Topic: r.Topic, Partition: r.Partition}, "reserved for "+r.Member)
		}
	}
	if row != nil && row.Consumer {
		for _, m := range row.Members {
			for _, ps := range [][]state.TopicPartitions{m.Consumer.Assigned, m.Consumer.Revoking} {
				for _, tp := range ps {
					if t, ok := v.TopicByID(tp.TopicID); ok {
						for _, n := range tp.Partitions {
							own(id.TopicPartition{Topic: t.Name, Partition: n}, m.ID)
						}
					}
				}
			}
		}
	}
	for _, m := range w.moderns {
		if row == nil || row.Member(m.id) == nil || !m.up {
			continue // taken out: it may not commit any more
		}
		for tp := range m.owned {
			own(tp, m.id)
		}
	}
}

// isReader reports whether a live member reads a topic.
func (w *town) isReader(topic string) bool {
	return slices.ContainsFunc(w.members, func(m *zkMember) bool {
		return m.act != actGone && (strings.Contains(m.topics, topic+":") || strings.HasPrefix(m.topics, "~"))
	}) || slices.ContainsFunc(w.moderns, func(m *modern) bool { return m.up && slices.Contains(m.topics, topic) })
}

// read is who reads what: one word for each member, in order, with what nobody reads at the end.
func (w *town) read() string {
	left, by := map[id.TopicPartition]bool{}, map[string]map[id.TopicPartition]bool{}
	v := w.s.View()
	v.Topics(func(t *state.Topic) bool {
		for n := range t.Partitions {
			if !w.isReader(t.Name) {
				break
			}
			left[id.TopicPartition{Topic: t.Name, Partition: n}] = true
		}
		return true
	})
	for _, m := range w.members {
		if m.act != actGone && !m.expired {
			by[m.name] = map[id.TopicPartition]bool{}
			for _, tp := range m.owned {
				by[m.name][tp] = true
			}
		}
	}
	for _, m := range w.moderns {
		if m.up {
			by[m.name] = m.owned
		}
	}
	var out []string
	show := func(who string, owned map[id.TopicPartition]bool) {
		word := who
		topics := byTopic(owned)
		for _, topic := range sorted(topics) {
			word += fmt.Sprintf(" %s%v", topic, topics[topic])
		}
		out = append(out, word)
	}
	for _, who := range sorted(by) {
		show(who, by[who])
		for tp := range by[who] {
			delete(left, tp)
		}
	}
	if len(left) > 0 {
		show("nobody", left)
	}
	return strings.Join(out, "; ")
}

// dealtOut is the assignment by roundrobin. (That it is what the real assignors compute is tested beside them.)
func (m *zkMember) dealtOut(ids []string) ([]id.TopicPartition, bool) {
	v, o := m.view(), m.observer()
	all, _, _ := v.Children("/brokers/topics", o, nil)
	var members []registered
	for _, memberID := range ids {
		n, ok := v.Node("/consumers/g/ids/"+memberID, o)
		if !ok {
			return nil, false
		}
		reg, ok := state.ParseRegistration(n.Data)
		if !ok {
			return nil, false
		}
		members = append(members, registered{memberID, reg})
	}
	counted, err := planMembersOf(members, all)
	if err != nil {
		m.p.t.Fatal(err)
	}
	partitions := map[string][]int32{}
	for topic := range threadsByTopic(counted) {
		var doc struct{ Partitions map[string][]int32 }
		if n, ok := v.Node("/brokers/topics/"+topic, o); ok {
			if err := json.Unmarshal(n.Data, &doc); err != nil {
				m.p.t.Fatal(err)
			}
		}
		partitions[topic] = numbers(int32(len(doc.Partitions)))
	}
	if m.deals == strategyHash011 && !even(counted) {
		return nil, false // releases up to 0.10.1 throw
	}
	shares, err := m.deals.share(counted, partitions)
	if err != nil {
		m.p.t.Fatal(err)
	}
	var want []id.TopicPartition
	for _, topic := range sorted(shares) {
		for n, thread := range shares[topic] {
			if strings.HasPrefix(thread, m.name+"-") {
				tp := id.TopicPartition{Topic: topic, Partition: n}
				want = append(want, tp)
				m.threads[tp] = thread
			}
		}
	}
	slices.SortFunc(want, func(a, b id.TopicPartition) int {
		return cmp.Or(strings.Compare(a.Topic, b.Topic), int(a.Partition-b.Partition))
	})
	return want, true
}
