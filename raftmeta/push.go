package raftmeta

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// pushLater is when followers are told of an entry of nothing but committed offsets, if no later entry has told them by then. Under
	// load the next one does, and a message of its own costs both sides as much as a dozen commands.
	pushLater = 2 * time.Millisecond
	// A push that overtook its entry is sent again after twice the pause each time, up to pushRetryMost, for as long as the
	// follower is in the term and lacks the entry: a busy disk or machine delays it by a second, and what waits for the commit
	// should not wait for raft's CommitTimeout on top.
	pushRetryFirst = 500 * time.Microsecond
	pushRetryMost  = 16 * time.Millisecond
	// pushTries is how often a push is sent again that met no answer at all; then it is left to CommitTimeout.
	pushTries = 8
)

// target is an entry known to be committed, with the term that it carries.
type target struct{ index, term uint64 }

// pusher tells followers of a commit at once, or, when nobody looks for it there, if no entry follows. They would learn it with the next
// entry or after CommitTimeout.
//
// The message is an AppendEntries without entries, of our own id and address, with Term = PrevLogTerm = the term that the
// entry itself carries and PrevLogEntry = LeaderCommitIndex = its index. Only an entry that this node proposed and that
// was applied here is ever pushed, so the term's leader was this node and the message is one that raft itself could
// have sent; lateness, repetition and disorder are harmless. LeaderCommitIndex is never above PrevLogEntry: raft
// commits up to its last index and would apply an uncommitted tail. The answer serves only the retry; raft never sees it.
type pusher struct {
	send func(to raft.Server, t target) (raft.AppendEntriesResponse, error)
	told func(to raft.ServerID) uint64 // the newest commit that went to it with an entry
	stop chan struct{}
	wg   sync.WaitGroup

	mu    sync.Mutex
	loops map[raft.ServerID]*pushLoop
}

type pushLoop struct {
	to     raft.Server
	want   target
	pushed target        // the last one
	must   uint64        // somebody waits for commits up to here: whatever entries have told, which a disk may hold up
	later  *time.Timer   // wakes
	wake   chan struct{} // 1
	quit   chan struct{}
}

func newPusher(send func(raft.Server, target) (raft.AppendEntriesResponse, error), told func(raft.ServerID) uint64) *pusher {
	return &pusher{send: send, told: told, stop: make(chan struct{}), loops: map[raft.ServerID]*pushLoop{}}
}

// kick has the loop look at what it is to push.
func (l *pushLoop) kick() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// push offers t to each follower, now or later: at most one message to each is outstanding, always the newest.
func (p *pusher) push(t target, followers []raft.Server, now bool) {
	if t.index == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.stop:
		return
	default:
	}
	for _, f := range followers {
		l := p.loops[f.ID]
		if l == nil {
			l = &pushLoop{wake: make(chan struct{}, 1), quit: make(chan struct{})}
			l.later = time.AfterFunc(pushLater, l.kick)
			p.loops[f.ID] = l
			p.wg.Add(1)
			go p.run(l)
		}
		l.to = f
		if t.index > l.want.index || t.term > l.want.term {
			l.want = t
		}
		if now {
			l.must = max(l.must, t.index)
		}
		if l.must >= t.index {
			l.kick()
		} else {
			l.later.Reset(pushLater)
		}
	}
	if len(p.loops) > len(followers) {
		p.forget(followers)
	}
}

// tell pushes now what was to be pushed later, and what is committed already as soon as push is called for it.
func (p *pusher) tell(to raft.ServerID, committed uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.loops[to]; l != nil {
		l.must = max(l.must, committed)
		if l.pushed != l.want {
			l.kick()
		}
	}
}

// forget ends the loops of servers that have left the configuration.
func (p *pusher) forget(followers []raft.Server) {
	keep := map[raft.ServerID]bool{}
	for _, f := range followers {
		keep[f.ID] = true
	}
	for id, l := range p.loops {
		if !keep[id] {
			close(l.quit)
			delete(p.loops, id)
		}
	}
}

// due is what is to be pushed; false if nothing is.
func (p *pusher) due(l *pushLoop) (raft.Server, target, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.pushed == l.want {
		return l.to, l.want, false
	}
	return l.to, l.want, l.must > l.pushed.index || p.told(l.to.ID) < l.want.index
}

func (p *pusher) done(l *pushLoop, t target) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.pushed = t
}

func (p *pusher) run(l *pushLoop) {
	defer p.wg.Done()
	defer l.later.Stop()
	retry := time.NewTimer(time.Hour)
	defer retry.Stop()
	for {
		select {
		case <-l.wake:
		case <-l.quit:
			return
		case <-p.stop:
			return
		}
		for try := 0; ; {
			to, t, ok := p.due(l)
			if !ok {
				break
			}
			r, err := p.send(to, t)
			if err == nil && !r.Success && r.Term == t.term || err != nil && try < pushTries {
				retry.Reset(min(pushRetryFirst<<min(try, 16), pushRetryMost))
				try++
				select {
				case <-retry.C:
					continue
				case <-l.quit:
					return
				case <-p.stop:
					return
				}
			}
			p.done(l, t)
			break // what came meanwhile has woken this loop or waits for its time
		}
	}
}

func (p *pusher) close() {
	p.mu.Lock()
	select {
	case <-p.stop:
	default:
		close(p.stop)
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// sendPush sends one push through the transport.
func (t *transport) sendPush(to raft.Server, what target) (r raft.AppendEntriesResponse, err error) {
	err = t.net.AppendEntries(to.ID, to.Address, &raft.AppendEntriesRequest{
		RPCHeader:    t.header(),
		Term:         what.term,
		PrevLogEntry: what.index, PrevLogTerm: what.term, LeaderCommitIndex: what.index,
	}, &r)
	return r, err
}
