package cluster

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
)

// HandlerFunc answers one call. It runs in its own goroutine and may wait as long as ctx lives: ctx ends with the caller's
// deadline or cancellation, with the connection, and with Stop. payload is the handler's own; the returned slice belongs
// to the port. An *Error reaches the caller as it is, any other error as CodeInternal.
type HandlerFunc func(ctx context.Context, peer Peer, payload []byte) ([]byte, error)

// VecHandlerFunc is a HandlerFunc whose reply is written from several slices without joining them (replica fetch).
type VecHandlerFunc func(ctx context.Context, peer Peer, payload []byte) (net.Buffers, error)

type handler struct {
	f    VecHandlerFunc
	open bool
}

// Handle registers the method for members of this cluster. A second registration of one name panics.
func (c *Cluster) Handle(method string, f HandlerFunc) { c.handle(method, handler{f: vec(f)}) }

// HandleOpen registers a method that also serves nodes without a cluster id (joining, discovery).
func (c *Cluster) HandleOpen(method string, f HandlerFunc) {
	c.handle(method, handler{f: vec(f), open: true})
}

// HandleVec is Handle for large replies.
func (c *Cluster) HandleVec(method string, f VecHandlerFunc) { c.handle(method, handler{f: f}) }

func vec(f HandlerFunc) VecHandlerFunc {
	return func(ctx context.Context, peer Peer, payload []byte) (net.Buffers, error) {
		b, err := f(ctx, peer, payload)
		return net.Buffers{b}, err
	}
}

func (c *Cluster) handle(method string, h handler) {
	if method == "" || len(method) > 255 {
		panic(fmt.Sprintf("cluster: method name %q", method))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, dup := c.handlers[method]; dup {
		panic(fmt.Sprintf("cluster: method %s registered twice", method))
	}
	c.handlers[method] = h
}

// Call sends payload to a method of the target and waits for the reply, which is the caller's own. payload must not be
// changed any more, even after Call has returned. A call to this node itself runs the handler here. Errors: *Error from the
// handler or the port, ErrUnreachable (with ErrRefused, ErrWrongPeer, ErrHandshake), ErrLost, ErrTimeout,
// context.Canceled, ErrStopped, ErrTooLarge; NotSent tells which of them are safe to repeat.
func (c *Cluster) Call(ctx context.Context, t Target, method string, payload []byte) ([]byte, error) {
	return c.call(ctx, t, classControl, method, payload)
}

// CallBulk is Call over a connection of its own, so that megabytes do not delay small calls.
func (c *Cluster) CallBulk(ctx context.Context, t Target, method string, payload []byte) ([]byte, error) {
	return c.call(ctx, t, classBulk, method, payload)
}

// class separates the connections to one peer.
type class byte

const (
	classControl class = iota
	classBulk
)

type peerKey struct {
	dir   id.DirectoryID // "" when only the address is known
	addr  string         // "" when dir is known
	class class
}

func (c *Cluster) call(ctx context.Context, t Target, cl class, method string, payload []byte) ([]byte, error) {
	if len(payload) > MaxPayload {
		return nil, fmt.Errorf("cluster: %s to %s: %w: %d bytes, at most %d", method, t, ErrTooLarge, len(payload), MaxPayload)
	}
	if ctx.Err() != nil {
		return nil, ctxError(ctx, method)
	}
	addr, dir, err := c.resolve(t)
	if err != nil {
		return nil, err
	}
	if dir == c.cfg.Directory {
		return c.callSelf(ctx, method, payload)
	}
	p, err := c.peer(addr, dir, cl)
	if err != nil {
		return nil, err
	}
	select {
	case <-p.ready:
	case <-ctx.Done():
		return nil, fmt.Errorf("%w (%w: still connecting to %s)", ctxError(ctx, method), ErrUnreachable, t)
	}
	if p.err != nil {
		return nil, p.err
	}
	return p.call(ctx, method, payload)
}

// callSelf runs a handler of this node as a call from itself.
func (c *Cluster) callSelf(ctx context.Context, method string, payload []byte) ([]byte, error) {
	c.mu.Lock()
	h, ok := c.handlers[method]
	self, up := c.self, c.started && !c.stopped
	if up {
		c.wg.Add(1)
	}
	c.mu.Unlock()
	if !up {
		return nil, ErrStopped
	}
	if !ok {
		c.wg.Done()
		return nil, &Error{Code: CodeNoMethod, Message: "no method " + method}
	}
	type result struct {
		b   net.Buffers
		err error
	}
	done := make(chan result, 1)
	hctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(c.ctx, cancel)
	defer stop()
	go func() {
		defer c.wg.Done()
		b, err := h.f(hctx, Peer{Identity: self, Member: true}, payload)
		done <- result{b, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return nil, toWire(r.err)
		}
		return join(r.b), nil
	case <-ctx.Done():
		return nil, ctxError(ctx, method)
	case <-c.ctx.Done():
		return nil, ErrStopped
	}
}

func join(b net.Buffers) []byte {
	if len(b) == 1 {
		return b[0]
	}
	var all []byte
	for _, p := range b {
		all = append(all, p...)
	}
	return all
}

// peer returns the pooled connection, dialing it if there is none; its ready channel tells when the dial has ended.
func (c *Cluster) peer(addr string, dir id.DirectoryID, cl class) (*peerConn, error) {
	k := peerKey{dir: dir, class: cl}
	if dir == "" {
		k.addr = addr
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.started || c.stopped {
		return nil, ErrStopped
	}
	if p := c.peers[k]; p != nil {
		return p, nil
	}
	p := &peerConn{ready: make(chan struct{}), pending: map[uint64]chan frame{}}
	p.ctx, p.cancel = context.WithCancel(c.ctx)
	c.peers[k] = p
	c.wg.Go(func() { c.runPeer(k, p, addr) })
	return p, nil
}

// dropPeers closes the pooled connections whose key matches.
func (c *Cluster) dropPeers(cause error, match func(peerKey) bool) {
	c.mu.Lock()
	var drop []*peerConn
	for k, p := range c.peers {
		if match(k) {
			drop = append(drop, p)
			delete(c.peers, k)
		}
	}
	c.mu.Unlock()
	for _, p := range drop {
		p.cancel()
		if cn := p.established(); cn != nil {
			cn.fail(cause)
		}
	}
}

// peerConn is the calling side of one RPC connection.
type peerConn struct {
	ctx    context.Context // ends the dial
	cancel context.CancelFunc
	ready  chan struct{} // closed when conn or err is set
	err    error
	conn   *conn

	mu      sync.Mutex
	peer    Peer
	next    uint64
	pending map[uint64]chan frame
}

// established returns the connection once the dial has succeeded, else nil.
func (p *peerConn) established() *conn {
	select {
	case <-p.ready:
		return p.conn
	default:
		return nil
	}
}

// runPeer dials, then reads replies until the connection ends.
func (c *Cluster) runPeer(k peerKey, p *peerConn, addr string) {
	defer p.cancel()
	nc, peer, err := c.dial(p.ctx, kindRPC, addr, k.dir)
	if err != nil {
		p.err = err
		if c.ctx.Err() != nil {
			p.err = ErrStopped
		}
		c.remove(k, p) // before ready: whoever calls after seeing the error dials anew
		close(p.ready)
		return
	}
	p.peer = peer
	p.conn = newConn(c.ctx, nc, &c.cfg)
	c.mu.Lock()
	p.conn.push(frameIdentity, 0, c.self.append(nil)) // what the handshake said may have changed since
	close(p.ready)
	c.mu.Unlock()
	if p.ctx.Err() != nil {
		p.conn.fail(ErrLost)
	}
	c.wg.Go(p.conn.runWriter)
	err = p.readReplies(nc)
	p.conn.fail(fmt.Errorf("%w: %s: %w", ErrLost, addr, err))
	c.remove(k, p)
	if !errors.Is(p.conn.cause(), ErrStopped) && p.ctx.Err() == nil {
		c.log.Info("cluster: connection lost", "addr", addr, "directory", peer.Directory, "err", p.conn.cause())
		p.mu.Lock()
		peer = p.peer
		p.mu.Unlock()
		c.peerLost(peer)
	}
}

func (c *Cluster) remove(k peerKey, p *peerConn) {
	c.mu.Lock()
	if c.peers[k] == p {
		delete(c.peers, k)
	}
	c.mu.Unlock()
}

func (p *peerConn) readReplies(nc net.Conn) error {
	br := bufio.NewReaderSize(nc, 64<<10)
	for {
		f, err := readFrame(br, maxFrame)
		if err != nil {
			return err
		}
		switch f.typ {
		case frameReply, frameError:
			p.mu.Lock()
			ch := p.pending[f.call]
			delete(p.pending, f.call)
			p.mu.Unlock()
			if ch != nil { // else the caller has gone
				ch <- f
			}
		case frameIdentity:
			r := &reader{b: f.body}
			if identity := readIdentity(r); !r.bad {
				p.mu.Lock()
				p.peer.Identity = identity
				p.mu.Unlock()
			}
		default:
			return fmt.Errorf("unexpected frame type %d", f.typ)
		}
	}
}

func (p *peerConn) call(ctx context.Context, method string, payload []byte) ([]byte, error) {
	ch := make(chan frame, 1)
	p.mu.Lock()
	p.next++
	call := p.next
	p.pending[call] = ch
	p.mu.Unlock()
	var fixed [5 + 255]byte
	if d, ok := ctx.Deadline(); ok {
		binary.BigEndian.PutUint32(fixed[:], uint32(min(max(time.Until(d).Milliseconds(), 1), 1<<31)))
	}
	fixed[4] = byte(len(method))
	n := 5 + copy(fixed[5:], method)
	if err := p.conn.enqueue(ctx, frameRequest, call, fixed[:n], payload); err != nil {
		p.forget(call)
		if ctx.Err() != nil {
			return nil, ctxError(ctx, method)
		}
		return nil, fmt.Errorf("cluster: %s: %w: %w", method, ErrUnreachable, err) // not queued, so not sent
	}
	select {
	case f := <-ch:
		return decodeReply(f)
	case <-ctx.Done():
		p.forget(call)
		p.conn.push(frameCancel, call, nil)
		return nil, ctxError(ctx, method)
	case <-p.conn.ctx.Done():
		p.forget(call)
		select {
		case f := <-ch: // the reply came first
			return decodeReply(f)
		default:
		}
		return nil, fmt.Errorf("cluster: %s: %w", method, p.conn.cause())
	}
}

func (p *peerConn) forget(call uint64) {
	p.mu.Lock()
	delete(p.pending, call)
	p.mu.Unlock()
}

func decodeReply(f frame) ([]byte, error) {
	if f.typ == frameReply {
		return f.body, nil
	}
	r := &reader{b: f.body}
	code := Code(r.uint16())
	return nil, &Error{Code: code, Message: string(r.b)}
}
