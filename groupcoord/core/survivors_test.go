package core

import (
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
	w := slowModern(t)
	begun := w.now
	w.add("g_a", state.DialectJVM, "t:1").start()
	if waited := w.published(t, time.Minute) - begun; waited < joinBound || waited > joinBound+100*time.Millisecond {
		t.Errorf("a join was held for %v, want %v", waited, joinBound)
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
	p.ending(begun, 8*time.Second, "b: NODE_EXISTS")
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
