package core

import (
	"fmt"
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// What znode consumers leave to others is computed over all topics and members: not with each claim of a group that has no others.
func TestClaimsOfZnodeConsumersAloneComputeNoPlan(t *testing.T) {
	p := newPark(t)
	for i := range 30 {
		p.topic(fmt.Sprintf("t%02d", i), 2)
	}
	for i := range 3 {
		p.add(fmt.Sprintf("g_m%d", i), state.DialectJVM, "~.*").start()
	}
	c := p.mind
	plans := map[*mix]bool{}
	p.check = func() {
		if m := c.plans.groups["g"]; m != nil {
			plans[m] = true
		}
	}
	p.pass(5 * time.Second)
	if row, ok := p.s.View().Legacy("g"); !ok || !row.Complete || len(p.owners()) == 0 {
		t.Fatal("the group is not there yet")
	}
	if len(plans) > 3 {
		t.Errorf("60 claims in one generation led to %d plans", len(plans))
	}
}

// What a group of many members costs grows with what happens in it, not with that times its size: registrations are read once, and a
// change looks only at what waits for it.
func TestLegacyWorkGrowsWithTheGroup(t *testing.T) {
	work := func(members int) legacyWork {
		p := newPark(t)
		p.topic("t", 2*members)
		p.hold = true // the creates are on their way together
		for i := range members {
			p.add(fmt.Sprintf("g_m%04d", i), state.DialectJVM, "t:1").start()
		}
		p.release()
		p.pass(5 * time.Second)
		p.member("g_m0000").quit(false)
		p.pass(5 * time.Second)
		row, ok := p.s.View().Legacy("g")
		if !ok || row.Number != 2 || !row.Complete || p.failures != 0 {
			t.Fatalf("%d members: %+v, %d failures", members, row, p.failures)
		}
		return p.mind.legacy.work
	}
	small, large := work(40), work(160)
	t.Logf("%+v, %+v", small, large)
	if large.parsed > 2*160 { // what it asks for, and its node
		t.Errorf("%d registrations of 160 members were read", large.parsed)
	}
	if large.looked > 6*small.looked {
		t.Errorf("four times the members: %d looks at what waits, %d before", large.looked, small.looked)
	}
}
