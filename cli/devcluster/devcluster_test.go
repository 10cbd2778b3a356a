package devcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/barnabas-mq/barnabas/internal/testtool"
)

// TestMain lets the test binary stand in for barnabas: `server --config FILE` serves /readyz until SIGTERM.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "server" {
		if err := fakeServer(os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func fakeServer(config string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	text, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	if os.Getenv("BARNABAS_LOG_DIRS") != "" {
		return errors.New("the environment of dev reached the node")
	}
	switch os.Getenv("FAKE_MODE") {
	case "die":
		return errors.New("fake fault")
	case "deaf":
		signal.Ignore(syscall.SIGTERM)
		ctx = context.Background()
	}
	if err := Announce(config, os.Getpid()); err != nil {
		return err
	}
	var admin string
	for _, line := range strings.Split(string(text), "\n") {
		if port, ok := strings.CutPrefix(line, "admin.port="); ok {
			admin = "127.0.0.1:" + port
		}
	}
	ready := http.StatusOK
	if os.Getenv("FAKE_MODE") == "slow" {
		ready = http.StatusServiceUnavailable
	}
	srv := &http.Server{Addr: admin, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(ready)
		fmt.Fprint(w, "no leader")
	})}
	go func() {
		<-ctx.Done()
		srv.Close()
	}()
	if err := srv.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// running is a Run in the background.
type running struct {
	cluster Cluster
	cancel  context.CancelFunc
	done    chan error
	log     *testtool.Log
}

func config(t *testing.T, nodes int) Config {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	first := testtool.FreePorts(t, 12)
	return Config{Dir: filepath.Join(t.TempDir(), "dev"), Nodes: nodes, KafkaPort: first, ZooKeeperPort: first + 3, AdminPort: first + 6,
		PeerPort: first + 9, Executable: exe, ReadyTimeout: time.Minute, StopTimeout: 30 * time.Second}
}

func run(t *testing.T, c Config) (*running, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{cancel: cancel, done: make(chan error, 1), log: &testtool.Log{}}
	c.Log = slog.New(slog.NewTextHandler(r.log, nil))
	ready := make(chan Cluster, 1)
	go func() { r.done <- Run(ctx, c, func(cl Cluster) { ready <- cl }) }()
	select {
	case r.cluster = <-ready:
		t.Cleanup(func() { r.stop(t) })
		return r, nil
	case err := <-r.done:
		cancel()
		return nil, err
	}
}

func (r *running) stop(t *testing.T) {
	t.Helper()
	r.cancel()
	select {
	case err, ok := <-r.done:
		if ok && err != nil {
			t.Error(err)
		}
		if ok {
			close(r.done)
		}
	case <-time.After(time.Minute):
		t.Fatal("dev did not stop")
	}
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestThreeNodes(t *testing.T) {
	t.Setenv("BARNABAS_LOG_DIRS", "/somewhere")
	c := config(t, 3)
	r, err := run(t, c)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Read(c.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(got) != fmt.Sprint(r.cluster) || len(got.Nodes) != 3 {
		t.Fatalf("cluster.json %+v, told %+v", got, r.cluster)
	}
	n := got.Nodes[1]
	want := Node{ID: 2, PID: n.PID, Kafka: fmt.Sprintf("127.0.0.1:%d", c.KafkaPort+1), ZooKeeper: fmt.Sprintf("127.0.0.1:%d", c.ZooKeeperPort+1),
		Admin: fmt.Sprintf("127.0.0.1:%d", c.AdminPort+1), Config: filepath.Join(c.Dir, "2", "barnabas.properties")}
	if n != want || !alive(n.PID) {
		t.Errorf("node 2 is %+v, want %+v", n, want)
	}
	text, err := os.ReadFile(filepath.Join(c.Dir, "cluster.json"))
	if err != nil || !strings.Contains(string(text), `"zookeeper": "127.0.0.1:`) {
		t.Errorf("%s %v", text, err)
	}

	// A second dev on the same directory is refused.
	if _, err := run(t, c); err == nil || !strings.Contains(err.Error(), "in use by another") {
		t.Errorf("second dev: %v", err)
	}

	// A node that dies is left dead, with one line that says how to start it; started by hand it gives its new pid.
	if err := syscall.Kill(n.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testtool.Eventually(t, time.Minute, func() error {
		if log := r.log.String(); strings.Count(log, "node 2 ended (signal: killed)") != 1 || !strings.Contains(log, "server --config "+n.Config) {
			return fmt.Errorf("log: %s", log)
		}
		return nil
	})
	byHand := startServer(t, c.Executable, n.Config)
	testtool.Eventually(t, time.Minute, func() error {
		now, err := Read(c.Dir)
		if err != nil || now.Nodes[1].PID != byHand.Pid() {
			return fmt.Errorf("cluster.json has %+v, started %d: %v", now.Nodes, byHand.Pid(), err)
		}
		return nil
	})
	r.stop(t)
	if alive(got.Nodes[0].PID) || alive(got.Nodes[2].PID) || !byHand.Alive() {
		t.Error("dev must stop its own children, and nothing else")
	}
	if _, err := os.Stat(filepath.Join(c.Dir, "cluster.json")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("cluster.json after the end: %v", err)
	}
}

func startServer(t *testing.T, exe, config string) *testtool.Process {
	t.Helper()
	t.Setenv("BARNABAS_LOG_DIRS", "")
	return testtool.Start(t, "by-hand", exec.Command(exe, "server", "--config", config))
}

func TestSameDirectoryAgain(t *testing.T) {
	c := config(t, 3)
	r, err := run(t, c)
	if err != nil {
		t.Fatal(err)
	}
	r.stop(t)
	file := filepath.Join(c.Dir, "2", "barnabas.properties")
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	edited := append(before, []byte("num.partitions=7\n")...)
	if err := os.WriteFile(file, edited, 0o644); err != nil {
		t.Fatal(err)
	}
	again := Config{Dir: c.Dir, Executable: c.Executable, ReadyTimeout: time.Minute, StopTimeout: time.Minute}
	if r, err = run(t, again); err != nil {
		t.Fatal(err)
	}
	if len(r.cluster.Nodes) != 3 || r.cluster.Nodes[0].Kafka != "127.0.0.1:"+strconv.Itoa(c.KafkaPort) {
		t.Errorf("%+v", r.cluster)
	}
	r.stop(t)
	if now, _ := os.ReadFile(file); !bytes.Equal(now, edited) {
		t.Errorf("what was edited by hand is gone:\n%s", now)
	}
	for change, want := range map[string]Config{
		"made with 3 node(s), not 1": {Dir: c.Dir, Nodes: 1}, "--kafka-port": {Dir: c.Dir, KafkaPort: c.KafkaPort + 1},
		"--cluster-port": {Dir: c.Dir, PeerPort: 1}, "1 or 3": {Dir: c.Dir, Nodes: 2},
	} {
		want.Executable = c.Executable
		if _, err := run(t, want); err == nil || !strings.Contains(err.Error(), change) {
			t.Errorf("%s: %v", change, err)
		}
	}
	// A moved directory keeps its ids and gets its paths.
	moved := c.Dir + "-moved"
	if err := os.Rename(c.Dir, moved); err != nil {
		t.Fatal(err)
	}
	again.Dir = moved
	if _, err = run(t, again); err != nil {
		t.Fatal(err)
	}
	now, _ := os.ReadFile(filepath.Join(moved, "2", "barnabas.properties"))
	if want := strings.ReplaceAll(string(edited), c.Dir+"/", moved+"/"); string(now) != want {
		t.Errorf("moved:\n%s\nwant:\n%s", now, want)
	}
}

func TestRefusals(t *testing.T) {
	c := config(t, 1)
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.Dir, "thesis.tex"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := run(t, c); err == nil || !strings.Contains(err.Error(), "thesis.tex") {
		t.Errorf("a directory of somebody else: %v", err)
	}
	if entries, _ := os.ReadDir(c.Dir); len(entries) != 1 {
		t.Errorf("it was written into: %v", entries)
	}

	c = config(t, 3)
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", c.ZooKeeperPort+2))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := run(t, c); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("port %d (ZooKeeper of node 3)", c.ZooKeeperPort+2)) {
		t.Errorf("a port that is taken: %v", err)
	}
	c = config(t, 3)
	c.ZooKeeperPort = c.KafkaPort + 2
	if _, err := run(t, c); err == nil || !strings.Contains(err.Error(), "would be both ZooKeeper of node 1 and Kafka of node 3") {
		t.Errorf("ports that overlap: %v", err)
	}
}

func TestNodeFails(t *testing.T) {
	t.Setenv("FAKE_MODE", "die")
	c := config(t, 3)
	if _, err := run(t, c); err == nil || !strings.Contains(err.Error(), "fake fault") || !strings.Contains(err.Error(), "exit status 1") {
		t.Errorf("%v", err)
	}
	t.Setenv("FAKE_MODE", "slow")
	c = config(t, 1)
	c.ReadyTimeout = 6 * time.Second
	if _, err := run(t, c); err == nil || !strings.Contains(err.Error(), "not ready within 6s: no leader") {
		t.Errorf("%v", err)
	}
}

func TestNodeThatDoesNotStopIsKilled(t *testing.T) {
	t.Setenv("FAKE_MODE", "deaf")
	c := config(t, 1)
	c.StopTimeout = 200 * time.Millisecond
	r, err := run(t, c)
	if err != nil {
		t.Fatal(err)
	}
	pid := r.cluster.Nodes[0].PID
	r.stop(t)
	if alive(pid) || !strings.Contains(r.log.String(), "was killed") {
		t.Errorf("alive %v, log %s", alive(pid), r.log)
	}
}

func TestAnnounceOutsideOfACluster(t *testing.T) {
	for _, file := range []string{"", filepath.Join(t.TempDir(), "server.properties")} {
		if err := Announce(file, 1); err != nil {
			t.Errorf("%q: %v", file, err)
		}
	}
}

// A Ctrl-C while the nodes start leaves nothing running.
func TestInterruptedStart(t *testing.T) {
	t.Setenv("FAKE_MODE", "slow")
	c := config(t, 3)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, c, func(Cluster) { t.Error("a cluster that never served was reported") }) }()
	admin := fmt.Sprintf("127.0.0.1:%d", c.AdminPort+2)
	testtool.Eventually(t, time.Minute, func() error {
		conn, err := net.Dial("tcp", admin)
		if err == nil {
			conn.Close()
		}
		return err
	})
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	for n := range 3 {
		if conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", c.AdminPort+n)); err == nil {
			conn.Close()
			t.Errorf("node %d still listens", n+1)
		}
	}
	if _, err := Read(c.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("cluster.json: %v", err)
	}
}
