package raftmeta

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// aheadMost is the largest entry that is sent ahead: with more, many commands share a sync already, and sending twice costs more
// than the wait for the disk.
const aheadMost = 1 << 10

// aheadPause is how long a follower that failed is left alone.
const aheadPause = time.Second

// ahead sends a new entry to the followers while it is being written here. raft writes and syncs on the leader first and
// replicates then, one sync after the other; Raft allows both at once (Ongaro's thesis, 10.2.1), as the leader counts itself only
// when its own sync has ended, which stays raft's business.
//
// The message is the AppendEntries that raft itself sends a moment later, which then finds the entry there. Nothing depends on its
// fate: it is refused by a follower that lacks the entry before it or is in a later term, and its answer is not looked at. It
// carries no commit index. One to each follower is under way; whoever is busy gets the entry from raft alone.
type ahead struct {
	send func(to raft.Server, q *raft.AppendEntriesRequest) error
	stop chan struct{}
	wg   sync.WaitGroup

	mu    sync.Mutex
	loops map[raft.ServerID]*aheadLoop
}

type aheadLoop struct {
	jobs chan aheadJob // unbuffered: taken at once or not at all
	quit chan struct{}
}

type aheadJob struct {
	to raft.Server
	q  *raft.AppendEntriesRequest
}

func newAhead(send func(raft.Server, *raft.AppendEntriesRequest) error) *ahead {
	return &ahead{send: send, stop: make(chan struct{}), loops: map[raft.ServerID]*aheadLoop{}}
}

// offer hands q to the followers that wait for nothing. It does not block; q and its entries are not written to afterwards.
func (a *ahead) offer(q *raft.AppendEntriesRequest, followers []raft.Server) {
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-a.stop:
		return
	default:
	}
	for _, f := range followers {
		l := a.loops[f.ID]
		if l == nil {
			l = &aheadLoop{jobs: make(chan aheadJob), quit: make(chan struct{})}
			a.loops[f.ID] = l
			a.wg.Go(func() { a.run(l) })
		}
		select {
		case l.jobs <- aheadJob{f, q}:
		default:
		}
	}
	if len(a.loops) > len(followers) {
		a.forget(followers)
	}
}

// forget ends the loops of servers that have left the configuration.
func (a *ahead) forget(followers []raft.Server) {
	keep := map[raft.ServerID]bool{}
	for _, f := range followers {
		keep[f.ID] = true
	}
	for id, l := range a.loops {
		if !keep[id] {
			close(l.quit)
			delete(a.loops, id)
		}
	}
}

func (a *ahead) run(l *aheadLoop) {
	for {
		var pause <-chan time.Time
		select {
		case j := <-l.jobs:
			if a.send(j.to, j.q) != nil {
				pause = time.After(aheadPause)
			}
		case <-l.quit:
			return
		case <-a.stop:
			return
		}
		if pause == nil {
			continue
		}
		select {
		case <-pause:
		case <-l.quit:
			return
		case <-a.stop:
			return
		}
	}
}

func (a *ahead) close() {
	a.mu.Lock()
	select {
	case <-a.stop:
	default:
		close(a.stop)
	}
	a.mu.Unlock()
	a.wg.Wait()
}

// sendAhead sends one message through the transport, on a connection of the pool.
func (t *transport) sendAhead(to raft.Server, q *raft.AppendEntriesRequest) error {
	return t.net.AppendEntries(to.ID, to.Address, q, new(raft.AppendEntriesResponse))
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
	n.ahead.offer(&raft.AppendEntriesRequest{
		RPCHeader: n.tr.header(),
		Term:      logs[0].Term, PrevLogEntry: prevIndex, PrevLogTerm: prevTerm, Entries: logs,
	}, n.followers())
}
