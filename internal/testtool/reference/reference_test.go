package reference

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/internal/testtool"
)

// line is what our Java programs write.
type line struct {
	Event     string  `json:"event"`
	Partition int     `json:"partition"`
	Offset    int64   `json:"offset"`
	Key       *string `json:"key"`
	Len       int     `json:"len"`
	CRC       uint32  `json:"crc"`
}

func readLines(t *testing.T, file string) (records, events []line) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var l line
		if err := json.Unmarshal(s.Bytes(), &l); err != nil {
			t.Fatalf("%s: %q: %v", file, s.Text(), err)
		}
		if l.Event == "" {
			records = append(records, l)
		} else {
			events = append(events, l)
		}
	}
	return records, events
}

// The Java programs do on real brokers what the tests of barnabas expect of them: that tells a fault of ours from one of theirs.
func TestPrograms(t *testing.T) {
	for _, version := range []testtool.Tool{testtool.Kafka082, testtool.Kafka111} {
		t.Run(string(version), func(t *testing.T) {
			zk := ZooKeeper(t)
			kafka := Kafka(t, version, zk.Addr, "num.partitions=3")
			dir := t.TempDir()
			acked := filepath.Join(dir, "acked")
			for _, api := range []string{"new", "old"} {
				producer := testtool.Start(t, "producer-"+api, testtool.JavaCommand(context.Background(), t, testtool.Programs, "Producer082",
					"--brokers", kafka.Addr, "--topic", "t", "--count", "1000", "--api", api, "--compression", "gzip", "--output", acked+api))
				if err := producer.WaitFor(time.Minute); err != nil {
					t.Fatalf("producer: %v", err)
				}
			}
			received := filepath.Join(dir, "received")
			consumer := testtool.Start(t, "consumer", testtool.JavaCommand(context.Background(), t, testtool.Programs, "HighLevelConsumer082",
				"--zookeeper", zk.Addr, "--group", "g", "--topic", "t", "--streams", "2", "--limit", "2000", "--output", received))
			if err := consumer.WaitFor(time.Minute); err != nil {
				t.Fatalf("consumer: %v", err)
			}
			compare(t, acked+"new", received)
			stopBySignal(t, zk, filepath.Join(dir, "second"))
		})
	}
}

func compare(t *testing.T, acked, received string) {
	t.Helper()
	sent, _ := readLines(t, acked)
	got, events := readLines(t, received)
	if len(sent) != 1000 || len(got) != 2000 {
		t.Fatalf("%d lines of acks, %d of records; want 1000 and 2000", len(sent), len(got))
	}
	type place struct {
		partition int
		offset    int64
	}
	at := map[place]line{}
	for _, l := range got {
		at[place{l.Partition, l.Offset}] = l
	}
	for _, l := range sent {
		if g := at[place{l.Partition, l.Offset}]; g.CRC != l.CRC || g.Len != l.Len || *g.Key != *l.Key {
			t.Fatalf("acked %+v, received %+v", l, g)
		}
	}
	if first, last := events[0].Event, events[len(events)-1].Event; first != "start" || last != "stop" {
		t.Errorf("first event %q, last %q; want start and stop", first, last)
	}
}

// stopBySignal reads the topic in a second group until all is there, and asks the consumer to end with SIGTERM.
func stopBySignal(t *testing.T, zk *Server, received string) {
	t.Helper()
	consumer := testtool.Start(t, "second", testtool.JavaCommand(context.Background(), t, testtool.Programs, "HighLevelConsumer082",
		"--zookeeper", zk.Addr, "--group", "second", "--topic", "t", "--output", received))
	testtool.Eventually(t, time.Minute, func() error {
		if data, err := os.ReadFile(received); err != nil || strings.Count(string(data), "\"key\"") < 2000 {
			return fmt.Errorf("%d bytes received, %v", len(data), err)
		}
		return nil
	})
	if err := consumer.Stop(30 * time.Second); err != nil {
		t.Fatalf("SIGTERM: %v", err)
	}
	if _, events := readLines(t, received); events[len(events)-1].Event != "stop" {
		t.Errorf("the last event is %q, want stop", events[len(events)-1].Event)
	}
}
