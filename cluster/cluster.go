// Package cluster is the one port between nodes: a listener whose first byte chooses between raft streams, calls and
// memberlist; a handshake that says who is there; multiplexed calls that may be parked for as long as their caller
// waits; broker reports and leases; discovery of peers.
//
// Goroutines: Start begins them, each connection has one that reads and one that writes, each running handler one; Stop
// ends and awaits them all. The node must have stopped serving clients before it calls Stop: from then on the port refuses
// connections, which every other node takes as proof that this process is dead.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/loglimit"
)

// Cluster is one node's cluster port. All methods may be called from any goroutine.
type Cluster struct {
	cfg Config
	log *slog.Logger
	// lines limits those about refused connections.
	lines loglimit.Limit[refusedPeer]

	ctx    context.Context // ended by Stop, its cause is ErrStopped
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	started  bool
	stopped  bool
	ln       net.Listener
	self     Identity
	handlers map[string]handler
	addrs    map[id.DirectoryID]string
	brokers  map[id.BrokerID]id.DirectoryID
	peers    map[peerKey]*peerConn
	served   map[*serverConn]struct{}
	sockets  map[net.Conn]struct{} // accepted, handshake not finished
	lost     []func(Peer)
	told     []func()                      // when self has changed
	acceptor map[byte]func(net.Conn, Peer) // raft and memberlist take their connections here
}

// New checks the configuration; it starts nothing.
func New(cfg Config) (*Cluster, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	c := &Cluster{
		cfg: cfg, log: cfg.Logger,
		self: Identity{ClusterID: cfg.ClusterID, Directory: cfg.Directory, Incarnation: cfg.Incarnation, Broker: id.NoBroker,
			Version: cfg.Version, MinLevel: cfg.MinLevel, MaxLevel: cfg.MaxLevel, Addr: cfg.Advertise},
		handlers: map[string]handler{},
		addrs:    map[id.DirectoryID]string{},
		brokers:  map[id.BrokerID]id.DirectoryID{},
		peers:    map[peerKey]*peerConn{},
		served:   map[*serverConn]struct{}{},
		sockets:  map[net.Conn]struct{}{},
		acceptor: map[byte]func(net.Conn, Peer){},
	}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	return c, nil
}

// Start binds the port and serves it. Handlers may be registered before or after.
func (c *Cluster) Start() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.started || c.stopped {
		return errors.New("cluster: Start was called already")
	}
	ln, err := c.cfg.NewListener(c.cfg.Listen)
	if err != nil {
		return fmt.Errorf("cluster: listen on %s: %w", c.cfg.Listen, err)
	}
	c.started, c.ln = true, ln
	if c.self.Addr == "" {
		c.self.Addr = ln.Addr().String()
	}
	c.wg.Go(func() { c.accept(ln) })
	return nil
}

// Stop closes the port, cancels every running handler and call, and waits for them. It may be called more than once.
func (c *Cluster) Stop() {
	c.mu.Lock()
	c.stopped = true
	c.cancel(ErrStopped)
	if c.ln != nil {
		c.ln.Close()
	}
	for s := range c.sockets {
		s.Close()
	}
	for s := range c.served {
		s.conn.fail(ErrStopped)
	}
	c.mu.Unlock()
	c.dropPeers(ErrStopped, func(peerKey) bool { return true })
	c.wg.Wait()
}

// Addr returns the bound address (the real port when Config.Listen asked for port 0); nil before Start.
func (c *Cluster) Addr() net.Addr {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ln == nil {
		return nil
	}
	return c.ln.Addr()
}

// Self returns what this node says about itself.
func (c *Cluster) Self() Identity {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.self
}

// SetClusterID tells that this node has joined a cluster (or founded one). Connections made as a stranger stay, and
// their peers learn it.
func (c *Cluster) SetClusterID(clusterID string) {
	c.changeSelf(func(i *Identity) { i.ClusterID = clusterID })
}

// SetRegistration tells this node's broker id and epoch; peers learn them on open connections too.
func (c *Cluster) SetRegistration(b id.BrokerID, e id.BrokerEpoch) {
	c.changeSelf(func(i *Identity) { i.Broker, i.Epoch = b, e })
}

func (c *Cluster) changeSelf(change func(*Identity)) {
	c.mu.Lock()
	change(&c.self)
	told := c.told
	body := c.self.append(nil)
	// Under the lock, as serve and runPeer do it: each connection is told of every change since its handshake, in order.
	for s := range c.served {
		s.conn.push(frameIdentity, 0, body)
	}
	for _, p := range c.peers {
		if cn := p.established(); cn != nil {
			cn.push(frameIdentity, 0, body)
		}
	}
	c.mu.Unlock()
	for _, f := range told {
		f()
	}
}

// OnPeerLost adds a function that is called, from a goroutine that Stop awaits, whenever an established RPC connection
// with a peer ends that this node did not end: the moment to ask Probe whether the peer is dead. It must not block.
func (c *Cluster) OnPeerLost(f func(Peer)) {
	c.mu.Lock()
	c.lost = append(c.lost, f)
	c.mu.Unlock()
}

func (c *Cluster) peerLost(p Peer) {
	c.mu.Lock()
	fs := c.lost
	stopped := c.stopped
	c.mu.Unlock()
	if stopped {
		return
	}
	for _, f := range fs {
		f(p)
	}
}

func (c *Cluster) accept(ln net.Listener) {
	for {
		nc, err := ln.Accept()
		if err != nil {
			if c.ctx.Err() != nil {
				return
			}
			c.log.Error("cluster: accept failed; trying again in 50 ms", "addr", ln.Addr().String(), "err", err)
			select { // out of file descriptors: waiting is all that helps
			case <-time.After(50 * time.Millisecond):
			case <-c.ctx.Done():
				return
			}
			continue
		}
		c.mu.Lock()
		switch {
		case c.stopped, len(c.sockets) >= maxHandshakes:
			c.mu.Unlock()
			nc.Close()
			continue
		}
		c.sockets[nc] = struct{}{}
		c.mu.Unlock()
		c.wg.Go(func() { c.greet(nc) })
	}
}

// maxHandshakes bounds connections that have not said who they are.
const maxHandshakes = 512

var errNotYet = errors.New("nobody here takes connections yet")

// greet reads the first byte and the hello, answers, and hands the connection to its user.
func (c *Cluster) greet(nc net.Conn) {
	kind, peer, err := c.handshake(nc)
	c.mu.Lock()
	delete(c.sockets, nc)
	stopped := c.stopped
	accept := c.acceptor[kind]
	c.mu.Unlock()
	if err == nil && accept == nil && kind != kindRPC && kind != kindProbe {
		err = errors.New("nobody here takes such connections any more") // closed since the handshake
	}
	if err != nil || stopped {
		if err != nil && !stopped {
			c.refused(nc, peer, err)
		}
		nc.Close()
		return
	}
	switch kind {
	case kindRPC:
		c.serve(nc, peer)
	case kindProbe:
		nc.Close()
	default:
		accept(nc, peer)
	}
}

// refusedPeer is the kind of a refused connection: its host, and whether a node is known by it.
type refusedPeer struct {
	host string
	node bool
}

// refused writes the one line of a connection that was not taken, as often as loglimit.Limit allows.
func (c *Cluster) refused(nc net.Conn, peer Peer, err error) {
	if errors.Is(err, errNotYet) { // this node is starting, and the other tries again
		c.log.Debug("cluster: connection refused", "from", nc.RemoteAddr().String(), "directory", peer.Directory, "err", err)
		return
	}
	k := refusedPeer{host: nc.RemoteAddr().String(), node: peer.Directory != ""}
	if host, _, err := net.SplitHostPort(k.host); err == nil {
		k.host = host
	}
	c.lines.Log(c.log, slog.LevelWarn, k, time.Now(), "cluster: connection refused",
		"from", nc.RemoteAddr().String(), "directory", peer.Directory, "err", err)
}

func (c *Cluster) handshake(nc net.Conn) (byte, Peer, error) {
	if err := nc.SetDeadline(time.Now().Add(5 * c.cfg.DialTimeout)); err != nil {
		return 0, Peer{}, err
	}
	var first [1]byte
	if _, err := nc.Read(first[:]); err != nil {
		return 0, Peer{}, fmt.Errorf("no first byte: %w", err)
	}
	kind := first[0]
	switch kind {
	case kindRaft, kindRPC, kindPacket, kindStream, kindProbe:
	default:
		return 0, Peer{}, fmt.Errorf("unknown first byte 0x%02x: not a barnabas node", kind)
	}
	want, identity, status, err := readHello(nc)
	self := c.Self()
	if err == nil {
		var why string
		if status, why = judge(self, kind, want, identity); status != statusOK {
			err = errors.New(why)
		} else if kind != kindRPC && kind != kindProbe && !c.accepts(kind) {
			status, err = statusNotServedHere, fmt.Errorf("%w of kind %q", errNotYet, kind)
		}
	}
	peer := Peer{Identity: identity, Member: isMember(self, identity)}
	if err != nil {
		if status != statusOK { // a reason that the dialer can use
			err = errors.Join(err, writeWelcome(nc, status, []byte(err.Error())))
		}
		return 0, peer, err
	}
	if err := writeWelcome(nc, statusOK, self.append(nil)); err != nil {
		return 0, peer, err
	}
	return kind, peer, nc.SetDeadline(time.Time{})
}

func (c *Cluster) accepts(kind byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.acceptor[kind] != nil
}

// dial connects and shakes hands. Errors are ErrUnreachable and one of its kinds.
func (c *Cluster) dial(ctx context.Context, kind byte, addr string, want id.DirectoryID) (net.Conn, Peer, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.DialTimeout)
	defer cancel()
	nc, err := c.cfg.Dial(ctx, addr)
	if err != nil {
		return nil, Peer{}, unreachable(addr, err)
	}
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	peer, err := c.introduce(nc, kind, want)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		nc.Close()
		if ctx.Err() != nil {
			err = fmt.Errorf("no answer to the handshake within %v: %w", c.cfg.DialTimeout, ctx.Err())
		}
		return nil, Peer{}, unreachable(addr, err)
	}
	return nc, peer, nil
}

func (c *Cluster) introduce(nc net.Conn, kind byte, want id.DirectoryID) (Peer, error) {
	self := c.Self()
	if err := writeHello(nc, kind, want, self); err != nil {
		return Peer{}, err
	}
	identity, err := readWelcome(nc)
	if err != nil {
		return Peer{}, err
	}
	if want != "" && identity.Directory != want {
		return Peer{}, fmt.Errorf("%w: wanted %s, found %s", ErrWrongPeer, want, identity.Directory)
	}
	return Peer{Identity: identity, Member: isMember(self, identity)}, nil
}

// Probe opens a fresh connection to the target and closes it. ErrRefused proves that the process is dead; nil means only
// that something accepts and answers the handshake there; everything else proves nothing.
func (c *Cluster) Probe(ctx context.Context, t Target) (Peer, error) {
	addr, dir, err := c.resolve(t)
	if err != nil {
		return Peer{}, err
	}
	if dir == c.cfg.Directory {
		return Peer{Identity: c.Self(), Member: true}, nil
	}
	nc, peer, err := c.dial(ctx, kindProbe, addr, dir)
	if err != nil {
		return Peer{}, err
	}
	nc.Close()
	return peer, nil
}
