package devcluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// child is one running node. err may be read once done is closed.
type child struct {
	nodeManifest
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	err  error
}

// supervisor owns the children and the goroutines that wait for them.
type supervisor struct {
	cfg      Config
	dir      *directory
	children []*child
	stopping chan struct{}
	release  chan struct{} // ends the thread that started the children
	wg       sync.WaitGroup
}

// start runs every node. On failure the ones that were started are stopped.
func start(c Config, dir *directory) (*supervisor, error) {
	s := &supervisor{cfg: c, dir: dir, stopping: make(chan struct{}), release: make(chan struct{})}
	started := make(chan error, 1)
	s.wg.Go(func() {
		// The children get SIGTERM when the thread that started them ends: it must live as long as the supervisor, so that
		// they stop when dev itself is killed, and not before.
		runtime.LockOSThread()
		started <- s.startAll()
		<-s.release
	})
	if err := <-started; err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func (s *supervisor) startAll() error {
	for _, n := range s.dir.manifest.Nodes {
		if err := s.startOne(n); err != nil {
			return fmt.Errorf("start node %d: %w", n.ID, err)
		}
	}
	return nil
}

func (s *supervisor) startOne(n nodeManifest) error {
	ch := &child{nodeManifest: n, log: s.dir.node(n.ID, logName), done: make(chan struct{})}
	out, err := os.OpenFile(ch.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer out.Close() // the child has its own
	ch.cmd = exec.Command(s.cfg.Executable, "server", "--config", s.dir.node(n.ID, configName))
	ch.cmd.Stdout, ch.cmd.Stderr = out, out
	ch.cmd.Env = cleanEnv(os.Environ())
	// A group of its own: a Ctrl-C in the terminal reaches dev only, which then stops the nodes.
	ch.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := ch.cmd.Start(); err != nil {
		return err
	}
	s.children = append(s.children, ch)
	s.wg.Go(func() {
		ch.err = ch.cmd.Wait()
		close(ch.done)
	})
	return nil
}

// cleanEnv drops configuration keys from the environment: BARNABAS_LOG_DIRS would put all nodes into one directory.
func cleanEnv(env []string) []string {
	var out []string
	for _, kv := range env {
		if !strings.HasPrefix(kv, "BARNABAS_") || strings.HasPrefix(kv, "BARNABAS_LOG_LEVEL=") || strings.HasPrefix(kv, "BARNABAS_LOG_FORMAT=") {
			out = append(out, kv)
		}
	}
	return out
}

func (s *supervisor) cluster() Cluster {
	at := func(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }
	var c Cluster
	for _, ch := range s.children {
		c.Nodes = append(c.Nodes, Node{ID: ch.ID, PID: ch.cmd.Process.Pid, Kafka: at(ch.Kafka), ZooKeeper: at(ch.ZooKeeper),
			Admin: at(ch.Admin), Config: s.dir.node(ch.ID, configName)})
	}
	return c
}

// waitReady asks each node's /readyz until all say yes, one ends, or the time is up.
func (s *supervisor) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.ReadyTimeout, fmt.Errorf("not ready within %s", s.cfg.ReadyTimeout))
	defer cancel()
	client := &http.Client{Timeout: 2 * time.Second}
	defer client.CloseIdleConnections()
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for _, ch := range s.children {
		for reason := ""; ; {
			if err := s.anyDead(); err != nil {
				return err
			}
			ok, why := isReady(ctx, client, ch.Admin)
			if ok {
				break
			}
			if ctx.Err() == nil { // else it only says that the time is up
				reason = why
			}
			select {
			case <-poll.C:
			case <-ctx.Done():
				if err := s.anyDead(); err != nil {
					return err
				}
				if context.Cause(ctx) == context.Canceled {
					return context.Canceled
				}
				return fmt.Errorf("node %d: %w: %s\n%s", ch.ID, context.Cause(ctx), reason, tail(ch.log))
			}
		}
	}
	return nil
}

// isReady asks one node; reason says why it is not ready.
func isReady(ctx context.Context, client *http.Client, port int) (ok bool, reason string) {
	url := "http://" + net.JoinHostPort(loopback, strconv.Itoa(port)) + "/readyz"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false, err.Error()
	}
	resp, err := client.Do(req)
	if err != nil {
		return false, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err != nil {
		return false, err.Error()
	}
	return resp.StatusCode == http.StatusOK, strings.TrimSpace(string(body))
}

func (s *supervisor) anyDead() error {
	for _, ch := range s.children {
		select {
		case <-ch.done:
			return fmt.Errorf("node %d ended before it served (%s)\n%s", ch.ID, ch.how(), tail(ch.log))
		default:
		}
	}
	return nil
}

// how describes the end of a child.
func (ch *child) how() string {
	if ch.err == nil {
		return "exit status 0"
	}
	return ch.err.Error()
}

// tail returns the last lines of a node's log, for an error message.
func tail(file string) string {
	f, err := os.Open(file)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > 4096 {
		if _, err := f.Seek(-4096, io.SeekEnd); err != nil {
			return err.Error()
		}
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimRight(text, "\n"), []byte("\n"))
	return "last lines of " + file + ":\n  " + string(bytes.Join(lines[max(0, len(lines)-12):], []byte("\n  ")))
}

// reportDeaths logs one line for each child that ends before the cluster is stopped.
func (s *supervisor) reportDeaths() {
	for _, ch := range s.children {
		s.wg.Go(func() {
			select {
			case <-s.stopping:
			case <-ch.done:
				select {
				case <-s.stopping: // it ended because it was stopped
				default:
					s.cfg.Log.Warn(fmt.Sprintf("node %d ended (%s) and is left dead; start it again with: %s server --config %s",
						ch.ID, ch.how(), s.cfg.Executable, s.dir.node(ch.ID, configName)), "pid", ch.cmd.Process.Pid)
				}
			}
		})
	}
}

// stop ends the children that still run, all at once, and waits for everything that the supervisor started.
func (s *supervisor) stop() {
	close(s.stopping)
	timeout := time.NewTimer(s.cfg.StopTimeout)
	defer timeout.Stop()
	for _, ch := range s.children {
		_ = ch.cmd.Process.Signal(syscall.SIGTERM) // it has ended already when this fails
	}
	expired := false
	for _, ch := range s.children {
		if !expired {
			select {
			case <-ch.done:
				continue
			case <-timeout.C:
				expired = true
			}
		}
		select {
		case <-ch.done:
			continue
		default:
		}
		s.cfg.Log.Warn(fmt.Sprintf("node %d did not stop within %s and was killed", ch.ID, s.cfg.StopTimeout), "pid", ch.cmd.Process.Pid)
		_ = ch.cmd.Process.Kill()
		<-ch.done
	}
	close(s.release)
	s.wg.Wait()
}
