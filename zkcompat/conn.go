package zkcompat

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/zkcompat/jute"
	"github.com/barnabas-mq/barnabas/zkcompat/ztree"
)

// maxConnectFrame bounds the first frame: 45 bytes and a password of 16.
const maxConnectFrame = 1024

// conn is one client connection. Three activities: run reads frames; drain answers the queue, one request at a time,
// and exists only while there is one; flush writes output and exists only while there is some. So an idle
// connection is one goroutine.
type conn struct {
	s      *Server
	nc     net.Conn
	ctx    context.Context // ends with the connection; its cause says why
	cancel context.CancelCauseFunc

	// Set by the handshake, before any other activity.
	caller   Caller
	timeout  time.Duration
	attached time.Duration // boot time before the leader took the session; it counts from then

	heard atomic.Int64 // boot time, ns, of the last frame

	// Only drain touches these.
	auth  []jute.ACL    // ids proven by auth requests
	quiet time.Duration // no log line before
	muted int           // log lines left out since the last
	reads bucket
	// listed is the generation of the last list of a group's members that it read.
	listed *state.Legacy

	// Guarded by watches.mu.
	armed [2]map[string]struct{}
	gone  bool

	mu       sync.Mutex
	cond     sync.Cond // queue or output shrank, or closed
	queue    []request
	queued   int // bytes
	out      []byte
	spare    []byte
	draining bool
	flushing bool
	ending   bool // the head is a closeSession: its reply is still to be sent
	last     bool // nothing may be appended any more; close when out is sent
	closed   bool
	wg       sync.WaitGroup // drain and flush
}

type request struct {
	jute.RequestHeader
	body []byte
}

func newConn(ctx context.Context, s *Server, nc net.Conn) *conn {
	c := &conn{s: s, nc: nc}
	c.cond.L = &c.mu
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	return c
}

func (c *conn) observer() ztree.Observer { return ztree.Observer{Session: c.caller.Session} }

// reader is the observer for a read of a node. Only drain may ask.
func (c *conn) reader() ztree.Observer {
	return ztree.Observer{Session: c.caller.Session, Listed: c.listed}
}

// ending is why this side ended a connection. A quiet one is no news.
type ending struct {
	why   string
	quiet bool
}

func (e *ending) Error() string { return e.why }

// run is the life of the connection.
func (c *conn) run() {
	err := c.serve()
	c.note(err, context.Cause(c.ctx))
	c.kill("the client closed it")
	c.wg.Wait()
	c.s.unbind(c)
}

// note logs the end of the connection, in one line: err is what its reader met, ours why this side ended it.
func (c *conn) note(err, ours error) {
	level, reason := slog.LevelWarn, err
	k := fault{host: hostOf(c.nc), session: c.caller.Session != 0}
	var e *ending
	switch {
	case errors.As(ours, &e) && e.quiet, errors.Is(ours, context.Canceled):
		return
	case ours != nil:
		level, reason, k.why = slog.LevelInfo, ours, ours.Error()
	case err == nil:
		return
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		level, k.why = slog.LevelDebug, "left"
	}
	c.s.say(level, k, "connection ended", "remote", c.nc.RemoteAddr(), "session", c.sessionName(), "reason", reason)
}

// hostOf is the other end's address without its port.
func hostOf(nc net.Conn) string {
	addr := nc.RemoteAddr().String()
	if host, _, err := net.SplitHostPort(addr); err == nil {
		return host
	}
	return addr
}

func (c *conn) sessionName() string { return fmt.Sprintf("0x%x", uint64(c.caller.Session)) }

func (c *conn) serve() error {
	r := newFrameReader(c.nc)
	deadline := time.AfterFunc(c.s.cfg.HandshakeTimeout, func() {
		c.kill("no connect request within " + c.s.cfg.HandshakeTimeout.String())
	})
	defer deadline.Stop()
	first, err := r.length()
	if err != nil {
		return err
	}
	if answer, ok := c.s.word(first); ok {
		c.lastWord([]byte(answer))
		return nil
	}
	body, err := r.body(first, maxConnectFrame)
	if err != nil {
		return err
	}
	deadline.Stop()
	if ok, err := c.handshake(body); !ok || err != nil {
		return err
	}
	for {
		n, err := r.length()
		if err != nil {
			return err
		}
		body, err := r.body(n, jute.MaxFrame)
		if err != nil {
			return err
		}
		if err := c.receive(body); err != nil {
			return err
		}
	}
}

// receive takes one frame: pings are answered here, everything else waits its turn.
func (c *conn) receive(body []byte) error {
	c.heard.Store(int64(c.s.cfg.Clock.Boot()))
	c.s.stats.received.Add(1)
	h, rest, err := jute.DecodeRequest(body)
	if err != nil {
		return fmt.Errorf("a request of %d bytes has no whole header: %w", len(body), err)
	}
	if h.Op == jute.OpPing {
		if !c.s.leaderHears(c) {
			return errors.New("a ping could not be answered: the leader does not hear from this node")
		}
		if c.room() {
			c.reply(jute.XidPing, jute.OK)
		}
		return nil
	}
	c.enqueue(request{h, rest})
	return nil
}

// room waits until the client has read enough of what it was sent; false if the connection ended.
func (c *conn) room() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.closed && len(c.out) > c.s.cfg.MaxOutput {
		c.cond.Wait()
	}
	return !c.closed
}

// enqueue adds a request, waiting while the queue is full.
func (c *conn) enqueue(r request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.closed && len(c.queue) > 0 &&
		(len(c.queue) >= c.s.cfg.MaxQueued || c.queued+len(r.body) > c.s.cfg.MaxQueuedBytes) {
		c.cond.Wait()
	}
	if c.closed || c.last {
		return
	}
	c.queue = append(c.queue, r)
	c.queued += len(r.body)
	if !c.draining {
		c.draining = true
		c.wg.Go(c.drain)
	}
}

// drain answers requests in order until none is left. A request that waits parks the whole queue with it; the
// connection's end cancels it.
func (c *conn) drain() {
	for {
		c.mu.Lock()
		for !c.closed && len(c.out) > c.s.cfg.MaxOutput {
			c.cond.Wait()
		}
		if c.closed || c.last || len(c.queue) == 0 {
			c.draining = false
			c.queue = nil
			c.mu.Unlock()
			return
		}
		r := c.queue[0]
		c.ending = r.Op == jute.OpClose
		c.mu.Unlock()

		c.execute(r)

		c.mu.Lock()
		c.queue[0] = request{}
		c.queue = c.queue[1:]
		c.queued -= len(r.body)
		c.cond.Broadcast()
		c.mu.Unlock()
	}
}

// event appends an event's frame. Gate held.
func (c *conn) event(frame []byte) {
	c.mu.Lock()
	if !c.closed && !c.last {
		c.out = append(c.out, frame...)
		c.wakeLocked()
	}
	c.mu.Unlock()
}

// reply appends a reply without a body.
func (c *conn) reply(xid int32, code jute.Code) {
	c.replyWith(func(Tree) (int32, jute.Code) { return xid, code }, nil)
}

// replyWith appends a reply made from the published tree: head decides on it, body (when the code is OK) appends what
// follows the header. The gate is held for reading throughout, so that every event of the tree is ahead of it.
func (c *conn) replyWith(head func(Tree) (int32, jute.Code), body func([]byte) []byte) {
	c.s.gate.RLock()
	defer c.s.gate.RUnlock()
	xid, code := head(c.s.tree)
	c.replyLocked(c.s.tree, xid, code, body)
}

// replyLocked appends a reply made from t, the published tree. Gate held.
func (c *conn) replyLocked(t Tree, xid int32, code jute.Code, body func([]byte) []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.last {
		return
	}
	b, start := jute.BeginFrame(c.out)
	b = jute.ReplyHeader{Xid: xid, Zxid: int64(t.Zxid()), Err: code}.Append(b)
	if code == jute.OK && body != nil {
		b = body(b)
	}
	c.out = jute.EndFrame(b, start)
	c.s.stats.sent.Add(1)
	c.wakeLocked()
}

// lastWord sends b and then closes.
func (c *conn) lastWord(b []byte) {
	c.mu.Lock()
	if !c.closed {
		c.out = append(c.out, b...)
		c.finishLocked()
	}
	c.mu.Unlock()
	<-c.ctx.Done()
}

// lastWordTimeout bounds how long a client may take to read what it is told before its connection is closed.
const lastWordTimeout = 5 * time.Second

// finishLocked lets nothing more be appended and closes when all is sent.
func (c *conn) finishLocked() {
	c.last = true
	_ = c.nc.SetWriteDeadline(time.Now().Add(lastWordTimeout))
	c.wakeLocked()
}

// sessionEnded is told by the state: at once, unless the client's own closeSession is being answered. Gate held.
func (c *conn) sessionEnded() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ending && !c.closed {
		c.finishLocked()
		c.cancel(&ending{why: "its session expired"})
	}
}

func (c *conn) wakeLocked() {
	if !c.flushing && !c.closed {
		c.flushing = true
		c.wg.Go(c.flush)
	}
}

// flush writes until there is nothing to write.
func (c *conn) flush() {
	c.mu.Lock()
	for len(c.out) > 0 && !c.closed {
		b := c.out
		c.out = c.spare[:0]
		c.mu.Unlock()
		_, err := c.nc.Write(b)
		c.mu.Lock()
		if cap(b) > 16<<10 {
			b = nil // an idle connection keeps no large buffer
		}
		c.spare = b[:0]
		c.cond.Broadcast()
		if err != nil {
			c.flushing = false
			c.mu.Unlock()
			c.kill("writing to it failed: " + err.Error())
			return
		}
	}
	c.flushing = false
	end := c.last
	c.mu.Unlock()
	if end {
		c.end(&ending{why: "all was said", quiet: true})
	}
}

// kill ends the connection now. The first reason stays.
func (c *conn) kill(why string) { c.end(&ending{why: why}) }

func (c *conn) end(why *ending) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.closed = true
	c.cond.Broadcast()
	c.mu.Unlock()
	c.cancel(why)
	_ = c.nc.Close()
}

// frameReader reads frames with a small buffer; bodies are the caller's to keep.
type frameReader struct {
	r    io.Reader
	buf  [512]byte
	have []byte // of buf, not consumed
}

func newFrameReader(r io.Reader) *frameReader { return &frameReader{r: r} }

func (f *frameReader) length() (uint32, error) {
	for len(f.have) < 4 {
		n := copy(f.buf[:], f.have)
		m, err := f.r.Read(f.buf[n:])
		f.have = f.buf[:n+m]
		if err != nil && len(f.have) < 4 {
			if len(f.have) > 0 && errors.Is(err, io.EOF) {
				err = fmt.Errorf("%d bytes of a frame's length, then the end: %w", len(f.have), io.ErrUnexpectedEOF)
			}
			return 0, err
		}
	}
	n := binary.BigEndian.Uint32(f.have)
	f.have = f.have[4:]
	return n, nil
}

// body reads n bytes. Memory grows with what arrives, not with what is announced.
func (f *frameReader) body(n uint32, limit int) ([]byte, error) {
	if int64(n) > int64(limit) {
		return nil, fmt.Errorf("a frame of %d bytes is announced, %d are the most", n, limit)
	}
	const step = 64 << 10
	b := make([]byte, 0, min(int(n), step))
	take := min(int(n), len(f.have))
	b = append(b, f.have[:take]...)
	f.have = f.have[take:]
	for len(b) < int(n) {
		if len(b) == cap(b) {
			b = append(make([]byte, 0, min(int(n), 4*cap(b))), b...)
		}
		m, err := f.r.Read(b[len(b):min(cap(b), int(n))])
		b = b[:len(b)+m]
		if err != nil && len(b) < int(n) {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, fmt.Errorf("a frame of %d bytes ended after %d: %w", n, len(b), err)
		}
	}
	return b, nil
}
