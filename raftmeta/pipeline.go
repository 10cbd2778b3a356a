package raftmeta

import (
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

const (
	pipelineBuffer = 256
	// aheadMost is the largest entry that is sent ahead: raft's main goroutine writes it itself, to a connection on which nothing waits,
	// whose buffer takes it whatever has become of the follower.
	aheadMost = 8 << 10
)

// AppendEntriesPipeline implements raft.Transport. Its answers are buffered: raft stops reading after a refused one while
// its sender goes on, and both, and Shutdown, would wait for each other for ever.
//
// A follower that is behind gets none. raft sends one message on a pipeline for each new entry, or each one to two CommitTimeouts, and no
// more for a follower that lacks more than that; and it turns to a pipeline when the follower has what there was when it was first
// asked, before a restart for example. Without a pipeline it sends, message after message, all that there is by then.
func (p *port) AppendEntriesPipeline(id raft.ServerID, a raft.ServerAddress) (raft.AppendPipeline, error) {
	p.fedMu.Lock()
	fed := p.fed[id]
	p.fedMu.Unlock()
	if f := p.facts.Load(); f != nil && f.last != nil && f.last() > fed+maxAppendEntries {
		return nil, raft.ErrPipelineReplicationNotSupported
	}
	in, err := p.t.net.AppendEntriesPipeline(id, a)
	if err != nil {
		return nil, err
	}
	b := newPipeline(in)
	p.fedMu.Lock()
	p.pipes[id] = b
	p.fedMu.Unlock()
	b.closed = func() {
		p.fedMu.Lock()
		defer p.fedMu.Unlock()
		if p.pipes[id] == b {
			delete(p.pipes, id)
		}
	}
	return b, nil
}

// sendAhead sends q, whose only entry raft is about to write, on each pipeline that is idle.
func (p *port) sendAhead(q *raft.AppendEntriesRequest) {
	p.fedMu.Lock()
	defer p.fedMu.Unlock()
	for _, b := range p.pipes {
		b.ahead(q)
	}
}

// told is the newest commit index that the newest pipeline to a follower has carried.
func (p *port) told(id raft.ServerID) uint64 {
	p.fedMu.Lock()
	b := p.pipes[id]
	p.fedMu.Unlock()
	if b == nil {
		return 0
	}
	return b.commit.Load()
}

// pipeline is raft's to one follower, and takes an entry before raft sends it (ahead).
//
// raft writes and syncs an entry on the leader first and replicates it then, one sync after the other; Raft allows both at once
// (Ongaro's thesis, 10.2.1). So the message that raft will send when it has written goes out before; raft's own, which asks for it, is
// then not sent any more, and raft is told the answer to the first one. It is told none before it asks, which is when the leader has the
// entry too: nothing is committed earlier than it would be, and the leader counts itself as it always did.
type pipeline struct {
	raft.AppendPipeline
	out    chan raft.AppendFuture
	done   chan struct{}
	once   sync.Once
	wg     sync.WaitGroup
	closed func()

	commit atomic.Uint64 // the newest commit index sent

	sending sync.Mutex // held while a message is sent, which may last
	term    uint64     // of the last message
	last    uint64     // the last entry sent
	broken  error      // of a message sent ahead: raft has not seen it

	mu    sync.Mutex
	open  int // messages without an answer
	early *early
}

// early is the message sent ahead that raft has not asked for yet.
type early struct {
	q      *raft.AppendEntriesRequest
	answer raft.AppendFuture // nil until there is one
}

func newPipeline(in raft.AppendPipeline) *pipeline {
	b := &pipeline{AppendPipeline: in, out: make(chan raft.AppendFuture, pipelineBuffer), done: make(chan struct{}), closed: func() {}}
	b.wg.Go(b.forward)
	return b
}

// AppendEntries implements raft.AppendPipeline. The future is nil for what was sent ahead; raft does not look at it.
func (b *pipeline) AppendEntries(q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	b.sending.Lock()
	defer b.sending.Unlock()
	if b.broken != nil {
		return nil, b.broken
	}
	if b.ask(q) {
		return nil, nil
	}
	return b.send(q, r)
}

// ask has raft told the answer to what was sent ahead, if q shows that it has written that; true if there is nothing else in q.
func (b *pipeline) ask(q *raft.AppendEntriesRequest) bool {
	b.mu.Lock()
	e := b.early
	if e == nil || endOf(q) < endOf(e.q) {
		b.mu.Unlock()
		return false
	}
	b.early = nil
	b.mu.Unlock()
	if e.answer != nil {
		b.deliver(e.answer)
	}
	return q.PrevLogEntry == e.q.PrevLogEntry && endOf(q) == endOf(e.q)
}

// endOf is the last entry that a follower has when it has taken q.
func endOf(q *raft.AppendEntriesRequest) uint64 { return q.PrevLogEntry + uint64(len(q.Entries)) }

func (b *pipeline) send(q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	b.mu.Lock()
	b.open++
	b.mu.Unlock()
	f, err := b.AppendPipeline.AppendEntries(q, r)
	if err == nil {
		b.commit.Store(q.LeaderCommitIndex)
		b.term, b.last = q.Term, max(b.last, endOf(q))
	}
	return f, err
}

// ahead sends q if it continues what raft has sent last, in the same term, and nothing is under way. It does not block.
func (b *pipeline) ahead(q *raft.AppendEntriesRequest) {
	if !b.sending.TryLock() {
		return
	}
	defer b.sending.Unlock()
	if b.broken != nil || b.term != q.Term || b.last != q.PrevLogEntry {
		return
	}
	b.mu.Lock()
	idle := b.open == 0 && b.early == nil
	if idle {
		b.early = &early{q: q}
	}
	b.mu.Unlock()
	if idle {
		_, b.broken = b.send(q, new(raft.AppendEntriesResponse))
	}
}

// deliver hands an answer to raft.
func (b *pipeline) deliver(f raft.AppendFuture) {
	select {
	case b.out <- f:
	case <-b.done:
	}
}

// forward hands the answers to raft, but for one to what raft has not asked for: that is kept.
func (b *pipeline) forward() {
	for {
		select {
		case f := <-b.AppendPipeline.Consumer():
			b.mu.Lock()
			b.open--
			keep := b.early != nil && b.early.q == f.Request()
			if keep {
				b.early.answer = f
			}
			b.mu.Unlock()
			if !keep {
				b.deliver(f)
			}
		case <-b.done:
			return
		}
	}
}

// Consumer implements raft.AppendPipeline.
func (b *pipeline) Consumer() <-chan raft.AppendFuture { return b.out }

// Close implements raft.AppendPipeline.
func (b *pipeline) Close() error {
	b.once.Do(func() { close(b.done) })
	b.closed()
	err := b.AppendPipeline.Close()
	b.wg.Wait()
	return err
}

// aheadOf is called by raft's main goroutine before it writes entries, the last of which before them is prev; it sends them
// ahead if this node leads.
func (n *Node) aheadOf(logs []*raft.Log, prevIndex, prevTerm uint64) {
	i := n.inst.Load()
	if i == nil || len(logs) != 1 || logs[0].Type != raft.LogCommand || len(logs[0].Data) > aheadMost || prevIndex == 0 || prevTerm == 0 {
		return
	}
	if i.r.State() != raft.Leader || i.r.CurrentTerm() != logs[0].Term {
		return // a follower writes what it was sent
	}
	i.p.sendAhead(&raft.AppendEntriesRequest{
		RPCHeader: n.tr.header(),
		Term:      logs[0].Term, PrevLogEntry: prevIndex, PrevLogTerm: prevTerm, Entries: logs,
		LeaderCommitIndex: min(i.r.CommitIndex(), prevIndex), // a follower would apply its log to the end
	})
}
