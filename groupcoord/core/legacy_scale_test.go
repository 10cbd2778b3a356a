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
