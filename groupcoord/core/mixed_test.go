package core

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

func (w *town) want(t *testing.T, when, want string) {
	t.Helper()
	if got := w.read(); got != want {
		t.Errorf("%s: %s\nwant %s\n%s", when, got, want, w.out.String())
	}
	w.out.Reset()
}

// The worked example of groups.md: three legacy members, then two and three by Kafka's protocol.
func TestMixedAsWorkedOut(t *testing.T) {
	w := newTown(t)
	w.topic("t", 12)
	for _, name := range []string{"g_L1", "g_L2", "g_L3"} {
		w.add(name, state.DialectJVM, "t:2").start()
	}
	w.pass(2 * time.Second)
	w.want(t, "legacy alone", "g_L1 t[0 1 2 3]; g_L2 t[4 5 6 7]; g_L3 t[8 9 10 11]")
	w.consumer("M1", "t").start()
	w.consumer("M2", "t").start()
	w.pass(5 * time.Second)
	w.want(t, "two more", "M1 t[8 10]; M2 t[9 11]; g_L1 t[0 1 2 3]; g_L2 t[4 5]; g_L3 t[6 7]")
	m3 := w.consumer("M3", "t")
	m3.classic = true
	m3.start()
	w.pass(5 * time.Second)
	w.want(t, "three more", "M1 t[8 10]; M2 t[9 11]; M3 t[6 7]; g_L1 t[0 1]; g_L2 t[2 3]; g_L3 t[4 5]")
	if w.failures > 0 {
		t.Errorf("%d attempts of legacy members failed", w.failures)
	}
}

// Members by roundrobin, of two topics: how they deal is learnt from what they claim, and the pool gets what they leave.
func TestMixedWithRoundRobin(t *testing.T) {
	for _, deals := range []strategy{strategyHash011, strategyHash10} {
		for _, legacyFirst := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, legacy first %v", deals, legacyFirst), func(t *testing.T) {
				w := newTown(t)
				w.topic("orders", 12)
				w.topic("clicks", 5)
				old := func() {
					for _, name := range []string{"g_a", "g_b"} {
						m := w.add(name, state.DialectJVM, "orders:1,clicks:1")
						m.deals = deals
						m.start()
					}
				}
				modern := func() {
					w.consumer("M1", "orders", "clicks").start()
					w.consumer("M2", "orders", "clicks").start()
				}
				if legacyFirst {
					old()
					w.pass(5 * time.Second)
					modern()
				} else {
					modern()
					w.pass(5 * time.Second)
					old()
				}
				w.pass(60 * time.Second)
				row, _ := w.s.View().Legacy("g")
				got := w.read()
				if strings.Contains(got, "nobody") || !w.steady() || strategy(row.Strategy) != deals && legacyFirst || w.mind.mixOf("g").strategy != deals {
					t.Errorf("%s\n%s\n%s", got, w.dump(), w.out.String())
				}
				if legacyFirst && w.failures > 0 {
					t.Errorf("%d attempts failed", w.failures)
				}
				for _, m := range w.moderns { // 17 partitions and four members
					if len(m.owned) < 3 || len(m.owned) > 6 {
						t.Errorf("%s has %d partitions: %s", m.name, len(m.owned), got)
					}
				}
			})
		}
	}
}

// With one topic, the two orders in which round-robin deals look alike as long as nobody else is there. It shows with the first pool, and
// what nobody reads then does not wait until the generation is given up.
func TestMixedLearnsSoon(t *testing.T) {
	for _, deals := range []strategy{strategyRange, strategyHash011, strategyHash10} {
		w := newTown(t)
		w.topic("t", 12)
		for _, name := range []string{"g_a", "g_b"} {
			m := w.add(name, state.DialectJVM, "t:1")
			m.deals = deals
			m.start()
		}
		w.pass(3 * time.Second)
		w.consumer("M1", "t").start()
		w.consumer("M2", "t").start()
		w.pass(5 * time.Second)
		if got := w.read(); strings.Contains(got, "nobody") || !w.steady() || w.failures > 0 {
			t.Errorf("%s: %s, %d attempts failed\n%s\n%s", deals, got, w.failures, w.dump(), w.out.String())
		}
	}
}

// A member that joins again while its group is being changed meets, behind that change, a group that a consumer by ZooKeeper has come into
// and that nobody has taken over yet: its JoinGroup does so.
func TestMixedRejoinTakesOver(t *testing.T) {
	w := newTown(t)
	w.topic("t", 1)
	m, zk := w.consumer("M1", "t"), w.add("g_a", state.DialectKafkaNode, "t:1")
	m.classic = true
	zk.start()
	w.run()
	zk.quit(false)
	w.run()
	m.start()
	w.run()
	w.lose = "dropped" // what is proposed next
	zk.restart()
	w.run()
	w.topic("t", 2)
	w.run()
	w.lose = ""
	w.pass(20 * time.Second)
	w.want(t, "together", "M1 t[1]; g_a t[0]")
}

// A group whose leader assigns is taken over when a consumer by ZooKeeper comes, and goes on when that one has left.
func TestMixedTakesOverAClassicGroup(t *testing.T) {
	for _, eager := range []bool{true, false} {
		w := newTown(t)
		w.topic("t", 6)
		for _, name := range []string{"C1", "C2"} {
			m := w.consumer(name, "t")
			m.classic, m.eager = true, eager
			m.start()
		}
		w.pass(10 * time.Second)
		w.want(t, "classic alone", "C1 t[0 2 4]; C2 t[1 3 5]")
		if w.row().Consumer {
			t.Error("the leader assigns a classic group")
		}
		w.add("g_a", state.DialectJVM, "t:1").start()
		w.pass(10 * time.Second)
		w.want(t, "with a consumer by ZooKeeper", "C1 t[2 4]; C2 t[3 5]; g_a t[0 1]")
		w.member("g_a").quit(false)
		w.pass(10 * time.Second)
		w.want(t, "alone again", "C1 t[0 2 4]; C2 t[1 3 5]")
		if w.failures > 0 {
			t.Errorf("%d attempts failed", w.failures)
		}
	}
}

// refusals are what the group's history says of members that were not let in.
func (w *town) refusals() (out []string) {
	for _, r := range w.row().Rebalances {
		if r.Cause == "refused" {
			out = append(out, r.Text)
		}
	}
	return out
}

// Members that cannot agree are refused, whoever comes second, and both the log and the group's history say why.
func TestMixedRefusesWhoCannotAgree(t *testing.T) {
	pykafka := func(w *town) { w.add("p", state.DialectPykafka, "t:1").start() }
	modern := func(w *town) { w.consumer("M1", "t").start() }
	pattern := func(w *town) { w.add("g_x", state.DialectJVM, "~t(?=x)|t").start() }
	for _, c := range []struct {
		name          string
		first, second func(*town)
		want          string
	}{
		{"pykafka first", pykafka, modern, "client M1 at h was refused: member p is of the dialect pykafka, whose shares depend on where partition leaders are"},
		{"pykafka second", modern, pykafka, "p was refused: the group has members by Kafka's protocol, and member p is of the dialect pykafka, whose shares depend on where partition leaders are"},
		{"a pattern that is Java's own", pattern, modern, "client M1 at h was refused: the pattern of member g_x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newTown(t)
			w.topic("t", 4)
			c.first(w)
			w.pass(3 * time.Second)
			before := w.read()
			c.second(w)
			w.pass(20 * time.Second)
			refused := w.refusals()
			if len(refused) == 0 || !strings.HasPrefix(refused[0], c.want) || !strings.Contains(w.out.String(), "log: a member was refused: ") {
				t.Errorf("%q, want %q\n%s", refused, c.want, w.out.String())
			}
			if got := w.read(); !strings.HasPrefix(strings.ReplaceAll(got, "M1; ", ""), strings.TrimSuffix(before, ";")) {
				t.Errorf("before %s, after %s", before, got)
			}
		})
	}
	t.Run("another protocol", func(t *testing.T) {
		w := newTown(t)
		w.topic("t", 4)
		w.tell(line{verb: "join", name: "w1", kv: map[string]string{"type": "connect", "v": "2", "session": "60"}})
		w.pass(time.Second)
		w.add("g_a", state.DialectJVM, "t:1").start()
		w.pass(12 * time.Second)
		if got := w.refusals(); len(got) == 0 || got[0] != `g_a was refused: the group has members of the protocol "connect"` {
			t.Errorf("%q\n%s", got, w.out.String())
		}
	})
}

// A member that does not give up what leaves the block holds the publish up, for no longer than a join may be held.
func TestMixedMemberThatDoesNotPoll(t *testing.T) {
	w := newTown(t)
	w.topic("t", 4)
	w.consumer("M1", "t").start()
	w.pass(5 * time.Second)
	w.modern("M1").paused = true
	w.add("g_a", state.DialectJVM, "t:1").start()
	w.pass(10 * time.Second)
	if row, ok := w.s.View().Legacy("g"); ok && row.Number > 0 {
		t.Error("a generation was published although a member keeps what is not in its block")
	}
	w.pass(5 * time.Second)
	if row, _ := w.s.View().Legacy("g"); row.Number != 1 {
		t.Errorf("generation %d after the bound of a join", row.Number)
	}
	w.modern("M1").paused = false
	w.pass(10 * time.Second)
	w.want(t, "it polls again", "M1 t[2 3]; g_a t[0 1]")
}

// The barrier cannot be switched off while members of both kinds are in a group: they share by the pool that it shows. Once it is off, the
// other kind is not let in.
func TestMixedNeedsTheBarrier(t *testing.T) {
	w := newTown(t)
	w.topic("t", 4)
	w.add("g_a", state.DialectJVM, "t:1").start()
	w.pass(3 * time.Second)
	w.consumer("M1", "t").start()
	w.pass(5 * time.Second)
	w.want(t, "with the barrier", "M1 t[2 3]; g_a t[0 1]")
	w.must(&pb.Command{Body: &pb.Command_SetConfig{SetConfig: &pb.SetConfig{Type: state.GroupConfigs, Name: "g", ZnodeVersion: -1, Entries: []*pb.ConfigEntry{{Name: state.GatesOff, Value: "barrier"}}}}})
	w.pass(20 * time.Second)
	w.want(t, "switched off", "M1 t[2 3]; g_a t[0 1]")
	w.failover()
	w.pass(5 * time.Second)
	w.want(t, "with another coordinator", "M1 t[2 3]; g_a t[0 1]")
	if row, _ := w.s.View().Legacy("g"); row.Withdrawn {
		t.Error("the pool is shown no more")
	}
	w.modern("M1").leave()
	w.pass(10 * time.Second)
	w.want(t, "alone", "g_a t[0 1 2 3]")
	w.modern("M1").start()
	w.pass(5 * time.Second)
	if got := w.refusals(); len(got) != 1 || !strings.Contains(got[0], `the group's gate "barrier" is off`) {
		t.Errorf("%q", got)
	}
}

// restart starts a member anew; one that was refused still has its session.
func (m *zkMember) restart() {
	if m.act == actIdle && m.session != 0 {
		m.quit(false)
	}
	m.start()
}

// fate is one random thing that happens to a town.
func (w *town) fate(rt *rapid.T) {
	zk := w.members[rapid.IntRange(0, len(w.members)-1).Draw(rt, "who")]
	m := w.moderns[rapid.IntRange(0, len(w.moderns)-1).Draw(rt, "whom")]
	idle := zk.act == actIdle || zk.act == actGone
	switch rapid.IntRange(0, 15).Draw(rt, "fate") {
	case 0, 1:
		if idle {
			zk.paused = false
			zk.restart()
		}
	case 2:
		if !idle {
			zk.quit(false)
		}
	case 3:
		if !idle && !zk.expired {
			zk.quit(true)
		}
	case 4:
		zk.paused = !zk.paused
	case 5, 6:
		if !m.up {
			m.start()
		}
	case 7:
		if m.up {
			m.leave()
		}
	case 8:
		if m.up {
			m.kill()
		}
	case 9:
		m.paused = !m.paused
	case 10:
		w.failover()
	case 11:
		if t, _ := w.s.View().Topic("t"); t.Partitions < 14 {
			w.topic("t", int(t.Partitions)+1)
		}
	case 12:
		w.lose = rapid.SampledFrom([]string{"applied", "dropped"}).Draw(rt, "outcome")
	default:
		w.pass(time.Duration(rapid.IntRange(1, 4000).Draw(rt, "ms")) * time.Millisecond)
	}
	w.run()
	w.out.Reset()
}

// Whatever members of all three kinds, the clock and coordinators do: a partition has one owner at every moment; and when the faults
// end, everything is read again.
func TestMembersOfAllKinds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newTown(t)
		w.topic("t", rapid.IntRange(1, 12).Draw(rt, "partitions"))
		w.topic("u", 3)
		dialect := rapid.SampledFrom([]state.Dialect{state.DialectJVM, state.DialectJVM, state.DialectKafkaNode}).Draw(rt, "dialect")
		deals := strategyRange
		if dialect == state.DialectJVM {
			deals = rapid.SampledFrom(strategies).Draw(rt, "strategy")
		}
		for i := range rapid.IntRange(1, 4).Draw(rt, "legacy") {
			topics := "t:1"
			if dialect == state.DialectJVM && deals == strategyRange {
				topics = rapid.SampledFrom([]string{"t:1", "t:2", "t:1,u:1", "~t|u"}).Draw(rt, "topics")
			}
			w.add(fmt.Sprintf("g_%c", 'a'+i), dialect, topics).deals = deals
		}
		eager := rapid.Bool().Draw(rt, "eager") // Kafka does not let both into one group
		for i := range rapid.IntRange(1, 4).Draw(rt, "modern") {
			m := w.consumer(fmt.Sprintf("M%d", i), rapid.SampledFrom([][]string{{"t"}, {"t", "u"}}).Draw(rt, "subscription")...)
			m.classic, m.eager = rapid.Bool().Draw(rt, "classic"), eager
		}
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			w.fate(rt)
		}
		w.lose = ""
		for _, zk := range w.members {
			zk.paused = false
		}
		for _, m := range w.moderns {
			if m.paused = false; !m.up {
				m.start()
			}
		}
		for range 180 {
			for _, zk := range w.members {
				if zk.act == actIdle {
					zk.restart()
				}
			}
			w.pass(time.Second)
			if !strings.Contains(w.read(), "nobody") && w.steady() {
				w.pass(3 * time.Second)
				if !strings.Contains(w.read(), "nobody") && w.steady() {
					return
				}
			}
			w.out.Reset()
		}
		rt.Fatalf("after three minutes: %s\n%s\n%s", w.read(), w.dump(), w.out.String())
	})
}

// dump is what the coordinator knows, for people.
func (w *town) dump() string {
	var b strings.Builder
	row, l := w.row(), (*state.Legacy)(nil)
	l, _ = w.s.View().Legacy("g")
	if row != nil {
		fmt.Fprintf(&b, "group: consumer %v, epoch %d\n", row.Consumer, row.Generation)
		for _, m := range row.Members {
			fmt.Fprintf(&b, "  %s %+v\n", m.ID, m.Consumer)
		}
	}
	if l != nil {
		fmt.Fprintf(&b, "generation %d complete %v withdrawn %v reserved %d strategy %d:", l.Number, l.Complete, l.Withdrawn, len(l.Reserved), l.Strategy)
		for _, m := range l.Members {
			fmt.Fprintf(&b, " %s", m.ID)
		}
	}
	mix := w.mind.mixOf("g")
	fmt.Fprintf(&b, "\nmix: %q %s pool %v now %+v next %+v\n", mix.why, mix.strategy, mix.pool, mix.now, mix.next)
	for _, zk := range w.members {
		fmt.Fprintf(&b, "%s act %d expired %v owned %v want %v\n", zk.name, zk.act, zk.expired, zk.owned, zk.want)
	}
	for _, m := range w.moderns {
		fmt.Fprintf(&b, "%s up %v id %s epoch %d joined %v owned %v told %v errors %v\n", m.name, m.up, m.id, m.epoch, m.joined, m.owned, m.told, m.errors)
	}
	fmt.Fprintf(&b, "%s\n", w.owners())
	return b.String()
}

// steady reports whether nobody is on the way to anything.
func (w *town) steady() bool {
	for _, zk := range w.members {
		if zk.act != actSteady && zk.act != actGone {
			return false
		}
	}
	for _, m := range w.moderns {
		if m.up && (m.epoch == 0 || m.classic && !m.joined) {
			return false
		}
	}
	return true
}

// An owner znode that nobody is registered for keeps a classic group what it is: the first consumer member is refused with the reason, and
// let in when the znode is gone.
func TestUpgradeBesideAStaleOwner(t *testing.T) {
	w := newTown(t)
	w.topic("t", 2)
	for _, dir := range []string{"/consumers/g", "/consumers/g/ids", "/consumers/g/owners", "/consumers/g/owners/t"} {
		w.must(&pb.Command{Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: dir, Null: true}}})
	}
	w.must(&pb.Command{Body: &pb.Command_ClaimOwner{ClaimOwner: &pb.ClaimOwner{Group: "g", Topic: "t", Name: "0", Data: []byte("M1-1")}}}) // so that P3 sees one owner
	m1, m2 := w.consumer("M1", "t"), w.consumer("M2", "t")
	m1.classic = true
	m1.start()
	w.pass(5 * time.Second)
	before := w.index
	m2.start()
	w.pass(10 * time.Second)
	if entries := w.index - before; entries > 2 {
		t.Errorf("ten seconds of a member that cannot be let in: %d entries of the metadata log\n%s", entries, w.out.String())
	}
	if _, why := w.mind.refuseUpgrade(w.mind.group("g")); m2.epoch != 0 || len(m2.errors) == 0 || !strings.Contains(why, "/consumers/g/owners/t/0") {
		t.Errorf("epoch %d, errors %v\n%s", m2.epoch, m2.errors, w.out.String())
	}
	w.must(&pb.Command{Body: &pb.Command_DeleteZnode{DeleteZnode: &pb.DeleteZnode{Path: "/consumers/g/owners/t/0", Version: -1}}})
	m2.start()
	w.pass(5 * time.Second)
	w.want(t, "the znode is gone", "M1 t[0]; M2 t[1]")
}

// Two members of 1.1.1 by round-robin claim what two of 0.10.2 would: which of both they are shows only beside a pool, in claims of what the
// others keep. What they leave then nobody waits for.
func TestMixedLearnsRoundRobinFromHeldClaims(t *testing.T) {
	for _, deals := range []strategy{strategyHash011, strategyHash10} {
		w := newTown(t)
		w.topic("t", 12)
		for _, name := range []string{"g_a", "g_b"} {
			m := w.add(name, state.DialectJVM, "t:1")
			m.deals = deals
			m.start()
		}
		w.pass(3 * time.Second)
		w.consumer("M1", "t").start()
		w.pass(500 * time.Millisecond)
		m2 := w.consumer("M2", "t")
		m2.classic = true
		m2.start()
		w.pass(6 * time.Second)
		if got := w.read(); strings.Contains(got, "nobody") || !w.steady() {
			t.Errorf("%s: after six seconds %s\n%s\n%s", deals, got, w.dump(), w.out.String())
		}
	}
}
