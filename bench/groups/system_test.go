package groups

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/barnabas-mq/barnabas/internal/testtool"
	"github.com/barnabas-mq/barnabas/internal/testtool/reference"
)

// startLimit is how long a server may take, on a busy machine, until it serves.
const startLimit = 2 * time.Minute

// system is one side of the comparison.
type system struct {
	name      string
	brokers   []string
	zookeeper string // host:port,...; empty without one
	replicas  int16
	logs      []string // of the nodes; none of a real Kafka
}

// kafka111 is a real Apache Kafka 1.1.1 with a real ZooKeeper 3.9.5, as they come.
func kafka111(b *testing.B) system {
	zk := reference.ZooKeeper(b)
	kafka := reference.Kafka(b, testtool.Kafka111, zk.Addr, "group.initial.rebalance.delay.ms=3000")
	return system{name: "Kafka 1.1.1 + ZooKeeper 3.9.5", brokers: []string{kafka.Addr}, zookeeper: zk.Addr, replicas: 1}
}

// kafka44 is a real Apache Kafka 4.4 with what it has by default, one node that replicates nothing.
func kafka44(b *testing.B) system {
	kafka := reference.Kafka44(b, "group.initial.rebalance.delay.ms=3000")
	return system{name: "Kafka 4.4, 1 node", brokers: []string{kafka.Addr}, replicas: 1}
}

// kafka44x3 is three of them, with an offsets topic as it comes: 50 partitions, of which each is on all.
func kafka44x3(b *testing.B) system {
	s := system{name: "Kafka 4.4, 3 nodes", replicas: 3}
	for _, kafka := range reference.Kafka44Nodes(b, 3, "offsets.topic.num.partitions=50") {
		s.brokers = append(s.brokers, kafka.Addr)
	}
	return s
}

// barnabas is three nodes with what they have by default.
func barnabas(b *testing.B) system {
	b.Helper()
	bin := os.Getenv("BARNABAS_BIN")
	if bin == "" {
		bin = filepath.Join(testtool.Root(b), "bin", "barnabas")
	}
	dir := filepath.Join(testtool.Folder(b), "cluster")
	first := testtool.FreePorts(b, 12)
	args := []string{"dev", "--nodes", "3", "--dir", dir}
	for i, flag := range []string{"--kafka-port", "--zk-port", "--admin-port", "--cluster-port"} {
		args = append(args, flag, fmt.Sprint(first+3*i))
	}
	dev := testtool.Start(b, "barnabas", exec.Command(bin, args...))
	b.Cleanup(func() { // dev stops its nodes; were it killed they would live on
		if err := dev.Stop(startLimit); err != nil {
			b.Logf("barnabas dev: %v", err)
		}
	})
	var file struct {
		Nodes []struct {
			ID               int
			Kafka, Zookeeper string
		}
	}
	testtool.Eventually(b, startLimit, func() error {
		if !dev.Alive() {
			b.Fatalf("barnabas ended while it started:\n%s", dev.Tail(20))
		}
		data, err := os.ReadFile(filepath.Join(dir, "cluster.json"))
		if err == nil {
			err = json.Unmarshal(data, &file)
		}
		if err == nil && len(file.Nodes) != 3 {
			err = fmt.Errorf("%d nodes", len(file.Nodes))
		}
		return err
	})
	s := system{name: "barnabas, 3 nodes", replicas: 3}
	var zk []string
	for _, n := range file.Nodes {
		s.brokers, zk = append(s.brokers, n.Kafka), append(zk, n.Zookeeper)
		s.logs = append(s.logs, filepath.Join(dir, fmt.Sprint(n.ID), "barnabas.log"))
	}
	s.zookeeper = strings.Join(zk, ",")
	return s
}

func (s system) client(b *testing.B, opts ...kgo.Opt) *kgo.Client {
	b.Helper()
	c, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(s.brokers...), kgo.MetadataMinAge(50 * time.Millisecond)}, opts...)...)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(c.Close)
	return c
}

// topic creates a topic and returns when each partition has a leader.
func (s system) topic(b *testing.B, name string, partitions int32) {
	b.Helper()
	admin := kadm.NewClient(s.client(b))
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	testtool.Eventually(b, startLimit, func() error {
		made, err := admin.CreateTopic(ctx, partitions, s.replicas, nil, name)
		if err != nil && made.ErrMessage == "" && !strings.Contains(err.Error(), "TOPIC_ALREADY_EXISTS") {
			return err
		}
		m, err := admin.Metadata(ctx, name)
		if err != nil {
			return err
		}
		led := 0
		for _, p := range m.Topics[name].Partitions {
			if p.Err == nil && p.Leader >= 0 {
				led++
			}
		}
		if led != int(partitions) {
			return fmt.Errorf("%d of %d partitions of %s have a leader", led, partitions, name)
		}
		return nil
	})
}
