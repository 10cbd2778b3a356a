package raftmeta

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

const (
	entryTarget = 64 << 10 // an entry takes further commands up to here
	entryMax    = 1 << 20  // and no command may be larger than this
	// laneWindow bounds the commands of a lane without a known result. Apply keeps state.MaxLaneResults of them.
	laneWindow = 4096
	gapPause   = 10 * time.Millisecond
)

const (
	fieldClockStep protowire.Number = 1 // of Entry
	fieldWall      protowire.Number = 2
	fieldCommands  protowire.Number = 3

	fieldVersion protowire.Number = 1 // of Command
	fieldLevel   protowire.Number = 2
	fieldLane    protowire.Number = 3
	fieldSeq     protowire.Number = 4
	fieldSeen    protowire.Number = 5
	fieldTerm    protowire.Number = 6
)

// proposal is one command of the lane from its number to its result.
type proposal struct {
	seq  uint64
	raw  []byte          // the Command, encoded without seen
	done chan struct{}   // closed when res or err is set
	res  *statepb.Result // set by settle
	err  error           // the lane ended
}

// lane is the queue of one node incarnation: numbered without gaps, sent in order, settled by the local state.
type lane struct {
	id    uint64        // broker epoch
	room  chan struct{} // laneWindow slots
	wake  chan struct{} // 1: something to send
	ended chan struct{} // closed when the incarnation was fenced

	mu      sync.Mutex
	end     error
	pending []*proposal // pending[0].seq is the lowest number without a known result
	next    uint64      // number of the next command
	sent    uint64      // numbers below were handed to a leader
	seen    uint64      // results up to here are known here; told to Apply
	told    uint64
	gapAt   time.Time
}

func newLane(id uint64, last uint64) *lane {
	return &lane{id: id, room: make(chan struct{}, laneWindow), wake: make(chan struct{}, 1), ended: make(chan struct{}),
		next: last + 1, sent: last + 1, seen: last, told: last}
}

func (l *lane) kick() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// propose numbers a command and waits for its result.
func (l *lane) propose(ctx context.Context, stopped <-chan struct{}, c *statepb.Command) (*statepb.Result, error) {
	raw, err := encodeCommand(c)
	if err != nil {
		return nil, err
	}
	select {
	case l.room <- struct{}{}:
	case <-l.ended:
		return nil, ErrLaneEnded
	case <-ctx.Done():
		return nil, fmt.Errorf("raftmeta: not proposed, %d commands wait before it: %w", laneWindow, ctx.Err())
	case <-stopped:
		return nil, ErrStopped
	}
	p := &proposal{done: make(chan struct{})}
	if err := l.enqueue(raw, p); err != nil {
		<-l.room
		return nil, err
	}
	l.kick()
	select {
	case <-p.done:
		return p.res, p.err
	case <-ctx.Done():
	case <-stopped:
	}
	select {
	case <-p.done:
		return p.res, p.err
	default:
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnknown, ctx.Err())
	}
	return nil, fmt.Errorf("%w: the node is stopping", ErrUnknown)
}

// enqueue numbers the command. What the caller set of lane, seq, seen and version is overruled: in the encoding the last
// value of a field counts, so the caller's Command is not written to and may be shared.
func (l *lane) enqueue(raw []byte, p *proposal) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end != nil {
		return l.end
	}
	p.seq = l.next
	p.raw = appendUint(appendUint(raw, fieldLane, l.id), fieldSeq, p.seq)
	l.next++
	l.pending = append(l.pending, p)
	return nil
}

// encodeCommand is the Command with this build's version and without seen.
func encodeCommand(c *statepb.Command) ([]byte, error) {
	b, err := state.AppendCommand(nil, c)
	if err != nil {
		return nil, fmt.Errorf("raftmeta: encode command: %w", err)
	}
	if c.Version != state.CommandVersion {
		b = appendUint(b, fieldVersion, state.CommandVersion)
	}
	if c.Seen != 0 {
		b = appendUint(b, fieldSeen, 0)
	}
	if len(b)+64 > entryMax {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(b), entryMax)
	}
	return b, nil
}

func appendUint(b []byte, field protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

// settle takes the results of one applied entry that belong to this lane. gap says that numbers are missing.
func (l *lane) settle(settled []state.Settled) (gap bool) {
	for _, s := range settled {
		if s.Lane != l.id {
			continue
		}
		switch s.Result.Code {
		case statepb.Code_LANE_GAP: // nothing happened; only a number of ours that has no result yet matters
			gap = true
		case statepb.Code_LANE_ENDED:
			l.finish(ErrLaneEnded)
		default:
			l.result(s.Seq, s.Result)
		}
	}
	return gap
}

// result completes a number. Results come in order, so an earlier one still pending does not exist.
func (l *lane) result(seq uint64, r *statepb.Result) {
	l.mu.Lock()
	if len(l.pending) == 0 || l.pending[0].seq != seq {
		l.mu.Unlock() // a repeat
		return
	}
	p := l.pending[0]
	l.pending[0] = nil
	l.pending = l.pending[1:]
	l.seen = seq
	l.sent = max(l.sent, seq+1)
	l.mu.Unlock()
	p.res = r
	close(p.done)
	<-l.room
}

// restored looks up what happened while a snapshot skipped entries.
func (l *lane) restored(st *state.State) {
	for {
		l.mu.Lock()
		var seq uint64
		if len(l.pending) > 0 {
			seq = l.pending[0].seq
		}
		l.mu.Unlock()
		if seq == 0 {
			if _, ok := st.LaneLast(l.id); !ok {
				l.finish(ErrLaneEnded)
			}
			return
		}
		r, settled, ended := st.LaneResult(l.id, seq)
		switch {
		case ended: // it may have been applied before the end
			l.finish(fmt.Errorf("%w: %w", ErrUnknown, ErrLaneEnded))
			return
		case !settled:
			l.rewind()
			return
		case r == nil:
			panic(fmt.Sprintf("raftmeta: lane %d: result %d was dropped before it was seen", l.id, seq))
		}
		l.result(seq, r)
	}
}

// finish ends the lane: everything pending fails with err.
func (l *lane) finish(err error) {
	l.mu.Lock()
	if l.end != nil {
		l.mu.Unlock()
		return
	}
	l.end = ErrLaneEnded
	pending := l.pending
	l.pending = nil
	l.mu.Unlock()
	for _, p := range pending {
		p.err = err
		close(p.done)
		<-l.room
	}
	close(l.ended)
}

// rewind makes everything without a result be sent again.
func (l *lane) rewind() {
	l.mu.Lock()
	if len(l.pending) > 0 {
		l.sent = l.pending[0].seq
	}
	l.told = 0 // it may have been lost too, and Apply refuses when it keeps too many results
	l.mu.Unlock()
	l.kick()
}

// gap rewinds after Apply missed a number, once for a burst of refused batches.
func (l *lane) gap() {
	l.mu.Lock()
	again := time.Since(l.gapAt) < gapPause
	if !again {
		l.gapAt = time.Now()
	}
	l.mu.Unlock()
	if !again {
		l.rewind()
	}
}

// batch is the next commands to send, encoded as a piece of an Entry; empty when there are none. accepted moves past it.
type batch struct {
	lane        uint64
	first, last uint64
	chunk       []byte
}

func (l *lane) batch() (b batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end != nil || len(l.pending) == 0 {
		return b
	}
	base := l.pending[0].seq
	l.sent = max(l.sent, base)
	b.lane, b.first = l.id, l.sent
	for _, p := range l.pending[l.sent-base:] {
		if len(b.chunk) > 0 && len(b.chunk)+len(p.raw)+16 > entryTarget {
			break
		}
		seen := uint64(0)
		if p.seq == b.first && l.seen > l.told { // once a batch is enough
			seen, l.told = l.seen, l.seen
		}
		b.chunk = appendCommand(b.chunk, p.raw, seen)
		b.last = p.seq
	}
	return b
}

// gather is batch after everyone who is about to propose had a turn: an entry's results wake all its proposers at once,
// and the first one's next command should not travel alone. It costs nothing when nobody else is ready to run.
func (l *lane) gather() batch {
	if l.idle() {
		return batch{}
	}
	runtime.Gosched()
	return l.batch()
}

// accepted notes that a leader took the batch, unless a rewind came in between.
func (l *lane) accepted(b batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sent == b.first {
		l.sent = b.last + 1
	}
}

// idle says that nothing waits for a result.
func (l *lane) idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.pending) == 0
}

func (l *lane) progress() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen
}

// appendCommand appends an encoded Command as one element of Entry.commands.
func appendCommand(b, raw []byte, seen uint64) []byte {
	n := len(raw)
	if seen > 0 {
		n += protowire.SizeTag(fieldSeen) + protowire.SizeVarint(seen)
	}
	b = protowire.AppendTag(b, fieldCommands, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(n))
	b = append(b, raw...)
	if seen > 0 {
		b = appendUint(b, fieldSeen, seen)
	}
	return b
}
