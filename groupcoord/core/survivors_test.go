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
