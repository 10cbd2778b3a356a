package integration

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/barnabas-mq/barnabas/integration/harness"
	"github.com/barnabas-mq/barnabas/internal/testtool"
)

// TestFrozenOldMember has one of two consumers stand still until its session has expired and the other has taken over. When it wakes up,
// its connections are there as before, and it does not know: it gets none of the records that came meanwhile, for they were cut off before
// the partitions were given away; then it joins again. Nothing is read twice. Old consumers that set no client id give the group's; some
// have one of their own, and with kafka-node and pykafka all have the same. Whoever else reads a partition on this machine under that client
// id is not cut off; then nobody is.
func TestFrozenOldMember(t *testing.T) {
	to := newTarget(t)
	for i, m := range []struct {
		dialect
		beside string // client id of a simple consumer of partition 0
		lowers bool   // it commits what it had when it wakes up; under one name and address that counts, and others begin there (decisions.md 15)
	}{
		{dialect: oldJVM("0.8.2.2", testtool.Kafka082)},
		{dialect: oldJVM("0.8.2.2 client.id", testtool.Kafka082, "client.id=app", "auto.commit.interval.ms=200"), beside: "app"},
		{dialect: oldJVM("1.1.1 client.id offsets.storage=kafka", testtool.Kafka111, "client.id=app", "offsets.storage=kafka", "dual.commit.enabled=false")},
		{dialect: script("kafka-node 2.6.1", testtool.Node, true, strings.Replace(kafkaNodeMember, "group, {session", "undefined, {session", 1)), lowers: true},
		{dialect: script("pykafka 2.8.0", testtool.PyKafka, true, pykafkaMember), lowers: true},
	} {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			frozenOldMember(t, to, m.dialect, fmt.Sprint("frozen-", i), m.beside, m.lowers)
		})
	}
}

func frozenOldMember(t *testing.T, to target, d dialect, topic, beside string, lowers bool) {
	conn := dialZK(t, strings.Split(to.zookeeper, ",")...)
	admin := kadm.NewClient(harness.Client(t, to.brokers))
	harness.CreateTopic(t, to.brokers, topic, groupPartitions, to.replicas, nil)
	g := &group{dialect: d, id: topic}
	for _, name := range []string{"a", "b"} {
		g.members = append(g.members, d.start(t, to, topic, topic, name))
	}
	until := func(check func() error) { t.Helper(); testtool.Eventually(t, memberLimit, check) }
	until(func() error { return g.whole(conn, admin, 2) })
	fill(t, to.brokers, topic, 0, perPartition) // each commits what it has now: that tells whose connections are whose
	until(func() error { return g.has(t, 0, perPartition, g.members...) })
	until(func() error { return g.committed(admin, perPartition) })
	reads := func(int64) {}
	if beside != "" {
		client := harness.Client(t, to.brokers, kgo.ClientID(beside), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(0)}}))
		next := int64(0)
		reads = func(end int64) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), memberLimit)
			defer cancel()
			for next < end {
				client.PollFetches(ctx).EachRecord(func(r *kgo.Record) { next = r.Offset + 1 })
				if ctx.Err() != nil {
					t.Fatalf("a simple consumer beside the group has read up to %d of %d", next, end)
				}
			}
		}
		// Partition 0's owner is frozen.
		owners, err := legacyOwners(conn, topic, topic)
		if err != nil {
			t.Fatal(err)
		}
		records, _ := g.members[1].received(t)
		for _, r := range records {
			if r.partition == 0 && r.offset > perPartition/2 {
				g.members[0], g.members[1] = g.members[1], g.members[0]
				break
			}
		}
		t.Logf("owners %v", owners)
	}
	reads(perPartition)

	a, b := g.members[0], g.members[1]
	frozen := time.Now()
	if err := a.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Signal(syscall.SIGCONT) })
	until(func() error { return g.whole(conn, admin, 1) })
	t.Logf("the other took over %v after the freeze", time.Since(frozen).Round(10*time.Millisecond))
	fill(t, to.brokers, topic, perPartition, 2*perPartition)
	until(func() error { return g.has(t, perPartition, 2*perPartition, b) })
	until(func() error { return g.committed(admin, 2*perPartition) })
	reads(2 * perPartition)
	if err := a.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	until(func() error { return g.whole(conn, admin, 2) })
	fill(t, to.brokers, topic, 2*perPartition, 3*perPartition)
	until(func() error { return g.has(t, 2*perPartition, 3*perPartition, a, b) })
	reads(3 * perPartition)
	twice, seen := 0, map[spot]bool{}
	for _, m := range g.members {
		records, _ := m.received(t)
		for _, r := range records {
			if seen[r] && r.offset >= perPartition && (beside == "" || r.partition > 0) {
				twice++
			}
			seen[r] = true
		}
	}
	if twice > 0 && !lowers {
		t.Errorf("%d records that came after the freeze were read twice", twice)
	}
	cut := 0
	if to.cluster != nil {
		for _, n := range to.cluster.Nodes {
			cut += n.Logged("get no more records of a partition that others claim", "group="+topic+" ")
		}
	}
	t.Logf("cut off from %d partitions", cut)
	if want := groupPartitions / 2; to.cluster != nil && (beside == "" && cut < want || beside != "" && (cut == 0 || cut >= want)) {
		t.Errorf("the frozen member was cut off from %d partitions", cut)
	}
}
