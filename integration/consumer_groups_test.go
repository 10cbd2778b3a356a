package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/integration/harness"
	"github.com/barnabas-mq/barnabas/integration/member"
	"github.com/barnabas-mq/barnabas/internal/testtool"
)

const confluentConsumer = `
import sys
from confluent_kafka import Consumer
brokers, zookeeper, group, topic, session = sys.argv[1:]
print('{"event":"ready"}')
sys.stdin.readline()
c = Consumer({'bootstrap.servers': brokers, 'group.id': group, 'auto.offset.reset': 'earliest', 'auto.commit.interval.ms': 200,
              'group.protocol': 'consumer'})
c.subscribe([topic])
while True:
    m = c.poll(0.5)
    if m is not None and not m.error():
        print('{"partition":%d,"offset":%d}' % (m.partition(), m.offset()))
`

// franzConsumer is franz-go by KIP-848.
func franzConsumer() dialect {
	return goMember("franz-go 1.22.3 consumer", "franz", false, func(o *member.Options) { o.Balancer = "consumer" })
}

// shortSessions are nodes on which a member of a consumer group that is silent is taken out as soon as a classic one of 6 s.
func shortSessions(t *testing.T) target {
	c := harness.Start(t, harness.Options{Nodes: 3, Properties: map[string]string{"group.consumer.session.timeout.ms": "6000"}})
	return target{cluster: c, brokers: c.Brokers(), bootstrap: c.Bootstrap(), zookeeper: c.ZooKeeper(), replicas: 3}
}

// TestConsumerMembersOfEveryDialect has groups of two of each client of the newer protocol (KIP-848) on one cluster; see
// TestMembersOfEveryDialect.
func TestConsumerMembersOfEveryDialect(t *testing.T) {
	membersOn(t, shortSessions(t), []dialect{franzConsumer(), script("confluent-kafka 2.16.1 consumer", testtool.Python, false, confluentConsumer), java44("consumer")})
}

// rolled is a group whose members are replaced one by one.
type rolled struct {
	t      *testing.T
	to     target
	client *kgo.Client
	admin  *kadm.Client
	g      *group
	alive  []*groupMember
	n      int

	written int // to each partition
}

// replace starts a member of a dialect, waits until all of the topic is held by the members that there should be then, and stops the oldest.
// Records are sent while each change is under way.
func (r *rolled) replace(d dialect) {
	r.t.Helper()
	r.n++
	m := d.start(r.t, r.to, r.g.id, r.g.id, fmt.Sprintf("m%d", r.n))
	r.g.members = append(r.g.members, m)
	r.alive = append(r.alive, m)
	r.send()
	r.whole()
	old := r.alive[0]
	r.alive = r.alive[1:]
	old.killed = true
	if err := old.Stop(time.Minute); err != nil {
		r.t.Logf("%s: %v", old.name, err)
	}
	r.send()
	r.whole()
}

func (r *rolled) send() {
	r.t.Helper()
	fill(r.t, r.to.brokers, r.g.id, r.written, r.written+perPartition/2)
	r.written += perPartition / 2
}

func (r *rolled) whole() {
	r.t.Helper()
	testtool.Eventually(r.t, memberLimit, func() error {
		for _, m := range r.alive {
			if !m.Alive() {
				r.t.Fatalf("%s has ended:\n%s", m.name, m.Tail(30))
			}
		}
		held, kind, err := r.holders()
		if err != nil {
			return err
		}
		var names []string
		for _, n := range held {
			if !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
		if len(held) != groupPartitions || len(names) != len(r.alive) {
			return fmt.Errorf("%s group: %d partitions are held, by %d members of %d", kind, len(held), len(names), len(r.alive))
		}
		return nil
	})
}

func (r *rolled) holders() (held map[int32]string, kind string, err error) {
	if kind, err = r.kind(); err != nil {
		return nil, "", err
	}
	held, err = modernOwners(r.admin, r.g.id, r.g.id, kind == "consumer")
	return held, kind, err
}

func (r *rolled) kind() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	req := kmsg.NewPtrListGroupsRequest()
	for _, shard := range r.client.RequestSharded(ctx, req) {
		if shard.Err != nil {
			return "", shard.Err
		}
		for _, g := range shard.Resp.(*kmsg.ListGroupsResponse).Groups {
			if g.Group == r.g.id {
				return g.GroupType, nil
			}
		}
	}
	return "", fmt.Errorf("%s is not listed", r.g.id)
}

func (r *rolled) is(kind string) {
	r.t.Helper()
	if got, err := r.kind(); err != nil || got != kind {
		r.t.Fatalf("the group is %q, want %s (%v)", got, kind, err)
	}
}

// TestGroupRollsToConsumersAndBack moves a group of Java 4.4 members of the classic protocol to the consumer protocol and back, member by
// member, while records are produced: each record arrives, the group is what Kafka says it is at each step.
func TestGroupRollsToConsumersAndBack(t *testing.T) {
	to := shortSessions(t)
	r := &rolled{t: t, to: to, client: harness.Client(t, to.brokers), g: &group{id: "rolled"}}
	r.admin = kadm.NewClient(r.client)
	harness.CreateTopic(t, to.brokers, r.g.id, groupPartitions, to.replicas, nil)
	r.send()
	classic, consumer := java44("classic"), java44("consumer")
	for range 2 {
		r.n++
		m := classic.start(t, to, r.g.id, r.g.id, fmt.Sprintf("m%d", r.n))
		r.g.members, r.alive = append(r.g.members, m), append(r.alive, m)
	}
	r.whole()
	r.is("classic")
	step := func(d dialect, kind string) {
		t.Helper()
		begun := time.Now()
		r.replace(d)
		r.is(kind)
		t.Logf("%s member in, group is %s: %v", d.name, kind, time.Since(begun).Round(time.Millisecond))
	}
	step(consumer, "consumer")
	step(consumer, "consumer")
	r.described("consumer")
	step(classic, "consumer")
	step(classic, "classic")
	r.described("classic")
	begun := time.Now()
	testtool.Eventually(t, memberLimit, func() error { return r.g.has(t, 0, int64(r.written), r.g.members...) })
	t.Logf("all read after %v", time.Since(begun).Round(time.Millisecond))
	testtool.Eventually(t, memberLimit, func() error { return r.g.committed(r.admin, int64(r.written)) })
	t.Logf("all committed after %v", time.Since(begun).Round(time.Millisecond))
	again, seen := 0, map[spot]bool{}
	for _, m := range r.g.members {
		records, others := m.received(t)
		for _, s := range records {
			if seen[s] {
				again++
			}
			seen[s] = true
		}
		if len(others) > 0 {
			t.Logf("%s: %v", m.name, tail(others, 4))
		}
	}
	t.Logf("%d records, %d of them more than once", len(seen), again)
}

// described has the tools of an old and a new Kafka show the group with the partitions of its members, and list it.
func (r *rolled) described(kind string) {
	r.t.Helper()
	for _, tool := range []testtool.Tool{testtool.Kafka44, testtool.Kafka111} {
		class := "kafka.admin.ConsumerGroupCommand"
		if tool == testtool.Kafka44 {
			class = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
		}
		out := harness.Tool(r.t, tool, class, "", "--bootstrap-server", r.to.bootstrap, "--describe", "--group", r.g.id)
		if strings.Count(out, r.g.id) < groupPartitions {
			r.t.Errorf("%s describes\n%s", tool, out)
		}
	}
	out := harness.Tool(r.t, testtool.Kafka44, "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "", "--bootstrap-server", r.to.bootstrap, "--list",
		"--type", kind, "--state", "stable")
	if !strings.Contains(out, r.g.id) {
		r.t.Errorf("listed as %s\n%s", kind, out)
	}
}
