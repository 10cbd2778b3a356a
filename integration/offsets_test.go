package integration

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/integration/harness"
	"github.com/barnabas-mq/barnabas/internal/testtool"
)

const offsetsTopic = "__consumer_offsets"

func admin(t testing.TB, brokers []string) *kadm.Client {
	t.Helper()
	return kadm.NewClient(harness.Client(t, brokers))
}

// within asks until there is no error, for a minute and a half.
func within(t testing.TB, ask func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	for {
		err := ask(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("after 90 s: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func commitAt(t testing.TB, adm *kadm.Client, group, topic string, offsets map[int32]int64, metadata string) {
	t.Helper()
	var os kadm.Offsets
	for p, at := range offsets {
		os.Add(kadm.Offset{Topic: topic, Partition: p, At: at, LeaderEpoch: 0, Metadata: metadata})
	}
	within(t, func(ctx context.Context) error {
		got, err := adm.CommitOffsets(ctx, group, os)
		if err == nil {
			err = got.Error()
		}
		return err
	})
}

// burrow reads __consumer_offsets from its beginning, as lag monitors do, and keeps the newest value of each key.
type burrow struct {
	offsets map[string]int64 // by group/topic/partition
	groups  map[string]kmsg.GroupMetadataValue
}

func (b *burrow) take(r *kgo.Record) error {
	if len(r.Key) < 2 {
		return fmt.Errorf("a key of %d bytes", len(r.Key))
	}
	switch version := int(r.Key[0])<<8 | int(r.Key[1]); version {
	case 0, 1:
		var k kmsg.OffsetCommitKey
		if err := k.ReadFrom(r.Key); err != nil {
			return err
		}
		name := fmt.Sprintf("%s/%s/%d", k.Group, k.Topic, k.Partition)
		if r.Value == nil {
			delete(b.offsets, name)
			return nil
		}
		var v kmsg.OffsetCommitValue
		if err := v.ReadFrom(r.Value); err != nil {
			return err
		}
		b.offsets[name] = v.Offset
	case 2:
		var k kmsg.GroupMetadataKey
		if err := k.ReadFrom(r.Key); err != nil {
			return err
		}
		if r.Value == nil {
			delete(b.groups, k.Group)
			return nil
		}
		var v kmsg.GroupMetadataValue
		if err := v.ReadFrom(r.Value); err != nil {
			return err
		}
		b.groups[k.Group] = v
	}
	return nil
}

// watch reads until the offsets are those wanted.
func (b *burrow) watch(t *testing.T, c *kgo.Client, want func() (map[string]int64, error)) {
	t.Helper()
	within(t, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		c.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			if err := b.take(r); err != nil {
				t.Fatal(err)
			}
		})
		wanted, err := want()
		if err == nil && !maps.Equal(b.offsets, wanted) {
			err = fmt.Errorf("the topic says %v, the coordinator %v", b.offsets, wanted)
		}
		return err
	})
}

// fetched is what OffsetFetch says of every group that ListGroups names, as kafka_exporter asks.
func fetched(ctx context.Context, adm *kadm.Client) (map[string]int64, error) {
	out := map[string]int64{}
	groups, err := adm.ListGroups(ctx)
	if err != nil {
		return nil, err
	}
	for _, g := range groups.Groups() {
		got, err := adm.FetchOffsets(ctx, g)
		if err != nil {
			return nil, err
		}
		got.Each(func(o kadm.OffsetResponse) { out[fmt.Sprintf("%s/%s/%d", g, o.Topic, o.Partition)] = o.At })
	}
	return out, nil
}

// TestOffsetsTopic: the exported topic says what the coordinator says, to Kafka's own formatters of 4.4 and 1.1.1 and to a reader like
// Burrow, through the death of its leaders; it is not among the znodes, and nobody can write it.
func TestOffsetsTopic(t *testing.T) {
	testtool.Need(t, testtool.Java)
	cluster := harness.Start(t, harness.Options{Nodes: 3})
	harness.CreateTopic(t, cluster.Brokers(), "orders", 4, 3, nil)
	adm := admin(t, cluster.Brokers())

	commitAt(t, adm, "simple", "orders", map[int32]int64{0: 10, 1: 11}, "from the ledger")
	conn, _, err := zk.Connect(strings.Split(cluster.ZooKeeper(), ","), 20*time.Second, zk.WithLogger(quiet{}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, path := range []string{"/consumers/old", "/consumers/old/offsets", "/consumers/old/offsets/orders"} {
		if _, err := conn.Create(path, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(path, err)
		}
	}
	if _, err := conn.Create("/consumers/old/offsets/orders/3", []byte("33"), 0, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	member := harness.Client(t, cluster.Brokers(), kgo.ConsumerGroup("classic"), kgo.ConsumeTopics("orders"), kgo.ClientID("app"),
		kgo.SessionTimeout(20*time.Second))
	go func() { // until the client is closed
		for !member.PollFetches(context.Background()).IsClientClosed() {
		}
	}()
	within(t, func(ctx context.Context) error {
		got, err := adm.DescribeGroups(ctx, "classic")
		if err == nil && got["classic"].State != "Stable" {
			err = fmt.Errorf("the group is %s", got["classic"].State)
		}
		return err
	})

	reader := harness.Client(t, cluster.Brokers(), kgo.ConsumeTopics(offsetsTopic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	seen := &burrow{offsets: map[string]int64{}, groups: map[string]kmsg.GroupMetadataValue{}}
	coordinator := func() (map[string]int64, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		return fetched(ctx, adm)
	}
	seen.watch(t, reader, func() (map[string]int64, error) {
		if g := seen.groups["classic"]; len(g.Members) != 1 || g.Members[0].ClientID != "app" || g.Protocol == nil || g.Generation < 1 {
			return nil, fmt.Errorf("the classic group shows as %+v", g)
		}
		return coordinator()
	})
	if at := seen.offsets["old/orders/3"]; at != 33 {
		t.Fatalf("the znode's offset shows as %d", at)
	}

	hidden, _, err := conn.Children("/brokers/topics")
	if err != nil || slices.Contains(hidden, offsetsTopic) {
		t.Errorf("/brokers/topics has %v, %v", hidden, err)
	}
	if ok, _, err := conn.Exists("/brokers/topics/" + offsetsTopic); ok || err != nil {
		t.Errorf("its znode: %v, %v", ok, err)
	}
	forged := &kgo.Record{Topic: offsetsTopic, Partition: 0, Key: []byte{0, 1}, Value: []byte("x")}
	producer := harness.Client(t, cluster.Brokers(), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.RecordRetries(1))
	if err := producer.ProduceSync(t.Context(), forged).FirstErr(); err == nil {
		t.Error("a client could write it")
	}

	sameLag(t, cluster, adm, "simple")
	t.Run("formatters", func(t *testing.T) { formatters(t, cluster) })

	victim := cluster.Node(harness.Controller(t, cluster.Brokers()))
	victim.Kill()
	commitAt(t, adm, "simple", "orders", map[int32]int64{0: 20, 2: 22}, "")
	seen.watch(t, reader, coordinator)
	within(t, func(ctx context.Context) error {
		_, err := adm.DeleteGroups(ctx, "simple")
		return err
	})
	seen.watch(t, reader, coordinator)
	if _, ok := seen.offsets["simple/orders/0"]; ok {
		t.Error("the deleted group is still there")
	}
}

// formatters runs the console consumers of Kafka 4.4 with its formatters of this topic until they show what is there.
func formatters(t *testing.T, cluster *harness.Cluster) {
	for _, f := range []struct {
		formatter string
		want      []string
	}{
		{"OffsetsMessageFormatter", []string{`"group":"simple","topic":"orders","partition":0}`, `"offset":10,"leaderEpoch":0,"metadata":"from the ledger"`,
			`"group":"old","topic":"orders","partition":3}`, `"offset":33`}},
		{"GroupMetadataMessageFormatter", []string{`"group":"classic"`, `"protocolType":"consumer"`, `"clientId":"app"`}},
	} {
		shows(t, cluster, testtool.Kafka44, "org.apache.kafka.tools.consumer.ConsoleConsumer", "org.apache.kafka.tools.consumer."+f.formatter, f.want)
	}
}

// shows runs a console consumer from the beginning of the topic until its output has all that is wanted. more are arguments of its
// release.
func shows(t *testing.T, cluster *harness.Cluster, lib testtool.Tool, class, formatter string, want []string, more ...string) {
	t.Helper()
	within(t, func(context.Context) error {
		args := []string{"--bootstrap-server", cluster.Bootstrap(), "--topic", offsetsTopic, "--from-beginning", "--timeout-ms", "6000",
			"--formatter", formatter}
		out, err := harness.TryTool(t, lib, class, "", append(args, more...)...)
		for _, w := range want {
			if !strings.Contains(out, w) {
				return fmt.Errorf("%s does not show %s (%w): %s", formatter, w, err, out)
			}
		}
		return nil
	})
}

// TestOffsetsTopicForOldReaders: with format 1 the formatter of Kafka 1.1.1, which does not know newer values, reads it.
func TestOffsetsTopicForOldReaders(t *testing.T) {
	testtool.Need(t, testtool.Java)
	cluster := harness.Start(t, harness.Options{Nodes: 1, Properties: map[string]string{"barnabas.offsets.topic.format": "1", "offsets.topic.num.partitions": "5"}})
	harness.CreateTopic(t, cluster.Brokers(), "orders", 1, 1, nil)
	commitAt(t, admin(t, cluster.Brokers()), "simple", "orders", map[int32]int64{0: 10}, "from the ledger")
	shows(t, cluster, testtool.Kafka111, "kafka.tools.ConsoleConsumer", "kafka.coordinator.group.GroupMetadataManager$OffsetsMessageFormatter",
		[]string{"[simple,orders,0]::[OffsetMetadata[10,from the ledger],CommitTime "},
		// Else it reads its own commits for ever, as it does at Kafka's brokers: one each 5 s is enough to keep it from its time-out.
		"--consumer-property", "enable.auto.commit=false")
}

// sameLag compares the lag that a tool computes from ListOffsets and OffsetFetch with the nodes' metrics, each partition's from its
// leader alone.
func sameLag(t *testing.T, cluster *harness.Cluster, adm *kadm.Client, group string) {
	t.Helper()
	within(t, func(ctx context.Context) error {
		lags, err := adm.Lag(ctx, group)
		if err != nil {
			return err
		}
		want := map[string]string{}
		for _, l := range lags[group].Lag.Sorted() {
			if l.Commit.At >= 0 {
				want[fmt.Sprint(l.Partition)] = fmt.Sprint(l.Lag)
			}
		}
		got := map[string]string{}
		for _, n := range cluster.Nodes {
			for _, line := range scrape(t, n.Admin, "kafka_consumergroup_lag") {
				m := regexp.MustCompile(`consumergroup="([^"]*)",partition="([^"]*)",topic="orders"} (.*)`).FindStringSubmatch(line)
				if m == nil || m[1] != group {
					continue
				}
				if _, twice := got[m[2]]; twice {
					return fmt.Errorf("partition %s is shown twice", m[2])
				}
				got[m[2]] = m[3]
			}
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("metrics say %v, a tool %v", got, want)
		}
		return nil
	})
}

// scrape returns the samples of a metric on a node's admin port.
func scrape(t *testing.T, admin, metric string) (lines []string) {
	t.Helper()
	resp, err := http.Get("http://" + admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, metric+"{") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// faces reads one committed offset on each face: -1 where there is none.
func faces(t *testing.T, adm *kadm.Client, conn *zk.Conn, group, topic string, p int32) (kafka, znode int64) {
	t.Helper()
	kafka, znode = -1, -1
	within(t, func(ctx context.Context) error {
		got, err := adm.FetchOffsets(ctx, group)
		if err != nil {
			return err
		}
		if o, ok := got.Lookup(topic, p); ok {
			kafka = o.At
		}
		return nil
	})
	data, _, err := conn.Get(fmt.Sprintf("/consumers/%s/offsets/%s/%d", group, topic, p))
	if err == nil {
		if znode, err = strconv.ParseInt(string(data), 10, 64); err != nil {
			t.Fatal(err)
		}
	} else if err != zk.ErrNoNode {
		t.Fatal(err)
	}
	return kafka, znode
}

// TestOffsetsAreResetByEveryTool: the tools that people have in their runbooks, of every line of Kafka, move the one offset that all
// faces show; and it goes with its topic.
func TestOffsetsAreResetByEveryTool(t *testing.T) {
	testtool.Need(t, testtool.Java)
	cluster := harness.Start(t, harness.Options{})
	brokers, zookeeper := cluster.Brokers(), cluster.ZooKeeper()
	harness.CreateTopic(t, brokers, "orders", 1, 1, nil)
	client := harness.Client(t, brokers)
	for range 20 {
		if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: "orders", Value: []byte("x")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	adm := kadm.NewClient(client)
	conn, _, err := zk.Connect([]string{zookeeper}, 20*time.Second, zk.WithLogger(quiet{}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	want := func(who string, offset int64) {
		t.Helper()
		if kafka, znode := faces(t, adm, conn, "g", "orders", 0); kafka != offset || znode != offset {
			t.Fatalf("%s: Kafka's API says %d, the znode %d, want %d", who, kafka, znode, offset)
		}
	}
	commitAt(t, adm, "g", "orders", map[int32]int64{0: 7}, "kept")
	want("commit", 7)
	got, err := adm.FetchOffsets(t.Context(), "g")
	if o, _ := got.Lookup("orders", 0); err != nil || o.Metadata != "kept" || o.LeaderEpoch != 0 {
		t.Fatalf("%+v, %v", o, err)
	}

	groups44 := []string{"--bootstrap-server", brokers[0], "--group", "g", "--reset-offsets", "--topic", "orders", "--execute"}
	harness.Tool(t, testtool.Kafka44, "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "", append(groups44, "--to-earliest")...)
	want("kafka-consumer-groups 4.4", 0)
	harness.Tool(t, testtool.Kafka111, "kafka.admin.ConsumerGroupCommand", "", append(groups44, "--to-offset", "5")...)
	want("kafka-consumer-groups 1.1.1", 5)

	props := filepath.Join(cluster.Dir, "consumer.properties")
	if err := os.WriteFile(props, []byte("zookeeper.connect="+zookeeper+"\ngroup.id=g\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	harness.Tool(t, testtool.Kafka082, "kafka.tools.UpdateOffsetsInZK", "", "latest", props, "orders")
	want("UpdateOffsetsInZK 0.8.2.2", 20)

	file := filepath.Join(cluster.Dir, "offsets")
	harness.Tool(t, testtool.Kafka082, "kafka.tools.ExportZkOffsets", "", "--zkconnect", zookeeper, "--group", "g", "--output-file", file)
	text, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(text), "/consumers/g/offsets/orders/0:20") && !strings.Contains(string(text), "/consumers/g/offsets/orders/0-0:20") {
		t.Fatalf("ExportZkOffsets wrote %q, %v", text, err)
	}
	if err := os.WriteFile(file, bytes.ReplaceAll(text, []byte(":20"), []byte(":4")), 0o600); err != nil {
		t.Fatal(err)
	}
	harness.Tool(t, testtool.Kafka082, "kafka.tools.ImportZkOffsets", "", "--zkconnect", zookeeper, "--input-file", file)
	want("ImportZkOffsets 0.8.2.2", 4)

	if _, err := conn.Set("/consumers/g/offsets/orders/0", []byte("11"), -1); err != nil {
		t.Fatal(err)
	}
	want("a set of the znode", 11)

	out, err := exec.CommandContext(t.Context(), harness.Binary(t, false), "group", "reset-offsets", "g", "--topic", "orders", "--to", "3", "-b", brokers[0]).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want("barnabas group reset-offsets", 3)

	for _, path := range []string{"/consumers/g/owners", "/consumers/g/owners/orders"} { // of these the tool of 0.9 learns the topics
		if _, err := conn.Create(path, nil, 0, zk.WorldACL(zk.PermAll)); err != nil && err != zk.ErrNodeExists {
			t.Fatal(err)
		}
	}
	shown := harness.Tool(t, testtool.Kafka090, "kafka.admin.ConsumerGroupCommand", "", "--zookeeper", zookeeper, "--describe", "--group", "g")
	if !regexp.MustCompile(`g, orders, 0, 3, 20, 17,`).MatchString(shown) {
		t.Errorf("kafka-consumer-groups 0.9.0.1 shows\n%s", shown)
	}

	if _, err := adm.DeleteTopics(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	want("after the topic's end", -1)
}

// TestCommitsOverLostReplies is S24: replies of OffsetCommit are lost and the coordinator moves, time and again, under a committer that
// repeats what it does not know. What is fetched is never older than the last commit that was acknowledged, nor newer than
// the last that was sent, and all faces say the same in the end.
func TestCommitsOverLostReplies(t *testing.T) {
	cluster := harness.Start(t, harness.Options{Nodes: 3, Proxied: true})
	harness.CreateTopic(t, cluster.Brokers(), "orders", 1, 3, nil)
	commitAt(t, admin(t, cluster.Brokers()), "g", "orders", map[int32]int64{0: 0}, "")

	var sent, acked atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		adm := admin(t, cluster.Brokers())
		for n := int64(1); ctx.Err() == nil; {
			var os kadm.Offsets
			os.AddOffset("orders", 0, n, -1)
			sent.Store(n)
			try, done := context.WithTimeout(ctx, 2*time.Second)
			got, err := adm.CommitOffsets(try, "g", os)
			done()
			if err == nil && got.Error() == nil {
				acked.Store(n)
			} else { // as another client: it asks for the coordinator at once; the first one's connection stays
				adm = admin(t, cluster.Brokers())
			}
			n++ // as a consumer goes on: an unacknowledged offset is not repeated, a later one is
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	look := func() {
		t.Helper()
		var at, least int64
		within(t, func(ctx context.Context) error {
			least = acked.Load()
			try, done := context.WithTimeout(ctx, 5*time.Second)
			defer done()
			got, err := admin(t, cluster.Brokers()).FetchOffsets(try, "g")
			if err != nil {
				return err
			}
			o, _ := got.Lookup("orders", 0)
			at = o.At
			return nil
		})
		if most := sent.Load(); at < least || at > most {
			t.Fatalf("fetched %d, acknowledged were up to %d before and sent up to %d", at, least, most)
		}
	}
	rounds := 2
	if long() {
		rounds = 10
	}
	for round := range rounds {
		before := acked.Load()
		within(t, func(context.Context) error { // some are acknowledged between the faults
			if look(); acked.Load() < before+3 {
				return fmt.Errorf("round %d: acknowledged %d, wanted %d", round, acked.Load(), before+3)
			}
			return nil
		})
		lead := cluster.Node(harness.Controller(t, cluster.Brokers()))
		cluster.Net.Cut(lead.Name, "client") // requests arrive, replies do not
		time.Sleep(300 * time.Millisecond)   // for a commit or two to be carried out unheard; nothing depends on it
		lead.Kill()
		cluster.Net.Reset(lead.Name, "client")
		cluster.Net.Heal()
		look()
		lead.Start()
		cluster.AwaitServing()
	}
	cancel()
	wg.Wait()
	look()
	within(t, func(ctx context.Context) error { // the last commit may still be on its way to its end
		got, err := admin(t, cluster.Brokers()).FetchOffsets(ctx, "g")
		if err != nil {
			return err
		}
		o, _ := got.Lookup("orders", 0)
		for _, n := range cluster.Nodes {
			conn, _, err := zk.Connect([]string{n.ZooKeeper}, 20*time.Second, zk.WithLogger(quiet{}))
			if err != nil {
				return err
			}
			data, _, err := conn.Get("/consumers/g/offsets/orders/0")
			conn.Close()
			if err != nil || string(data) != strconv.FormatInt(o.At, 10) {
				return fmt.Errorf("node %d says %q (%w), OffsetFetch %d", n.ID, data, err, o.At)
			}
		}
		return nil
	})
}
