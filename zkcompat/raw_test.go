package zkcompat_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/zkcompat"
	"github.com/barnabas-mq/barnabas/zkcompat/jute"
)

// serve runs a server on a free port until the test ends.
func serve(t testing.TB, b zkcompat.Backend, edit func(*zkcompat.Config)) (*zkcompat.Server, string) {
	t.Helper()
	// Generous times: a busy machine is not what these tests are about.
	cfg := zkcompat.Config{Backend: b, UngatedPings: true, HandshakeTimeout: time.Minute, ConnectTimeout: time.Minute,
		Log: slog.New(slog.NewTextHandler(testLog{t}, nil))}
	if edit != nil {
		edit(&cfg)
	}
	s, err := zkcompat.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error("Serve:", err)
		}
	})
	return s, l.Addr().String()
}

type testLog struct{ t testing.TB }

func (l testLog) Write(b []byte) (int, error) {
	if testing.Verbose() {
		l.t.Logf("%s", b)
	}
	return len(b), nil
}

// rawClient speaks frames: what it sends and reads is exactly what goes over the wire.
type rawClient struct {
	t    testing.TB
	nc   net.Conn
	resp jute.ConnectResponse
	xid  int32
}

// message is a reply or an event.
type message struct {
	jute.ReplyHeader
	body []byte
}

func (m message) event() (jute.Event, bool) {
	var e jute.Event
	return e, m.Xid == jute.XidEvent && e.Decode(m.body) == nil
}

func (m message) String() string {
	if e, ok := m.event(); ok {
		return fmt.Sprintf("event %d %s", e.Type, e.Path)
	}
	return fmt.Sprintf("reply xid %d %v %x", m.Xid, m.Err, m.body)
}

func dialRaw(t testing.TB, addr string) *rawClient {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	return &rawClient{t: t, nc: nc}
}

// connect opens (or with id and password resumes) a session.
func connect(t testing.TB, addr string, req jute.ConnectRequest) *rawClient {
	t.Helper()
	c := dialRaw(t, addr)
	if err := c.handshake(req); err != nil {
		t.Fatal("connect:", err)
	}
	return c
}

func session(t testing.TB, addr string) *rawClient {
	t.Helper()
	return connect(t, addr, jute.ConnectRequest{TimeoutMs: 10_000, Password: make([]byte, 16), HasReadOnly: true})
}

func (c *rawClient) handshake(req jute.ConnectRequest) error {
	c.write(req.Append(nil))
	b, err := c.frame(time.Minute)
	if err != nil {
		return err
	}
	return c.resp.Decode(b)
}

func (c *rawClient) write(body []byte) {
	c.t.Helper()
	b := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
	if _, err := c.nc.Write(append(b, body...)); err != nil {
		c.t.Log("write:", err)
	}
}

func (c *rawClient) frame(wait time.Duration) ([]byte, error) {
	_ = c.nc.SetReadDeadline(time.Now().Add(wait))
	var n [4]byte
	if _, err := io.ReadFull(c.nc, n[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint32(n[:]))
	_, err := io.ReadFull(c.nc, b)
	return b, err
}

type appender interface{ Append([]byte) []byte }

// send sends a request and returns its xid.
func (c *rawClient) send(op jute.Op, rec appender) int32 {
	c.t.Helper()
	c.xid++
	c.sendXid(c.xid, op, rec)
	return c.xid
}

func (c *rawClient) sendXid(xid int32, op jute.Op, rec appender) {
	c.t.Helper()
	b := jute.RequestHeader{Xid: xid, Op: op}.Append(nil)
	if rec != nil {
		b = rec.Append(b)
	}
	c.write(b)
}

// next reads one message.
func (c *rawClient) next() message {
	c.t.Helper()
	m, err := c.tryNext(time.Minute)
	if err != nil {
		c.t.Fatal("read:", err)
	}
	return m
}

func (c *rawClient) tryNext(wait time.Duration) (message, error) {
	b, err := c.frame(wait)
	if err != nil {
		return message{}, err
	}
	var m message
	m.ReplyHeader, m.body, err = jute.DecodeReply(b)
	return m, err
}

// call sends a request and returns its reply and the events that came first.
func (c *rawClient) call(op jute.Op, rec appender) (message, []jute.Event) {
	c.t.Helper()
	xid := c.send(op, rec)
	var events []jute.Event
	for {
		m := c.next()
		if e, ok := m.event(); ok {
			events = append(events, e)
			continue
		}
		if m.Xid == jute.XidPing && op != jute.OpPing {
			continue
		}
		if m.Xid != xid && op != jute.OpPing {
			c.t.Fatalf("reply to %d while %d was waited for", m.Xid, xid)
		}
		return m, events
	}
}

func (c *rawClient) must(op jute.Op, rec appender) message {
	c.t.Helper()
	m, _ := c.call(op, rec)
	if m.Err != jute.OK {
		c.t.Fatalf("%v %+v: %v", op, rec, m.Err)
	}
	return m
}

func (c *rawClient) create(path string, data string, flags int32) string {
	c.t.Helper()
	m := c.must(jute.OpCreate, &jute.CreateRequest{Path: path, Data: []byte(data), ACL: jute.OpenACL, Flags: flags})
	d := jute.NewDecoder(m.body)
	return d.String()
}

// closed tells whether the server closes the connection within the time, and what it said before.
func (c *rawClient) closed(wait time.Duration) (bool, []message) {
	var got []message
	for end := time.Now().Add(wait); time.Now().Before(end); {
		m, err := c.tryNext(time.Until(end))
		if err != nil {
			ne, ok := err.(net.Error)
			return !(ok && ne.Timeout()), got
		}
		got = append(got, m)
	}
	return false, got
}
