package lease

import (
	"slices"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
)

// A small Raft: elections, replication to voters and others, steps down without a quorum.

type entryOf struct {
	term int
	cmd  command
}

type raftProcess struct {
	role      string // follower, candidate, leader
	leader    int    // -1 unknown
	commit    int
	applied   int
	match     map[int]int
	contact   map[int]time.Duration
	heardAt   time.Duration // running time, not the lease clock: any clock may drive elections
	timeout   time.Duration
	st        *machine
	proofs    Proofs
	waitApply map[int]func()
}

func newRaft(n *node) raftProcess {
	return raftProcess{role: "follower", leader: -1, st: newMachine(n.w), proofs: NewProofs(n.clock()), waitApply: map[int]func(){}}
}

func (n *node) startRaft() {
	n.resetTimeout()
	if n.voter {
		n.tickElection()
	}
}

func (n *node) resetTimeout() {
	n.heardAt, n.timeout = n.w.now(), n.w.between(800*time.Millisecond, 1600*time.Millisecond)
}

func (n *node) tickElection() {
	n.after(20*time.Millisecond, n.tickElection)
	now := n.w.now()
	switch {
	case n.role == "leader":
		fresh := 1
		for i := range voters {
			if i != n.id && now-n.contact[i] < 500*time.Millisecond {
				fresh++
			}
		}
		if fresh <= voters/2 {
			n.follow(n.term, -1)
		}
	case now-n.heardAt > n.timeout && !n.w.noElections:
		n.resetTimeout()
		n.canvass(true, -1)
	}
}

// canvass asks for votes, first for promises of votes (pre-vote), which change nothing. dead is a leader that is proven
// dead, -1 for none: nobody waits for it (fail-over by promises).
func (n *node) canvass(pre bool, dead int) {
	term := n.term + 1
	if !pre {
		n.role, n.leader, n.vote, n.term = "candidate", -1, n.id, term
	}
	votes, process := map[int]bool{n.id: true}, n.process
	from, last, lastTerm := n.term, len(n.log), n.lastTerm()
	for i := range voters {
		if i == n.id {
			continue
		}
		n.w.send(n.id, i, func(v *node) {
			if !v.voteFor(n.id, term, last, lastTerm, dead, pre) {
				return
			}
			v.w.send(v.id, n.id, func(*node) {
				if n.process != process || votes[v.id] || n.term != from || !pre && n.role != "candidate" {
					return
				}
				votes[v.id] = true
				if len(votes) == voters/2+1 {
					if pre {
						n.canvass(false, dead)
					} else {
						n.lead()
					}
				}
			})
		})
	}
}

func (n *node) lastTerm() int {
	if len(n.log) == 0 {
		return 0
	}
	return n.log[len(n.log)-1].term
}

func (n *node) follow(term, leader int) {
	if n.role == "leader" {
		n.w.logf("node %d steps down from term %d", n.id, n.term)
		n.book = nil
	}
	if term > n.term {
		n.term, n.vote = term, -1
	}
	n.role, n.leader = "follower", leader
}

func (n *node) voteFor(candidate, term, last, lastTerm, dead int, pre bool) bool {
	switch {
	case term < n.term || n.role == "leader":
		return false
	case n.leader >= 0 && n.leader != dead && n.w.now()-n.heardAt < 800*time.Millisecond:
		return false // it has a leader
	case lastTerm < n.lastTerm() || lastTerm == n.lastTerm() && last < len(n.log):
		return false
	case pre:
		return true
	}
	if term > n.term {
		n.follow(term, -1)
	}
	if n.vote >= 0 && n.vote != candidate {
		return false
	}
	n.vote = candidate
	n.resetTimeout()
	return true
}

func (n *node) lead() {
	n.role, n.leader = "leader", n.id
	n.match, n.contact = map[int]int{}, map[int]time.Duration{}
	for i := range brokers {
		n.contact[i] = n.w.now()
	}
	n.w.logf("node %d leads term %d", n.id, n.term)
	barrier := n.appendLocal(command{kind: "barrier"})
	n.waitApply[barrier] = func() { n.startTerm(barrier) }
	n.heartbeat(n.term)
}

func (n *node) appendLocal(c command) int {
	n.log = append(n.log, entryOf{n.term, c})
	n.after(100*time.Microsecond, n.replicate)
	return len(n.log)
}

func (n *node) heartbeat(term int) {
	if n.role == "leader" && n.term == term {
		n.replicate()
		n.after(60*time.Millisecond, func() { n.heartbeat(term) })
	}
}

func (n *node) replicate() {
	if n.role != "leader" {
		return
	}
	n.advance()
	for i := range brokers {
		if i == n.id {
			continue
		}
		from := min(n.match[i], len(n.log))
		entries := slices.Clone(n.log[from:])
		term, commit := n.term, n.commit
		n.w.send(n.id, i, func(f *node) {
			f.after(n.w.stuck[i]+1, func() { f.appendEntries(n.id, term, from, entries, commit) })
		})
	}
}

// appendEntries: match only ever names a prefix that the follower confirmed in this term, so there is nothing to compare
// before it.
func (n *node) appendEntries(leader, term, from int, entries []entryOf, commit int) {
	if term < n.term {
		newer := n.term
		n.w.send(n.id, leader, func(l *node) {
			if l.term < newer {
				l.follow(newer, -1)
			}
		})
		return
	}
	n.follow(term, leader)
	n.resetTimeout()
	if from > len(n.log) {
		return
	}
	for i, e := range entries {
		at := from + i
		if at < len(n.log) && n.log[at].term != e.term {
			n.log = n.log[:at]
		}
		if at == len(n.log) {
			n.log = append(n.log, e)
		}
	}
	match := from + len(entries)
	n.commit = max(n.commit, min(commit, match))
	n.apply()
	n.w.send(n.id, leader, func(l *node) {
		if l.role == "leader" && l.term == term {
			l.match[n.id] = max(l.match[n.id], match)
			l.contact[n.id] = l.w.now()
			l.advance()
		}
	})
}

func (n *node) advance() {
	counts := []int{len(n.log)}
	for i := range voters {
		if i != n.id {
			counts = append(counts, n.match[i])
		}
	}
	slices.Sort(counts)
	c := counts[voters/2]
	if c > n.commit && n.log[c-1].term == n.term {
		n.commit = c
		n.after(100*time.Microsecond, n.replicate) // commit push
	}
	n.apply()
}

func (n *node) apply() {
	if n.w.lagging[n.id] && n.role != "leader" {
		return
	}
	for n.applied < n.commit {
		e := n.log[n.applied]
		n.applied++
		before := n.st.parts
		n.st = n.st.apply(e.cmd, n.applied, n.w.plant)
		n.follower(before)
		if e.cmd.kind == "register" && n.book != nil {
			n.book.Registered(bid(e.cmd.broker), n.clock())
		}
		if f := n.waitApply[n.applied]; f != nil {
			delete(n.waitApply, n.applied)
			f()
		}
	}
}

// startTerm: the barrier of the term has been applied. The ages of proofs are asked from the voters.
func (n *node) startTerm(barrier int) {
	term := n.term
	if n.role != "leader" {
		return
	}
	if n.w.plant.termActsAtOnce {
		n.startMind(term, NewBook(n.clock(), time.Hour, id.Index(barrier)))
		return
	}
	var ask func()
	ask = func() {
		if n.role != "leader" || n.term != term || n.book != nil {
			return
		}
		youngest, answers := time.Duration(1<<62), 0
		for i := range voters {
			n.w.send(n.id, i, func(v *node) {
				age, ok := v.confirm(term)
				if !ok {
					return
				}
				v.w.send(v.id, n.id, func(*node) {
					youngest = min(youngest, age)
					if answers++; answers == voters/2+1 && n.role == "leader" && n.term == term && n.book == nil {
						n.startMind(term, NewBook(n.clock(), youngest, id.Index(barrier)))
					}
				})
			})
		}
		n.after(200*time.Millisecond, ask)
	}
	ask()
}

// confirm is a voter's answer in a proof round, and its own vote.
func (n *node) confirm(term int) (sinceOlder time.Duration, ok bool) {
	if n.term != term {
		return 0, false
	}
	return n.proofs.Confirm(id.Term(term), n.clock()), true
}

// prove runs f when a quorum has confirmed the term, in a round that begins now; not at all if none does.
func (n *node) prove(term int, f func()) {
	answers := 0
	for i := range voters {
		n.w.send(n.id, i, func(v *node) {
			if _, ok := v.confirm(term); ok {
				v.w.send(v.id, n.id, func(*node) {
					if answers++; answers == voters/2+1 && n.role == "leader" && n.term == term {
						f()
					}
				})
			}
		})
	}
}
