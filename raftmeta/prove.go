package raftmeta

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/lease"
)

// proveTimeout bounds one round; a caller waits for at most two.
const proveTimeout = 500 * time.Millisecond

// Proof says that at some moment after Prove was called no later term than Term had a leader.
type Proof struct {
	Term id.Term
	// SinceOlder is the shortest time since a voter of the quorum last confirmed an *earlier* term, by the voter's boot clock:
	// no lease given by an earlier leader can have been proven later than that. A voter that was started since counts
	// from its start.
	SinceOlder time.Duration
}

// voterMemory is what a voter remembers of the proofs it took part in.
type voterMemory struct {
	mu     sync.Mutex
	proofs lease.Proofs
}

// confirm records that term was confirmed at now, and returns the time since an earlier term was.
func (v *voterMemory) confirm(term uint64, now time.Duration) time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.proofs.Confirm(id.Term(term), now)
}

// prover runs proof rounds, one at a time; all who wait when a round begins share it.
type prover struct {
	mu   sync.Mutex
	next *round
	wake chan struct{}
}

type round struct {
	done  chan struct{}
	proof Proof
	err   error
}

func (p *prover) wakeChan() chan struct{} {
	if p.wake == nil {
		p.wake = make(chan struct{}, 1)
	}
	return p.wake
}

// join returns the round that begins next.
func (p *prover) join() *round {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == nil {
		p.next = &round{done: make(chan struct{})}
	}
	select {
	case p.wakeChan() <- struct{}{}:
	default:
	}
	return p.next
}

func (p *prover) run(n *Node) {
	p.mu.Lock()
	wake := p.wakeChan()
	p.mu.Unlock()
	for {
		select {
		case <-wake:
		case <-n.stopped:
			return
		}
		p.mu.Lock()
		r := p.next
		p.next = nil
		p.mu.Unlock()
		if r != nil {
			r.proof, r.err = n.proveOnce()
			close(r.done)
		}
	}
}

// Prove asks the voters, this node among them, whether their term is still the one in which this node leads. The round
// begins after the call and is shared by all who wait. It is what raft's VerifyLeader is not: that one counts non-voters.
// Errors: ErrNotLeader, ErrNoProof, ErrStopped, ctx's.
func (n *Node) Prove(ctx context.Context) (Proof, error) {
	r := n.prover.join()
	select {
	case <-r.done:
		return r.proof, r.err
	case <-ctx.Done():
		return Proof{}, fmt.Errorf("raftmeta: proof of leadership: %w", ctx.Err())
	case <-n.stopped:
		return Proof{}, ErrStopped
	}
}

type vote struct {
	since time.Duration
	err   error
}

func (n *Node) proveOnce() (Proof, error) {
	term := n.leaderTerm()
	if term == 0 {
		return Proof{}, ErrNotLeader
	}
	f := n.inst.Load().r.GetConfiguration()
	if err := f.Error(); err != nil {
		return Proof{}, fmt.Errorf("%w: %w", ErrNoProof, err)
	}
	ctx, cancel := context.WithTimeout(n.ctx, proveTimeout)
	defer cancel()
	req := binary.BigEndian.AppendUint64(nil, term)
	votes := make(chan vote, len(f.Configuration().Servers))
	voters := 0
	for _, s := range f.Configuration().Servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		n.wg.Go(func() { votes <- n.askVoter(ctx, id.DirectoryID(s.ID), req) })
	}
	p := Proof{Term: id.Term(term), SinceOlder: 1<<63 - 1}
	yes, lost := 0, error(nil)
	for range voters {
		v := <-votes
		if v.err != nil {
			lost = errors.Join(lost, v.err)
			continue
		}
		p.SinceOlder = min(p.SinceOlder, v.since)
		if yes++; yes > voters/2 {
			if n.leaderTerm() != term {
				return Proof{}, ErrNotLeader
			}
			return p, nil
		}
	}
	return Proof{}, fmt.Errorf("%w: %d of %d voters: %w", ErrNoProof, yes, voters, lost)
}

func (n *Node) askVoter(ctx context.Context, to id.DirectoryID, req []byte) vote {
	var b []byte
	var err error
	if to == n.cfg.ID {
		b, err = n.handleProve(ctx, to, req)
	} else {
		b, err = n.cfg.Peers.Call(ctx, to, MethodProve, req)
	}
	switch {
	case err != nil:
		return vote{err: err}
	case len(b) != 8:
		return vote{err: fmt.Errorf("raftmeta: %s is not in this term", to)}
	}
	return vote{since: time.Duration(binary.BigEndian.Uint64(b))}
}

// Vote confirms this node's own term, as a proof round would ask it to, and returns it; 0 when it is just changing. It is
// for ProveWith on the leader, and proves nothing by itself.
func (n *Node) Vote() id.Term {
	i := n.inst.Load()
	if i == nil {
		return 0
	}
	term := i.r.CurrentTerm()
	if _, ok := n.confirm(i, term); !ok {
		return 0
	}
	return id.Term(term)
}

// ProveWith is Prove for a request that came with a vote: what Vote returned on the node voter while the request was made.
// Where two voters are a quorum, that vote and this node's own are a proof without a round (lease.Carried). Otherwise it is
// Prove.
func (n *Node) ProveWith(ctx context.Context, voter id.DirectoryID, voted id.Term) (id.Term, error) {
	if i := n.inst.Load(); i != nil && lease.Carried(voted, id.Term(n.leaderTerm()), voter, n.cfg.ID, i.voters()) {
		if _, ok := n.confirm(i, uint64(voted)); ok && uint64(voted) == n.leaderTerm() {
			return voted, nil
		}
	}
	p, err := n.Prove(ctx)
	return p.Term, err
}

// voters are those of the newest configuration; nil when raft has ended.
func (i *instance) voters() (ds []id.DirectoryID) {
	f := i.r.GetConfiguration()
	if f.Error() != nil {
		return nil
	}
	for _, s := range f.Configuration().Servers {
		if s.Suffrage == raft.Voter {
			ds = append(ds, id.DirectoryID(s.ID))
		}
	}
	return ds
}

// confirm records that the instance is in a term, and returns the time since an earlier one was confirmed; false when it is
// in another. It is written down before the term is read again: whoever confirms a later term after that finds it.
func (n *Node) confirm(i *instance, term uint64) (sinceOlder time.Duration, ok bool) {
	if term == 0 || i.r.CurrentTerm() != term {
		return 0, false
	}
	since := n.voter.confirm(term, n.cfg.Clock.Boot())
	return since, i.r.CurrentTerm() == term
}

// handleProve confirms a term that is still this voter's: 8 bytes of nanoseconds, or nothing when it is not.
func (n *Node) handleProve(_ context.Context, _ id.DirectoryID, p []byte) ([]byte, error) {
	if len(p) != 8 {
		return nil, fmt.Errorf("%w: proof of %d bytes", errBadRequest, len(p))
	}
	i := n.inst.Load()
	if i == nil {
		return nil, nil
	}
	since, ok := n.confirm(i, binary.BigEndian.Uint64(p))
	if !ok {
		return nil, nil
	}
	return binary.BigEndian.AppendUint64(nil, uint64(since)), nil
}
