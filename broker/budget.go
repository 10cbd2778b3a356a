package broker

import (
	"container/list"
	"context"
	"sync"
)

// budget is a counting semaphore of bytes that serves waiters in order.
type budget struct {
	mu      sync.Mutex
	free    int64
	waiters list.List // of *waiter
}

type waiter struct {
	n    int64
	done chan struct{}
}

func newBudget(n int64) *budget { return &budget{free: n} }

// take waits for n bytes; n must not exceed the whole budget. It fails only with ctx.
func (b *budget) take(ctx context.Context, n int64) error {
	b.mu.Lock()
	if b.waiters.Len() == 0 && b.free >= n {
		b.free -= n
		b.mu.Unlock()
		return nil
	}
	w := &waiter{n: n, done: make(chan struct{})}
	el := b.waiters.PushBack(w)
	b.mu.Unlock()
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	select {
	case <-w.done: // granted while we gave up
		b.free += n
	default:
		b.waiters.Remove(el)
	}
	b.grant()
	b.mu.Unlock()
	return context.Cause(ctx)
}

// give returns bytes.
func (b *budget) give(n int64) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	b.free += n
	b.grant()
	b.mu.Unlock()
}

// grant serves waiters that fit; b.mu is held.
func (b *budget) grant() {
	for el := b.waiters.Front(); el != nil; el = b.waiters.Front() {
		w := el.Value.(*waiter)
		if w.n > b.free {
			return
		}
		b.free -= w.n
		b.waiters.Remove(el)
		close(w.done)
	}
}
