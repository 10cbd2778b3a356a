package broker

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// flushAt is how many bytes of responses are gathered before they are written although more are ready.
	flushAt = 256 << 10
	// readAhead is a connection's read buffer; larger frames are read past it.
	readAhead = 8 << 10
	// keepBuffer is the largest buffer that is used again for other responses.
	keepBuffer = 4 << 20
	// aheadBytes bounds the requests (as sent) that one connection has decoded and not answered; Produce is appended at once and
	// not counted.
	aheadBytes = 8 << 20
)

// buffers are what responses are gathered in.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

var errPeerGone = errors.New("the client is gone")

// conn is one client's connection. Its reader (the goroutine of serve) decodes and starts requests; its writer answers them in
// order. slots is what the reader hands to the writer.
type conn struct {
	srv      *Server
	net      net.Conn
	id       uint64
	listener string
	addr     string
	host     string
	slots    chan slot
	ahead    atomic.Int64  // bytes of requests in slots
	freed    chan struct{} // signalled when ahead falls
	software atomic.Pointer[string]
}

// slot is one request on its way to its answer.
type slot struct {
	call  *call
	turn  turn
	bytes int64
}

func newConn(s *Server, nc net.Conn, listener string) *conn {
	c := &conn{
		srv: s, net: nc, id: s.nextID.Add(1), listener: listener, addr: nc.RemoteAddr().String(),
		slots: make(chan slot, s.cfg.MaxInFlight), freed: make(chan struct{}, 1),
	}
	c.host = c.addr
	if host, _, err := net.SplitHostPort(c.addr); err == nil {
		c.host = host
	}
	return c
}

// serve runs the connection to its end.
func (c *conn) serve(ctx context.Context) {
	ctx, cancel := context.WithCancelCause(ctx)
	if tcp, ok := c.net.(*net.TCPConn); ok {
		if n := c.srv.cfg.SendBuffer; n > 0 {
			_ = tcp.SetWriteBuffer(n)
		}
		if n := c.srv.cfg.ReceiveBuffer; n > 0 {
			_ = tcp.SetReadBuffer(n)
		}
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		c.write(ctx)
		cancel(errPeerGone) // the reader must notice, wherever it waits
		_ = c.net.Close()
	}()
	err := c.read(ctx)
	close(c.slots)
	var refused *refusal
	if errors.As(err, &refused) {
		c.srv.cfg.Metrics.Refused(refused.why)
	}
	cancel(errPeerGone)
	_ = c.net.Close()
	<-written
	c.srv.deps.Partitions.ConnectionClosed(c.id)
}

// read reads and starts requests until the connection ends. A refusal has been logged.
func (c *conn) read(ctx context.Context) error {
	fr := frameReader{
		in: bufio.NewReaderSize(c.net, readAhead), deadline: c.net.SetReadDeadline, idle: c.srv.cfg.IdleTimeout,
		timeout: c.srv.cfg.FrameTimeout, budget: c.srv.budget, most: c.srv.cfg.RequestMaxBytes, limit: c.limit,
	}
	for {
		f, err := fr.next(ctx)
		if err == nil {
			err = c.accept(ctx, &f)
		}
		c.srv.budget.give(f.held)
		if err != nil {
			c.logEnd(ctx, &f, err)
			return err
		}
	}
}

// logEnd writes the one line of a connection that is closed for what it sent; ends of the network's making are no news.
func (c *conn) logEnd(ctx context.Context, f *frame, err error) {
	var r *refusal
	if ctx.Err() != nil || !errors.As(err, &r) {
		return
	}
	client, _, _ := parseHeader(f.body, false)
	c.logClosed(r.why, r.msg, client, f.key, f.version)
}

// lineKind is the kind of a line: one host's one fault.
type lineKind struct {
	host, why    string
	key, version int16
}

// Why requests are refused that nobody here serves; see refusal.
const (
	unknownAPI     = "unknown api"
	unknownVersion = "unknown version"
)

// logClosed writes the one line of a connection that this side closes.
func (c *conn) logClosed(why, msg, client string, key, version int16) {
	k := lineKind{c.host, why, key, version}
	switch why { // of garbage, what it happens to ask for makes no kind of its own
	case unknownAPI:
		k.key, k.version = 0, 0
	case unknownVersion:
		k.version = 0
	}
	attrs := []any{
		"client", client, "address", c.addr, "listener", c.listener, "api", kmsg.NameForKey(key), "key", key, "version", version,
	}
	if sw := c.software.Load(); sw != nil {
		attrs = append(attrs, "software", *sw)
	}
	c.srv.lines.Log(c.srv.log, slog.LevelWarn, k, time.Now(), "broker: connection closed: "+msg, attrs...)
}

// limit is the largest frame of a request, before it is read.
func (c *conn) limit(key, version int16) (int, error) {
	a, ok := c.srv.apis[key]
	if !ok {
		return 0, refuse(unknownAPI, "API key %d is not served (unknown, or not built yet)", key)
	}
	if (version < 0 || version > a.max) && key != apiVersionsKey {
		return 0, refuse(unknownVersion, "%s version %d is not served; 0 to %d are", a.name, version, a.max)
	}
	if a.maxBytes == 0 {
		return c.srv.cfg.RequestMaxBytes, nil
	}
	return min(a.maxBytes, c.srv.cfg.RequestMaxBytes), nil
}

// accept decodes one frame, starts its request and queues it for the writer.
func (c *conn) accept(ctx context.Context, f *frame) error {
	a := c.srv.apis[f.key]
	cl := &call{
		api: a, version: f.version, corr: f.corr, listener: c.listener, addr: c.addr, host: c.host, conn: c.id, arrived: time.Now(),
	}
	sl := slot{call: cl, bytes: int64(len(f.body))}
	if f.version < 0 || f.version > a.max { // only ApiVersions gets here
		cl.version = 0
		cl.clientID, _, _ = parseHeader(f.body, false)
		sl.turn = c.srv.apiVersionsUnsupported(cl)
		return c.enqueue(ctx, sl)
	}
	req, err := decode(a, f, cl)
	if err != nil {
		return refuse("undecodable", "the request cannot be decoded: %v", err)
	}
	if v, ok := req.(*kmsg.ApiVersionsRequest); ok && v.ClientSoftwareName != "" {
		sw := v.ClientSoftwareName + " " + v.ClientSoftwareVersion
		c.software.Store(&sw)
	}
	if a.maxBytes == 0 {
		sl.bytes = 0
	}
	if err := c.room(ctx, sl.bytes); err != nil {
		return err
	}
	sl.turn = a.start(ctx, c.srv, cl, req)
	return c.enqueue(ctx, sl)
}

func decode(a *api, f *frame, cl *call) (kmsg.Request, error) {
	req := a.newRequest(f.version)
	client, body, err := parseHeader(f.body, req.IsFlexible())
	if err != nil {
		return nil, err
	}
	cl.clientID = client
	if a.check != nil {
		if err := a.check(f.version, body); err != nil {
			return nil, err
		}
	}
	if req.ReadFrom(body) != nil { // kmsg knows one error, whose text speaks of a response
		return nil, errors.New("it ends in the middle of a field, or a length in it is wrong")
	}
	return req, nil
}

// room waits until the requests read ahead leave room for n more bytes; one request always has room.
func (c *conn) room(ctx context.Context, n int64) error {
	for {
		ahead := c.ahead.Load()
		if ahead == 0 || ahead+n <= aheadBytes {
			c.ahead.Add(n)
			return nil
		}
		select {
		case <-c.freed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (c *conn) enqueue(ctx context.Context, sl slot) error {
	select {
	case c.slots <- sl:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// write answers requests in order until there are no more or the connection breaks. Responses that are ready together are
// written together.
func (c *conn) write(ctx context.Context) {
	var out *[]byte // nil while there is nothing to write: idle connections hold no buffer
	flush := func() bool {
		if out == nil {
			return true
		}
		_ = c.net.SetWriteDeadline(time.Now().Add(c.srv.cfg.IdleTimeout))
		_, err := c.net.Write(*out)
		if cap(*out) <= keepBuffer {
			*out = (*out)[:0]
			buffers.Put(out)
		}
		out = nil
		return err == nil
	}
	for {
		var sl slot
		var ok bool
		select {
		case sl, ok = <-c.slots:
		default:
			if !flush() {
				return
			}
			sl, ok = <-c.slots
		}
		if !ok {
			flush()
			return
		}
		if sl.turn.ready == nil || !sl.turn.ready() || out != nil && len(*out) >= flushAt {
			if !flush() {
				return
			}
		}
		resp := sl.turn.run(ctx)
		c.done(sl)
		if ctx.Err() != nil {
			return
		}
		if sl.call.hangUp != "" {
			flush()
			c.logClosed("acks=0", sl.call.hangUp, sl.call.clientID, sl.call.api.key, sl.call.version)
			return
		}
		if resp != nil {
			if out == nil {
				out = buffers.Get().(*[]byte)
			}
			*out = appendResponse(*out, sl.call, resp)
		}
		c.srv.cfg.Metrics.Request(sl.call.api.name, sl.call.version, sl.call.clientID, time.Since(sl.call.arrived))
	}
}

func (c *conn) done(sl slot) {
	if sl.bytes == 0 {
		return
	}
	c.ahead.Add(-sl.bytes)
	select {
	case c.freed <- struct{}{}:
	default:
	}
}

// appendResponse appends a framed response. ApiVersions keeps the old response header in every version, so that a client can
// read the answer to a version that the server does not know (KIP-511).
func appendResponse(out []byte, c *call, resp kmsg.Response) []byte {
	at := len(out)
	out = append(out, 0, 0, 0, 0)
	out = binary.BigEndian.AppendUint32(out, uint32(c.corr))
	if resp.IsFlexible() && c.api.key != apiVersionsKey {
		out = append(out, 0)
	}
	out = resp.AppendTo(out)
	binary.BigEndian.PutUint32(out[at:], uint32(len(out)-at-4))
	return out
}
