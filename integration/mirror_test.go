package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/barnabas-mq/barnabas/integration/check"
	"github.com/barnabas-mq/barnabas/integration/harness"
	"github.com/barnabas-mq/barnabas/internal/testtool"
)

const (
	mirrored     = 50_000
	mirrorKeys   = 500
	mirrorPart   = mirrored * 3 / 10 // is copied before each kill
	mirrorTopic  = "mirrored"
	mirrorParts  = 6
	mirrorGroup  = "mirror-makers"
	mirrorCommit = "500" // ms
)

// TestMirrorMaker copies one cluster to another by two of Apache Kafka's own MirrorMakers, each a member of one group by ZooKeeper
// (0.9.0.1: the first that commits what was acknowledged only); one is killed after 30 % and is back at 60 %, when the other is killed
// (cases.md 34). All is in the target, in the order of each key but for what was copied again, and the group's lag ends at 0.
func TestMirrorMaker(t *testing.T) {
	testtool.Need(t, testtool.Kafka090)
	from, to := harness.Start(t, harness.Options{Nodes: 3}), harness.Start(t, harness.Options{})
	harness.CreateTopic(t, from.Brokers(), mirrorTopic, mirrorParts, 3, nil)
	harness.CreateTopic(t, to.Brokers(), mirrorTopic, mirrorParts, 1, nil)
	source := harness.Client(t, from.Brokers())
	seed := func(first, n int) {
		t.Helper()
		var all []*kgo.Record
		for i := first; i < first+n; i++ {
			all = append(all, &kgo.Record{Topic: mirrorTopic, Key: fmt.Appendf(nil, "k%d", i%mirrorKeys), Value: fmt.Append(nil, i)})
		}
		if err := source.ProduceSync(t.Context(), all...).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	target := newMirrorTarget(t, to)

	first, second := startMirror(t, from, to, "first"), startMirror(t, from, to, "second")
	seed(0, mirrorPart)
	target.await(mirrorPart / 2)
	first.Kill()
	seed(mirrorPart, mirrorPart)
	target.await(mirrorPart) // the one that is left goes on, and soon has the other's partitions
	first = startMirror(t, from, to, "first again")
	target.await(2 * mirrorPart)
	seed(2*mirrorPart, mirrored-2*mirrorPart)
	second.Kill()
	target.await(mirrored)
	for key, seen := range target.misordered {
		t.Errorf("key %s: copied out of order: %s", key, seen)
	}
	awaitNoLag(t, source)
	if !first.Alive() {
		t.Errorf("the mirror that was started again has ended:\n%s", first.Tail(40))
	}
	t.Logf("%d records copied, %d of them again after the kills", mirrored, target.again)
}

// startMirror starts a MirrorMaker from one cluster to the other.
func startMirror(t *testing.T, from, to *harness.Cluster, name string) *testtool.Process {
	t.Helper()
	dir := t.TempDir()
	file := func(name string, lines ...string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	consumer := file("consumer.properties", "zookeeper.connect="+from.ZooKeeper(), "group.id="+mirrorGroup, "auto.offset.reset=smallest",
		"consumer.timeout.ms=500", "zookeeper.session.timeout.ms=6000", "rebalance.max.retries=10")
	producer := file("producer.properties", "bootstrap.servers="+to.Bootstrap())
	return testtool.Start(t, "mirror "+name, testtool.JavaCommand(context.Background(), t, testtool.Kafka090, "kafka.tools.MirrorMaker",
		"--consumer.config", consumer, "--producer.config", producer, "--whitelist", "mirr.*", "--num.streams", "2",
		"--offset.commit.interval.ms", mirrorCommit))
}

// mirrorTarget reads the copy as it grows.
type mirrorTarget struct {
	t          *testing.T
	client     *kgo.Client
	next       map[string]int // by key: the number that is to come first
	copied     int            // without those that came again
	again      int
	misordered map[string]string
}

func newMirrorTarget(t *testing.T, to *harness.Cluster) *mirrorTarget {
	m := &mirrorTarget{t: t, next: map[string]int{}, misordered: map[string]string{}}
	m.client = harness.Client(t, to.Brokers(), kgo.ConsumeTopics(mirrorTopic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	for k := range mirrorKeys {
		m.next[fmt.Sprintf("k%d", k)] = k
	}
	return m
}

// await returns when n different records have been read.
func (m *mirrorTarget) await(n int) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), harness.StartLimit)
	defer cancel()
	for m.copied < n {
		fetches := m.client.PollFetches(ctx)
		if ctx.Err() != nil {
			m.t.Fatalf("%d of %d records were copied", m.copied, n)
		}
		fetches.EachRecord(m.read)
	}
}

func (m *mirrorTarget) read(r *kgo.Record) {
	key := string(r.Key)
	n, err := strconv.Atoi(string(r.Value))
	want, known := m.next[key]
	switch {
	case err != nil || !known || n%mirrorKeys != want%mirrorKeys:
		m.misordered[key] = check.NewRecord("target", r.Topic, r.Partition, r.Offset, r.Key, r.Value).Place().String() + " is none of the source's"
	case n == want:
		m.next[key] += mirrorKeys
		m.copied++
	case n < want:
		m.again++
	default:
		m.misordered[key] = fmt.Sprintf("%d came before %d", n, want)
	}
}

// awaitNoLag returns when the group has committed the end of each partition.
func awaitNoLag(t *testing.T, source *kgo.Client) {
	t.Helper()
	admin := kadm.NewClient(source)
	testtool.Eventually(t, harness.StartLimit, func() error {
		ends, err := admin.ListEndOffsets(t.Context(), mirrorTopic)
		if err != nil {
			return err
		}
		committed, err := admin.FetchOffsets(t.Context(), mirrorGroup)
		if err != nil {
			return err
		}
		for p := range int32(mirrorParts) {
			end, _ := ends.Lookup(mirrorTopic, p)
			at, ok := committed.Lookup(mirrorTopic, p)
			if !ok || at.At != end.Offset {
				return fmt.Errorf("partition %d: committed %d (%v), end %d", p, at.At, ok, end.Offset)
			}
		}
		return nil
	})
}
