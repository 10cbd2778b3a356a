// Command sarama is one member of a consumer group by sarama, for the tests: it writes a line {"partition":p,"offset":o} for each
// record that it receives, and commits every 200 ms. Its standard input is its leash: when that ends it leaves the group.
// Usage: sarama BROKERS GROUP TOPIC.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

type handler struct{}

func (handler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (handler) ConsumeClaim(s sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for m := range claim.Messages() {
		fmt.Printf("{\"partition\":%d,\"offset\":%d}\n", m.Partition, m.Offset)
		s.MarkMessage(m, "")
	}
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "sarama:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 4 {
		return fmt.Errorf("want BROKERS GROUP TOPIC, got %q", os.Args[1:])
	}
	config := sarama.NewConfig()
	config.Version = sarama.V2_3_0_0
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Interval = 200 * time.Millisecond
	config.Consumer.Group.Session.Timeout = 6 * time.Second
	config.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	group, err := sarama.NewConsumerGroup(strings.Split(os.Args[1], ","), os.Args[2], config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	for ctx.Err() == nil {
		if err := group.Consume(ctx, []string{os.Args[3]}, handler{}); err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, "sarama:", err)
			time.Sleep(time.Second) // an application of it joins again
		}
	}
	return group.Close()
}
