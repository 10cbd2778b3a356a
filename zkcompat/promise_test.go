package zkcompat_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/testtool"
	"github.com/barnabas-mq/barnabas/zkcompat/jute"
)

// P4, observed from outside: clients of three nodes that lag behind each other pipeline requests, move between nodes and
// close, and check every message against what they were told before.

// witness is one client with a memory.
type witness struct {
	*rawClient
	r     *rand.Rand
	nodes []string
	zxid  int64
	sent  []sent
	armed [2]map[string]shownNode // by table: what the client saw when it armed
	mine  map[string]bool         // ephemerals it made and has not deleted
	// closeUnknown: whether the session was closed is not known.
	closeUnknown bool
	fails        *failures
}

type sent struct {
	xid   int32
	op    jute.Op
	path  string
	watch bool
}

// shownNode is what tells two states of a node apart.
type shownNode struct {
	exists              bool
	czxid, mzxid, pzxid int64
}

type failures struct {
	mu  sync.Mutex
	all []string
}

func (f *failures) add(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, fmt.Sprintf(format, args...))
}

func (w *witness) open() {
	w.rawClient = w.session(w.nodes[w.r.IntN(len(w.nodes))])
	w.closeUnknown = false
	w.armed = [2]map[string]shownNode{{}, {}}
	w.mine = map[string]bool{}
	w.zxid, w.sent = 0, nil
}

// move goes to another node with the same session.
func (w *witness) move() {
	w.drainReplies()
	if w.r.IntN(2) == 0 {
		_ = w.nc.Close()
	}
	w.resume()
}

// session opens one, however often that fails.
func (w *witness) session(addr string) *rawClient {
	for {
		c := dialRaw(w.t, addr)
		if c.handshake(jute.ConnectRequest{TimeoutMs: 10_000, Password: make([]byte, 16), HasReadOnly: true}) == nil {
			return c
		}
		_ = c.nc.Close()
	}
}

// resume is what a client does after a broken connection: the same session at some node, its watches restored. What it
// had not been answered is unknown.
func (w *witness) resume() {
	for _, s := range w.sent {
		if s.op == jute.OpCreate || s.op == jute.OpDelete {
			delete(w.mine, s.path)
		}
	}
	w.sent = nil
	old, xid := w.resp, w.xid
	for {
		_ = w.nc.Close()
		w.rawClient = dialRaw(w.t, w.nodes[w.r.IntN(len(w.nodes))])
		if w.handshake(jute.ConnectRequest{LastZxidSeen: w.zxid, TimeoutMs: 10_000, SessionID: old.SessionID,
			Password: old.Password, HasReadOnly: true}) == nil {
			break
		}
	}
	w.xid = xid
	if w.resp.SessionID != old.SessionID {
		w.fails.add("session %x was resumed as %x", old.SessionID, w.resp.SessionID)
	}
	req := &jute.SetWatches{RelativeZxid: w.zxid}
	for p, s := range w.armed[0] {
		if s.exists {
			req.Data = append(req.Data, p)
		} else {
			req.Exist = append(req.Exist, p)
		}
	}
	for p := range w.armed[1] {
		req.Child = append(req.Child, p)
	}
	w.request(jute.OpSetWatches, req, "", false)
}

func (w *witness) request(op jute.Op, rec appender, path string, watch bool) {
	w.sent = append(w.sent, sent{w.send(op, rec), op, path, watch})
}

func (w *witness) drainReplies() {
	for len(w.sent) > 0 {
		m, err := w.tryNext(time.Minute)
		switch {
		case err == nil:
			w.take(m)
		case w.sent[0].op == jute.OpClose:
			w.closeUnknown = true
			w.sent = nil
		default:
			w.resume()
		}
	}
}

// take checks one message.
func (w *witness) take(m message) {
	if e, ok := m.event(); ok {
		table := 0
		if e.Type == jute.NodeChildrenChanged {
			table = 1
		}
		_, d := w.armed[0][e.Path]
		_, c := w.armed[1][e.Path]
		// As in ZooKeeper, setWatches tells of a deleted node once for its data watch and once for its child watch.
		again := e.Type == jute.NodeDeleted && slices.ContainsFunc(w.sent, func(s sent) bool { return s.op == jute.OpSetWatches })
		if again {
			d, c = true, true
		}
		if table == 0 && !d && !(e.Type == jute.NodeDeleted && c) || table == 1 && !c {
			w.fails.add("event %v without a watch", e)
		}
		delete(w.armed[table], e.Path)
		if e.Type == jute.NodeDeleted {
			delete(w.armed[1], e.Path)
		}
		return
	}
	if m.Xid == jute.XidPing {
		return
	}
	s := w.sent[0]
	w.sent = w.sent[1:]
	if m.Xid != s.xid {
		w.fails.add("reply %d, expected %d", m.Xid, s.xid)
		return
	}
	if m.Zxid < w.zxid {
		w.fails.add("zxid fell from %x to %x", w.zxid, m.Zxid)
	}
	w.zxid = m.Zxid
	w.check(s, m)
}

func (w *witness) check(s sent, m message) {
	d := jute.NewDecoder(m.body)
	var now shownNode
	fill := func(st jute.Stat) { now = shownNode{true, st.Czxid, st.Mzxid, st.Pzxid} }
	switch s.op {
	case jute.OpCreate:
		if m.Err == jute.OK {
			if p := d.String(); s.watch { // an ephemeral
				w.mine[p] = true
			}
		}
		return
	case jute.OpDelete:
		if m.Err == jute.OK {
			delete(w.mine, s.path)
		}
		return
	case jute.OpExists:
		if m.Err == jute.OK {
			fill(d.Stat())
		}
	case jute.OpGetData:
		if m.Err == jute.OK {
			d.Bytes()
			fill(d.Stat())
		}
	case jute.OpGetChildren2:
		if m.Err == jute.OK {
			d.Strings()
			fill(d.Stat())
		}
	default:
		return
	}
	if w.mine[s.path] && !now.exists {
		w.fails.add("own ephemeral %s is gone while its session lives", s.path)
	}
	// A watch that has not fired means that what it watches is as it was.
	if a, ok := w.armed[0][s.path]; ok && (a.exists != now.exists || a.czxid != now.czxid || a.mzxid != now.mzxid) {
		w.fails.add("%v shows %s as %+v, the data watch on %+v has not fired", s.op, s.path, now, a)
	}
	if a, ok := w.armed[1][s.path]; ok && (a.exists != now.exists || a.czxid != now.czxid || a.pzxid != now.pzxid) {
		w.fails.add("%v shows %s as %+v, the child watch on %+v has not fired", s.op, s.path, now, a)
	}
	table := 0
	if s.op == jute.OpGetChildren2 {
		table = 1
	}
	if _, armed := w.armed[table][s.path]; s.watch && !armed && (now.exists || s.op == jute.OpExists) {
		w.armed[table][s.path] = now
	}
}

func (w *witness) step(me int) {
	path := fmt.Sprintf("/p/%d", w.r.IntN(6))
	if w.r.IntN(3) == 0 {
		path += fmt.Sprintf("/%d", w.r.IntN(3))
	}
	switch w.r.IntN(12) {
	case 0, 1:
		w.request(jute.OpCreate, createReq(path, []byte("x"), 0), path, false)
	case 2:
		own := fmt.Sprintf("/p/own-%d-%d", me, w.r.IntN(3))
		w.request(jute.OpCreate, createReq(own, nil, jute.FlagEphemeral), own, true)
		w.request(jute.OpExists, &jute.PathWatch{Path: own}, own, false)
	case 3:
		w.request(jute.OpDelete, &jute.PathVersion{Path: path, Version: -1}, path, false)
	case 4:
		own := fmt.Sprintf("/p/own-%d-%d", me, w.r.IntN(3))
		w.request(jute.OpDelete, &jute.PathVersion{Path: own, Version: -1}, own, false)
	case 5, 6:
		w.request(jute.OpSetData, &jute.SetDataRequest{Path: path, Data: []byte("y"), Version: -1}, path, false)
	case 7, 8, 9:
		op := []jute.Op{jute.OpExists, jute.OpGetData, jute.OpGetChildren2}[w.r.IntN(3)]
		w.request(op, &jute.PathWatch{Path: path, Watch: true}, path, true)
	case 10:
		w.request(jute.OpGetChildren2, &jute.PathWatch{Path: "/p", Watch: true}, "/p", true)
	case 11:
		w.sendXid(jute.XidPing, jute.OpPing, nil)
	}
}

func (w *witness) live(me, steps int) {
	w.open()
	for i := range steps {
		w.step(me)
		if len(w.sent) > 8 || w.r.IntN(3) == 0 {
			w.drainReplies()
		}
		switch {
		case i%50 == 49:
			w.move()
		case i%120 == 119:
			w.end()
			w.open()
		}
	}
	w.end()
}

// end closes the session and sees from every node that its ephemerals are gone.
func (w *witness) end() {
	w.drainReplies()
	w.request(jute.OpClose, nil, "", false)
	w.drainReplies()
	_ = w.nc.Close()
	if w.closeUnknown {
		return
	}
	for _, node := range w.nodes {
		var c *rawClient
		for c == nil { // fresh, whatever it takes
			c = w.session(node)
			xid := c.send(jute.OpSync, &jute.Path{Path: "/p"})
			if m, err := c.tryNext(time.Minute); err != nil || m.Xid != xid || m.Err != jute.OK {
				_ = c.nc.Close()
				c = nil
			}
		}
		for p := range w.mine {
			m, _ := c.call(jute.OpExists, &jute.PathWatch{Path: p})
			d := jute.NewDecoder(m.body)
			if st := d.Stat(); m.Err == jute.OK && st.EphemeralOwner == w.resp.SessionID {
				w.fails.add("%s outlives its session", p)
			}
		}
		_ = c.nc.Close()
	}
}

func TestPromises(t *testing.T) { promises(t, 0) }

// The same while one proposal in thirty ends with "unknown": the client hears nothing but the end of its connection, and
// everything it is told afterwards still holds together.
func TestPromisesWithUnknownOutcomes(t *testing.T) { promises(t, 1.0/30) }

func promises(t *testing.T, faulty float64) {
	f := newFold(t, 3)
	var nodes []string
	var all []*foldNode
	for range 3 {
		n := f.node(t, 2*time.Millisecond)
		_, addr := serve(t, n.b, nil)
		nodes, all = append(nodes, addr), append(all, n)
	}
	session(t, nodes[0]).create("/p", "", 0)
	for _, n := range all {
		n.faulty = faulty
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	fails := &failures{}
	var wg sync.WaitGroup
	for me := range 6 {
		w := &witness{rawClient: &rawClient{t: t}, r: rand.New(rand.NewPCG(seed, uint64(me))), nodes: nodes, fails: fails}
		wg.Go(func() { w.live(me, 400) })
	}
	wg.Wait()
	for _, s := range fails.all[:min(len(fails.all), 10)] {
		t.Error(s)
	}
}

// Case 15 and expiry: what goes with a session is what it owns, whoever made the path before.
func TestEphemeralsGoByOwner(t *testing.T) {
	f := newFold(t, 1)
	_, addr := serve(t, f.backend(t), nil)
	a, b := session(t, addr), session(t, addr)
	for _, p := range []string{"/consumers/g", "/consumers/g/ids"} {
		a.create(p, "", 0)
	}
	a.create("/consumers/g/ids/c", "a", jute.FlagEphemeral)
	if m, _ := b.call(jute.OpCreate, createReq("/consumers/g/ids/c", nil, jute.FlagEphemeral)); m.Err != jute.NodeExists {
		t.Fatal(m)
	}
	b.must(jute.OpDelete, &jute.PathVersion{Path: "/consumers/g/ids/c", Version: -1})
	b.create("/consumers/g/ids/c", "b", jute.FlagEphemeral)
	a.must(jute.OpClose, nil)
	m := b.must(jute.OpExists, &jute.PathWatch{Path: "/consumers/g/ids/c"})
	d := jute.NewDecoder(m.body)
	if st := d.Stat(); st.EphemeralOwner != b.resp.SessionID {
		t.Fatalf("%+v", st)
	}
}

// Case 17's race: 10,000 changes, watched by one session that re-arms at each event; the last change is seen.
func TestNoChangeIsMissed(t *testing.T) {
	f := newFold(t, 1)
	_, addr := serve(t, f.node(t, time.Millisecond).b, nil)
	_, addr2 := serve(t, f.node(t, time.Millisecond).b, nil)
	a, w := session(t, addr), session(t, addr2)
	a.create("/d", "", 0)
	w.must(jute.OpSync, &jute.Path{})
	const n = 1000
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range n {
			a.create(fmt.Sprintf("/d/%d", i), "", 0)
		}
	})
	for seen, events := 0, 0; seen < n; {
		m, early := w.call(jute.OpGetChildren, &jute.PathWatch{Path: "/d", Watch: true})
		d := jute.NewDecoder(m.body)
		now := len(d.Strings())
		if now < seen {
			t.Fatalf("children fell from %d to %d", seen, now)
		}
		if seen = now; seen == n {
			break
		}
		if len(early) == 0 {
			if e, ok := w.next().event(); !ok || e.Type != jute.NodeChildrenChanged {
				t.Fatal("no event, but", e)
			}
		}
		events++
	}
	wg.Wait()
}

// Idle sessions are one goroutine and little memory each.
func TestIdleSessionsAreCheap(t *testing.T) {
	f := newFold(t, 1)
	s, addr := serve(t, f.backend(t), nil)
	session(t, addr)
	goroutines, heap := runtime.NumGoroutine(), heapBytes()
	var all []*rawClient
	for range 499 {
		all = append(all, session(t, addr))
	}
	testtool.Eventually(t, time.Minute, func() error {
		if n := runtime.NumGoroutine() - goroutines; n > 510 {
			return fmt.Errorf("%d goroutines for 499 idle connections", n)
		}
		return nil
	})
	per := (heapBytes() - heap) / 499
	t.Logf("%d bytes of heap for an idle session and its test client", per)
	if per > 16<<10 {
		t.Errorf("an idle session takes %d bytes", per)
	}
	if st := s.Stats(); st.Sessions != 500 || st.Connections != 500 {
		t.Fatalf("%+v", st)
	}
	for _, c := range all {
		c.must(jute.OpGetChildren, &jute.PathWatch{Path: "/consumers", Watch: true})
	}
	all[0].create("/consumers/x", "", 0)
	for i, c := range all {
		if i == 0 {
			continue
		}
		if e, ok := c.next().event(); !ok || e.Path != "/consumers" {
			t.Fatal(e)
		}
	}
	if st := s.Stats(); st.Watches != 0 {
		t.Fatalf("%+v", st)
	}
	ids := s.Touches().Sessions
	slices.Sort(ids)
	if len(slices.Compact(ids)) != 500 || ids[0] == id.SessionID(0) {
		t.Fatal(len(ids))
	}
}

func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func BenchmarkRead(b *testing.B) {
	f := newFold(b, 3)
	_, addr := serve(b, f.backend(b), nil)
	c := session(b, addr)
	c.create("/brokers/topics/t", `{"version":1,"partitions":{"0":[1,2],"1":[2,1]}}`, 0)
	for _, path := range []string{"/brokers/ids/1", "/brokers/topics/t", "/consumers"} {
		b.Run(path, func(b *testing.B) {
			b.ReportAllocs()
			const depth = 64
			for i := 0; i < b.N; i += depth {
				for range depth {
					c.send(jute.OpGetData, &jute.PathWatch{Path: path})
				}
				for range depth {
					if m := c.next(); m.Err != jute.OK {
						b.Fatal(m)
					}
				}
			}
		})
	}
}
