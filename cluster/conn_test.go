package cluster

import (
	"bufio"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"
)

// connPair is a conn, whose runWriter the test starts if it wants one, and the other end of its socket.
func connPair(t *testing.T, cfg Config) (*conn, *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	nc, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	cfg = cfg.withDefaults()
	c := newConn(t.Context(), nc, &cfg)
	t.Cleanup(func() { c.fail(ErrStopped); far.Close() })
	return c, far.(*net.TCPConn)
}

func (c *conn) startWriter(t *testing.T) {
	var wg sync.WaitGroup
	wg.Go(c.runWriter)
	t.Cleanup(func() { c.fail(ErrStopped); wg.Wait() })
}

// wants reads frames and expects of each sender (the call's upper half) its numbers in order, and payloads that are whole.
func wants(t *testing.T, br *bufio.Reader, frames int, next map[uint32]uint32) {
	t.Helper()
	for range frames {
		f, err := readFrame(br, maxFrame)
		if err != nil {
			t.Fatal(err)
		}
		who, n := uint32(f.call>>32), uint32(f.call)
		if n != next[who] {
			t.Fatalf("sender %d: frame %d, want %d", who, n, next[who])
		}
		next[who]++
		for i, b := range f.body {
			if b != byte(who+n) {
				t.Fatalf("sender %d: frame %d is broken at byte %d of %d", who, n, i, len(f.body))
			}
		}
	}
}

func sendNumbered(ctx context.Context, c *conn, who, n uint32, size int) error {
	p := make([]byte, size)
	for i := range p {
		p[i] = byte(who + n)
	}
	return c.enqueue(ctx, frameReply, uint64(who)<<32|uint64(n), nil, p)
}

// On a calm connection the caller writes: nobody else runs here.
func TestCalmConnectionIsWrittenByItsCaller(t *testing.T) {
	c, far := connPair(t, Config{})
	br, next := bufio.NewReader(far), map[uint32]uint32{}
	for n := range uint32(5) {
		c.mu.Lock()
		c.wrote = time.Time{} // as if it was long ago
		c.mu.Unlock()
		if err := sendNumbered(testCtx(t), c, 1, n, 100); err != nil {
			t.Fatal(err)
		}
		wants(t, br, 1, next)
	}
	// A payload that is not copied, and a busy connection, are left to the writer.
	c.mu.Lock()
	c.wrote = time.Now().Add(time.Hour)
	c.mu.Unlock()
	if err := sendNumbered(testCtx(t), c, 1, 5, 100); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	waits := c.queued.bytes
	c.wrote = time.Time{}
	c.mu.Unlock()
	if waits == 0 {
		t.Error("a frame on a busy connection was not left to the writer")
	}
	if err := sendNumbered(testCtx(t), c, 1, 6, 2*copyBelow); err != nil {
		t.Fatal(err)
	}
	c.startWriter(t)
	wants(t, br, 2, next)
}

// Whoever writes, each caller's frames come in order and whole.
func TestFramesKeepTheirOrder(t *testing.T) {
	c, far := connPair(t, Config{})
	c.startWriter(t)
	const senders, each = 4, 400
	ctx := testCtx(t)
	var wg sync.WaitGroup
	for who := range uint32(senders) {
		wg.Go(func() {
			for n := range uint32(each) {
				size := rand.IntN(300)
				if rand.IntN(40) == 0 {
					size = 2 * copyBelow
				}
				if err := sendNumbered(ctx, c, who, n, size); err != nil {
					t.Error(err)
					return
				}
				if rand.IntN(4) == 0 { // calm for a moment, now and then
					time.Sleep(2 * calmAfter)
				}
			}
		})
	}
	wants(t, bufio.NewReader(far), senders*each, map[uint32]uint32{})
	wg.Wait()
}

// A peer that reads nothing holds no caller in a write; what the socket took in part is gone on with by the writer.
func TestSlowPeerHoldsNobody(t *testing.T) {
	c, far := connPair(t, Config{MaxQueuedBytes: 64 << 10})
	n, calm := uint32(0), func() {
		c.mu.Lock()
		c.wrote = time.Time{}
		c.mu.Unlock()
	}
	for parted := false; !parted; n++ {
		calm()
		if err := sendNumbered(testCtx(t), c, 1, n, copyBelow-1); err != nil {
			t.Fatal(err)
		}
		c.mu.Lock()
		parted = c.begun != nil
		c.mu.Unlock()
	}
	var err error
	for ; err == nil; n++ { // nobody writes now, so the queue fills up
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err = sendNumbered(ctx, c, 1, n, copyBelow-1)
		cancel()
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	c.startWriter(t)
	wants(t, bufio.NewReader(far), int(n)-1, map[uint32]uint32{})
}

// A peer that takes nothing for WriteTimeout is given up, though the first write to it was its caller's.
func TestWriteTimeoutAfterPartOfAFrame(t *testing.T) {
	c, _ := connPair(t, Config{WriteTimeout: 50 * time.Millisecond})
	c.startWriter(t)
	var err error
	ctx := testCtx(t)
	for n := uint32(0); err == nil; n++ {
		err = sendNumbered(ctx, c, 1, n, copyBelow-1)
	}
	if !errors.Is(err, ErrLost) {
		t.Fatal(err)
	}
}

// A connection that ends while frames are written is told to all their callers, by whichever side.
func TestEndWhileWriting(t *testing.T) {
	for name, end := range map[string]func(*conn, *net.TCPConn){
		"here":  func(c *conn, _ *net.TCPConn) { c.fail(ErrStopped) },
		"there": func(_ *conn, far *net.TCPConn) { _ = far.SetLinger(0); _ = far.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			c, far := connPair(t, Config{})
			c.startWriter(t)
			begun := make(chan struct{})
			errs, ctx := make(chan error), testCtx(t)
			for who := range uint32(4) {
				go func() {
					var err error
					for n := uint32(0); err == nil; n++ {
						if n == 50 && who == 0 {
							close(begun)
						}
						err = sendNumbered(ctx, c, who, n, 100)
						time.Sleep(calmAfter)
					}
					errs <- err
				}()
			}
			go func() { // until the end
				br := bufio.NewReader(far)
				for {
					if _, err := readFrame(br, maxFrame); err != nil {
						return
					}
				}
			}()
			<-begun
			end(c, far)
			for range 4 {
				if err := <-errs; !errors.Is(err, ErrStopped) && !errors.Is(err, ErrLost) {
					t.Error(err)
				}
			}
		})
	}
}

// noTCP hides what is below, as TLS does.
type noTCP struct{ net.Conn }

// Only a bare TCP connection is written to below net.Conn.
func TestWrappedConnectionIsWrittenThrough(t *testing.T) {
	c, far := connPair(t, Config{})
	cfg := Config{}.withDefaults()
	w := newConn(t.Context(), noTCP{c.nc}, &cfg)
	if w.raw != nil {
		t.Fatal("what wraps a connection was passed over")
	}
	w.startWriter(t)
	if err := sendNumbered(testCtx(t), w, 1, 0, 10); err != nil {
		t.Fatal(err)
	}
	wants(t, bufio.NewReader(far), 1, map[uint32]uint32{})
}
