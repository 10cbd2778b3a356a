package core

import (
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// reconcile moves a member of a consumer group one step towards its target (Kafka's CurrentAssignmentBuilder): it is told to give up
// what it must, and only when it is heard to have done so it is given what nobody else holds. epoch is the group's. owned is what the
// member says that it owns; heard is false when it did not say. free tells whether a partition that it does not hold may be given to it.
// The member itself is returned when nothing changes.
func reconcile(m *state.ConsumerMember, epoch int32, owned parts, heard bool, free func(partition) bool) *state.ConsumerMember {
	switch {
	case m.State == state.MemberStable && m.Epoch == epoch:
		return m
	case m.State == state.MemberUnrevoked && stillOwns(m.Revoking, owned, heard):
		return m
	}
	var kept, revoking, coming builder
	waits := false
	target := parts(m.Target)
	parts(m.Assigned).each(func(p partition, since int32) {
		if target.has(p) {
			kept.put(p.topic, p.n, since)
		} else {
			revoking.put(p.topic, p.n, since)
		}
	})
	target.each(func(p partition, _ int32) {
		switch {
		case parts(m.Assigned).has(p):
		case parts(m.Revoking).has(p) || free(p):
			coming.put(p.topic, p.n, epoch)
		default:
			waits = true
		}
	})
	n := *m
	if r := revoking.parts(); len(r) > 0 && stillOwns(r, owned, heard) {
		n.Previous, n.State, n.Assigned, n.Revoking = m.Epoch, state.MemberUnrevoked, kept.parts(), r
		return &n
	}
	coming.parts().each(func(p partition, since int32) { kept.put(p.topic, p.n, since) })
	n.Previous, n.Epoch, n.State, n.Assigned, n.Revoking = m.Epoch, epoch, state.MemberStable, kept.parts(), nil
	if waits {
		n.State = state.MemberUnreleased
	}
	if n.State == m.State && n.Epoch == m.Epoch && len(m.Revoking) == 0 && parts(n.Assigned).same(m.Assigned) {
		return m // it waited, and goes on waiting
	}
	return &n
}

// stillOwns reports whether a member may still read any of some partitions.
func stillOwns(ps, owned parts, heard bool) bool {
	if !heard {
		return true
	}
	still := false
	ps.each(func(p partition, _ int32) { still = still || owned.has(p) })
	return still
}

// reconciled reports whether a member is where the group's epoch wants it.
func reconciled(m *state.ConsumerMember, epoch int32) bool {
	return m.State == state.MemberStable && m.Epoch == epoch
}

// checkEpoch judges the epoch that a member comes with. It may be one behind, as long as it owns nothing that it was not given: the
// answer that told it the present one may have been lost. 0 joins again and owns nothing.
func checkEpoch(m *state.ConsumerMember, epoch int32, owned parts, heard bool) (why string) {
	switch {
	case epoch == 0 || epoch == m.Epoch:
		return ""
	case epoch > m.Epoch:
		return "the member epoch is ahead of the one that the coordinator knows: give up all partitions and join again"
	}
	subset := heard
	owned.each(func(p partition, _ int32) { subset = subset && parts(m.Assigned).has(p) })
	if epoch == m.Previous && subset {
		return ""
	}
	return "the member epoch is behind the one that the coordinator knows: give up all partitions and join again"
}
