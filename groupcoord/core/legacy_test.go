package core

import (
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// Eight consumers that come within a moment are one generation, and nobody is refused anything.
func TestLegacyHerd(t *testing.T) {
	p := newPark(t)
	p.topic("t", 16)
	for i := range 8 {
		p.add(string(rune('a'+i)), state.DialectJVM, "t:1").start()
		p.pass(50 * time.Millisecond)
	}
	p.pass(time.Second)
	g, _ := p.s.View().Legacy("g")
	if g.Number != 1 || !g.Complete || p.failures != 0 || p.events != 0 {
		t.Errorf("generation %d, %d failures, %d events, %s\n%s", g.Number, p.failures, p.events, p.owners(), p.out.String())
	}
	if got, want := p.owners(), "t/0=a-0 t/1=a-0 t/10=f-0 t/11=f-0 t/12=g-0 t/13=g-0 t/14=h-0 t/15=h-0 t/2=b-0 t/3=b-0 t/4=c-0 t/5=c-0 t/6=d-0 t/7=d-0 t/8=e-0 t/9=e-0"; got != want {
		t.Error(got)
	}
	p.member("c").quit(false)
	p.member("d").quit(false)
	p.pass(time.Second)
	if g, _ := p.s.View().Legacy("g"); g.Number != 2 || !g.Complete || p.failures != 0 || p.events != 6 {
		t.Errorf("generation %d complete %v, %d failures, %d events, %s\n%s", g.Number, g.Complete, p.failures, p.events, p.owners(), p.out.String())
	}
}

// A crash of several consumers is one generation: their sessions end by and by, each when its last ping is a timeout old, and the others
// would have to begin again and again.
func TestLegacyCrashOfSeveral(t *testing.T) {
	p := newPark(t)
	p.topic("t", 24)
	for i := range 12 {
		p.add(string(rune('a'+i)), state.DialectJVM, "t:1").start()
	}
	p.pass(2 * time.Second)
	before, _ := p.s.View().Legacy("g")
	for _, name := range []string{"b", "e", "h", "k"} {
		crash(p, name)
		p.pass(450 * time.Millisecond)
	}
	p.pass(10 * time.Second)
	g, _ := p.s.View().Legacy("g")
	if g.Number != before.Number+1 || !g.Complete || p.failures != 0 {
		t.Errorf("generation %d after %d, complete %v, %d failures, %s\n%s", g.Number, before.Number, g.Complete, p.failures, p.owners(), p.out.String())
	}
}

// When it is known who is silent, the generation after a crash comes with the end of the last session, and waits for nobody who lives.
func TestLegacyCrashIsOneGenerationAtOnce(t *testing.T) {
	p := newPark(t)
	silent := map[int64]time.Duration{} // since when
	p.mind.cfg.Silence = func(s id.SessionID) time.Duration {
		if since, ok := silent[int64(s)]; ok {
			return p.now - since
		}
		return time.Second // of others the last ping is never older than two
	}
	p.topic("t", 24)
	for i := range 12 {
		p.add(string(rune('a'+i)), state.DialectJVM, "t:1").start()
	}
	p.pass(2 * time.Second)
	before, _ := p.s.View().Legacy("g")
	crashed := p.now
	for i, name := range []string{"b", "e", "h", "k"} { // each was heard at another moment before
		silent[p.member(name).session] = crashed - time.Duration(i)*500*time.Millisecond
	}
	frozen := p.member("c").session // is silent too, and comes back
	silent[frozen] = crashed
	for _, name := range []string{"k", "h", "e"} {
		p.pass(silent[p.member(name).session] + 6*time.Second - p.now)
		crash(p, name)
	}
	delete(silent, frozen)
	p.pass(silent[p.member("b").session] + 6*time.Second - p.now)
	if g, _ := p.s.View().Legacy("g"); g.Number != before.Number {
		t.Errorf("generation %d before the last of the crash has ended", g.Number)
	}
	crash(p, "b")
	p.pass(silenceBeat)
	g, _ := p.s.View().Legacy("g")
	if g.Number != before.Number+1 || len(g.Members) != 8 {
		t.Errorf("%v after the last session's end: generation %d after %d, %d members", silenceBeat, g.Number, before.Number, len(g.Members))
	}
	p.pass(12 * time.Second)
	if g, _ := p.s.View().Legacy("g"); g.Number != before.Number+1 || !g.Complete || p.failures != 0 {
		t.Errorf("generation %d after %d, complete %v, %d failures, %s\n%s", g.Number, before.Number, g.Complete, p.failures, p.owners(), p.out.String())
	}
}

// Somebody who is silent, and does not end, is waited for three seconds at most.
func TestLegacyCrashWaitsForNobodyForEver(t *testing.T) {
	p := newPark(t)
	p.mind.cfg.Silence = func(id.SessionID) time.Duration { return 5 * time.Second }
	p.topic("t", 4)
	for _, name := range []string{"a", "b", "c"} {
		p.add(name, state.DialectJVM, "t:1").start()
	}
	p.pass(2 * time.Second)
	before, _ := p.s.View().Legacy("g")
	crash(p, "b")
	p.pass(settleAtMost - 50*time.Millisecond)
	if g, _ := p.s.View().Legacy("g"); g.Number != before.Number {
		t.Errorf("generation %d: the silent members were not waited for", g.Number)
	}
	p.pass(100 * time.Millisecond)
	if g, _ := p.s.View().Legacy("g"); g.Number != before.Number+1 {
		t.Errorf("generation %d after %d", g.Number, before.Number)
	}
}

// Twenty consumers come every half a second, each fourth from a process of its own that needs half a second longer: the windows are as long as
// they may be.
func TestLegacyStreamOfJoins(t *testing.T) {
	p := newPark(t)
	p.topic("t", 24)
	at := map[int]int{} // joiners by half seconds
	for i := range 20 {
		if i%4 == 3 {
			at[i+1]++
		} else {
			at[i]++
		}
	}
	n := 0
	for half := range 21 {
		for range at[half] {
			p.add(string(rune('a'+n)), state.DialectJVM, "t:1").start()
			n++
		}
		p.pass(500 * time.Millisecond)
	}
	p.pass(5 * time.Second)
	g, _ := p.s.View().Legacy("g")
	if g.Number > 5 || !g.Complete || len(g.Members) != 20 || p.failures != 0 {
		t.Errorf("generation %d, complete %v, %d members, %d failures\n%s", g.Number, g.Complete, len(g.Members), p.failures, p.out.String())
	}
}

// A member that dies in a generation does not end it for those that are at work in it: it is over when they have claimed theirs.
func TestLegacyDeathInAGeneration(t *testing.T) {
	p := newPark(t)
	p.topic("t", 8)
	for _, name := range []string{"a", "b", "c"} {
		p.add(name, state.DialectJVM, "t:1").start()
	}
	p.pass(2 * time.Second)
	before, _ := p.s.View().Legacy("g")
	p.add("d", state.DialectJVM, "t:1").start()
	for now, _ := p.s.View().Legacy("g"); now.Number == before.Number; now, _ = p.s.View().Legacy("g") {
		p.pass(10 * time.Millisecond)
	}
	crash(p, "c")
	p.pass(500 * time.Millisecond)
	if g, _ := p.s.View().Legacy("g"); g.Number != before.Number+1 {
		t.Errorf("generation %d half a second after a death in %d", g.Number, before.Number+1)
	}
	p.pass(15 * time.Second)
	if g, _ := p.s.View().Legacy("g"); g.Number != before.Number+2 || !g.Complete || p.failures != 0 {
		t.Errorf("generation %d after %d, complete %v, %d failures, %s\n%s", g.Number, before.Number, g.Complete, p.failures, p.owners(), p.out.String())
	}
}

// crash ends a member's session by its silence; nobody comes back.
func crash(p *park, name string) {
	m := p.member(name)
	m.quit(true)
	m.expired, m.act, m.owned = false, actGone, nil
}

// What several dead members had is free at once, and at the moment when the brokers have told that nobody fetches it.
func TestLegacyReservationsEndTogether(t *testing.T) {
	p := newPark(t)
	p.mind.cfg.Fetching = func(id.TopicPartition) []Fetcher { return nil }
	p.topic("t", 8)
	for _, name := range []string{"a", "b", "c", "d"} {
		p.add(name, state.DialectJVM, "t:1").start()
	}
	p.pass(3 * time.Second)
	p.member("a").paused = true
	for _, name := range []string{"b", "c", "d"} {
		crash(p, name)
	}
	if g, _ := p.s.View().Legacy("g"); len(g.Reserved) != 6 {
		t.Fatalf("reserved: %v", g.Reserved)
	}
	p.hold = true
	p.advance(reportsSettle)
	ended := map[int64]int{}
	for _, a := range p.held {
		if r := a.Propose.GetReleaseOwners(); r != nil {
			ended[r.Session] += len(r.Owned)
		}
	}
	if len(ended) != 3 || ended[p.member("b").session] != 2 {
		t.Errorf("%v after the crash these sessions' partitions were proposed to be free: %v", reportsSettle, ended)
	}
	p.release()
	p.member("a").paused = false
	p.pass(3 * time.Second)
	if g, _ := p.s.View().Legacy("g"); len(g.Reserved) != 0 || !g.Complete {
		t.Errorf("reserved %v, complete %v", g.Reserved, g.Complete)
	}
}
