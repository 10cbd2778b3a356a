package zkcompat

import (
	"strings"
	"sync"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/zkcompat/jute"
	"github.com/barnabas-mq/barnabas/zkcompat/ztree"
)

// table is a kind of watch. exists and getData share one (ZooKeeper's dataWatches).
type table uint8

const (
	dataTable table = iota
	childTable
)

// watch is one armed watch of one connection.
type watch struct {
	c      *conn
	as     string // chroot under which the client sees the path, or ""
	zxid   int64  // of the tree that the client saw when it armed, or of the generation that showed it the node
	absent bool   // the node was missing then
}

// watches has every armed watch of a server. A path has few watchers, a connection few paths.
type watches struct {
	mu    sync.Mutex
	paths [2]map[string][]watch
	count int
}

func newWatches() *watches {
	return &watches{paths: [2]map[string][]watch{make(map[string][]watch), make(map[string][]watch)}}
}

// arm adds a watch; an armed one stays as it is. It tells how many the connection has now.
func (w *watches) arm(t table, path string, n watch) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := n.c
	if c.gone { // its watches have been dropped already
		return 0
	}
	shown := underChroot(n.as, path)
	if _, armed := c.armed[t][shown]; !armed {
		if c.armed[t] == nil {
			c.armed[t] = make(map[string]struct{})
		}
		c.armed[t][shown] = struct{}{}
		w.paths[t][path] = append(w.paths[t][path], n)
		w.count++
	}
	return len(c.armed[dataTable]) + len(c.armed[childTable])
}

// take removes and returns the watches on a path for which keep is false.
func (w *watches) take(t table, path string, keep func(*watch) bool) []watch {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.paths[t][path]
	if len(all) == 0 {
		return nil
	}
	var kept []watch
	taken := all[:0:len(all)]
	for i := range all {
		if keep != nil && keep(&all[i]) {
			kept = append(kept, all[i])
			continue
		}
		delete(all[i].c.armed[t], underChroot(all[i].as, path))
		w.count--
		taken = append(taken, all[i])
	}
	if len(kept) == 0 {
		delete(w.paths[t], path)
	} else {
		w.paths[t][path] = kept
	}
	return taken
}

// drop removes every watch of a connection and lets it arm no more.
func (w *watches) drop(c *conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c.gone = true
	for t := range c.armed {
		for shown := range c.armed[t] {
			as, path := c.s.cutChroot(shown)
			all := w.paths[t][path]
			for i := range all {
				if all[i].c == c && all[i].as == as {
					all[i] = all[len(all)-1]
					all[len(all)-1] = watch{}
					all = all[:len(all)-1]
					w.count--
					break
				}
			}
			if len(all) == 0 {
				delete(w.paths[t], path)
			} else {
				w.paths[t][path] = all
			}
		}
		c.armed[t] = nil
	}
}

// armedPaths lists the paths that have watches: all of a table, or one connection's when c is not nil.
func (w *watches) armedPaths(t table, c *conn) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	if c != nil {
		for shown := range c.armed[t] {
			_, p := c.s.cutChroot(shown)
			out = append(out, p)
		}
		return out
	}
	for p := range w.paths[t] {
		out = append(out, p)
	}
	return out
}

// missed is what ZooKeeper's setWatches rule says about a watch that was armed at zxid: the event to send now, or 0
// to (re-)arm (DataTree.setWatches).
func missed(tr Tree, t table, path string, o ztree.Observer, zxid int64, absent bool) jute.EventType {
	n, ok := tr.Node(path, o)
	switch {
	case absent && ok:
		return jute.NodeCreated
	case absent:
		return 0
	case !ok:
		return jute.NodeDeleted
	case t == dataTable && n.Stat.Mzxid > zxid:
		return jute.NodeDataChanged
	case t == childTable && n.Stat.Pzxid > zxid:
		return jute.NodeChildrenChanged
	}
	return 0
}

// fire sends the events of one change, in ZooKeeper's order: the node's data watches, for a deletion its child watches
// (one event for a connection with both), then the parent's child watches. Called with the gate held for writing.
func (s *Server) fire(e ztree.Event) {
	switch e.Type {
	case ztree.Created:
		s.send(dataTable, e.Path, jute.NodeCreated, nil)
		s.send(childTable, ztree.Parent(e.Path), jute.NodeChildrenChanged, nil)
	case ztree.Deleted:
		told := s.send(dataTable, e.Path, jute.NodeDeleted, nil)
		s.send(childTable, e.Path, jute.NodeDeleted, told)
		s.send(childTable, ztree.Parent(e.Path), jute.NodeChildrenChanged, nil)
	case ztree.Changed:
		s.send(dataTable, e.Path, jute.NodeDataChanged, nil)
	case ztree.Shown:
		s.shown(e.Path)
	case ztree.Left:
		s.left(e.Session)
	}
}

func (s *Server) send(t table, path string, typ jute.EventType, told []watch) []watch {
	taken := s.watches.take(t, path, s.keepGated(path))
	if len(taken) == 0 {
		return nil
	}
	frame := jute.Event{Type: typ, Path: path}.AppendFrame(nil)
next:
	for _, w := range taken {
		for _, o := range told {
			if o.c == w.c && o.as == w.as {
				continue next
			}
		}
		if w.as != "" {
			w.c.event(jute.Event{Type: typ, Path: underChroot(w.as, path)}.AppendFrame(nil))
			continue
		}
		w.c.event(frame)
	}
	return taken
}

// cutChroot splits a path as a client sends it into the chroot it is under, or "", and the path that is meant. A chroot
// is another name of the root: clients configured with host:port/chroot put it in front of every path.
func (s *Server) cutChroot(shown string) (as, path string) {
	for _, root := range s.cfg.Chroots {
		rest, ok := strings.CutPrefix(shown, root)
		switch {
		case ok && rest == "":
			return root, "/"
		case ok && rest[0] == '/':
			return root, rest
		}
	}
	return "", shown
}

// underChroot is cutChroot's inverse.
func underChroot(as, path string) string {
	if as != "" && path == "/" {
		return as
	}
	return as + path
}

// keepGated keeps the watches of those who are shown the node by a generation: what happens to it is no event for them.
func (s *Server) keepGated(path string) func(*watch) bool {
	return func(w *watch) bool {
		_, gated := s.tree.Gated(path, w.c.observer())
		return gated
	}
}

// shown sends members of a group one event per watch on a path whose node now differs from what the session last saw,
// whatever happened in between. Nobody else sees a difference: what the others saw was the node itself.
func (s *Server) shown(path string) {
	s.settle(childTable, path, nil)
	s.settle(dataTable, path, nil)
}

// left compares all watches of a session that is a member no more with the raw tree.
func (s *Server) left(session id.SessionID) {
	c := s.bySession[session]
	if c == nil {
		return
	}
	for _, t := range []table{childTable, dataTable} {
		for _, p := range s.watches.armedPaths(t, c) {
			s.settle(t, p, func(w *watch) bool { return w.c != c })
		}
	}
}

// reset treats every armed watch as possibly changed: after a received snapshot there is no list of changes.
func (s *Server) reset() {
	for _, t := range []table{childTable, dataTable} {
		for _, p := range s.watches.armedPaths(t, nil) {
			s.settle(t, p, nil)
		}
	}
}

// settle compares each watch on a path with the tree: an event if something was missed, else it stays armed.
func (s *Server) settle(t table, path string, skip func(*watch) bool) {
	type told struct {
		watch
		typ jute.EventType
	}
	var out []told
	s.watches.take(t, path, func(w *watch) bool {
		if skip != nil && skip(w) {
			return true
		}
		typ := missed(s.tree, t, path, w.c.observer(), w.zxid, w.absent)
		if typ == 0 {
			return true
		}
		out = append(out, told{*w, typ})
		return false
	})
	for _, o := range out {
		o.c.event(jute.Event{Type: o.typ, Path: underChroot(o.as, path)}.AppendFrame(nil))
	}
}
