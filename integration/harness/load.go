package harness

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/barnabas-mq/barnabas/integration/check"
)

// Client returns a franz-go client that the test closes. Its metadata may be 50 ms old at least, so that a fail-over is
// measured and not the client's own pause (5 s by default).
func Client(t testing.TB, brokers []string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	opts = append([]kgo.Opt{kgo.SeedBrokers(brokers...), kgo.MetadataMinAge(50 * time.Millisecond)}, opts...)
	client, err := kgo.NewClient(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// CreateTopic creates a topic and returns when every broker given has a leader for each of its partitions. replicas -1 is
// the broker's default.
func CreateTopic(t testing.TB, brokers []string, topic string, partitions int32, replicas int16, configs map[string]*string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), StartLimit)
	defer cancel()
	admin := kadm.NewClient(Client(t, brokers))
	if _, err := admin.CreateTopic(ctx, partitions, replicas, configs, topic); err != nil {
		t.Fatalf("create %s: %v", topic, err)
	}
	for _, b := range brokers {
		AwaitLeaders(t, b, topic, partitions)
	}
}

// AwaitLeaders returns when the broker names a leader for each partition of the topic.
func AwaitLeaders(t testing.TB, broker, topic string, partitions int32) {
	t.Helper()
	admin := kadm.NewClient(Client(t, []string{broker}))
	eventually(t, func(ctx context.Context) error {
		m, err := admin.Metadata(ctx, topic)
		if err != nil {
			return err
		}
		led := 0
		for _, p := range m.Topics[topic].Partitions {
			if p.Err == nil && p.Leader >= 0 {
				led++
			}
		}
		if led != int(partitions) {
			return fmt.Errorf("%s knows leaders for %d of %d partitions of %s", broker, led, partitions, topic)
		}
		return nil
	})
}

// Leaders returns the leader of each partition of the topic, as the cluster tells it.
func Leaders(t testing.TB, brokers []string, topic string) map[int32]int32 {
	t.Helper()
	leaders := map[int32]int32{}
	admin := kadm.NewClient(Client(t, brokers))
	eventually(t, func(ctx context.Context) error {
		m, err := admin.Metadata(ctx, topic)
		if err != nil {
			return err
		}
		for _, p := range m.Topics[topic].Partitions {
			leaders[p.Partition] = p.Leader
		}
		return m.Topics[topic].Err
	})
	return leaders
}

// Controller returns the id of the controller, which is the Raft leader, as a node tells it.
func Controller(t testing.TB, brokers []string) int {
	t.Helper()
	controller := -1
	admin := kadm.NewClient(Client(t, brokers))
	eventually(t, func(ctx context.Context) error {
		m, err := admin.BrokerMetadata(ctx)
		if err == nil && m.Controller < 0 {
			err = errors.New("no controller")
		}
		controller = int(m.Controller)
		return err
	})
	return controller
}

func eventually(t testing.TB, ask func(ctx context.Context) error) {
	t.Helper()
	deadline := time.Now().Add(StartLimit)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		err := ask(ctx)
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still so after %v: %v", StartLimit, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Producer sends records with running numbers as keys, idempotently and with acks=all, until it is stopped, and notes each ack. A
// record that fails is tried no more and counted.
type Producer struct {
	History *check.History
	Topic   string

	client *kgo.Client
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	failed  []error
	stalled time.Duration // longest time from sending a record to its ack
	acked   int
}

// ProducerOptions shape the load; zero values mean what is said beside them.
type ProducerOptions struct {
	Name     string        // "producer"; keys begin with it
	Size     int           // bytes a value, 100
	Interval time.Duration // between two records, 1 ms
	Opts     []kgo.Opt
}

// Produce starts a producer; the test must Stop it.
func Produce(t testing.TB, brokers []string, topic string, h *check.History, o ProducerOptions) *Producer {
	t.Helper()
	if o.Name == "" {
		o.Name = "producer"
	}
	if o.Size == 0 {
		o.Size = 100
	}
	if o.Interval == 0 {
		o.Interval = time.Millisecond
	}
	opts := append([]kgo.Opt{
		kgo.RequiredAcks(kgo.AllISRAcks()), kgo.RecordDeliveryTimeout(2 * time.Minute), kgo.ProducerLinger(0),
		kgo.MaxBufferedRecords(1 << 20), // Produce never blocks, so that Stop always ends
		kgo.RetryTimeout(2 * time.Minute), kgo.RequestRetries(1 << 20), kgo.RecordRetries(1 << 20), kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }),
	}, o.Opts...)
	ctx, cancel := context.WithCancel(context.Background())
	p := &Producer{History: h, Topic: topic, client: Client(t, brokers, opts...), cancel: cancel, done: make(chan struct{})}
	t.Cleanup(p.cancel)
	go p.run(ctx, o)
	return p
}

func (p *Producer) run(ctx context.Context, o ProducerOptions) {
	defer close(p.done)
	tick := time.NewTicker(o.Interval)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		key := fmt.Sprintf("%s-%d", o.Name, i)
		value := strings.Repeat(key+" ", o.Size/(len(key)+1)+1)[:o.Size]
		r := &kgo.Record{Topic: p.Topic, Key: []byte(key), Value: []byte(value)}
		sent := time.Now()
		p.client.Produce(context.Background(), r, func(r *kgo.Record, err error) { p.acknowledge(o.Name, r, time.Since(sent), err) })
	}
}

func (p *Producer) acknowledge(name string, r *kgo.Record, took time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.failed = append(p.failed, fmt.Errorf("%s: %w", r.Key, err))
		return
	}
	p.acked++
	p.stalled = max(p.stalled, took)
	p.History.Acked(check.NewRecord(name, r.Topic, r.Partition, r.Offset, r.Key, r.Value))
}

// Acked returns how many records were acked so far.
func (p *Producer) Acked() int { p.mu.Lock(); defer p.mu.Unlock(); return p.acked }

// AwaitAcks returns when n more records were acked than now.
func (p *Producer) AwaitAcks(t testing.TB, n int) {
	t.Helper()
	goal, deadline := p.Acked()+n, time.Now().Add(StartLimit)
	for p.Acked() < goal {
		if time.Now().After(deadline) {
			t.Fatalf("%d records acked, waiting for %d since %v", p.Acked(), goal, StartLimit)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// ResetStall begins to measure the longest stall anew.
func (p *Producer) ResetStall() { p.mu.Lock(); p.stalled = 0; p.mu.Unlock() }

// Stall returns the longest time from sending a record to its ack, of those acked since the start or ResetStall.
func (p *Producer) Stall() time.Duration { p.mu.Lock(); defer p.mu.Unlock(); return p.stalled }

// Stop ends the load, waits until every record is acked or has failed, and returns the failures.
func (p *Producer) Stop(t testing.TB) []error {
	t.Helper()
	p.cancel()
	<-p.done
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := p.client.Flush(ctx); err != nil {
		t.Errorf("records were left unanswered: %v", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// ReadAll reads every partition of the topic from its start to its end at this moment, directly and in read_uncommitted
// order, as the name given.
func ReadAll(t testing.TB, brokers []string, topic, name string) []check.Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	starts, ends := bounds(t, brokers, topic)
	offsets, left := map[int32]kgo.Offset{}, map[int32]int64{}
	for p, end := range ends {
		if starts[p] < end {
			offsets[p], left[p] = kgo.NewOffset().At(starts[p]), end
		}
	}
	var all []check.Record
	if len(left) == 0 {
		return nil
	}
	client := Client(t, brokers, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: offsets}))
	defer client.Close()
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			t.Fatalf("reading %s: %v; %d records read, partitions and ends left: %v", topic, err, len(all), left)
		}
		fetches.EachError(func(_ string, p int32, err error) {
			if !kerr.IsRetriable(err) {
				t.Errorf("reading %s-%d: %v", topic, p, err)
			}
		})
		fetches.EachRecord(func(r *kgo.Record) {
			all = append(all, check.NewRecord(name, r.Topic, r.Partition, r.Offset, r.Key, r.Value))
			if r.Offset >= left[r.Partition]-1 {
				delete(left, r.Partition)
			}
		})
	}
	return all
}

func bounds(t testing.TB, brokers []string, topic string) (starts, ends map[int32]int64) {
	t.Helper()
	starts, ends = map[int32]int64{}, map[int32]int64{}
	admin := kadm.NewClient(Client(t, brokers))
	eventually(t, func(ctx context.Context) error {
		first, err := admin.ListStartOffsets(ctx, topic)
		if err != nil {
			return err
		}
		last, err := admin.ListEndOffsets(ctx, topic)
		if err != nil {
			return err
		}
		if err := errors.Join(first.Error(), last.Error()); err != nil {
			return err
		}
		first.Each(func(o kadm.ListedOffset) { starts[o.Partition] = o.Offset })
		last.Each(func(o kadm.ListedOffset) { ends[o.Partition] = o.Offset })
		return nil
	})
	return starts, ends
}
