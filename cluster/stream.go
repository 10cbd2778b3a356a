package cluster

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barnabas-mq/barnabas/internal/id"
)

// streams is a net.Listener over one kind of accepted connections. It closes those still open when it is closed, since
// their readers would otherwise stay in a Read.
type streams struct {
	c    *Cluster
	kind byte
	ch   chan net.Conn
	done chan struct{}

	mu     sync.Mutex
	closed bool
	open   map[*streamConn]struct{}
}

type streamConn struct {
	net.Conn
	s    *streams
	peer Peer
}

func (s *streamConn) Close() error {
	s.s.mu.Lock()
	delete(s.s.open, s)
	s.s.mu.Unlock()
	return s.Conn.Close()
}

func newStreams(c *Cluster, kind byte) *streams {
	s := &streams{c: c, kind: kind, ch: make(chan net.Conn), done: make(chan struct{}), open: map[*streamConn]struct{}{}}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.acceptor[kind] != nil {
		panic(fmt.Sprintf("cluster: streams of kind %q taken twice", kind))
	}
	c.acceptor[kind] = s.offer
	return s
}

func (s *streams) track(nc net.Conn, peer Peer) (*streamConn, bool) {
	sc := &streamConn{Conn: nc, s: s, peer: peer}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		nc.Close()
		return nil, false
	}
	s.open[sc] = struct{}{}
	return sc, true
}

// offer hands a connection to Accept; it waits there until somebody takes it or the port stops.
func (s *streams) offer(nc net.Conn, peer Peer) {
	sc, ok := s.track(nc, peer)
	if !ok {
		return
	}
	select {
	case s.ch <- sc:
	case <-s.done:
		sc.Close()
	case <-s.c.ctx.Done():
		sc.Close()
	}
}

// Accept implements net.Listener: its error after the end is net.ErrClosed too.
func (s *streams) Accept() (net.Conn, error) {
	select {
	case nc := <-s.ch:
		return nc, nil
	case <-s.done:
	case <-s.c.ctx.Done():
	}
	return nil, fmt.Errorf("%w: %w", ErrStopped, net.ErrClosed)
}

// Close ends Accept and closes the connections that it and dial returned.
func (s *streams) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	close(s.done)
	open := s.open
	s.open = map[*streamConn]struct{}{}
	s.mu.Unlock()
	s.c.mu.Lock()
	delete(s.c.acceptor, s.kind)
	s.c.mu.Unlock()
	for sc := range open {
		sc.Conn.Close()
	}
	return nil
}

// Addr implements net.Listener: the advertised address.
func (s *streams) Addr() net.Addr { return addrString(s.c.Self().Addr) }

func (s *streams) dial(t Target, timeout time.Duration) (net.Conn, error) {
	addr, dir, err := s.c.resolve(t)
	if err != nil {
		return nil, err
	}
	if dir == s.c.cfg.Directory {
		addr = s.c.Self().Addr
	}
	ctx, cancel := s.c.ctx, context.CancelFunc(func() {})
	if timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, timeout)
	}
	defer cancel()
	nc, peer, err := s.c.dial(ctx, s.kind, addr, dir)
	if err != nil {
		return nil, err
	}
	sc, ok := s.track(nc, peer)
	if !ok {
		return nil, ErrStopped
	}
	return sc, nil
}

// addrString is a net.Addr of "host:port".
type addrString string

func (addrString) Network() string  { return "tcp" }
func (a addrString) String() string { return string(a) }

// raftStreams is the raft.StreamLayer on the cluster port.
type raftStreams struct{ *streams }

var _ raft.StreamLayer = raftStreams{}

// StreamLayer returns the port's raft streams. It may be called again only after the former one was closed; the node's
// restart of raft within the process does that.
func (c *Cluster) StreamLayer() raft.StreamLayer { return raftStreams{newStreams(c, kindRaft)} }

// Dial implements raft.StreamLayer. An address without a port is a directory id: it is looked up in the address book, and
// only that directory is accepted there (see AddressProvider).
func (s raftStreams) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	if a := string(address); !strings.Contains(a, ":") {
		return s.dial(ToDirectory(id.DirectoryID(a)), timeout)
	}
	return s.dial(ToAddr(string(address)), timeout)
}

// AddressProvider gives raft the directory id itself as the address, so that Dial uses the address book at every
// connection and verifies who answers.
func (c *Cluster) AddressProvider() raft.ServerAddressProvider { return addressProvider{c} }

type addressProvider struct{ c *Cluster }

func (p addressProvider) ServerAddr(sid raft.ServerID) (raft.ServerAddress, error) {
	if _, known := p.c.Address(id.DirectoryID(sid)); !known {
		return "", fmt.Errorf("cluster: directory %s is not in the address book", sid)
	}
	return raft.ServerAddress(sid), nil
}
