package core

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
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
		for i := range rapid.IntRange(1, 4).Draw(rt, "legacy") {
			topics := "t:1"
			if dialect == state.DialectJVM {
				topics = rapid.SampledFrom([]string{"t:1", "t:2", "t:1,u:1", "~t|u"}).Draw(rt, "topics")
			}
			w.add(fmt.Sprintf("g_%c", 'a'+i), dialect, topics)
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
