package zkcompat_test

import (
	"encoding/binary"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/zkcompat"
	"github.com/barnabas-mq/barnabas/zkcompat/jute"
	"github.com/barnabas-mq/barnabas/zkcompat/ztree"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConnect(t *testing.T) {
	b := newMemBackend()
	_, addr := serve(t, b, nil)
	for _, c := range []struct {
		ask, want int32
		ro        bool
	}{{1000, 4000, false}, {6000, 6000, true}, {100_000, 40_000, true}, {-5, 4000, false}} {
		got := connect(t, addr, jute.ConnectRequest{TimeoutMs: c.ask, Password: make([]byte, 16), HasReadOnly: c.ro}).resp
		if got.TimeoutMs != c.want || got.HasReadOnly != c.ro || len(got.Password) != 16 || got.SessionID == 0 || got.SessionID == -1 {
			t.Errorf("asked %+v: %+v", c, got)
		}
	}
}

// Case 1: a session goes on over a reconnect or is said to be over; a wrong password does not hurt it.
func TestReconnect(t *testing.T) {
	b := newMemBackend()
	_, addr := serve(t, b, nil)
	_, other := serve(t, b, nil) // another node
	a := session(t, addr)
	a.create("/e", "x", jute.FlagEphemeral)
	old := a.resp
	_ = a.nc.Close()

	bad := jute.ConnectRequest{SessionID: old.SessionID, Password: append([]byte{old.Password[0] ^ 1}, old.Password[1:]...)}
	for range 2 {
		r := dialRaw(t, other)
		if err := r.handshake(bad); err != nil || r.resp.SessionID != 0 || r.resp.TimeoutMs != 0 || len(r.resp.Password) != 16 || r.resp.HasReadOnly {
			t.Fatalf("%+v, %v", r.resp, err)
		}
		if closed, _ := r.closed(time.Minute); !closed {
			t.Fatal("a refused connection stays open")
		}
	}
	a = connect(t, other, jute.ConnectRequest{SessionID: old.SessionID, Password: old.Password, TimeoutMs: 10_000})
	if a.resp.SessionID != old.SessionID {
		t.Fatalf("%+v", a.resp)
	}
	a.must(jute.OpExists, &jute.PathWatch{Path: "/e"})

	// The newest attachment wins, on the same node and from another.
	for _, at := range []string{other, addr} {
		n := connect(t, at, jute.ConnectRequest{SessionID: old.SessionID, Password: old.Password, TimeoutMs: 10_000})
		if closed, _ := a.closed(time.Minute); !closed {
			t.Fatal("the older connection of a session stays open")
		}
		n.must(jute.OpSetData, &jute.SetDataRequest{Path: "/e", Version: -1})
		a = n
	}
	b.expire(id.SessionID(old.SessionID))
	if closed, _ := a.closed(time.Minute); !closed {
		t.Fatal("an expired session's connection stays open")
	}
	r := dialRaw(t, addr)
	if err := r.handshake(jute.ConnectRequest{SessionID: old.SessionID, Password: old.Password}); err != nil || r.resp.SessionID != 0 {
		t.Fatalf("%+v, %v", r.resp, err)
	}
}

func TestClientAhead(t *testing.T) {
	b := newMemBackend()
	_, hasty := serve(t, b, func(c *zkcompat.Config) { c.AheadWait = 300 * time.Millisecond })
	_, addr := serve(t, b, func(c *zkcompat.Config) { c.AheadWait = time.Minute })
	a := session(t, addr)
	a.create("/a", "", 0)
	seen := a.must(jute.OpExists, &jute.PathWatch{Path: "/a"}).Zxid
	c := dialRaw(t, hasty)
	if err := c.handshake(jute.ConnectRequest{LastZxidSeen: seen + 1000}); err == nil {
		t.Fatal("a client ahead of the node was served")
	}
	c = dialRaw(t, addr)
	ok := make(chan error, 1)
	go func() { ok <- c.handshake(jute.ConnectRequest{LastZxidSeen: seen + 2}) }()
	a.create("/b", "", 0)
	a.create("/c", "", 0)
	if err := <-ok; err != nil {
		t.Fatal("the node caught up, but:", err)
	}
}

// A parked head holds what is behind it, while pings and events flow; its connection's end cancels it.
func TestParkedHead(t *testing.T) {
	b := newMemBackend()
	hold := make(chan struct{})
	parked := make(chan struct{}, 8)
	b.park = func(w zkcompat.Write) <-chan struct{} {
		if w.Path == "/held" {
			parked <- struct{}{}
			return hold
		}
		return nil
	}
	s, addr := serve(t, b, nil)
	a, other := session(t, addr), session(t, addr)
	other.create("/n", "", 0)
	a.must(jute.OpGetData, &jute.PathWatch{Path: "/n", Watch: true})
	held := a.send(jute.OpCreate, &jute.CreateRequest{Path: "/held", ACL: jute.OpenACL})
	behind := a.send(jute.OpExists, &jute.PathWatch{Path: "/held"})
	<-parked
	for range 3 {
		a.sendXid(jute.XidPing, jute.OpPing, nil)
		if m := a.next(); m.Xid != jute.XidPing {
			t.Fatal(m)
		}
	}
	other.must(jute.OpSetData, &jute.SetDataRequest{Path: "/n", Version: -1})
	if e, ok := a.next().event(); !ok || e != (jute.Event{Type: jute.NodeDataChanged, Path: "/n"}) {
		t.Fatal(e, ok)
	}
	close(hold)
	if m := a.next(); m.Xid != held || m.Err != jute.OK {
		t.Fatal(m)
	}
	if m := a.next(); m.Xid != behind || m.Err != jute.OK {
		t.Fatal(m)
	}

	hold = make(chan struct{}) // never closed
	a.send(jute.OpCreate, &jute.CreateRequest{Path: "/held", ACL: jute.OpenACL})
	<-parked
	_ = a.nc.Close()
	for s.Stats().Connections > 1 { // the cancelled head lets the connection end
		time.Sleep(time.Millisecond)
	}
}

// What a client sends faster than it is answered stays in its socket.
func TestBackPressure(t *testing.T) {
	b := newMemBackend()
	hold := make(chan struct{})
	b.park = func(w zkcompat.Write) <-chan struct{} { return hold }
	s, addr := serve(t, b, func(c *zkcompat.Config) { c.MaxQueued = 16 })
	a := session(t, addr)
	const n = 20_000
	var wg sync.WaitGroup
	wg.Go(func() {
		a.send(jute.OpDelete, &jute.PathVersion{Path: "/none", Version: -1})
		for range n {
			a.send(jute.OpExists, &jute.PathWatch{Path: "/"})
		}
	})
	time.Sleep(100 * time.Millisecond)
	if got := s.Stats().Received; got > 20 {
		t.Errorf("%d requests were read while the head was parked", got)
	}
	close(hold)
	for i := range int32(n + 1) {
		if m := a.next(); m.Xid != i+1 {
			t.Fatalf("reply %d has xid %d", i, m.Xid)
		}
	}
	wg.Wait()
}

func TestWatchRules(t *testing.T) {
	b := newMemBackend()
	_, addr := serve(t, b, nil)
	a, w := session(t, addr), session(t, addr)
	expect := func(what string, c *rawClient, want ...jute.Event) {
		t.Helper()
		m, got := c.call(jute.OpSync, &jute.Path{Path: "/"})
		if m.Err != jute.OK || len(got) != len(want) {
			t.Fatalf("%s: events %v, want %v", what, got, want)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("%s: events %v, want %v", what, got, want)
			}
		}
	}
	a.create("/d", "", 0)
	a.create("/d/x", "", 0)
	child := &jute.PathWatch{Path: "/d", Watch: true}
	// Case 17: only a direct child fires, once.
	w.must(jute.OpGetChildren, child)
	a.must(jute.OpSetData, &jute.SetDataRequest{Path: "/d/x", Version: -1})
	expect("setData of a child", w)
	a.create("/d/x/y", "", 0)
	expect("grandchild", w)
	a.create("/d/z", "", 0)
	expect("child", w, jute.Event{Type: jute.NodeChildrenChanged, Path: "/d"})
	a.create("/d/zz", "", 0)
	expect("second child", w)
	// exists of a missing node arms, getData and getChildren do not.
	for op, want := range map[jute.Op]bool{jute.OpExists: true, jute.OpGetData: false, jute.OpGetChildren2: false} {
		if m, _ := w.call(op, &jute.PathWatch{Path: "/late", Watch: true}); m.Err != jute.NoNode {
			t.Fatal(m)
		}
		a.create("/late", "", 0)
		if want {
			expect(op.String(), w, jute.Event{Type: jute.NodeCreated, Path: "/late"})
		} else {
			expect(op.String(), w)
		}
		a.must(jute.OpDelete, &jute.PathVersion{Path: "/late", Version: -1})
	}
	// A deletion is told once to a session that has both watches on the node; the parent's comes after.
	w.must(jute.OpGetData, &jute.PathWatch{Path: "/d/z", Watch: true})
	w.must(jute.OpGetChildren, &jute.PathWatch{Path: "/d/z", Watch: true})
	w.must(jute.OpGetChildren, child)
	a.must(jute.OpDelete, &jute.PathVersion{Path: "/d/z", Version: -1})
	expect("delete", w, jute.Event{Type: jute.NodeDeleted, Path: "/d/z"}, jute.Event{Type: jute.NodeChildrenChanged, Path: "/d"})
	// setACL is no event.
	w.must(jute.OpGetData, &jute.PathWatch{Path: "/d/x", Watch: true})
	a.must(jute.OpSetACL, &jute.SetACLRequest{Path: "/d/x", ACL: jute.OpenACL, Version: -1})
	expect("setACL", w)
}

// Case 2: what a client missed while it was away, exactly once each.
func TestSetWatches(t *testing.T) {
	b := newMemBackend()
	_, addr := serve(t, b, nil)
	a, w := session(t, addr), session(t, addr)
	for _, p := range []string{"/ids", "/t", "/same"} {
		a.create(p, "", 0)
	}
	for change := range 2 {
		seen := w.must(jute.OpExists, &jute.PathWatch{Path: "/"}).Zxid
		_ = w.nc.Close()
		if change == 0 {
			a.create("/ids/c", "", 0)
			a.must(jute.OpSetData, &jute.SetDataRequest{Path: "/t", Version: -1})
			a.create("/controller", "", 0)
		}
		w = connect(t, addr, jute.ConnectRequest{SessionID: w.resp.SessionID, Password: w.resp.Password, LastZxidSeen: seen})
		w.sendXid(-8, jute.OpSetWatches, &jute.SetWatches{RelativeZxid: seen, Data: []string{"/t", "/same", "/nothing"},
			Exist: []string{"/controller", "/none"}, Child: []string{"/ids", "/same"}})
		var got []jute.Event
		for {
			m := w.next()
			e, ok := m.event()
			if !ok {
				if m.Xid != -8 || m.Err != jute.OK || len(m.body) != 0 {
					t.Fatal(m)
				}
				break
			}
			got = append(got, e)
		}
		want := []jute.Event{{Type: jute.NodeDataChanged, Path: "/t"}, {Type: jute.NodeDeleted, Path: "/nothing"},
			{Type: jute.NodeCreated, Path: "/controller"}, {Type: jute.NodeChildrenChanged, Path: "/ids"}}
		if change == 1 {
			want = []jute.Event{{Type: jute.NodeDeleted, Path: "/nothing"}, {Type: jute.NodeCreated, Path: "/controller"}}
		}
		if len(got) != len(want) {
			t.Fatalf("got %v, want %v", got, want)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("got %v, want %v", got, want)
			}
		}
	}
	a.create("/none", "", 0)
	a.create("/same/x", "", 0)
	if e, ok := w.next().event(); !ok || e.Type != jute.NodeCreated || e.Path != "/none" {
		t.Fatal(e)
	}
	if e, ok := w.next().event(); !ok || e.Type != jute.NodeChildrenChanged || e.Path != "/same" {
		t.Fatal(e)
	}
}

// What happens to a node that a session is shown by a generation is no event for it, until it is shown something else.
func TestGatedEventsMerge(t *testing.T) {
	b := newMemBackend()
	_, addr := serve(t, b, nil)
	a, w := session(t, addr), session(t, addr)
	a.create("/ids", "", 0)
	me := id.SessionID(w.resp.SessionID)
	b.change(func(t *memTree) ([]ztree.Event, []id.SessionID) {
		t.gate = &memGate{session: me, path: "/ids", since: t.zxid}
		return nil, nil
	})
	w.must(jute.OpGetChildren, &jute.PathWatch{Path: "/ids", Watch: true})
	for _, n := range []string{"/ids/a", "/ids/b", "/ids/c"} {
		a.create(n, "", 0)
	}
	if _, ev := w.call(jute.OpSync, &jute.Path{}); len(ev) != 0 {
		t.Fatal("a gated event was sent:", ev)
	}
	b.change(func(*memTree) ([]ztree.Event, []id.SessionID) {
		return []ztree.Event{{Path: "/ids", Type: ztree.Shown}}, nil
	})
	if _, ev := w.call(jute.OpSync, &jute.Path{}); len(ev) != 1 || ev[0].Type != jute.NodeChildrenChanged {
		t.Fatal("three changes became", ev)
	}
	// A watch from within the gate misses nothing when it ends.
	w.must(jute.OpGetChildren, &jute.PathWatch{Path: "/ids", Watch: true})
	a.create("/ids/d", "", 0)
	b.change(func(t *memTree) ([]ztree.Event, []id.SessionID) {
		t.gate = nil
		return []ztree.Event{{Type: ztree.Left, Session: me}}, nil
	})
	if _, ev := w.call(jute.OpSync, &jute.Path{}); len(ev) != 1 || ev[0].Type != jute.NodeChildrenChanged {
		t.Fatal("after the gate:", ev)
	}
}

// A tree that does not follow from the last one: every watch is compared.
func TestReset(t *testing.T) {
	b := newMemBackend()
	_, addr := serve(t, b, nil)
	a := session(t, addr)
	a.create("/a", "", 0)
	a.create("/b", "", 0)
	a.create("/gone", "", 0)
	for _, p := range []string{"/a", "/b", "/gone"} {
		a.must(jute.OpGetData, &jute.PathWatch{Path: p, Watch: true})
	}
	_, _ = a.call(jute.OpExists, &jute.PathWatch{Path: "/new", Watch: true})
	b.mu.Lock()
	saved := b.subs
	b.subs = map[int]func(zkcompat.Update){}
	b.mu.Unlock()
	c := zkcompat.Caller{Session: id.SessionID(a.resp.SessionID), AttachEpoch: 1}
	for _, w := range []zkcompat.Write{{Op: jute.OpSetData, Path: "/b", Version: -1}, {Op: jute.OpDelete, Path: "/gone", Version: -1},
		{Op: jute.OpCreate, Path: "/new"}} {
		if r, err := b.Write(t.Context(), c, w); err != nil || r.Code != jute.OK {
			t.Fatal(r, err)
		}
	}
	b.mu.Lock()
	b.subs = saved
	for _, f := range saved {
		f(zkcompat.Update{Tree: b.tree, Reset: true})
	}
	b.mu.Unlock()
	_, ev := a.call(jute.OpSync, &jute.Path{})
	got := map[jute.Event]bool{}
	for _, e := range ev {
		got[e] = true
	}
	if len(ev) != 3 || !got[jute.Event{Type: jute.NodeDataChanged, Path: "/b"}] || !got[jute.Event{Type: jute.NodeDeleted, Path: "/gone"}] ||
		!got[jute.Event{Type: jute.NodeCreated, Path: "/new"}] {
		t.Fatal(ev)
	}
}

// bootClock stands still until told.
type bootClock struct {
	mu sync.Mutex
	at time.Duration
}

func (c *bootClock) Now() time.Time { return time.Now() }
func (c *bootClock) Boot() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}
func (c *bootClock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at += d
}

// Pings are answered only while the leader acknowledges touch reports; after a third of the timeout without, the
// connection is closed.
func TestPingGate(t *testing.T) {
	clk := &bootClock{at: time.Hour}
	s, addr := serve(t, newMemBackend(), func(c *zkcompat.Config) { c.UngatedPings, c.Clock = false, clk })
	short := connect(t, addr, jute.ConnectRequest{TimeoutMs: 6000})
	long := connect(t, addr, jute.ConnectRequest{TimeoutMs: 30_000})
	ping := func(c *rawClient) {
		t.Helper()
		c.sendXid(jute.XidPing, jute.OpPing, nil)
		if m := c.next(); m.Xid != jute.XidPing {
			t.Fatal(m)
		}
	}
	clk.add(1900 * time.Millisecond)
	ping(short)
	r := s.Touches()
	if len(r.Sessions) != 2 {
		t.Fatal(r)
	}
	s.AckTouches(r)
	clk.add(time.Millisecond)
	if r := s.Touches(); len(r.Sessions) != 1 && len(r.Sessions) != 0 {
		t.Fatal("silent sessions are touched:", r)
	}
	clk.add(1900 * time.Millisecond)
	ping(short)
	if r := s.Touches(); len(r.Sessions) != 1 || r.Sessions[0] != id.SessionID(short.resp.SessionID) {
		t.Fatal(r)
	}
	clk.add(200 * time.Millisecond)
	if closed, got := short.closed(time.Minute); !closed || len(got) > 0 {
		t.Fatal("a third of the timeout passed without an answered report, and the connection stays open", got)
	}
	ping(long)
}

// Bad input ends its connection, costs nothing and hurts nobody else.
func TestBadInput(t *testing.T) {
	t.Parallel()
	s, addr := serve(t, newMemBackend(), func(c *zkcompat.Config) { c.HandshakeTimeout = 5 * time.Second })
	good := session(t, addr)
	for name, b := range map[string][]byte{
		"garbage":          []byte("GET / HTTP/1.1\r\n\r\n"),
		"two gigabytes":    {0x7f, 0xff, 0xff, 0xff, 1, 2, 3},
		"negative":         {0xff, 0xff, 0xff, 0xff},
		"empty":            {0, 0, 0, 0},
		"short connect":    {0, 0, 0, 3, 1, 2, 3},
		"password of 1 GB": append([]byte{0, 0, 0, 28}, append(make([]byte, 24), 0x3f, 0xff, 0xff, 0xff)...),
		"nothing more":     {0, 0, 0, 44, 0, 0},
	} {
		c := dialRaw(t, addr)
		_, _ = c.nc.Write(b)
		if closed, got := c.closed(time.Minute); !closed || len(got) > 0 {
			t.Errorf("%s: closed %v, answered %v", name, closed, got)
		}
	}
	c := session(t, addr)
	c.write([]byte{1, 2, 3})
	if closed, _ := c.closed(time.Minute); !closed {
		t.Error("a request without a header leaves the connection open")
	}
	c = session(t, addr)
	_, _ = c.nc.Write(binary.BigEndian.AppendUint32(nil, jute.MaxFrame+1))
	if closed, _ := c.closed(time.Minute); !closed {
		t.Error("a frame over the limit leaves the connection open")
	}
	// A cut-off body is the request's own error, and the connection goes on.
	for _, op := range []jute.Op{jute.OpCreate, jute.OpDelete, jute.OpExists, jute.OpGetData, jute.OpSetData, jute.OpGetACL,
		jute.OpSetACL, jute.OpGetChildren, jute.OpGetChildren2, jute.OpSync, jute.OpSetWatches} {
		if m, _ := good.call(op, rawBody{0, 0}); m.Err != jute.MarshallingError {
			t.Errorf("%v with a cut-off body: %v", op, m.Err)
		}
	}
	for _, op := range []jute.Op{jute.OpMulti, jute.OpCheck, jute.OpCreate2, jute.OpReconfig, jute.OpSASL, 77, -3} {
		if m, _ := good.call(op, nil); m.Err != jute.Unimplemented {
			t.Errorf("%v: %v", op, m.Err)
		}
	}
	good.create("/still", "", 0)
	if st := s.Stats(); st.Sessions > 3 {
		t.Errorf("%+v", st)
	}
}

type rawBody []byte

func (r rawBody) Append(b []byte) []byte { return append(b, r...) }

func TestWords(t *testing.T) {
	_, addr := serve(t, newMemBackend(), nil)
	for word, want := range map[string]string{"ruok": "imok", "isro": "rw", "srvr": "Zookeeper version", "mntr": "zk_version", "stat": "Zookeeper version"} {
		c := dialRaw(t, addr)
		_, _ = c.nc.Write([]byte(word))
		_ = c.nc.SetReadDeadline(time.Now().Add(time.Minute))
		got := make([]byte, 4096)
		n, _ := c.nc.Read(got)
		if len(got[:n]) < len(want) || string(got[:len(want)]) != want {
			t.Errorf("%s: %q", word, got[:n])
		}
	}
}

// A chroot is another name of the root, for everything that a client sends and hears.
func TestChroot(t *testing.T) {
	_, addr := serve(t, newFold(t, 1).backend(t), func(c *zkcompat.Config) { c.Chroots = []string{"/kafka"} })
	a, w := session(t, addr), session(t, addr)
	w.must(jute.OpExists, &jute.PathWatch{Path: "/kafka"})
	w.must(jute.OpGetData, &jute.PathWatch{Path: "/kafka/brokers/ids/1"})
	w.must(jute.OpGetChildren, &jute.PathWatch{Path: "/kafka", Watch: true})
	if got := w.create("/kafka/consumers/g", "", 0); got != "/kafka/consumers/g" {
		t.Fatal(got)
	}
	w.must(jute.OpGetChildren, &jute.PathWatch{Path: "/kafka/consumers/g", Watch: true})
	w.must(jute.OpGetChildren, &jute.PathWatch{Path: "/consumers/g", Watch: true})
	if got := a.create("/kafka/consumers/g/s-", "", jute.FlagSequential); got != "/kafka/consumers/g/s-0000000000" {
		t.Fatal(got)
	}
	paths := map[string]bool{}
	for range 2 {
		e, ok := w.next().event()
		if !ok || e.Type != jute.NodeChildrenChanged {
			t.Fatal(e)
		}
		paths[e.Path] = true
	}
	if !paths["/kafka/consumers/g"] || !paths["/consumers/g"] {
		t.Fatal(paths)
	}
	a.must(jute.OpExists, &jute.PathWatch{Path: "/consumers/g/s-0000000000"})
	a.create("/kafkaesque", "", 0)
	if e, ok := w.next().event(); !ok || e.Path != "/kafka" {
		t.Fatal(e)
	}
	seen := w.must(jute.OpGetData, &jute.PathWatch{Path: "/kafka/consumers/g", Watch: true}).Zxid
	a.must(jute.OpSetData, &jute.SetDataRequest{Path: "/consumers/g", Version: -1})
	if e, ok := w.next().event(); !ok || e.Path != "/kafka/consumers/g" {
		t.Fatal(e)
	}
	w.send(jute.OpSetWatches, &jute.SetWatches{RelativeZxid: seen, Data: []string{"/kafka/consumers/g"}, Exist: []string{"/kafka/new"}})
	if e, ok := w.next().event(); !ok || e != (jute.Event{Type: jute.NodeDataChanged, Path: "/kafka/consumers/g"}) {
		t.Fatal(e)
	}
	w.next()
	a.create("/new", "", 0)
	if e, ok := w.next().event(); !ok || e != (jute.Event{Type: jute.NodeCreated, Path: "/kafka/new"}) {
		t.Fatal(e)
	}
}

// FuzzRequests sends any operation with any body: an answer or a closed connection, never a panic, and others are served.
func FuzzRequests(f *testing.F) {
	for op, rec := range map[jute.Op]appender{
		jute.OpCreate: createReq("/a", []byte("x"), 3), jute.OpDelete: &jute.PathVersion{Path: "/a", Version: -1},
		jute.OpGetData: &jute.PathWatch{Path: "/a", Watch: true}, jute.OpSetACL: &jute.SetACLRequest{Path: "/a", ACL: jute.OpenACL},
		jute.OpSetWatches: &jute.SetWatches{Data: []string{"/a"}, Child: []string{"/"}}, jute.OpAuth: &jute.AuthRequest{Scheme: "digest"},
		jute.OpClose: rawBody{}, jute.OpPing: rawBody{},
	} {
		f.Add(int32(op), rec.Append(nil))
	}
	_, addr := serve(f, newFold(f, 2).backend(f), func(c *zkcompat.Config) { c.Chroots = []string{"/k"} })
	f.Fuzz(func(t *testing.T, op int32, body []byte) {
		c := session(t, addr)
		c.sendXid(1, jute.Op(op), rawBody(body))
		if m, err := c.tryNext(time.Minute); err == nil && jute.Op(op) != jute.OpClose && m.Err != jute.AuthFailed {
			c.send(jute.OpClose, nil)
		}
		_ = c.nc.Close()
		good := session(t, addr)
		good.must(jute.OpExists, &jute.PathWatch{Path: "/brokers/ids/1"})
		good.must(jute.OpClose, nil)
	})
}

// TestCompatibilityTable keeps docs/COMPATIBILITY.md equal to what the server answers.
func TestCompatibilityTable(t *testing.T) {
	text, err := os.ReadFile("../docs/COMPATIBILITY.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "## ZooKeeper protocol")
	if !ok {
		t.Fatal("docs/COMPATIBILITY.md has no section on the ZooKeeper protocol")
	}
	listed := map[jute.Op]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\| (-?\d+) \| (\w+) \|`).FindAllStringSubmatch(section, -1) {
		n, _ := strconv.Atoi(m[1])
		if op := jute.Op(n); op.String() != m[2] {
			t.Errorf("op %d is %v, the table has %s", n, op, m[2])
		}
		listed[jute.Op(n)] = true
	}
	_, addr := serve(t, newMemBackend(), nil)
	for op := jute.Op(-20); op < 130; op++ {
		c := session(t, addr)
		c.sendXid(7, op, nil)
		m, err := c.tryNext(time.Minute)
		if served := err == nil && m.Err != jute.Unimplemented; served != listed[op] {
			t.Errorf("%v is served: %v, listed: %v (%v)", op, served, listed[op], err)
		}
		_ = c.nc.Close()
	}
}
