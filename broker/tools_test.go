package broker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/internal/clock"
	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/lease"
	"github.com/barnabas-mq/barnabas/internal/testtool"
	"github.com/barnabas-mq/barnabas/internal/vfs"
	"github.com/barnabas-mq/barnabas/partition"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

type noPeers struct{}

func (noPeers) Call(context.Context, id.BrokerID, string, []byte) ([]byte, error) {
	return nil, errors.New("there are no peers")
}

// startReal is a broker over a real partition.Manager on a disk in memory; only the metadata has no Raft.
func startReal(t testing.TB, change func(*Config)) *fixture {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{meta: newMeta(t), addr: ln.Addr().String(), lines: &lines{}}
	var epoch atomic.Uint64
	m, err := partition.New(partition.Config{Dir: "data"}, partition.Deps{
		FS: vfs.NewMem(nil), Views: f.meta, Proposer: f.meta, Peers: noPeers{},
		Lease: func() (l lease.Lease) { l.Answered(clock.System{}.Boot()); return l },
		Self:  func() (id.BrokerID, id.BrokerEpoch) { return 1, id.BrokerEpoch(epoch.Load()) },
	})
	if err != nil {
		t.Fatal(err)
	}
	f.meta.tell = func(a state.Applied) { m.ApplyChanges(a.View, a.Changes) }
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ran; err != nil {
			t.Errorf("partitions: %v", err)
		}
	})
	f.meta.register(t, 1, f.addr)
	b, _ := f.meta.View().Broker(1)
	epoch.Store(uint64(b.Epoch))
	m.SelfChanged()
	f.meta.must(t, &statepb.Command{Term: 1, Body: &statepb.Command_TermStarted{TermStarted: &statepb.TermStarted{Broker: 1}}})
	cfg := Config{ID: 1, Logger: slog.New(slog.NewTextHandler(io.MultiWriter(f.lines), nil))}
	if change != nil {
		change(&cfg)
	}
	f.Server, err = New(cfg, Deps{Views: f.meta, Proposer: f.meta, Partitions: FromManager(m), Groups: f.meta})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- f.Serve(ln, "PLAINTEXT") }()
	t.Cleanup(func() {
		f.Stop()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return f
}

// run runs a program with lines as its input and returns its output.
func run(t *testing.T, cmd *exec.Cmd, input []string) string {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(strings.Join(input, "\n")+"\n"), &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s\n%s", strings.Join(cmd.Args, " "), err, out.String(), errs.String())
	}
	if strings.Contains(errs.String(), "ERROR") || strings.Contains(errs.String(), "Exception") {
		t.Errorf("%s complained:\n%s", strings.Join(cmd.Args, " "), errs.String())
	}
	return out.String()
}

func numbered(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("line %d", i))
	}
	return out
}

func sameLines(t *testing.T, what, got string, want []string) {
	t.Helper()
	have := slices.DeleteFunc(strings.Split(strings.TrimSpace(got), "\n"), func(l string) bool {
		return strings.HasPrefix(l, "Terminating. Reached the end") // SimpleConsumerShell's own word
	})
	slices.Sort(have)
	want = slices.Sorted(slices.Values(want))
	if !slices.Equal(have, want) {
		t.Errorf("%s: %d lines, want %d; first %q", what, len(have), len(want), have[:min(3, len(have))])
	}
}

func TestKcat(t *testing.T) {
	kcat := testtool.Need(t, testtool.Kcat)
	f := startReal(t, nil)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	in := numbered(1000)
	for _, extra := range [][]string{
		{}, {"-X", "compression.codec=lz4"}, {"-X", "compression.codec=snappy", "-X", "enable.idempotence=true"},
		// The versions that librdkafka takes without ApiVersions: what a client of 0.8, 0.9 and 0.10 sends.
		{"-X", "api.version.request=false", "-X", "broker.version.fallback=0.8.2.2"},
		{"-X", "api.version.request=false", "-X", "broker.version.fallback=0.9.0.1", "-X", "compression.codec=gzip"},
		{"-X", "api.version.request=false", "-X", "broker.version.fallback=0.10.1.0", "-X", "compression.codec=lz4"},
	} {
		topic := fmt.Sprintf("t%d", len(f.topics()))
		args := append([]string{"-b", f.addr, "-t", topic}, extra...)
		run(t, exec.CommandContext(ctx, kcat, append([]string{"-P"}, args...)...), in)
		got := run(t, exec.CommandContext(ctx, kcat, append([]string{"-C", "-p", "0", "-o", "beginning", "-e", "-q"}, args...)...), nil)
		sameLines(t, strings.Join(extra, " "), got, in)
	}
	listed := run(t, exec.CommandContext(ctx, kcat, "-b", f.addr, "-L"), nil)
	if !strings.Contains(listed, `topic "t0" with 1 partitions`) || !strings.Contains(listed, "1 brokers") {
		t.Errorf("kcat -L:\n%s", listed)
	}
	if got := f.lines.take(); len(got) != 0 {
		t.Errorf("log: %q", got)
	}
}

// topics lists the topics that there are.
func (f *fixture) topics() []string {
	var out []string
	f.meta.View().Topics(func(t *state.Topic) bool { out = append(out, t.Name); return true })
	return out
}

func TestKafka44Tools(t *testing.T) {
	f := startReal(t, nil)
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	tool := func(input []string, class string, args ...string) string {
		t.Helper()
		return run(t, testtool.JavaCommand(ctx, t, testtool.Kafka44, class, append([]string{"--bootstrap-server", f.addr}, args...)...), input)
	}
	const topics = "org.apache.kafka.tools.TopicCommand"
	tool(nil, topics, "--create", "--topic", "t", "--partitions", "2", "--config", "retention.ms=100000")
	if got := tool(nil, topics, "--list"); strings.TrimSpace(got) != "t" {
		t.Errorf("--list: %q", got)
	}
	tool(nil, topics, "--alter", "--topic", "t", "--partitions", "3")
	if got := tool(nil, topics, "--describe", "--topic", "t"); strings.Count(got, "Leader: 1") != 3 || !strings.Contains(got, "retention.ms=100000") {
		t.Errorf("--describe: %q", got)
	}
	in := numbered(500)
	tool(in, "org.apache.kafka.tools.ConsoleProducer", "--topic", "single")
	got := tool(nil, "org.apache.kafka.tools.consumer.ConsoleConsumer", "--topic", "single", "--partition", "0", "--offset", "earliest",
		"--max-messages", "500", "--timeout-ms", "30000")
	sameLines(t, "console consumer 4.4", got, in)
	tool(nil, topics, "--delete", "--topic", "t")
	if got := f.lines.take(); len(got) != 0 {
		t.Errorf("log: %q", got)
	}
}

func TestKafka082Tools(t *testing.T) {
	f := startReal(t, nil)
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	in := numbered(500)
	tool := func(input []string, class string, args ...string) string {
		t.Helper()
		return run(t, testtool.JavaCommand(ctx, t, testtool.Kafka082, class, append([]string{"--broker-list", f.addr}, args...)...), input)
	}
	tool(in, "kafka.tools.ConsoleProducer", "--topic", "new-producer", "--new-producer")
	tool(in, "kafka.tools.ConsoleProducer", "--topic", "old-producer", "--compress", "--request-required-acks", "-1")
	for _, topic := range []string{"new-producer", "old-producer"} {
		got := tool(nil, "kafka.tools.SimpleConsumerShell", "--topic", topic, "--partition", "0", "--offset", "-2", "--no-wait-at-logend")
		sameLines(t, topic, got, in)
		if got := tool(nil, "kafka.tools.GetOffsetShell", "--topic", topic, "--time", "-1"); !strings.Contains(got, topic+":0:500") {
			t.Errorf("GetOffsetShell: %q", got)
		}
	}
	if got := f.lines.take(); len(got) != 0 {
		t.Errorf("log: %q", got)
	}
}
