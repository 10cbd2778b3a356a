package lease

import (
	"slices"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
)

// brokerProcess is what one process knows as a broker, and as the Raft leader's mind.
type brokerProcess struct {
	lease    Lease
	lastSent time.Duration // of its reports
	parts    []*replica

	book    *Book // of the mind, nil unless it runs
	pending []report
	proving bool
	probing map[int]bool
}

type report struct {
	from    int
	process int
	inc     id.BrokerEpoch
	applied id.Index
	sent    time.Duration
	voted   id.Term
}

type replica struct {
	past    Following
	epoch   int // of leading or of what is followed
	leading *Leading
	adding  map[int]bool
	seen    map[int]time.Duration // arrival of each follower's last fetch
	fetchNo int
	stamped bool
	stamp   time.Duration
}

func newBroker(n *node) brokerProcess {
	b := brokerProcess{probing: map[int]bool{}}
	for range n.w.nparts {
		b.parts = append(b.parts, &replica{epoch: -1})
	}
	return b
}

func (n *node) startBroker() {
	n.every(200*time.Millisecond, n.register)
	n.every(ReportEvery, n.report)
	n.every(100*time.Millisecond, n.watch)
}

func (n *node) every(d time.Duration, f func()) {
	f()
	n.after(d, func() { n.every(d, f) })
}

// registered: this process's own registration is live in its applied state.
func (n *node) registered() bool {
	row := n.st.brokers[n.id]
	return row.live && row.nonce == n.process
}

func (n *node) propose(c command) {
	if n.leader < 0 {
		return
	}
	n.w.send(n.id, n.leader, func(l *node) {
		if l.role == "leader" {
			l.appendLocal(c)
		}
	})
}

// register: a process that was fenced registers again only after it has applied that, and so deposed itself.
func (n *node) register() {
	if !n.registered() {
		n.propose(command{kind: "register", broker: n.id, nonce: n.process})
	}
}

// report is a report from the choice of the leader on, with pauses where the real one may be descheduled.
func (n *node) report() {
	if n.leader < 0 || !n.registered() {
		return
	}
	leader, r := n.leader, report{from: n.id, process: n.process, inc: n.st.brokers[n.id].inc}
	votes := n.lease.Votes(n.lastSent)
	if n.w.plant.voteBeforeLease {
		r.voted = n.ownVote()
	}
	n.afterDawdling(func() {
		r.sent = n.clock()
		n.lastSent = max(n.lastSent, r.sent)
		n.afterDawdling(func() {
			if !n.w.plant.voteBeforeLease && (votes || n.w.plant.voteOfAnotherTerm || n.w.plant.voteReplayed || n.w.plant.nonvoterVotes) {
				r.voted = n.ownVote()
			}
			r.applied = id.Index(n.applied)
			n.sendReport(leader, r, 10)
		})
	})
}

// afterDawdling goes on at once, unless the node's reports stand still.
func (n *node) afterDawdling(f func()) {
	if d := n.w.dawdle[n.id]; d > 0 {
		n.after(n.w.between(d*9/10, d), f)
		return
	}
	f()
}

// ownVote is raftmeta's Node.Vote.
func (n *node) ownVote() id.Term {
	switch {
	case n.voter && !n.w.plant.voteForgotten:
		n.confirm(n.term)
	case !n.voter && !n.w.plant.nonvoterVotes:
		return 0
	}
	return id.Term(n.term)
}

func (n *node) sendReport(leader int, r report, again int) {
	n.w.send(n.id, leader, func(l *node) { l.reported(r) })
	if n.w.plant.voteReplayed && again > 0 {
		n.after(400*time.Millisecond, func() {
			r.sent, r.applied = n.clock(), id.Index(n.applied)
			n.sendReport(leader, r, again-1)
		})
	}
}

func (n *node) reported(r report) {
	row := n.st.brokers[r.from]
	if n.book == nil || row.inc != r.inc || !row.live {
		return
	}
	n.book.Heard(bid(r.from), r.applied, n.clock())
	if n.w.plant.grantWithoutProof || n.carried(r) {
		n.answer([]report{r})
		return
	}
	n.pending = append(n.pending, r)
	n.round()
}

// carried is raftmeta's Node.ProveWith as far as it makes no round.
func (n *node) carried(r report) bool {
	config := []int{0, 1, 2}
	if n.w.plant.nonvoterVotes && !slices.Contains(config, r.from) {
		config[2] = r.from
		if n.id == 2 {
			config[0] = n.id
		}
	}
	if n.w.plant.voteOfAnotherTerm && r.voted != 0 {
		r.voted = id.Term(n.term)
	}
	if !Carried(r.voted, id.Term(n.term), r.from, n.id, config) {
		return false
	}
	if n.w.plant.voteForgotten {
		return true
	}
	_, ok := n.confirm(n.term)
	return ok
}

// round answers the reports that came before it begins, if it succeeds.
func (n *node) round() {
	if n.proving || len(n.pending) == 0 {
		return
	}
	n.proving = true
	term, batch := n.term, n.pending
	n.pending = nil
	done := false
	end := func() {
		if !done && n.term == term && n.book != nil {
			done, n.proving = true, false
			n.round()
		}
	}
	n.prove(term, func() {
		n.answer(batch)
		end()
	})
	n.after(300*time.Millisecond, end)
}

func (n *node) answer(batch []report) {
	for _, r := range batch {
		if n.book == nil || n.st.brokers[r.from].inc != r.inc || !n.st.brokers[r.from].live {
			continue
		}
		if !n.w.plant.grantToUninformed && !n.book.MayGrant(bid(r.from), r.applied) {
			continue
		}
		n.w.send(n.id, r.from, func(b *node) {
			if b.process != r.process {
				return
			}
			if b.w.plant.leaseFromReceipt {
				r.sent = b.clock()
			}
			b.lease.Answered(r.sent)
		})
	}
}

// ---- the mind on the Raft leader ----

func (n *node) startMind(term int, b *Book) {
	n.book, n.pending, n.proving, n.probing = b, nil, false, map[int]bool{}
	n.mind(term)
}

func (n *node) mind(term int) {
	if n.book == nil || n.term != term || n.role != "leader" {
		return
	}
	n.after(50*time.Millisecond, func() { n.mind(term) })
	for i, row := range n.st.brokers {
		if row.live && n.book.Silent(bid(i), n.clock()) {
			n.fence(i, row.inc, false)
		}
	}
}

func (n *node) fence(b int, inc id.BrokerEpoch, proven bool) {
	if n.book == nil || n.probing[b] {
		return
	}
	n.probing[b] = true
	term := n.term
	done := n.book.Hold(bid(b))
	n.w.logf("node %d fences %d, proven %v", n.id, b, proven)
	at := n.appendLocal(command{kind: "fence", broker: b, inc: inc, proven: proven, term: term})
	n.waitApply[at] = func() {
		n.probing[b] = false
		done(id.Index(at))
	}
}

// move is a planned election: the old leader lives.
func (n *node) move(p int) {
	r := n.st.parts[p]
	var to []int
	for _, x := range r.isr {
		if x != r.leader && n.st.brokers[x].live {
			to = append(to, x)
		}
	}
	if n.book == nil || len(to) == 0 || r.leader < 0 {
		return
	}
	n.moveTo(p, to[n.w.rng.IntN(len(to))])
}

func (n *node) moveTo(p, leader int) {
	r := n.st.parts[p]
	n.w.logf("node %d moves partition %d from %d to %d", n.id, p, r.leader, leader)
	done := n.book.Hold(bid(r.leader))
	at := n.appendLocal(command{kind: "elect", part: p, pepoch: r.pepoch, leader: leader, term: n.term})
	n.waitApply[at] = func() { done(id.Index(at)) }
}

// suspect: the connection with a broker broke.
func (n *node) suspect(b int) {
	if n.book != nil && n.st.brokers[b].live {
		row := n.st.brokers[b]
		n.probe(b, func() { n.fence(b, row.inc, true) })
	}
	if n.voter && n.leader == b {
		n.probe(b, func() {
			if n.leader == b && n.role == "follower" {
				n.resetTimeout()
				n.canvass(true, b)
			}
		})
	}
	for p := range n.parts {
		n.probeFor(p, b)
	}
}

// ---- partitions ----

// follower takes in what an entry changed.
func (n *node) follower(before []partRow) {
	for p, r := range n.st.parts {
		rep := n.parts[p]
		if rep.epoch == r.epoch && before[p].leader == r.leader || !slices.Contains(r.replicas, n.id) {
			continue
		}
		if !n.registered() && r.leader == n.id { // of an earlier process, read from the log
			continue
		}
		rep.epoch, rep.leading, rep.stamped, rep.adding, rep.seen = r.epoch, nil, false, map[int]bool{}, map[int]time.Duration{}
		rep.fetchNo++
		switch {
		case r.leader == n.id:
			n.takeOver(p, r)
		case r.leader >= 0:
			if n.registered() {
				rep.past.Follow()
			}
			n.fetch(p, rep.fetchNo)
		}
	}
}

func (n *node) takeOver(p int, r partRow) {
	rep := n.parts[p]
	from := TakeoverFrom{Grace: r.grace}
	for _, x := range r.replicas {
		if x != n.id {
			from.Others = append(from.Others, bid(x))
			if n.st.brokers[x].live {
				from.Live = append(from.Live, bid(x))
			}
		}
	}
	if n.w.plant.leaderServesAtOnce {
		from = TakeoverFrom{}
	}
	rep.leading = NewLeading(&rep.past, from, n.clock())
	n.w.logf("node %d leads partition %d at epoch %d, isr %v, grace %v, waits %v", n.id, p, r.epoch, r.isr, r.grace, rep.leading.Waits())
	for _, b := range rep.leading.Waits() {
		n.probeFor(p, int(b))
	}
}

func (n *node) member(b int) Member { return Member{bid(b), n.st.brokers[b].inc} }

func (n *node) others(p int) []Member {
	var ms []Member
	for x := range brokers {
		if x != n.id && (slices.Contains(n.st.parts[p].isr, x) || n.parts[p].adding[x]) {
			ms = append(ms, n.member(x))
		}
	}
	return ms
}

func (n *node) mayServe(p int) bool {
	_, may := n.parts[p].leading.MayServe(n.clock(), n.lease, n.others(p))
	return may
}

func (n *node) fetch(p, no int) {
	rep := n.parts[p]
	if rep.fetchNo != no {
		return
	}
	leader, epoch, me := n.st.parts[p].leader, rep.epoch, n.member(n.id)
	if !n.registered() {
		n.after(100*time.Millisecond, func() { n.fetch(p, no) })
		return
	}
	stamp, stamped := rep.stamp, rep.stamped
	answered, process := false, n.process
	n.w.send(n.id, leader, func(l *node) {
		l.fetched(p, epoch, me, stamp, stamped, func(stamp time.Duration, taken bool) {
			l.w.send(l.id, n.id, func(*node) {
				if n.process != process || rep.epoch != epoch || rep.leading != nil || answered {
					return
				}
				answered = true
				if !taken {
					n.after(n.w.between(10*time.Millisecond, 250*time.Millisecond), func() { n.fetch(p, no) })
					return
				}
				rep.stamp, rep.stamped = stamp, true
				rep.past.Sent(bid(leader), n.clock())
				n.after(5*time.Millisecond, func() { n.fetch(p, no) })
			})
		})
	})
	n.after(Duration, func() {
		if !answered {
			answered = true
			n.fetch(p, no)
		}
	})
}

// fetched parks a fetch and answers it with the time of the answer.
func (n *node) fetched(p, epoch int, m Member, stamp time.Duration, stamped bool, reply func(stamp time.Duration, taken bool)) {
	rep := n.parts[p]
	if rep.leading == nil || rep.epoch != epoch {
		reply(0, false)
		return
	}
	now := n.clock()
	if n.w.plant.fetchFromReceipt {
		stamp, stamped = now, true
	}
	rep.leading.Fetched(m, stamp, stamped, now)
	rep.seen[int(m.Broker)] = now
	n.after(n.w.between(time.Millisecond, Duration*2/3), func() {
		if rep.leading != nil && rep.epoch == epoch {
			reply(n.clock(), true)
		}
	})
}

// watch is a leader's care for its partitions: probes of the silent, changes of the ISR, the end of the grace.
func (n *node) watch() {
	for p, rep := range n.parts {
		if rep.leading == nil {
			continue
		}
		row, now := n.st.parts[p], n.clock()
		for _, m := range n.others(p) {
			if now-rep.seen[int(m.Broker)] > 400*time.Millisecond {
				n.probeFor(p, int(m.Broker))
			}
		}
		for _, b := range rep.leading.Waits() {
			n.probeFor(p, int(b))
		}
		if !n.mayServe(p) || !n.registered() {
			continue
		}
		isr := []int{n.id}
		for _, x := range row.replicas {
			age := now - rep.seen[x]
			if x != n.id && n.st.brokers[x].live && (slices.Contains(row.isr, x) && age < 1200*time.Millisecond || age < 300*time.Millisecond) {
				isr = append(isr, x)
			}
		}
		if !row.grace && len(isr) == len(row.isr) && !slices.ContainsFunc(isr, func(x int) bool { return !slices.Contains(row.isr, x) }) {
			continue
		}
		c := command{kind: "alter", broker: n.id, inc: n.member(n.id).Epoch, part: p, epoch: row.epoch, pepoch: row.pepoch, isr: isr}
		for _, x := range isr {
			c.isrInc = append(c.isrInc, n.member(x).Epoch)
			if !slices.Contains(row.isr, x) {
				rep.adding[x] = true
			}
		}
		n.propose(c)
	}
}

// probeFor asks whether a broker that matters to a led partition is dead.
func (n *node) probeFor(p, b int) {
	rep := n.parts[p]
	if rep.leading == nil {
		return
	}
	epoch, m := rep.epoch, n.member(b)
	n.probe(b, func() {
		if rep.leading == nil || rep.epoch != epoch {
			return
		}
		rep.leading.Gone(m.Broker)
		rep.leading.Dead(m, n.clock())
		if n.w.plant.deadWithoutContinued {
			rep.leading.fetchers[m.Broker] = &fetcher{epoch: m.Epoch, dead: true}
		}
	})
}
