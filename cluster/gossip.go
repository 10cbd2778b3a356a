package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/barnabas-mq/barnabas/internal/id"
)

// GossipConfig describes discovery.
type GossipConfig struct {
	// Seeds are cluster addresses, "host:port", of which any one leads to all peers.
	Seeds []string
	// Gossip, Probe and PushPull are memberlist's intervals. Defaults 1 s, 5 s, 30 s: discovery is not liveness.
	Gossip, Probe, PushPull time.Duration
}

func (c GossipConfig) withDefaults() GossipConfig {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.Gossip, time.Second)
	def(&c.Probe, 5*time.Second)
	def(&c.PushPull, 30*time.Second)
	return c
}

// Gossip finds peers with memberlist over the cluster port. What it says is a hint: liveness is the broker report.
//
// Goroutines: two that accept, one per inbound connection and per address written to, one that joins; Stop waits for them.
// memberlist's own end shortly after.
type Gossip struct {
	c   *Cluster
	cfg GossipConfig
	log *slog.Logger
	m   *memberlist.Memberlist
	t   *gossipTransport

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	update chan struct{} // buffered 1: self has changed

	mu      sync.Mutex
	peers   map[id.DirectoryID]Identity
	addrs   map[string]string // by name, of all members as memberlist dials them: its own Node is written while others read it
	changed chan struct{}
}

// StartGossip begins discovery on a started port.
func (c *Cluster) StartGossip(cfg GossipConfig) (*Gossip, error) {
	g := &Gossip{c: c, cfg: cfg.withDefaults(), log: c.log, update: make(chan struct{}, 1), peers: map[id.DirectoryID]Identity{},
		addrs: map[string]string{}, changed: make(chan struct{})}
	g.ctx, g.cancel = context.WithCancel(c.ctx)
	ip, port, err := gossipAddr(c.Self().Addr)
	if err != nil {
		return nil, err
	}
	g.t = newGossipTransport(c, ip, port)
	conf := memberlist.DefaultLANConfig()
	conf.Name, conf.Transport = string(c.cfg.Directory), g.t
	conf.BindPort, conf.AdvertiseAddr, conf.AdvertisePort = port, ip.String(), port
	conf.Delegate, conf.Events, conf.Alive = g, g, g
	conf.DisableTcpPings, conf.EnableCompression = true, false
	conf.GossipInterval, conf.ProbeInterval, conf.ProbeTimeout, conf.PushPullInterval = g.cfg.Gossip, g.cfg.Probe, g.cfg.Probe/2, g.cfg.PushPull
	conf.TCPTimeout, conf.DeadNodeReclaimTime = 2*time.Second, time.Second
	conf.LogOutput = gossipLog{c.log}
	if g.m, err = memberlist.Create(conf); err != nil {
		_ = g.t.Shutdown()
		return nil, fmt.Errorf("cluster: memberlist: %w", err)
	}
	c.mu.Lock()
	c.told = append(c.told, func() {
		select {
		case g.update <- struct{}{}:
		default:
		}
	})
	c.mu.Unlock()
	g.wg.Go(g.run)
	return g, nil
}

// gossipAddr takes the advertised address apart; memberlist wants an IP. An address that binds every interface is known to
// nobody: the first address of this machine stands for it.
func gossipAddr(addr string) (net.IP, int, error) {
	host, p, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, 0, fmt.Errorf("cluster: advertised address %q: %w", addr, err)
	}
	port, err := strconv.Atoi(p)
	if err != nil {
		return nil, 0, fmt.Errorf("cluster: advertised address %q: %w", addr, err)
	}
	a, err := net.ResolveIPAddr("ip", host)
	if err != nil {
		return nil, 0, fmt.Errorf("cluster: advertised address %q: %w", addr, err)
	}
	if a.IP != nil && !a.IP.IsUnspecified() {
		return a.IP, port, nil
	}
	locals, err := net.InterfaceAddrs()
	if err != nil {
		return nil, 0, fmt.Errorf("cluster: no address to advertise: %w", err)
	}
	best := net.IPv4(127, 0, 0, 1)
	for _, l := range locals {
		if n, ok := l.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			best = n.IP
			break
		}
	}
	return best, port, nil
}

// Stop says goodbye to the peers and ends discovery. Call it before Cluster.Stop.
func (g *Gossip) Stop() error {
	g.cancel()
	g.wg.Wait()
	leave := g.m.Leave(500 * time.Millisecond)
	if len(g.m.Members()) <= 1 {
		leave = nil // nobody to tell
	}
	err := errors.Join(leave, g.m.Shutdown())
	g.t.wait()
	return err
}

// Peers returns what is known of the other nodes, by directory, and a channel that is closed when that changes.
func (g *Gossip) Peers() ([]Identity, <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	ps := make([]Identity, 0, len(g.peers))
	for _, p := range g.peers {
		ps = append(ps, p)
	}
	slices.SortFunc(ps, func(a, b Identity) int { return strings.Compare(string(a.Directory), string(b.Directory)) })
	return ps, g.changed
}

// run joins the seeds until a peer is there, and again from time to time those that are missing: two halves that lost
// each other find together.
func (g *Gossip) run() {
	pause := 200 * time.Millisecond
	for {
		if seeds := g.missing(); len(seeds) > 0 {
			if _, err := g.m.Join(seeds); err != nil && g.ctx.Err() == nil {
				g.log.Debug("cluster: some seeds did not answer", "err", err)
			}
		}
		if peers, _ := g.Peers(); len(peers) > 0 || len(g.cfg.Seeds) == 0 {
			pause = 30 * time.Second
		} else {
			pause = min(2*pause, 5*time.Second)
		}
		timer := time.NewTimer(pause)
		select {
		case <-g.ctx.Done():
			timer.Stop()
			return
		case <-g.update:
			timer.Stop()
			if err := g.m.UpdateNode(time.Second); err != nil && g.ctx.Err() == nil {
				g.log.Debug("cluster: news of this node not gossiped yet", "err", err)
			}
		case <-timer.C:
		}
	}
}

// missing returns the seeds that are neither this node nor a known peer.
func (g *Gossip) missing() []string {
	known := map[string]bool{g.c.Self().Addr: true}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.peers {
		known[p.Addr] = true
	}
	for _, addr := range g.addrs {
		known[addr] = true
	}
	return slices.DeleteFunc(slices.Clone(g.cfg.Seeds), func(s string) bool { return known[s] })
}

var (
	_ memberlist.Delegate      = (*Gossip)(nil)
	_ memberlist.EventDelegate = (*Gossip)(nil)
	_ memberlist.AliveDelegate = (*Gossip)(nil)
)

// NodeMeta implements memberlist.Delegate: this node's Identity.
func (g *Gossip) NodeMeta(limit int) []byte {
	self := g.c.Self()
	b := self.append(nil)
	if len(b) > limit {
		self.Version = ""
		b = self.append(nil)
	}
	if len(b) > limit {
		return nil // peers then know only that there is a node
	}
	return b
}

// NotifyMsg implements memberlist.Delegate; there are no messages.
func (g *Gossip) NotifyMsg([]byte) {}

// GetBroadcasts implements memberlist.Delegate.
func (g *Gossip) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState implements memberlist.Delegate.
func (g *Gossip) LocalState(bool) []byte { return nil }

// MergeRemoteState implements memberlist.Delegate.
func (g *Gossip) MergeRemoteState([]byte, bool) {}

// NotifyAlive implements memberlist.AliveDelegate: a member of another cluster that was heard of through a stranger is not
// let in.
func (g *Gossip) NotifyAlive(n *memberlist.Node) error {
	p, ok := identityOf(n)
	if self := g.c.Self(); ok && p.ClusterID != "" && self.ClusterID != "" && p.ClusterID != self.ClusterID {
		return fmt.Errorf("node %s belongs to cluster %s", n.Name, p.ClusterID)
	}
	return nil
}

// NotifyJoin implements memberlist.EventDelegate.
func (g *Gossip) NotifyJoin(n *memberlist.Node) { g.NotifyUpdate(n) }

// NotifyUpdate implements memberlist.EventDelegate.
func (g *Gossip) NotifyUpdate(n *memberlist.Node) {
	p, ok := identityOf(n)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.addrs[n.Name] = n.Address()
	if !ok || p.Directory == g.c.cfg.Directory {
		return
	}
	g.peers[p.Directory] = p
	g.changedLocked()
}

// NotifyLeave implements memberlist.EventDelegate.
func (g *Gossip) NotifyLeave(n *memberlist.Node) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.addrs, n.Name)
	delete(g.peers, id.DirectoryID(n.Name))
	g.changedLocked()
}

func (g *Gossip) changedLocked() {
	close(g.changed)
	g.changed = make(chan struct{})
}

func identityOf(n *memberlist.Node) (Identity, bool) {
	r := &reader{b: n.Meta}
	p := readIdentity(r)
	return p, !r.bad && string(p.Directory) == n.Name
}

// gossipLog turns memberlist's lines into log records: "[WARN] memberlist: text".
type gossipLog struct{ log *slog.Logger }

func (l gossipLog) Write(b []byte) (int, error) {
	line := string(bytes.TrimSpace(b))
	level := slog.LevelDebug
	refuting := strings.Contains(line, "memberlist: Refuting ") // what others remember of us: so begins every restart
	if !refuting && (strings.Contains(line, "[ERR]") || strings.Contains(line, "[WARN]")) {
		level = slog.LevelInfo // discovery is never urgent
	}
	if i := strings.Index(line, "memberlist: "); i >= 0 {
		line = line[i:]
	}
	l.log.Log(context.Background(), level, line)
	return len(b), nil
}
