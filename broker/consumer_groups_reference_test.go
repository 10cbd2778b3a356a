package broker

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/internal/testtool/reference"
)

// saga is the life of a consumer group over one broker, written down. Which partitions a member gets is not compared, only how many: the
// order of members in Kafka is that of a hash.
type saga struct {
	*drama
	topic [16]byte
	epoch map[string]int32
	owns  map[string][]int32
}

func newSaga(t *testing.T, addr string) *saga {
	top := map[int16]int16{8: 9, 9: 9, 11: 9, 12: 4, 13: 5, 14: 5, 15: 5, 16: 5, 42: 2, 68: 1, 69: 1}
	return &saga{drama: &drama{t: t, addr: addr, top: top, conns: map[string]*client{}, ids: map[string]string{}}, epoch: map[string]int32{},
		owns: map[string][]int32{}}
}

// topics makes the topic that is read and learns its id.
func (s *saga) topics() {
	s.t.Helper()
	createTopic(s.at("tool"), 2, "t", 4, 1, nil)
	waitFor(s.t, func() bool {
		req := kmsg.NewPtrMetadataRequest()
		name := "t"
		req.Version, req.Topics = 12, []kmsg.MetadataRequestTopic{{Topic: &name}}
		got := ask[*kmsg.MetadataResponse](s.at("tool"), req).Topics
		s.topic = got[0].TopicID
		return got[0].ErrorCode == 0 && len(got[0].Partitions) == 4 && got[0].Partitions[0].Leader >= 0
	})
}

func (s *saga) request(name string, shape func(*kmsg.ConsumerGroupHeartbeatRequest)) *kmsg.ConsumerGroupHeartbeatRequest {
	req := s.versioned(kmsg.NewPtrConsumerGroupHeartbeatRequest()).(*kmsg.ConsumerGroupHeartbeatRequest)
	req.Group, req.MemberID, req.MemberEpoch, req.RebalanceTimeoutMillis = "g", s.id(name), s.epoch[name], -1
	if name == strings.ToUpper(name) {
		req.InstanceID = &name
	}
	if shape != nil {
		shape(req)
	}
	return req
}

// joining fills what a first heartbeat says.
func joining(req *kmsg.ConsumerGroupHeartbeatRequest) {
	req.MemberEpoch, req.RebalanceTimeoutMillis = 0, 60_000
	req.SubscribedTopicNames, req.Topics = []string{"t"}, []kmsg.ConsumerGroupHeartbeatRequestTopic{}
}

// owning says that a member owns what it was told last.
func (s *saga) owning(name string) func(*kmsg.ConsumerGroupHeartbeatRequest) {
	return func(req *kmsg.ConsumerGroupHeartbeatRequest) {
		req.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{}
		if len(s.owns[name]) > 0 {
			req.Topics = append(req.Topics, kmsg.ConsumerGroupHeartbeatRequestTopic{TopicID: s.topic, Partitions: s.owns[name]})
		}
	}
}

func (s *saga) beat(name, what string, shape func(*kmsg.ConsumerGroupHeartbeatRequest)) {
	s.t.Helper()
	req := s.request(name, shape)
	resp := ask[*kmsg.ConsumerGroupHeartbeatResponse](s.at("tool"), req)
	if resp.ErrorCode != 0 {
		s.note("%s %s: error %d, epoch %d, message %v", name, what, resp.ErrorCode, resp.MemberEpoch, resp.ErrorMessage != nil)
		return
	}
	told := "nothing"
	if resp.Assignment != nil {
		var ps []int32
		for _, t := range resp.Assignment.Topics {
			ps = append(ps, t.Partitions...)
		}
		slices.Sort(ps)
		s.owns[name] = ps
		told = fmt.Sprintf("%d partitions", len(ps))
	}
	if s.epoch[name] = max(0, resp.MemberEpoch); resp.MemberID != nil && *resp.MemberID != s.id(name) {
		told += ", as another member"
	}
	s.note("%s %s: epoch %d, %s", name, what, resp.MemberEpoch, told)
}

func (s *saga) describeConsumers() {
	s.t.Helper()
	req := s.versioned(kmsg.NewPtrConsumerGroupDescribeRequest()).(*kmsg.ConsumerGroupDescribeRequest)
	req.Groups = []string{"g", "nobody"}
	for _, g := range ask[*kmsg.ConsumerGroupDescribeResponse](s.at("tool"), req).Groups {
		s.note("describe %s: %d %s epoch %d assignment epoch %d %q", g.Group, g.ErrorCode, g.State, g.Epoch, g.AssignmentEpoch, g.AssignorName)
		var members []string
		size := func(a kmsg.Assignment) (n int) {
			for _, t := range a.TopicPartitions {
				if t.Topic != "t" || t.TopicID != s.topic {
					n += 100
				}
				n += len(t.Partitions)
			}
			return n
		}
		for _, m := range g.Members {
			members = append(members, fmt.Sprintf("  %s epoch %d %s %s static %v rack %v topics %v regex %v has %d of %d, type %d", s.mask(m.MemberID), m.MemberEpoch,
				m.ClientID, m.ClientHost, m.InstanceID != nil, m.RackID != nil, m.SubscribedTopics, m.SubscribedTopicRegex != nil && *m.SubscribedTopicRegex != "",
				size(m.Assignment), size(m.TargetAssignment), m.MemberType))
		}
		slices.Sort(members)
		s.lines = append(s.lines, members...)
	}
	list := s.versioned(kmsg.NewPtrListGroupsRequest()).(*kmsg.ListGroupsRequest)
	for _, g := range ask[*kmsg.ListGroupsResponse](s.at("tool"), list).Groups {
		s.note("list: %s %s %s %s", g.Group, g.ProtocolType, g.GroupState, g.GroupType)
	}
}

func (s *saga) commits(name string, version int16, epoch int32) {
	s.t.Helper()
	req := commitRequest(version, s.id(name), epoch)
	if name == "" {
		req.MemberID = ""
	}
	s.note("%q commits in %d by v%d: %d", name, epoch, version, ask[*kmsg.OffsetCommitResponse](s.at("tool"), req).Topics[0].Partitions[0].ErrorCode)
}

func (s *saga) fetches(name string, epoch int32) {
	s.t.Helper()
	req := s.versioned(kmsg.NewPtrOffsetFetchRequest()).(*kmsg.OffsetFetchRequest)
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group, g.MemberEpoch = "g", epoch
	if name != "" {
		id := s.id(name)
		g.MemberID = &id
	}
	g.Topics = []kmsg.OffsetFetchRequestGroupTopic{{Topic: "t", Partitions: []int32{0}}}
	req.Groups = []kmsg.OffsetFetchRequestGroup{g}
	got := ask[*kmsg.OffsetFetchResponse](s.at("tool"), req).Groups[0]
	s.note("%q fetches offsets in %d: %d, %d", name, epoch, got.ErrorCode, len(got.Topics))
}

func (s *saga) play() {
	s.refusals()
	s.beat("a", "joins", joining)
	s.beat("a", "is content", nil)
	s.beat("a", "tells all", func(r *kmsg.ConsumerGroupHeartbeatRequest) { joining(r); r.MemberEpoch = 2; s.owning("a")(r) })
	s.describeConsumers()
	s.beat("b", "joins", joining)
	s.beat("b", "waits", s.owning("b"))
	had := s.owns["a"]
	s.beat("a", "is told to give up", nil)
	s.describeConsumers()
	fewer := s.owns["a"]
	s.owns["a"] = had
	s.beat("a", "has not given up", s.owning("a"))
	s.owns["a"] = fewer
	s.beat("b", "still waits", nil)
	s.beat("a", "has given up", s.owning("a"))
	s.beat("b", "is given them", nil)
	s.beat("b", "has them", s.owning("b"))
	s.describeConsumers()
	for _, epoch := range []int32{1, 2, 4, 3} {
		s.beat("a", fmt.Sprintf("comes with epoch %d", epoch), func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.MemberEpoch = epoch; s.owning("a")(r) })
		s.beat("b", fmt.Sprintf("comes with epoch %d and all", epoch), func(r *kmsg.ConsumerGroupHeartbeatRequest) {
			r.MemberEpoch = epoch
			r.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{{TopicID: s.topic, Partitions: []int32{0, 1, 2, 3}}}
		})
	}
	s.offsets()
	s.note("delete: %d", deleteGroup(s.at("tool"), 2, "g"))
	s.statics2()
	s.mixed()
}

func (s *saga) refusals() {
	type heartbeat = kmsg.ConsumerGroupHeartbeatRequest
	none, bad := "", "("
	for what, shape := range []func(*heartbeat){
		func(r *heartbeat) { joining(r); r.RebalanceTimeoutMillis = -1 },
		func(r *heartbeat) { joining(r); r.Topics = nil },
		func(r *heartbeat) {
			joining(r)
			r.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{{TopicID: s.topic, Partitions: []int32{0}}}
		},
		func(r *heartbeat) { joining(r); r.SubscribedTopicNames = nil },
		func(r *heartbeat) { joining(r); r.MemberID = "" },
		func(r *heartbeat) { joining(r); r.InstanceID = &none },
		func(r *heartbeat) { joining(r); r.RackID = &none },
		func(r *heartbeat) { joining(r); r.Group = "" },
		func(r *heartbeat) { joining(r); r.ServerAssignor = &bad },
		func(r *heartbeat) { joining(r); r.SubscribedTopicRegex = &bad },
		func(r *heartbeat) { joining(r); r.MemberEpoch = -3 },
		func(r *heartbeat) { joining(r); r.MemberEpoch = -2 },
	} {
		s.beat("x", fmt.Sprintf("refused %d", what), shape)
	}
}

func (s *saga) offsets() {
	for _, epoch := range []int32{0, 1, 2, 3, 4} {
		s.commits("a", 9, epoch)
		s.fetches("a", epoch)
	}
	s.commits("a", 8, 3)
	s.commits("x", 9, 3)
	s.commits("", 9, -1)
	s.fetches("x", 2)
	s.fetches("", -1)
}

func (s *saga) statics2() {
	s.beat("C", "joins", joining)
	s.beat("a", "hears of it", s.owning("a"))
	s.beat("a", "has given up", s.owning("a"))
	s.beat("b", "hears of it", s.owning("b"))
	s.beat("b", "has given up", s.owning("b"))
	s.beat("C", "has its share", s.owning("C"))
	s.ids["C"] = "second"
	s.beat("C", "comes too early", joining)
	s.beat("C", "was never here", func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.MemberEpoch = 4 })
	s.beat("C", "cannot leave for the first", func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.MemberEpoch = -1 })
	s.ids["C"] = "C"
	s.beat("C", "is away", func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.MemberEpoch = -2 })
	s.describeConsumers()
	s.ids["C"] = "second"
	s.beat("C", "is back as another", joining)
	s.ids["C"] = "C"
	s.beat("C", "is fenced", func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.MemberEpoch = 4 })
	s.ids["C"] = "second"
	s.epoch["C"] = 4
	s.beat("C", "leaves", func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.MemberEpoch = -1 })
	s.beat("C", "has left", func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.MemberEpoch = -1 })
	s.beat("a", "is content", s.owning("a"))
	s.beat("b", "is content", s.owning("b"))
	s.describeConsumers()
}

// mixed lets a classic member in, and the others go.
func (s *saga) mixed() {
	s.join("d")
	generation := s.lastGeneration()
	s.syncs("d", generation)
	s.heartbeat("d", generation)
	s.heartbeat("d", generation-1)
	s.describeConsumers()
	s.beat("a", "hears of d", s.owning("a"))
	s.beat("a", "has given up for d", s.owning("a"))
	s.beat("b", "hears of d", s.owning("b"))
	s.beat("b", "has given up for d", s.owning("b"))
	s.heartbeat("d", generation)
	s.join("d")
	s.syncs("d", s.lastGeneration())
	s.heartbeat("d", s.lastGeneration())
	s.commits("d", 8, s.lastGeneration())
	s.commits("d", 8, 99)
	s.beat("a", "leaves", func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.MemberEpoch = -1 })
	s.join("d") // ours calls it with 27 at once, Kafka when it has computed the assignment, which this join has it do
	s.syncs("d", s.lastGeneration())
	s.describeConsumers()
	for _, req := range []*kmsg.JoinGroupRequest{s.joinRequest("y", "connect", 10_000, "range"), s.joinRequest("y", "consumer", 10_000, "none")} {
		s.at("tool").send(req)
		s.note("cannot agree: %d", s.at("tool").receive(req).(*kmsg.JoinGroupResponse).ErrorCode)
	}
	s.beat("b", "leaves", func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.MemberEpoch = -1 })
	s.describeConsumers()
	s.heartbeat("d", s.lastGeneration())
	s.join("d")
	s.describeConsumers()
	s.leave("d")
	s.describeConsumers()
	s.note("delete: %d", deleteGroup(s.at("tool"), 2, "g"))
}

// lastGeneration is the one that the last join told.
func (s *saga) lastGeneration() int32 {
	for _, l := range slices.Backward(s.lines) {
		if _, rest, ok := strings.Cut(l, " join: generation "); ok {
			var n int32
			_, _ = fmt.Sscan(rest, &n)
			return n
		}
	}
	return -1
}

func (s *saga) syncs(name string, generation int32) {
	s.t.Helper()
	req := s.startSync(name, generation)
	resp := s.at(name).receive(req).(*kmsg.SyncGroupResponse)
	var a kmsg.ConsumerMemberAssignment
	n := 0
	if len(resp.MemberAssignment) > 0 {
		if err := a.ReadFrom(resp.MemberAssignment); err != nil {
			s.t.Fatal(err)
		}
		for _, t := range a.Topics {
			n += len(t.Partitions)
		}
	}
	s.note("%s sync in %d: %d, %d partitions, version %d", name, generation, resp.ErrorCode, n, a.Version)
}

// The life of a consumer group at a real Kafka 4.4 and at ours reads the same.
func TestConsumerGroupsLikeKafka(t *testing.T) {
	theirs := newSaga(t, reference.Kafka44(t, "group.initial.rebalance.delay.ms=0", "offsets.topic.replication.factor=1", "offsets.topic.num.partitions=1",
		"group.consumer.assignment.interval.ms=0").Addr)
	awaitTopics(theirs.at("tool"))
	theirs.topics()
	waitFor(t, func() bool { // until the coordinator is loaded
		req := kmsg.NewPtrHeartbeatRequest()
		req.Group = "other"
		find := kmsg.NewPtrFindCoordinatorRequest()
		find.Version, find.CoordinatorKey = 1, "g"
		return ask[*kmsg.FindCoordinatorResponse](theirs.at("tool"), find).ErrorCode == 0 && ask[*kmsg.HeartbeatResponse](theirs.at("tool"), req).ErrorCode == 25
	})
	theirs.play()
	ours := newSaga(t, start(t, nil).addr)
	ours.topics()
	ours.play()
	for i := range max(len(theirs.lines), len(ours.lines)) {
		a, b := "", ""
		if i < len(theirs.lines) {
			a = theirs.lines[i]
		}
		if i < len(ours.lines) {
			b = ours.lines[i]
		}
		if a != b {
			t.Errorf("line %d: Kafka 4.4\n\t%s\nours\n\t%s", i, a, b)
		}
	}
	if t.Failed() {
		t.Logf("Kafka 4.4:\n%s", strings.Join(theirs.lines, "\n"))
	}
	checkFeatures(t, theirs.at("tool"), ours.at("tool"))
}

// checkFeatures: group.version is finalised as Kafka has it.
func checkFeatures(t *testing.T, theirs, ours *client) {
	t.Helper()
	for _, v := range []int16{3, 4} {
		var told [2]string
		for i, c := range []*client{theirs, ours} {
			req := kmsg.NewPtrApiVersionsRequest()
			req.Version, req.ClientSoftwareName, req.ClientSoftwareVersion = v, "test", "1"
			resp := ask[*kmsg.ApiVersionsResponse](c, req)
			for _, f := range resp.SupportedFeatures {
				if f.Name == "group.version" {
					told[i] += fmt.Sprintf("supported %d to %d; ", f.MinVersion, f.MaxVersion)
				}
			}
			for _, f := range resp.FinalizedFeatures {
				if f.Name == "group.version" {
					told[i] += fmt.Sprintf("finalised %d to %d, epoch known %v", f.MinVersionLevel, f.MaxVersionLevel, resp.FinalizedFeaturesEpoch >= 0)
				}
			}
		}
		if told[0] != told[1] {
			t.Errorf("ApiVersions v%d: Kafka 4.4 tells %q, ours %q", v, told[0], told[1])
		}
	}
}
