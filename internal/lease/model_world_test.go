package lease

// The model: three voters and two more brokers with clocks of their own run the rules of metadata.md "Who may answer" with the
// real code of this package, on a small Raft, through stops (SIGSTOP: clocks go on), kills, one-way cuts, late messages and
// planned moves, under testing/synctest. After every event it checks that no two leaders may serve a partition.
//
// Everything random comes from one seed, and no two events share an instant, so a seed replays exactly.

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
)

// plants are faults planted into the model; each must be caught.
type plants struct {
	leaseFromReceipt     bool // a broker counts its lease from the answer's arrival
	grantWithoutProof    bool // the Raft leader answers reports without a proof round
	termActsAtOnce       bool // a new Raft leader calls brokers silent without counting the former leader's leases
	leaderServesAtOnce   bool // a new partition leader does not wait for its predecessor's fetch lease
	clockStops           bool // leases are measured on a clock that stands still while the process is stopped
	grantToUninformed    bool // a lease for a broker that has not applied its own deposition
	fetchFromReceipt     bool // a leader counts a fetch from its arrival, not from the stamp that it acknowledges
	deadWithoutContinued bool // proof of a follower's death counts even if its fetches had stopped long before
	graceForgotten       bool // an election with proof clears the grace that an earlier one left
	voteBeforeLease      bool // a report's vote is taken before the moment from which the lease counts
	voteOfAnotherTerm    bool // the Raft leader takes a vote for whatever term as one for its own
	voteReplayed         bool // a report that is not answered is sent anew, with the vote that it had
	voteForgotten        bool // neither sender nor leader remembers the vote of a report as a proof
	nonvoterVotes        bool // a broker that is no voter votes too
}

type world struct {
	mu     sync.Mutex
	rng    *rand.Rand
	start  time.Time
	plant  plants
	nodes  []*node
	nparts int
	cut    map[[2]int]bool
	slow   map[[2]int]time.Duration
	stuck  map[int]time.Duration // delay of Raft's entries to a node (a slow disk); its calls are as fast as ever
	dawdle map[int]time.Duration // how long a node's reports stand still between two statements
	taken  map[int64]bool        // instants with an event

	lagging map[int]bool // appends what the Raft leader sends, and does not apply it
	over    bool

	noElections bool

	failed   string
	maxEpoch []int // highest epoch that has served, by partition
	idle     []time.Duration
	lastSeen []time.Duration // when the partition was last served
	trace    []string
	serves   int
}

const (
	voters   = 3
	brokers  = 5
	replicas = 3
)

func newWorld(seed uint64, p plants) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 7)), start: time.Now(), plant: p, nparts: brokers, cut: map[[2]int]bool{},
		slow: map[[2]int]time.Duration{}, stuck: map[int]time.Duration{}, dawdle: map[int]time.Duration{}, lagging: map[int]bool{}, taken: map[int64]bool{}}
	w.maxEpoch, w.idle, w.lastSeen = make([]int, w.nparts), make([]time.Duration, w.nparts), make([]time.Duration, w.nparts)
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range brokers {
		n := &node{w: w, id: i, voter: i < voters, vote: -1,
			offset: time.Duration(w.rng.Int64N(int64(time.Hour))), rate: 1 + (w.rng.Float64()-0.5)/100}
		w.nodes = append(w.nodes, n)
	}
	for _, n := range w.nodes {
		n.boot0()
	}
	return w
}

func (w *world) now() time.Duration { return time.Since(w.start) }

func (w *world) logf(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf("%9.3f ", w.now().Seconds())+fmt.Sprintf(format, args...))
	if len(w.trace) > 400 {
		w.trace = slices.Delete(w.trace, 0, 200)
	}
}

// after runs f alone at an instant of its own.
func (w *world) after(d time.Duration, f func()) {
	at := int64(w.now() + max(d, 1))
	for w.taken[at] {
		at++
	}
	w.taken[at] = true
	time.AfterFunc(time.Duration(at)-w.now(), func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.taken, at)
		if w.over {
			return
		}
		f()
		w.check()
	})
}

func (w *world) between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(w.rng.Int64N(int64(hi-lo)+1))
}

// check looks at every node that executes now.
func (w *world) check() {
	now := w.now()
	for p := range w.nparts {
		var who []string
		for _, n := range w.nodes {
			r := n.parts[p]
			if !n.up || n.paused || r == nil || r.leading == nil || !n.mayServe(p) {
				continue
			}
			who = append(who, fmt.Sprintf("node %d at epoch %d", n.id, r.epoch))
			w.serves++
			if r.epoch < w.maxEpoch[p] && w.failed == "" {
				w.failed = fmt.Sprintf("partition %d: node %d serves at epoch %d after epoch %d has served", p, n.id, r.epoch, w.maxEpoch[p])
			}
			w.maxEpoch[p] = max(w.maxEpoch[p], r.epoch)
		}
		if len(who) > 1 && w.failed == "" {
			w.failed = fmt.Sprintf("partition %d is served by %v", p, who)
		}
		if len(who) > 0 {
			w.lastSeen[p] = now
		} else {
			w.idle[p] = max(w.idle[p], now-w.lastSeen[p])
		}
	}
	if w.failed != "" && !w.over {
		w.over = true
		w.logf("VIOLATION %s", w.failed)
	}
}

// send delivers f to the process that runs at the target now; the connection's fate is the network's.
func (w *world) send(from, to int, f func(*node)) {
	n := w.nodes[to]
	process := n.process
	if from == to {
		n.after(time.Microsecond, func() { f(n) })
		return
	}
	d := w.between(100*time.Microsecond, 3*time.Millisecond) + w.slow[[2]int{from, to}]
	w.after(d, func() { w.deliver(from, n, process, f) })
}

func (w *world) deliver(from int, n *node, process int, f func(*node)) {
	switch {
	case !n.up || n.process != process:
		return
	case w.cut[[2]int{from, n.id}]:
		if w.rng.IntN(2) == 0 {
			return
		}
		w.after(w.between(10*time.Millisecond, 200*time.Millisecond), func() { w.deliver(from, n, process, f) })
		return
	}
	n.run(func() { f(n) })
}

// node is one process and what its directory keeps.
type node struct {
	w      *world
	id     int
	voter  bool
	offset time.Duration
	rate   float64

	// kept over restarts
	term, vote int
	log        []entryOf

	// of one process
	up, paused bool
	pausedAt   time.Duration
	stopped    time.Duration // total
	backlog    []func()
	process    int
	raftProcess
	brokerProcess
}

// clock is the reading of CLOCK_BOOTTIME, or of a clock that stops with the process.
func (n *node) clock() time.Duration {
	at := n.w.now()
	if n.w.plant.clockStops {
		at -= n.stopped
		if n.paused {
			at -= n.w.now() - n.pausedAt
		}
	}
	return n.offset + time.Duration(float64(at)*n.rate)
}

// run does f in the node's process now, or when it is continued.
func (n *node) run(f func()) {
	if n.paused {
		n.backlog = append(n.backlog, f)
		return
	}
	f()
}

// after is a timer of the process; it ends with it.
func (n *node) after(d time.Duration, f func()) {
	process := n.process
	n.w.after(d, func() {
		if n.up && n.process == process {
			n.run(f)
		}
	})
}

func (n *node) boot0() {
	n.up, n.paused, n.backlog = true, false, nil
	n.process++
	n.raftProcess, n.brokerProcess = newRaft(n), newBroker(n)
	n.w.logf("node %d starts process %d", n.id, n.process)
	n.startRaft()
	n.startBroker()
}

func (n *node) kill() {
	n.w.logf("node %d killed", n.id)
	if n.paused {
		n.stopped += n.w.now() - n.pausedAt
	}
	n.up, n.paused, n.backlog = false, false, nil
	for _, m := range n.w.nodes { // their connections break
		if m != n && m.up && !n.w.cut[[2]int{n.id, m.id}] {
			m.after(n.w.between(time.Millisecond, 5*time.Millisecond), func() { m.suspect(n.id) })
		}
	}
}

func (n *node) pause() {
	n.w.logf("node %d stopped", n.id)
	n.paused, n.pausedAt = true, n.w.now()
}

func (n *node) resume() {
	n.w.logf("node %d continues", n.id)
	n.stopped += n.w.now() - n.pausedAt
	n.paused = false
	backlog := n.backlog
	n.backlog = nil
	process := n.process
	n.w.rng.Shuffle(len(backlog), func(i, j int) { backlog[i], backlog[j] = backlog[j], backlog[i] })
	for _, f := range backlog {
		n.w.after(n.w.between(0, 2*time.Millisecond), func() {
			if n.up && n.process == process {
				n.run(f)
			}
		})
	}
}

// probe asks whether a broker's port refuses connections; refused is called with proof, and never without.
func (n *node) probe(target int, refused func()) {
	w := n.w
	w.after(w.between(100*time.Microsecond, 2*time.Millisecond), func() {
		if w.nodes[target].up || w.cut[[2]int{n.id, target}] || w.cut[[2]int{target, n.id}] {
			return
		}
		n.after(w.between(100*time.Microsecond, 2*time.Millisecond), refused)
	})
}

func bid(i int) id.BrokerID { return id.BrokerID(i) }
