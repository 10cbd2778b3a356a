package integration

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/barnabas-mq/barnabas/integration/harness"
	"github.com/barnabas-mq/barnabas/internal/testtool"
)

// A ZooKeeper session lives as long as its client does, whatever happens to nodes (cases 1, 18 and 19 of old servers'
// faults); one whose client is gone ends, with its ephemerals.

const zkSession = 20 * time.Second

type quietZK struct{}

func (quietZK) Printf(string, ...any) {}

func dialZK(t *testing.T, addrs ...string) *zk.Conn {
	t.Helper()
	c, _, err := zk.Connect(addrs, zkSession, zk.WithLogInfo(false), zk.WithLogger(quietZK{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func zookeepers(c *harness.Cluster) []string { return strings.Split(c.ZooKeeper(), ",") }

// creator makes sequential nodes, each with a tag of its own. An error leaves open whether the node was made, never how
// many.
type creator struct {
	made, unknown map[string]bool
}

func (cr *creator) run(c *zk.Conn, name string, stop <-chan struct{}) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		tag := fmt.Sprintf("%s-%d", name, i)
		if _, err := c.Create("/seq/s-", []byte(tag), zk.FlagSequence, zk.WorldACL(zk.PermAll)); err != nil {
			cr.unknown[tag] = true
			time.Sleep(20 * time.Millisecond)
		} else {
			cr.made[tag] = true
		}
	}
}

func TestSessionsOverFailOvers(t *testing.T) {
	c := harness.Start(t, harness.Options{Nodes: 3})
	addrs := zookeepers(c)
	acl := zk.WorldACL(zk.PermAll)
	admin := dialZK(t, addrs...)
	for _, p := range []string{"/live", "/seq"} {
		if _, err := admin.Create(p, nil, 0, acl); err != nil {
			t.Fatal(err)
		}
	}
	// Idle sessions, each with an ephemeral, spread over the nodes.
	var idle []*zk.Conn
	var ids []int64
	for i := range 9 {
		s := dialZK(t, addrs[i%3], addrs[(i+1)%3], addrs[(i+2)%3])
		if _, err := s.Create(fmt.Sprintf("/live/%d", i), nil, zk.FlagEphemeral, acl); err != nil {
			t.Fatal(err)
		}
		idle, ids = append(idle, s), append(ids, s.SessionID())
	}
	// Writers.
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var writers []*creator
	for i := range 3 {
		cr := &creator{made: map[string]bool{}, unknown: map[string]bool{}}
		writers = append(writers, cr)
		conn := dialZK(t, addrs...)
		wg.Go(func() { cr.run(conn, fmt.Sprintf("w%d", i), stop) })
	}
	leader := c.Node(harness.Controller(t, c.Brokers()))
	leader.Kill()
	time.Sleep(4 * time.Second) // faults take time: an election, and what it does to sessions
	leader.Start()
	c.AwaitServing()
	frozen := c.Node(harness.Controller(t, c.Brokers()))
	frozen.Pause()
	time.Sleep(5 * time.Second)
	frozen.Resume()
	c.AwaitServing()
	close(stop)
	wg.Wait()

	testtool.Eventually(t, harness.StartLimit, func() error {
		for i, s := range idle {
			_, st, err := s.Exists(fmt.Sprintf("/live/%d", i))
			switch {
			case errors.Is(err, zk.ErrConnectionClosed), errors.Is(err, zk.ErrNoServer):
				return err
			case err != nil || s.SessionID() != ids[i]:
				t.Fatalf("session %d: %x became %x, %v", i, ids[i], s.SessionID(), err)
			case st == nil || st.EphemeralOwner != ids[i]:
				t.Fatalf("session %d lives, its ephemeral does not: %+v", i, st)
			}
		}
		return nil
	})
	var names []string
	testtool.Eventually(t, harness.StartLimit, func() error {
		if _, err := admin.Sync("/seq"); err != nil { // the node that was frozen serves what it has, and may be behind
			return err
		}
		var err error
		names, _, err = admin.Children("/seq")
		return err
	})
	counts := map[string]int{}
	for _, n := range names {
		data, _, err := admin.Get("/seq/" + n)
		if err != nil {
			t.Fatal(err)
		}
		counts[string(data)]++
	}
	made := 0
	for _, w := range writers {
		made += len(w.made)
		for tag := range w.made {
			if counts[tag] != 1 {
				t.Errorf("%s was answered and is there %d times", tag, counts[tag])
			}
		}
		for tag := range w.unknown {
			if counts[tag] > 1 {
				t.Errorf("%s was sent once and is there %d times", tag, counts[tag])
			}
		}
	}
	t.Logf("%d sequential creates were answered over both faults", made)
}

// A node that is cut off loses its ZooKeeper clients before anybody sees their sessions end: so no consumer reads on while
// another takes its partitions.
func TestCutOffNodeLetsItsClientsGo(t *testing.T) {
	c := harness.Start(t, harness.Options{Nodes: 3, Proxied: true})
	controller := harness.Controller(t, c.Brokers())
	for _, node := range []*harness.Node{c.Node(controller), c.Node(controller%3 + 1)} {
		t.Run(fmt.Sprintf("node %d, controller %v", node.ID, node.ID == controller), func(t *testing.T) {
			var others []string
			var elsewhere []string
			for _, n := range c.Nodes {
				if n != node {
					others, elsewhere = append(others, n.Name), append(elsewhere, n.ZooKeeper)
				}
			}
			client, events, err := zk.Connect([]string{node.ZooKeeper}, zkSession, zk.WithLogInfo(false), zk.WithLogger(quietZK{}))
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			path := fmt.Sprintf("/cut-%d", node.ID)
			if _, err := client.Create(path, nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
				t.Fatal(err)
			}
			watcher := dialZK(t, elsewhere...)
			if _, err := watcher.Sync("/"); err != nil {
				t.Fatal(err)
			}
			_, _, gone, err := watcher.ExistsW(path)
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			c.Net.Isolate(node.Name, others...)
			defer c.Net.Heal()
			var left, ended time.Duration
			for ended == 0 {
				select {
				case e := <-events:
					if e.State == zk.StateDisconnected && left == 0 {
						left = time.Since(start)
					}
				case e := <-gone:
					ended = time.Since(start)
					if e.Type != zk.EventNodeDeleted { // the watcher itself was moved: ask again
						there := true
						testtool.Eventually(t, harness.StartLimit, func() (err error) {
							there, _, gone, err = watcher.ExistsW(path)
							return err
						})
						if there {
							ended = 0
						}
					}
				case <-time.After(harness.StartLimit):
					t.Fatalf("the session of a cut-off client does not end; its connection was closed after %v", left)
				}
			}
			if left == 0 || left > ended {
				t.Errorf("the client was let go after %v, its session ended for all after %v", left, ended)
			}
			t.Logf("the client was let go after %v, its session of %v ended after %v", left, zkSession, ended)
			c.Net.Heal()
			c.AwaitServing()
		})
	}
}
