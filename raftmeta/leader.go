package raftmeta

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barnabas-mq/barnabas/internal/id"
)

const (
	barrierTimeout = 5 * time.Second
	memberTimeout  = 10 * time.Second
)

// Leader is what this node knows of the leader; ID is empty when it knows none.
type Leader struct {
	ID   id.DirectoryID
	Term id.Term
}

// Leader returns the leader as this node knows it; it may be out of date by as long as a network cut lasts.
func (n *Node) Leader() Leader {
	l, _ := n.leaderChange()
	return l
}

// LeaderChange returns the leader as this node knows it, and a channel that is closed when that changes.
func (n *Node) LeaderChange() (Leader, <-chan struct{}) { return n.leaderChange() }

func (n *Node) leaderChange() (Leader, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lead, n.change
}

// refreshLeader reads what raft knows. One goroutine of the instance calls it at every change.
func (n *Node) refreshLeader() {
	r := n.inst.Load().r
	_, rid := r.LeaderWithID()
	lead := Leader{ID: id.DirectoryID(rid), Term: id.Term(r.CurrentTerm())}
	if lead.ID == "" || lead.ID == n.cfg.ID && r.State() != raft.Leader {
		lead = Leader{}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if lead != n.lead {
		n.lead = lead
		close(n.change)
		n.change = make(chan struct{})
	}
}

// leaderTerm is the term in which this node leads, 0 when it does not. A node that was deposed may not know it yet.
func (n *Node) leaderTerm() uint64 {
	i := n.inst.Load()
	if i == nil {
		return 0
	}
	term := i.r.CurrentTerm()
	if i.r.State() != raft.Leader || i.r.CurrentTerm() != term {
		return 0
	}
	return term
}

// mind is one function that runs while this node leads.
type mind struct {
	name string
	fn   func(ctx context.Context, term id.Term)
}

// RunMind has fn run in every term that this node leads, from when a barrier of that term has been applied here (so View
// holds everything that earlier leaders committed) until the term ends for this node: then ctx is cancelled, and fn must
// return soon, for the next term's minds wait for it. Call before Start.
func (n *Node) RunMind(name string, fn func(ctx context.Context, term id.Term)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.started {
		panic("raftmeta: RunMind after Start")
	}
	n.minds = append(n.minds, mind{name, fn})
}

// runTerms starts and ends the minds.
func (n *Node) runTerms() {
	var term uint64
	cancel, done := func() {}, make(chan struct{})
	close(done)
	for {
		_, change := n.leaderChange()
		if now := n.leaderTerm(); now != term {
			cancel()
			<-done
			if term = now; term != 0 {
				ctx, c := context.WithCancel(n.ctx)
				d := make(chan struct{})
				cancel, done = c, d
				go func() {
					defer close(d)
					n.runTerm(ctx, term)
				}()
			}
		}
		select {
		case <-change:
		case <-n.stopped:
			cancel()
			<-done
			return
		}
	}
}

func (n *Node) runTerm(ctx context.Context, term uint64) {
	for i := n.inst.Load(); n.await(i, i.r.Barrier(barrierTimeout)) != nil; i = n.inst.Load() {
		if ctx.Err() != nil || n.leaderTerm() != term {
			return
		}
	}
	if ctx.Err() != nil || n.leaderTerm() != term {
		return // the barrier may have been of a later term
	}
	n.cfg.Logger.Info("leading", "term", term)
	var wg sync.WaitGroup
	for _, m := range n.minds {
		wg.Go(func() { m.fn(ctx, id.Term(term)) })
	}
	wg.Wait()
}

// await waits for the future of an entry, until raft has ended or is about to: what then waits for its FSM raft 1.7.3 leaves without an
// answer.
func (n *Node) await(i *instance, f raft.Future) error {
	done := make(chan error, 1)
	go func() { done <- f.Error() }()
	select {
	case err := <-done:
		return err
	case <-i.quit:
	case <-n.stopped:
	}
	return raft.ErrRaftShutdown
}

// TransferLeadership hands the leadership to another voter, if this node leads; nil means that it no longer does.
func (n *Node) TransferLeadership(ctx context.Context) error {
	if n.leaderTerm() == 0 {
		return nil
	}
	return wait(ctx, n.inst.Load().r.LeadershipTransfer(), "transfer leadership")
}

// wait waits for a future of raft, which has a time limit of its own or ends with raft.
func wait(ctx context.Context, f raft.Future, what string) error {
	done := make(chan error, 1)
	go func() { done <- f.Error() }()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("raftmeta: %s: %w", what, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("raftmeta: %s: %w", what, ctx.Err())
	}
}

// Member is one server of the Raft configuration.
type Member struct {
	Server
	Voter bool
}

// Members is the newest Raft configuration that this node knows; it may not be committed yet.
func (n *Node) Members() []Member {
	f := n.inst.Load().r.GetConfiguration()
	if f.Error() != nil {
		return nil
	}
	var ms []Member
	for _, s := range f.Configuration().Servers {
		ms = append(ms, Member{Server{id.DirectoryID(s.ID), string(s.Address)}, s.Suffrage == raft.Voter})
	}
	return ms
}

// AddVoter makes the server a voter; on the leader only.
func (n *Node) AddVoter(ctx context.Context, s Server) error {
	return n.member(ctx, n.inst.Load().r.AddVoter(raft.ServerID(s.ID), raft.ServerAddress(s.Addr), 0, memberTimeout), "add voter "+string(s.ID))
}

// AddNonvoter makes the server a follower without a vote; on the leader only.
func (n *Node) AddNonvoter(ctx context.Context, s Server) error {
	return n.member(ctx, n.inst.Load().r.AddNonvoter(raft.ServerID(s.ID), raft.ServerAddress(s.Addr), 0, memberTimeout), "add follower "+string(s.ID))
}

// RemoveServer takes the server out of the configuration; on the leader only.
func (n *Node) RemoveServer(ctx context.Context, d id.DirectoryID) error {
	return n.member(ctx, n.inst.Load().r.RemoveServer(raft.ServerID(d), 0, memberTimeout), "remove "+string(d))
}

func (n *Node) member(ctx context.Context, f raft.Future, what string) error {
	err := wait(ctx, f, what)
	if errors.Is(err, raft.ErrNotLeader) {
		return fmt.Errorf("%w: %w", ErrNotLeader, err)
	}
	return err
}

// join takes a server in: as a voter up to MaxVoters, then without a vote. Repeats change nothing.
func (n *Node) join(ctx context.Context, s Server) error {
	voters := 0
	for _, m := range n.Members() {
		if m.ID == s.ID && m.Addr == s.Addr {
			return nil
		}
		if m.ID == s.ID && m.Voter {
			return n.AddVoter(ctx, s) // a new address
		}
		if m.Voter {
			voters++
		}
	}
	if voters < MaxVoters {
		return n.AddVoter(ctx, s)
	}
	return n.AddNonvoter(ctx, s)
}

// handleJoin answers at any node; it passes the request on to the leader.
func (n *Node) handleJoin(ctx context.Context, _ id.DirectoryID, p []byte) ([]byte, error) {
	s, err := decodeJoin(p)
	if err != nil {
		return nil, err
	}
	lead := n.Leader()
	switch lead.ID {
	case "":
		return nil, fmt.Errorf("%w: no leader is known here, ask again", ErrNotLeader)
	case n.cfg.ID:
		return nil, n.join(ctx, s)
	default:
		return n.cfg.Peers.Call(ctx, lead.ID, MethodJoin, p)
	}
}

// Handlers are the methods that this node answers to its peers; register each of them. MethodJoin is also for nodes
// that know no cluster id yet.
func (n *Node) Handlers() map[string]Handler {
	return map[string]Handler{
		MethodForward: n.handleForward,
		MethodRaw:     n.handleRaw,
		MethodProve:   n.handleProve,
		MethodJoin:    n.handleJoin,
		MethodPromise: n.handlePromise,
	}
}
