package integration

import (
	"context"
	"fmt"
	"maps"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/integration/check"
	"github.com/barnabas-mq/barnabas/integration/harness"
	"github.com/barnabas-mq/barnabas/internal/testtool"
)

// stallLimit is what a fail-over may cost on a noisy machine; what it does cost is logged.
const stallLimit = time.Minute

// load is a cluster under an idempotent producer, with what was acked.
type load struct {
	*harness.Cluster
	t        *testing.T
	topic    string
	history  check.History
	producer *harness.Producer
}

func underLoad(t *testing.T, o harness.Options) *load {
	t.Helper()
	o.Nodes = 3
	o.Race = o.Race || os.Getenv("CI") == "true" // as the rest of CI's tests
	l := &load{Cluster: harness.Start(t, o), t: t, topic: "load"}
	harness.CreateTopic(t, l.Brokers(), l.topic, 6, 3, nil)
	l.awaitISR()
	l.producer = harness.Produce(t, l.Brokers(), l.topic, &l.history, harness.ProducerOptions{})
	l.producer.AwaitAcks(t, 200)
	return l
}

// awaitISR returns when every partition has all its replicas in sync.
func (l *load) awaitISR() {
	l.t.Helper()
	admin := kadm.NewClient(harness.Client(l.t, l.Brokers()))
	testtool.Eventually(l.t, harness.StartLimit, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		m, err := admin.Metadata(ctx, l.topic)
		if err != nil {
			return err
		}
		for _, p := range m.Topics[l.topic].Partitions {
			if len(p.ISR) != len(p.Replicas) || p.Leader < 0 {
				return fmt.Errorf("partition %d: leader %d, in sync %v of %v", p.Partition, p.Leader, p.ISR, p.Replicas)
			}
		}
		return nil
	})
}

// leader returns a node that leads a partition and is, or is not, the controller.
func (l *load) leader(controller bool) *harness.Node {
	l.t.Helper()
	c := harness.Controller(l.t, l.Brokers())
	for _, id := range harness.Leaders(l.t, l.Brokers(), l.topic) {
		if (int(id) == c) == controller {
			return l.Node(int(id))
		}
	}
	l.t.Logf("no partition leader that has controller = %v; taking node %d", controller, c)
	return l.Node(c)
}

// lose runs a fault that takes a node away, which lasts until all that the node led is led by others: what it may have acked
// alone meanwhile is lost then.
func (l *load) lose(n *harness.Node, name string, cause, undo func()) {
	l.t.Helper()
	led := harness.Leaders(l.t, l.Brokers(), l.topic)
	maps.DeleteFunc(led, func(_, leader int32) bool { return int(leader) != n.ID })
	l.fault(name, func() {
		cause()
		l.awaitMoved(n, led)
	}, undo)
}

// awaitMoved returns when another node names other leaders than n for these partitions.
func (l *load) awaitMoved(n *harness.Node, led map[int32]int32) {
	l.t.Helper()
	other := l.Nodes[n.ID%len(l.Nodes)]
	client := harness.Client(l.t, []string{other.Kafka})
	testtool.Eventually(l.t, harness.StartLimit, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		req := kmsg.NewPtrMetadataRequest()
		req.Topics = []kmsg.MetadataRequestTopic{{Topic: &l.topic}}
		answer, err := client.SeedBrokers()[0].Request(ctx, req) // of that node itself: n may still answer clients
		if err != nil {
			return err
		}
		for _, p := range answer.(*kmsg.MetadataResponse).Topics[0].Partitions {
			if _, was := led[p.Partition]; was && (p.Leader < 0 || int(p.Leader) == n.ID) {
				return fmt.Errorf("node %d names %d as leader of partition %d", other.ID, p.Leader, p.Partition)
			}
		}
		return nil
	})
}

// fault runs one fault, waits until the producer is acked again, and logs what it cost.
func (l *load) fault(name string, cause, undo func()) {
	l.t.Helper()
	l.producer.ResetStall()
	cause()
	l.producer.AwaitAcks(l.t, 300)
	undo()
	undone := time.Now()
	l.awaitISR()
	l.producer.AwaitAcks(l.t, 100)
	stall := l.producer.Stall()
	l.t.Logf("%s: longest wait for an ack %v; all replicas in sync again %v after the fault ended", name, stall.Round(time.Millisecond),
		time.Since(undone).Round(time.Millisecond))
	if stall > stallLimit {
		l.t.Errorf("%s: producers stood still for %v", name, stall)
	}
}

// verify ends the load and runs the checkers over a full read.
func (l *load) verify() {
	l.t.Helper()
	started := time.Now()
	if failed := l.producer.Stop(l.t); len(failed) > 0 {
		l.t.Errorf("%d records failed, first: %v", len(failed), failed[0])
	}
	l.awaitISR()
	stopped := time.Now()
	final := harness.ReadAll(l.t, l.Brokers(), l.topic, "final")
	l.t.Logf("%d records acked, %d read; stopping took %v, reading %v", l.producer.Acked(), len(final), stopped.Sub(started).Round(time.Millisecond),
		time.Since(stopped).Round(time.Millisecond))
	l.history.Fail(l.t, final, append(append(check.NoLoss(l.history.Acks(), final), check.NoDuplicate(final)...),
		check.OffsetUnique(l.history.Acks(), final)...))
}

func TestKilledLeaders(t *testing.T) {
	l := underLoad(t, harness.Options{})
	for round := range 3 {
		for _, controller := range []bool{false, true} {
			n := l.leader(controller)
			l.lose(n, fmt.Sprintf("round %d: SIGKILL of node %d (Raft leader: %v)", round, n.ID, controller), n.Kill, n.Start)
		}
	}
	l.verify()
}

func TestFrozenLeaders(t *testing.T) {
	l := underLoad(t, harness.Options{})
	for _, controller := range []bool{false, true} {
		n := l.leader(controller)
		l.lose(n, fmt.Sprintf("SIGSTOP of node %d (Raft leader: %v)", n.ID, controller), n.Pause, n.Resume)
	}
	l.verify()
}

func TestAllKilledAtOnce(t *testing.T) {
	l := underLoad(t, harness.Options{})
	for _, n := range l.Nodes {
		n.Kill()
	}
	for _, n := range l.Nodes {
		n.Start()
	}
	l.AwaitServing()
	l.producer.AwaitAcks(t, 300)
	l.verify()
}

// TestCutLeaders cuts a leader from the other nodes while clients still reach it: it must not ack what the others do not have.
func TestCutLeaders(t *testing.T) {
	l := underLoad(t, harness.Options{Proxied: true})
	r := check.Rand(t)
	for _, controller := range []bool{false, true} {
		n := l.leader(controller)
		var others []string
		for _, o := range l.Nodes {
			if o != n {
				others = append(others, o.Name)
			}
		}
		l.lose(n, fmt.Sprintf("node %d cut off (Raft leader: %v)", n.ID, controller), func() { l.Net.Isolate(n.Name, others...) }, l.Net.Heal)
	}
	n := l.leader(true)
	victim := l.Nodes[(n.ID+r.IntN(len(l.Nodes)-1))%len(l.Nodes)] // any but n, whose index is n.ID-1
	l.fault(fmt.Sprintf("bytes from node %d to the Raft leader %d cut", victim.ID, n.ID), func() { l.Net.Cut(victim.Name, n.Name) }, l.Net.Heal)
	l.fault("every link late", func() {
		for _, a := range l.Nodes {
			for _, b := range l.Nodes {
				l.Net.Delay(a.Name, b.Name, time.Duration(r.IntN(40))*time.Millisecond)
			}
		}
	}, l.Net.Heal)
	l.verify()
}

// TestRacing runs the faults once on a binary with the race detector: a race ends the node and fails the test.
func TestRacing(t *testing.T) {
	l := underLoad(t, harness.Options{Race: true})
	n := l.leader(false)
	l.lose(n, fmt.Sprintf("SIGKILL of node %d", n.ID), n.Kill, n.Start)
	n = l.leader(true)
	l.lose(n, fmt.Sprintf("SIGSTOP of node %d, the Raft leader", n.ID), n.Pause, n.Resume)
	l.verify()
	for _, n := range l.Nodes {
		n.Stop()
	}
}
