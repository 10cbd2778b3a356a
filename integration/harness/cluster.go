// Package harness runs clusters of real barnabas processes for tests: on free loopback ports, each node killed, frozen and
// started again by itself, optionally with every connection between nodes going through a proxy that cuts and delays. For
// tests only; whatever it starts ends with its test.
package harness

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/barnabas-mq/barnabas/integration/proxy"
	"github.com/barnabas-mq/barnabas/internal/testtool"
)

// StartLimit is how long a cluster may take, on a busy machine, until it serves; a start normally takes under two seconds.
const StartLimit = 2 * time.Minute

// Options say what cluster a test wants. The zero value is one node.
type Options struct {
	Nodes      int               // 1 or 3; 0 is 1
	Proxied    bool              // nodes reach each other, and clients reach nodes' Kafka ports, through Cluster.Net
	Properties map[string]string // more configuration of every node
	Race       bool              // a binary with the race detector: slower, and a race ends the node
}

// Cluster is a running cluster.
type Cluster struct {
	Nodes []*Node        // in the order of their ids, from 1
	Net   *proxy.Network // nil unless Proxied; ends are named "1", "2", "3", and "client" for all clients of Kafka ports
	Dir   string
}

// Node is one broker process, over all its runs.
type Node struct {
	ID        int
	Name      string // the ID as text: its name in Cluster.Net
	Kafka     string // host:port that clients use
	ZooKeeper string
	Admin     string
	Config    string // its properties file

	t       testing.TB
	binary  string
	dir     string
	cluster *Cluster
	run     int               // counts starts, for the names of logs
	proc    *testtool.Process // nil before the first start
}

// Start starts a cluster and returns when every node serves and knows the others.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	c := Prepare(t, o)
	for _, n := range c.Nodes {
		n.Start()
	}
	c.AwaitServing()
	return c
}

// Prepare makes a cluster's configuration and starts nothing.
func Prepare(t testing.TB, o Options) *Cluster {
	t.Helper()
	o.Nodes = max(o.Nodes, 1)
	c := &Cluster{Dir: testtool.Folder(t)}
	binary := Binary(t, o.Race)
	first := testtool.FreePorts(t, 4*o.Nodes)
	port := func(kind, node int) string { return fmt.Sprintf("127.0.0.1:%d", first+kind*o.Nodes+node) }
	names, directories := map[string]string{}, make([]string, o.Nodes)
	for i := range o.Nodes {
		directories[i] = rand.Text()
		names[directories[i]] = fmt.Sprint(i + 1)
	}
	peers, kafka := make([]string, o.Nodes), make([]string, o.Nodes)
	if o.Proxied {
		c.Net = proxy.New()
		t.Cleanup(c.Net.Close)
	}
	for i := range o.Nodes {
		peers[i], kafka[i] = port(3, i), port(0, i)
		if o.Proxied {
			name := fmt.Sprint(i + 1)
			peers[i] = c.link(t, "cluster", name, peers[i], proxy.ClusterPeer(names))
			kafka[i] = c.link(t, "kafka", name, kafka[i], proxy.Always("client"))
		}
	}
	clusterID := rand.Text()[:22]
	for i := range o.Nodes {
		n := &Node{ID: i + 1, Name: fmt.Sprint(i + 1), Kafka: kafka[i], ZooKeeper: port(1, i), Admin: port(2, i),
			t: t, binary: binary, cluster: c, dir: filepath.Join(c.Dir, fmt.Sprint(i+1))}
		properties := map[string]string{
			"node.id": n.Name, "log.dirs": filepath.Join(n.dir, "data"),
			"listeners":            "PLAINTEXT://" + port(0, i),
			"advertised.listeners": "PLAINTEXT://" + kafka[i],
			"zookeeper.listener":   n.ZooKeeper, "admin.listener": n.Admin,
			"cluster.listener": port(3, i), "cluster.advertised.listener": peers[i],
			"barnabas.cluster.id": clusterID, "barnabas.directory.id": directories[i],
			"barnabas.voters": voters(directories, peers),
		}
		for k, v := range o.Properties {
			properties[k] = v
		}
		n.configure(properties)
		c.Nodes = append(c.Nodes, n)
	}
	return c
}

func (c *Cluster) link(t testing.TB, kind, name, target string, identify proxy.Identify) string {
	t.Helper()
	addr, err := c.Net.Add(kind, name, target, identify)
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

func voters(directories, peers []string) string {
	var all []string
	for i := range directories {
		all = append(all, directories[i]+"@"+peers[i])
	}
	return strings.Join(all, ",")
}

func (n *Node) configure(properties map[string]string) {
	n.t.Helper()
	var text strings.Builder
	for k, v := range properties {
		fmt.Fprintf(&text, "%s=%s\n", k, v)
	}
	n.Config = filepath.Join(n.dir, "barnabas.properties")
	if err := os.MkdirAll(n.dir, 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(n.Config, []byte(text.String()), 0o644); err != nil {
		n.t.Fatal(err)
	}
}

// Start starts the node's process; it does not wait until it serves.
func (n *Node) Start() {
	n.t.Helper()
	if n.cluster.Net != nil {
		if err := n.cluster.Net.Up(n.Name); err != nil {
			n.t.Fatal(err)
		}
	}
	n.run++
	cmd := exec.Command(n.binary, "server", "--config", n.Config)
	cmd.Env = append(os.Environ(), "GORACE=halt_on_error=1", "GOTRACEBACK=all")
	proc, err := testtool.StartIn(n.dir, fmt.Sprintf("run-%d", n.run), cmd)
	if err != nil {
		n.t.Fatal(err)
	}
	n.proc = proc
	n.t.Cleanup(func() {
		if n.t.Failed() {
			n.t.Logf("node %d, run %s: end of its log:\n%s", n.ID, proc.Name, proc.Tail(40))
		}
		proc.Kill()
		if log := proc.Tail(400); strings.Contains(log, "\npanic: ") || strings.Contains(log, "DATA RACE") || strings.Contains(log, "\nfatal error: ") {
			n.t.Errorf("node %d panicked or raced; end of its log:\n%s", n.ID, log)
		}
	})
}

// Kill ends the node with SIGKILL and returns when it is gone.
func (n *Node) Kill() {
	n.proc.Kill()
	if n.cluster.Net != nil {
		n.cluster.Net.Down(n.Name)
	}
}

// Stop ends the node with SIGTERM; the test fails when it does not end in good order.
func (n *Node) Stop() {
	n.t.Helper()
	if err := n.proc.Stop(time.Minute); err != nil {
		n.t.Errorf("node %d did not stop in good order: %v", n.ID, err)
	}
	if n.cluster.Net != nil {
		n.cluster.Net.Down(n.Name)
	}
}

// Pause freezes the node with SIGSTOP; Resume thaws it.
func (n *Node) Pause() { n.signal(syscall.SIGSTOP) }

// Resume thaws a node after Pause.
func (n *Node) Resume() { n.signal(syscall.SIGCONT) }

func (n *Node) signal(s syscall.Signal) {
	n.t.Helper()
	if err := n.proc.Signal(s); err != nil {
		n.t.Fatalf("node %d: %v: %v", n.ID, s, err)
	}
}

// Alive reports whether the node's process runs.
func (n *Node) Alive() bool { return n.proc != nil && n.proc.Alive() }

// Pid returns the process id of the current run.
func (n *Node) Pid() int { return n.proc.Pid() }

// Log returns the end of the current run's log.
func (n *Node) Log(lines int) string { return n.proc.Tail(lines) }

// Logged returns how many lines of the current run's log hold the texts, all of them.
func (n *Node) Logged(texts ...string) int {
	n.t.Helper()
	data, err := os.ReadFile(n.proc.Log)
	if err != nil {
		n.t.Fatal(err)
	}
	lines := 0
	for line := range strings.Lines(string(data)) {
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
			lines++
		}
	}
	return lines
}

// Node returns the node with the id.
func (c *Cluster) Node(id int) *Node { return c.Nodes[id-1] }

// NodeAt returns the node with the Kafka address.
func (c *Cluster) NodeAt(kafka string) *Node {
	for _, n := range c.Nodes {
		if n.Kafka == kafka {
			return n
		}
	}
	return nil
}

// Brokers returns the Kafka addresses of all nodes.
func (c *Cluster) Brokers() []string {
	var all []string
	for _, n := range c.Nodes {
		all = append(all, n.Kafka)
	}
	return all
}

// Bootstrap returns the Kafka addresses with commas, as tools take them.
func (c *Cluster) Bootstrap() string { return strings.Join(c.Brokers(), ",") }

// ZooKeeper returns the ZooKeeper addresses with commas, as tools take them.
func (c *Cluster) ZooKeeper() string {
	var all []string
	for _, n := range c.Nodes {
		all = append(all, n.ZooKeeper)
	}
	return strings.Join(all, ",")
}

// AwaitServing returns when every living node answers Metadata with all living nodes and a controller.
func (c *Cluster) AwaitServing() {
	t := c.Nodes[0].t
	t.Helper()
	living := 0
	for _, n := range c.Nodes {
		if n.Alive() {
			living++
		}
	}
	for _, n := range c.Nodes {
		if n.Alive() {
			testtool.Eventually(t, StartLimit, func() error { return n.serves(living) })
		}
	}
}

func (n *Node) serves(brokers int) error {
	n.t.Helper()
	if !n.Alive() {
		n.t.Fatalf("node %d ended; end of its log:\n%s", n.ID, n.Log(40))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(n.Kafka), kgo.RequestRetries(0)) // its own pauses grow to seconds
	if err != nil {
		return err
	}
	defer client.Close()
	m, err := kadm.NewClient(client).BrokerMetadata(ctx)
	if err != nil {
		return fmt.Errorf("node %d: %w", n.ID, err)
	}
	if len(m.Brokers) < brokers || m.Controller < 0 {
		return fmt.Errorf("node %d knows %d brokers of %d, controller %d", n.ID, len(m.Brokers), brokers, m.Controller)
	}
	return nil
}

// build remembers binaries, one with and one without the race detector, for the whole run of a test binary.
var build struct {
	sync.Mutex
	done map[bool]string
}

// Binary returns the path of the barnabas binary, built once from this tree, or $BARNABAS_BIN.
func Binary(t testing.TB, race bool) string {
	t.Helper()
	if bin := os.Getenv("BARNABAS_BIN"); bin != "" {
		return bin
	}
	build.Lock()
	defer build.Unlock()
	if bin, ok := build.done[race]; ok {
		return bin
	}
	root := testtool.Root(t)
	bin := filepath.Join(root, "bin", "test", "barnabas")
	args := []string{"build", "-o", bin}
	if race {
		bin += "-race"
		args = []string{"build", "-race", "-o", bin}
	}
	cmd := exec.Command("go", append(args, "./cmd/barnabas")...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cannot build barnabas: %v\n%s", err, out)
	}
	if build.done == nil {
		build.done = map[bool]string{}
	}
	build.done[race] = bin
	return bin
}
