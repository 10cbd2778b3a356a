package core

import (
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

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
	p.advance(10 * time.Second)
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

// ---- members that are made to join anew ----

func (p *teller) lives(name string) bool {
	_, alive := p.s.View().Session(id.SessionID(p.raw[name]))
	return alive
}

// One whose registration somebody has deleted, and who keeps its partitions, is made to join anew after 4 s, though nothing else happens; not
// one that has registered again, nor one that has released them.
func TestSquatters(t *testing.T) {
	for _, c := range []struct {
		does  string
		lives bool
	}{
		{"", false}, {"register a", true}, {"delete a of=t/0", true}, {"gates g off=ghost", true},
	} {
		p := &teller{park: newPark(t), raw: map[string]int64{}}
		p.topic("t", 1)
		p.tellAll("session a", "register a")
		p.advance(time.Second)
		p.tellAll("claim a of=t/0", "unregister a")
		begun := p.now
		p.advance(time.Second)
		if c.does != "" {
			p.tell(parse(c.does))
		}
		for p.lives("a") && p.now-begun < 30*time.Second {
			p.advance(10 * time.Millisecond)
		}
		took := p.now - begun
		if p.lives("a") != c.lives || !c.lives && (took < 4*time.Second || took > 4100*time.Millisecond) {
			t.Errorf("%q: after %v its session lives: %v", c.does, took, p.lives("a"))
		}
		if n := p.gates[state.GateGhost].n; n != 1 && !c.lives {
			t.Errorf("one session was ended, %d are counted", n)
		}
	}
}

// One that was refused and owns nothing has 4 s to ask for something before its session is ended, and what it asks next begins them anew. When
// nothing is left to be had it is let be.
func TestGhostsHaveTheirTime(t *testing.T) {
	for _, c := range []struct {
		does []string
		ends time.Duration // after its claim, which is refused after 8 s; 0: never
	}{
		{nil, 12 * time.Second}, {[]string{"claim b of=t/1"}, 13 * time.Second},
		{[]string{"delete a of=t/0", "delete a of=t/1", "claim a of=t/0", "claim a of=t/1"}, 0}, {[]string{"gates g off=ghost"}, 0},
	} {
		p := twoMembers(t)
		p.tellAll("claim a of=t/0", "claim a of=t/1", "session c", "register c")
		for p.number() == 1 {
			p.advance(10 * time.Millisecond)
		}
		begun := p.now
		p.tell(parse("claim b of=t/0"))
		p.advance(9 * time.Second)
		for _, does := range c.does {
			p.tell(parse(does))
		}
		for p.lives("b") && p.now-begun < 60*time.Second {
			p.advance(10 * time.Millisecond)
		}
		if took := p.now - begun; p.lives("b") != (c.ends == 0) || c.ends > 0 && (took < c.ends || took > c.ends+100*time.Millisecond) {
			t.Errorf("%v: its session lives after %v: %v, want %v", c.does, took, p.lives("b"), c.ends)
		}
	}
}

// ---- members that cannot agree ----

// Two registrations of different libraries are not let in because they come at the same moment; others are no hindrance.
func TestRegistrationsOfTwoLibrariesAtOnce(t *testing.T) {
	for _, c := range []struct {
		group, as string
		waits     int
	}{{"g", readsT, 1}, {"other", readsT, 0}, {"g", "t", 0}, {"g", "{", 0}} {
		p := &teller{park: newPark(t), raw: map[string]int64{}}
		p.topic("t", 2)
		p.tellAll("session a", "session x")
		for _, dir := range []string{"/consumers/g", "/consumers/g/ids", "/consumers/other", "/consumers/other/ids"} {
			p.must(&pb.Command{Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: dir, Null: true}}})
		}
		p.hold = true
		p.ask("a", Request{Command: &pb.Command{Origin: p.origin("a"), Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{
			Path: "/consumers/" + c.group + "/ids/a", Data: []byte(c.as), Ephemeral: true}}}})
		p.joinsAs("x", "x", "t", false)
		if waits := len(p.mind.legacyGroup("g").mixes); waits != c.waits || len(p.held) != 2-c.waits {
			t.Errorf("%s %s: %d registrations wait for others to leave, %d are under way", c.group, c.as, waits, len(p.held))
		}
	}
}

// A member alone may change its library.
func TestMemberChangesItsLibrary(t *testing.T) {
	p := &teller{park: newPark(t), raw: map[string]int64{}}
	p.topic("t", 2)
	p.tellAll("session a", "register a")
	p.advance(15 * time.Second)
	p.said()
	p.tell(parse("reregister a as=t"))
	p.advance(time.Second)
	p.answers("it is alone", "a: OK")
}

// What was not held, but answered otherwise than asked, is counted too: late commits by Kafka's protocol; and refusals after a hold.
func TestOtherGatesAreCounted(t *testing.T) {
	p := twoMembers(t)
	p.tellAll("claim b of=t/0", "commit k of=t/0 offset=6 by=c@10.0.0.1")
	if n := p.gates[state.GateCommit].n; n != 0 {
		t.Errorf("%d commits were not applied", n)
	}
	p.tellAll("commit k of=t/0 offset=1 by=c@10.0.0.2") // when the owner has shown who it is
	if n := p.gates[state.GateCommit].n; n != 1 {
		t.Errorf("%d commits were not applied, want 1", n)
	}
	p.tellAll("session x", "register x as=t")
	p.advance(11 * time.Second)
	if n := p.gates[state.GateDialect]; n.n != 1 || n.total != 10*time.Second {
		t.Errorf("registrations of another library: %v", n)
	}
}
