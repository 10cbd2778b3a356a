package cluster

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Frames of an RPC connection, both ways: `length u32 | type u8 | call u64 | rest`; length counts what follows it.
const (
	frameRequest  byte = 1 // timeout ms u32 (0: none) | method u8 length and bytes | payload
	frameReply    byte = 2 // payload
	frameError    byte = 3 // code u16 | message
	frameCancel   byte = 4 // the caller has gone
	frameIdentity byte = 5 // Identity: the sender has been registered, or has joined, since the handshake

	frameHead     = 9 // type and call
	frameSlack    = 1024
	maxFrame      = MaxPayload + frameSlack
	strangerFrame = 1 << 20 // what a peer of no known cluster may send in one frame

	copyBelow = 16 << 10 // payloads below are copied into the batch's buffer, larger ones are written from where they are
	grown     = 1 << 20  // scratch above this size is not kept for the next batch
)

// batch is what the next write to the socket carries.
type batch struct {
	segs    net.Buffers // sealed parts in order
	scratch []byte      // scratch[sealed:] comes after segs
	sealed  int
	bytes   int
}

func (b *batch) add(head []byte, payload [][]byte) {
	b.scratch = append(b.scratch, head...)
	b.bytes += len(head)
	for _, p := range payload {
		b.bytes += len(p)
		if len(p) < copyBelow {
			b.scratch = append(b.scratch, p...)
			continue
		}
		b.seal()
		b.segs = append(b.segs, p)
	}
}

func (b *batch) seal() {
	if b.sealed < len(b.scratch) {
		b.segs = append(b.segs, b.scratch[b.sealed:])
		b.sealed = len(b.scratch)
	}
}

func (b *batch) reset() {
	clear(b.segs)
	b.segs = b.segs[:0]
	b.scratch, b.sealed, b.bytes = b.scratch[:0], 0, 0
	if cap(b.scratch) > grown {
		b.scratch = nil
	}
}

// conn writes frames to one socket from one goroutine (run), which takes everything queued in one system call: so many
// callers share writes, and no caller is ever held in one by a peer that has stopped reading.
type conn struct {
	nc           net.Conn
	writeTimeout time.Duration
	limit        int
	ctx          context.Context // ended by fail
	cancel       context.CancelCauseFunc
	wake         chan struct{}

	mu      sync.Mutex
	queued  *batch
	drained chan struct{} // closed when a full queue has been taken; nil when nobody waits
}

func newConn(ctx context.Context, nc net.Conn, cfg *Config) *conn {
	c := &conn{nc: nc, writeTimeout: cfg.WriteTimeout, limit: cfg.MaxQueuedBytes, wake: make(chan struct{}, 1), queued: &batch{}}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	return c
}

// fail ends the connection; the first cause is kept, as ErrStopped or ErrLost.
func (c *conn) fail(cause error) {
	if !errors.Is(cause, ErrLost) && !errors.Is(cause, ErrStopped) {
		cause = fmt.Errorf("%w: %w", ErrLost, cause)
	}
	c.cancel(cause)
	c.nc.Close()
}

func (c *conn) cause() error { return context.Cause(c.ctx) }

// enqueue queues one frame, waiting while the queue is over its limit until ctx ends. The payload belongs to the
// connection from now on.
func (c *conn) enqueue(ctx context.Context, typ byte, call uint64, fixed []byte, payload ...[]byte) error {
	n := frameHead + len(fixed)
	for _, p := range payload {
		n += len(p)
	}
	if n > maxFrame {
		return fmt.Errorf("cluster: %w: %d bytes, at most %d", ErrTooLarge, n, MaxPayload)
	}
	head := frameHeader(typ, call, n)
	for {
		c.mu.Lock()
		if c.ctx.Err() != nil {
			c.mu.Unlock()
			return c.cause()
		}
		if c.queued.bytes == 0 || c.queued.bytes+n <= c.limit {
			c.queued.add(head[:], nil)
			c.queued.add(fixed, payload)
			c.mu.Unlock()
			c.awake()
			return nil
		}
		if c.drained == nil {
			c.drained = make(chan struct{})
		}
		drained := c.drained
		c.mu.Unlock()
		select {
		case <-drained:
		case <-ctx.Done():
			return ctx.Err()
		case <-c.ctx.Done():
			return c.cause()
		}
	}
}

// push queues a small frame whatever the limit, without waiting.
func (c *conn) push(typ byte, call uint64, fixed []byte) {
	head := frameHeader(typ, call, frameHead+len(fixed))
	c.mu.Lock()
	c.queued.add(head[:], nil)
	c.queued.add(fixed, nil)
	c.mu.Unlock()
	c.awake()
}

func (c *conn) awake() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func frameHeader(typ byte, call uint64, n int) (head [4 + frameHead]byte) {
	binary.BigEndian.PutUint32(head[:], uint32(n))
	head[4] = typ
	binary.BigEndian.PutUint64(head[5:], call)
	return head
}

// runWriter writes until the connection fails. Its caller owns the goroutine.
func (c *conn) runWriter() {
	spare := &batch{}
	for {
		select {
		case <-c.wake:
		case <-c.ctx.Done():
			return
		}
		for {
			c.mu.Lock()
			b := c.queued
			if b.bytes == 0 {
				c.mu.Unlock()
				break
			}
			c.queued = spare
			if c.drained != nil {
				close(c.drained)
				c.drained = nil
			}
			c.mu.Unlock()
			if err := c.write(b); err != nil {
				c.fail(fmt.Errorf("write: %w", err))
				return
			}
			b.reset()
			spare = b
		}
	}
}

func (c *conn) write(b *batch) error {
	b.seal()
	if err := c.nc.SetWriteDeadline(time.Now().Add(c.writeTimeout)); err != nil {
		return err
	}
	segs := b.segs // WriteTo moves the slice it is given
	_, err := segs.WriteTo(c.nc)
	return err
}

// frame is one received frame; body is the receiver's own.
type frame struct {
	typ  byte
	call uint64
	body []byte
}

// readFrame reads one frame of at most limit bytes.
func readFrame(br *bufio.Reader, limit int) (frame, error) {
	var head [4 + frameHead]byte
	if _, err := io.ReadFull(br, head[:]); err != nil {
		return frame{}, err
	}
	n := int(binary.BigEndian.Uint32(head[:]))
	if n < frameHead || n > limit {
		return frame{}, fmt.Errorf("frame of %d bytes announced, at most %d here", n, limit)
	}
	f := frame{typ: head[4], call: binary.BigEndian.Uint64(head[5:]), body: make([]byte, n-frameHead)}
	if _, err := io.ReadFull(br, f.body); err != nil {
		return frame{}, err
	}
	return f, nil
}
