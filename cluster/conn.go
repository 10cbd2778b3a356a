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
	"syscall"
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

	// A caller writes its frame itself when nothing was written for calmAfter: to wake another goroutine, and often another thread,
	// for it is most of what a small message costs. On a busy connection frames are gathered by the writer instead.
	calmAfter = 250 * time.Microsecond
)

// batch is what the next write to the socket carries.
type batch struct {
	segs    net.Buffers // sealed parts in order
	scratch []byte      // scratch[sealed:] comes after segs
	sealed  int
	bytes   int
	written int // bytes of scratch that are on the socket already
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
	b.scratch, b.sealed, b.bytes, b.written = b.scratch[:0], 0, 0, 0
	if cap(b.scratch) > grown {
		b.scratch = nil
	}
}

// conn writes frames to one socket: from one goroutine (runWriter), which takes everything queued in one system call, so many
// callers share writes; or from the caller, when the connection is calm and the socket takes the frame at once. No caller is ever held
// in a write by a peer that has stopped reading.
type conn struct {
	nc           net.Conn
	raw          syscall.RawConn // nil: only runWriter writes
	writeTimeout time.Duration
	limit        int
	ctx          context.Context // ended by fail
	cancel       context.CancelCauseFunc
	wake         chan struct{}

	mu      sync.Mutex
	queued  *batch
	spare   *batch        // nil while writing
	drained chan struct{} // closed when a full queue has been taken; nil when nobody waits
	writing bool          // somebody has taken a batch; who has looks at the queue again when it is written
	begun   *batch        // that batch, for runWriter to go on with: the socket did not take all of it
	wrote   time.Time     // when the last batch was
}

func newConn(ctx context.Context, nc net.Conn, cfg *Config) *conn {
	c := &conn{nc: nc, writeTimeout: cfg.WriteTimeout, limit: cfg.MaxQueuedBytes, wake: make(chan struct{}, 1), queued: &batch{}, spare: &batch{}}
	if t, ok := nc.(*net.TCPConn); ok { // whatever wraps one, as TLS does, is to see every byte
		c.raw, _ = t.SyscallConn() // an error: closed already, as the first write will find out
	}
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
			c.sendLocked()
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

// sendLocked has what is queued written, and unlocks.
func (c *conn) sendLocked() {
	if c.writing {
		c.mu.Unlock()
		return
	}
	if c.raw == nil || len(c.queued.segs) > 0 || time.Since(c.wrote) < calmAfter {
		c.mu.Unlock()
		c.awake()
		return
	}
	b := c.takeLocked()
	c.mu.Unlock()
	if err := c.tryWrite(b); err != nil {
		c.fail(fmt.Errorf("write: %w", err)) // it was queued: the caller learns it as from a write by runWriter
		return
	}
	c.mu.Lock()
	more := c.queued.bytes > 0
	if b.written < len(b.scratch) {
		c.begun, more = b, true
	} else {
		c.doneLocked(b)
	}
	c.mu.Unlock()
	if more {
		c.awake()
	}
}

// tryWrite writes what the socket takes without waiting.
func (c *conn) tryWrite(b *batch) error {
	var err error
	end := c.raw.Write(func(fd uintptr) bool {
		var n int
		for {
			if n, err = syscall.Write(int(fd), b.scratch); err != syscall.EINTR {
				break
			}
		}
		b.written = max(n, 0)
		return true
	})
	if err == syscall.EAGAIN {
		err = nil
	}
	return errors.Join(end, err)
}

// takeLocked takes what is queued; its owner writes it and calls doneLocked.
func (c *conn) takeLocked() *batch {
	b := c.queued
	c.queued, c.spare, c.writing = c.spare, nil, true
	if c.drained != nil {
		close(c.drained)
		c.drained = nil
	}
	return b
}

func (c *conn) doneLocked(b *batch) {
	b.reset()
	c.spare, c.writing, c.wrote = b, false, time.Now()
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
	for {
		select {
		case <-c.wake:
		case <-c.ctx.Done():
			return
		}
		for {
			c.mu.Lock()
			b := c.begun
			c.begun = nil
			if b == nil {
				if c.writing || c.queued.bytes == 0 {
					c.mu.Unlock()
					break
				}
				b = c.takeLocked()
			}
			c.mu.Unlock()
			if err := c.write(b); err != nil {
				c.fail(fmt.Errorf("write: %w", err))
				return
			}
			c.mu.Lock()
			c.doneLocked(b)
			c.mu.Unlock()
		}
	}
}

func (c *conn) write(b *batch) error {
	b.seal()
	if err := c.nc.SetWriteDeadline(time.Now().Add(c.writeTimeout)); err != nil {
		return err
	}
	if b.written > 0 { // by tryWrite, which takes only what is in scratch
		b.segs[0] = b.segs[0][b.written:]
	}
	segs := b.segs // WriteTo moves the slice it is given
	if _, err := segs.WriteTo(c.nc); err != nil {
		return err
	}
	return c.nc.SetWriteDeadline(time.Time{}) // for tryWrite, which an old one would refuse
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
