package zkconsumer_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/barnabas-mq/barnabas/cli/zkconsumer"
	"github.com/barnabas-mq/barnabas/internal/testtool"
	"github.com/barnabas-mq/barnabas/internal/testtool/reference"
)

const (
	topic = "t"
	parts = 6
	limit = time.Minute
)

// peer is a ZooKeeper and a Kafka with one topic, which lie below a chroot.
type peer struct {
	zookeeper, kafka string // zookeeper without the chroot
	producer         *kgo.Client
	zk               *zk.Conn
	next             int
}

// onEach runs a test against the real thing, Apache ZooKeeper 3.9.5 and Apache Kafka 1.1.1, and against barnabas: what holds
// there must hold here.
func onEach(t *testing.T, test func(*testing.T, *peer)) {
	t.Run("apache", func(t *testing.T) {
		zkServer := reference.ZooKeeper(t)
		kafka := reference.Kafka(t, testtool.Kafka111, zkServer.Addr+"/kafka")
		test(t, newPeer(t, zkServer.Addr, kafka.Addr))
	})
	t.Run("barnabas", func(t *testing.T) {
		if testing.Short() {
			t.Skip("runs a broker: not in the short run")
		}
		first := testtool.FreePorts(t, 4)
		at := func(n int) string { return fmt.Sprintf("127.0.0.1:%d", first+n) }
		bin := barnabas(t)
		broker := testtool.Start(t, "barnabas", exec.Command(bin, "server", "--log.dirs", testtool.Folder(t), "--zookeeper.chroots", "/kafka",
			"--listeners", "PLAINTEXT://"+at(0), "--zookeeper.listener", at(1), "--admin.listener", at(2), "--cluster.listener", at(3),
			"--barnabas.cluster.id", "AAAAAAAAAAAAAAAAAAAAAQ", "--barnabas.directory.id", "d", "--barnabas.voters", "d@"+at(3)))
		testtool.Eventually(t, limit, func() error {
			if !broker.Alive() {
				t.Fatal("barnabas ended")
			}
			resp, err := http.Get("http://" + at(2) + "/readyz")
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return errors.New(resp.Status)
			}
			return nil
		})
		http.DefaultClient.CloseIdleConnections()
		test(t, newPeer(t, at(1), at(0)))
	})
}

func newPeer(t *testing.T, zookeeper, kafka string) *peer {
	t.Helper()
	p := &peer{zookeeper: zookeeper, kafka: kafka}
	var err error
	if p.producer, err = kgo.NewClient(kgo.SeedBrokers(kafka), kgo.RecordPartitioner(kgo.ManualPartitioner())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.producer.Close)
	if _, err := kadm.NewClient(p.producer).CreateTopic(t.Context(), parts, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
	conn, _, err := zk.Connect([]string{zookeeper}, 10*time.Second, zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	p.zk = conn
	return p
}

// produce writes n records to each partition.
func (p *peer) produce(t *testing.T, n int) {
	t.Helper()
	for range n {
		for part := range parts {
			p.producer.Produce(t.Context(), &kgo.Record{Topic: topic, Partition: int32(part), Key: []byte(strconv.Itoa(p.next)), Value: []byte("v")}, nil)
			p.next++
		}
	}
	if err := p.producer.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (p *peer) node(path string) string {
	data, _, err := p.zk.Get("/kafka" + path)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// ledger counts how often each record was delivered, and by whom.
type ledger struct {
	mu   sync.Mutex
	seen map[[2]int64]int
	by   map[string]int
}

func newLedger() *ledger { return &ledger{seen: map[[2]int64]int{}, by: map[string]int{}} }

func (l *ledger) add(who string, partition int32, offset int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen[[2]int64{int64(partition), offset}]++
	l.by[who]++
}

func (l *ledger) distinct() (distinct, deliveries int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.seen {
		deliveries += n
	}
	return len(l.seen), deliveries
}

func (l *ledger) wait(t *testing.T, want int) {
	t.Helper()
	testtool.Eventually(t, limit, func() error {
		if got, _ := l.distinct(); got != want {
			return fmt.Errorf("%d of %d records received", got, want)
		}
		return nil
	})
}

// goMember is a running consumer of ours.
type goMember struct {
	name   string
	cancel context.CancelFunc
	done   chan error
	mu     sync.Mutex
	claims []zkconsumer.Claim
}

func (p *peer) start(t *testing.T, l *ledger, name, zookeeper string, change func(*zkconsumer.Config)) *goMember {
	t.Helper()
	m := &goMember{name: name, done: make(chan error, 1)}
	cfg := zkconsumer.Config{
		ZooKeeper: zookeeper, Group: "g", Topics: map[string]int{topic: 1}, ID: name, FromStart: true,
		RebalanceBackoff: 500 * time.Millisecond, AutoCommitInterval: time.Hour,
		Handle: func(_ context.Context, _ int, r *kgo.Record) error { l.add(name, r.Partition, r.Offset); return nil },
		Assigned: func(claims []zkconsumer.Claim) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.claims = claims
		},
		Log: slog.New(slog.NewTextHandler(testWriter{t}, nil)),
	}
	if change != nil {
		change(&cfg)
	}
	c, err := zkconsumer.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	go func() { m.done <- c.Run(ctx) }()
	t.Cleanup(cancel)
	return m
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	fmt.Fprintf(os.Stderr, "%s: %s", w.t.Name(), b)
	return len(b), nil
}

func (m *goMember) stop(t *testing.T) {
	t.Helper()
	m.cancel()
	select {
	case err := <-m.done:
		if err != nil {
			t.Errorf("member %s: %v", m.name, err)
		}
	case <-time.After(limit):
		t.Fatalf("member %s did not stop", m.name)
	}
}

func (m *goMember) owns() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.claims)
}

func waitOwned(t *testing.T, want int, members ...*goMember) {
	t.Helper()
	testtool.Eventually(t, limit, func() error {
		for _, m := range members {
			if got := m.owns(); got != want {
				return fmt.Errorf("member %s owns %d partitions, want %d", m.name, got, want)
			}
		}
		return nil
	})
}

func (p *peer) committed() (sum int64) {
	for part := range parts {
		n, _ := strconv.ParseInt(p.node(fmt.Sprintf("/consumers/g/offsets/%s/%d", topic, part)), 10, 64)
		sum += n
	}
	return sum
}

// Members of ours and one of Apache Kafka 0.8.2.2's Java share a group: each record arrives, and once, while members join
// and leave cleanly.
func TestWithJavaMembers(t *testing.T) {
	testtool.Need(t, testtool.Programs)
	onEach(t, withJavaMembers)
}

func withJavaMembers(t *testing.T, p *peer) {
	l := newLedger()
	chroot := p.zookeeper + "/kafka"
	p.produce(t, 100)
	a := p.start(t, l, "a", chroot, nil)
	l.wait(t, 100*parts)
	waitOwned(t, parts, a)

	b := p.start(t, l, "b", chroot, nil)
	waitOwned(t, parts/2, a, b)
	p.produce(t, 100)
	l.wait(t, 200*parts)

	out := filepath.Join(t.TempDir(), "java")
	java := testtool.Start(t, "java", testtool.JavaCommand(context.Background(), t, testtool.Programs, "HighLevelConsumer082",
		"--zookeeper", chroot, "--group", "g", "--topic", topic, "--id", "c", "--auto-commit-ms", "3600000", "--output", out,
		"--property", "rebalance.backoff.ms=500"))
	waitOwned(t, parts/3, a, b)
	testtool.Eventually(t, limit, func() error {
		if owner := p.node("/consumers/g/owners/t/5"); owner != "g_c-0" {
			return fmt.Errorf("the last partition belongs to %s", owner)
		}
		return nil
	})
	p.produce(t, 100)
	testtool.Eventually(t, limit, func() error {
		got, _ := l.distinct()
		n := countRecords(t, out)
		if got+n != 300*parts {
			return fmt.Errorf("ours received %d, Java %d, of %d", got, n, 300*parts)
		}
		return nil
	})
	b.stop(t)
	waitOwned(t, parts/2, a)
	if err := java.Stop(30 * time.Second); err != nil {
		t.Fatal(err)
	}
	waitOwned(t, parts, a)
	p.produce(t, 100)
	testtool.Eventually(t, limit, func() error {
		if got, _ := l.distinct(); got+countRecords(t, out) != 400*parts {
			return fmt.Errorf("ours received %d, Java %d, of %d", got, countRecords(t, out), 400*parts)
		}
		return nil
	})
	a.stop(t)
	if got := p.committed(); got != 400*parts {
		t.Errorf("committed offsets add up to %d, want %d", got, 400*parts)
	}
	if distinct, deliveries := l.distinct(); distinct != deliveries {
		t.Errorf("%d records were delivered %d times", distinct, deliveries)
	}
	if left, _, err := p.zk.Children("/kafka/consumers/g/ids"); err != nil || len(left) != 0 {
		t.Errorf("members left behind: %v %v", left, err)
	}
}

func countRecords(t *testing.T, file string) (n int) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		return 0
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var line struct{ Offset *int64 }
		if json.Unmarshal(s.Bytes(), &line) == nil && line.Offset != nil {
			n++
		}
	}
	return n
}

// A member that loses ZooKeeper for longer than its session stops reading, another takes over, and it comes back.
func TestSessionExpiry(t *testing.T) {
	onEach(t, sessionExpiry)
}

func sessionExpiry(t *testing.T, p *peer) {
	proxy := startProxy(t, p.zookeeper)
	l := newLedger()
	p.produce(t, 10)
	short := func(c *zkconsumer.Config) { c.SessionTimeout = 4 * time.Second }
	a := p.start(t, l, "a", proxy.addr+"/kafka", short)
	l.wait(t, 10*parts)
	b := p.start(t, l, "b", p.zookeeper+"/kafka", short)
	waitOwned(t, parts/2, a, b)

	proxy.cut(true)
	waitOwned(t, parts, b) // a's session was expired by the server
	before := l.count("a")
	p.produce(t, 10)
	l.wait(t, 20*parts)
	if after := l.count("a"); after != before {
		t.Errorf("the member that was cut off read %d records after its partitions had gone to another", after-before)
	}
	proxy.cut(false)
	waitOwned(t, parts/2, a, b)
	p.produce(t, 10)
	l.wait(t, 30*parts)
	if l.count("a") == before {
		t.Error("the member read nothing after it came back")
	}
	a.stop(t)
	b.stop(t)
	if got := p.committed(); got != 30*parts {
		t.Errorf("committed offsets add up to %d, want %d", got, 30*parts)
	}
}

func (l *ledger) count(who string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.by[who]
}

// A reconnect within the session disturbs nobody: nothing is read twice and nothing is claimed again.
func TestReconnect(t *testing.T) {
	onEach(t, reconnect)
}

func reconnect(t *testing.T, p *peer) {
	proxy := startProxy(t, p.zookeeper)
	l := newLedger()
	a := p.start(t, l, "a", proxy.addr+"/kafka", func(c *zkconsumer.Config) { c.SessionTimeout = 20 * time.Second })
	waitOwned(t, parts, a)
	p.produce(t, 10)
	l.wait(t, 10*parts)
	_, stat, err := p.zk.Get("/kafka/consumers/g/owners/t/0")
	if err != nil {
		t.Fatal(err)
	}
	proxy.cut(true)
	proxy.cut(false)
	p.produce(t, 10)
	l.wait(t, 20*parts)
	if _, err := kadm.NewClient(p.producer).CreatePartitions(t.Context(), 1, topic); err != nil {
		t.Fatal(err)
	}
	waitOwned(t, parts+1, a) // the watch outlived the connection
	a.stop(t)
	if distinct, deliveries := l.distinct(); distinct != deliveries {
		t.Errorf("%d records were delivered %d times", distinct, deliveries)
	}
	if stat.EphemeralOwner == 0 {
		t.Error("the owner node was not ephemeral")
	}
}

// A failing handler ends the member, and its record is read again by the next.
func TestHandlerFails(t *testing.T) {
	onEach(t, handlerFails)
}

func handlerFails(t *testing.T, p *peer) {
	l := newLedger()
	p.produce(t, 10)
	boom := fmt.Errorf("boom")
	a := p.start(t, l, "a", p.zookeeper+"/kafka", func(c *zkconsumer.Config) {
		c.Handle = func(_ context.Context, _ int, r *kgo.Record) error {
			if r.Offset == 5 {
				return boom
			}
			l.add("a", r.Partition, r.Offset)
			return nil
		}
	})
	if err := <-a.done; err != boom {
		t.Fatalf("got %v, want the handler's error", err)
	}
	b := p.start(t, l, "b", p.zookeeper+"/kafka", nil)
	l.wait(t, 10*parts)
	b.stop(t)
	if distinct, deliveries := l.distinct(); distinct != deliveries {
		t.Errorf("%d records were delivered %d times", distinct, deliveries)
	}
}

func TestNoZooKeeper(t *testing.T) {
	c, err := zkconsumer.New(zkconsumer.Config{ZooKeeper: "127.0.0.1:1", Group: "g", Topics: map[string]int{topic: 1},
		Handle: func(context.Context, int, *kgo.Record) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	cancel()
	if err := <-done; err != context.Canceled {
		t.Errorf("got %v", err)
	}
}

// proxy passes TCP on until it is cut: then every connection breaks and new ones are refused.
type proxy struct {
	addr, to string
	mu       sync.Mutex
	off      bool
	conns    map[net.Conn]bool
	wg       sync.WaitGroup
}

func startProxy(t *testing.T, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{addr: l.Addr().String(), to: to, conns: map[net.Conn]bool{}}
	p.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.serve(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.cut(true)
		p.wg.Wait()
	})
	return p
}

func (p *proxy) cut(off bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.off = off
	if off {
		for c := range p.conns {
			c.Close()
		}
	}
}

func (p *proxy) track(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.off {
		p.conns[c] = true
	}
	return !p.off
}

func (p *proxy) serve(in net.Conn) {
	defer in.Close()
	out, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer out.Close()
	if !p.track(in) || !p.track(out) {
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.Copy(out, in); out.Close() })
	_, _ = io.Copy(in, out)
	in.Close()
	wg.Wait()
}

// built is the barnabas binary of this run, made when the first test asks for it.
var built struct {
	once sync.Once
	dir  string
	err  error
}

func barnabas(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "barnabas-test-"); built.err != nil {
			return
		}
		if out, err := exec.Command("go", "build", "-o", filepath.Join(built.dir, "barnabas"), "../../cmd/barnabas").CombinedOutput(); err != nil {
			built.err = fmt.Errorf("build: %w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.dir, "barnabas")
}

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if built.dir != "" {
			_ = os.RemoveAll(built.dir) // a left-over folder for temporary files
		}
		os.Exit(code)
	}))
}
