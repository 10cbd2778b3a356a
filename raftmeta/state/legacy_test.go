package state

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/barnabas-mq/barnabas/internal/id"
	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

func jvm(topic string) []byte {
	return fmt.Appendf(nil, `{"version":1,"subscription":{"%s":1},"pattern":"static","timestamp":"1"}`, topic)
}

// consumers makes a group with members, each in a session of its own, at 10.0.0.<n>.
func (f *fold) consumers(group string, members ...string) map[string]*pb.Origin {
	f.t.Helper()
	for _, dir := range []string{"", "/ids", "/owners", "/owners/t", "/offsets", "/offsets/t"} {
		f.ok(&pb.Command{Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: "/consumers/" + group + dir, Null: true}}})
	}
	sessions := map[string]*pb.Origin{}
	for i, m := range members {
		r := f.ok(&pb.Command{Body: &pb.Command_CreateSession{CreateSession: &pb.CreateSession{TimeoutMs: 6000, Password: make([]byte, 16), Host: fmt.Sprintf("10.0.0.%d", i)}}})
		sessions[m] = &pb.Origin{Session: r.Value, AttachEpoch: r.Epoch}
		f.ok(&pb.Command{Origin: sessions[m], Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: "/consumers/" + group + "/ids/" + m, Data: jvm("t"), Ephemeral: true}}})
	}
	return sessions
}

func publish(generation int32, members ...string) *pb.Command {
	return &pb.Command{Body: &pb.Command_PublishGeneration{PublishGeneration: &pb.PublishGeneration{Group: "g", Generation: generation, Members: members,
		Topics: []string{"t", "none"}, AllTopics: true, Rebalance: &pb.Rebalance{Cause: "join", Text: "x"}}}}
}

func claimAs(o *pb.Origin, name, data string) *pb.Command {
	return &pb.Command{Origin: o, Body: &pb.Command_ClaimOwner{ClaimOwner: &pb.ClaimOwner{Group: "g", Topic: "t", Name: name, Data: []byte(data), Ephemeral: true}}}
}

func expireSession(o *pb.Origin) *pb.Command {
	return &pb.Command{Body: &pb.Command_ExpireSessions{ExpireSessions: &pb.ExpireSessions{Sessions: []*pb.CloseSession{{Session: o.Session, AttachEpoch: o.AttachEpoch}}}}}
}

func TestGenerations(t *testing.T) {
	f := newFold(t)
	f.broker(1, "n")
	f.ok(&pb.Command{Body: &pb.Command_CreateTopic{CreateTopic: &pb.CreateTopic{Name: "t", TopicId: topicID(1), Assignments: []*pb.Assignment{{Replicas: []int32{1}}, {Replicas: []int32{1}}}}}})
	f.want(pb.Code_UNKNOWN_GROUP, publish(1, "a"))
	who := f.consumers("g", "a", "b")
	f.want(pb.Code_STALE, publish(2, "a"))
	f.ok(publish(1, "a", "gone"))
	g, _ := f.s.View().Legacy("g")
	if st, ok := g.Topic("t"); g.Number != 1 || len(g.Members) != 1 || g.Shows("a") == nil || !ok || st.Partitions != 2 || !slices.Equal(g.All, []string{"t"}) {
		t.Fatalf("%+v", g)
	}
	if st, ok := g.Topic("none"); !ok || st.Partitions != 0 {
		t.Fatal("a topic that is not there is not told of")
	}
	v := f.s.View()
	if v.Generation(id.SessionID(who["a"].Session), "g") != g || v.Generation(0, "g") != nil {
		t.Fatal("who is shown the generation")
	}
	f.want(pb.Code_STALE, &pb.Command{Body: &pb.Command_CompleteGeneration{CompleteGeneration: &pb.CompleteGeneration{Group: "g", Generation: 2}}})
	f.ok(&pb.Command{Body: &pb.Command_CompleteGeneration{CompleteGeneration: &pb.CompleteGeneration{Group: "g", Generation: 1, Rebalance: &pb.Rebalance{WaitedMs: 7, WaitedFor: "a-0"}}}})
	f.ok(publish(2, "a", "b"))
	head, _ := f.s.View().Group("g")
	if r := head.Rebalances; len(r) != 2 || r[0].WaitedMs != 7 || r[0].Kind != KindLegacy || !slices.Equal(r[1].Joined, []string{"b"}) {
		t.Fatalf("%+v", head.Rebalances)
	}
	var told []string
	for _, c := range f.last.Changes {
		if c.Kind == GenerationShown {
			told = append(told, c.Path)
		}
	}
	if !slices.Equal(told, []string{"/consumers/g/ids"}) {
		t.Fatal(told)
	}
	f.s = roundTrip(t, f.s)
	f.ok(expireSession(who["a"]))
	f.ok(expireSession(who["b"]))
	f.ok(&pb.Command{Body: &pb.Command_DeleteGroup{DeleteGroup: &pb.DeleteGroup{Group: "g"}}})
	if _, ok := f.s.View().Legacy("g"); ok {
		t.Fatal("a group that is gone is remembered")
	}
}

// The partitions of an expired session are nobody else's until they are released; those of a closed one are free.
func TestReservations(t *testing.T) {
	f := newFold(t)
	f.broker(1, "n")
	who := f.consumers("g", "a", "b", "c")
	f.ok(claimAs(who["a"], "0", "a-0"))
	f.ok(claimAs(who["b"], "1", "b-0"))
	f.want(pb.Code_NODE_EXISTS, claimAs(who["c"], "1-0", "c")) // another name for the same partition
	f.ok(expireSession(who["a"]))
	f.want(pb.Code_NODE_EXISTS, claimAs(who["c"], "0", "c-0"))
	f.s = roundTrip(t, f.s)
	g, _ := f.s.View().Legacy("g")
	if r := g.Reservation("t", 0); r == nil || r.Member != "a" || r.Host != "10.0.0.0" {
		t.Fatalf("%+v", g)
	}
	fence := &pb.FenceFetches{Group: "g", Member: "a", Fetches: []*pb.FencedFetch{{Broker: 1, Epoch: 5, Conn: 9, Topic: "t", Partition: 0}}}
	f.ok(&pb.Command{Body: &pb.Command_FenceFetches{FenceFetches: fence}})
	f.s = roundTrip(t, f.s)
	if v := f.s.View(); !v.Fenced(1, 5, 9, "t", 0) || v.Fenced(1, 6, 9, "t", 0) || v.Fenced(1, 5, 9, "t", 1) {
		t.Fatal("fences")
	}
	// The same consumer in a new session has it at once, and its connections fetch again.
	r := f.ok(&pb.Command{Body: &pb.Command_CreateSession{CreateSession: &pb.CreateSession{TimeoutMs: 6000, Password: make([]byte, 16)}}})
	again := &pb.Origin{Session: r.Value, AttachEpoch: r.Epoch}
	f.ok(&pb.Command{Origin: again, Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: "/consumers/g/ids/a", Data: jvm("t"), Ephemeral: true}}})
	f.ok(claimAs(again, "0", "a-0"))
	if v := f.s.View(); v.AnyFence() {
		t.Fatal("the member that is back is cut off")
	}
	f.ok(&pb.Command{Body: &pb.Command_CloseSession{CloseSession: &pb.CloseSession{Session: who["b"].Session, AttachEpoch: who["b"].AttachEpoch}}})
	f.ok(claimAs(who["c"], "1", "c-0"))
	f.ok(expireSession(again))
	f.ok(&pb.Command{Body: &pb.Command_ReleaseOwners{ReleaseOwners: &pb.ReleaseOwners{Group: "g", Session: again.Session, Owned: []*pb.OwnedPartition{{Topic: "t", Partition: 0}}}}})
	f.ok(claimAs(who["c"], "0", "c-0"))
}

func TestRegistrations(t *testing.T) {
	for raw, want := range map[string]string{
		string(jvm("t")): `jvm static "t":1`,
		`{"version":1,"subscription":{"b":2,"a":1},"pattern":"static","timestamp":"77"}`:   `jvm static "a":1 "b":2`,
		`{"version":1,"subscription":{"a\.b.*":1},"pattern":"white_list","timestamp":"1"}`: `jvm white_list "a\\.b.*":1`, // 0.8.1 does not escape
		`{"version":1,"subscription":{"t": 1},"pattern":"white_list","timestamp":"1"}`:     `kafka-node static "t":1`,
		`{"pattern":"static","subscription":{"t":1},"timestamp":1448000000,"version":1}`:   `wvanbergen static "t":1`,
		`some.topic`:               `pykafka static "some.topic":1`,
		``:                         "",
		`{"version":1}`:            "",
		`{"subscription":{"t":1}}`: "",
		`not a topic`:              "",
		`{"version":1,"subscription":{"t":1.5},"pattern":"static"}`: "",
	} {
		reg, ok := ParseRegistration([]byte(raw))
		if got := reg.Key(); ok != (want != "") || ok && got != want {
			t.Errorf("%q: %q %v, want %q", raw, got, ok, want)
		}
	}
}

// Long client ids are kept short, and apart.
func TestClientKey(t *testing.T) {
	long := strings.Repeat("ü", 5000)
	a, b := ClientKey(long+"a"), ClientKey(long+"b")
	if ClientKey("app") != "app" || a == b || len(a) > 128 || !utf8.ValidString(a) || a != ClientKey(long+"a") || ClientKey(strings.Repeat("x", 128)) != strings.Repeat("x", 128) {
		t.Errorf("%q and %q", a, b)
	}
}
