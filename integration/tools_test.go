package integration

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/barnabas-mq/barnabas/integration/check"
	"github.com/barnabas-mq/barnabas/integration/harness"
	"github.com/barnabas-mq/barnabas/internal/testtool"
)

// lines returns n lines of text, each different.
func lines(prefix string, n int) []string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("%s line %d", prefix, i))
	}
	return all
}

func input(all []string) string { return strings.Join(all, "\n") + "\n" }

// sameLines fails the test unless the output holds exactly the lines, in any order.
func sameLines(t *testing.T, who, output string, want []string) {
	t.Helper()
	got := strings.Split(strings.TrimRight(output, "\n"), "\n")
	want = slices.Clone(want)
	sort.Strings(got)
	sort.Strings(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s shows %d lines, want %d; the first ones are %q", who, len(got), len(want), got[:min(3, len(got))])
	}
}

// words fails the test unless each word is in the text.
func words(t *testing.T, text string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("%q is not in:\n%s", w, text)
		}
	}
}

// TestRealClients has every named client use one cluster, unmodified.
func TestRealClients(t *testing.T) {
	to := newTarget(t)
	for name, test := range map[string]func(*testing.T, target){
		"TopicCommand 0.8.2.2":    oldTopicCommand,
		"console clients 0.8.2.2": oldConsole,
		"producers 0.8.2.2":       oldProducers,
		"kcat":                    kcat,
		"franz-go":                franz,
		"Kafka 4.4 tools":         newTools,
	} {
		t.Run(name, func(t *testing.T) { test(t, to) })
	}
}

func oldTopicCommand(t *testing.T, to target) {
	command := func(args ...string) string {
		return harness.Tool(t, testtool.Kafka082, "kafka.admin.TopicCommand", "", append([]string{"--zookeeper", to.zookeeper}, args...)...)
	}
	words(t, command("--create", "--topic", "old", "--partitions", "4", "--replication-factor", to.factor(), "--config", "max.message.bytes=2000000"),
		`Created topic "old".`)
	again, err := harness.TryTool(t, testtool.Kafka082, "kafka.admin.TopicCommand", "", "--zookeeper", to.zookeeper, "--create", "--topic", "old",
		"--partitions", "4", "--replication-factor", to.factor())
	words(t, fmt.Sprint(again, err), "already exists") // the tool says so, and exits 0
	words(t, command("--list"), "old\n")
	testtool.Eventually(t, harness.StartLimit, func() error { // the leaders are elected after the topic is there
		shown := command("--describe", "--topic", "old")
		if n := len(regexp.MustCompile(`(?m)Topic: old\tPartition: \d\tLeader: \d\t`).FindAllString(shown, -1)); n != 4 {
			return fmt.Errorf("%d partitions with a leader in:\n%s", n, shown)
		}
		words(t, shown, "PartitionCount:4", "ReplicationFactor:"+to.factor(), "Configs:max.message.bytes=2000000")
		return nil
	})
	command("--alter", "--topic", "old", "--partitions", "6")
	for _, b := range to.brokers {
		harness.AwaitLeaders(t, b, "old", 6)
	}
	words(t, command("--describe", "--topic", "old"), "PartitionCount:6", "Partition: 5")
	command("--delete", "--topic", "old")
	testtool.Eventually(t, harness.StartLimit, func() error {
		if all := command("--list"); strings.Contains(all, "old") {
			return fmt.Errorf("a deleted topic is listed: %q", all)
		}
		return nil
	})
}

func oldConsole(t *testing.T, to target) {
	harness.CreateTopic(t, to.brokers, "console", 3, to.replicas, nil)
	sent := lines("console", 500)
	harness.Tool(t, testtool.Kafka082, "kafka.tools.ConsoleProducer", input(sent), "--broker-list", to.bootstrap, "--topic", "console", "--sync",
		"--request-required-acks", "-1")
	got := harness.Tool(t, testtool.Kafka082, "kafka.tools.ConsoleConsumer", "", "--zookeeper", to.zookeeper, "--topic", "console",
		"--from-beginning", "--max-messages", "500")
	sameLines(t, "ConsoleConsumer 0.8.2.2", got, sent)
}

func oldProducers(t *testing.T, to target) {
	harness.CreateTopic(t, to.brokers, "producers", 3, to.replicas, nil)
	first := 0
	for _, api := range []string{"new", "old"} {
		for _, compression := range []string{"none", "gzip", "snappy"} {
			harness.Tool(t, testtool.Programs, "Producer082", "", "--brokers", to.bootstrap, "--topic", "producers", "--count", "300",
				"--first", fmt.Sprint(first), "--api", api, "--compression", compression, "--output", filepath.Join(t.TempDir(), "acks"))
			first += 300
		}
	}
	keys := map[string]bool{}
	for _, r := range harness.ReadAll(t, to.brokers, "producers", "final") {
		keys[r.Key] = true
		if r.Len != 100 {
			t.Errorf("key %s has %d bytes, want 100", r.Key, r.Len)
		}
	}
	if len(keys) != first {
		t.Errorf("%d keys, want %d", len(keys), first)
	}
}

func kcat(t *testing.T, to target) {
	harness.CreateTopic(t, to.brokers, "cat", 3, to.replicas, nil)
	sent := map[string][]string{}
	for p, codec := range map[string]string{"0": "none", "1": "gzip", "2": "zstd"} {
		if to.cluster == nil && codec == "zstd" {
			codec = "lz4" // zstd came after 1.1.1
		}
		sent[p] = lines("partition "+p, 200)
		harness.Kcat(t, input(sent[p]), "-P", "-b", to.bootstrap, "-t", "cat", "-p", p, "-z", codec, "-X", "acks=all", "-X", "enable.idempotence=true")
	}
	for p, want := range sent {
		sameLines(t, "kcat", harness.Kcat(t, "", "-C", "-b", to.bootstrap, "-t", "cat", "-p", p, "-o", "beginning", "-e", "-q"), want)
	}
	words(t, harness.Kcat(t, "", "-L", "-b", to.bootstrap, "-t", "cat"), `topic "cat" with 3 partitions`, "partition 2, leader")
	if last := harness.Kcat(t, "", "-C", "-b", to.bootstrap, "-t", "cat", "-p", "1", "-o", "-1", "-e", "-q"); last != "partition 1 line 199\n" {
		t.Errorf("the last line of partition 1 is %q", last)
	}
}

func franz(t *testing.T, to target) {
	harness.CreateTopic(t, to.brokers, "franz", 6, to.replicas, nil)
	var h check.History
	for i, codec := range []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression()} {
		p := harness.Produce(t, to.brokers, "franz", &h, harness.ProducerOptions{Name: fmt.Sprint("codec", i), Opts: []kgo.Opt{kgo.ProducerBatchCompression(codec)}})
		p.AwaitAcks(t, 300)
		if failed := p.Stop(t); len(failed) > 0 {
			t.Errorf("%d records failed, first: %v", len(failed), failed[0])
		}
	}
	final := harness.ReadAll(t, to.brokers, "franz", "final")
	h.Fail(t, final, append(append(check.NoLoss(h.Acks(), final), check.NoDuplicate(final)...), check.OffsetUnique(h.Acks(), final)...))
}

func newTools(t *testing.T, to target) {
	command := func(args ...string) string {
		return harness.Tool(t, testtool.Kafka44, "org.apache.kafka.tools.TopicCommand", "", append([]string{"--bootstrap-server", to.bootstrap}, args...)...)
	}
	words(t, command("--create", "--topic", "new", "--partitions", "3", "--replication-factor", to.factor(), "--config", "max.message.bytes=3000000"),
		"Created topic new.")
	words(t, command("--list"), "new\n")
	words(t, command("--describe", "--topic", "new"), "PartitionCount: 3", "ReplicationFactor: "+to.factor(), "max.message.bytes=3000000")
	command("--alter", "--topic", "new", "--partitions", "4")
	words(t, command("--describe", "--topic", "new"), "PartitionCount: 4")
	for _, b := range to.brokers {
		harness.AwaitLeaders(t, b, "new", 4)
	}
	sent := lines("new", 500)
	harness.Tool(t, testtool.Kafka44, "org.apache.kafka.tools.ConsoleProducer", input(sent), "--bootstrap-server", to.bootstrap, "--topic", "new")
	var got strings.Builder
	for p, n := range counts(t, to.brokers, "new") {
		if n > 0 {
			got.WriteString(harness.Tool(t, testtool.Kafka44, "org.apache.kafka.tools.consumer.ConsoleConsumer", "", "--bootstrap-server", to.bootstrap,
				"--topic", "new", "--partition", fmt.Sprint(p), "--offset", "earliest", "--max-messages", fmt.Sprint(n)))
		}
	}
	sameLines(t, "ConsoleConsumer 4.4", got.String(), sent)
	command("--delete", "--topic", "new")
	testtool.Eventually(t, harness.StartLimit, func() error {
		if all := command("--list"); strings.Contains(all, "new\n") {
			return fmt.Errorf("a deleted topic is listed: %q", all)
		}
		return nil
	})
}

// counts returns how many records each partition of the topic holds.
func counts(t *testing.T, brokers []string, topic string) map[int32]int {
	t.Helper()
	n := map[int32]int{}
	for _, r := range harness.ReadAll(t, brokers, topic, "count") {
		n[r.Partition]++
	}
	return n
}

// TestOldGroup has four members of one group, 0.8.2.2's high-level consumers, share a topic while one is killed and one leaves.
func TestOldGroup(t *testing.T) {
	to := newTarget(t)
	const partitions = 12
	harness.CreateTopic(t, to.brokers, "shared", partitions, to.replicas, nil)
	var h check.History
	producer := harness.Produce(t, to.brokers, "shared", &h, harness.ProducerOptions{})
	files, folder := map[string]string{}, testtool.Folder(t)
	for _, name := range []string{"a", "b", "c", "d"} {
		files[name] = filepath.Join(folder, name+".json")
	}
	watch := observe(t, to.zookeeper, "old", "shared", files)
	member := func(name string) *testtool.Process {
		return testtool.Start(t, name, testtool.JavaCommand(context.Background(), t, testtool.Programs, "HighLevelConsumer082",
			"--zookeeper", to.zookeeper, "--group", "old", "--topic", "shared", "--id", name, "--auto-commit-ms", "200", "--output", files[name],
			"--flush", "line", // what a killed member has committed, it has told us before
			"--property", "rebalance.max.retries=20", "--property", "rebalance.backoff.ms=500"))
	}
	a, b, c, d := member("a"), member("b"), member("c"), member("d")
	awaitReceipts(t, files, "a", "b", "c", "d")
	producer.AwaitAcks(t, 500)
	if err := a.Stop(time.Minute); err != nil {
		t.Errorf("a did not leave in good order: %v", err)
	}
	b.Kill() // its partitions are free when its session ends
	producer.AwaitAcks(t, 500)
	if failed := producer.Stop(t); len(failed) > 0 {
		t.Errorf("%d records failed, first: %v", len(failed), failed[0])
	}
	want := map[check.Place]bool{}
	for _, r := range h.Acks() {
		want[r.Place()] = true
	}
	testtool.Eventually(t, harness.StartLimit, func() error {
		missing := len(want)
		seen := map[check.Place]bool{}
		for _, r := range receipts(t, files, "shared") {
			if want[r.Place()] && !seen[r.Place()] {
				seen[r.Place()] = true
				missing--
			}
		}
		if missing > 0 {
			return fmt.Errorf("%d of %d acked records were received by no member", missing, len(want))
		}
		return nil
	})
	for name, p := range map[string]*testtool.Process{"c": c, "d": d} {
		if err := p.Stop(time.Minute); err != nil {
			t.Errorf("%s did not leave in good order: %v", name, err)
		}
	}
	all := receipts(t, files, "shared")
	faults := append(watch.verify(3*time.Second), check.NoLoss(h.Acks(), all)...)
	h.Fail(t, all, append(append(faults, check.NoDuplicate(all)...), check.OffsetUnique(h.Acks(), all)...))
}
