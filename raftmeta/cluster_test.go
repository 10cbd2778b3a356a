package raftmeta

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/goleak"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

func TestMain(m *testing.M) {
	// raft leaves these to its own time limits: the monitor of a snapshot transfer and the metrics of the log; and futures without an answer.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/armon/go-metrics.(*InmemSink).AddSample"),
		goleak.IgnoreAnyFunction("github.com/barnabas-mq/barnabas/raftmeta.(*Node).await.func1"))
}

var errCut = errors.New("test: cut")

// mesh joins the nodes of a test: raft connections over loopback, calls in memory. cut stops what from asks of to.
type mesh struct {
	mu     sync.Mutex
	cuts   map[[2]string]bool
	addrs  map[string]string // address -> id
	nodes  map[string]*testNode
	conns  map[*meshConn]struct{}
	faults func(from, to, method string) fault // nil: none
}

// fault is what becomes of one call.
type fault struct {
	dropRequest, dropAnswer, twice bool
	delay                          time.Duration
}

type meshConn struct {
	net.Conn
	m        *mesh
	from, to string
}

func (c *meshConn) Close() error {
	c.m.mu.Lock()
	delete(c.m.conns, c)
	c.m.mu.Unlock()
	return c.Conn.Close()
}

type meshLayer struct {
	net.Listener
	m  *mesh
	id string
}

func (l *meshLayer) Dial(a raft.ServerAddress, d time.Duration) (net.Conn, error) {
	l.m.mu.Lock()
	to := l.m.addrs[string(a)]
	cut := l.m.cuts[[2]string{l.id, to}]
	l.m.mu.Unlock()
	if cut {
		return nil, errCut
	}
	c, err := net.DialTimeout("tcp", string(a), d)
	if err != nil {
		return nil, err
	}
	mc := &meshConn{c, l.m, l.id, to}
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if l.m.cuts[[2]string{l.id, to}] { // cut while it was dialed
		return nil, errors.Join(errCut, c.Close())
	}
	l.m.conns[mc] = struct{}{}
	return mc, nil
}

func (m *mesh) cut(from, to string) {
	m.mu.Lock()
	m.cuts[[2]string{from, to}] = true
	var close []*meshConn
	for c := range m.conns {
		if c.from == from && c.to == to {
			close = append(close, c)
		}
	}
	m.mu.Unlock()
	for _, c := range close {
		_ = c.Close()
	}
}

func (m *mesh) isolate(x string, others []string) {
	for _, o := range others {
		if o != x {
			m.cut(x, o)
			m.cut(o, x)
		}
	}
}

func (m *mesh) heal() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cuts = map[[2]string]bool{}
}

type meshPeers struct {
	m    *mesh
	from string
}

func (p meshPeers) Call(ctx context.Context, to id.DirectoryID, method string, payload []byte) ([]byte, error) {
	p.m.mu.Lock()
	n := p.m.nodes[string(to)]
	cut := p.m.cuts[[2]string{p.from, string(to)}]
	var f fault
	if p.m.faults != nil {
		f = p.m.faults(p.from, string(to), method)
	}
	p.m.mu.Unlock()
	if cut || n == nil || f.dropRequest {
		return nil, errCut
	}
	if f.delay > 0 {
		select {
		case <-time.After(f.delay):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	h := n.Handlers()[method]
	b, err := h(ctx, id.DirectoryID(p.from), payload)
	if f.twice {
		b, err = h(ctx, id.DirectoryID(p.from), payload)
	}
	if f.dropAnswer {
		return nil, errCut
	}
	return b, err
}

type testNode struct {
	*Node
	id string
}

type testCluster struct {
	t    testing.TB
	m    *mesh
	ids  []string
	dirs map[string]string
	addr map[string]string
	tune func(*Config)

	beforeStart func(*Node)
}

// newCluster starts n nodes that bootstrap together, and has the first of them stand for election.
func newCluster(t testing.TB, n int, tune func(*Config)) *testCluster {
	t.Helper()
	c := &testCluster{t: t, tune: tune, dirs: map[string]string{}, addr: map[string]string{},
		m: &mesh{cuts: map[[2]string]bool{}, addrs: map[string]string{}, nodes: map[string]*testNode{}, conns: map[*meshConn]struct{}{}}}
	base := t.TempDir()
	layers := map[string]*meshLayer{}
	for i := range n {
		x := fmt.Sprintf("n%d", i)
		c.ids, c.dirs[x] = append(c.ids, x), filepath.Join(base, x)
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		layers[x] = &meshLayer{ln, c.m, x}
		c.addr[x] = ln.Addr().String()
		c.m.addrs[c.addr[x]] = x
	}
	t.Cleanup(c.stopAll)
	for _, x := range c.ids {
		c.start(x, layers[x])
	}
	c.elect("")
	return c
}

// elect has the survivor with the longest log stand for election now, with TimeoutNow as raft's own transfer of leadership does;
// gone is the leader that was stopped or cut off, if there was one. It is for tests that are not about the timers, which would take
// seconds; when this election fails they decide as ever, so a caller still waits for the leader.
func (c *testCluster) elect(gone string) {
	c.t.Helper()
	var next *testNode
	var last uint64
	for _, n := range c.up() {
		if i := n.inst.Load().r.LastIndex(); n.id != gone && (next == nil || i > last) {
			next, last = n, i
		}
	}
	misses := func() bool {
		f := next.face()
		return f.state == raft.Follower && (f.leader == "" || f.leader == id.DirectoryID(gone))
	}
	for !next.inst.Load().p.timeoutNow(misses) && misses() { // a machine that stands still for 20 ms does not ask at all
	}
}

func (c *testCluster) servers() (s []Server) {
	for _, x := range c.ids {
		s = append(s, Server{id.DirectoryID(x), c.addr[x]})
	}
	return s
}

// start opens the node; layer is nil for a restart, which takes the old address again.
func (c *testCluster) start(x string, layer *meshLayer) *testNode {
	c.t.Helper()
	if layer == nil {
		var ln net.Listener
		eventually(c.t, "the port of "+x+" is free", func() (ok bool) {
			var err error
			ln, err = net.Listen("tcp", c.addr[x])
			return err == nil
		})
		layer = &meshLayer{ln, c.m, x}
	}
	cfg := Config{Dir: c.dirs[x], ID: id.DirectoryID(x), Bootstrap: c.servers(), Stream: layer, Peers: meshPeers{c.m, x},
		Logger: quiet(), TrackHash: true, HeartbeatTimeout: 800 * time.Millisecond, SegmentBytes: 1 << 20}
	if c.tune != nil {
		c.tune(&cfg)
	}
	n, err := New(cfg)
	must(c.t, err)
	tn := &testNode{n, x}
	if c.beforeStart != nil {
		c.beforeStart(n)
	}
	must(c.t, n.Start())
	c.m.mu.Lock()
	c.m.nodes[x] = tn
	c.m.mu.Unlock()
	return tn
}

func (c *testCluster) node(x string) *testNode {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	return c.m.nodes[x]
}

func (c *testCluster) stop(x string) {
	c.m.mu.Lock()
	n := c.m.nodes[x]
	delete(c.m.nodes, x)
	c.m.mu.Unlock()
	if n != nil {
		must(c.t, n.Stop())
	}
}

func (c *testCluster) stopAll() {
	for _, x := range c.ids {
		c.stop(x)
	}
}

func (c *testCluster) up() (ns []*testNode) {
	for _, x := range c.ids {
		if n := c.node(x); n != nil {
			ns = append(ns, n)
		}
	}
	return ns
}

func (c *testCluster) leader() *testNode {
	c.t.Helper()
	var best *testNode
	eventually(c.t, "a leader", func() bool {
		best = nil
		for _, n := range c.up() {
			if t := n.leaderTerm(); t != 0 && (best == nil || t > best.leaderTerm()) {
				best = n
			}
		}
		return best != nil
	})
	return best
}

func (c *testCluster) follower() *testNode {
	l := c.leader()
	for _, n := range c.up() {
		if n.id != l.id {
			return n
		}
	}
	c.t.Fatal("no follower")
	return nil
}

// bootstrapState makes the cluster's first commands.
func (c *testCluster) bootstrapState() {
	c.t.Helper()
	r, err := c.leader().ProposeRaw(c.ctx(), &statepb.Command{Body: &statepb.Command_Bootstrap{
		Bootstrap: &statepb.Bootstrap{ClusterId: "AAAAAAAAAAAAAAAAAAAAAA", Level: 1}}})
	must(c.t, err)
	// ProposeRaw asks again when a leader was lost meanwhile, on a busy machine, and what it asked for may be there then.
	if r.Code != statepb.Code_OK && !strings.Contains(r.Text, "already has the id AAAAAAAAAAAAAAAAAAAAAA") {
		c.t.Fatalf("bootstrap: %v", r)
	}
}

func (c *testCluster) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	c.t.Cleanup(cancel)
	return ctx
}

// register registers a new incarnation of a node's broker and starts its lane.
func (c *testCluster) register(n *testNode) {
	c.t.Helper()
	r, err := n.ProposeRaw(c.ctx(), &statepb.Command{Level: 1, Body: &statepb.Command_RegisterBroker{RegisterBroker: &statepb.RegisterBroker{
		DirectoryId: n.id, Nonce: fmt.Sprint(rand.Uint64()), WantedId: -1, MinLevel: state.MinLevel, MaxLevel: state.MaxLevel}}})
	must(c.t, err)
	if r.Code != statepb.Code_OK {
		c.t.Fatalf("register %s: %v", n.id, r)
	}
	must(c.t, n.StartLane(id.BrokerEpoch(r.Epoch)))
}

func createZnode(path string, seq bool) *statepb.Command {
	return &statepb.Command{Level: 1, Body: &statepb.Command_CreateZnode{CreateZnode: &statepb.CreateZnode{Path: path, Data: []byte("x"), Sequential: seq}}}
}

// converge waits until all nodes have the same index and checks that their hashes are equal.
func (c *testCluster) converge() {
	c.t.Helper()
	eventually(c.t, "equal indexes", func() bool {
		var first *testNode
		for _, n := range c.up() {
			if first == nil {
				first = n
			} else if n.View().Index() != first.View().Index() {
				return false
			}
		}
		return true
	})
	var index id.Index
	var hash uint64
	for _, n := range c.up() {
		i, h := n.Hash()
		if index == 0 {
			index, hash = i, h
		}
		if i != index || h != hash {
			c.t.Fatalf("%s has hash %x at %d, another %x at %d", n.id, h, i, hash, index)
		}
	}
}

func brokerEpoch(r *statepb.Result) id.BrokerEpoch { return id.BrokerEpoch(r.Epoch) }
