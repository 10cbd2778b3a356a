package partition

import (
	"context"
	"sync"
	"time"
)

// commitTick syncs the logs of leaders. It is self-clocked: a round syncs all that is dirty when it begins, in parallel; the
// next begins when it ended, and serves whoever came meanwhile. No timer: an idle broker does nothing, a single append is synced
// at once, and many share a sync.
type commitTick struct {
	mu    sync.Mutex
	dirty map[*replica]struct{}
	kick  chan struct{}
}

func newCommitTick() *commitTick {
	return &commitTick{dirty: map[*replica]struct{}{}, kick: make(chan struct{}, 1)}
}

// mark asks for a sync of what has been appended to r so far.
func (c *commitTick) mark(r *replica) {
	if r.m.cfg.UnsyncedAcks {
		return
	}
	c.mu.Lock()
	c.dirty[r] = struct{}{}
	c.mu.Unlock()
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

func (c *commitTick) take() []*replica {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]*replica, 0, len(c.dirty))
	for r := range c.dirty {
		out = append(out, r)
	}
	clear(c.dirty)
	return out
}

// run is the goroutine of the tick.
func (c *commitTick) run(ctx context.Context, workers int) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.kick:
		}
		inParallel(c.take(), workers, func(r *replica) { _ = r.sync() })
	}
}

// sync makes what is in the log durable and counts it. An error has failed the replica.
func (r *replica) sync() error {
	r.mu.Lock()
	l := r.s.log
	r.mu.Unlock()
	if l == nil {
		return ErrNotLeader
	}
	start := time.Now()
	if _, err := l.Sync(); err != nil {
		return r.checkDisk("sync", l, err)
	}
	r.m.deps.Synced(time.Since(start))
	r.mu.Lock()
	r.advanceLocked()
	r.mu.Unlock()
	return nil
}

// inParallel runs fn on each item, at most n at a time, and waits for all. One item runs on the caller's goroutine.
func inParallel[T any](items []T, n int, fn func(T)) {
	if len(items) == 1 {
		fn(items[0])
		return
	}
	var wg sync.WaitGroup
	next := make(chan T)
	for range min(n, len(items)) {
		wg.Go(func() {
			for it := range next {
				fn(it)
			}
		})
	}
	for _, it := range items {
		next <- it
	}
	close(next)
	wg.Wait()
}
