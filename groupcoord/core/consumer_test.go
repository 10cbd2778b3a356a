package core

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// story is a stage on which consumer groups live: its members remember their epoch and what they were told.
type story struct {
	*flock
	epoch map[string]int32
	owns  map[string][]kmsg.ConsumerGroupHeartbeatRequestTopic
}

func newStory(t *testing.T, cfg Config) *story {
	f := &flock{stage: newStage(t, cfg), topics: map[string]int32{}, epochs: map[string]int32{}}
	f.broker()
	s := &story{flock: f, epoch: map[string]int32{}, owns: map[string][]kmsg.ConsumerGroupHeartbeatRequestTopic{}}
	f.onReply = s.heard
	return s
}

// partitions are written as t:0,1;u:2 and - for none.
func (s *story) text(ps []kmsg.ConsumerGroupHeartbeatRequestTopic) string {
	var out []string
	for _, t := range ps {
		var ns []string
		for _, n := range t.Partitions {
			ns = append(ns, strconv.Itoa(int(n)))
		}
		out = append(out, s.name(t.TopicID)+":"+strings.Join(ns, ","))
	}
	slices.Sort(out)
	if len(out) == 0 {
		return "-"
	}
	return strings.Join(out, ";")
}

func (s *story) read(text string) []kmsg.ConsumerGroupHeartbeatRequestTopic {
	out := []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	for _, part := range strings.Split(text, ";") {
		name, ns, ok := strings.Cut(part, ":")
		if !ok {
			continue
		}
		row, _ := s.s.View().Topic(name)
		t := kmsg.ConsumerGroupHeartbeatRequestTopic{TopicID: row.ID}
		for _, n := range strings.Split(ns, ",") {
			v, _ := strconv.Atoi(n)
			t.Partitions = append(t.Partitions, int32(v))
		}
		out = append(out, t)
	}
	return out
}

func (s *story) heard(name string, _ Request, resp kmsg.Response, _ *pb.Result) {
	switch resp := resp.(type) {
	case *kmsg.ConsumerGroupHeartbeatResponse:
		if resp.ErrorCode != 0 {
			fmt.Fprintf(&s.out, "> %s: %s\n", name, errName(resp.ErrorCode))
			return
		}
		told := ""
		if resp.Assignment != nil {
			var ps []kmsg.ConsumerGroupHeartbeatRequestTopic
			for _, t := range resp.Assignment.Topics {
				ps = append(ps, kmsg.ConsumerGroupHeartbeatRequestTopic{TopicID: t.TopicID, Partitions: t.Partitions})
			}
			s.owns[name], told = ps, " "+s.text(ps)
		}
		s.epoch[name] = resp.MemberEpoch
		if every := resp.HeartbeatIntervalMillis; every != 1000 && every != 0 {
			told += fmt.Sprintf(" every %d ms", every)
		}
		fmt.Fprintf(&s.out, "> %s: epoch %d%s\n", name, resp.MemberEpoch, told)
	case *kmsg.SyncGroupResponse:
		var a kmsg.ConsumerMemberAssignment
		if len(resp.MemberAssignment) == 0 || a.ReadFrom(resp.MemberAssignment) != nil {
			return
		}
		ps := []kmsg.ConsumerGroupHeartbeatRequestTopic{}
		for _, t := range a.Topics {
			row, _ := s.s.View().Topic(t.Topic)
			ps = append(ps, kmsg.ConsumerGroupHeartbeatRequestTopic{TopicID: row.ID, Partitions: t.Partitions})
		}
		s.owns[name], resp.MemberAssignment = ps, []byte(s.text(ps))
	case *kmsg.JoinGroupResponse:
		for i := range resp.Members {
			resp.Members[i].ProtocolMetadata = []byte("...")
		}
	}
}

// tell knows, beside the verbs of classic stories:
//
//	topic t n=4            a topic is made, or grows
//	unheard t n=4          the same while there is no coordinator
//	config k is=v          a setting of the group; beats then tell the interval
//	beat a [reads=t,u] [regex=...] [owns=t:0,1] [epoch=1] [as=instance] [assignor=range]   a heartbeat; owns=told: what it was told last
//	enter d reads=t [owns=t:0]   a classic member joins, in version 9
//	row                    what the state says
func (s *story) tell(l line) {
	switch l.verb {
	case "topic":
		s.grow(l.name, int32(l.num("n", 1)))
	case "unheard": // a topic that is made, or grows, while there is no coordinator
		mind := s.mind
		s.mind = nil
		s.grow(l.name, int32(l.num("n", 1)))
		s.mind = mind
	case "config": // of the group
		s.must(&pb.Command{Body: &pb.Command_SetConfig{SetConfig: &pb.SetConfig{Type: state.GroupConfigs, Name: "g", ZnodeVersion: -1,
			Entries: []*pb.ConfigEntry{{Name: l.name, Value: l.kv["is"]}}}}})
	case "beat":
		s.beatOnce(l)
	case "enter":
		req := kmsg.NewPtrJoinGroupRequest()
		req.Version, req.Group, req.MemberID, req.InstanceID, req.ProtocolType = 9, "g", s.member(l), l.instance(), "consumer"
		req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 10_000, 60_000
		meta := kmsg.NewConsumerMemberMetadata()
		meta.Version, meta.Topics = 3, strings.Split(l.str("reads", "t"), ",")
		for _, t := range s.read(l.str("owns", "")) {
			meta.OwnedPartitions = append(meta.OwnedPartitions, kmsg.ConsumerMemberMetadataOwnedPartition{Topic: s.name(t.TopicID), Partitions: t.Partitions})
		}
		req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: l.str("protocol", "range"), Metadata: meta.AppendTo(nil)}}
		s.kafka(l.name, req)
	case "row":
		s.show()
	default:
		s.stage.tell(l)
	}
}

func (s *story) beatOnce(l line) {
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Version, req.Group, req.MemberID, req.RebalanceTimeoutMillis = 1, "g", l.str("id", l.name), -1
	req.MemberEpoch = int32(l.num("epoch", int(s.epoch[l.name])))
	req.InstanceID = l.instance()
	if reads, ok := l.kv["reads"]; ok {
		req.SubscribedTopicNames = strings.Split(reads, ",")
	}
	if re, ok := l.kv["regex"]; ok {
		req.SubscribedTopicRegex = &re
	}
	if a, ok := l.kv["assignor"]; ok {
		req.ServerAssignor = &a
	}
	if req.MemberEpoch == 0 {
		req.RebalanceTimeoutMillis, req.Topics = int32(l.num("rebalance", 60)*1000), []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	}
	switch owns := l.str("owns", ""); owns {
	case "":
	case "told":
		req.Topics = append([]kmsg.ConsumerGroupHeartbeatRequestTopic{}, s.owns[l.name]...)
	default:
		req.Topics = s.read(owns)
	}
	s.kafka(l.name, req)
}

func (s *story) show() {
	row := s.row()
	if row == nil {
		s.out.WriteString("> no group\n")
		return
	}
	if !row.Consumer {
		fmt.Fprintf(&s.out, "> classic group of %d in generation %d\n", len(row.Members), row.Generation)
		return
	}
	fmt.Fprintf(&s.out, "> consumer group in epoch %d, %s\n", row.Generation, (&group{row: row}).state())
	list := func(ps []state.TopicPartitions) string {
		var out []kmsg.ConsumerGroupHeartbeatRequestTopic
		for _, t := range ps {
			out = append(out, kmsg.ConsumerGroupHeartbeatRequestTopic{TopicID: t.TopicID, Partitions: t.Partitions})
		}
		return s.text(out)
	}
	for _, m := range row.Members {
		fmt.Fprintf(&s.out, ">   %s epoch %d has %s, gives up %s, target %s\n", m.ID, m.Consumer.Epoch, list(m.Consumer.Assigned), list(m.Consumer.Revoking), list(m.Consumer.Target))
	}
}

// Each file is a story; see stories.
func TestConsumerStories(t *testing.T) {
	stories(t, "testdata/consumer/*.txt", func(t *testing.T, text string) func(line) string {
		cfg := Config{InitialDelay: -1, Settle: -1}
		if strings.Contains(text, "# members are awaited") {
			cfg.Settle = 0
		}
		if strings.Contains(text, "# no upgrade") {
			cfg.Migration = MigrateNone
		}
		s := newStory(t, cfg)
		return func(l line) string { s.tell(l); return s.said() }
	})
}

// Thirty members that start at once are settled within three seconds, of either protocol, with the settings that are the default.
func TestThirtyMembersSettle(t *testing.T) {
	for _, classic := range []bool{true, false} {
		t.Run(fmt.Sprintf("classic %v", classic), func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				f := &flock{stage: newStage(t, Config{}), rt: rt, topics: map[string]int32{}, epochs: map[string]int32{}}
				f.onReply = f.hear
				f.broker()
				f.grow("t", 60)
				for i := range 30 {
					x := &reader{name: fmt.Sprintf("m%02d", i), classic: classic}
					x.reset()
					x.id = f.newID(x)
					f.readers = append(f.readers, x)
				}
				for _, x := range f.readers { // one after the other within half a second
					f.do(x)
					if x.classic && x.phase == isIdle {
						f.do(x) // with the id that it was given
					}
					f.advance(time.Duration(rapid.IntRange(0, 16).Draw(rt, "ms")) * time.Millisecond)
				}
				for !f.settled() {
					if f.now > 3*time.Second {
						rt.Fatalf("not settled after %v: %d members", f.now, len(f.row().Members))
					}
					for _, x := range f.readers {
						if x.asked == nil && (x.phase != isStable || len(x.reads) != len(x.told)) {
							f.do(x)
						}
					}
					f.advance(50 * time.Millisecond)
					f.out.Reset()
				}
				t.Logf("settled after %v", f.now)
				if n := len(f.row().Rebalances); n > 1 {
					rt.Fatalf("%d rebalances", n)
				}
			})
		})
	}
}

// Both assignors give each partition to one of its readers; uniform evenly, and without moving what need not move.
func TestAssignors(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		partitions := map[id.TopicID][]int32{}
		var topics []id.TopicID
		for i := range rapid.IntRange(1, 4).Draw(rt, "topics") {
			topic := id.TopicID{byte(i + 1)}
			topics = append(topics, topic)
			for n := range rapid.IntRange(0, 9).Draw(rt, "partitions") {
				partitions[topic] = append(partitions[topic], int32(n))
			}
		}
		same := rapid.Bool().Draw(rt, "same")
		var seats []seat
		for i := range rapid.IntRange(1, 6).Draw(rt, "members") {
			s := seat{id: fmt.Sprintf("m%d", i), topics: topics}
			if !same {
				s.topics = nil
				for _, topic := range topics {
					if rapid.Bool().Draw(rt, "reads") {
						s.topics = append(s.topics, topic)
					}
				}
			}
			seats = append(seats, s)
		}
		assignor := rapid.SampledFrom(assignors).Draw(rt, "assignor")
		got := assign(assignor, seats, partitions)
		checkAssigned(rt, seats, partitions, got, assignor == assignorUniform && same)
		if assignor != assignorUniform || !same {
			return
		}
		for i := range seats {
			seats[i].has = got[seats[i].id]
		}
		gone := rapid.IntRange(0, len(seats)-1).Draw(rt, "gone")
		left := slices.Delete(slices.Clone(seats), gone, gone+1)
		if len(left) == 0 {
			return
		}
		next := assign(assignor, left, partitions)
		checkAssigned(rt, left, partitions, next, true)
		for _, s := range left { // nobody loses anything when another member goes
			s.has.each(func(p partition, _ int32) {
				if !next[s.id].has(p) {
					rt.Fatalf("%s loses %v", s.id, p)
				}
			})
		}
	})
}

func checkAssigned(rt *rapid.T, seats []seat, partitions map[id.TopicID][]int32, got map[string]parts, even bool) {
	owner := map[partition]string{}
	least, most := 1<<30, 0
	for _, s := range seats {
		n := got[s.id].size()
		least, most = min(least, n), max(most, n)
		got[s.id].each(func(p partition, _ int32) {
			if owner[p] != "" || !slices.Contains(s.topics, p.topic) {
				rt.Fatalf("%v is given to %s and %s, who reads %v", p, owner[p], s.id, s.topics)
			}
			owner[p] = s.id
		})
	}
	for t, ns := range partitions {
		read := slices.ContainsFunc(seats, func(s seat) bool { return slices.Contains(s.topics, t) })
		for _, n := range ns {
			if read && owner[partition{t, n}] == "" {
				rt.Fatalf("%v-%d is given to nobody", t, n)
			}
		}
	}
	if even && most-least > 1 {
		rt.Fatalf("between %d and %d partitions", least, most)
	}
}

// A request with texts that are none is refused before it can spoil a put of the group.
func TestTextsThatAreNone(t *testing.T) {
	s := newStory(t, Config{InitialDelay: -1, Settle: -1})
	s.grow("t", 1)
	s.tell(parse("beat a reads=t"))
	bad := "\xff"
	beat := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	beat.Version, beat.Group, beat.MemberID, beat.RebalanceTimeoutMillis = 1, "g", bad, 1000
	beat.SubscribedTopicNames, beat.Topics = []string{"t"}, []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	s.kafka("b", beat)
	meta := kmsg.NewConsumerMemberMetadata()
	meta.Topics = []string{bad}
	join := kmsg.NewPtrJoinGroupRequest()
	join.Version, join.Group, join.ProtocolType, join.SessionTimeoutMillis = 2, "g", "consumer", 10_000
	join.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: meta.AppendTo(nil)}}
	s.kafka("c", join)
	join = kmsg.NewPtrJoinGroupRequest()
	join.Version, join.Group, join.ProtocolType, join.SessionTimeoutMillis = 2, "g", bad, 10_000
	s.kafka("d", join)
	join = kmsg.NewPtrJoinGroupRequest()
	join.Version, join.Group = 2, bad
	s.kafka("e", join)
	s.ask("f", Request{Kafka: &KafkaRequest{Body: kmsg.NewPtrJoinGroupRequest(), ClientID: bad}})
	if row := s.row(); len(row.Members) != 1 || len(s.open) > 0 {
		t.Fatalf("%d members, %d requests open\n%s", len(row.Members), len(s.open), s.out.String())
	}
}

// A put that the state refuses though nothing has changed is decided again with pauses, and not for ever: its member is told to look for the
// coordinator again. (The two disagree here because the test's engine gives what a znode consumer owns.)
func TestARefusedPutIsNotRepeatedForEver(t *testing.T) {
	all := func(_ *state.View, _ string, row *state.Topic) []int32 { return numbers(row.Partitions) }
	s := newStory(t, Config{InitialDelay: -1, Settle: -1, Hooks: Hooks{Universe: all, Free: func(*state.View, string, id.TopicID, int32) bool { return true },
		Refuse: func(*state.View, string) string { return "" }, Mixed: func(*state.View, string) bool { return false }}})
	s.grow("t", 1)
	for _, path := range []string{"/consumers/g", "/consumers/g/owners", "/consumers/g/owners/t", "/consumers/g/owners/t/0"} {
		s.must(&pb.Command{Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: path, Data: []byte("x-0")}}})
	}
	before := s.index
	s.tell(parse("beat a reads=t"))
	s.advance(5 * time.Second)
	if tries := int(s.index - before); tries < 2 || tries > 2*maxRetries {
		t.Errorf("%d puts in 5 s", tries)
	}
	if got := s.said(); !strings.Contains(got, "> a: COORDINATOR_NOT_AVAILABLE") {
		t.Errorf("the member was told %q", got)
	}
}
