package groupcoord

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/groupcoord/core"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

func classic() core.Mind {
	return core.NewCoordinator(core.Config{InitialDelay: -1, MinSession: time.Millisecond})
}

func joinAs(member string, session time.Duration) *kmsg.JoinGroupRequest {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version, req.Group, req.MemberID, req.ProtocolType = 2, "g", member, "consumer"
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = int32(session.Milliseconds()), 60_000
	req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: []byte("t")}}
	return req
}

func (w *world) asks(ctx context.Context, req kmsg.Request) <-chan kmsg.Response {
	answer := make(chan kmsg.Response, 1)
	go func() {
		resp, err := w.client().Ask(ctx, "cli", "h", req)
		if err != nil {
			resp = nil
		}
		answer <- resp
	}()
	return answer
}

func (w *world) join(ctx context.Context, member string) *kmsg.JoinGroupResponse {
	w.t.Helper()
	resp, ok := (<-w.asks(ctx, joinAs(member, time.Minute))).(*kmsg.JoinGroupResponse)
	if !ok || resp.ErrorCode != 0 {
		w.t.Fatalf("join: %+v", resp)
	}
	return resp
}

func (w *world) state() string {
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups = []string{"g"}
	resp, ok := (<-w.asks(within(w.t), req)).(*kmsg.DescribeGroupsResponse)
	if !ok {
		w.t.Fatal("no answer")
	}
	return resp.Groups[0].State
}

func (w *world) await(want string) {
	w.t.Helper()
	for end := time.Now().Add(time.Minute); w.state() != want; time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("still %s, not %s", w.state(), want)
		}
	}
}

// A JoinGroup and a SyncGroup are parked while their coordinator ends: their node repeats both to the next one, the generation goes
// on, and nobody hears of it.
func TestParkedMembersSurviveFailover(t *testing.T) {
	w := newWorld(t, classic)
	stop := w.lead("a")
	one := w.join(within(t), "")
	second := w.asks(within(t), joinAs("", time.Minute))
	w.await("PreparingRebalance")
	stop()
	stop = w.lead("b")
	w.await("PreparingRebalance")
	again := w.join(within(t), one.MemberID)
	two := (<-second).(*kmsg.JoinGroupResponse)
	if two.ErrorCode != 0 || two.Generation != 2 || again.Generation != 2 || len(again.Members) != 2 {
		t.Fatalf("%+v and %+v", again, two)
	}
	wait := kmsg.NewPtrSyncGroupRequest()
	wait.Group, wait.MemberID, wait.Generation = "g", two.MemberID, 2
	follower := w.asks(within(t), wait)
	stop()
	stop = w.lead("a")
	defer func() { stop() }()
	lead := kmsg.NewPtrSyncGroupRequest()
	lead.Group, lead.MemberID, lead.Generation = "g", one.MemberID, 2
	lead.GroupAssignment = []kmsg.SyncGroupRequestGroupAssignment{{MemberID: two.MemberID, MemberAssignment: []byte("all")}}
	if got := (<-w.asks(within(t), lead)).(*kmsg.SyncGroupResponse); got.ErrorCode != 0 {
		t.Fatalf("%+v", got)
	}
	if got := (<-follower).(*kmsg.SyncGroupResponse); got.ErrorCode != 0 || string(got.MemberAssignment) != "all" {
		t.Fatalf("%+v", got)
	}
	w.await("Stable")
}

// A client that is gone while it waits is forgotten; a member that is silent is out by the driver's clock.
func TestSilentMembersEnd(t *testing.T) {
	w := newWorld(t, classic)
	defer w.lead("a")()
	if got := (<-w.asks(within(t), joinAs("", time.Second))).(*kmsg.JoinGroupResponse); got.ErrorCode != 0 {
		t.Fatalf("%+v", got)
	}
	w.await("Empty")
	w.join(within(t), "")
	ctx, cancel := context.WithCancel(context.Background())
	gone := w.asks(ctx, joinAs("", time.Minute))
	w.await("PreparingRebalance")
	cancel()
	if resp := <-gone; resp != nil {
		t.Fatalf("%+v", resp)
	}
}

// Without a coordinator Ask gives up, so that the client looks elsewhere; a command waits.
func TestAskGivesUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, classic)
	begun := time.Now()
	if resp := <-w.asks(within(t), kmsg.NewPtrHeartbeatRequest()); resp != nil || time.Since(begun) < patience {
		t.Fatalf("%+v after %v", resp, time.Since(begun))
	}
}

// Many members commit at once while members come and go: no commit is taken of another generation, all are answered.
func TestCommitsWhileRebalancing(t *testing.T) {
	w := newWorld(t, classic)
	defer w.lead("a")()
	one := w.join(within(t), "")
	assign := kmsg.NewPtrSyncGroupRequest()
	assign.Group, assign.MemberID, assign.Generation = "g", one.MemberID, one.Generation
	<-w.asks(within(t), assign)
	c := w.at("a")
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			res, err := c.Commit(within(t), time.Minute, &pb.CommitOffsets{
				Group: "g", Member: one.MemberID, Generation: one.Generation, From: pb.OffsetOrigin_ORIGIN_KAFKA,
				Items: []*pb.OffsetItem{{Topic: "t", Offset: int64(i)}}})
			if err != nil || res.Code != pb.Code_OK && res.Code != pb.Code_UNKNOWN_MEMBER {
				t.Errorf("%v, %v", res, err)
			}
		})
	}
	leave := kmsg.NewPtrLeaveGroupRequest()
	leave.Group, leave.MemberID = "g", one.MemberID
	if got := (<-w.asks(within(t), leave)).(*kmsg.LeaveGroupResponse); got.ErrorCode != 0 {
		t.Fatalf("%+v", got)
	}
	wg.Wait()
	beat := kmsg.NewPtrHeartbeatRequest()
	beat.Group, beat.MemberID, beat.Generation = "g", one.MemberID, one.Generation
	if got := (<-w.asks(within(t), beat)).(*kmsg.HeartbeatResponse); got.ErrorCode != kerr.UnknownMemberID.Code {
		t.Fatalf("%+v", got)
	}
	if g, _ := w.View().Group("g"); g.State != state.GroupEmpty {
		t.Fatalf("%+v", g)
	}
}

func FuzzDecodeKafka(f *testing.F) {
	f.Add(encodeKafka("cli", "h", "n", joinAs("m", time.Minute)))
	f.Add([]byte{0, 12, 0, 4, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		if k, err := decodeKafka(b); err == nil {
			_ = encodeKafka(k.ClientID, k.Host, k.Nonce, k.Body)
		}
	})
}
