package cluster

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/loglimit"
	"github.com/barnabas-mq/barnabas/internal/testtool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testCluster = "c1"

// patience is for what must happen soon; the machine is shared.
const patience = 2 * time.Minute

func testCtx(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func start(t testing.TB, dir string, change func(*Config)) *Cluster {
	t.Helper()
	cfg := Config{Listen: "127.0.0.1:0", Directory: id.DirectoryID(dir), ClusterID: testCluster, Incarnation: 1, Version: "test"}
	if change != nil {
		change(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	return c
}

// pair is two nodes that know each other.
func pair(t testing.TB) (a, b *Cluster) {
	a, b = start(t, "a", nil), start(t, "b", nil)
	a.SetAddress("b", b.Addr().String())
	b.SetAddress("a", a.Addr().String())
	return a, b
}

func echo(_ context.Context, _ Peer, p []byte) ([]byte, error) { return p, nil }

func TestCallEchoesAllSizes(t *testing.T) {
	a, b := pair(t)
	b.Handle("echo", echo)
	for _, n := range []int{0, 1, 100, copyBelow - 1, copyBelow, 1 << 20, MaxPayload} {
		in := bytes.Repeat([]byte{byte(n), 7}, n/2+1)[:n]
		call := a.Call
		if n > 1<<20 {
			call = a.CallBulk
		}
		out, err := call(testCtx(t), ToDirectory("b"), "echo", in)
		if err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		if !bytes.Equal(in, out) {
			t.Fatalf("%d bytes came back as %d other bytes", n, len(out))
		}
	}
	if _, err := a.Call(testCtx(t), ToDirectory("b"), "echo", make([]byte, MaxPayload+1)); !errors.Is(err, ErrTooLarge) || !NotSent(err) {
		t.Fatalf("above the limit: %v", err)
	}
}

func TestVecReplyIsOnePayload(t *testing.T) {
	a, b := pair(t)
	big := bytes.Repeat([]byte("x"), copyBelow*2)
	b.HandleVec("vec", func(context.Context, Peer, []byte) (net.Buffers, error) {
		return net.Buffers{[]byte("head"), big, []byte("tail")}, nil
	})
	out, err := a.Call(testCtx(t), ToDirectory("b"), "vec", nil)
	if err != nil || string(out) != "head"+string(big)+"tail" {
		t.Fatalf("got %d bytes, %v", len(out), err)
	}
}

func TestTypedErrorsCrossTheWire(t *testing.T) {
	a, b := pair(t)
	b.Handle("typed", func(context.Context, Peer, []byte) ([]byte, error) {
		return nil, fmt.Errorf("wrapped: %w", &Error{Code: 123, Message: "no such thing"})
	})
	b.Handle("plain", func(context.Context, Peer, []byte) ([]byte, error) { return nil, io.ErrUnexpectedEOF })
	for _, c := range []struct {
		method string
		code   Code
	}{{"typed", 123}, {"plain", CodeInternal}, {"absent", CodeNoMethod}} {
		_, err := a.Call(testCtx(t), ToDirectory("b"), c.method, nil)
		if CodeOf(err) != c.code || !errors.Is(err, &Error{Code: c.code}) {
			t.Errorf("%s: %v", c.method, err)
		}
		if NotSent(err) != (c.code == CodeNoMethod) {
			t.Errorf("%s: NotSent is %v", c.method, NotSent(err))
		}
	}
}

func TestParkedCallEndsWithItsCaller(t *testing.T) {
	a, b := pair(t)
	parked, ended := make(chan struct{}, 1), make(chan error, 1)
	b.Handle("park", func(ctx context.Context, _ Peer, _ []byte) ([]byte, error) {
		parked <- struct{}{}
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	})
	ctx, cancel := context.WithCancel(testCtx(t))
	go func() { <-parked; cancel() }()
	if _, err := a.Call(ctx, ToDirectory("b"), "park", nil); !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled call: %v", err)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatalf("handler: %v", err)
	}
	// A deadline crosses the wire too.
	short, cancel2 := context.WithTimeout(testCtx(t), 20*time.Millisecond)
	defer cancel2()
	_, err := a.Call(short, ToDirectory("b"), "park", nil)
	if !errors.Is(err, ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) || NotSent(err) {
		t.Fatalf("timed out call: %v", err)
	}
	<-ended
}

func TestDisconnectCancelsHandlersAndCallers(t *testing.T) {
	a, b := pair(t)
	parked, ended := make(chan struct{}), make(chan struct{})
	b.Handle("park", func(ctx context.Context, _ Peer, _ []byte) ([]byte, error) {
		close(parked)
		<-ctx.Done()
		close(ended)
		return nil, ctx.Err()
	})
	result := make(chan error, 1)
	go func() {
		_, err := a.Call(testCtx(t), ToDirectory("b"), "park", nil)
		result <- err
	}()
	<-parked
	lost := make(chan Peer, 8)
	b.OnPeerLost(func(p Peer) { lost <- p })
	a.Stop()
	if err := <-result; !errors.Is(err, ErrStopped) {
		t.Fatalf("call of a stopped port: %v", err)
	}
	<-ended
	if p := <-lost; p.Directory != "a" {
		t.Fatalf("lost %s", p.Directory)
	}
	if _, err := b.Call(testCtx(t), ToDirectory("a"), "x", nil); !errors.Is(err, ErrRefused) || !errors.Is(err, ErrUnreachable) {
		t.Fatalf("call to a dead process: %v", err)
	}
	if _, err := b.Probe(testCtx(t), ToDirectory("a")); !errors.Is(err, ErrRefused) {
		t.Fatalf("probe of a dead process: %v", err)
	}
}

// A probe must not look like a lost connection: two nodes would probe each other for ever.
func TestProbeIsNoLostConnection(t *testing.T) {
	a, b := pair(t)
	lost := make(chan Peer, 8)
	b.OnPeerLost(func(p Peer) { lost <- p })
	p, err := a.Probe(testCtx(t), ToDirectory("b"))
	if err != nil || p.Directory != "b" || p.Version != "test" {
		t.Fatal(p, err)
	}
	b.Handle("echo", echo)
	if _, err := a.Call(testCtx(t), ToDirectory("b"), "echo", nil); err != nil {
		t.Fatal(err)
	}
	a.Stop()
	<-lost // of the call's connection
	select {
	case p := <-lost:
		t.Fatal("lost another connection with", p.Directory)
	default:
	}
}

func TestServerStopLosesCallsThenRefuses(t *testing.T) {
	a, b := pair(t)
	parked := make(chan struct{})
	b.Handle("park", func(ctx context.Context, _ Peer, _ []byte) ([]byte, error) {
		close(parked)
		<-ctx.Done()
		return nil, ctx.Err()
	})
	result := make(chan error, 1)
	go func() {
		_, err := a.Call(testCtx(t), ToDirectory("b"), "park", nil)
		result <- err
	}()
	<-parked
	b.Stop()
	if err := <-result; !errors.Is(err, ErrLost) && CodeOf(err) != CodeCanceled || NotSent(err) {
		t.Fatalf("call to a stopping peer: %v", err)
	}
}

func TestCallSelfNeedsNoNetwork(t *testing.T) {
	a, _ := pair(t)
	a.SetBroker(4, "a")
	a.Handle("who", func(_ context.Context, p Peer, b []byte) ([]byte, error) { return []byte(p.Directory), nil })
	out, err := a.Call(testCtx(t), ToBroker(4), "who", nil)
	if err != nil || string(out) != "a" {
		t.Fatalf("%q %v", out, err)
	}
}

func TestHandshakeRefusals(t *testing.T) {
	a := start(t, "a", nil)
	other := start(t, "o", func(c *Config) { c.ClusterID = "c2" })
	stranger := start(t, "s", func(c *Config) { c.ClusterID = "" })
	for _, c := range []*Cluster{a, other, stranger} {
		c.Handle("closed", echo)
		c.HandleOpen("open", echo)
	}
	ctx := testCtx(t)
	to := func(c *Cluster) Target { return ToAddr(c.Addr().String()) }
	if _, err := other.Call(ctx, to(a), "open", nil); !errors.Is(err, ErrHandshake) {
		t.Errorf("wrong cluster id: %v", err)
	}
	if _, err := stranger.Call(ctx, to(a), "open", nil); err != nil {
		t.Errorf("open method for a stranger: %v", err)
	}
	if _, err := stranger.Call(ctx, to(a), "closed", nil); CodeOf(err) != CodeStranger {
		t.Errorf("closed method for a stranger: %v", err)
	}
	stranger.SetClusterID(testCluster) // the open connection becomes a member's
	if _, err := stranger.Call(ctx, to(a), "closed", nil); err != nil {
		t.Errorf("after joining: %v", err)
	}
	a.SetAddress("z", other.Addr().String())
	a.SetAddress("y", stranger.Addr().String())
	if _, err := a.Call(ctx, ToDirectory("y"), "closed", nil); !errors.Is(err, ErrWrongPeer) || !errors.Is(err, ErrUnreachable) {
		t.Errorf("another directory at the address: %v", err)
	}
	if _, err := a.Call(ctx, ToDirectory("nowhere"), "closed", nil); !errors.Is(err, ErrUnreachable) {
		t.Errorf("unknown directory: %v", err)
	}
}

func TestPeerLearnsRegistrationOnOpenConnection(t *testing.T) {
	a, b := pair(t)
	b.Handle("who", func(_ context.Context, p Peer, _ []byte) ([]byte, error) {
		return fmt.Appendf(nil, "%d/%d", p.Broker, p.Epoch), nil
	})
	ctx := testCtx(t)
	if out, err := a.Call(ctx, ToDirectory("b"), "who", nil); err != nil || string(out) != "-1/0" {
		t.Fatalf("%s %v", out, err)
	}
	a.SetRegistration(3, 99)
	if out, err := a.Call(ctx, ToDirectory("b"), "who", nil); err != nil || string(out) != "3/99" {
		t.Fatalf("%s %v", out, err)
	}
}

// A broker that registers again while it dials must not be taken for its former incarnation on that connection for ever: its
// replica fetches would all be refused as stale.
func TestPeerLearnsRegistrationMadeDuringTheHandshake(t *testing.T) {
	ctx := testCtx(t)
	said, registered := make(chan struct{}), make(chan struct{})
	a := start(t, "a", func(c *Config) {
		c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			nc, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
			return &lateWelcome{Conn: nc, said: said, goOn: registered}, err
		}
	})
	b := start(t, "b", nil)
	a.SetAddress("b", b.Addr().String())
	b.Handle("who", func(_ context.Context, p Peer, _ []byte) ([]byte, error) {
		return fmt.Appendf(nil, "%d/%d", p.Broker, p.Epoch), nil
	})
	a.SetRegistration(3, 7)
	go func() {
		<-said
		a.SetRegistration(3, 25)
		close(registered)
	}()
	if out, err := a.Call(ctx, ToDirectory("b"), "who", nil); err != nil || string(out) != "3/25" {
		t.Fatalf("%s %v, want 3/25", out, err)
	}
}

// lateWelcome holds the first read, which follows the hello, until goOn is closed.
type lateWelcome struct {
	net.Conn
	once       sync.Once
	said, goOn chan struct{}
}

func (l *lateWelcome) Read(b []byte) (int, error) {
	l.once.Do(func() {
		close(l.said)
		<-l.goOn
	})
	return l.Conn.Read(b)
}

func TestGarbageIsRefusedAndTheNextPeerServed(t *testing.T) {
	a, b := pair(t)
	b.Handle("echo", echo)
	hello := func(kind byte, protocol byte) []byte {
		var w bytes.Buffer
		if err := writeHello(&w, kind, "b", a.Self()); err != nil {
			t.Fatal(err)
		}
		w.Bytes()[4] = protocol
		return w.Bytes()
	}
	good := hello(kindRPC, protocolVersion)
	for name, in := range map[string][]byte{
		"http":           []byte("GET / HTTP/1.1\r\n\r\n"),
		"kind only":      {kindRPC},
		"magic wrong":    []byte("Cxxx\x01\x00\x00"),
		"other protocol": hello(kindRPC, 9),
		"hello cut":      good[:len(good)-3],
		"raft untaken":   hello(kindRaft, protocolVersion),
		"2 GB frame":     append(bytes.Clone(good), 0x7f, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0, 0, 0, 0, 1),
		"short frame":    append(bytes.Clone(good), 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1),
		"unknown frame":  append(bytes.Clone(good), 0, 0, 0, 9, 77, 0, 0, 0, 0, 0, 0, 0, 1),
		"bad request":    append(bytes.Clone(good), 0, 0, 0, 11, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0),
	} {
		nc, err := net.Dial("tcp", b.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := nc.Write(in); err != nil {
			t.Fatal(err)
		}
		if name == "hello cut" || name == "kind only" {
			nc.(*net.TCPConn).CloseWrite()
		}
		nc.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.Copy(io.Discard, nc); errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
			t.Errorf("%s: connection was not closed", name)
		}
		nc.Close()
	}
	if _, err := a.Call(testCtx(t), ToDirectory("b"), "echo", []byte("x")); err != nil {
		t.Fatal(err)
	}
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// A peer that reads nothing must not hold its callers past their deadlines, nor the other connections.
func TestStuckPeerHoldsNobody(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var conns sync.WaitGroup
	stuck := make(chan struct{})
	conns.Go(func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer nc.Close()
				var first [1]byte
				nc.Read(first[:])
				_, peer, _, err := readHello(nc)
				if err == nil {
					peer.Directory = "stuck"
					writeWelcome(nc, statusOK, peer.append(nil))
				}
				<-stuck
			})
		}
	})
	a, b := pair(t)
	b.Handle("echo", echo)
	a.SetAddress("stuck", ln.Addr().String())
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() {
			ctx, cancel := context.WithTimeout(testCtx(t), 200*time.Millisecond)
			defer cancel()
			if _, err := a.Call(ctx, ToDirectory("stuck"), "x", make([]byte, 2<<20)); !errors.Is(err, ErrTimeout) {
				t.Errorf("stuck: %v", err)
			}
		})
	}
	if _, err := a.Call(testCtx(t), ToDirectory("b"), "echo", nil); err != nil {
		t.Error(err)
	}
	callers.Wait()
	close(stuck)
	ln.Close()
	conns.Wait()
}

func TestBusyRefusesAboveMaxCalls(t *testing.T) {
	a := start(t, "a", nil)
	b := start(t, "b", func(c *Config) { c.MaxCalls = 2 })
	a.SetAddress("b", b.Addr().String())
	parked := make(chan struct{}, 2)
	b.Handle("park", func(ctx context.Context, _ Peer, _ []byte) ([]byte, error) {
		parked <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	})
	ctx, cancel := context.WithCancel(testCtx(t))
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { a.Call(ctx, ToDirectory("b"), "park", nil) })
	}
	<-parked
	<-parked
	if _, err := a.Call(ctx, ToDirectory("b"), "park", nil); CodeOf(err) != CodeBusy || !NotSent(err) {
		t.Errorf("third call: %v", err)
	}
	cancel()
	wg.Wait()
}

func TestManyConcurrentCalls(t *testing.T) {
	a, b := pair(t)
	a.Handle("echo", echo)
	b.Handle("echo", echo)
	var n atomic.Int64
	var wg sync.WaitGroup
	for i := range 64 {
		from, to := a, ToDirectory("b")
		if i%2 == 1 {
			from, to = b, ToDirectory("a")
		}
		wg.Go(func() {
			for j := range 200 {
				in := fmt.Appendf(nil, "%d-%d", i, j)
				out, err := from.Call(testCtx(t), to, "echo", in)
				if err != nil || !bytes.Equal(in, out) {
					t.Errorf("%s: %s %v", in, out, err)
					return
				}
				n.Add(1)
			}
		})
	}
	wg.Wait()
	if n.Load() != 64*200 {
		t.Fatal(n.Load())
	}
}

func TestStreamLayerCarriesRaftStreams(t *testing.T) {
	a, b := pair(t)
	la, lb := a.StreamLayer(), b.StreamLayer()
	got := make(chan string, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		nc, err := lb.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		buf := make([]byte, 5)
		io.ReadFull(nc, buf)
		got <- string(buf)
		nc.Read(buf) // until the layer closes it
	}()
	addr, err := a.AddressProvider().ServerAddr("b")
	if err != nil {
		t.Fatal(err)
	}
	nc, err := la.Dial(addr, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	nc.Write([]byte("hello"))
	if s := <-got; s != "hello" {
		t.Fatal(s)
	}
	lb.Close()
	<-done
	if _, err := lb.Accept(); !errors.Is(err, ErrStopped) {
		t.Fatal(err)
	}
	if _, err := la.Dial(addr, time.Second); !errors.Is(err, ErrHandshake) {
		t.Fatalf("dial of a closed layer: %v", err)
	}
	if _, err := a.AddressProvider().ServerAddr("q"); err == nil {
		t.Fatal("address of an unknown directory")
	}
	b.StreamLayer().Close() // may be taken again
	la.Close()
}

func TestMovedAddressIsUsed(t *testing.T) {
	a, b := pair(t)
	b.Handle("echo", echo)
	ctx := testCtx(t)
	if _, err := a.Call(ctx, ToDirectory("b"), "echo", nil); err != nil {
		t.Fatal(err)
	}
	b.Stop()
	b2 := start(t, "b", func(c *Config) { c.Incarnation = 2 })
	b2.Handle("echo", echo)
	a.SetAddress("b", b2.Addr().String())
	if _, err := a.Call(ctx, ToDirectory("b"), "echo", nil); err != nil {
		t.Fatal(err)
	}
}

func BenchmarkCall(b *testing.B) {
	x, y := pair(b)
	y.Handle("echo", echo)
	payload := make([]byte, 128)
	b.Run("serial", func(b *testing.B) {
		for b.Loop() {
			if _, err := x.Call(context.Background(), ToDirectory("b"), "echo", payload); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.SetParallelism(64 / runtime.GOMAXPROCS(0))
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := x.Call(context.Background(), ToDirectory("b"), "echo", payload); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
	big := make([]byte, 8<<20)
	y.HandleVec("big", func(context.Context, Peer, []byte) (net.Buffers, error) { return net.Buffers{big}, nil })
	b.Run("bulk8MiB", func(b *testing.B) {
		b.SetBytes(int64(len(big)))
		for b.Loop() {
			if _, err := x.CallBulk(context.Background(), ToDirectory("b"), "big", nil); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func FuzzHandshake(f *testing.F) {
	var w bytes.Buffer
	if err := writeHello(&w, kindRPC, "b", Identity{ClusterID: "c", Directory: "a", Version: "v", Addr: "h:1"}); err != nil {
		f.Fatal(err)
	}
	f.Add(w.Bytes()[1:])
	f.Fuzz(func(t *testing.T, b []byte) {
		_, peer, status, err := readHello(bytes.NewReader(b))
		if err == nil && (peer.Directory == "" || status != statusOK) {
			t.Fatal("accepted", peer, status)
		}
		_, _ = readWelcome(bytes.NewReader(b))
		_, _ = decodeReportReply(b)
	})
}

func FuzzFrame(f *testing.F) {
	f.Add([]byte{0, 0, 0, 11, 1, 0, 0, 0, 0, 0, 0, 0, 1, 'x', 'y'})
	f.Fuzz(func(t *testing.T, b []byte) {
		br := bufio.NewReader(bytes.NewReader(b))
		for {
			fr, err := readFrame(br, 1000)
			if err != nil {
				return
			}
			if len(fr.body) > 1000 {
				t.Fatal(len(fr.body))
			}
		}
	})
}

// A scanner, or a client that takes the port for another, must not fill the log.
func TestRefusedConnectionsDoNotFillTheLog(t *testing.T) {
	var text testtool.Log
	a := start(t, "a", func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&text, nil)) })
	begin := time.Now()
	const many = 20 * loglimit.Burst
	for i := range many {
		nc, err := net.Dial("tcp", a.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := nc.Write([]byte{byte(0x80 | i)}); err != nil {
			t.Fatal(err)
		}
		_, _ = io.ReadAll(nc) // until it is closed, after the line is written
		nc.Close()
	}
	most := loglimit.Burst + 1 + int(time.Since(begin)/loglimit.Every)
	if n := strings.Count(text.String(), "connection refused"); n < 1 || n > most {
		t.Errorf("%d bad connections wrote %d lines, %d are the most:\n%s", many, n, most, text.String())
	}
}
