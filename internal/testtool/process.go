package testtool

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Process is a program that a test started. It is killed and waited for when the test ends, and the end of its log is
// shown when the test failed. Methods may be called from any goroutine of the test.
type Process struct {
	Name string // for messages
	Log  string // the file with its standard output and error
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // what Wait said; read after done
}

// Start starts the command with its output in a log file in a Folder of its own. The command's Stdout and Stderr are
// left alone when set.
func Start(t testing.TB, name string, cmd *exec.Cmd) *Process {
	t.Helper()
	p, err := StartIn(Folder(t), name, cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("%s: end of %s:\n%s", p.Name, p.Log, p.Tail(60))
		}
	})
	return p
}

// StartIn is Start for a caller that ends the process itself.
func StartIn(dir, name string, cmd *exec.Cmd) (*Process, error) {
	p := &Process{Name: name, Log: filepath.Join(dir, name+".log"), cmd: cmd, done: make(chan struct{})}
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("cannot open the log of %s: %w", name, err)
	}
	defer log.Close() // the child has its own descriptor
	if cmd.Stdout == nil {
		cmd.Stdout = log
	}
	if cmd.Stderr == nil {
		cmd.Stderr = log
	}
	dieWithParent(cmd)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", name, err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Folder returns a new folder for data and logs, removed when the test passed and kept, with its name in the test's log, when
// it failed or BARNABAS_KEEP is set. It lies under BARNABAS_LOGS, or else under the system's folder for temporary files.
func Folder(t testing.TB) string {
	t.Helper()
	parent := os.Getenv("BARNABAS_LOGS")
	if parent != "" {
		if err := os.MkdirAll(parent, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp(parent, strings.ReplaceAll(t.Name(), "/", "_")+"-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() || os.Getenv("BARNABAS_KEEP") != "" {
			t.Logf("kept: %s", dir)
		} else if err := os.RemoveAll(dir); err != nil {
			t.Logf("cannot remove the test's folder: %v", err)
		}
	})
	return dir
}

// Pid returns the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Alive reports whether the process has not ended.
func (p *Process) Alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Kill ends the process with SIGKILL and waits for its end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // fails only when it has ended
	<-p.done
}

// Signal sends a signal; SIGSTOP and SIGCONT freeze and thaw.
func (p *Process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Stop asks the process to end with SIGTERM and returns how it ended; after the limit it is killed and an error returned.
func (p *Process) Stop(limit time.Duration) error {
	_ = p.Signal(syscall.SIGTERM)
	return p.WaitFor(limit)
}

// WaitFor returns how the process ended; after the limit it is killed and an error returned.
func (p *Process) WaitFor(limit time.Duration) error {
	select {
	case <-p.done:
		return p.err
	case <-time.After(limit):
		p.Kill()
		return fmt.Errorf("%s did not end within %v and was killed", p.Name, limit)
	}
}

// Tail returns the last lines of the log.
func (p *Process) Tail(lines int) string {
	all, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	at := len(all)
	for i := 0; i <= lines && at > 0; i++ {
		at = max(bytes.LastIndexByte(all[:at], '\n'), 0)
	}
	return string(all[at:])
}

// FreePort returns a loopback TCP port that nobody listens on, outside the range that the kernel gives to outgoing
// connections, so that nothing takes it until the caller's program does. A program that can listen on port 0 should.
func FreePort(t testing.TB) int { return FreePorts(t, 1) }

// FreePorts returns the first of n free ports in a row. No other test of this machine is given them until t ends.
func FreePorts(t testing.TB, n int) int {
	t.Helper()
	for range 1000 {
		first := 15000 + rand.IntN(17000-n)
		if free := reserve(t, first, n); free == nil {
			continue
		} else if t.Cleanup(free); allFree(first, n) {
			return first
		}
	}
	t.Fatalf("found no %d free ports in a row between 15000 and 32000", n)
	return 0
}

// reserve locks ports among the processes that run tests here: what one has found free, another would find free too until the
// first one's program listens. It returns nil when one of them is taken. The locks end with the process at the latest.
func reserve(t testing.TB, first, n int) (release func()) {
	t.Helper()
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("barnabas-ports-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var held []*os.File
	release = func() {
		for _, f := range held {
			f.Close()
		}
	}
	for port := first; port < first+n; port++ {
		f, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(port)), os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, f)
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
			release()
			return nil
		}
	}
	return release
}

func allFree(first, n int) bool {
	for port := first; port < first+n; port++ {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			return false
		}
		l.Close()
	}
	return true
}

// Eventually calls check until it returns nil, and fails the test with its last error when that takes longer than the limit.
func Eventually(t testing.TB, limit time.Duration, check func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still so after %v: %v", limit, err)
		}
		time.Sleep(pause)
	}
}
