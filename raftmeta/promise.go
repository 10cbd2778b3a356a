package raftmeta

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barnabas-mq/barnabas/internal/id"
)

const (
	promiseRound   = 100 * time.Millisecond // all promises of a round come within
	promiseHolds   = time.Second            // and bind a voter for so long
	promiseStagger = 20 * time.Millisecond  // between the first rounds of two voters
	promiseAgain   = 10 * time.Millisecond  // a refused round is repeated after one to two of these
	timeoutNowFor  = 20 * time.Millisecond  // how long the order to stand for election may wait for raft
	deathHolds     = 5 * time.Second        // a proof of death that has led to nothing is forgotten after
)

// candidacy is what an asker says of itself.
type candidacy struct {
	term                uint64 // of the dead leader
	lastTerm, lastIndex uint64 // of the asker's log
	dead                id.DirectoryID
}

func (c candidacy) encode() []byte {
	b := binary.BigEndian.AppendUint64(nil, c.term)
	b = binary.BigEndian.AppendUint64(b, c.lastTerm)
	b = binary.BigEndian.AppendUint64(b, c.lastIndex)
	return append(b, c.dead...)
}

func decodeCandidacy(p []byte) (c candidacy, err error) {
	if len(p) < 25 || len(p) > 1024 {
		return c, fmt.Errorf("%w: candidacy of %d bytes", errBadRequest, len(p))
	}
	return candidacy{binary.BigEndian.Uint64(p), binary.BigEndian.Uint64(p[8:]), binary.BigEndian.Uint64(p[16:]), id.DirectoryID(p[24:])}, nil
}

// raftFace is what a voter says of itself when asked for a promise.
type raftFace struct {
	state               raft.RaftState
	term                uint64
	leader              id.DirectoryID
	lastTerm, lastIndex uint64
}

func (n *Node) face() raftFace {
	r := n.inst.Load().r
	_, leader := r.LeaderWithID()
	// Stats is the only way to the term of the last entry; it is asked only after a death.
	lastTerm, _ := strconv.ParseUint(r.Stats()["last_log_term"], 10, 64)
	return raftFace{r.State(), r.CurrentTerm(), id.DirectoryID(leader), lastTerm, r.LastIndex()}
}

// misses says that the voter is a follower of the term that knows no leader but the dead one.
func (f raftFace) misses(c candidacy) bool {
	return f.state == raft.Follower && f.term == c.term && (f.leader == "" || f.leader == c.dead)
}

// promises is a voter's memory of whom it let go first.
type promises struct {
	mu    sync.Mutex
	to    id.DirectoryID
	until time.Time
}

// promise gives one if the asker may become the leader in place of the dead one as far as this voter knows, its log is not
// behind, and nobody else has one. It is a hint to avoid split votes; safety never rests on it.
func (p *promises) promise(from id.DirectoryID, c candidacy, f raftFace, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	longer := f.lastTerm > c.lastTerm || f.lastTerm == c.lastTerm && f.lastIndex > c.lastIndex
	if !f.misses(c) || longer || p.to != from && now.Before(p.until) {
		return false
	}
	p.to, p.until = from, now.Add(promiseHolds)
	return true
}

// release takes back what a node promised itself: its round failed, and another's may succeed now.
func (p *promises) release(self id.DirectoryID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.to == self {
		p.until = time.Time{}
	}
}

func (n *Node) handlePromise(_ context.Context, from id.DirectoryID, p []byte) ([]byte, error) {
	c, err := decodeCandidacy(p)
	if err != nil {
		return nil, err
	}
	if i := n.inst.Load(); i == nil || !n.promises.promise(from, c, n.face(), time.Now()) {
		return []byte{0}, nil
	}
	return []byte{1}, nil
}

// LeaderIsDead tells this node of a proof that the process of that directory has ended: its port refuses connections, it
// said goodbye, or a newer incarnation has registered. If it was the leader and this node is a voter, the node stands for
// election at once, once a quorum of voters has promised not to: two at once, or one with a shorter log, would cost
// seconds. It does not wait, and changes nothing when the leader is another one.
func (n *Node) LeaderIsDead(dead id.DirectoryID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.started || n.ended || n.succeeding {
		return
	}
	n.succeeding = true
	n.wg.Go(func() {
		n.succeed(dead)
		n.mu.Lock()
		n.succeeding = false
		n.mu.Unlock()
	})
}

// succeed asks until this node or another leads.
func (n *Node) succeed(dead id.DirectoryID) {
	ctx, cancel := context.WithTimeout(n.ctx, deathHolds)
	defer cancel()
	f := n.face()
	c := candidacy{term: f.term, dead: dead}
	var fired time.Time
	pause := n.rank(dead) * promiseStagger // so that they seldom ask at the same time
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = promiseAgain + rand.N(promiseAgain)
		if f = n.face(); !f.misses(c) {
			return
		}
		c.lastTerm, c.lastIndex = f.lastTerm, f.lastIndex
		if time.Since(fired) >= promiseHolds && n.promised(ctx, c) {
			if n.inst.Load().p.timeoutNow(func() bool { return n.face().misses(c) }) {
				n.cfg.Logger.Info("standing for election: the leader is dead and a quorum lets this node go first", "dead", dead, "term", c.term)
				fired = time.Now()
			}
		}
	}
}

// rank counts the surviving voters whose ids are below this node's.
func (n *Node) rank(dead id.DirectoryID) (k time.Duration) {
	for _, m := range n.Members() {
		if m.Voter && m.ID != dead && m.ID < n.cfg.ID {
			k++
		}
	}
	return k
}

// promised asks all voters, this one included; true when a quorum promised in time.
func (n *Node) promised(ctx context.Context, c candidacy) bool {
	ctx, cancel := context.WithTimeout(ctx, promiseRound)
	defer cancel()
	members := n.Members()
	answers := make(chan bool, len(members))
	voters, mine := 0, false
	for _, m := range members {
		if !m.Voter {
			continue
		}
		voters++
		mine = mine || m.ID == n.cfg.ID
	}
	if !mine || !n.promises.promise(n.cfg.ID, c, n.face(), time.Now()) {
		return false
	}
	asked := 0
	for _, m := range members {
		if m.Voter && m.ID != n.cfg.ID && m.ID != c.dead {
			asked++
			n.wg.Go(func() {
				b, err := n.cfg.Peers.Call(ctx, m.ID, MethodPromise, c.encode())
				answers <- err == nil && len(b) == 1 && b[0] == 1
			})
		}
	}
	yes := 1
	for range asked {
		if yes > voters/2 {
			break
		}
		if <-answers {
			yes++
		}
	}
	if yes > voters/2 && ctx.Err() == nil {
		return true
	}
	n.promises.release(n.cfg.ID)
	return false
}

// timeoutNow orders raft to stand for election. The order never goes over the network, where it could wait behind a disk
// and depose a healthy leader later: it is taken at once or withdrawn, and while it waits cond is asked again and again.
func (p *port) timeoutNow(cond func() bool) bool {
	r := raft.RPC{Command: &raft.TimeoutNowRequest{RPCHeader: p.t.header()}, RespChan: make(chan raft.RPCResponse, 1)}
	for end := time.Now().Add(timeoutNowFor); time.Now().Before(end); {
		if !cond() {
			return false
		}
		select {
		case p.rpc <- r:
			return true
		case <-p.held:
			return false
		case <-p.quit:
			return false
		case <-p.done:
			return false
		case <-time.After(time.Millisecond):
		}
	}
	return false
}
