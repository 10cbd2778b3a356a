package core

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// reader is a client of a group that is rolled between the classic and the consumer protocol: it reads what it was told to read until
// it has given it up.
type reader struct {
	name, instance string
	classic        bool
	cooperative    bool

	id      string
	epoch   int32 // or generation
	phase   phase
	asked   kmsg.Request
	full    bool            // the next heartbeat tells everything
	told    map[string]bool // topic/partition: as it was told last
	reads   map[string]bool // what it reads now
	leads   map[string][]string
	revoked bool
	leader  bool
	seen    int // partitions that there were when it last led; another number has it ask for a rebalance
}

func (x *reader) reset() {
	x.epoch, x.phase, x.told, x.reads, x.full, x.asked, x.leads = 0, isIdle, nil, map[string]bool{}, true, nil, nil
}

// flock is several readers at one mind.
type flock struct {
	*stage
	rt      *rapid.T
	readers []*reader
	topics  map[string]int32
	highest int32
	epochs  map[string]int32 // highest that a member was told, by id
	makers  int
}

func newFlock(t *testing.T, rt *rapid.T) *flock {
	cfg := Config{InitialDelay: -1, Settle: -1}
	if rapid.Bool().Draw(rt, "settle") {
		cfg.Settle = 0
	}
	f := &flock{stage: newStage(t, cfg), rt: rt, topics: map[string]int32{}, epochs: map[string]int32{}}
	f.onReply = f.hear
	f.broker()
	f.grow("t", int32(rapid.IntRange(1, 6).Draw(rt, "partitions")))
	cooperative := rapid.Bool().Draw(rt, "cooperative")
	for i := range rapid.IntRange(1, 5).Draw(rt, "readers") {
		x := &reader{name: string(rune('a' + i)), cooperative: cooperative, classic: rapid.Bool().Draw(rt, "classic")}
		if rapid.IntRange(0, 3).Draw(rt, "static") == 0 {
			x.instance = "i" + x.name
		}
		x.reset()
		x.id = f.newID(x)
		f.readers = append(f.readers, x)
	}
	return f
}

func (f *flock) newID(x *reader) string {
	if x.classic {
		return ""
	}
	f.makers++
	return fmt.Sprintf("%s~%d", x.name, f.makers)
}

// grow makes a topic or adds partitions to it.
func (f *flock) grow(topic string, n int32) {
	if have := f.topics[topic]; have == 0 {
		cmd := &pb.CreateTopic{Name: topic, TopicId: append(make([]byte, 16), topic...)[len(topic):][:16]}
		for range n {
			cmd.Assignments = append(cmd.Assignments, &pb.Assignment{Replicas: []int32{1}})
		}
		f.must(&pb.Command{Body: &pb.Command_CreateTopic{CreateTopic: cmd}})
	} else {
		cmd := &pb.CreatePartitions{Name: topic, From: have}
		for range n - have {
			cmd.Assignments = append(cmd.Assignments, &pb.Assignment{Replicas: []int32{1}})
		}
		f.must(&pb.Command{Body: &pb.Command_CreatePartitions{CreatePartitions: cmd}})
	}
	f.topics[topic] = n
}

func (s *stage) must(c *pb.Command) {
	if r := s.apply(c); r.Code != pb.Code_OK {
		s.t.Fatalf("%v: %v %s", c, r.Code, r.Text)
	}
}

// broker makes a broker for topics to live on.
func (s *stage) broker() {
	s.must(&pb.Command{Body: &pb.Command_RegisterBroker{RegisterBroker: &pb.RegisterBroker{DirectoryId: "d", Nonce: "n", WantedId: 1, MinLevel: 1, MaxLevel: 1,
		Endpoints: []*pb.Endpoint{{Listener: "PLAINTEXT", Host: "h", Port: 1}}}}})
}

func (f *flock) name(t id.TopicID) string {
	if row, ok := f.s.View().TopicByID(t); ok {
		return row.Name
	}
	return "gone"
}

func key(topic string, n int32) string { return fmt.Sprintf("%s/%d", topic, n) }

// split makes topics and partitions of keys.
func split(set map[string]bool) map[string][]int32 {
	out := map[string][]int32{}
	for k := range set {
		var n int32
		_, _ = fmt.Sscanf(k[2:], "%d", &n)
		out[k[:1]] = append(out[k[:1]], n)
	}
	for _, ps := range out {
		slices.Sort(ps)
	}
	return out
}

func (f *flock) do(x *reader) {
	switch {
	case !x.classic:
		f.beat(x)
	case x.phase == isIdle:
		f.join(x)
	case x.phase == isJoined:
		f.sync(x)
	case x.phase == isStable:
		f.settle(x)
		if x.cooperative && x.revoked || x.leader && x.seen != f.all() {
			x.revoked = false
			f.join(x)
			return
		}
		req := kmsg.NewPtrHeartbeatRequest()
		req.Version, req.Group, req.MemberID, req.InstanceID, req.Generation = 4, "g", x.id, x.in(), x.epoch
		x.asked = req
		f.kafka(x.name, req)
	}
}

func (f *flock) all() (n int) {
	for _, ps := range f.topics {
		n += int(ps)
	}
	return n
}

func (x *reader) in() *string {
	if x.instance == "" {
		return nil
	}
	return &x.instance
}

// settle gives up what a reader was told to give up and takes what it was given.
func (f *flock) settle(x *reader) {
	if x.told != nil {
		x.reads = map[string]bool{}
		for k := range x.told {
			x.reads[k] = true
		}
	}
}

func (f *flock) beat(x *reader) {
	if x.asked != nil {
		return // one request at a time
	}
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Version, req.Group, req.MemberID, req.MemberEpoch, req.RebalanceTimeoutMillis = 1, "g", x.id, x.epoch, -1
	req.InstanceID = x.in()
	if x.epoch != 0 {
		f.settle(x)
	}
	if x.full || x.epoch == 0 || rapid.Bool().Draw(f.rt, "tells") {
		req.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{}
		for t, ps := range split(x.reads) {
			row, ok := f.s.View().Topic(t)
			if ok {
				req.Topics = append(req.Topics, kmsg.ConsumerGroupHeartbeatRequestTopic{TopicID: row.ID, Partitions: ps})
			}
		}
	}
	if x.full || x.epoch == 0 {
		req.RebalanceTimeoutMillis = 60_000
		req.SubscribedTopicNames = []string{"t", "u"}
	}
	x.asked = req
	f.kafka(x.name, req)
}

func (f *flock) join(x *reader) {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version, req.Group, req.MemberID, req.InstanceID, req.ProtocolType = 9, "g", x.id, x.in(), "consumer"
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 10_000, 60_000
	meta := kmsg.NewConsumerMemberMetadata()
	meta.Version, meta.Topics, meta.Generation = 3, []string{"t", "u"}, x.epoch
	protocol := "range"
	if x.cooperative {
		protocol = "cooperative-sticky"
		for t, ps := range split(x.reads) {
			meta.OwnedPartitions = append(meta.OwnedPartitions, kmsg.ConsumerMemberMetadataOwnedPartition{Topic: t, Partitions: ps})
		}
	} else {
		x.reads = map[string]bool{} // an eager member gives everything up first
	}
	x.told = nil
	req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: protocol, Metadata: meta.AppendTo(nil)}}
	x.phase, x.asked = isJoining, req
	f.kafka(x.name, req)
}

func (f *flock) sync(x *reader) {
	req := kmsg.NewPtrSyncGroupRequest()
	req.Version, req.Group, req.MemberID, req.InstanceID, req.Generation = 5, "g", x.id, x.in(), x.epoch
	for m, ps := range x.leads {
		a := kmsg.NewConsumerMemberAssignment()
		set := map[string]bool{}
		for _, p := range ps {
			set[p] = true
		}
		for t, ns := range split(set) {
			a.Topics = append(a.Topics, kmsg.ConsumerMemberAssignmentTopic{Topic: t, Partitions: ns})
		}
		req.GroupAssignment = append(req.GroupAssignment, kmsg.SyncGroupRequestGroupAssignment{MemberID: m, MemberAssignment: a.AppendTo(nil)})
	}
	x.phase, x.asked = isSyncing, req
	f.kafka(x.name, req)
}

// lead is what a leader decides: in turn, and of a partition that another member says it owns, nothing yet.
func (f *flock) lead(x *reader, members []kmsg.JoinGroupResponseMember) {
	owner, all := map[string]string{}, []string{}
	for _, m := range members {
		var meta kmsg.ConsumerMemberMetadata
		if meta.ReadFrom(m.ProtocolMetadata) != nil {
			f.rt.Fatal("metadata does not decode")
		}
		for _, t := range meta.OwnedPartitions {
			for _, n := range t.Partitions {
				owner[key(t.Topic, n)] = m.MemberID
			}
		}
	}
	for t, n := range f.topics {
		for i := range n {
			all = append(all, key(t, i))
		}
	}
	slices.Sort(all)
	x.leads = map[string][]string{}
	for i, p := range all {
		m := members[i%len(members)].MemberID
		if o := owner[p]; x.cooperative && o != "" && o != m {
			continue
		}
		x.leads[m] = append(x.leads[m], p)
	}
	for _, m := range members {
		if _, ok := x.leads[m.MemberID]; !ok {
			x.leads[m.MemberID] = nil
		}
	}
}

// fault is what clients do on an error; it reports whether there was one.
func (f *flock) fault(x *reader, code int16) bool {
	switch code {
	case 0:
		return false
	case kerr.RebalanceInProgress.Code:
		if x.phase != isJoining {
			f.settle(x)
		}
		x.phase = isIdle
	case kerr.MemberIDRequired.Code:
		x.phase = isIdle
	case kerr.FencedMemberEpoch.Code, kerr.UnknownMemberID.Code, kerr.IllegalGeneration.Code, kerr.FencedInstanceID.Code:
		keep := x.id
		x.reset()
		if x.id = keep; x.classic || code == kerr.FencedInstanceID.Code {
			x.id = f.newID(x)
		}
	case kerr.UnreleasedInstanceID.Code, kerr.CoordinatorNotAvailable.Code:
		x.phase = isIdle
	default:
		f.rt.Fatalf("%s hears %s", x.name, kerr.TypedErrorForCode(code).Message)
	}
	return true
}

func (f *flock) hear(name string, r Request, resp kmsg.Response, _ *pb.Result) {
	i := slices.IndexFunc(f.readers, func(x *reader) bool { return x.name == name })
	if i < 0 || r.Kafka == nil || f.readers[i].asked != r.Kafka.Body {
		return // of a former life
	}
	x := f.readers[i]
	x.asked = nil
	switch resp := resp.(type) {
	case *kmsg.ConsumerGroupHeartbeatResponse:
		if f.fault(x, resp.ErrorCode) {
			return
		}
		if resp.MemberEpoch < f.epochs[x.id] && resp.MemberEpoch >= 0 {
			f.rt.Fatalf("%s was told epoch %d after %d", x.id, resp.MemberEpoch, f.epochs[x.id])
		}
		x.epoch, x.full = resp.MemberEpoch, false
		f.epochs[x.id] = x.epoch
		if resp.Assignment != nil {
			x.told = map[string]bool{}
			for _, t := range resp.Assignment.Topics {
				for _, n := range t.Partitions {
					x.told[key(f.name(t.TopicID), n)] = true
				}
			}
		}
	case *kmsg.JoinGroupResponse:
		if resp.ErrorCode == kerr.MemberIDRequired.Code {
			x.id = resp.MemberID
		}
		if f.fault(x, resp.ErrorCode) {
			return
		}
		x.id, x.epoch, x.phase, x.leads = resp.MemberID, resp.Generation, isJoined, nil
		x.leader, x.seen = resp.LeaderID == x.id, -1
		if x.leader && len(resp.Members) > 0 && !resp.SkipAssignment {
			x.seen = f.all()
			f.lead(x, resp.Members)
		}
	case *kmsg.SyncGroupResponse:
		if f.fault(x, resp.ErrorCode) {
			return
		}
		var a kmsg.ConsumerMemberAssignment
		if len(resp.MemberAssignment) > 0 && a.ReadFrom(resp.MemberAssignment) != nil {
			f.rt.Fatalf("%s: its assignment does not decode", x.name)
		}
		told := map[string]bool{}
		for _, t := range a.Topics {
			for _, n := range t.Partitions {
				told[key(t.Topic, n)] = true
			}
		}
		for k := range x.reads {
			x.revoked = x.revoked || !told[k]
		}
		x.told, x.phase = told, isStable
	case *kmsg.HeartbeatResponse:
		f.fault(x, resp.ErrorCode)
	}
	f.check()
}

// check: no partition is read, or may be, by two members of the group; generations only rise; the row holds for what it has told.
func (f *flock) check() {
	row := f.row()
	if row == nil {
		return
	}
	if row.Generation < f.highest {
		f.rt.Fatalf("generation %d after %d", row.Generation, f.highest)
	}
	f.highest = row.Generation
	held := map[string]string{}
	for _, m := range row.Members {
		if m.Consumer == nil {
			continue
		}
		for _, tp := range slices.Concat(m.Consumer.Assigned, m.Consumer.Revoking) {
			for _, n := range tp.Partitions {
				k := key(f.name(tp.TopicID), n)
				if held[k] != "" && k[0] != 'g' {
					f.rt.Fatalf("%s is held by %s and %s", k, held[k], m.ID)
				}
				held[k] = m.ID
			}
		}
	}
	may := map[string]string{}
	for _, x := range f.readers {
		m := row.Member(x.id)
		if m == nil || x.id == "" {
			continue // it was taken out and has not heard of it: what it commits is refused
		}
		set := map[string]bool{}
		for k := range x.reads {
			set[k] = true
		}
		for k := range x.told {
			set[k] = true
		}
		for _, k := range sorted(set) {
			if may[k] != "" {
				f.rt.Fatalf("%s may be read by %s and %s", k, may[k], x.id)
			}
			may[k] = x.id
			if m.Consumer != nil && held[k] != x.id && k[0] != 'g' {
				f.rt.Fatalf("%s may be read by %s, the row says %q", k, x.id, held[k])
			}
		}
	}
}

func (f *flock) fate() {
	x := rapid.SampledFrom(f.readers).Draw(f.rt, "who")
	switch rapid.IntRange(0, 19).Draw(f.rt, "fate") {
	case 0: // the process ends without a word and starts anew
		f.tell(line{verb: "cancel", name: x.name})
		x.reset()
		x.id = f.newID(x)
	case 1: // and with the other protocol
		f.tell(line{verb: "cancel", name: x.name})
		x.reset()
		x.classic = !x.classic
		x.id = f.newID(x)
	case 2:
		f.leave(x)
	case 3:
		f.failover()
	case 4:
		f.stage.hold = true
	case 5:
		f.release()
	case 6:
		f.lose = rapid.SampledFrom([]string{"applied", "dropped"}).Draw(f.rt, "outcome")
	case 7:
		f.advance(time.Duration(rapid.IntRange(1, 60_000).Draw(f.rt, "ms")) * time.Millisecond)
	case 8, 9:
		f.advance(time.Duration(rapid.IntRange(1, 1500).Draw(f.rt, "ms")) * time.Millisecond)
	case 10: // an answer is lost
		f.tell(line{verb: "cancel", name: x.name})
		x.full = true
		if x.asked = nil; x.classic && x.phase != isStable {
			x.phase = isIdle
		}
	case 11:
		if n := f.topics["u"]; n < 4 {
			f.grow("u", n+1)
		}
	default:
		f.do(x)
	}
	if testing.Verbose() {
		f.rt.Logf("%v %s", f.now, f.out.String())
	}
	f.out.Reset()
	f.check()
}

func (f *flock) leave(x *reader) {
	if x.id == "" || x.phase == isIdle && x.classic || x.asked != nil {
		return
	}
	if x.classic {
		f.members[x.name] = x.id
		f.tell(line{verb: "leave", name: x.name, kv: map[string]string{}})
	} else {
		req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
		req.Version, req.Group, req.MemberID, req.MemberEpoch, req.InstanceID = 1, "g", x.id, -1, x.in()
		if x.instance != "" && rapid.Bool().Draw(f.rt, "for a while") {
			req.MemberEpoch = state.StaticLeft
		}
		f.kafka(x.name, req)
	}
	x.reset()
	x.id = f.newID(x)
}

// Whatever readers of both protocols, the clock, topics and coordinators do: nothing is read by two at a time, epochs only rise; and
// when the faults end, each partition soon has one reader, evenly.
func TestConsumerGroups(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := newFlock(t, rt)
		for range rapid.IntRange(1, 100).Draw(rt, "steps") {
			f.fate()
		}
		f.release()
		f.lose = ""
		for range 120 {
			for _, x := range f.readers {
				f.do(x)
			}
			f.advance(time.Second)
			f.out.Reset()
			if f.settled() {
				return
			}
		}
		for _, x := range f.readers {
			rt.Logf("%s %+v", x.name, *x)
		}
		for _, m := range f.row().Members {
			rt.Logf("%s %+v", m.ID, m.Consumer)
		}
		for id, r := range f.open {
			rt.Logf("open: %d of %s: %T %+v", id, f.names[id], r.Kafka.Body, r.Kafka.Body)
		}
		rt.Fatalf("not settled after two minutes: %+v, topics %v, open %d", *f.row(), f.topics, len(f.open))
	})
}

func (f *flock) settled() bool {
	row := f.row()
	if row == nil || len(row.Members) != len(f.readers) || len(f.open) > 0 || f.mind.groups["g"] == nil ||
		f.mind.groups["g"].reb != nil || (&group{row: row}).state() != "Stable" {
		return false
	}
	of, least, most := map[string]string{}, 1<<30, 0
	for _, x := range f.readers {
		if x.classic && x.phase != isStable || x.epoch != row.Generation {
			return false
		}
		for k := range x.reads {
			of[k] = x.id
		}
		least, most = min(least, len(x.reads)), max(most, len(x.reads))
	}
	return len(of) == f.all() && (!row.Consumer || most-least <= 1)
}
