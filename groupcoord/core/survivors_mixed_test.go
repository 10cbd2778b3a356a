package core

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

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
