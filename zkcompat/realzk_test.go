package zkcompat_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/zkcompat/jute"
)

// tool finds a folder that make tools fetched; without it the test is skipped by name, and fails under CI.
func tool(t testing.TB, name string) string {
	t.Helper()
	dir := os.Getenv("BARNABAS_TOOLS")
	if dir == "" {
		_, here, _, _ := runtime.Caller(0)
		dir = filepath.Join(filepath.Dir(here), "..", ".tools")
	}
	dir = filepath.Join(dir, filepath.FromSlash(name))
	if _, err := os.Stat(dir); err != nil {
		missing(t, fmt.Sprintf("needs %s, which make tools fetches", dir))
	}
	return dir
}

func missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// startZooKeeper runs a real standalone ZooKeeper 3.9.5 on a free port until the test ends.
func startZooKeeper(t testing.TB) (addr string) {
	t.Helper()
	lib := tool(t, "zookeeper-3.9.5/lib")
	java, err := exec.LookPath("java")
	if err != nil {
		missing(t, "needs java")
	}
	dir := t.TempDir()
	for range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		_ = l.Close()
		cfg := filepath.Join(dir, "zoo.cfg")
		text := fmt.Sprintf("tickTime=2000\ndataDir=%s\nclientPort=%d\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\nmaxClientCnxns=0\n",
			filepath.Join(dir, "data"), port)
		if err := os.WriteFile(cfg, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		log, err := os.Create(filepath.Join(dir, "zk.log"))
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no",
			"-cp", filepath.Join(lib, "*"), "org.apache.zookeeper.server.ZooKeeperServerMain", cfg)
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		exited := make(chan struct{})
		go func() { _ = cmd.Wait(); close(exited) }()
		stop := func() { _ = cmd.Process.Kill(); <-exited; _ = log.Close() }
		addr = fmt.Sprintf("127.0.0.1:%d", port)
		if answers(addr, exited) {
			t.Cleanup(stop)
			return addr
		}
		stop()
	}
	out, _ := os.ReadFile(filepath.Join(dir, "zk.log"))
	t.Fatalf("ZooKeeper does not start:\n%s", out)
	return ""
}

// answers waits until a server accepts sessions.
func answers(addr string, exited <-chan struct{}) bool {
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); {
		select {
		case <-exited:
			return false
		case <-time.After(100 * time.Millisecond):
		}
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			continue
		}
		req := jute.ConnectRequest{TimeoutMs: 4000, Password: make([]byte, 16)}
		b, start := jute.BeginFrame(nil)
		_, _ = nc.Write(jute.EndFrame(req.Append(b), start))
		_ = nc.SetReadDeadline(time.Now().Add(5 * time.Second))
		n, _ := nc.Read(make([]byte, 64))
		_ = nc.Close()
		if n > 0 {
			return true
		}
	}
	return false
}
