package broker

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/groupcoord/core"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// fakeGroups is a coordinator's mind whose proposals are applied at once; its clock stands still.
type fakeGroups struct {
	mu   sync.Mutex
	mind *core.Coordinator
	last core.RequestID
	open map[core.RequestID]chan kmsg.Response
}

func (m *fakeMeta) Ask(ctx context.Context, clientID, host string, req kmsg.Request) (kmsg.Response, error) {
	g := &m.groups
	g.mu.Lock()
	if g.mind == nil {
		g.mind, g.open = core.NewCoordinator(core.Config{InitialDelay: -1, Settle: -1}), map[core.RequestID]chan kmsg.Response{}
	}
	g.last++
	id, answer := g.last, make(chan kmsg.Response, 1)
	g.open[id] = answer
	nonce := strings.Repeat("n", int(id))
	m.act(ctx, g.mind.Request(m.View(), core.Request{ID: id, Kafka: &core.KafkaRequest{Body: req, ClientID: clientID, Host: host, Nonce: nonce}}, 0))
	g.mu.Unlock()
	select {
	case resp := <-answer:
		return resp, nil
	case <-ctx.Done():
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.open, id)
		m.act(context.Background(), g.mind.Cancel(m.View(), id, 0))
		return nil, ctx.Err()
	}
}

func (m *fakeMeta) act(ctx context.Context, acts []core.Action) {
	for _, a := range acts {
		if answer := m.groups.open[a.Request]; answer != nil && a.Answer != nil {
			answer <- a.Answer
			delete(m.groups.open, a.Request)
		}
		if a.Propose != nil {
			res, err := m.Propose(ctx, a.Propose)
			if err != nil {
				res = &statepb.Result{Code: statepb.Code_STALE_TERM}
			}
			m.act(ctx, m.groups.mind.Settled(m.View(), a.Request, res, 0))
		}
	}
}

func joinRequest(v int16, member string, instance *string) *kmsg.JoinGroupRequest {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version, req.Group, req.MemberID, req.InstanceID = v, "g", member, instance
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis, req.ProtocolType = 10_000, 60_000, "consumer"
	meta := kmsg.NewConsumerMemberMetadata()
	meta.Topics = []string{"t"}
	req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: meta.AppendTo(nil)}}
	return req
}

// joinAs joins, twice if it is asked to.
func joinAs(c *client, v int16, instance *string) *kmsg.JoinGroupResponse {
	c.t.Helper()
	resp := ask[*kmsg.JoinGroupResponse](c, joinRequest(v, "", instance))
	if resp.ErrorCode == kerr.MemberIDRequired.Code {
		resp = ask[*kmsg.JoinGroupResponse](c, joinRequest(v, resp.MemberID, instance))
	}
	return resp
}

// One member lives through a generation in every version of every request.
func TestGroupsOfEveryVersion(t *testing.T) {
	f := start(t, nil)
	c := f.dial(t)
	createTopic(c, 5, "t", 2, 1, nil)
	for _, v := range versions(joinGroupAPI.max) {
		joined := joinAs(c, v, nil)
		if joined.ErrorCode != 0 || joined.LeaderID != joined.MemberID || len(joined.Members) != 1 || !strings.HasPrefix(joined.MemberID, "cli-n") {
			t.Fatalf("join v%d: %+v", v, joined)
		}
		member, generation := joined.MemberID, joined.Generation
		for _, sv := range versions(syncGroupAPI.max) {
			req := kmsg.NewPtrSyncGroupRequest()
			req.Version, req.Group, req.MemberID, req.Generation = sv, "g", member, generation
			req.GroupAssignment = []kmsg.SyncGroupRequestGroupAssignment{{MemberID: member, MemberAssignment: []byte("mine")}}
			if got := ask[*kmsg.SyncGroupResponse](c, req); got.ErrorCode != 0 || string(got.MemberAssignment) != "mine" {
				t.Fatalf("sync v%d: %+v", sv, got)
			}
		}
		for _, hv := range versions(heartbeatAPI.max) {
			for want, gen := range map[int16]int32{0: generation, 22: generation - 1} {
				req := kmsg.NewPtrHeartbeatRequest()
				req.Version, req.Group, req.MemberID, req.Generation = hv, "g", member, gen
				if got := ask[*kmsg.HeartbeatResponse](c, req); got.ErrorCode != want {
					t.Fatalf("heartbeat v%d: %d, want %d", hv, got.ErrorCode, want)
				}
			}
		}
		checkMemberCommits(c, member, generation)
		checkDescribed(c, member)
		leave := kmsg.NewPtrLeaveGroupRequest()
		leave.Version, leave.Group, leave.MemberID = v%(leaveGroupAPI.max+1), "g", member
		if leave.Version >= 3 {
			leave.Members = []kmsg.LeaveGroupRequestMember{{MemberID: member}}
		}
		if got := ask[*kmsg.LeaveGroupResponse](c, leave); got.ErrorCode != 0 || len(got.Members) > 0 && got.Members[0].ErrorCode != 0 {
			t.Fatalf("leave v%d: %+v", leave.Version, got)
		}
	}
}

func commitRequest(v int16, member string, generation int32) *kmsg.OffsetCommitRequest {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version, req.Group, req.MemberID, req.Generation = v, "g", member, generation
	req.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: "t", Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Offset: 3, LeaderEpoch: -1}}}}
	return req
}

func checkMemberCommits(c *client, member string, generation int32) {
	c.t.Helper()
	for _, v := range versions(offsetCommitAPI.max) {
		if v == 0 {
			continue // names no member
		}
		for _, bad := range []struct {
			member     string
			generation int32
			want       int16
		}{{member, generation, 0}, {member, generation + 1, 22}, {"x", generation, 25}, {"", -1, 25}} {
			got := ask[*kmsg.OffsetCommitResponse](c, commitRequest(v, bad.member, bad.generation))
			if code := got.Topics[0].Partitions[0].ErrorCode; code != bad.want {
				c.t.Fatalf("commit v%d of %q in %d: %d, want %d", v, bad.member, bad.generation, code, bad.want)
			}
		}
	}
}

func checkDescribed(c *client, member string) {
	c.t.Helper()
	for _, v := range versions(describeGroupsAPI.max) {
		req := kmsg.NewPtrDescribeGroupsRequest()
		req.Version, req.Groups = v, []string{"g", "nobody"}
		got := ask[*kmsg.DescribeGroupsResponse](c, req)
		g, nobody := got.Groups[0], got.Groups[1]
		if g.State != "Stable" || g.Protocol != "range" || len(g.Members) != 1 || g.Members[0].MemberID != member || g.Members[0].ClientHost != "/127.0.0.1" {
			c.t.Fatalf("describe v%d: %+v", v, g)
		}
		if (nobody.ErrorCode == 69) != (v >= 6) || nobody.ErrorCode == 0 && nobody.State != "Dead" {
			c.t.Fatalf("describe v%d of nobody: %+v", v, nobody)
		}
	}
	for _, v := range versions(listGroupsAPI.max) {
		req := kmsg.NewPtrListGroupsRequest()
		req.Version = v
		if got := ask[*kmsg.ListGroupsResponse](c, req); len(got.Groups) != 1 || got.Groups[0].Group != "g" || got.Groups[0].ProtocolType != "consumer" {
			c.t.Fatalf("list v%d: %+v", v, got)
		}
	}
}

func deleteGroup(c *client, v int16, group string) int16 {
	req := kmsg.NewPtrDeleteGroupsRequest()
	req.Version, req.Groups = v, []string{group}
	return ask[*kmsg.DeleteGroupsResponse](c, req).Groups[0].ErrorCode
}

func deleteOffset(c *client, group, topic string) (whole, part int16) {
	req := kmsg.NewPtrOffsetDeleteRequest()
	req.Group = group
	req.Topics = []kmsg.OffsetDeleteRequestTopic{{Topic: topic, Partitions: []kmsg.OffsetDeleteRequestTopicPartition{{Partition: 0}}}}
	got := ask[*kmsg.OffsetDeleteResponse](c, req)
	if len(got.Topics) > 0 {
		part = got.Topics[0].Partitions[0].ErrorCode
	}
	return got.ErrorCode, part
}

func TestDeletingGroupsAndOffsets(t *testing.T) {
	f := start(t, nil)
	c := f.dial(t)
	createTopic(c, 5, "t", 2, 1, nil)
	createTopic(c, 5, "u", 2, 1, nil)
	if whole, _ := deleteOffset(c, "g", "t"); whole != kerr.GroupIDNotFound.Code {
		t.Errorf("offsets of a group that does not exist: %d", whole)
	}
	one := "one"
	joined := joinAs(c, 5, &one)
	if joined.ErrorCode != 0 || joined.MemberID != "one-nn" && joined.MemberID != "one-n" {
		t.Fatalf("%+v", joined)
	}
	sync := kmsg.NewPtrSyncGroupRequest()
	sync.Version, sync.Group, sync.MemberID, sync.Generation, sync.InstanceID = 5, "g", joined.MemberID, joined.Generation, &one
	if got := ask[*kmsg.SyncGroupResponse](c, sync); got.ErrorCode != 0 {
		t.Fatalf("%+v", got)
	}
	fenced := commitRequest(8, "other", joined.Generation)
	fenced.InstanceID = &one
	if got := ask[*kmsg.OffsetCommitResponse](c, fenced); got.Topics[0].Partitions[0].ErrorCode != kerr.FencedInstanceID.Code {
		t.Errorf("a fenced member's commit: %+v", got)
	}
	ask[*kmsg.OffsetCommitResponse](c, commitRequest(8, joined.MemberID, joined.Generation))
	if whole, part := deleteOffset(c, "g", "t"); whole != 0 || part != kerr.GroupSubscribedToTopic.Code {
		t.Errorf("offset of a topic that is read: %d, %d", whole, part)
	}
	if whole, part := deleteOffset(c, "g", "u"); whole != 0 || part != 0 {
		t.Errorf("offset of another topic: %d, %d", whole, part)
	}
	if got := deleteGroup(c, 2, "g"); got != kerr.NonEmptyGroup.Code {
		t.Errorf("deletion of a live group: %d", got)
	}
	leave := kmsg.NewPtrLeaveGroupRequest()
	leave.Version, leave.Group, leave.Members = 5, "g", []kmsg.LeaveGroupRequestMember{{InstanceID: &one}}
	if got := ask[*kmsg.LeaveGroupResponse](c, leave); got.Members[0].ErrorCode != 0 {
		t.Fatalf("%+v", got)
	}
	if whole, part := deleteOffset(c, "g", "t"); whole != 0 || part != 0 {
		t.Errorf("offset of an empty group: %d, %d", whole, part)
	}
	if _, ok := f.meta.View().Offset("g", "t", 0); ok {
		t.Error("the offset is still there")
	}
	for _, v := range versions(deleteGroupsAPI.max) {
		ask[*kmsg.OffsetCommitResponse](c, commitRequest(8, "", -1))
		if got := deleteGroup(c, v, "g"); got != 0 {
			t.Errorf("deletion v%d: %d", v, got)
		}
		if got := deleteGroup(c, v, "g"); got != kerr.GroupIDNotFound.Code {
			t.Errorf("second deletion v%d: %d", v, got)
		}
		if got := deleteGroup(c, v, "a/b"); got != kerr.InvalidGroupID.Code {
			t.Errorf("deletion of a name that cannot be, v%d: %d", v, got)
		}
	}
}

// A broker that is not the coordinator says so at once, in every version; a parked join ends with its connection.
func TestNotTheCoordinator(t *testing.T) {
	f := start(t, nil)
	c, parked := f.dial(t), f.dial(t)
	if got := joinAs(c, 2, nil); got.ErrorCode != 0 {
		t.Fatalf("%+v", got)
	}
	parked.send(joinRequest(2, "", nil))
	_ = parked.c.Close()
	described := func() string {
		req := kmsg.NewPtrDescribeGroupsRequest()
		req.Groups = []string{"g"}
		return ask[*kmsg.DescribeGroupsResponse](c, req).Groups[0].State
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		f.meta.groups.mu.Lock()
		open, asked := len(f.meta.groups.open), f.meta.groups.last
		f.meta.groups.mu.Unlock()
		if asked >= 2 && open == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d requests are parked, the group is %s", open, described())
		}
	}
	f.meta.register(t, 2, "127.0.0.1:2")
	f.meta.must(t, command(2))
	for _, v := range versions(joinGroupAPI.max) {
		if got := ask[*kmsg.JoinGroupResponse](c, joinRequest(v, "m", nil)); got.ErrorCode != 16 || got.MemberID != "m" || got.Generation != -1 {
			t.Errorf("join v%d: %+v", v, got)
		}
	}
	for _, req := range []kmsg.Request{kmsg.NewPtrHeartbeatRequest(), kmsg.NewPtrSyncGroupRequest(), kmsg.NewPtrLeaveGroupRequest()} {
		var code int16
		switch resp := ask[kmsg.Response](c, req).(type) {
		case *kmsg.HeartbeatResponse:
			code = resp.ErrorCode
		case *kmsg.SyncGroupResponse:
			code = resp.ErrorCode
		case *kmsg.LeaveGroupResponse:
			code = resp.ErrorCode
		}
		if code != 16 {
			t.Errorf("%T: %d", req, code)
		}
	}
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups = []string{"g"}
	if got := ask[*kmsg.DescribeGroupsResponse](c, req); got.Groups[0].ErrorCode != 16 {
		t.Errorf("describe: %+v", got)
	}
	if got := ask[*kmsg.ListGroupsResponse](c, kmsg.NewPtrListGroupsRequest()); got.ErrorCode != 0 || len(got.Groups) != 0 {
		t.Errorf("list: %+v", got)
	}
}

// A member that subscribes between the decision and the deletion keeps its offsets: the deletion is decided again.
func TestOffsetDeleteRacesWithANewMember(t *testing.T) {
	f := start(t, nil)
	c := f.dial(t)
	createTopic(c, 5, "t", 2, 1, nil)
	if got := ask[*kmsg.OffsetCommitResponse](c, commitRequest(8, "", -1)); got.Topics[0].Partitions[0].ErrorCode != 0 {
		t.Fatalf("%+v", got)
	}
	f.meta.before = func(cmd *statepb.Command) {
		if cmd.GetDeleteOffsets() == nil {
			return
		}
		f.meta.before = nil
		s := f.meta.must(t, &statepb.Command{Body: &statepb.Command_CreateSession{CreateSession: &statepb.CreateSession{TimeoutMs: 6000, Password: make([]byte, 16)}}})
		f.meta.must(t, &statepb.Command{Body: &statepb.Command_CreateZnode{CreateZnode: &statepb.CreateZnode{Path: "/consumers/g/ids", Null: true}}})
		f.meta.must(t, &statepb.Command{Origin: &statepb.Origin{Session: s.Value, AttachEpoch: s.Epoch}, Body: &statepb.Command_CreateZnode{CreateZnode: &statepb.CreateZnode{
			Path: "/consumers/g/ids/g_a", Data: []byte(`{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}`), Ephemeral: true}}})
	}
	if whole, part := deleteOffset(c, "g", "t"); whole != 0 || part != kerr.GroupSubscribedToTopic.Code {
		t.Errorf("%d, %d", whole, part)
	}
	if _, ok := f.meta.View().Offset("g", "t", 0); !ok {
		t.Error("the new member's offset is gone")
	}
}

// Texts that are no UTF-8 are read as Kafka's brokers read them, and metadata is counted in Java's characters.
func TestCommitOfWhatIsNoText(t *testing.T) {
	f := start(t, nil)
	c := f.dial(t)
	createTopic(c, 5, "t", 2, 1, nil)
	for _, s := range []struct {
		metadata, want string
		code           int16
	}{
		{"a\xff\xfeb", "a\ufffd\ufffdb", 0},
		{strings.Repeat("\u20ac", maxOffsetMetadata), strings.Repeat("\u20ac", maxOffsetMetadata), 0},
		{strings.Repeat("\U0001f600", maxOffsetMetadata/2+1), "", kerr.OffsetMetadataTooLarge.Code},
	} {
		req := commitRequest(8, "", -1)
		req.Topics[0].Partitions[0].Metadata = &s.metadata
		if got := ask[*kmsg.OffsetCommitResponse](c, req).Topics[0].Partitions[0].ErrorCode; got != s.code {
			t.Errorf("%.10q: code %d, want %d", s.metadata, got, s.code)
		}
		if o, ok := f.meta.View().Offset("g", "t", 0); s.code == 0 && (!ok || o.Metadata != s.want) {
			t.Errorf("%.10q: stored %+v", s.metadata, o)
		}
	}
	for _, version := range []int16{2, 8} {
		req := commitRequest(version, "m\xff", 3)
		if got := ask[*kmsg.OffsetCommitResponse](c, req).Topics[0].Partitions[0].ErrorCode; got == kerr.RequestTimedOut.Code || got == 0 {
			t.Errorf("a member that is no text, v%d: %d", version, got)
		}
	}
}

// A commit that fits no entry (1 MiB, as in Kafka's offsets topic) is refused for good: a client that is sent to look for the coordinator
// would look for ever. Kafka's GroupMetadataManager says 28; 4.4 was asked, and says -1, which tells less.
func TestCommitThatIsTooLarge(t *testing.T) {
	if code := commitCode(nil, fmt.Errorf("encode: %w", state.ErrTooLarge)); code != kerr.InvalidCommitOffsetSize.Code {
		t.Errorf("code %d", code)
	}
}
