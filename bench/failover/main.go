// Command failover measures how long producers stand still when a broker dies or freezes: a three-node barnabas on
// loopback, an idempotent franz-go producer with acks=all whose metadata may be 50 ms old, SIGKILL and SIGSTOP of the Raft
// leader and of another broker, in turn. Run it by `make bench-failover`.
//
// Two figures per run. "cluster" is the time from the signal until new clients, which start from the other two brokers,
// have had a record acked by every partition. "producer" is the longest that a record of the one producer waited: after a
// freeze that is mostly the client's own patience, for a frozen broker keeps its connections open, and franz-go waits for
// answers on them (20 s by default, -patience here), for its metadata request too.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	topic      = "failover"
	partitions = 12
	every      = 2 * time.Millisecond // one record, to the partitions in turn
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "failover:", err)
		os.Exit(1)
	}
}

func run() error {
	bin := flag.String("bin", "bin/barnabas", "the barnabas binary")
	runs := flag.Int("runs", 10, "runs of each kind")
	patience := flag.Duration("patience", time.Second, "how long the producer waits for an answer before it asks elsewhere")
	base := flag.Int("port", 23000, "first of 40 free ports")
	kinds := flag.String("kinds", "kill,kill-leader,stop,stop-leader", "what to measure")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	dir, err := os.MkdirTemp("", "failover-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	c, err := start(ctx, *bin, dir, *base, *patience)
	if err != nil {
		return err
	}
	defer c.stop()
	if _, err := c.adm.CreateTopic(ctx, partitions, 3, nil, topic); err != nil {
		return err
	}
	fmt.Printf("%-8s %-12s %-9s %8s %8s %8s  all runs\n", "signal", "broker", "seen by", "worst", "median", "best")
	for _, kind := range strings.Split(*kinds, ",") {
		k := struct {
			name   string
			sig    syscall.Signal
			leader bool
		}{leader: strings.HasSuffix(kind, "-leader")}
		switch strings.TrimSuffix(kind, "-leader") {
		case "kill":
			k.name, k.sig = "SIGKILL", syscall.SIGKILL
		case "stop":
			k.name, k.sig = "SIGSTOP", syscall.SIGSTOP
		default:
			return fmt.Errorf("-kinds %q: kill, kill-leader, stop, stop-leader", *kinds)
		}
		var stalls, moved []time.Duration
		for range *runs {
			if err := c.settled(ctx); err != nil {
				return err
			}
			s, m, err := c.once(ctx, k.sig, k.leader)
			if err != nil {
				return err
			}
			stalls, moved = append(stalls, s.Round(time.Millisecond)), append(moved, m.Round(time.Millisecond))
		}
		who := "another"
		if k.leader {
			who = "Raft leader"
		}
		for _, r := range []struct {
			by    string
			times []time.Duration
		}{{"cluster", moved}, {"producer", stalls}} {
			sorted := slices.Sorted(slices.Values(r.times))
			fmt.Printf("%-8s %-12s %-9s %8v %8v %8v  %v\n", k.name, who, r.by, sorted[len(sorted)-1], sorted[len(sorted)/2], sorted[0], r.times)
		}
	}
	return nil
}

type node struct {
	ID     int    `json:"id"`
	PID    int    `json:"pid"`
	Kafka  string `json:"kafka"`
	Config string `json:"config"`
}

type cluster struct {
	bin, dir string
	dev      *exec.Cmd
	devGone  <-chan error
	started  []*exec.Cmd
	client   *kgo.Client
	adm      *kadm.Client
	turn     int
}

func start(ctx context.Context, bin, dir string, port int, patience time.Duration) (*cluster, error) {
	args := []string{"dev", "--nodes", "3", "--dir", filepath.Join(dir, "cluster")}
	for i, flag := range []string{"--kafka-port", "--zk-port", "--admin-port", "--cluster-port"} {
		args = append(args, flag, strconv.Itoa(port+10*i)) // dev says so when one is taken
	}
	c := &cluster{bin: bin, dir: filepath.Join(dir, "cluster"), dev: exec.Command(bin, args...)}
	c.dev.Stdout, c.dev.Stderr = io.Discard, os.Stderr
	if err := c.dev.Start(); err != nil {
		return nil, err
	}
	gone := make(chan error, 1)
	go func() { gone <- c.dev.Wait() }()
	c.devGone = gone
	for {
		nodes, err := c.nodes()
		if err == nil && len(nodes) == 3 {
			var seeds []string
			for _, n := range nodes {
				seeds = append(seeds, n.Kafka)
			}
			if c.client, err = kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.MetadataMinAge(50*time.Millisecond), kgo.RecordPartitioner(kgo.ManualPartitioner()),
				kgo.ProducerLinger(0), kgo.ProduceRequestTimeout(patience/2), kgo.RequestTimeoutOverhead(patience/2), kgo.RetryBackoffFn(func(int) time.Duration { return 50 * time.Millisecond })); err != nil {
				return nil, err
			}
			c.adm = kadm.NewClient(c.client)
			return c, nil
		}
		select {
		case <-ctx.Done():
			c.stop()
			return nil, ctx.Err()
		case err := <-gone:
			return nil, fmt.Errorf("the cluster has ended before it served: %w", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (c *cluster) nodes() ([]node, error) {
	b, err := os.ReadFile(filepath.Join(c.dir, "cluster.json"))
	if err != nil {
		return nil, err
	}
	var d struct{ Nodes []node }
	return d.Nodes, json.Unmarshal(b, &d)
}

// settled waits until all brokers are in every ISR and lead.
func (c *cluster) settled(ctx context.Context) error {
	for {
		m, err := c.adm.Metadata(ctx, topic)
		if err == nil && len(m.Brokers) == 3 && len(m.Topics[topic].Partitions) == partitions {
			full := true
			for _, p := range m.Topics[topic].Partitions {
				full = full && len(p.ISR) == 3 && p.Leader >= 0
			}
			if full {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// victim picks the Raft leader, or another broker that leads partitions.
func (c *cluster) victim(ctx context.Context, leader bool) (node, error) {
	m, err := c.adm.Metadata(ctx, topic)
	if err != nil {
		return node{}, err
	}
	leads := map[int]bool{}
	for _, p := range m.Topics[topic].Partitions {
		leads[int(p.Leader)] = true
	}
	nodes, err := c.nodes()
	if err != nil {
		return node{}, err
	}
	c.turn++
	for i := range nodes {
		n := nodes[(i+c.turn)%len(nodes)]
		if leader == (n.ID == int(m.Controller)) && (leader || leads[n.ID]) {
			return n, nil
		}
	}
	for _, n := range nodes { // nobody else leads: any other broker
		if n.ID != int(m.Controller) {
			return n, nil
		}
	}
	return node{}, errors.New("no victim")
}

// moved returns how long after at every partition takes records from clients that do not know the victim.
func (c *cluster) moved(ctx context.Context, victim node, at time.Time) (time.Duration, error) {
	nodes, err := c.nodes()
	if err != nil {
		return 0, err
	}
	var seeds []string
	for _, n := range nodes {
		if n.ID != victim.ID {
			seeds = append(seeds, n.Kafka)
		}
	}
	// A new client every tryEvery, whether or not those before it are through: how long one waits does not blur the figure.
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	through := make(chan time.Duration, 1)
	var last atomic.Value
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	tick := time.NewTicker(tryEvery)
	defer tick.Stop()
	for {
		wg.Go(func() {
			if err := c.try(ctx, seeds); err != nil {
				last.Store(err.Error())
				return
			}
			select {
			case through <- time.Since(at):
			default:
			}
		})
		select {
		case d := <-through:
			return d, nil
		case <-ctx.Done():
			return 0, fmt.Errorf("no new client got through: %v: %w", last.Load(), ctx.Err())
		case <-tick.C:
		}
	}
}

// tryEvery is the granularity of the figures "seen by cluster".
const tryEvery = 50 * time.Millisecond

// try has a new client send a record to every partition, in a short time.
func (c *cluster) try(ctx context.Context, seeds []string) error {
	ctx, cancel := context.WithTimeout(ctx, 400*time.Millisecond)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0),
		kgo.DisableIdempotentWrite(), kgo.MetadataMinAge(10*time.Millisecond), kgo.ProduceRequestTimeout(200*time.Millisecond), kgo.RequestTimeoutOverhead(200*time.Millisecond))
	if err != nil {
		return err
	}
	defer client.Close()
	var rs []*kgo.Record
	for p := range int32(partitions) {
		rs = append(rs, &kgo.Record{Topic: topic, Partition: p, Value: []byte("try")})
	}
	return client.ProduceSync(ctx, rs...).FirstErr()
}

// once kills or freezes one broker under load. It returns the longest time that a record waited for its ack, and how long it
// took until every partition was led by another broker.
func (c *cluster) once(ctx context.Context, sig syscall.Signal, leader bool) (stall, moved time.Duration, err error) {
	v, err := c.victim(ctx, leader)
	if err != nil {
		return 0, 0, err
	}
	var worst atomic.Int64
	var failed atomic.Value
	var wg sync.WaitGroup
	load, stopLoad := context.WithCancel(ctx)
	wg.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for n := int32(0); load.Err() == nil; n++ {
			at := time.Now()
			wg.Add(1)
			c.client.Produce(ctx, &kgo.Record{Topic: topic, Partition: n % partitions, Value: []byte("x")}, func(_ *kgo.Record, err error) {
				defer wg.Done()
				if err != nil {
					failed.Store(err)
				}
				took := int64(time.Since(at))
				for old := worst.Load(); took > old && !worst.CompareAndSwap(old, took); old = worst.Load() {
				}
			})
			<-tick.C
		}
	})
	time.Sleep(time.Second) // a second of calm load
	worst.Store(0)
	at := time.Now()
	err = syscall.Kill(v.PID, sig)
	if err == nil {
		moved, err = c.moved(ctx, v, at)
		time.Sleep(time.Until(at.Add(6 * time.Second))) // longer than any lease
	}
	stopLoad()
	wg.Wait()
	if err != nil {
		return 0, 0, fmt.Errorf("broker %d (pid %d): %w", v.ID, v.PID, err)
	}
	if err, ok := failed.Load().(error); ok {
		return 0, 0, fmt.Errorf("a record failed: %w", err)
	}
	stall = time.Duration(worst.Load())
	if sig == syscall.SIGSTOP {
		return stall, moved, syscall.Kill(v.PID, syscall.SIGCONT)
	}
	again := exec.Command(c.bin, "server", "--config", v.Config)
	again.Stdout, again.Stderr = io.Discard, io.Discard
	if err := again.Start(); err != nil {
		return 0, 0, err
	}
	c.started = append(c.started, again)
	go func() { _ = again.Wait() }() // reaped when it is killed in a later run
	return stall, moved, nil
}

func (c *cluster) stop() {
	if c.client != nil {
		c.client.Close()
	}
	for _, s := range c.started {
		_ = s.Process.Signal(syscall.SIGTERM)
	}
	_ = c.dev.Process.Signal(syscall.SIGTERM)
	<-c.devGone
}
