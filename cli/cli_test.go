package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kfake"
	"go.uber.org/goleak"

	"github.com/barnabas-mq/barnabas/internal/testtool"
	"github.com/barnabas-mq/barnabas/internal/testtool/reference"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// result is what one run of the command gave.
type result struct {
	out, err string
	failure  error
}

func run(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var out, errs bytes.Buffer
	root := New(Streams{In: strings.NewReader(stdin), Out: &out, Err: &errs}, "v1.2.3")
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if ctx.Err() != nil {
		t.Fatalf("%v took a minute\n%s\n%s", args, out.String(), errs.String())
	}
	return result{out.String(), errs.String(), err}
}

func ok(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	r := run(t, stdin, args...)
	if r.failure != nil {
		t.Fatalf("%v: %v\n%s\n%s", args, r.failure, r.out, r.err)
	}
	return r.out
}

// fake starts brokers of franz-go's kfake and returns how to reach them.
func fake(t *testing.T, opts ...kfake.Opt) string {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(3), kfake.DefaultNumPartitions(1), kfake.AllowAutoTopicCreation()}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return strings.Join(c.ListenAddrs(), ",")
}

func TestTopics(t *testing.T) {
	b := fake(t)
	if got := ok(t, "", "topic", "create", "orders", "-b", b, "-p", "12", "-r", "3", "--config", "max.message.bytes=4194304"); !strings.HasPrefix(got, "created orders") {
		t.Error(got)
	}
	r := run(t, "", "topic", "create", "orders", "new", "-b", b)
	if r.failure == nil || !strings.Contains(r.err, "orders: TOPIC_ALREADY_EXISTS") || !strings.Contains(r.out, "created new") || r.failure.Error() != "1 of 2 failed" {
		t.Errorf("%+v", r)
	}
	ok(t, "", "topic", "create", "orders", "-b", b, "--if-not-exists")
	if got := ok(t, "", "topic", "list", "-b", b); !strings.Contains(got, "orders  12          3") {
		t.Error(got)
	}
	ok(t, "", "topic", "alter", "orders", "-b", b, "-p", "13")
	var views []topicView
	if err := json.Unmarshal([]byte(ok(t, "", "topic", "describe", "orders", "-b", b, "-o", "json")), &views); err != nil {
		t.Fatal(err)
	}
	if len(views) != 1 || len(views[0].Partitions) != 13 || views[0].Configs["max.message.bytes"] != "4194304" {
		t.Errorf("%+v", views)
	}
	if got := ok(t, "", "topic", "describe", "orders", "-b", b); !strings.Contains(got, "configuration: max.message.bytes=4194304") {
		t.Error(got)
	}
	if got := ok(t, "", "config", "get", "topic", "orders", "-b", b); !strings.Contains(got, "max.message.bytes") {
		t.Error(got)
	}
	if got := ok(t, "", "config", "set", "topic", "orders", "max.message.bytes=5000000", "retention.ms=1000", "-b", b); got != "changed orders\n" {
		t.Error(got)
	}
	ok(t, "", "config", "unset", "topic", "orders", "retention.ms", "-b", b)
	if got := ok(t, "", "config", "set", "group", "billing", "consumer.session.timeout.ms=20000", "-b", b); got != "changed billing\n" {
		t.Error(got)
	}
	if got := ok(t, "", "config", "get", "group", "billing", "-b", b); !strings.Contains(got, "20000") || strings.Contains(got, "heartbeat") {
		t.Error(got)
	}
	if got := ok(t, "", "config", "get", "group", "billing", "-b", b, "--all"); !strings.Contains(got, "consumer.heartbeat.interval.ms") {
		t.Error(got)
	}
	if got := ok(t, "", "config", "get", "topic", "orders", "-b", b); !strings.Contains(got, "5000000") || strings.Contains(got, "retention.ms") {
		t.Error(got)
	}
	if got := ok(t, "", "cluster", "status", "-b", b); !strings.Contains(got, "2 topics, 14 partitions, 0 under-replicated") || !strings.Contains(got, "controller") {
		t.Error(got)
	}
	ok(t, "", "topic", "delete", "orders", "new", "-b", b)
	if r := run(t, "", "topic", "describe", "orders", "-b", b); r.failure == nil {
		t.Errorf("a deleted topic was described: %+v", r)
	}
	if got := ok(t, "", "topic", "list", "-b", b, "-o", "json"); strings.TrimSpace(got) != "[]" {
		t.Error(got)
	}
}

// What goes in by produce comes out by consume: empty lines, long lines, bytes that are no text, no newline at the end.
func TestProduceConsume(t *testing.T) {
	b := fake(t)
	long := strings.Repeat("x", 1_400_000)
	dir := t.TempDir()
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	for file, text := range map[string]string{one: "first\n\n\xff\xfe\n" + long + "\nno newline", two: "last\r\n"} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ok(t, "", "topic", "create", "lines", "-b", b, "-p", "1", "-r", "1", "--config", "max.message.bytes=4194304")
	acks := filepath.Join(dir, "acks")
	var sum produceSummary
	got := ok(t, "", "produce", "-b", b, "-t", "lines", "-k", "number", "--max-message-bytes", "2000000", "--acks-file", acks, "-o", "json", one, two)
	if err := json.Unmarshal([]byte(got), &sum); err != nil || sum.Read != 6 || sum.Acked != 6 || sum.Failed != 0 {
		t.Errorf("%s %v", got, err)
	}
	if text, err := os.ReadFile(acks); err != nil || string(text) != "0 0 1\n0 1 2\n0 2 3\n0 3 4\n0 4 5\n0 5 6\n" {
		t.Errorf("%s %v", text, err)
	}
	want := "first\n\n\xff\xfe\n" + long + "\nno newline\nlast\r\n"
	if got := ok(t, "", "consume", "-b", b, "-t", "lines", "-p", "0", "--offset", "earliest", "-e"); got != want {
		t.Errorf("%d bytes, want %d", len(got), len(want))
	}
	digest := ok(t, "", "consume", "-b", b, "-t", "lines", "--offset", "1", "-n", "1", "-f", "digest")
	if digest != `{"partition":0,"offset":1,"key":"2","len":0,"crc":0}`+"\n" {
		t.Error(digest)
	}
	if got := ok(t, "", "consume", "-b", b, "-t", "lines", "--offset", "5", "-e", "-o", "json"); !strings.Contains(got, `"offset":5`) || !strings.Contains(got, `"key":"6","value":"last\r"`) {
		t.Error(got)
	}
	for _, empty := range []string{"latest", "6", "@" + fmt.Sprint(time.Now().Add(time.Hour).UnixMilli())} {
		if got := ok(t, "", "consume", "-b", b, "-t", "lines", "--offset", empty, "-e"); got != "" {
			t.Errorf("from %s: %q", empty, got)
		}
	}
	if got := ok(t, "", "consume", "-b", b, "-t", "lines", "--offset", "@0", "-n", "2", "-f", "key-value"); got != "1\tfirst\n2\t\n" {
		t.Errorf("%q", got)
	}
}

func TestProduceKeys(t *testing.T) {
	b := fake(t)
	ok(t, "a=1\nplain\n=x\n", "produce", "-b", b, "-t", "k", "--key", "split", "--key-separator", "=", "--compression", "zstd")
	got := ok(t, "", "consume", "-b", b, "-t", "k", "--offset", "earliest", "-e", "-o", "json")
	for _, want := range []string{`"key":"a","value":"1"`, `"key":null,"value":"plain"`, `"key":"","value":"x"`} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	ok(t, "", "topic", "create", "four", "-b", b, "-p", "4", "-r", "1")
	ok(t, "only\nhere\n", "produce", "-b", b, "-t", "four", "-p", "3", "--acks", "1")
	if got := ok(t, "", "consume", "-b", b, "-t", "four", "-p", "3", "--offset", "earliest", "-n", "2"); got != "only\nhere\n" {
		t.Error(got)
	}
	if got := ok(t, "", "consume", "-b", b, "-t", "four", "--offset", "earliest", "-e"); got != "only\nhere\n" {
		t.Error(got)
	}
}

func TestALineThatIsTooLongFails(t *testing.T) {
	b := fake(t)
	r := run(t, strings.Repeat("x", 3000)+"\nshort\n", "produce", "-b", b, "-t", "small", "--max-message-bytes", "2000")
	if r.failure == nil || !strings.Contains(r.failure.Error(), "1 lines were not written") || !strings.Contains(r.err, "1 lines written, 1 failed") {
		t.Errorf("%+v", r)
	}
}

func TestUsageErrors(t *testing.T) {
	for _, args := range [][]string{
		{"produce"}, {"produce", "-t", "t", "--acks", "2"}, {"produce", "-t", "t", "--compression", "rar"}, {"produce", "-t", "t", "--key", "hash"},
		{"produce", "-t", "t", "-b", ","}, {"consume"}, {"consume", "-t", "t", "--offset", "-3"}, {"consume", "-t", "t", "--offset", "@yesterday"},
		{"consume", "-t", "t", "--format", "xml"}, {"topic", "create"}, {"topic", "alter", "t"}, {"topic", "create", "t", "--config", "novalue"},
		{"config", "get", "user", "u"}, {"config", "get", "broker", "b"}, {"config", "set", "topic", "t", "novalue"}, {"config", "set", "broker", "1", "a=b"}, {"version", "-o", "yaml"}, {"dev", "--nodes", "0"}, {"topic", "list", "--nonsense"},
		{"consume", "-t", "t", "--zookeeper", ",", "--group", "g"}, {"zk", "ls", "--zookeeper", ""},
	} {
		if r := run(t, "", args...); !errors.Is(r.failure, ErrUsage) {
			t.Errorf("%v: %v is not a usage error", args, r.failure)
		}
	}
}

func TestVersion(t *testing.T) {
	if got := ok(t, "", "version"); !strings.HasPrefix(got, "barnabas v1.2.3 (go") {
		t.Error(got)
	}
}

// Every verb says what it is for; every leaf has examples or takes no thought.
func TestHelp(t *testing.T) {
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Short == "" {
			t.Errorf("%s has no help", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(New(Streams{}, ""))
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if got := ok(t, "", "completion", shell); len(got) < 1000 {
			t.Errorf("completion for %s: %q", shell, got)
		}
	}
}

func TestParseOffset(t *testing.T) {
	for in, want := range map[string]startAt{"0": {'n', 0}, "12": {'n', 12}, "earliest": {kind: 'e'}, "latest": {kind: 'l'},
		"@1700000000000": {'t', 1700000000000}, "@2023-11-14T22:13:20Z": {'t', 1700000000000}} {
		if got, err := parseOffset(in); err != nil || got != want {
			t.Errorf("%s: %v %v", in, got, err)
		}
	}
}

func TestAckKey(t *testing.T) {
	for in, want := range map[string]string{"12": "12", "": `""`, "-": `"-"`, "a b": `"a b"`, "\xff": `"\xff"`} {
		if got := ackKey([]byte(in)); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
	if got := ackKey(nil); got != "-" {
		t.Error(got)
	}
}

func TestThousands(t *testing.T) {
	for in, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1234: "-1,234"} {
		if got := thousands(in); got != want {
			t.Errorf("%d: %s", in, got)
		}
	}
}

// A simple consumer follows the leader when it moves, without a gap and without reading anything again.
func TestConsumerFollowsTheLeader(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.SeedTopics(1, "t"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	b := strings.Join(c.ListenAddrs(), ",")
	const moves, each = 6, 50
	out := newWaiter()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	root := New(Streams{In: strings.NewReader(""), Out: out, Err: os.Stderr}, "")
	root.SetArgs([]string{"consume", "-b", b, "-t", "t", "-p", "0", "--offset", "0", "-n", fmt.Sprint(moves * each)})
	done := make(chan error, 1)
	go func() { done <- root.ExecuteContext(ctx) }()
	want := ""
	for m := range moves {
		if err := c.MoveTopicPartition("t", 0, int32(m%3)); err != nil {
			t.Fatal(err)
		}
		var lines strings.Builder
		for n := range each {
			fmt.Fprintf(&lines, "line %d\n", m*each+n)
		}
		ok(t, lines.String(), "produce", "-b", b, "-t", "t")
		want += lines.String()
		out.waitFor(t, len(want))
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := out.String(); got != want {
		t.Errorf("got %d bytes, want %d", len(got), len(want))
	}
}

// waiter is a buffer that tells when it has grown to a length.
type waiter struct {
	mu   sync.Mutex
	b    bytes.Buffer
	grew chan struct{}
}

func newWaiter() *waiter { return &waiter{grew: make(chan struct{}, 1)} }

func (w *waiter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case w.grew <- struct{}{}:
	default:
	}
	return w.b.Write(p)
}

func (w *waiter) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

func (w *waiter) waitFor(t *testing.T, n int) {
	t.Helper()
	for len(w.String()) < n {
		select {
		case <-w.grew:
		case <-time.After(time.Minute):
			t.Fatalf("%d of %d bytes came", len(w.String()), n)
		}
	}
}

func TestClusterInit(t *testing.T) {
	answers := map[string]http.HandlerFunc{
		"good": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"clusterId":"abc"}`) },
		"refuses": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusConflict)
			fmt.Fprint(w, `{"error":"it has begun already"}`)
		},
		"stranger": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") },
	}
	for name, h := range answers {
		mux := http.NewServeMux()
		mux.Handle("POST /v1/cluster/init", h)
		srv := httptest.NewServer(mux)
		r := run(t, "", "cluster", "init", "--admin", srv.Listener.Addr().String())
		srv.Close()
		switch name {
		case "good":
			if r.failure != nil || r.out != "cluster abc has begun\n" {
				t.Errorf("%+v", r)
			}
		case "refuses":
			if r.failure == nil || !strings.Contains(r.failure.Error(), "it has begun already") {
				t.Errorf("%+v", r)
			}
		default:
			if r.failure == nil || !strings.Contains(r.failure.Error(), "is it the admin port?") {
				t.Errorf("%+v", r)
			}
		}
	}
}

// The zk verbs and the group consumer against a real ZooKeeper and a real Kafka.
func TestZooKeeperVerbs(t *testing.T) {
	zk := reference.ZooKeeper(t)
	kafka := reference.Kafka(t, testtool.Kafka111, zk.Addr+"/k")
	if got := ok(t, "", "zk", "ls", "-z", zk.Addr+"/k", "/brokers"); got != "ids\nseqid\ntopics\n" {
		t.Error(got)
	}
	if got := ok(t, "", "zk", "ls", "-R", "-z", zk.Addr, "/k/brokers"); !strings.Contains(got, "/k/brokers/ids/0\n") {
		t.Error(got)
	}
	if got := ok(t, "", "zk", "get", "-z", zk.Addr+"/k", "/brokers/ids/0"); !strings.Contains(got, `"port":`) {
		t.Error(got)
	}
	if got := ok(t, "", "zk", "stat", "-z", zk.Addr, "/k/brokers/ids/0"); !strings.Contains(got, "numChildren     0") {
		t.Error(got)
	}
	if r := run(t, "", "zk", "get", "-z", zk.Addr, "/none"); r.failure == nil || !strings.Contains(r.failure.Error(), "/none: zk: node does not exist") {
		t.Errorf("%+v", r)
	}
	ok(t, "a\nb\nc\n", "produce", "-b", kafka.Addr, "-t", "t")
	for _, want := range []string{"a\nb\n", "c\n"} { // the second member goes on where the first stopped
		n := fmt.Sprint(strings.Count(want, "\n"))
		if got := ok(t, "", "consume", "-z", zk.Addr+"/k", "-g", "g", "-t", "t", "--from-beginning", "-n", n); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// A Ctrl-C gives what was read to the broker before it ends.
func TestInterruptedProduceKeepsWhatItHasRead(t *testing.T) {
	b := fake(t)
	in, feed := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var errs bytes.Buffer
	root := New(Streams{In: in, Out: io.Discard, Err: &errs}, "")
	acks := filepath.Join(t.TempDir(), "acks")
	root.SetArgs([]string{"produce", "-b", b, "-t", "t", "--acks-file", acks})
	done := make(chan error, 1)
	go func() { done <- root.ExecuteContext(ctx) }()
	if _, err := io.WriteString(feed, "one\ntwo\n"); err != nil {
		t.Fatal(err)
	}
	testtool.Eventually(t, time.Minute, func() error {
		if text, err := os.ReadFile(acks); err != nil || strings.Count(string(text), "\n") != 2 {
			return fmt.Errorf("acks: %q %v", text, err)
		}
		return nil
	})
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	feed.Close() // ends the reader, as the end of the process does
	if !strings.Contains(errs.String(), "2 lines written, 0 failed") {
		t.Error(errs.String())
	}
}

// What fails one line for good fails all: produce says so once and stops, however much input there is. A line of its own fault
// leaves the others alone.
func TestProduceStopsWhenTheTopicCannotBeWritten(t *testing.T) {
	b := fake(t)
	ok(t, "", "topic", "create", "t", "-b", b, "-p", "1", "-r", "1")
	endless, feed := io.Pipe()
	go func() { // ends when the reader is closed
		for {
			if _, err := io.WriteString(feed, "line\n"); err != nil {
				return
			}
		}
	}()
	defer endless.Close()
	root := New(Streams{In: endless, Out: io.Discard, Err: io.Discard}, "")
	root.SetArgs([]string{"produce", "-b", b, "-t", "t", "-p", "7"})
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := root.ExecuteContext(ctx); err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "and no other could be") {
		t.Errorf("%v", err)
	}
	r := run(t, "short\n"+strings.Repeat("x", 200_000)+"\nlast\n", "produce", "-b", b, "-t", "t", "--max-message-bytes", "100000")
	if r.failure == nil || !strings.Contains(r.err, "2 lines written, 1 failed") || strings.Contains(r.failure.Error(), "no other") {
		t.Errorf("%v\n%s", r.failure, r.err)
	}
}

func TestUnknownTopic(t *testing.T) {
	b := fake(t)
	r := run(t, "", "consume", "-b", b, "-t", "nowhere", "-e")
	if r.failure == nil || !strings.Contains(r.failure.Error(), "offsets of topic nowhere: UNKNOWN_TOPIC_OR_PARTITION") {
		t.Errorf("%v", r.failure)
	}
	ok(t, "", "topic", "create", "t", "-b", b, "-p", "3", "-r", "1")
	r = run(t, "", "consume", "-b", b, "-t", "t", "-p", "3", "-e")
	if r.failure == nil || r.failure.Error() != "topic t has no partition 3; it has 0 to 2" {
		t.Errorf("%v", r.failure)
	}
	r = run(t, "", "consume", "-b", b, "-t", "t", "-p", "0", "--offset", "7", "-e")
	if r.failure == nil || r.failure.Error() != "partition 0 of t has offsets 0 to 0: 7 is not among them" {
		t.Errorf("%v", r.failure)
	}
}
