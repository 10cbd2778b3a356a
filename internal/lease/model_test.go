package lease

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// chaos runs one seed for that long with random faults, then heals and waits.
func chaos(seed uint64, plant plants, length time.Duration, script func(*world)) *world {
	w := newWorld(seed, plant)
	time.Sleep(4 * time.Second)
	for w.now() < length && !w.done() {
		w.mu.Lock()
		pause := w.between(10*time.Millisecond, 1500*time.Millisecond)
		switch {
		case script != nil:
			script(w)
			pause = 12 * time.Second
		case w.rng.IntN(8) == 0:
			scripts[w.rng.IntN(len(scripts))].run(w)
		default:
			w.fault()
		}
		w.mu.Unlock()
		time.Sleep(pause)
		if script != nil {
			w.heal()
			time.Sleep(4 * time.Second)
		}
	}
	if w.done() {
		return w
	}
	w.heal()
	time.Sleep(20 * time.Second)
	w.mu.Lock()
	defer w.mu.Unlock()
	for p := range w.nparts {
		if w.failed == "" && w.now()-w.lastSeen[p] > time.Second {
			w.failed = fmt.Sprintf("partition %d: not served 20 s after everything was healed", p)
		}
	}
	w.over = true
	return w
}

func (w *world) heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.logf("heal")
	w.cut, w.slow, w.stuck = map[[2]int]bool{}, map[[2]int]time.Duration{}, map[int]time.Duration{}
	w.dawdle, w.lagging = map[int]time.Duration{}, map[int]bool{}
	for _, n := range w.nodes {
		switch {
		case !n.up:
			n.boot0()
		case n.paused:
			n.resume()
		}
	}
}

func (w *world) done() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.over
}

// fault begins something that ends by itself.
func (w *world) fault() {
	n := w.nodes[w.rng.IntN(brokers)]
	if w.rng.IntN(3) == 0 { // the leaders are where it hurts
		for _, l := range w.nodes {
			if l.role == "leader" {
				n = l
			}
		}
	}
	other := w.rng.IntN(brokers)
	forSome := w.between(200*time.Millisecond, 7*time.Second)
	switch w.rng.IntN(11) {
	case 0, 1:
		w.pauseFor(n, w.between(50*time.Millisecond, 5*time.Second))
	case 2:
		w.killFor(n, w.between(20*time.Millisecond, 4*time.Second))
	case 3, 4:
		w.cutFor(forSome, [2]int{n.id, other})
	case 5:
		w.cutFor(forSome, both(n.id, other)...)
	case 6:
		w.cutFor(forSome, both(n.id, 0, 1, 2)...)
	case 9:
		w.stickFor(n, forSome)
	case 10:
		w.dawdleFor(n, forSome)
	case 7:
		k := [2]int{n.id, other}
		w.slow[k] = w.between(0, 400*time.Millisecond)
		w.after(w.between(time.Second, 5*time.Second), func() { delete(w.slow, k) })
	case 8:
		for _, l := range w.nodes {
			if l.book != nil && l.up && !l.paused {
				l.move(w.rng.IntN(w.nparts))
			}
		}
	}
}

func (w *world) pauseFor(n *node, d time.Duration) {
	if !n.up || n.paused {
		return
	}
	n.pause()
	process := n.process
	w.after(d, func() {
		if n.up && n.paused && n.process == process {
			n.resume()
		}
	})
}

func (w *world) killFor(n *node, d time.Duration) {
	if !n.up {
		return
	}
	n.kill()
	w.after(d, func() {
		if !n.up {
			n.boot0()
		}
	})
}

func (w *world) stickFor(n *node, d time.Duration) {
	w.logf("entries to %d come late", n.id)
	w.stuck[n.id] = w.between(0, d)
	w.after(d, func() { delete(w.stuck, n.id) })
}

// dawdleFor has a node's reports stand still between two statements, while everything else in it goes on.
func (w *world) dawdleFor(n *node, d time.Duration) {
	w.logf("reports of %d dawdle", n.id)
	w.dawdle[n.id] = w.between(0, d)
	w.after(d, func() { delete(w.dawdle, n.id) })
}

// both is every link between a node and some others, in both directions.
func both(n int, others ...int) (links [][2]int) {
	for _, o := range others {
		links = append(links, [2]int{n, o}, [2]int{o, n})
	}
	return links
}

// raftLeader returns the node whose mind runs, nil if none.
func (w *world) raftLeader() *node {
	for _, n := range w.nodes {
		if n.up && !n.paused && n.book != nil {
			return n
		}
	}
	return nil
}

// scripts are compound faults that single random ones rarely make.
var scripts = []struct {
	name string
	run  func(*world)
}{
	{"answers come late, then reports are lost", func(w *world) {
		l := w.raftLeader()
		if l == nil {
			return
		}
		n := w.nodes[w.rng.IntN(brokers)]
		w.slow[[2]int{l.id, n.id}] = w.between(time.Second, 4*time.Second)
		w.after(w.between(2*time.Second, 4*time.Second), func() {
			w.cutFor(6*time.Second, [2]int{n.id, l.id})
			for o := range brokers { // its followers are cut off too, so that only the lease is left
				w.cutFor(6*time.Second, both(n.id, o)...)
				delete(w.cut, [2]int{l.id, n.id})
			}
		})
	}},
	{"the Raft leader is stopped and alone", func(w *world) {
		if l := w.raftLeader(); l != nil {
			w.cutFor(8*time.Second, both(l.id, 0, 1, 2, 3, 4)...)
			w.pauseFor(l, w.between(2500*time.Millisecond, 5*time.Second))
		}
	}},
	{"the Raft leader dies and another broker hears only it", func(w *world) {
		l := w.raftLeader()
		if l == nil {
			return
		}
		n := w.nodes[voters+w.rng.IntN(brokers-voters)]
		for o := range brokers {
			if o != l.id {
				w.cutFor(6*time.Second, both(n.id, o)...)
			}
		}
		w.after(w.between(0, 900*time.Millisecond), func() { w.killFor(l, 4*time.Second) })
	}},
	{"a partition is moved away from a broker whose log lags", func(w *world) {
		l := w.raftLeader()
		if l == nil {
			return
		}
		n := w.nodes[voters+w.rng.IntN(brokers-voters)]
		w.logf("entries to %d come late", n.id)
		w.stuck[n.id] = w.between(2*time.Second, 5*time.Second)
		w.after(6*time.Second, func() { delete(w.stuck, n.id) })
		for p, r := range l.st.parts {
			if r.leader == n.id {
				l.move(p)
			}
		}
	}},
	{"a leader without the Raft leader, and its successor dies early", func(w *world) {
		if l, p := w.raftLeader(), w.rng.IntN(w.nparts); l != nil {
			w.orphan(l, p)
			w.killSuccessor(p, w.between(2*time.Second, 3700*time.Millisecond))
		}
	}},
	{"a leader without the Raft leader, and its only successor dies late", func(w *world) {
		l, p := w.raftLeader(), w.rng.IntN(w.nparts)
		if l == nil {
			return
		}
		r := l.st.parts[p]
		for _, x := range r.isr { // leave an ISR of two
			if x != r.leader && x != l.id {
				w.killFor(w.nodes[x], 9*time.Second)
				break
			}
		}
		w.after(2*time.Second, func() {
			w.orphan(l, p)
			w.killSuccessor(p, w.between(3700*time.Millisecond, 6*time.Second))
		})
	}},
	{"a report reaches the stopped Raft leader after the next one has moved its partition", func(w *world) {
		l := w.raftLeader()
		if l == nil {
			return
		}
		v := w.nodes[(l.id+1+w.rng.IntN(brokers-1))%brokers]
		if !l.leads(v.id) {
			return
		}
		v.timeout = 5 * time.Second // it does not stand for election itself
		w.pauseFor(l, w.between(3200*time.Millisecond, 3800*time.Millisecond))
		for o := range brokers { // the stopped one hears of no successor
			if o != v.id {
				w.cutFor(8*time.Second, [2]int{o, l.id})
			}
		}
		w.after(300*time.Millisecond, func() { // while it still takes the stopped one for the leader
			w.dawdle[v.id] = w.between(2800*time.Millisecond, 3*time.Second)
			w.after(400*time.Millisecond, func() { delete(w.dawdle, v.id) })
		})
		w.after(500*time.Millisecond, func() {
			if v.voter {
				w.lagging[v.id] = true
			} else {
				w.stuck[v.id] = 5 * time.Second
			}
		})
		w.after(7*time.Second, func() { delete(w.stuck, v.id); delete(w.lagging, v.id) })
		w.after(2600*time.Millisecond, func() {
			if next := w.raftLeader(); next != nil && next != v {
				for p, r := range next.st.parts {
					if r.leader == v.id {
						next.move(p)
					}
				}
			}
		})
	}},
	{"a voter's lease rests on its own votes when the Raft leader dies", func(w *world) {
		l, v := w.raftLeader(), w.nodes[voters-1]
		switch {
		case l == nil || l != v && !l.leads(v.id):
			return
		case l == v:
			w.killFor(l, 3*time.Second)
			return
		}
		other := w.nodes[voters-2-l.id]
		w.dawdle[l.id] = 4 * time.Second // its own reports ask all voters
		w.after(time.Second, func() { delete(w.dawdle, l.id) })
		for o := voters; o < brokers; o++ { // no reports but of the other voters; no fetches from the one
			w.cutFor(2600*time.Millisecond, both(v.id, o)...)
			w.cutFor(2600*time.Millisecond, both(l.id, o)...)
		}
		w.after(time.Second, func() {
			w.cutFor(300*time.Millisecond, [2]int{l.id, v.id}) // which does not notice, and does not stand itself
			w.killFor(l, 400*time.Millisecond)
			var silence func(left int)
			silence = func(left int) {
				switch {
				case other.book != nil:
					w.cutFor(3*time.Second, both(v.id, other.id, l.id)...)
				case left > 0:
					w.after(5*time.Millisecond, func() { silence(left - 1) })
				}
			}
			silence(100)
		})
	}},
}

// leads says whether a broker leads a partition that one outside of the voters may take over; if not, it is given one.
func (n *node) leads(b int) bool {
	for p, r := range n.st.parts {
		if r.leader == b && slices.ContainsFunc(r.isr, func(x int) bool { return x >= voters && x != b }) {
			n.w.logf("node %d leads partition %d, isr %v", b, p, r.isr)
			return true
		}
	}
	for p, r := range n.st.parts {
		if slices.Contains(r.isr, b) && slices.Max(r.isr) >= voters && r.leader >= 0 && r.leader != b {
			n.moveTo(p, b)
			return false
		}
	}
	return false
}

// orphan cuts a partition's leader off from the Raft leader, and from nobody else.
func (w *world) orphan(l *node, p int) {
	if leader := l.st.parts[p].leader; leader >= 0 {
		w.cutFor(9*time.Second, both(leader, l.id)...)
	}
}

// killSuccessor kills, at a time, whoever leads a partition by then, shortly.
func (w *world) killSuccessor(p int, after time.Duration) {
	w.after(after, func() {
		if l := w.raftLeader(); l != nil && l.st.parts[p].leader >= 0 {
			w.killFor(w.nodes[l.st.parts[p].leader], w.between(20*time.Millisecond, time.Second))
		}
	})
}

func (w *world) cutFor(d time.Duration, links ...[2]int) {
	for _, k := range links {
		if k[0] != k[1] {
			w.cut[k] = true
		}
	}
	w.logf("cut %v", links)
	w.after(d, func() {
		for _, k := range links {
			delete(w.cut, k)
		}
		w.logf("uncut %v", links)
	})
}

// underRace: the detector makes the model ten times slower, and there is only one goroutine at a time.
var underRace bool

// seeds are n new ones; LEASE_SEED replays one, LEASE_SEEDS asks for more.
func seeds(t *testing.T, n int) (first uint64, count int) {
	read := func(name string, otherwise uint64) uint64 {
		s := os.Getenv(name)
		if s == "" {
			return otherwise
		}
		v, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(name, err)
		}
		return v
	}
	if os.Getenv("LEASE_SEED") != "" {
		return read("LEASE_SEED", 0), 1
	}
	if underRace {
		n = (n + 7) / 8
	}
	return uint64(time.Now().UnixNano()), int(read("LEASE_SEEDS", uint64(n)))
}

func (w *world) report(t *testing.T, seed uint64) {
	t.Fatalf("%s\nreplay with LEASE_SEED=%d\n%s", w.failed, seed, strings.Join(w.trace[max(0, len(w.trace)-60):], "\n"))
}

// TestModelOneLeaderServes is the model check of decisions.md 1.
func TestModelOneLeaderServes(t *testing.T) {
	first, n := seeds(t, 16)
	var worst time.Duration
	serves := 0
	for i := range n {
		seed := first + uint64(i)
		synctest.Test(t, func(t *testing.T) {
			w := chaos(seed, plants{}, 40*time.Second, nil)
			if w.failed != "" {
				w.report(t, seed)
			}
			serves += w.serves
			for _, d := range w.idle {
				worst = max(worst, d)
			}
		})
	}
	t.Logf("seeds %d to %d: served at %d moments by one leader each, longest pause %v", first, first+uint64(n)-1, serves, worst)
}

// TestModelScripts runs each compound fault alone.
func TestModelScripts(t *testing.T) {
	for _, sc := range scripts {
		t.Run(sc.name, func(t *testing.T) {
			first, n := seeds(t, 3)
			for i := range n {
				seed := first + uint64(i)
				synctest.Test(t, func(t *testing.T) {
					if w := chaos(seed, plants{}, 60*time.Second, sc.run); w.failed != "" {
						w.report(t, seed)
					}
				})
			}
		})
	}
}

// TestModelCatchesPlantedFaults: a checker that never fails proves nothing.
func TestModelCatchesPlantedFaults(t *testing.T) {
	for name, c := range map[string]struct {
		plant  plants
		script int
	}{
		"lease counted from receipt":           {plants{leaseFromReceipt: true}, 0},
		"grant without proof":                  {plants{grantWithoutProof: true}, 1},
		"new Raft leader acts at once":         {plants{termActsAtOnce: true}, 2},
		"new partition leader serves at once":  {plants{leaderServesAtOnce: true}, -1},
		"a clock that stops with the process":  {plants{clockStops: true}, 1},
		"lease for a broker that lags behind":  {plants{grantToUninformed: true}, 3},
		"fetch counted from receipt":           {plants{fetchFromReceipt: true}, -1},
		"late proof of death counts":           {plants{deadWithoutContinued: true}, 5},
		"grace forgotten by the next election": {plants{graceForgotten: true}, 4},
		"vote taken before the lease counts":   {plants{voteBeforeLease: true}, 6},
		"vote of another term":                 {plants{voteOfAnotherTerm: true}, 6},
		"report repeated with its first vote":  {plants{voteReplayed: true}, 6},
		"vote in a report is not remembered":   {plants{voteForgotten: true}, 7},
		"vote of a broker that is no voter":    {plants{nonvoterVotes: true}, 6},
	} {
		t.Run(name, func(t *testing.T) {
			var script func(*world)
			if c.script >= 0 {
				script = scripts[c.script].run
			}
			first, _ := seeds(t, 0)
			const limit = 200
			for i := range limit {
				caught := false
				synctest.Test(t, func(t *testing.T) {
					w := chaos(first+uint64(i), c.plant, 60*time.Second, script)
					if caught = w.failed != ""; caught {
						t.Logf("caught by run %d, seed %d: %s", i+1, first+uint64(i), w.failed)
					}
				})
				if caught {
					return
				}
			}
			t.Fatalf("not caught in %d runs from seed %d", limit, first)
		})
	}
}

// TestModelStall measures, per kind of fault, how long a partition had no leader that may serve. Model time, so the figures
// are those of the rules alone.
func TestModelStall(t *testing.T) {
	follower := func(w *world) *node { // a broker that leads a partition and is not the Raft leader
		for {
			if n := w.nodes[w.rng.IntN(brokers)]; n != w.raftLeader() {
				return n
			}
		}
	}
	for _, c := range []struct {
		name string
		goal time.Duration
		do   func(*world)
	}{
		{"SIGKILL of a broker", 500 * time.Millisecond, func(w *world) { w.killFor(follower(w), time.Minute) }},
		{"SIGSTOP of a broker", 3 * time.Second, func(w *world) { w.pauseFor(follower(w), time.Minute) }},
		{"SIGKILL of the Raft leader", 3 * time.Second, func(w *world) { w.killFor(w.raftLeader(), time.Minute) }},
		{"SIGSTOP of the Raft leader", 4 * time.Second, func(w *world) { w.pauseFor(w.raftLeader(), time.Minute) }},
		{"a broker cut off from the Raft leader", 4 * time.Second, func(w *world) {
			w.cutFor(time.Minute, both(follower(w).id, w.raftLeader().id)...)
		}},
		{"the Raft leader's voice cut", 4 * time.Second, func(w *world) {
			l := w.raftLeader().id
			for i := range brokers {
				w.cutFor(time.Minute, [2]int{l, i})
			}
		}},
		{"no Raft leader for 5 s", time.Second, func(w *world) { // the data goes on by fetch leases
			w.noElections = true
			l := w.raftLeader()
			l.follow(l.term+1, -1)
			l.heardAt = w.now()
		}},
	} {
		var worst time.Duration
		runs := 10
		if underRace {
			runs = 2
		}
		for i := range runs {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(uint64(i), plants{})
				time.Sleep(8 * time.Second)
				w.mu.Lock()
				if w.raftLeader() == nil {
					w.over = true
					w.mu.Unlock()
					t.Fatal("no Raft leader after 8 s without faults")
				}
				clear(w.idle)
				c.do(w)
				w.mu.Unlock()
				time.Sleep(5 * time.Second)
				w.mu.Lock()
				defer w.mu.Unlock()
				w.over = true
				if w.failed != "" {
					t.Fatal(w.failed)
				}
				for _, d := range w.idle {
					worst = max(worst, d)
				}
			})
		}
		t.Logf("%-40s worst stall %v (goal %v)", c.name, worst.Round(time.Millisecond), c.goal)
		if worst > c.goal {
			t.Errorf("%s: stall %v above %v", c.name, worst, c.goal)
		}
	}
}
