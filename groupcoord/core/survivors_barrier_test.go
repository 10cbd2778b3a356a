package core

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

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

// A group whose barrier is off from the beginning is never shown a generation.
func TestNoGenerationWithoutABarrier(t *testing.T) {
	p := &teller{park: newPark(t), raw: map[string]int64{}}
	p.topic("t", 2)
	p.tellAll("gates g off=barrier", "session a")
	p.tell(parse("register a"))
	p.answers("nothing is held", "a: OK")
	p.advance(15 * time.Second)
	if g, ok := p.s.View().Legacy("g"); ok {
		t.Errorf("generation %d", g.Number)
	}
}

// People are told what the group does in Kafka's words.
func TestStateInKafkasWords(t *testing.T) {
	p := &teller{park: newPark(t), raw: map[string]int64{}}
	p.topic("t", 1)
	is := func(when, want string) {
		t.Helper()
		if got := p.mind.legacyState("g"); got != want {
			t.Errorf("%s: %s, want %s", when, got, want)
		}
	}
	p.tellAll("session a", "session b", "register a")
	is("the first registration", "PreparingRebalance")
	p.advance(time.Second)
	is("nothing is claimed", "CompletingRebalance")
	p.tellAll("register b")
	is("another waits", "CompletingRebalance")
	p.tellAll("claim a of=t/0")
	is("all is claimed", "PreparingRebalance") // of the other's generation
	p.advance(time.Second)
	is("the next generation", "CompletingRebalance")
	p.tellAll("delete a of=t/0", "claim b of=t/0")
	is("it is claimed", "Stable")
	p.tellAll("gates g off=barrier")
	is("members see the raw tree", "Stable")
	if got := p.mind.legacyState("other"); got != "Stable" {
		t.Errorf("a group that nobody knows: %s", got)
	}
	p = &teller{park: newPark(t), raw: map[string]int64{}}
	p.topic("t", 1)
	p.tellAll("gates g off=barrier", "session a", "register a")
	p.advance(time.Second)
	is("there never was a generation", "Stable")
}

// pykafka's members compute with the partitions that they are shown, not with those that their topic has got since.
func TestPykafkaGenerationOfATopicThatGrows(t *testing.T) {
	p := &teller{park: newPark(t), raw: map[string]int64{}}
	p.topic("t", 2)
	p.tellAll("session a", "session b", "register a as=t", "register b as=t")
	p.advance(time.Second)
	p.topic("t", 3)
	for name, node := range map[string]string{"a": "1-0", "b": "1-1"} {
		claim := &pb.ClaimOwner{Group: "g", Topic: "t", Name: node, Data: []byte(name), Ephemeral: true}
		p.must(&pb.Command{Origin: p.origin(name), Body: &pb.Command_ClaimOwner{ClaimOwner: claim}})
	}
	if g, _ := p.s.View().Legacy("g"); g.Number != 1 || !g.Complete {
		t.Errorf("generation %d, complete %v", g.Number, g.Complete)
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
	stray := "/consumers/g/owners/t/2"
	p.must(&pb.Command{Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: stray, Data: []byte("tool")}}})
	p.must(&pb.Command{Body: &pb.Command_DeleteZnode{DeleteZnode: &pb.DeleteZnode{Path: stray, Version: -1}}})
	p.tellAll("claim a of=t/0", "claim b of=t/1")
	p.complete("a partition that there is not had an owner", true)
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
