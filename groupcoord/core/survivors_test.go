package core

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// Rules of held requests that no other test would miss: each of these was broken on purpose, and everything else was green.

// ---- mixed groups ----

// Nobody by Kafka's protocol is given what the published view gives to consumers by ZooKeeper, though none of them owns it, nor what the
// next one will.
func TestFreeIsWhatNoViewGivesToConsumersByZooKeeper(t *testing.T) {
	w := newTown(t)
	w.topic("t", 12)
	topic, _ := w.s.View().Topic("t")
	free := func(n int32) bool { return w.mind.mixFree(w.s.View(), "g", topic.ID, n) }
	a := w.add("g_a", state.DialectJVM, "t:1")
	a.start()
	a.paused = true // it never claims
	w.pass(time.Second)
	w.consumer("M1", "t").start()
	w.pass(time.Second)
	if g, _ := w.s.View().Legacy("g"); g.Number != 1 || len(g.Members) != 1 {
		t.Fatalf("generation %d with %d members", g.Number, len(g.Members))
	}
	if m := w.mind.mixOf("g"); !m.next.may("t", 6) || free(6) || free(0) {
		t.Error("what is a's as published is free, for it will be the others'")
	}
	a.paused = false
	w.pass(15 * time.Second)
	w.want(t, "shared", "M1 t[6 7 8 9 10 11]; g_a t[0 1 2 3 4 5]")
	if !free(6) || !free(11) || free(0) {
		t.Error("the block of the others is not free")
	}
	w.add("g_b", state.DialectJVM, "t:1").start()
	w.advance(0)
	if m := w.mind.mixOf("g"); !m.now.may("t", 6) || free(6) || !free(11) {
		t.Error("what will be b's is free, for it is the others' as published")
	}
}

// slowModern is a member by Kafka's protocol that has everything and gives up nothing: it does not poll.
func slowModern(t *testing.T) *town {
	t.Helper()
	w := newTown(t)
	w.topic("t", 4)
	m := w.consumer("M1", "t")
	m.start()
	w.pass(3 * time.Second)
	w.want(t, "alone", "M1 t[0 1 2 3]")
	m.paused = true
	return w
}

// number is the generation that is published, 0 for none.
func (p *park) number() int32 {
	g, _ := p.s.View().Legacy("g")
	return numberOf(g)
}

// published returns when the next generation was published.
func (w *town) published(t *testing.T, limit time.Duration) time.Duration {
	t.Helper()
	before, begun := w.number(), w.now
	for w.number() == before {
		if w.now-begun > limit {
			t.Fatalf("no generation within %v", limit)
		}
		w.pass(10 * time.Millisecond)
	}
	return w.now
}

// A generation waits 13 s for what members by Kafka's protocol are to give up, and no longer.
func TestMixedGenerationComesWithinTheBoundOfAJoin(t *testing.T) {
	for _, dead := range []bool{false, true} { // it heartbeats and does not poll; or it has not even heard
		w := slowModern(t)
		if dead {
			w.modern("M1").kill()
		}
		begun := w.now
		w.add("g_a", state.DialectJVM, "t:1").start()
		if waited := w.published(t, time.Minute) - begun; waited < joinBound || waited > joinBound+100*time.Millisecond {
			t.Errorf("a join was held for %v, want %v", waited, joinBound)
		}
	}
}

// So it does when nobody waits for it any more: the client has gone away, and its session has not.
func TestMixedGenerationComesWithoutAJoin(t *testing.T) {
	w := slowModern(t)
	begun := w.now
	a := w.add("g_a", state.DialectJVM, "t:1")
	a.start()
	w.pass(time.Second)
	a.paused = true
	w.disconnect(a)
	w.cancelGone()
	if waited := w.published(t, time.Minute) - begun; waited < joinBound || waited > joinBound+100*time.Millisecond {
		t.Errorf("a generation came after %v, want %v", waited, joinBound)
	}
}

// The bound counts from when the client asked, not from when its registration stood.
func TestJoinIsBoundFromItsRequestOn(t *testing.T) {
	w := slowModern(t)
	begun := w.now
	w.hold = true
	w.add("g_a", state.DialectJVM, "t:1").start()
	w.advance(2 * time.Second)
	w.release()
	if waited := w.published(t, time.Minute) - begun; waited < joinBound || waited > joinBound+100*time.Millisecond {
		t.Errorf("a join was held for %v, want %v", waited, joinBound)
	}
}

// A consumer by ZooKeeper that leaves before it was ever shown leaves all to the others.
func TestMixedReplansWhenTheLastOneLeavesUnseen(t *testing.T) {
	w := newTown(t)
	w.topic("t", 4)
	w.consumer("M1", "t").start()
	w.pass(3 * time.Second)
	a := w.add("g_a", state.DialectJVM, "t:1")
	a.start()
	w.pass(200 * time.Millisecond)
	if w.number() != 0 {
		t.Fatal("it was shown")
	}
	a.quit(false)
	w.pass(10 * time.Second)
	w.want(t, "alone again", "M1 t[0 1 2 3]")
}

// A consumer by ZooKeeper is not let in beside members that cannot share with it, whether they are in or are just joining.
func TestNoConsumerBesideThoseThatCannotShare(t *testing.T) {
	for _, c := range []struct {
		name, protocolType string
		metadata           []byte
		delay              time.Duration
	}{
		{"Connect", "connect", []byte("x"), 0}, {"Connect, joining", "connect", []byte("x"), time.Minute}, {"a subscription of its own kind", "consumer", []byte("x"), 0},
	} {
		p := &teller{park: newPark(t), raw: map[string]int64{}}
		p.mind.cfg.InitialDelay = c.delay
		p.topic("t", 2)
		join := kmsg.NewPtrJoinGroupRequest()
		join.Version, join.Group, join.ProtocolType, join.SessionTimeoutMillis, join.RebalanceTimeoutMillis = 1, "g", c.protocolType, 60_000, 60_000
		join.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "mine", Metadata: c.metadata}}
		p.kafka("m", join)
		p.tellAll("session a", "register a")
		begun := p.now
		p.answers(c.name, "")
		p.ending(begun, 10*time.Second, "a: NODE_EXISTS")
	}
}

// What is reserved for the last consumer by ZooKeeper is nobody else's, though nothing else is left of it.
func TestFreeIsNotWhatIsReserved(t *testing.T) {
	w := newTown(t)
	w.topic("t", 4)
	topic, _ := w.s.View().Topic("t")
	w.add("g_a", state.DialectJVM, "t:1").start()
	w.consumer("M1", "t").start()
	w.pass(10 * time.Second)
	w.want(t, "shared", "M1 t[2 3]; g_a t[0 1]")
	crash(w.park, "g_a")
	w.modern("M1").paused = true
	w.pass(2 * time.Second)
	row, _ := w.s.View().Legacy("g")
	if len(row.Reserved) != 2 || len(row.Members) != 0 {
		t.Fatalf("reserved %v, members %v", row.Reserved, row.Members)
	}
	if !w.mind.hasLegacy(w.s.View(), "g") || w.mind.mixFree(w.s.View(), "g", topic.ID, 0) {
		t.Error("what is reserved is free")
	}
	w.modern("M1").paused = false
	w.pass(10 * time.Second)
	w.want(t, "alone", "M1 t[0 1 2 3]")
	if w.mind.hasLegacy(w.s.View(), "g") {
		t.Error("the group has consumers by ZooKeeper for ever")
	}
}

// A topic that grows, or is another one of the same name, is dealt out anew, whatever else there is to tell of the group.
func TestLayoutFollowsTopics(t *testing.T) {
	w := newTown(t)
	w.topic("t", 4)
	w.add("g_a", state.DialectJVM, "t:1").start()
	w.consumer("M1", "t").start()
	w.pass(10 * time.Second)
	if m := w.mind.mixOf("g"); m.next.may("t", 5) {
		t.Error("a partition is shared that there is not")
	}
	w.topic("t", 6)
	if m := w.mind.mixOf("g"); !m.next.may("t", 5) || m.next.may("t", 2) {
		t.Error("the topic has grown, and its partitions are dealt out as before")
	}
	w.pass(10 * time.Second)
	w.want(t, "grown", "M1 t[3 4 5]; g_a t[0 1 2]")
}

// Where nobody can tell which topics consumers by ZooKeeper read, everything is theirs.
func TestUnknownLayoutIsAllTheirs(t *testing.T) {
	l := unknownLayout([]registered{{"g_a", state.Registration{Pattern: "white_list", Topics: []state.Subscription{{Topic: "(?=x)", Threads: 1}}}}})
	if l.may("t", 0) {
		t.Error("a partition may be given away that a pattern which cannot be read may mean")
	}
	l = unknownLayout([]registered{{"g_a", state.Registration{Pattern: "static", Topics: []state.Subscription{{Topic: "t", Threads: 1}}}}})
	if l.may("t", 0) || !l.may("u", 0) {
		t.Error("of static subscriptions their topics are theirs, and no more")
	}
}

// ---- claims ----

// tellAll has the story go on by some lines and returns what came of them.
func (p *teller) tellAll(lines ...string) string {
	p.out.Reset()
	for _, l := range lines {
		p.tell(parse(l))
	}
	return p.said()
}

// answers fails the test unless exactly this was answered since the last look.
func (p *teller) answers(when, want string) {
	p.t.Helper()
	var got []string
	for out := range strings.Lines(p.said()) {
		if out = strings.TrimSpace(out); !strings.HasPrefix(out, "> log:") {
			got = append(got, strings.TrimPrefix(out, "> "))
		}
	}
	if have := strings.Join(got, ", "); have != want {
		p.t.Errorf("%s: answered %q, want %q", when, have, want)
	}
}

// ending has time go by up to a moment before the end of something that began at a time, and then to it.
func (p *teller) ending(begun, lasts time.Duration, want string) {
	p.t.Helper()
	p.advance(begun + lasts - time.Millisecond - p.now)
	p.answers("before the bound", "")
	p.advance(2 * time.Millisecond)
	p.answers("at the bound", want)
}

// takes has an owner znode made though the mind has not been asked.
func (p *teller) takes(name, of string) {
	p.t.Helper()
	topic, n := partitionOf(of)
	c := &pb.ClaimOwner{Group: "g", Topic: topic, Name: of[strings.LastIndexByte(of, '/')+1:], Partition: n, Data: []byte(name + "-0"), Ephemeral: true}
	p.must(&pb.Command{Origin: p.origin(name), Body: &pb.Command_ClaimOwner{ClaimOwner: c}})
}

// held says that the last generation's account has a hold.
func (p *teller) accounts(want string) {
	p.t.Helper()
	all := p.row().Rebalances
	if holds := all[len(all)-1].Holds; !slices.Contains(holds, want) {
		p.t.Errorf("the account of the last generation has holds %v, want %q", holds, want)
	}
}

// A claim that looked free, and that the state refuses since another came first, is held like any other: to its bound, or until the release.
func TestClaimThatCameSecondIsHeld(t *testing.T) {
	for _, released := range []bool{false, true} {
		p := twoMembers(t)
		begun := p.now
		p.hold = true
		p.tell(parse("claim a of=t/0"))
		p.advance(time.Second)
		p.takes("b", "t/0")
		p.release()
		p.answers("the owner is another", "")
		if released {
			p.tellAll("delete b of=t/0")
			if got := p.owners(); got != "t/0=a-0" {
				t.Errorf("after the release: %s", got)
			}
			continue
		}
		p.ending(begun, 8*time.Second, "a: NODE_EXISTS")
	}
}

// It is not proposed for ever: after five that came too late it is refused.
func TestClaimThatAlwaysComesSecond(t *testing.T) {
	p := twoMembers(t)
	p.hold = true
	p.tell(parse("claim a of=t/0"))
	p.takes("b", "t/0")
	for range 5 {
		p.release()
		p.answers("it was too late", "")
		p.hold = true
		p.tellAll("delete b of=t/0") // and it is proposed again
		p.takes("b", "t/0")
	}
	p.release()
	p.answers("it was too late for the sixth time", "a: NODE_EXISTS")
}

// A claim that the state has carried out, and whose answer was lost, stands when it is repeated; what others, or the session itself, have
// made of the node is not taken for it, whether the claim would be held or not.
func TestRepeatedClaim(t *testing.T) {
	for _, c := range []struct {
		name, owner, node, data string
		first                   bool // it is no repeat
		off, on                 string
	}{
		{"its own", "a", "0", "a-0", false, "a: OK", "a: OK"},
		{"its own, not repeated", "a", "0", "a-0", true, "a: NODE_EXISTS", "a: NODE_EXISTS"},
		{"of another thread", "a", "0", "a-1", false, "a: NODE_EXISTS", "a: NODE_EXISTS"},
		{"of another session", "b", "0", "a-0", false, "a: NODE_EXISTS", ""}, // it is held
		{"of another session, by another name", "b", "1-0", "a-0", false, "a: NODE_EXISTS", ""},
		{"of no session", "", "0", "a-0", false, "a: NODE_EXISTS", "a: NODE_EXISTS"},
	} {
		for _, off := range []bool{true, false} {
			p := twoMembers(t)
			want := c.on
			if off {
				want = c.off
				p.tellAll("gates g off=claim")
			}
			claim := &pb.ClaimOwner{Group: "g", Topic: "t", Name: c.node, Data: []byte(c.data), Ephemeral: c.owner != ""}
			origin := p.origin(c.owner)
			if c.owner == "" {
				origin = nil
			}
			p.must(&pb.Command{Origin: origin, Body: &pb.Command_ClaimOwner{ClaimOwner: claim}})
			mine := &pb.ClaimOwner{Group: "g", Topic: "t", Name: "0", Data: []byte("a-0"), Ephemeral: true}
			var answer *pb.Result
			reply := p.onReply
			p.onReply = func(name string, r Request, resp kmsg.Response, res *pb.Result) {
				answer = res
				reply(name, r, resp, res)
			}
			p.ask("a", Request{Repeat: !c.first, Command: &pb.Command{Origin: p.origin("a"), Body: &pb.Command_ClaimOwner{ClaimOwner: mine}}})
			p.answers(c.name, want)
			if want == "a: OK" && (answer.Path != "/consumers/g/owners/t/0" || answer.Zxid == 0) {
				t.Errorf("%s: %v", c.name, answer)
			}
		}
	}
}

// A claim that waits behind another one of the partition goes on when that one comes to nothing, though nothing has changed.
func TestClaimBehindOneThatIsLost(t *testing.T) {
	p := twoMembers(t)
	p.hold = true
	p.tell(parse("claim a of=t/0"))
	p.tell(parse("claim b of=t/0"))
	p.lose = "dropped"
	p.release()
	p.answers("the first is lost", "a: STALE_TERM, b: OK")
}

// What cannot be released by the end of a session is not waited for, nor does a session wait for itself.
func TestClaimOfWhatNobodyWillRelease(t *testing.T) {
	p := twoMembers(t)
	p.must(&pb.Command{Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: "/consumers/g/owners/t/0", Data: []byte("tool")}}})
	p.tellAll("claim a of=t/1")
	p.tell(parse("claim b of=t/0"))
	p.answers("a node of no session", "b: NODE_EXISTS")
	p.tell(parse("claim a of=t/1"))
	p.answers("its own node", "a: NODE_EXISTS")
}

// A claim is refused when its bound is over, and the account tells how long it was held.
func TestClaimIsRefusedAtItsBound(t *testing.T) {
	p := twoMembers(t)
	p.tellAll("claim a of=t/0", "claim a of=t/1", "session c", "register c")
	p.advance(time.Second)
	if p.number() != 2 {
		t.Fatalf("generation %d", p.number())
	}
	p.said()
	begun := p.now
	p.tell(parse("claim b of=t/0"))
	var seen uint64
	reply := p.onReply
	p.onReply = func(name string, r Request, resp kmsg.Response, res *pb.Result) {
		seen = res.Index
		reply(name, r, resp, res)
	}
	p.ending(begun, 8*time.Second, "b: NODE_EXISTS")
	if seen != uint64(p.index) {
		t.Errorf("the refusal is answered from index %d, the state is at %d", seen, p.index)
	}
	p.tellAll("delete a of=t/0", "delete a of=t/1", "claim b of=t/0", "claim c of=t/1")
	p.accounts("claim 1x, 8000 ms")
}

// What a claim waited for a reservation is counted under its gate too, and nothing else is.
func TestReservationIsCounted(t *testing.T) {
	p := twoMembers(t)
	p.tellAll("claim a of=t/0", "claim a of=t/1", "session c", "register c")
	p.advance(time.Second)
	p.tellAll("claim b of=t/0", "claim c of=t/1")
	p.advance(time.Second)
	p.mind.cfg.Fetching = func(id.TopicPartition) []Fetcher { return p.fetching }
	p.tellAll("fetches x client=other", "expire a")
	p.advance(2 * time.Second)
	p.answers("the partitions are fetched", "")
	p.tellAll("disconnects x")
	p.advance(300 * time.Millisecond)
	if got := p.owners(); got != "t/0=b-0 t/1=c-0" {
		t.Fatalf("owners: %s", got)
	}
	c, r := p.gates[state.GateClaim], p.gates[state.GateReservation]
	if c.n != 2 || r.n != 2 || r.total < 4*time.Second || c.total-r.total != 2*time.Second {
		t.Errorf("claims that were held for a second by the owner and then for its reservation are counted as %v, and %v of it", c, r)
	}
}

// With the gate of claims off, a claim is refused at once, and who gives up then is made to join anew as after a hold.
func TestGhostOfARefusalAtOnce(t *testing.T) {
	p := twoMembers(t)
	p.tellAll("gates g off=claim", "claim a of=t/0", "session c", "register c")
	p.advance(time.Second)
	p.said()
	p.tell(parse("claim b of=t/0"))
	p.answers("a's partition", "b: NODE_EXISTS")
	begun := p.now
	p.advance(16 * time.Second)
	if _, alive := p.s.View().Session(id.SessionID(p.raw["b"])); alive {
		t.Errorf("%v after its refusal the session of a member that does nothing goes on: %s", p.now-begun, p.said())
	}
}

// Two that wait for each other's partitions: the younger of them goes on at once, whether they claim or read.
func TestYoungerOfACycleGoesOn(t *testing.T) {
	for _, verb := range []string{"claim", "read"} {
		p := twoMembers(t)
		p.tellAll("claim a of=t/0", "claim b of=t/1", "session c", "register c")
		p.advance(time.Second)
		p.tellAll("write a of=t/0 offset=1", "write b of=t/1 offset=1")
		p.tell(parse(verb + " a of=t/1"))
		p.answers("the first", "")
		p.tell(parse(verb + " b of=t/0"))
		p.answers("the second", map[string]string{"claim": "b: NODE_EXISTS", "read": "b: OK"}[verb])
		p.tellAll("delete b of=t/1")
		if len(p.open) > 0 {
			t.Errorf("%s: the other waits on after the release", verb)
		}
		p.advance(20 * time.Second)
		if n := p.gates[map[string]state.Gate{"claim": state.GateClaim, "read": state.GateOffset}[verb]].n; n != 2 {
			t.Errorf("%s: two were held, %d are counted", verb, n)
		}
	}
}

// A member that registers anew waits for the generation, and so for those who claim: who claims what it has does not wait for it.
func TestClaimOfWhatAJoinerHas(t *testing.T) {
	p := twoMembers(t)
	p.tellAll("claim a of=t/0", "claim b of=t/1", "session c", "register c")
	p.advance(time.Second)
	p.said()
	p.tell(parse(`reregister a as={"version":1,"subscription":{"t":2},"pattern":"static","timestamp":"1"}`))
	p.answers("a generation is being claimed", "")
	p.tell(parse("claim b of=t/0"))
	p.answers("a waits for b", "b: NODE_EXISTS")
}

// A read that has nothing to wait for is answered at once; one that is held is, at the latest, when its bound is over.
func TestReadIsAnswered(t *testing.T) {
	p := twoMembers(t)
	p.said()
	p.tell(parse("fetch-offset x of=t/0"))
	p.answers("nobody owns it", "x: OK")
	for _, c := range []struct {
		verb, name string
		bound      time.Duration
	}{{"read", "b", 8 * time.Second}, {"fetch-offset", "x", 2 * time.Second}} {
		p := twoMembers(t)
		p.tellAll("claim a of=t/0", "session c", "register c")
		p.advance(time.Second)
		p.said()
		begun := p.now
		p.tell(parse(c.verb + " " + c.name + " of=t/0"))
		p.ending(begun, c.bound, c.name+": OK")
	}
}

// One that was refused a claim and then granted one has not given up, whatever it owns later.
func TestNoGhostAfterAGrant(t *testing.T) {
	p := twoMembers(t)
	p.tellAll("claim a of=t/0", "session c", "register c")
	p.advance(time.Second)
	p.said()
	p.tell(parse("claim b of=t/0"))
	p.advance(8 * time.Second)
	p.answers("a keeps it", "b: NODE_EXISTS")
	p.tellAll("claim b of=t/1", "delete b of=t/1")
	p.advance(20 * time.Second)
	if _, alive := p.s.View().Session(id.SessionID(p.raw["b"])); !alive {
		t.Errorf("its session was ended: %s", p.said())
	}
}

// What waits for a member by Kafka's protocol is no reservation.
func TestClaimOfWhatAModernMemberKeepsIsNoReservation(t *testing.T) {
	w := slowModern(t)
	w.add("g_a", state.DialectJVM, "t:1").start()
	w.pass(25 * time.Second)
	if c, r := w.gates[state.GateClaim], w.gates[state.GateReservation]; c.n == 0 || r.n != 0 {
		t.Errorf("claims held: %v, for reservations: %v", c, r)
	}
}

// ---- generations ----

// What members do not see extends no settle window: they would wait 3 s for nothing.
func TestOnlyWhatMembersSeeExtendsTheWindow(t *testing.T) {
	p := newPark(t)
	p.topic("t", 2)
	p.add("a", state.DialectJVM, "t:1").start()
	begun := p.now
	for n := 0; p.number() == 0; n++ {
		p.topic("other"+string(rune('a'+n)), 1)
		p.pass(50 * time.Millisecond)
	}
	if took := p.now - begun; took > settleAfter {
		t.Errorf("published after %v", took)
	}
}

// Who joins while a crash settles is waited for as ever.
func TestJoinAfterADeathExtendsTheWindow(t *testing.T) {
	p := newPark(t)
	p.mind.cfg.Silence = func(id.SessionID) time.Duration { return 0 }
	p.topic("t", 4)
	for _, name := range []string{"a", "b"} {
		p.add(name, state.DialectJVM, "t:1").start()
	}
	p.pass(5 * time.Second)
	before := p.number()
	crash(p, "b")
	p.pass(250 * time.Millisecond)
	joined := p.now
	p.add("c", state.DialectJVM, "t:1").start()
	for p.number() == before {
		p.pass(10 * time.Millisecond)
	}
	if took := p.now - joined; took < settleAfter {
		t.Errorf("published %v after the join", took)
	}
}

// Members with a pattern are shown no internal topic, which nobody would ever claim, and what no pattern means is nothing to them.
func TestPatternMeansWhatItSays(t *testing.T) {
	p := newPark(t)
	p.topic("t1", 2)
	p.topic("__consumer_offsets", 2)
	p.topic("u", 1)
	a, b := p.add("a", state.DialectJVM, "~t.*"), p.add("b", state.DialectJVM, "~.*")
	a.start()
	p.pass(time.Second)
	g, _ := p.s.View().Legacy("g")
	if len(g.Topics) != 1 || g.Topics[0].Name != "t1" || !g.Complete {
		t.Fatalf("shown %v, complete %v", g.Topics, g.Complete)
	}
	p.topic("u", 3)
	p.pass(time.Second)
	if now := p.number(); now != 1 {
		t.Errorf("generation %d for a topic that nobody reads", now)
	}
	a.quit(false)
	b.start()
	p.pass(2 * time.Second)
	if g, _ = p.s.View().Legacy("g"); len(g.Topics) != 2 || !g.Complete {
		t.Errorf("shown %v, complete %v", g.Topics, g.Complete)
	}
}

// Expressions are read as Kafka's TopicFilter reads them; one that cannot be read here may mean any topic, in a list of either colour.
func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		colour, pattern string
		want            string // of the topics a, b and ab
	}{
		{"white_list", "a", "a"}, {"white_list", "a, b", "a b"}, {"white_list", `"a,b"`, "a b"}, {"white_list", "'a'", "a"}, {"white_list", "a.*", "a ab"},
		{"black_list", "a", "b ab"}, {"black_list", `"a"`, "b ab"}, {"white_list", "(?=a)a", "a b ab"}, {"black_list", "(?=a)a", "a b ab"},
	} {
		g := &legacyGroup{pattern: map[string]pattern{}}
		var got []string
		for _, topic := range []string{"a", "b", "ab"} {
			if g.selects(state.Registration{Pattern: c.colour, Topics: []state.Subscription{{Topic: c.pattern, Threads: 1}}}, topic) {
				got = append(got, topic)
			}
		}
		if have := strings.Join(got, " "); have != c.want {
			t.Errorf("%s %s means %q, want %q", c.colour, c.pattern, have, c.want)
		}
	}
}

// What a member that died in a generation was to claim is waited for one second after the last claim of the others; so is what one that left, or
// registered anew, was.
func TestGenerationEndsASecondAfterADeath(t *testing.T) {
	for _, how := range []string{"expire b", "stop b", `reregister b as={"version":1,"subscription":{"t":2},"pattern":"static","timestamp":"1"}`} {
		p := twoMembers(t)
		p.tellAll("claim a of=t/0", "session c", "register c")
		for p.number() == 1 {
			p.advance(10 * time.Millisecond)
		}
		p.tellAll("delete a of=t/0")
		if how == "stop b" {
			p.must(&pb.Command{Body: &pb.Command_CloseSession{CloseSession: &pb.CloseSession{Session: p.raw["b"], AttachEpoch: 1}}})
		} else {
			p.tell(parse(how))
		}
		p.advance(500 * time.Millisecond)
		p.tell(parse("claim a of=t/0"))
		p.advance(time.Second - time.Millisecond)
		if g, _ := p.s.View().Legacy("g"); g.Number != 2 || g.Complete {
			t.Errorf("%s: generation %d is complete before a second is over: %v", how, g.Number, g.Complete)
		}
		p.advance(2 * time.Millisecond)
		if g, _ := p.s.View().Legacy("g"); g.Number == 2 && !g.Complete {
			t.Errorf("%s: the generation goes on", how)
		}
	}
}

// ---- joins ----

// joins asks for a registration by a session.
func (p *teller) joins(session, memberID string, repeat bool) {
	p.joinsAs(session, memberID, readsT, repeat)
}

func (p *teller) joinsAs(session, memberID, data string, repeat bool) {
	p.ask(session, Request{Repeat: repeat, Command: &pb.Command{Origin: p.origin(session), Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{
		Path: "/consumers/g/ids/" + memberID, Data: []byte(data), Ephemeral: true}}}})
}

// A repeated create of an id joins the pending one, or has its success when that was published; one that is no repeat, or of a node that
// another session has, is refused.
func TestRepeatedJoin(t *testing.T) {
	p := twoMembers(t)
	p.said()
	p.joins("a", "a", false)
	p.answers("it is published, and this is no repeat", "a: NODE_EXISTS")
	p.joins("a", "a", true)
	p.answers("it is published, and this is a repeat", "a: OK")
	p.joins("b", "a", true)
	p.answers("another session's", "b: NODE_EXISTS")
	p.joinsAs("a", "a", `{"version":1,"subscription":{"t":2},"pattern":"static","timestamp":"1"}`, true)
	p.answers("it registered something else", "a: NODE_EXISTS")
	p.tellAll("session c", "register c")
	p.joins("c", "c", false)
	p.joins("a", "c", false)
	p.answers("it is pending", "a: NODE_EXISTS")
	p.advance(time.Second)
	p.answers("it was published", "c: OK, c: OK")
}

// A join whose node somebody has taken away, or made anew, waits no longer.
func TestJoinWhoseNodeIsGone(t *testing.T) {
	for _, again := range []bool{false, true} {
		p := twoMembers(t)
		p.tellAll("session c", "register c", "session d")
		remove := &pb.Command{Body: &pb.Command_DeleteZnode{DeleteZnode: &pb.DeleteZnode{Path: "/consumers/g/ids/c", Version: -1}}}
		if again { // before the coordinator has looked
			mind := p.mind
			p.mind = nil
			p.must(remove)
			p.must(&pb.Command{Origin: p.origin("d"), Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: "/consumers/g/ids/c", Ephemeral: true,
				Data: []byte(`{"version":1,"subscription":{"t":2},"pattern":"static","timestamp":"1"}`)}}})
			p.mind = mind
			p.act(p.mind.Changed(p.s.View(), []state.Change{{Kind: state.ZnodeCreated, Path: "/consumers/g/ids/c", Session: id.SessionID(p.raw["d"])}}, p.now))
		} else {
			p.must(remove)
		}
		p.answers("its node is gone", "c: OK")
	}
}

// A publish or a completion that came to nothing is repeated soon, though nothing else happens.
func TestLostPublishIsRepeated(t *testing.T) {
	p := twoMembers(t)
	p.tellAll("session c", "register c")
	for _, what := range []string{"publish", "complete"} {
		p.hold = true
		for len(p.held) == 0 {
			p.advance(100 * time.Millisecond)
		}
		if cmd := p.held[0].Propose; (cmd.GetPublishGeneration() != nil) != (what == "publish") || (cmd.GetCompleteGeneration() != nil) != (what == "complete") {
			t.Fatalf("%s: proposed %v", what, cmd)
		}
		p.lose = "dropped"
		p.release()
		if g, _ := p.s.View().Legacy("g"); g.Number == 2 && (g.Complete || what == "publish") {
			t.Errorf("%s was lost, and repeated without a pause", what)
		}
		p.advance(retryAfter + time.Millisecond)
		if g, _ := p.s.View().Legacy("g"); g.Number != 2 || g.Complete != (what == "complete") {
			t.Errorf("%s was lost, and %v later it is generation %d, complete %v", what, retryAfter, g.Number, g.Complete)
		}
	}
}

// A group whose barrier was switched off while a generation was being claimed has its next one at once when it is switched on again.
func TestBarrierOffAndOnAgain(t *testing.T) {
	p := twoMembers(t)
	p.tellAll("session c", "register c")
	p.advance(time.Second)
	p.tellAll("gates g off=barrier")
	p.advance(time.Second)
	if g, _ := p.s.View().Legacy("g"); !g.Withdrawn {
		t.Fatalf("generation %d is not withdrawn", g.Number)
	}
	p.tellAll("gates g off=")
	p.advance(time.Second)
	if g, _ := p.s.View().Legacy("g"); g.Withdrawn || len(g.Members) != 3 {
		t.Errorf("generation %d with %d members, withdrawn %v", g.Number, len(g.Members), g.Withdrawn)
	}
}

// A registration that belongs to no session, as a tool makes it, is nobody whose silence is waited for.
func TestRegistrationOfNoSession(t *testing.T) {
	p := newPark(t)
	p.mind.cfg.Silence = func(id.SessionID) time.Duration { return 0 }
	p.topic("t", 4)
	a, b := p.add("a", state.DialectJVM, "t:1"), p.add("b", state.DialectJVM, "t:1")
	a.start()
	b.start()
	p.must(&pb.Command{Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: "/consumers/g/ids/x", Data: []byte(a.registration())}}})
	p.pass(15 * time.Second)
	before := p.number()
	crash(p, "b")
	p.pass(settleAfter + 50*time.Millisecond)
	if now := p.number(); now != before+1 {
		t.Errorf("generation %d after %d", now, before)
	}
}

// A generation of a group with members by Kafka's protocols is published only if none of them was given anything since it was decided.
func TestPublishNamesTheGroupsVersion(t *testing.T) {
	proposed := func(w *town) *pb.PublishGeneration {
		t.Helper()
		for end := w.now + 20*time.Second; w.now < end; w.pass(10 * time.Millisecond) {
			for _, a := range w.held {
				if p := a.Propose.GetPublishGeneration(); p != nil {
					return p
				}
			}
			if w.hold = true; len(w.held) > 0 { // of the others
				w.release()
			}
		}
		t.Fatal("no generation is proposed")
		return nil
	}
	alone, mixed := newTown(t), slowModern(t)
	alone.topic("t", 4)
	for _, w := range []*town{alone, mixed} {
		w.add("g_a", state.DialectJVM, "t:1").start()
		if got, want := proposed(w).GroupVersion, map[bool]uint64{false: 0, true: w.row().Version}[w == mixed]; got != want || w == mixed && got == 0 {
			t.Errorf("the generation is to be of version %d of the group, want %d", got, want)
		}
	}
}

// What a member was refused in one generation does not count in the next.
func TestNoGhostOfTheGenerationBefore(t *testing.T) {
	p := twoMembers(t)
	p.tellAll("claim a of=t/0", "claim a of=t/1", "session c", "register c")
	p.advance(time.Second)
	p.tell(parse("claim b of=t/0"))
	p.advance(8 * time.Second)
	p.tellAll("session d", "register d")
	p.advance(4 * time.Second)
	if p.number() != 3 {
		t.Fatalf("generation %d", p.number())
	}
	p.advance(30 * time.Second) // nobody claims: it is given up
	if _, alive := p.s.View().Session(id.SessionID(p.raw["b"])); !alive {
		t.Errorf("the session of one that was refused nothing was ended: %s", p.said())
	}
}

// What a member waited in one generation does not shorten its holds in the next.
func TestBudgetIsOfAGeneration(t *testing.T) {
	p := twoMembers(t)
	p.tellAll("claim a of=t/0", "session c", "register c")
	p.advance(time.Second)
	p.tell(parse("claim b of=t/0"))
	p.advance(6 * time.Second)
	p.tellAll("delete a of=t/0", "delete b of=t/0", "claim a of=t/0", "claim a of=t/1", "session d", "register d")
	for p.number() == 2 {
		p.advance(10 * time.Millisecond)
	}
	p.said()
	begun := p.now
	p.tell(parse("claim b of=t/0"))
	p.ending(begun, 8*time.Second, "b: NODE_EXISTS")
}

// claiming is generation 2, of which nothing is claimed.
func claiming(t *testing.T, as string) *teller {
	t.Helper()
	p := twoMembers(t)
	p.topic("u", 1)
	p.tellAll("session c", "register c as="+as)
	for p.number() == 1 {
		p.advance(10 * time.Millisecond)
	}
	return p
}

func (p *teller) complete(when string, want bool) {
	p.t.Helper()
	if g, _ := p.s.View().Legacy("g"); g.Number != 2 || g.Complete != want {
		p.t.Errorf("%s: generation %d, complete %v", when, g.Number, g.Complete)
	}
}

const readsT = `{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}`

// A generation is complete when each partition that somebody reads has an owner of it, and not before.
func TestWhatCompletesAGeneration(t *testing.T) {
	p := claiming(t, `{"version":1,"subscription":{"t":1,"u":0},"pattern":"static","timestamp":"1"}`)
	p.tellAll("claim a of=t/0")
	p.complete("a partition has no owner", false)
	p.tellAll("claim b of=t/1")
	p.complete("but for those of a topic that is read by no thread", true)

	p = claiming(t, readsT)
	p.tellAll("claim a of=t/0", "delete a of=t/0", "claim b of=t/1")
	p.complete("a claim was given back", false)
	p.tellAll("claim c of=t/0")
	p.complete("it was claimed again", true)

	p = claiming(t, readsT)
	stray := "/consumers/g/owners/t/7"
	p.must(&pb.Command{Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: stray, Data: []byte("tool")}}})
	p.must(&pb.Command{Body: &pb.Command_DeleteZnode{DeleteZnode: &pb.DeleteZnode{Path: stray, Version: -1}}})
	p.tellAll("claim a of=t/0", "claim b of=t/1")
	p.complete("a partition that there is not had an owner", true)
}

// ---- bounds ----

// A session's claims of one attempt are held for 8 s in all; who was refused and asks a second later makes another attempt.
func TestClaimsOfAnAttemptShareABound(t *testing.T) {
	p := claiming(t, readsT)
	p.takes("a", "t/0")
	p.takes("a", "t/1")
	p.said()
	begun := p.now
	p.tell(parse("claim b of=t/0"))
	p.advance(5 * time.Second)
	p.tellAll("delete a of=t/0")
	p.tell(parse("claim b of=t/1"))
	p.ending(begun, 8*time.Second, "b: NODE_EXISTS")
	p.advance(begun + 9*time.Second - p.now)
	p.tell(parse("claim b of=t/1"))
	p.answers("the same attempt", "b: NODE_EXISTS")
	p.advance(time.Millisecond)
	begun = p.now
	p.tell(parse("claim b of=t/1"))
	p.ending(begun, 8*time.Second, "b: NODE_EXISTS")
}

// What binds clients is in groups.md, in seconds.
func TestBounds(t *testing.T) {
	got := []time.Duration{settleAfter, settleAtMost, completeWithin, joinBound, claimBound, fetchBound, ghostAfter}
	want := []time.Duration{300 * time.Millisecond, 3 * time.Second, 10 * time.Second, 13 * time.Second, 8 * time.Second, 2 * time.Second, 4 * time.Second}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A new coordinator shows members to each other whose clients nobody asks for any more.
func TestFailoverFindsMembers(t *testing.T) {
	p := &teller{park: newPark(t), raw: map[string]int64{}}
	p.topic("t", 2)
	p.tellAll("session a", "register a")
	clear(p.open) // its client is with another node, and has not asked again
	p.failover()
	p.advance(time.Second)
	if p.number() != 1 {
		t.Errorf("generation %d a second after the fail-over", p.number())
	}
}

// A request of no member is answered.
func TestRequestOfNoMember(t *testing.T) {
	p := twoMembers(t)
	p.said()
	p.ask("a", Request{Command: &pb.Command{Origin: p.origin("a"), Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: "/consumers/g/offsets/t"}}}})
	p.answers("no member", "a: INVALID")
}

// kafka-node's registration is judged by what it sets, not by the node without data that it made first.
func TestDialectOfARegistrationBySetData(t *testing.T) {
	p := &teller{park: newPark(t), raw: map[string]int64{}}
	p.topic("t", 2)
	p.tellAll("session a", "register a as=t", "session b")
	p.advance(15 * time.Second)
	p.must(&pb.Command{Origin: p.origin("b"), Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: "/consumers/g/ids/b", Ephemeral: true, Null: true}}})
	p.said()
	begun := p.now
	p.tell(parse("reregister b as=" + readsT))
	p.ending(begun, 10*time.Second, "b: NODE_EXISTS")
}

// ---- outcomes that are lost, clients that go away, gates that are switched off ----

// cancel tells the mind that the client of a request is gone.
func (p *teller) cancel(name string) {
	for _, r := range sortedRequests(p.open) {
		if p.names[r] == name {
			delete(p.open, r)
			p.act(p.mind.Cancel(p.s.View(), r, p.now-p.start))
		}
	}
}

// The end of a reservation whose command was lost is proposed again: partitions would be kept for ever.
func TestLostReleaseIsRepeated(t *testing.T) {
	p := twoMembers(t)
	p.tellAll("claim a of=t/0", "expire a")
	p.hold = true
	lost := false
	for end := p.now + 10*time.Second; p.now < end && !lost; p.advance(100 * time.Millisecond) {
		lost = slices.ContainsFunc(p.held, func(a Action) bool { return a.Propose.GetReleaseOwners() != nil })
		if !lost {
			p.release()
			p.hold = true
		}
	}
	if len(p.held) != 1 || !lost {
		t.Fatalf("proposed: %v", p.held)
	}
	p.lose = "dropped"
	p.release()
	p.tell(parse("claim b of=t/0"))
	if g, _ := p.s.View().Legacy("g"); len(g.Reserved) != 1 {
		t.Error("it is repeated without a pause")
	}
	p.advance(retryAfter + time.Millisecond)
	if got := p.owners(); got != "t/0=b-0" {
		t.Errorf("owners %q", got)
	}
}

// A claim under way whose client goes away leaves those behind it to themselves, and a held one is never granted.
func TestClaimOfAClientThatGoesAway(t *testing.T) {
	p := twoMembers(t)
	p.hold = true
	p.tell(parse("claim a of=t/0"))
	p.tell(parse("claim b of=t/0"))
	p.cancel("a")
	if len(p.held) != 2 {
		t.Errorf("%d claims are under way after the first one's client has gone", len(p.held))
	}
	p.release() // the first is granted nevertheless, and the second held
	if got := p.owners(); got != "t/0=a-0" || len(p.open) != 1 {
		t.Fatalf("owners %q, %d requests are open", got, len(p.open))
	}
	p.advance(time.Second)
	p.cancel("b")
	if n := p.gates[state.GateClaim]; n.n != 1 || n.total != time.Second {
		t.Errorf("holds: %v", n)
	}
	p.tellAll("delete a of=t/0")
	p.advance(10 * time.Second)
	if got := p.owners(); got != "" {
		t.Errorf("%s was granted to nobody who asks", got)
	}
}

// A member that gave up is one also when its last claim was given up by its connection.
func TestGhostWhoseLastClaimWasGivenUp(t *testing.T) {
	p := twoMembers(t)
	p.tellAll("claim a of=t/0", "claim a of=t/1", "session c", "register c")
	p.advance(time.Second)
	p.tell(parse("claim b of=t/0"))
	p.advance(9500 * time.Millisecond)
	p.tell(parse("claim b of=t/0"))
	p.advance(100 * time.Millisecond)
	p.cancel("b")
	p.advance(10 * time.Second)
	if _, alive := p.s.View().Session(id.SessionID(p.raw["b"])); alive {
		t.Error("the session of a member that does nothing goes on")
	}
}

// What a gate holds goes on at once when the gate is switched off.
func TestGateOffEndsItsHolds(t *testing.T) {
	for gate, c := range map[string]struct{ ask, want string }{
		"claim":       {"claim b of=t/0", "b: NODE_EXISTS"},
		"offset":      {"read b of=t/0", "b: OK"},
		"barrier":     {"register d", "d: OK"},
		"dialect":     {"register d as=t", ""}, // held for the generation now
		"reservation": {"claim b of=t/1", "b: OK"},
	} {
		p := twoMembers(t)
		p.tellAll("session c", "register c", "session d", "session e", "register e") // e's registration is the change
		p.tellAll("claim a of=t/0", "session f", "register f", "claim f of=t/1")
		p.advance(time.Second)
		if gate == "reservation" {
			p.tellAll("expire f")
			p.advance(time.Second)
		}
		p.said()
		p.tell(parse(c.ask))
		p.answers(gate+" is on", "")
		mixes := len(p.mind.legacy.groups["g"].mixes)
		p.tell(parse("gates g off=" + gate))
		p.advance(time.Millisecond)
		p.answers(gate+" is off", c.want)
		if left := len(p.mind.legacy.groups["g"].mixes); gate == "dialect" && (mixes != 1 || left != 0) {
			t.Errorf("%d registrations wait for others to leave, and %d after the gate is off", mixes, left)
		}
	}
}

// What is due while a command of the group is under way waits for that without asking to be called again and again.
func TestOverdueWhileACommandIsUnderWay(t *testing.T) {
	p := twoMembers(t)
	p.tellAll("session c", "register c")
	p.hold = true
	p.advance(20 * time.Second) // the stage panics when a deadline does not go
	if len(p.held) != 1 || p.held[0].Propose.GetPublishGeneration() == nil {
		t.Fatalf("under way: %v", p.held)
	}
	p.said()
	p.release()
	p.answers("it was published", "c: OK")
}

// What the mind proposes of its own has a number of its own: the outcome of one command would be taken for that of another.
func TestProposalsHaveNumbersOfTheirOwn(t *testing.T) {
	p := twoMembers(t)
	p.tellAll("session e", "register e")
	p.advance(time.Second)
	p.tellAll("claim a of=t/0", "claim b of=t/1", "session x", "register x as=t", "session c")
	p.advance(9 * time.Second)
	p.hold = true
	p.tellAll("expire a", "expire b", "register c")
	p.advance(7 * time.Second)
	kinds, numbers := map[string]int{}, map[RequestID]bool{}
	for _, a := range p.held {
		if numbers[a.Request] {
			t.Errorf("two commands have number %d", a.Request)
		}
		numbers[a.Request] = true
		kinds[fmt.Sprintf("%T", a.Propose.Body)]++
	}
	for kind, n := range map[string]int{"*statepb.Command_PublishGeneration": 1, "*statepb.Command_ExplainRefusal": 1, "*statepb.Command_ReleaseOwners": 2} {
		if kinds[kind] != n {
			t.Errorf("under way are %v, want %d of %s", kinds, n, kind)
		}
	}
}

// ---- reservations ----

// A connection is known by its broker's incarnation too: those of others have the same numbers.
func TestReservationIsNotForAnotherBrokersConnection(t *testing.T) {
	for _, other := range []Fetcher{{Broker: 2, Epoch: 1, Conn: 7}, {Broker: 1, Epoch: 2, Conn: 7}, {Broker: 1, Epoch: 1, Conn: 8}} {
		p := twoMembers(t)
		p.mind.cfg.Fetching = func(id.TopicPartition) []Fetcher { return p.fetching }
		p.tellAll("claim a of=t/0", "fetches a conn=7 client=mine")
		p.advance(time.Second)
		p.tellAll("expire a")
		p.advance(2 * time.Second)
		if g, _ := p.s.View().Legacy("g"); len(g.Reserved) != 1 {
			t.Fatalf("reserved %v while a connection fetches", g.Reserved)
		}
		other.ClientID, other.Host = "mine", "10.0.0.1"
		p.fetching = []Fetcher{other}
		p.advance(300 * time.Millisecond)
		if g, _ := p.s.View().Legacy("g"); len(g.Reserved) != 0 {
			t.Errorf("the connection has gone, and the partition is kept for %+v", other)
		}
	}
}

// keptFor is how long a partition stays reserved for a session that has expired, while what p tells fetches goes on; at most 10 s.
func (p *teller) keptFor() time.Duration {
	for begun := p.now; ; p.advance(50 * time.Millisecond) {
		if g, _ := p.s.View().Legacy("g"); len(g.Reserved) == 0 || p.now-begun > 10*time.Second {
			return p.now - begun
		}
	}
}

// expiring is a with a partition and a session of 6 s, just before that expires.
func expiring(t *testing.T) *teller {
	t.Helper()
	p := twoMembers(t)
	p.frozen = map[uint64]time.Duration{}
	p.mind.cfg.Fetching = func(id.TopicPartition) []Fetcher { return p.fetches() }
	p.cfg.Fetching = p.mind.cfg.Fetching
	p.tellAll("claim a of=t/0")
	p.advance(time.Second)
	return p
}

// A partition is kept as long as a connection goes on that may be the member's: of its machine, or under the group's name; and no longer than
// a session lasts. Those of strangers keep nothing. One that stands still keeps it if it cannot be cut off.
func TestWhoKeepsAReservation(t *testing.T) {
	for _, c := range []struct {
		fetches string
		idle    time.Duration // since its last fetch, as reports tell
		off     string
		kept    bool
	}{
		{"fetches a host=10.0.0.9 client=other", 0, "", false},
		{"fetches a host=10.0.0.9 client=g", 0, "", true},
		{"fetches a host=10.0.0.1 client=other", 0, "", true},
		{"fetches a host=10.0.0.1 client=g", 5 * time.Second, "", true}, // reports refresh it so often
		{"fetches a host=10.0.0.1 client=g", 7 * time.Second, "", false},
		{"fetches a host=10.0.0.1 client=g", 7 * time.Second, "fence", true},
		{"fetches a host=10.0.0.1 client=g", 0, "reservation", false},
	} {
		p := expiring(t)
		p.tellAll(c.fetches, "gates g off="+c.off)
		p.fetching[0].Idle = c.idle
		p.tellAll("expire a")
		if kept := p.keptFor(); c.kept && (kept < 6*time.Second || kept > 6100*time.Millisecond) || !c.kept && kept > time.Second {
			t.Errorf("%+v: kept for %v", c, kept)
		}
	}
}

// Reports of who fetches come late: by a beat as ever, and to a new coordinator by as long as brokers need to find it.
func TestReservationWaitsForReports(t *testing.T) {
	p := expiring(t)
	p.tellAll("expire a")
	p.advance(300 * time.Millisecond)
	p.tellAll("fetches a client=other")
	if kept := p.keptFor(); kept < 5*time.Second {
		t.Errorf("kept for %v though a connection goes on that was reported 300 ms later", kept)
	}

	p = expiring(t)
	p.tellAll("expire a")
	p.failover()
	p.advance(1500 * time.Millisecond)
	p.tellAll("fetches a client=other")
	if kept := p.keptFor(); kept < 4*time.Second {
		t.Errorf("kept for %v by a new coordinator though a connection goes on that was reported to it after 1.5 s", kept)
	}
}
