package raftmeta

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

const (
	queueMaxBytes = 8 << 20          // commands waiting for an entry; beyond it submitters wait
	enqueueLimit  = 2 * time.Second  // how long an entry may wait for raft's main loop
	maxClockStep  = 20 * time.Second // a leader that slept longer adds no more than this

	// entriesInFlight is how many entries are under way: while one is applied the next is synced. But one of entryShared commands is
	// alone: what comes meanwhile shares the next, and an entry costs each node as much as ten commands or more, in system calls and wake-ups.
	entriesInFlight = 2
	entryShared     = 16
	// After such an entry the next waits for those whose commands it had, whose next ones are to share it: see gather. It waits for no
	// more than entryFilled commands, and not longer than twice what the entry took, or gatherMost.
	entryFilled = 64
	gatherMost  = 4 * time.Millisecond
)

// chunk is what goes into one entry together: some commands of one lane, or one command without a lane.
type chunk struct {
	data  []byte // elements of Entry.commands
	count int
	quiet bool // nobody looks at other nodes for what it comes to, but who is told that it is there (Node.Tell)
	// done is told the results, one for each command, or the error; once, by the combiner's goroutine, so it must not block. Nil for
	// lanes, whose results come from the local state.
	done func([]state.Settled, error)
}

// combiner makes entries of what waits on the leader, up to entriesInFlight at a time. It runs on every node; on a follower it
// refuses what reaches it.
type combiner struct {
	apply  func(data []byte) (wait func() (outcome, error))
	pushed func(o outcome, quiet bool) // before the chunks are answered; quiet if all are
	clock  func() (boot time.Duration, wall time.Time)
	term   func() uint64 // of this node's leadership, 0 when it is not the leader

	wake chan struct{}

	mu     sync.Mutex
	queue  []chunk
	bytes  int           // of what is in queue
	count  int           // commands in it
	enough int           // wake is for so many, or a full entry
	room   chan struct{} // closed and replaced when the queue was drained
	closed bool          // run has ended

	stampTerm uint64 // run's goroutine only
	stampBoot time.Duration
	owed      atomic.Int64 // nanoseconds of steps whose entries failed
}

func newCombiner() *combiner {
	return &combiner{wake: make(chan struct{}, 1), room: make(chan struct{})}
}

// submit queues a chunk. It waits for room; an error means that nothing was queued.
func (c *combiner) submit(ctx context.Context, stopped <-chan struct{}, k chunk) error {
	for {
		room, err := c.offer(k, queueMaxBytes)
		if room == nil {
			return err
		}
		select {
		case <-room:
		case <-ctx.Done():
			return ctx.Err()
		case <-stopped:
			return ErrStopped
		}
	}
}

// offer queues a chunk if the queue has room up to limit, and ends with a nil channel when it did or never will (the error says so);
// else the channel is closed when there is room.
func (c *combiner) offer(k chunk, limit int) (room chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrStopped
	}
	if c.bytes > 0 && c.bytes+len(k.data) > limit {
		return c.room, nil
	}
	c.queue = append(c.queue, k)
	c.bytes += len(k.data)
	c.count += k.count
	if c.enoughLocked() {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
	return nil, nil
}

func (c *combiner) enoughLocked() bool { return c.count >= c.enough || c.bytes >= entryTarget }

// take removes the chunks of the next entry.
func (c *combiner) take() (ks []chunk, size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for n < len(c.queue) && (n == 0 || size+len(c.queue[n].data) <= entryTarget) {
		size += len(c.queue[n].data)
		c.count -= c.queue[n].count
		n++
	}
	ks = c.queue[:n:n]
	c.queue = c.queue[n:]
	if len(c.queue) == 0 {
		c.queue = nil
	}
	c.bytes -= size
	if n > 0 {
		close(c.room)
		c.room = make(chan struct{})
	}
	return ks, size
}

// run makes entries until stop; tick is how often an idle leader moves the clock.
func (c *combiner) run(stop <-chan struct{}, tick time.Duration) {
	t := time.NewTicker(tick)
	defer t.Stop()
	slots := make(chan struct{}, entriesInFlight)
	flight := make(chan entry, entriesInFlight)
	var wg sync.WaitGroup
	wg.Go(func() {
		for e := range flight {
			c.finish(e)
			close(e.done)
			<-slots
		}
	})
	defer wg.Wait()
	defer close(flight)
	busy := false
	for {
		slots <- struct{}{} // the entries under way end with raft at the latest
		ks, size, ok := c.next(stop, t.C, &busy)
		if !ok {
			c.refuse(ErrStopped)
			return
		}
		if e, ok := c.propose(ks, size); ok {
			flight <- e
			if e.count >= entryShared {
				begun := time.Now()
				<-e.done
				c.gather(stop, e.count, time.Since(begun))
			}
		} else {
			<-slots
		}
	}
}

// gather waits, when an entry of many commands has ended, until most of those who had a command in it or wait already have one in the
// queue. Of 64 proposers that go on as soon as they are answered it makes one entry of nearly all in place of two or three, and the
// proposers are answered earlier for it where processors are short. If they do not come back it has cost no more than twice what the entry took.
func (c *combiner) gather(stop <-chan struct{}, count int, took time.Duration) {
	c.mu.Lock()
	c.enough = min((count+c.count)*7/8, entryFilled)
	select {
	case <-c.wake: // of what is in the queue
	default:
	}
	done := c.enoughLocked()
	c.mu.Unlock()
	if !done {
		limit := time.NewTimer(min(2*took, gatherMost))
		defer limit.Stop()
		select {
		case <-c.wake:
		case <-limit.C:
		case <-stop:
		}
	}
	c.mu.Lock()
	c.enough = 0
	c.mu.Unlock()
}

// next waits for the chunks of the next entry; false at stop.
func (c *combiner) next(stop <-chan struct{}, tick <-chan time.Time, busy *bool) ([]chunk, int, bool) {
	for {
		if ks, size := c.take(); len(ks) > 0 {
			*busy = true
			return ks, size, true
		}
		select {
		case <-c.wake:
		case <-tick:
			if !*busy && c.term() != 0 {
				return []chunk{{data: tickChunk, count: 1}}, len(tickChunk), true
			}
			*busy = false
		case <-stop:
			return nil, 0, false
		}
	}
}

var tickChunk = appendCommand(nil, mustMarshal(&statepb.Command{
	Version: 1, Body: &statepb.Command_Tick{Tick: &statepb.Tick{}},
}), 0)

// refuse ends the queue.
func (c *combiner) refuse(err error) {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	for {
		ks, _ := c.take()
		if len(ks) == 0 {
			return
		}
		answer(ks, outcome{}, err)
	}
}

func answer(ks []chunk, o outcome, err error) {
	at := 0
	for _, k := range ks {
		switch {
		case k.done == nil:
		case err != nil:
			k.done(nil, err)
		default:
			k.done(o.settled[at:at+k.count], nil)
		}
		at += k.count
	}
}

// entry is one under way.
type entry struct {
	chunks []chunk
	count  int // commands
	done   chan struct{}
	step   time.Duration
	wait   func() (outcome, error)
}

// propose hands the entry to raft; false when this node does not lead, and the chunks have been refused.
func (c *combiner) propose(ks []chunk, size int) (entry, bool) {
	term := c.term()
	if term == 0 {
		answer(ks, outcome{}, ErrNotLeader)
		return entry{}, false
	}
	boot, wall := c.clock()
	step := c.step(term, boot)
	b := make([]byte, 0, size+32)
	b = appendUint(b, fieldClockStep, uint64(step.Milliseconds()))
	b = appendUint(b, fieldWall, uint64(wall.UnixMilli()))
	count := 0
	for _, k := range ks {
		b = append(b, k.data...)
		count += k.count
	}
	return entry{ks, count, make(chan struct{}), step, c.apply(b)}, true
}

// step is what the cluster clock moves by: whole milliseconds since this leader's last entry, and nothing in its first. A
// jump beyond maxClockStep is dropped, not caught up.
func (c *combiner) step(term uint64, boot time.Duration) time.Duration {
	owed := time.Duration(c.owed.Swap(0))
	if c.stampTerm != term {
		c.stampTerm, c.stampBoot = term, boot
		return 0
	}
	passed := max(boot-c.stampBoot, 0) + owed
	c.stampBoot = boot - passed%time.Millisecond
	return min(passed.Truncate(time.Millisecond), maxClockStep)
}

// finish waits for the entry and answers its chunks.
func (c *combiner) finish(e entry) {
	o, err := e.wait()
	if err == nil {
		c.pushed(o, !slices.ContainsFunc(e.chunks, func(k chunk) bool { return !k.quiet }))
	} else {
		c.owed.Add(int64(e.step)) // the next entry adds it
	}
	answer(e.chunks, o, proposalError(err))
}

// proposalError says whether a failed entry may still come true.
func proposalError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress), errors.Is(err, raft.ErrEnqueueTimeout):
		return fmt.Errorf("%w: %w", ErrNotLeader, err)
	default:
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
}
