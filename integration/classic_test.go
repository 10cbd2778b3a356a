package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/barnabas-mq/barnabas/integration/check"
	"github.com/barnabas-mq/barnabas/integration/harness"
	"github.com/barnabas-mq/barnabas/internal/testtool"
)

// flock is the members of one classic group, what each one owns by its own word, and the newest acked commits.
type flock struct {
	t       *testing.T
	brokers []string
	topic   string
	history *check.History

	mu         sync.Mutex
	owned      map[string]map[int32]bool
	acked      map[int32]int64 // committed offset by partition
	generation map[string]int32
	faults     []string
}

func newFlock(t *testing.T, brokers []string, topic string, h *check.History) *flock {
	return &flock{t: t, brokers: brokers, topic: topic, history: h, owned: map[string]map[int32]bool{}, acked: map[int32]int64{},
		generation: map[string]int32{}}
}

// member joins the group and reads and commits until the returned function is called, which leaves.
func (f *flock) member(name string, balancer kgo.GroupBalancer, more ...kgo.Opt) (leave func()) {
	ctx, cancel := context.WithCancel(context.Background())
	own := func(has bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, ps map[string][]int32) {
			f.mu.Lock()
			defer f.mu.Unlock()
			for _, p := range ps[f.topic] {
				if f.owned[name] == nil {
					f.owned[name] = map[int32]bool{}
				}
				if delete(f.owned[name], p); has {
					f.owned[name][p] = true
				}
			}
		}
	}
	client := harness.Client(f.t, f.brokers, append([]kgo.Opt{kgo.ClientID(name), kgo.ConsumerGroup("classic"), kgo.ConsumeTopics(f.topic), kgo.DisableAutoCommit(),
		kgo.Balancers(balancer), kgo.SessionTimeout(6 * time.Second), kgo.HeartbeatInterval(300 * time.Millisecond), kgo.RebalanceTimeout(20 * time.Second),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.OnPartitionsAssigned(own(true)), kgo.OnPartitionsRevoked(own(false)), kgo.OnPartitionsLost(own(false))}, more...)...)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			f.poll(ctx, name, client)
		}
	}()
	return func() {
		cancel()
		<-done
		client.Close()
	}
}

func (f *flock) poll(ctx context.Context, name string, client *kgo.Client) {
	polled, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	fetches := client.PollFetches(polled)
	fetches.EachRecord(func(r *kgo.Record) {
		f.history.Read(check.NewRecord(name, r.Topic, r.Partition, r.Offset, r.Key, r.Value))
	})
	_, generation := client.GroupMetadata()
	f.mu.Lock()
	if generation > 0 && generation < f.generation[name] {
		f.faults = append(f.faults, fmt.Sprintf("%s is in generation %d after %d", name, generation, f.generation[name]))
	}
	f.generation[name] = max(generation, f.generation[name])
	f.mu.Unlock()
	uncommitted := client.UncommittedOffsets()[f.topic]
	if ctx.Err() != nil || len(uncommitted) == 0 {
		return
	}
	commit, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := client.CommitUncommittedOffsets(commit); err != nil {
		return // a rebalance or a fail-over: what was read is read again
	}
	committed := client.CommittedOffsets()[f.topic]
	f.mu.Lock()
	defer f.mu.Unlock()
	for p := range uncommitted {
		if at, ok := committed[p]; ok && f.owned[name][p] {
			f.acked[p] = max(f.acked[p], at.Offset)
		}
	}
}

// settled says why not every partition has exactly one owner among the members.
func (f *flock) settled(members int, partitions int32) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	owner := map[int32]string{}
	for name, ps := range f.owned {
		for p := range ps {
			if owner[p] != "" {
				return fmt.Errorf("partition %d is owned by %s and %s", p, owner[p], name)
			}
			owner[p] = name
		}
	}
	busy := map[string]bool{}
	for _, name := range owner {
		busy[name] = true
	}
	if len(owner) != int(partitions) || len(busy) != members {
		return fmt.Errorf("%d of %d partitions are owned, by %d members", len(owner), partitions, len(busy))
	}
	return nil
}

// checkCommits compares what the cluster says was committed with what it acknowledged.
func (f *flock) checkCommits() {
	f.t.Helper()
	f.mu.Lock()
	acked := maps.Clone(f.acked)
	f.mu.Unlock()
	admin := kadm.NewClient(harness.Client(f.t, f.brokers))
	testtool.Eventually(f.t, harness.StartLimit, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		offsets, err := admin.FetchOffsets(ctx, "classic")
		if err != nil {
			return err
		}
		for p, want := range acked {
			if got, ok := offsets.Lookup(f.topic, p); !ok || got.At < want {
				f.t.Fatalf("partition %d: offset %d was acknowledged, %d is there", p, want, got.At)
			}
		}
		return nil
	})
}

// TestClassicGroupLosesItsCoordinator is S22: members of a classic group come and go while their coordinator is killed, again and
// again. The group is whole each time, generations rise, no acknowledged commit is lost and no record unread.
func TestClassicGroupLosesItsCoordinator(t *testing.T) {
	for name, balancer := range map[string]kgo.GroupBalancer{"eager": kgo.RangeBalancer(), "cooperative": kgo.CooperativeStickyBalancer()} {
		t.Run(name, func(t *testing.T) { loseCoordinators(t, balancer) })
	}
}

// TestConsumerGroupLosesItsCoordinator is the same for members by KIP-848.
func TestConsumerGroupLosesItsCoordinator(t *testing.T) {
	loseCoordinators(t, kgo.CooperativeStickyBalancer(), kgo.ServerSideBalancer())
}

func loseCoordinators(t *testing.T, balancer kgo.GroupBalancer, more ...kgo.Opt) {
	const partitions, members = 12, 6
	rounds := 2 // each step by itself: TestCoordinatorLost
	if long() {
		rounds = 30
	}
	c := harness.Start(t, harness.Options{Nodes: 3, Properties: map[string]string{"group.initial.rebalance.delay.ms": "0", "group.consumer.session.timeout.ms": "6000"}})
	harness.CreateTopic(t, c.Brokers(), "work", partitions, 3, nil)
	var h check.History
	producer := harness.Produce(t, c.Brokers(), "work", &h, harness.ProducerOptions{Interval: 5 * time.Millisecond})
	f := newFlock(t, c.Brokers(), "work", &h)
	leaves := map[string]func(){}
	for i := range members {
		name := fmt.Sprint("m", i)
		leaves[name] = f.member(name, balancer, more...)
	}
	settle := func(begun time.Time, what string) {
		testtool.Eventually(t, harness.StartLimit, func() error { return f.settled(members, partitions) })
		t.Logf("%s: whole after %v", what, time.Since(begun).Round(time.Millisecond))
	}
	settle(time.Now(), "start")
	for round := range rounds {
		old, fresh := fmt.Sprint("m", round), fmt.Sprint("m", round+members)
		killed := c.Node(harness.Controller(t, c.Brokers()))
		gone, leave := make(chan struct{}), leaves[old]
		go func() { defer close(gone); leave() }() // it leaves while the coordinator dies
		leaves[fresh] = f.member(fresh, balancer, more...)
		begun := time.Now()
		killed.Kill()
		<-gone
		delete(leaves, old)
		f.mu.Lock()
		delete(f.owned, old)
		f.mu.Unlock()
		settle(begun, fmt.Sprintf("coordinator %d killed", killed.ID))
		f.checkCommits()
		killed.Start()
		c.AwaitServing()
	}
	if failed := producer.Stop(t); len(failed) > 0 {
		t.Errorf("%d records failed, first: %v", len(failed), failed[0])
	}
	testtool.Eventually(t, harness.StartLimit, func() error {
		if missing := check.NoLoss(h.Acks(), h.Reads()); len(missing) > 0 {
			return errors.New(missing[0].String())
		}
		return nil
	})
	for _, leave := range leaves {
		leave()
	}
	f.checkCommits()
	if len(f.faults) > 0 {
		t.Error(f.faults)
	}
	acks, reads := len(h.Acks()), len(h.Reads())
	t.Logf("%d records, %d read twice or more", acks, reads-acks)
}

// TestConsoleConsumersInGroups: the console consumers of 1.1.1 and 4.4 and librdkafka's share a group's records, and the group
// tools of both ages show, reset and delete it.
func TestConsoleConsumersInGroups(t *testing.T) {
	to := newTarget(t)
	harness.CreateTopic(t, to.brokers, "talk", 4, to.replicas, nil)
	sent := lines("talk", 200)
	harness.Tool(t, testtool.Kafka44, "org.apache.kafka.tools.ConsoleProducer", input(sent), "--bootstrap-server", to.bootstrap, "--topic", "talk")
	classic := []string{"--command-property", "group.protocol=classic"}
	sameLines(t, "ConsoleConsumer 4.4", harness.Tool(t, testtool.Kafka44, "org.apache.kafka.tools.consumer.ConsoleConsumer", "", append(classic, "--bootstrap-server", to.bootstrap,
		"--topic", "talk", "--group", "new", "--from-beginning", "--max-messages", "200")...), sent)
	sameLines(t, "ConsoleConsumer 1.1.1", harness.Tool(t, testtool.Kafka111, "kafka.tools.ConsoleConsumer", "", "--bootstrap-server", to.bootstrap,
		"--topic", "talk", "--group", "middle", "--from-beginning", "--max-messages", "200"), sent)
	sameLines(t, "kcat", harness.Kcat(t, "", "-b", to.bootstrap, "-G", "small", "-c", "200", "-X", "auto.offset.reset=earliest", "talk"), sent)

	tool44 := func(args ...string) string {
		return harness.Tool(t, testtool.Kafka44, "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "", append(args, "--bootstrap-server", to.bootstrap)...)
	}
	tool111 := func(args ...string) string {
		return harness.Tool(t, testtool.Kafka111, "kafka.admin.ConsumerGroupCommand", "", append(args, "--bootstrap-server", to.bootstrap)...)
	}
	words(t, tool44("--list", "--state"), "new ", "middle ", "small ", "Empty")
	words(t, tool111("--list"), "new\n", "middle\n", "small\n")
	for _, tool := range []func(...string) string{tool44, tool111} {
		for _, g := range []string{"new", "middle", "small"} {
			testtool.Eventually(t, harness.StartLimit, func() error {
				shown := tool("--describe", "--group", g)
				if total := lagOf(shown, "talk"); total != 0 { // librdkafka commits only where it has read
					return fmt.Errorf("lag %d in\n%s", total, shown)
				}
				return nil
			})
		}
	}

	h := check.History{}
	f := newFlock(t, to.brokers, "talk", &h)
	leave := f.member("live", kgo.RangeBalancer())
	testtool.Eventually(t, harness.StartLimit, func() error { return f.settled(1, 4) })
	words(t, tool44("--describe", "--group", "classic", "--members", "--verbose"), "live", "/127.0.0.1", "talk")
	words(t, tool44("--describe", "--group", "classic", "--state"), "range", "Stable")
	words(t, tool111("--describe", "--group", "classic", "--members", "--verbose"), "live", "/127.0.0.1", "talk(0,1,2,3)")
	refused, err := harness.TryTool(t, testtool.Kafka44, "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "", "--bootstrap-server", to.bootstrap, "--group", "classic",
		"--reset-offsets", "--to-earliest", "--topic", "talk", "--execute")
	words(t, fmt.Sprint(refused, err), "only be reset if the group 'classic' is inactive")
	refused, err = harness.TryTool(t, testtool.Kafka44, "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "", "--bootstrap-server", to.bootstrap, "--group", "classic", "--delete")
	words(t, fmt.Sprint(refused, err), "not empty")
	leave()

	words(t, tool44("--group", "classic", "--reset-offsets", "--to-earliest", "--topic", "talk", "--execute"), "classic", "talk")
	words(t, tool111("--group", "classic", "--reset-offsets", "--to-offset", "7", "--topic", "talk:0", "--execute"), "talk")
	tool44("--group", "classic", "--delete-offsets", "--topic", "talk:1")
	admin := kadm.NewClient(harness.Client(t, to.brokers))
	ctx, cancel := context.WithTimeout(context.Background(), harness.StartLimit)
	defer cancel()
	offsets, err := admin.FetchOffsets(ctx, "classic")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range offsets.Sorted() {
		got = append(got, fmt.Sprintf("%d:%d", o.Partition, o.At))
	}
	if slices.Contains(got, "1:0") || !slices.Contains(got, "2:0") {
		t.Errorf("after the resets: %v", got)
	}
	words(t, tool44("--group", "classic", "--delete"), "was successful")
	words(t, tool111("--group", "middle", "--delete"), "was successful")
	if left := tool44("--list"); strings.Contains(left, "classic") || strings.Contains(left, "middle") {
		t.Errorf("deleted groups are listed: %s", left)
	}
}

// lagOf adds up the LAG column of a topic's lines; -1 when there are none.
func lagOf(shown, topic string) int {
	total, column := -1, -1
	for line := range strings.Lines(shown) {
		fields := strings.Fields(line)
		if i := slices.Index(fields, "LAG"); i >= 0 {
			column = i
			continue
		}
		var n int
		if column < 0 || !slices.Contains(fields, topic) || column >= len(fields) {
			continue
		}
		if _, err := fmt.Sscan(fields[column], &n); err != nil {
			return -1
		}
		total = max(total, 0) + n
	}
	return total
}
