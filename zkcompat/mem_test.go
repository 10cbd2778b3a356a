package zkcompat_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/zkcompat"
	"github.com/barnabas-mq/barnabas/zkcompat/jute"
	"github.com/barnabas-mq/barnabas/zkcompat/ztree"
)

// memBackend is the smallest backend: a map of nodes, copied for every change.
type memBackend struct {
	mu   sync.Mutex
	tree *memTree
	subs map[int]func(zkcompat.Update)
	next int
	// park, if set, is asked before a write; the write waits until the channel is closed.
	park func(zkcompat.Write) <-chan struct{}
}

type memNode struct {
	data     []byte
	stat     ztree.Stat // Cversion counts creates here
	acl      []ztree.ACL
	children map[string]struct{}
}

type memSession struct {
	epoch    uint64
	password []byte
	timeout  time.Duration
}

type memTree struct {
	zxid     id.ZXID
	nodes    map[string]*memNode
	sessions map[id.SessionID]memSession
	gate     *memGate
}

func newMemBackend() *memBackend {
	return &memBackend{subs: map[int]func(zkcompat.Update){}, tree: &memTree{
		nodes: map[string]*memNode{"/": {data: []byte{}}}, sessions: map[id.SessionID]memSession{}}}
}

func (t *memTree) Index() id.Index { return id.Index(t.zxid) }
func (t *memTree) Zxid() id.ZXID   { return t.zxid }

func (t *memTree) get(path string) *memNode {
	if path == "" {
		path = "/"
	}
	return t.nodes[path]
}

func (t *memTree) Node(path string, _ ztree.Observer) (ztree.Node, bool) {
	n := t.get(path)
	if n == nil {
		return ztree.Node{}, false
	}
	return ztree.Node{Data: n.data, Stat: n.shown(), ACL: n.acl}, true
}

func (n *memNode) shown() ztree.Stat {
	s := n.stat
	s.NumChildren, s.DataLength = int32(len(n.children)), int32(len(n.data))
	s.Cversion = 2*s.Cversion - s.NumChildren
	return s
}

func (t *memTree) Children(path string, _ ztree.Observer, names []string) ([]string, ztree.Stat, bool) {
	n := t.get(path)
	if n == nil {
		return names, ztree.Stat{}, false
	}
	return slices.AppendSeq(names, maps.Keys(n.children)), n.shown(), true
}

// Gated is what gate says: the session sees the nodes themselves, but is told of them only by Shown.
func (t *memTree) Listing(string, ztree.Observer) *state.Legacy { return nil }

func (t *memTree) Gated(path string, o ztree.Observer) (id.ZXID, bool) {
	if t.gate == nil || o.Session != t.gate.session || path != t.gate.path {
		return 0, false
	}
	return t.gate.since, true
}

func (t *memTree) Unlimited(ztree.Observer) bool { return false }

type memGate struct {
	session id.SessionID
	path    string
	since   id.ZXID
}

func (t *memTree) Session(s id.SessionID) (uint64, bool) {
	row, ok := t.sessions[s]
	return row.epoch, ok
}

func (b *memBackend) Subscribe(f func(zkcompat.Update)) func() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next++
	n := b.next
	b.subs[n] = f
	f(zkcompat.Update{Tree: b.tree, Reset: true})
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.subs, n)
	}
}

// change applies one entry: f edits a copy.
func (b *memBackend) change(f func(t *memTree) ([]ztree.Event, []id.SessionID)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changeLocked(f)
}

func (b *memBackend) changeLocked(f func(t *memTree) ([]ztree.Event, []id.SessionID)) {
	t := &memTree{zxid: b.tree.zxid + 1, nodes: maps.Clone(b.tree.nodes), sessions: maps.Clone(b.tree.sessions), gate: b.tree.gate}
	ev, ss := f(t)
	b.tree = t
	for _, s := range b.subs {
		s(zkcompat.Update{Tree: t, Events: ev, Sessions: ss})
	}
}

func (b *memBackend) OpenSession(_ context.Context, timeout time.Duration, _ string) (zkcompat.Session, error) {
	s := zkcompat.Session{Password: make([]byte, 16), Timeout: timeout}
	_, _ = rand.Read(s.Password)
	b.change(func(t *memTree) ([]ztree.Event, []id.SessionID) {
		s.Session, s.AttachEpoch, s.Index = id.SessionID(0x100000000+int64(t.zxid)), 1, id.Index(t.zxid)
		t.sessions[s.Session] = memSession{1, s.Password, timeout}
		return nil, nil
	})
	return s, nil
}

func (b *memBackend) AttachSession(_ context.Context, sid id.SessionID, password []byte, timeout time.Duration, _ string) (zkcompat.Session, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	row, ok := b.tree.sessions[sid]
	if !ok || !bytes.Equal(row.password, password) {
		return zkcompat.Session{}, zkcompat.ErrSessionGone
	}
	row.epoch, row.timeout = row.epoch+1, timeout
	b.changeLocked(func(t *memTree) ([]ztree.Event, []id.SessionID) {
		t.sessions[sid] = row
		return nil, []id.SessionID{sid}
	})
	return zkcompat.Session{Caller: zkcompat.Caller{Session: sid, AttachEpoch: row.epoch}, Password: row.password,
		Timeout: row.timeout, Index: b.tree.Index()}, nil
}

func (b *memBackend) CloseSession(_ context.Context, c zkcompat.Caller) (zkcompat.Result, error) {
	b.expire(c.Session)
	b.mu.Lock()
	defer b.mu.Unlock()
	return zkcompat.Result{Index: b.tree.Index()}, nil
}

func (b *memBackend) expire(s id.SessionID) {
	b.change(func(t *memTree) ([]ztree.Event, []id.SessionID) {
		var ev []ztree.Event
		delete(t.sessions, s)
		for path, n := range t.nodes {
			if n.stat.EphemeralOwner == int64(s) {
				ev = append(ev, t.remove(path))
			}
		}
		return ev, []id.SessionID{s}
	})
}

func (t *memTree) edit(path string) *memNode {
	n := *t.nodes[path]
	n.children = maps.Clone(n.children)
	t.nodes[path] = &n
	return &n
}

func (t *memTree) remove(path string) ztree.Event {
	delete(t.nodes, path)
	p := t.edit(ztree.Parent(path))
	delete(p.children, path[strings.LastIndexByte(path, '/')+1:])
	p.stat.Pzxid = int64(t.zxid)
	return ztree.Event{Path: path, Type: ztree.Deleted}
}

func (b *memBackend) Write(ctx context.Context, c zkcompat.Caller, w zkcompat.Write) (zkcompat.Result, error) {
	if b.park != nil {
		if ch := b.park(w); ch != nil {
			select {
			case <-ch:
			case <-ctx.Done():
				return zkcompat.Result{}, ctx.Err()
			}
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var res zkcompat.Result
	switch epoch, ok := b.tree.Session(c.Session); {
	case !ok:
		res.Code = jute.SessionExpired
	case epoch != c.AttachEpoch:
		res.Code = jute.SessionMoved
	default:
		res = b.apply(c, w)
	}
	res.Index = b.tree.Index()
	return res, nil
}

func (b *memBackend) apply(c zkcompat.Caller, w zkcompat.Write) zkcompat.Result {
	old := b.tree
	n := old.get(w.Path)
	fail := func(code jute.Code) zkcompat.Result { return zkcompat.Result{Code: code} }
	parent := old.get(ztree.Parent(w.Path))
	if w.Op == jute.OpCreate {
		if parent == nil {
			return fail(jute.NoNode)
		}
		if w.Sequential {
			w.Path += fmt.Sprintf("%010d", parent.stat.Cversion)
			n = old.get(w.Path)
		}
		switch {
		case n != nil:
			return fail(jute.NodeExists)
		case parent.stat.EphemeralOwner != 0:
			return fail(jute.NoChildrenForEphemerals)
		}
	} else if n == nil {
		return fail(jute.NoNode)
	}
	switch w.Op {
	case jute.OpDelete, jute.OpSetData:
		if w.Version != -1 && w.Version != n.stat.Version {
			return fail(jute.BadVersion)
		}
		if w.Op == jute.OpDelete && len(n.children) > 0 {
			return fail(jute.NotEmpty)
		}
	case jute.OpSetACL:
		if w.Version != -1 && w.Version != n.stat.Aversion {
			return fail(jute.BadVersion)
		}
	}
	b.changeLocked(func(t *memTree) ([]ztree.Event, []id.SessionID) { return t.write(c, w), nil })
	res := zkcompat.Result{Path: w.Path}
	if n := b.tree.get(w.Path); n != nil {
		st := n.shown()
		res.Stat = &st
	}
	return res
}

func (t *memTree) write(c zkcompat.Caller, w zkcompat.Write) []ztree.Event {
	z, now := int64(t.zxid), time.Now().UnixMilli()
	switch w.Op {
	case jute.OpCreate:
		n := &memNode{data: w.Data, stat: ztree.Stat{Czxid: z, Mzxid: z, Pzxid: z, Ctime: now, Mtime: now}}
		if w.Ephemeral {
			n.stat.EphemeralOwner = int64(c.Session)
		}
		for _, a := range w.ACL {
			n.acl = append(n.acl, ztree.ACL(a))
		}
		t.nodes[w.Path] = n
		p := t.edit(ztree.Parent(w.Path))
		if p.children == nil {
			p.children = map[string]struct{}{}
		}
		p.children[w.Path[strings.LastIndexByte(w.Path, '/')+1:]] = struct{}{}
		p.stat.Cversion++
		p.stat.Pzxid = z
		return []ztree.Event{{Path: w.Path, Type: ztree.Created}}
	case jute.OpDelete:
		return []ztree.Event{t.remove(w.Path)}
	case jute.OpSetData:
		n := t.edit(w.Path)
		n.data, n.stat.Mzxid, n.stat.Mtime = w.Data, z, now
		n.stat.Version++
		return []ztree.Event{{Path: w.Path, Type: ztree.Changed}}
	default:
		n := t.edit(w.Path)
		n.acl = nil
		for _, a := range w.ACL {
			n.acl = append(n.acl, ztree.ACL(a))
		}
		n.stat.Aversion++
		return nil
	}
}

func (b *memBackend) AwaitRead(context.Context, zkcompat.Caller, string) (id.Index, error) {
	return 0, nil
}

func (b *memBackend) Sync(context.Context) (id.Index, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tree.Index(), nil
}
