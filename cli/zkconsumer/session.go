package zkconsumer

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// sessionState follows the session by the library's events. A generation is one session: it grows when the server says that
// the last one has expired.
type sessionState struct {
	timeout time.Duration
	poke    func()

	mu        sync.Mutex
	connected bool
	gen       int
	changed   chan struct{} // closed and replaced at each change
	silence   *time.Timer   // runs while there is no connection
	stop      func()        // stops reading at once; nil when nothing is read
	cut       bool          // reading was stopped because ZooKeeper is out of reach
	closed    bool
}

func newSessionState(timeout time.Duration, poke func()) *sessionState {
	return &sessionState{timeout: timeout, poke: poke, changed: make(chan struct{})}
}

// event is called by the library, in order; it must not block.
func (s *sessionState) event(ev zk.Event) {
	if ev.Type != zk.EventSession {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch ev.State {
	case zk.StateHasSession:
		s.connected = true
		s.stopTimer()
		if s.cut {
			s.cut = false
			s.poke()
		}
	case zk.StateExpired: // others may own our partitions already
		s.gen++
		s.stopReadingLocked()
		s.cut = false
		s.poke()
	case zk.StateDisconnected:
		if s.connected && !s.closed {
			s.silence = time.AfterFunc(s.timeout/3, s.outOfReach)
		}
		s.connected = false
	default:
		return
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *sessionState) stopTimer() {
	if s.silence != nil {
		s.silence.Stop()
		s.silence = nil
	}
}

// outOfReach stops reading, before the server can give the partitions to others. The server counts the session timeout from
// the last frame that it got; the library notices a dead connection after two thirds of it at the latest, so that a third is
// certain to be left when it does.
func (s *sessionState) outOfReach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.connected && !s.closed {
		s.stopReadingLocked()
	}
}

func (s *sessionState) stopReadingLocked() {
	if s.stop != nil {
		s.stop()
		s.stop, s.cut = nil, true
	}
}

// reading registers what stops the reader, for generation gen. It says no when that session is over.
func (s *sessionState) reading(gen int, stop func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gen != gen || s.closed {
		return false
	}
	s.stop = stop
	return true
}

func (s *sessionState) generation() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gen
}

// wait returns the generation once there is a connection.
func (s *sessionState) wait(ctx context.Context) (int, error) {
	for {
		s.mu.Lock()
		connected, gen, changed := s.connected, s.gen, s.changed
		s.mu.Unlock()
		if connected {
			return gen, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

func (s *sessionState) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.stopTimer()
}

// do runs one ZooKeeper operation of session gen. After a lost connection it is repeated, in the same session only:
// errSessionLost says that the session is over, and that the operation may have happened in either.
func do[T any](ctx context.Context, c *Consumer, gen int, op func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	var zero T
	for {
		now, err := c.state.wait(ctx)
		if err != nil {
			return zero, err
		}
		if now != gen {
			return zero, errSessionLost
		}
		done := make(chan result, 1)
		c.wg.Go(func() { // ended by conn.Close at the latest
			v, err := op()
			done <- result{v, err}
		})
		var r result
		select {
		case r = <-done:
		case <-ctx.Done():
			return zero, ctx.Err()
		}
		if c.state.generation() != gen || errors.Is(r.err, zk.ErrSessionExpired) {
			return zero, errSessionLost
		}
		if !errors.Is(r.err, zk.ErrConnectionClosed) && !errors.Is(r.err, zk.ErrNoServer) {
			return r.v, r.err
		}
		// A write that fails reports this before the event of the lost connection arrives: do not spin until then.
		if !pause(ctx, 10*time.Millisecond) {
			return zero, ctx.Err()
		}
	}
}

// pause waits; it says no when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

var openACL = zk.WorldACL(zk.PermAll)

// znode is what a read returns.
type znode struct {
	data []byte
	stat *zk.Stat
}

func (c *Consumer) get(ctx context.Context, gen int, p string) (znode, error) {
	return do(ctx, c, gen, func() (znode, error) {
		data, stat, err := c.conn.Get(c.root + p)
		return znode{data, stat}, err
	})
}

func (c *Consumer) set(ctx context.Context, gen int, p string, data []byte) error {
	_, err := do(ctx, c, gen, func() (*zk.Stat, error) { return c.conn.Set(c.root+p, data, -1) })
	return err
}

func (c *Consumer) delete(ctx context.Context, gen int, p string, version int32) error {
	_, err := do(ctx, c, gen, func() (struct{}, error) { return struct{}{}, c.conn.Delete(c.root+p, version) })
	return err
}

// create makes one node; NODEEXISTS is returned as it is.
func (c *Consumer) create(ctx context.Context, gen int, p string, data []byte, flags int32) error {
	_, err := do(ctx, c, gen, func() (string, error) { return c.conn.Create(c.root+p, data, flags, openACL) })
	return err
}

// createDeep makes a node and, when they are missing, its parents, upwards from the leaf as zkclient does.
func (c *Consumer) createDeep(ctx context.Context, gen int, p string, data []byte, flags int32) error {
	err := c.create(ctx, gen, p, data, flags)
	if !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	parent := p[:strings.LastIndexByte(p, '/')]
	if parent == "" {
		return err // the chroot itself is missing
	}
	if perr := c.createDeep(ctx, gen, parent, nil, 0); perr != nil && !errors.Is(perr, zk.ErrNodeExists) {
		return perr
	}
	return c.create(ctx, gen, p, data, flags)
}

func (c *Consumer) children(ctx context.Context, gen int, p string) ([]string, error) {
	return do(ctx, c, gen, func() ([]string, error) {
		names, _, err := c.conn.Children(c.root + p)
		return names, err
	})
}

// watchSet knows which paths have an armed watch, so that no path has two.
type watchSet struct {
	mu    sync.Mutex
	armed map[string]bool
}

func (w *watchSet) has(p string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.armed[p]
}

func (w *watchSet) set(p string, on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.armed == nil {
		w.armed = map[string]bool{}
	}
	w.armed[p] = on
}

// arm waits for the watch's one event, in a goroutine that ends with the connection at the latest, and asks for a rebalance.
func (c *Consumer) arm(p string, events <-chan zk.Event) {
	c.watching.set(p, true)
	c.wg.Go(func() {
		<-events // closed by the library after one event, also when the session or connection ends
		c.watching.set(p, false)
		c.poke()
	})
}

// childrenWatched lists children and makes sure that a change of the list asks for a rebalance.
func (c *Consumer) childrenWatched(ctx context.Context, gen int, p string) ([]string, error) {
	if c.watching.has(p) {
		return c.children(ctx, gen, p)
	}
	type listed struct {
		names  []string
		events <-chan zk.Event
	}
	l, err := do(ctx, c, gen, func() (listed, error) {
		names, _, events, err := c.conn.ChildrenW(c.root + p)
		return listed{names, events}, err
	})
	if err == nil {
		c.arm(p, l.events)
	}
	return l.names, err
}

// getWatched reads data, and makes sure that a change, or the creation of a missing node, asks for a rebalance. A missing
// node is zk.ErrNoNode.
func (c *Consumer) getWatched(ctx context.Context, gen int, p string) ([]byte, error) {
	if !c.watching.has(p) {
		events, err := do(ctx, c, gen, func() (<-chan zk.Event, error) {
			_, _, events, err := c.conn.ExistsW(c.root + p)
			return events, err
		})
		if err != nil {
			return nil, err
		}
		c.arm(p, events)
	}
	n, err := c.get(ctx, gen, p)
	return n.data, err
}
