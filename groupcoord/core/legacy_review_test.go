package core

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// two sessions that are members of a complete generation.
func twoMembers(t *testing.T) *teller {
	t.Helper()
	p := &teller{park: newPark(t), raw: map[string]int64{}}
	p.topic("t", 2)
	for _, text := range []string{"session a", "session b", "register a", "register b"} {
		p.tell(parse(text))
	}
	p.pass(12 * time.Second)
	p.out.Reset()
	return p
}

// A claim that comes while another one of the same partition is being carried out waits for its outcome, and then for its release: a
// refusal at once would cost an attempt.
func TestClaimBehindAClaimUnderWay(t *testing.T) {
	p := twoMembers(t)
	p.hold = true
	p.tell(parse("claim a of=t/0"))
	p.tell(parse("claim b of=t/0"))
	if out := p.out.String(); strings.Contains(out, "NODE_EXISTS") {
		t.Fatal(out)
	}
	p.release()
	p.pass(time.Second)
	if out := p.out.String(); strings.Contains(out, "NODE_EXISTS") || !strings.Contains(out, "a: OK") {
		t.Fatal(out)
	}
	p.apply(&pb.Command{Origin: p.origin("a"), Body: &pb.Command_DeleteZnode{DeleteZnode: &pb.DeleteZnode{Path: "/consumers/g/owners/t/0", Version: -1}}})
	if out := p.out.String(); !strings.Contains(out, "b: OK") {
		t.Fatal(out)
	}
}

// The connections of an expired member get nothing more from the moment on at which its partition has a new owner.
func TestFenceComesWithTheNewOwner(t *testing.T) {
	p := twoMembers(t)
	p.mind.cfg.Fetching = func(id.TopicPartition) []Fetcher { return p.fetching }
	p.tell(parse("claim a of=t/0"))
	p.tell(parse("fetches a conn=7"))
	p.tell(parse("expire a"))
	p.pass(500 * time.Millisecond)
	p.tell(parse("claim b of=t/0"))
	for end := p.now + 10*time.Second; p.owners() != "t/0=b-0"; p.advance(10 * time.Millisecond) {
		if p.now > end {
			t.Fatal("the reservation never ends", p.out.String())
		}
	}
	p.advance(10 * time.Millisecond)
	if !p.s.View().AnyFence() {
		t.Fatal("the connection still gets records, and the partition has another owner\n", p.out.String())
	}
}

// In a mixed group too nobody is given a partition that a connection of its expired owner still fetches.
func TestFenceComesBeforeAModernOwner(t *testing.T) {
	w := newTown(t)
	w.topic("t", 4)
	w.add("g_a", state.DialectJVM, "t:1").start()
	w.consumer("M1", "t").start()
	w.pass(10 * time.Second)
	w.want(t, "before", "M1 t[2 3]; g_a t[0 1]")
	w.mind.cfg.Fetching = func(id.TopicPartition) []Fetcher { return w.fetching }
	w.fetching = []Fetcher{{Broker: 1, Epoch: 1, Conn: 7, ClientID: "g", Host: "10.0.0.1"}}
	oneOwner := w.check
	topic, _ := w.s.View().Topic("t")
	w.check = func() {
		oneOwner()
		v := w.s.View()
		for n := range int32(2) {
			row, _ := v.Group("g")
			held := slices.ContainsFunc(row.Members, func(m *state.Member) bool { return m.Consumer != nil && m.Consumer.Held(topic.ID, n) })
			if held && !v.Fenced(1, 1, 7, "t", n) {
				t.Fatalf("t-%d was given away, and a connection of its last owner still fetches it", n)
			}
		}
	}
	m := w.member("g_a")
	m.quit(true)
	m.paused = true
	for end := w.now + 30*time.Second; w.modern("M1").owned[id.TopicPartition{Topic: "t", Partition: 0}] == false; w.pass(100 * time.Millisecond) {
		if w.now > end {
			t.Fatalf("the partitions of the dead consumer are never given away\n%s", w.out.String())
		}
	}
}

// What registrations make us compute is bounded over all topics of a pattern and all members, not for each.
func TestStreamsOfAllTopicsAreBounded(t *testing.T) {
	topics := make([]string, 1000)
	for i := range topics {
		topics[i] = "t" + strconv.Itoa(i)
	}
	reg, ok := state.ParseRegistration([]byte(`{"version":1,"subscription":{".*":9999},"pattern":"white_list","timestamp":"1"}`))
	if !ok {
		t.Fatal("not a registration")
	}
	if _, err := planMembersOf([]registered{{"g_a", reg}}, topics); err == nil || !strings.Contains(err.Error(), "streams") {
		t.Errorf("ten million threads are computed: %v", err)
	}
}

// Only a repeat is told apart from what was committed meanwhile: the first attempt must not be dropped because its node is behind.
func TestOnlyARepeatedCommitIsConditional(t *testing.T) {
	c, v := NewCoordinator(Config{}), state.New().View()
	for _, repeat := range []bool{false, true} {
		cmd := &pb.Command{Body: &pb.Command_CommitOffsets{CommitOffsets: &pb.CommitOffsets{Group: "g", NotSince: 7}}}
		acts := c.Request(v, Request{ID: 1, Repeat: repeat, Command: cmd}, time.Second)
		if got := acts[0].Propose.GetCommitOffsets().NotSince; got != map[bool]int64{true: 7}[repeat] {
			t.Errorf("repeat %v: not since %d", repeat, got)
		}
	}
}

// A commit by the znodes' face (OffsetCommit v0) comes through the mind, and a late one is counted like others.
func TestLateCommitsByTheMindAreCounted(t *testing.T) {
	c, v := NewCoordinator(Config{}), state.New().View()
	c.Request(v, Request{ID: 1, Command: &pb.Command{Body: &pb.Command_CommitOffsets{CommitOffsets: &pb.CommitOffsets{Group: "g"}}}}, time.Second)
	acts := c.Settled(v, 1, &pb.Result{Parts: []*pb.Result{{}, {Code: pb.Code_OFFSET_STALE}}}, time.Second)
	counted := slices.ContainsFunc(acts, func(a Action) bool { return a.Count != nil && a.Count.Gate == string(state.GateCommit) })
	answered := slices.ContainsFunc(acts, func(a Action) bool { return a.Request == 1 && a.Reply != nil })
	if !counted || !answered {
		t.Errorf("counted %v, answered %v: %+v", counted, answered, acts)
	}
}
