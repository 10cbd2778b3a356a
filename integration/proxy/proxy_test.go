package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo starts a server "b" that answers each line, behind a network in which "a" reaches it; it returns a connection of a.
func echo(t *testing.T) (*Network, net.Conn, *bufio.Reader) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); c.Close() }()
		}
	}()
	n := New()
	addr, err := n.Add("test", "b", l.Addr().String(), Always("a"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close(); l.Close(); <-done })
	c := dial(t, addr)
	return n, c, bufio.NewReader(c)
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func say(t *testing.T, c net.Conn, line string) {
	t.Helper()
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		t.Fatal(err)
	}
}

// hears reads a line and fails when it is another.
func hears(t *testing.T, c net.Conn, r *bufio.Reader, want string) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	if got, err := r.ReadString('\n'); err != nil || got != want+"\n" {
		t.Fatalf("heard %q, %v; want %q", got, err, want)
	}
}

func hearsNothing(t *testing.T, c net.Conn, r *bufio.Reader) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if got, err := r.Peek(1); !isTimeout(err) {
		t.Fatalf("heard %q, %v; want nothing", got, err)
	}
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

func TestCutHoldsOneDirectionAndHealDelivers(t *testing.T) {
	for _, c := range []struct{ from, to string }{{"a", "b"}, {"b", "a"}} {
		n, conn, r := echo(t)
		say(t, conn, "before")
		hears(t, conn, r, "before")
		n.Cut(c.to+"x", c.from)
		n.Cut(c.from, c.to)
		say(t, conn, "held")
		hearsNothing(t, conn, r)
		say(t, conn, "and this")
		n.Restore(c.from, c.to)
		hears(t, conn, r, "held")
		hears(t, conn, r, "and this")
	}
}

func TestDelayIsLatencyNotLessBandwidth(t *testing.T) {
	n, conn, r := echo(t)
	const delay = 200 * time.Millisecond
	n.Delay("a", "b", delay)
	start := time.Now()
	for range 50 { // one after the other they would take 10 s
		say(t, conn, strings.Repeat("x", 1000))
		time.Sleep(time.Millisecond)
	}
	for range 50 {
		hears(t, conn, r, strings.Repeat("x", 1000))
	}
	if took := time.Since(start); took < delay || took > 45*delay {
		t.Errorf("50 lines took %v with a delay of %v", took, delay)
	}
}

func TestDownRefusesAndUpServesTheSameAddress(t *testing.T) {
	n, conn, r := echo(t)
	addr := conn.RemoteAddr().String()
	say(t, conn, "x")
	hears(t, conn, r, "x")
	n.Cut("a", "b") // a held byte does not keep the connection
	say(t, conn, "held")
	n.Down("b")
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := r.ReadByte(); err == nil || isTimeout(err) {
		t.Fatalf("the connection to a dead end lives: %v", err)
	}
	if c, err := net.Dial("tcp", addr); err == nil {
		c.Close()
		t.Fatal("a dead end accepts")
	}
	n.Heal()
	if err := n.Up("b"); err != nil {
		t.Fatal(err)
	}
	again := dial(t, addr)
	say(t, again, "hello")
	hears(t, again, bufio.NewReader(again), "hello")
}

func TestHalfCloseIsPassedOn(t *testing.T) {
	_, conn, r := echo(t)
	say(t, conn, "last words")
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	hears(t, conn, r, "last words")
	if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
		t.Fatalf("after the half close: %v, want EOF", err)
	}
}

func TestResetClosesTheLinksOfTwoEnds(t *testing.T) {
	n, conn, r := echo(t)
	say(t, conn, "x")
	hears(t, conn, r, "x")
	n.Reset("a", "c")
	say(t, conn, "y")
	hears(t, conn, r, "y")
	n.Reset("b", "a")
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := r.ReadByte(); err == nil || isTimeout(err) {
		t.Fatalf("after the reset: %v", err)
	}
}

func TestClusterPeer(t *testing.T) {
	identify := ClusterPeer(map[string]string{"dirA": "a"})
	hello := func(directory string) []byte {
		body := "\x00\x04dirB\x00\x02id" + "\x00" + string(rune(len(directory))) + directory + "rest"
		return append([]byte{'R', 'b', 'n', 'b', 1, 0, byte(len(body))}, body...)
	}
	if name, err := identify(bytes.NewReader(hello("dirA"))); name != "a" || err != nil {
		t.Errorf("identify = %q, %v; want a", name, err)
	}
	for _, bad := range [][]byte{nil, []byte("GET / HT"), hello("dirC"), hello("dirA")[:12], {'R', 'b', 'n', 'b', 1, 0, 1, 0}} {
		if name, err := identify(bytes.NewReader(bad)); err == nil {
			t.Errorf("%q is identified as %q", bad, name)
		}
	}
}
