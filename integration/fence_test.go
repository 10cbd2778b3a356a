package integration

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/barnabas-mq/barnabas/integration/harness"
	"github.com/barnabas-mq/barnabas/internal/testtool"
)

// TestFrozenOldMember has one of two high-level consumers stand still until its session has expired and the other has taken over.
// When it wakes up, its connections are there as before, and it does not know: it gets none of the records that came meanwhile, for they
// were cut off before the partitions were given away; then it joins again. Nothing is read twice.
func TestFrozenOldMember(t *testing.T) {
	const topic, timeout = "frozen", 6 * time.Second
	to := newTarget(t)
	conn := dialZK(t, strings.Split(to.zookeeper, ",")...)
	admin := kadm.NewClient(harness.Client(t, to.brokers))
	harness.CreateTopic(t, to.brokers, topic, groupPartitions, to.replicas, nil)
	fill(t, to.brokers, topic, 0, perPartition)
	o := startOldMembers(t, to, topic, timeout, "a", "b")
	o.join("a", "a")
	o.join("b", "b")
	until := func(check func() error) { t.Helper(); testtool.Eventually(t, memberLimit, check) }
	until(func() error { return o.check.whole(conn, admin, 2) })
	until(func() error { return o.check.has(t, 0, perPartition, o.procs["a"], o.procs["b"]) })
	until(func() error { return o.check.committed(admin, perPartition) })

	a, frozen := o.procs["a"], time.Now()
	if err := a.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Signal(syscall.SIGCONT) })
	until(func() error { return o.check.whole(conn, admin, 1) })
	t.Logf("the other took over %v after the freeze, session timeout %v", time.Since(frozen).Round(10*time.Millisecond), timeout)
	fill(t, to.brokers, topic, perPartition, 2*perPartition)
	until(func() error { return o.check.has(t, perPartition, 2*perPartition, o.procs["b"]) })
	if err := a.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	until(func() error { return o.check.whole(conn, admin, 2) })
	fill(t, to.brokers, topic, 2*perPartition, 3*perPartition)
	until(func() error { return o.check.has(t, 2*perPartition, 3*perPartition, o.procs["a"], o.procs["b"]) })
	twice, seen := 0, map[spot]bool{}
	for _, m := range o.procs {
		records, _ := m.received(t)
		for _, r := range records {
			if seen[r] && r.offset >= perPartition {
				twice++
			}
			seen[r] = true
		}
	}
	if twice > 0 {
		t.Errorf("%d records that came after the freeze were read twice", twice)
	}
}
