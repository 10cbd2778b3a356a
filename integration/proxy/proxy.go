// Package proxy is a network of loopback TCP links between named ends, in which any directed pair can be cut or delayed: the
// bytes from a to b stop or come late while those from b to a flow. A cut loses nothing and resets nothing, as in a network that
// drops packets: the bytes arrive when the cut is healed, if the connection still lives.
//
// Each destination has one listener; who is on the other side is learnt from the first bytes (Identify), since all of loopback
// has one address. Goroutines: one per listener and per connection, two more per direction of a connection; Close ends and
// awaits them all.
package proxy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Identify reads as much of a new connection as it needs and returns the name of the end that opened it.
type Identify func(r io.Reader) (name string, err error)

// Always is the Identify of a listener that one end alone uses, or ends that are not told apart (clients).
func Always(name string) Identify { return func(io.Reader) (string, error) { return name, nil } }

// Network is a set of links. All methods are safe for concurrent use.
type Network struct {
	mu     sync.Mutex
	rules  map[pair]rule
	change chan struct{} // closed and replaced when a rule changes
	ports  map[string]*port
	closed bool
	wg     sync.WaitGroup
}

type pair struct{ from, to string }

type rule struct {
	cut   bool
	delay time.Duration
}

// port is the listener in front of one destination.
type port struct {
	name, addr, target string
	identify           Identify
	listener           net.Listener        // nil while down
	conns              map[net.Conn]string // both sides of every connection, with the end that opened it
}

// New returns a network without links.
func New() *Network {
	return &Network{rules: map[pair]rule{}, ports: map[string]*port{}, change: make(chan struct{})}
}

// Add opens a listener in front of target ("host:port", which need not listen yet) for connections to the end called name, and
// returns its address. One end may have several listeners, of different kinds.
func (n *Network) Add(kind, name, target string, identify Identify) (addr string, err error) {
	p := &port{name: name, addr: "127.0.0.1:0", target: target, identify: identify, conns: map[net.Conn]string{}}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.listenLocked(p); err != nil {
		return "", err
	}
	n.ports[kind+"/"+name] = p
	return p.addr, nil
}

func (n *Network) listenLocked(p *port) error {
	if n.closed {
		return errors.New("the network is closed")
	}
	l, err := net.Listen("tcp", p.addr)
	if err != nil {
		return fmt.Errorf("cannot listen in front of %s: %w", p.name, err)
	}
	p.listener, p.addr = l, l.Addr().String()
	n.wg.Add(1)
	go n.accept(p, l)
	return nil
}

// Cut stops the bytes from one end to another; the other direction is left alone.
func (n *Network) Cut(from, to string) { n.set(from, to, func(r *rule) { r.cut = true }) }

// Delay has the bytes from one end to another arrive that much later, in order.
func (n *Network) Delay(from, to string, by time.Duration) {
	n.set(from, to, func(r *rule) { r.delay = by })
}

// Restore undoes Cut and Delay from one end to another.
func (n *Network) Restore(from, to string) { n.set(from, to, func(r *rule) { *r = rule{} }) }

// Isolate cuts one end from the others, both ways.
func (n *Network) Isolate(name string, others ...string) {
	for _, o := range others {
		n.Cut(name, o)
		n.Cut(o, name)
	}
}

// Heal undoes every Cut and Delay.
func (n *Network) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rules = map[pair]rule{}
	n.changedLocked()
}

func (n *Network) set(from, to string, edit func(*rule)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	r := n.rules[pair{from, to}]
	edit(&r)
	n.rules[pair{from, to}] = r
	n.changedLocked()
}

func (n *Network) changedLocked() {
	close(n.change)
	n.change = make(chan struct{})
}

// Down has connections to the end refused, as those to a dead process are, and closes those that it has in either direction.
func (n *Network) Down(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.ports {
		if p.name == name && p.listener != nil {
			p.listener.Close()
			p.listener = nil
		}
		for c, opener := range p.conns {
			if p.name == name || opener == name {
				c.Close()
			}
		}
	}
}

// Up accepts connections to the end again, at the same address.
func (n *Network) Up(name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.ports {
		if p.name == name && p.listener == nil {
			if err := n.listenLocked(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// Reset closes every connection between two ends, whoever opened it.
func (n *Network) Reset(a, b string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.ports {
		for c, opener := range p.conns {
			if (p.name == a && opener == b) || (p.name == b && opener == a) {
				c.Close()
			}
		}
	}
}

// Close ends every link and waits for its goroutines.
func (n *Network) Close() {
	n.mu.Lock()
	n.closed = true
	for _, p := range n.ports {
		if p.listener != nil {
			p.listener.Close()
		}
		for c := range p.conns {
			c.Close()
		}
	}
	n.changedLocked()
	n.mu.Unlock()
	n.wg.Wait()
}

func (n *Network) accept(p *port, l net.Listener) {
	defer n.wg.Done()
	for {
		c, err := l.Accept()
		if err != nil {
			return // closed by Down or Close
		}
		n.mu.Lock()
		if n.closed || p.listener != l {
			n.mu.Unlock()
			c.Close()
			continue
		}
		p.conns[c] = ""
		n.wg.Add(1)
		n.mu.Unlock()
		go n.serve(p, c)
	}
}

// serve carries one connection until both directions have ended.
func (n *Network) serve(p *port, in net.Conn) {
	defer n.wg.Done()
	defer n.forget(p, in)
	var head bytes.Buffer
	opener, err := p.identify(io.TeeReader(in, &head))
	if err != nil {
		return // said too little: nothing to carry it to
	}
	out, err := net.DialTimeout("tcp", p.target, time.Second)
	if err != nil {
		return
	}
	defer n.forget(p, out)
	if !n.remember(p, opener, in, out) {
		return
	}
	l := &link{stop: make(chan struct{}), in: in, out: out}
	var both sync.WaitGroup
	both.Add(2)
	go func() {
		defer both.Done()
		n.carry(pair{opener, p.name}, l, out, io.MultiReader(&head, in))
	}()
	go func() {
		defer both.Done()
		n.carry(pair{p.name, opener}, l, in, out)
	}()
	both.Wait()
}

// link is one connection through the network: two sockets.
type link struct {
	once    sync.Once
	stop    chan struct{} // closed by abort
	in, out net.Conn
}

// abort ends both directions at once.
func (l *link) abort() {
	l.once.Do(func() {
		close(l.stop)
		l.in.Close()
		l.out.Close()
	})
}

func (n *Network) remember(p *port, opener string, conns ...net.Conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range conns {
		p.conns[c] = opener
	}
	return !n.closed && p.listener != nil
}

func (n *Network) forget(p *port, c net.Conn) {
	c.Close()
	n.mu.Lock()
	delete(p.conns, c)
	n.mu.Unlock()
}

// chunk is what one read brought, with the time it may be passed on.
type chunk struct {
	data []byte
	due  time.Time
}

// carry passes bytes on until the source ends in good order, which ends the destination's input alone, or until an error ends the
// whole link.
func (n *Network) carry(p pair, l *link, to net.Conn, from io.Reader) {
	chunks := make(chan chunk, 64)
	var reading sync.WaitGroup
	reading.Add(1)
	go func() {
		defer reading.Done()
		defer close(chunks)
		if err := n.read(p, from, chunks, l.stop); !errors.Is(err, io.EOF) {
			l.abort()
		}
	}()
	if err := n.write(p, to, chunks, l.stop); err != nil {
		l.abort()
	} else if half, ok := to.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // fails only when the link was aborted
	}
	reading.Wait()
}

func (n *Network) read(p pair, from io.Reader, chunks chan<- chunk, stop <-chan struct{}) error {
	for {
		buffer := make([]byte, 64<<10)
		got, err := from.Read(buffer)
		if got > 0 {
			r, _ := n.rule(p)
			select {
			case chunks <- chunk{buffer[:got], time.Now().Add(r.delay)}:
			case <-stop:
				return net.ErrClosed
			}
		}
		if err != nil {
			return err
		}
	}
}

func (n *Network) write(p pair, to net.Conn, chunks <-chan chunk, stop <-chan struct{}) error {
	for c := range chunks {
		if !n.pass(p, c.due, stop) {
			return net.ErrClosed
		}
		if _, err := to.Write(c.data); err != nil {
			return err
		}
	}
	return nil
}

// pass waits until the time has come and the direction is not cut; it returns false when the connection is to end.
func (n *Network) pass(p pair, due time.Time, stop <-chan struct{}) bool {
	for {
		r, changed := n.rule(p)
		wait := time.Until(due)
		if !r.cut && wait <= 0 {
			return !n.isClosed()
		}
		var timer <-chan time.Time
		if !r.cut {
			timer = time.After(wait)
		}
		select {
		case <-timer:
		case <-changed:
			if n.isClosed() {
				return false
			}
		case <-stop:
			return false
		}
	}
}

func (n *Network) rule(p pair) (rule, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rules[p], n.change
}

func (n *Network) isClosed() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.closed
}
