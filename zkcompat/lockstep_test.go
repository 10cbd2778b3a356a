package zkcompat_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/internal/testtool/reference"
	"github.com/barnabas-mq/barnabas/zkcompat/jute"
)

// Lock step: every request goes to a real ZooKeeper and to us over raw sockets, and whole streams of replies and
// events are compared, with zxids, session ids and times mapped.

// pair is one session on both servers.
type pair struct {
	real, ours *rawClient
	seen       [2]int64 // last zxid of a reply
}

// twins maps what may differ between the servers: equal things must stay equal on both.
type twins struct {
	t         testing.TB
	realAddr  string
	oursAddr  string
	fwd, back map[int64]int64
	log       []string
	unordered bool // events of the current step may come in any order
}

func newTwins(t testing.TB, realAddr, oursAddr string) *twins {
	return &twins{t: t, realAddr: realAddr, oursAddr: oursAddr, fwd: map[int64]int64{}, back: map[int64]int64{}}
}

func (w *twins) fatalf(format string, args ...any) {
	w.t.Helper()
	tail := w.log
	if len(tail) > 40 {
		tail = tail[len(tail)-40:]
	}
	w.t.Fatalf("%s\nlast steps:\n%s", fmt.Sprintf(format, args...), strings.Join(tail, "\n"))
}

// same maps a number of the real server to ours.
func (w *twins) same(what string, r, o int64) {
	w.t.Helper()
	if r == 0 || o == 0 {
		if r != o {
			w.fatalf("%s: real %x, ours %x", what, r, o)
		}
		return
	}
	if m, ok := w.fwd[r]; ok && m != o {
		w.fatalf("%s: real %x was ours %x before, now %x", what, r, m, o)
	}
	if m, ok := w.back[o]; ok && m != r {
		w.fatalf("%s: ours %x was real %x before, now %x", what, o, m, r)
	}
	w.fwd[r], w.back[o] = o, r
}

func (w *twins) open() *pair {
	w.t.Helper()
	p := &pair{real: session(w.t, w.realAddr), ours: session(w.t, w.oursAddr)}
	w.same("session", p.real.resp.SessionID, p.ours.resp.SessionID)
	return p
}

// resume reconnects both sides to their sessions.
func (w *twins) resume(p *pair) {
	w.t.Helper()
	for i, c := range []*rawClient{p.real, p.ours} {
		_ = c.nc.Close()
		addr := []string{w.realAddr, w.oursAddr}[i]
		n := connect(w.t, addr, jute.ConnectRequest{LastZxidSeen: p.seen[i], TimeoutMs: 10_000, SessionID: c.resp.SessionID,
			Password: c.resp.Password, HasReadOnly: true})
		if n.resp.SessionID != c.resp.SessionID || n.resp.TimeoutMs != c.resp.TimeoutMs {
			w.fatalf("resumed %+v as %+v", c.resp, n.resp)
		}
		c.nc = n.nc
	}
}

// call sends a request to both and compares everything up to the replies.
func (w *twins) call(p *pair, op jute.Op, rec appender) message {
	w.t.Helper()
	w.log = append(w.log, fmt.Sprintf("%x %v %+v", p.ours.resp.SessionID, op, rec))
	var recs [2]appender
	recs[0], recs[1] = rec, rec
	if s, ok := rec.(*jute.SetWatches); ok { // relative to what each side has seen
		a, b := *s, *s
		a.RelativeZxid, b.RelativeZxid = p.seen[0], p.seen[1]
		recs[0], recs[1] = &a, &b
	}
	r, re := p.real.call(op, recs[0])
	o, oe := p.ours.call(op, recs[1])
	if w.unordered {
		byText := func(a, b jute.Event) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) }
		slices.SortFunc(re, byText)
		slices.SortFunc(oe, byText)
	}
	if !slices.Equal(re, oe) {
		w.fatalf("events before the reply: real %v, ours %v", re, oe)
	}
	if r.Err != o.Err {
		w.fatalf("real %v, ours %v", r, o)
	}
	for i, z := range []int64{r.Zxid, o.Zxid} {
		if z < p.seen[i] {
			w.fatalf("zxid fell from %x to %x (server %d)", p.seen[i], z, i)
		}
		p.seen[i] = z
	}
	w.compare(op, r, o)
	return o
}

func (w *twins) compare(op jute.Op, r, o message) {
	w.t.Helper()
	if r.Err != jute.OK {
		if len(r.body) != len(o.body) {
			w.fatalf("an error's body: real %x, ours %x", r.body, o.body)
		}
		return
	}
	rd, od := jute.NewDecoder(r.body), jute.NewDecoder(o.body)
	switch op {
	case jute.OpGetData:
		if a, b := rd.Bytes(), od.Bytes(); !bytes.Equal(a, b) || (a == nil) != (b == nil) {
			w.fatalf("data: real %q, ours %q", a, b)
		}
	case jute.OpCreate, jute.OpSync:
		if a, b := rd.String(), od.String(); a != b {
			w.fatalf("path: real %q, ours %q", a, b)
		}
	case jute.OpGetACL:
		if a, b := rd.ACLs(), od.ACLs(); !slices.Equal(a, b) {
			w.fatalf("acl: real %v, ours %v", a, b)
		}
	case jute.OpGetChildren, jute.OpGetChildren2:
		a, b := rd.Strings(), od.Strings()
		slices.Sort(a)
		slices.Sort(b)
		if !slices.Equal(a, b) {
			w.fatalf("children: real %q, ours %q", a, b)
		}
	}
	switch op {
	case jute.OpExists, jute.OpGetData, jute.OpSetData, jute.OpGetACL, jute.OpSetACL, jute.OpGetChildren2:
		w.stats(rd.Stat(), od.Stat())
	}
	if rd.Len() != 0 || od.Len() != 0 || rd.Err() != nil || od.Err() != nil {
		w.fatalf("rest of the reply: real %d bytes %v, ours %d bytes %v\n%s\n%s", rd.Len(), rd.Err(), od.Len(), od.Err(),
			hex.EncodeToString(r.body), hex.EncodeToString(o.body))
	}
}

func (w *twins) stats(r, o jute.Stat) {
	w.t.Helper()
	w.same("czxid", r.Czxid, o.Czxid)
	w.same("mzxid", r.Mzxid, o.Mzxid)
	w.same("pzxid", r.Pzxid, o.Pzxid)
	w.same("owner", r.EphemeralOwner, o.EphemeralOwner)
	for _, s := range []*jute.Stat{&r, &o} {
		s.Czxid, s.Mzxid, s.Pzxid, s.EphemeralOwner, s.Ctime, s.Mtime = 0, 0, 0, 0, 0, 0
	}
	if r != o {
		w.fatalf("stat: real %+v, ours %+v", r, o)
	}
}

// close ends a session on both servers and checks that the reply comes before the end of the connection.
func (w *twins) close(p *pair) {
	w.t.Helper()
	w.call(p, jute.OpClose, nil)
	for _, c := range []*rawClient{p.real, p.ours} {
		if closed, got := c.closed(time.Minute); !closed || len(got) > 0 {
			w.fatalf("after closeSession: closed %v, %v", closed, got)
		}
	}
}

func createReq(path string, data []byte, flags int32) *jute.CreateRequest {
	return &jute.CreateRequest{Path: path, Data: data, ACL: jute.OpenACL, Flags: flags}
}

// script is every rule that is easy to get wrong, once.
func script(w *twins) {
	a, b := w.open(), w.open()
	call := func(p *pair, op jute.Op, rec appender) { w.t.Helper(); w.call(p, op, rec) }
	path := func(p string) *jute.PathWatch { return &jute.PathWatch{Path: p} }
	watch := func(p string) *jute.PathWatch { return &jute.PathWatch{Path: p, Watch: true} }
	ver := func(p string, v int32) *jute.PathVersion { return &jute.PathVersion{Path: p, Version: v} }

	for _, data := range [][]byte{nil, {}, []byte("x")} { // null, empty, some
		name := fmt.Sprintf("/s%d", len(data))
		if data == nil {
			name = "/snull"
		}
		call(a, jute.OpCreate, createReq(name, data, 0))
		call(a, jute.OpGetData, path(name))
		call(a, jute.OpSetData, &jute.SetDataRequest{Path: name, Data: nil, Version: 0})
		call(a, jute.OpGetData, path(name))
	}
	// Case 3: counters and the sequence suffix.
	call(a, jute.OpCreate, createReq("/p", nil, 0))
	for _, c := range []string{"/p/a", "/p/b"} {
		call(a, jute.OpCreate, createReq(c, nil, 0))
	}
	call(a, jute.OpDelete, ver("/p/a", -1))
	call(a, jute.OpCreate, createReq("/p/s-", nil, 2))
	call(a, jute.OpExists, path("/p"))
	call(a, jute.OpSetData, &jute.SetDataRequest{Path: "/p/b", Version: -1})
	call(a, jute.OpExists, path("/p"))
	call(a, jute.OpDelete, ver("/p/b", 1))
	call(a, jute.OpExists, path("/p"))
	call(a, jute.OpCreate, createReq("/p/", nil, 2)) // only a number
	call(a, jute.OpCreate, createReq("/p/", nil, 3))
	call(a, jute.OpGetChildren2, path("/p"))
	call(a, jute.OpDelete, ver("/p", -1)) // not empty
	// Refusals, in ZooKeeper's order of checks.
	for _, p := range []string{"", "/", "x", "x/y", "/none/y", "/p/", "/p//y", "/p/./y", "/p/.", "/none/.", "/p/..", "/p/a\x00", "/p/\x01",
		"/p/\x7f", "/p/\u0085", "/p/\ue000", "/p/\U0001F600", "/p/ü", "/p/b'topic'", "/p/a\xff", "/snull/child"} {
		for flags := int32(0); flags < 4; flags++ {
			if p == "/" && flags >= 2 { // the root's counter depends on what a server makes at its start
				continue
			}
			call(a, jute.OpCreate, createReq(p, []byte("1"), flags))
		}
		call(a, jute.OpCreate, &jute.CreateRequest{Path: p})
		for _, op := range []jute.Op{jute.OpExists, jute.OpGetData, jute.OpGetChildren, jute.OpGetChildren2} {
			if p != "" && p != "/" { // the root has children of its own
				call(a, op, path(p))
			}
		}
		if p != "/" && p != "" {
			call(a, jute.OpSetData, &jute.SetDataRequest{Path: p, Version: -1})
			call(a, jute.OpSetACL, &jute.SetACLRequest{Path: p, ACL: jute.OpenACL, Version: -1})
			call(a, jute.OpGetACL, &jute.Path{Path: p})
		}
		call(a, jute.OpDelete, ver(p, -1))
		if !strings.Contains(p, "\U0001F600") && !strings.Contains(p, "\xff") { // Java rewrites surrogates and bad UTF-8 where we echo bytes
			call(a, jute.OpSync, &jute.Path{Path: p})
		}
	}
	for _, flags := range []int32{-1, 5, 6, 7, 8, 100} {
		call(a, jute.OpCreate, createReq("/flags", nil, flags))
	}
	// Versions.
	call(a, jute.OpSetData, &jute.SetDataRequest{Path: "/p", Version: 7})
	call(a, jute.OpDelete, ver("/p", 7)) // a wrong version before not empty
	call(a, jute.OpSetACL, &jute.SetACLRequest{Path: "/p", ACL: jute.OpenACL, Version: 7})
	call(a, jute.OpSetACL, &jute.SetACLRequest{Path: "/p", ACL: jute.OpenACL, Version: 0})
	call(a, jute.OpGetACL, &jute.Path{Path: "/p"})
	// Access lists.
	for _, acl := range [][]jute.ACL{nil, {{Perms: 31, Scheme: "world", ID: "x"}}, {{Perms: 31, Scheme: "auth"}}, {{Perms: 31, Scheme: "what"}},
		{{Perms: 31, Scheme: "digest", ID: "nocolon"}}, {{Perms: 31, Scheme: "ip", ID: "300.1.1.1"}},
		{jute.OpenACL[0], {Perms: 31, Scheme: "ip", ID: "127.0.0.1"}, jute.OpenACL[0], {Perms: 31, Scheme: "digest", ID: "u:p"}}} {
		call(a, jute.OpCreate, &jute.CreateRequest{Path: "/acl", ACL: acl})
		call(a, jute.OpSetACL, &jute.SetACLRequest{Path: "/acl", ACL: acl, Version: -1})
	}
	call(a, jute.OpGetACL, &jute.Path{Path: "/acl"})
	// Ephemerals, and the other session's view of them.
	call(b, jute.OpCreate, createReq("/e", nil, 1))
	call(b, jute.OpCreate, createReq("/e/child", nil, 0))
	call(b, jute.OpCreate, createReq("/e/child", nil, 3))
	call(a, jute.OpGetData, watch("/e"))
	call(a, jute.OpGetChildren, watch("/e"))
	call(a, jute.OpExists, watch("/later"))
	call(b, jute.OpCreate, createReq("/later", nil, 1))
	call(a, jute.OpExists, watch("/later"))
	call(a, jute.OpGetData, watch("/none"))
	call(a, jute.OpGetChildren, watch("/none"))
	call(a, jute.OpCreate, createReq("/none", nil, 0)) // no watch was set
	w.unordered = true
	w.close(b)
	call(a, jute.OpExists, path("/e"))
	w.unordered = false
	// A client's own watches come before its replies.
	call(a, jute.OpGetChildren, watch("/p"))
	call(a, jute.OpExists, watch("/p/own"))
	call(a, jute.OpCreate, createReq("/p/own", nil, 0))
	call(a, jute.OpGetData, watch("/p/own"))
	call(a, jute.OpExists, watch("/p/own"))
	call(a, jute.OpSetData, &jute.SetDataRequest{Path: "/p/own", Data: []byte("2"), Version: -1})
	call(a, jute.OpSetData, &jute.SetDataRequest{Path: "/p/own", Data: []byte("2"), Version: -1})
	// Reconnects with setWatches.
	b = w.open()
	call(b, jute.OpGetData, watch("/p/own"))
	w.resume(b)
	call(a, jute.OpSetData, &jute.SetDataRequest{Path: "/p/own", Data: []byte("3"), Version: -1})
	call(a, jute.OpCreate, createReq("/p/own/c", nil, 0))
	call(b, jute.OpSetWatches, &jute.SetWatches{Data: []string{"/p/own", "/p", "/gone"}, Exist: []string{"/p", "/not"}, Child: []string{"/p/own", "/p", "/gone"}})
	call(a, jute.OpCreate, createReq("/not", nil, 0))
	call(b, jute.OpSync, &jute.Path{Path: "/"})
	// Bodies that end too early, and operations of ping's kind.
	for _, op := range []jute.Op{jute.OpCreate, jute.OpDelete, jute.OpExists, jute.OpGetData, jute.OpSetData, jute.OpGetACL, jute.OpSetACL,
		jute.OpGetChildren, jute.OpGetChildren2, jute.OpSync, jute.OpSetWatches} {
		call(a, op, rawBody{0, 0})
		call(a, op, rawBody{0, 0, 0, 9, '/'})
	}
	call(a, jute.OpPing, nil)
	w.close(a)
	w.close(b)
}

// handshakes compares what connects are answered, field by field, and what follows.
func handshakes(w *twins) {
	live := w.open()
	passwords := [2][]byte{live.real.resp.Password, live.ours.resp.Password}
	ids := [2]int64{live.real.resp.SessionID, live.ours.resp.SessionID}
	for name, edit := range map[string]func(side int, r *jute.ConnectRequest){
		"short timeout":   func(_ int, r *jute.ConnectRequest) { r.TimeoutMs = 1 },
		"long timeout":    func(_ int, r *jute.ConnectRequest) { r.TimeoutMs = 1 << 30 },
		"no timeout":      func(_ int, r *jute.ConnectRequest) { r.TimeoutMs = 0 },
		"44 bytes":        func(_ int, r *jute.ConnectRequest) { r.HasReadOnly = false },
		"read-only":       func(_ int, r *jute.ConnectRequest) { r.ReadOnly = true },
		"unknown session": func(_ int, r *jute.ConnectRequest) { r.SessionID = 0x1234567 },
		"unknown, short":  func(_ int, r *jute.ConnectRequest) { r.SessionID, r.HasReadOnly = 0x1234567, false },
		"wrong password": func(side int, r *jute.ConnectRequest) {
			r.SessionID, r.Password = ids[side], make([]byte, 16)
		},
		"no password":    func(side int, r *jute.ConnectRequest) { r.SessionID, r.Password = ids[side], nil },
		"ahead":          func(_ int, r *jute.ConnectRequest) { r.LastZxidSeen = 1 << 62 },
		"right password": func(side int, r *jute.ConnectRequest) { r.SessionID, r.Password = ids[side], passwords[side] },
		"right password, longer timeout": func(side int, r *jute.ConnectRequest) {
			r.SessionID, r.Password, r.TimeoutMs = ids[side], passwords[side], 17_000
		},
		"right password, short timeout": func(side int, r *jute.ConnectRequest) {
			r.SessionID, r.Password, r.TimeoutMs = ids[side], passwords[side], 1
		},
	} {
		var resp [2]jute.ConnectResponse
		var failed, ended [2]bool
		for side, addr := range []string{w.realAddr, w.oursAddr} {
			c := dialRaw(w.t, addr)
			req := jute.ConnectRequest{TimeoutMs: 6000, Password: make([]byte, 16), HasReadOnly: true}
			edit(side, &req)
			failed[side] = c.handshake(req) != nil
			resp[side] = c.resp
			if !failed[side] && c.resp.SessionID == 0 {
				ended[side], _ = c.closed(time.Minute)
				if !bytes.Equal(c.resp.Password, make([]byte, 16)) {
					w.t.Errorf("%s: server %d: password %x", name, side, c.resp.Password)
				}
			}
			_ = c.nc.Close()
		}
		r, o := resp[0], resp[1]
		if failed[0] != failed[1] || ended[0] != ended[1] || r.Protocol != o.Protocol || r.TimeoutMs != o.TimeoutMs ||
			(r.SessionID == 0) != (o.SessionID == 0) || len(r.Password) != len(o.Password) || r.HasReadOnly != o.HasReadOnly || r.ReadOnly != o.ReadOnly {
			w.t.Errorf("%s: real %+v (failed %v, ended %v), ours %+v (failed %v, ended %v)", name, r, failed[0], ended[0], o, failed[1], ended[1])
		}
	}
	// Authentication, and what "auth" in a list then means.
	a := w.open()
	auth := func(p *pair, scheme, id string) {
		w.t.Helper()
		rec := &jute.AuthRequest{Scheme: scheme, Auth: []byte(id)}
		var m [2]message
		for side, c := range []*rawClient{p.real, p.ours} {
			c.sendXid(jute.XidAuth, jute.OpAuth, rec)
			m[side] = c.next()
		}
		if m[0].Xid != m[1].Xid || m[0].Err != m[1].Err || len(m[0].body) != len(m[1].body) {
			w.t.Errorf("auth %s %s: real %v, ours %v", scheme, id, m[0], m[1])
		}
	}
	own := &jute.CreateRequest{Path: "/auth", ACL: []jute.ACL{{Perms: 31, Scheme: "auth"}}}
	w.call(a, jute.OpCreate, own)
	auth(a, "digest", "u:p")
	auth(a, "digest", "v:q")
	w.call(a, jute.OpCreate, own)
	w.call(a, jute.OpGetACL, &jute.Path{Path: "/auth"})
	auth(a, "nothing", "x")
	for side, c := range []*rawClient{a.real, a.ours} {
		if closed, _ := c.closed(time.Minute); !closed {
			w.t.Errorf("server %d keeps a client of an unknown scheme", side)
		}
	}
}

// random drives three sessions over a small tree.
func random(w *twins, r *rand.Rand, steps int, root string) {
	ps := []*pair{w.open(), w.open(), w.open()}
	w.call(ps[0], jute.OpCreate, createReq(root, nil, 0))
	names := []string{"a", "b", "c"}
	path := func() string {
		p := root
		for range 1 + r.IntN(3) {
			p += "/" + names[r.IntN(len(names))]
		}
		return p
	}
	version := func() int32 { return int32(r.IntN(4) - 1) }
	data := func() []byte { return [][]byte{nil, {}, []byte("d"), []byte("data")}[r.IntN(4)] }
	for range steps {
		i := r.IntN(len(ps))
		p := ps[i]
		switch r.IntN(16) {
		case 0, 1, 2, 3:
			w.call(p, jute.OpCreate, createReq(path(), data(), int32(r.IntN(4))))
		case 4, 5:
			w.call(p, jute.OpDelete, &jute.PathVersion{Path: path(), Version: version()})
		case 6, 7:
			w.call(p, jute.OpSetData, &jute.SetDataRequest{Path: path(), Data: data(), Version: version()})
		case 8, 9, 10:
			op := []jute.Op{jute.OpExists, jute.OpGetData}[r.IntN(2)]
			w.call(p, op, &jute.PathWatch{Path: path(), Watch: r.IntN(3) > 0})
		case 11, 12:
			op := []jute.Op{jute.OpGetChildren, jute.OpGetChildren2}[r.IntN(2)]
			w.call(p, op, &jute.PathWatch{Path: path(), Watch: r.IntN(3) > 0})
		case 13:
			w.call(p, []jute.Op{jute.OpGetACL, jute.OpSync}[r.IntN(2)], &jute.Path{Path: path()})
		case 14:
			w.resume(p)
			w.call(p, jute.OpSetWatches, &jute.SetWatches{Data: []string{path()}, Exist: []string{path()}, Child: []string{path()}})
		case 15:
			if r.IntN(4) > 0 {
				continue
			}
			// Ephemerals go in no fixed order, so the streams that hear of it are compared as sets.
			w.unordered = true
			w.close(p)
			ps[i] = w.open()
			for _, o := range ps {
				w.call(o, jute.OpSync, &jute.Path{Path: "/"})
			}
			w.unordered = false
		}
	}
	for _, p := range ps {
		w.unordered = true
		w.close(p)
	}
	w.unordered = false
}

func TestLockStep(t *testing.T) {
	_, ours := serve(t, newFold(t, 3).backend(t), nil)
	real := reference.ZooKeeper(t).Addr
	for end := time.Now().Add(2 * time.Minute); ; { // ruok is answered a moment before sessions are
		c := dialRaw(t, real)
		if err := c.handshake(jute.ConnectRequest{TimeoutMs: 4000, Password: make([]byte, 16)}); err == nil {
			break
		} else if time.Now().After(end) {
			t.Fatal("ZooKeeper takes no sessions:", err)
		}
	}
	w := newTwins(t, real, ours)
	t.Run("handshakes", func(t *testing.T) { w.t = t; handshakes(w) })
	t.Run("script", func(t *testing.T) { w.t = t; script(w) })
	for seed := range uint64(8) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			w.t = t
			random(w, rand.New(rand.NewPCG(seed, 3)), 400, fmt.Sprintf("/r%d", seed))
		})
	}
}
