package broker

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// client is a raw connection: it sends what it is told to.
type client struct {
	t    testing.TB
	c    net.Conn
	in   *bufio.Reader
	corr int32
}

func (f *fixture) dial(t testing.TB) *client {
	t.Helper()
	c, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &client{t: t, c: c, in: bufio.NewReader(c)}
}

func (c *client) write(b []byte) {
	c.t.Helper()
	if _, err := c.c.Write(b); err != nil {
		c.t.Fatal(err)
	}
}

// frameOf is a framed request as a client with the id "cli" sends it.
func frameOf(req kmsg.Request, corr int32) []byte {
	return kmsg.NewRequestFormatter(kmsg.FormatterClientID("cli")).AppendRequest(nil, req, corr)
}

func (c *client) send(req kmsg.Request) int32 {
	c.t.Helper()
	c.corr++
	c.write(frameOf(req, c.corr))
	return c.corr
}

// frame reads one response: correlation id and what follows.
func (c *client) frame() (int32, []byte, error) {
	_ = c.c.SetReadDeadline(time.Now().Add(time.Minute))
	var size [4]byte
	if _, err := io.ReadFull(c.in, size[:]); err != nil {
		return 0, nil, err
	}
	b := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(c.in, b); err != nil {
		return 0, nil, err
	}
	if len(b) < 4 {
		return 0, nil, fmt.Errorf("a response of %d bytes", len(b))
	}
	return int32(binary.BigEndian.Uint32(b)), b[4:], nil
}

// receive reads the response to req into its kind.
func (c *client) receive(req kmsg.Request) kmsg.Response {
	c.t.Helper()
	_, body, err := c.frame()
	if err != nil {
		c.t.Fatalf("response to %s v%d: %v", kmsg.NameForKey(req.Key()), req.GetVersion(), err)
	}
	resp := req.ResponseKind()
	if resp.IsFlexible() && req.Key() != apiVersionsKey {
		body = body[1:]
	}
	if err := resp.ReadFrom(body); err != nil {
		c.t.Fatalf("response to %s v%d: %v (% x)", kmsg.NameForKey(req.Key()), req.GetVersion(), err, body)
	}
	return resp
}

func ask[R kmsg.Response](c *client, req kmsg.Request) R {
	c.t.Helper()
	c.send(req)
	return c.receive(req).(R)
}

// closed waits for the server to close the connection without an answer.
func (c *client) closed() {
	c.t.Helper()
	if _, b, err := c.frame(); err == nil {
		c.t.Fatalf("an answer (% x) where the connection should be closed", b)
	}
}

func versions(max int16) []int16 {
	var out []int16
	for v := int16(0); v <= max; v++ {
		out = append(out, v)
	}
	return out
}
