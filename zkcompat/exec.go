package zkcompat

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/barnabas-mq/barnabas/zkcompat/jute"
	"github.com/barnabas-mq/barnabas/zkcompat/ztree"
)

// execute answers one request; it returns when the reply has been appended or the connection is over.
func (c *conn) execute(r request) {
	switch r.Op {
	case jute.OpExists, jute.OpGetData, jute.OpGetChildren, jute.OpGetChildren2, jute.OpGetACL:
		if c.slow() {
			c.read(r)
		}
	case jute.OpCreate, jute.OpDelete, jute.OpSetData, jute.OpSetACL:
		c.write(r)
	case jute.OpSync:
		c.sync(r)
	case jute.OpSetWatches:
		c.setWatches(r)
	case jute.OpAuth:
		c.authenticate(r)
	case jute.OpClose:
		c.closeSession(r)
	default:
		c.warn("a client asked for an operation that is not served", "op", r.Op)
		c.reply(r.Xid, jute.Unimplemented)
	}
}

// warn logs about this client, once a second at most: one that repeats itself for ever must not fill the disk. Only drain
// calls it.
func (c *conn) warn(what string, args ...any) {
	now := c.s.cfg.Clock.Boot()
	if c.quiet > now {
		c.muted++
		return
	}
	args = append(args, "remote", c.nc.RemoteAddr(), "session", c.sessionName())
	if c.muted > 0 {
		args = append(args, "muted", c.muted)
	}
	c.quiet, c.muted = now+time.Second, 0
	c.s.cfg.Log.Warn("zookeeper: "+what, args...)
}

// malformed answers a request whose body could not be read, as ZooKeeper does.
func (c *conn) malformed(r request, err error) {
	c.warn("a request could not be read", "op", r.Op, "bytes", len(r.body), "err", err)
	c.reply(r.Xid, jute.MarshallingError)
}

// read answers from the published tree and arms a watch in the same step.
func (c *conn) read(r request) {
	var req jute.PathWatch
	var err error
	if r.Op == jute.OpGetACL {
		var p jute.Path
		err = p.Decode(r.body)
		req.Path = p.Path
	} else {
		err = req.Decode(r.body)
	}
	if err != nil {
		c.malformed(r, err)
		return
	}
	if r.Op == jute.OpExists && strings.IndexByte(req.Path, 0) >= 0 {
		c.reply(r.Xid, jute.BadArguments)
		return
	}
	as, path := c.s.cutChroot(req.Path)
	req.Path = path
	if r.Op == jute.OpGetChildren || r.Op == jute.OpGetChildren2 {
		c.readChildren(r, req, as)
		return
	}
	if r.Op == jute.OpGetData && strings.HasPrefix(path, "/consumers/") && !c.awaitRead(path) {
		return
	}
	var n ztree.Node
	c.replyWith(func(t Tree) (int32, jute.Code) {
		var ok bool
		n, ok = t.Node(req.Path, c.reader())
		if req.Watch && (ok || r.Op == jute.OpExists) {
			c.arm(t, dataTable, as, req.Path, !ok)
		}
		if !ok {
			return r.Xid, jute.NoNode
		}
		return r.Xid, jute.OK
	}, func(b []byte) []byte {
		switch r.Op {
		case jute.OpGetData:
			b = jute.AppendBytes(b, n.Data)
		case jute.OpGetACL:
			b = jute.AppendACLs(b, wireACL(n.ACL))
		}
		st := jute.Stat(n.Stat)
		return st.Append(b)
	})
}

// awaitRead holds a read until the backend lets it go; false when the connection ended meanwhile.
func (c *conn) awaitRead(path string) bool {
	index, err := c.s.cfg.Backend.AwaitRead(c.ctx, c.caller, path)
	if err == nil {
		err = c.s.awaitIndex(c.ctx, index)
	}
	if err != nil && c.ctx.Err() == nil {
		c.warn("a read was not held", "path", path, "err", err)
	}
	return c.ctx.Err() == nil
}

func (c *conn) readChildren(r request, req jute.PathWatch, as string) {
	var names []string
	var stat ztree.Stat
	c.replyWith(func(t Tree) (int32, jute.Code) {
		var ok bool
		if names, stat, ok = t.Children(req.Path, c.observer(), nil); !ok {
			return r.Xid, jute.NoNode
		}
		if g := t.Listing(req.Path, c.observer()); g != nil {
			c.listed = g
		}
		if req.Watch {
			c.arm(t, childTable, as, req.Path, false)
		}
		return r.Xid, jute.OK
	}, func(b []byte) []byte {
		if names == nil {
			names = []string{}
		}
		b = jute.AppendStrings(b, names)
		if r.Op == jute.OpGetChildren2 {
			st := jute.Stat(stat)
			b = st.Append(b)
		}
		return b
	})
}

// arm is called with the gate held, with the tree that the client is about to be shown.
func (c *conn) arm(t Tree, tab table, as, path string, absent bool) {
	if path == "" {
		path = "/"
	}
	seen := t.Zxid()
	if since, gated := t.Gated(path, c.observer()); gated {
		seen = since // what happened after it to the node itself was not shown
	}
	n := c.s.watches.arm(tab, path, watch{c: c, as: as, zxid: int64(seen), absent: absent})
	if n > c.s.cfg.MaxWatches {
		c.s.cfg.Log.Warn("zookeeper: too many watches on one connection, closing", "remote", c.nc.RemoteAddr(), "max", c.s.cfg.MaxWatches)
		c.kill(fmt.Sprintf("it armed more than %d watches", c.s.cfg.MaxWatches))
	}
}

// setWatches restores a client's watches after a reconnect: events at once for what it missed. The reply echoes the
// client's xid (-8 from JVM clients) after those events.
func (c *conn) setWatches(r request) {
	var req jute.SetWatches
	if err := req.Decode(r.body); err != nil {
		c.malformed(r, err)
		return
	}
	c.s.gate.RLock()
	defer c.s.gate.RUnlock()
	t := c.s.tree
	rearm := func(tab table, paths []string, absent bool) {
		for _, shown := range paths {
			as, p := c.s.cutChroot(shown)
			if typ := missed(t, tab, p, c.observer(), req.RelativeZxid, absent); typ != 0 {
				c.event(jute.Event{Type: typ, Path: shown}.AppendFrame(nil))
			} else {
				c.arm(t, tab, as, p, absent)
			}
		}
	}
	rearm(dataTable, req.Data, false)
	rearm(dataTable, req.Exist, true)
	rearm(childTable, req.Child, false)
	c.replyLocked(t, r.Xid, jute.OK, nil)
}

// write parks the queue until the state has taken or refused the change and this node shows it.
func (c *conn) write(r request) {
	w, as, code, err := c.decodeWrite(r)
	switch {
	case err != nil:
		c.malformed(r, err)
		return
	case code != jute.OK:
		c.reply(r.Xid, code)
		return
	}
	res, err := c.s.cfg.Backend.Write(c.ctx, c.caller, w)
	if !c.settled(r, res, err) {
		return
	}
	if res.Reason != "" {
		c.warn("a write was not carried out", "op", r.Op, "path", w.Path, "code", res.Code, "reason", res.Reason)
	}
	c.replyWith(func(t Tree) (int32, jute.Code) {
		if res.Stat == nil && res.Code == jute.OK && (r.Op == jute.OpSetData || r.Op == jute.OpSetACL) {
			n, ok := t.Node(w.Path, c.observer())
			if !ok {
				return r.Xid, jute.NoNode // it was written and has been deleted since
			}
			res.Stat = &n.Stat
		}
		return r.Xid, res.Code
	}, func(b []byte) []byte {
		switch r.Op {
		case jute.OpCreate:
			return jute.AppendString(b, underChroot(as, res.Path))
		case jute.OpSetData, jute.OpSetACL:
			st := jute.Stat(*res.Stat)
			return st.Append(b)
		}
		return b
	})
}

// settled waits until this node's tree has a write's index. Without a certain outcome the connection is closed: the
// client then knows that it does not know (CONNECTIONLOSS), which an error reply would deny.
func (c *conn) settled(r request, res Result, err error) bool {
	if err == nil {
		err = c.s.awaitIndex(c.ctx, res.Index)
	}
	switch {
	case c.ctx.Err() != nil:
		return false
	case err != nil:
		c.warn("the outcome of a request is unknown, closing", "op", r.Op, "err", err)
		c.kill("the outcome of its request is unknown")
		return false
	case res.Code == jute.SessionMoved, res.Code == jute.SessionExpired:
		c.kill("its session is " + res.Code.String())
		return false
	}
	return true
}

// decodeWrite reads and checks a write as far as ZooKeeper checks it before it looks at nodes
// (PrepRequestProcessor.pRequest2Txn); what else can fail is decided where the change is applied. as is the chroot that
// the client put in front.
func (c *conn) decodeWrite(r request) (w Write, as string, code jute.Code, err error) {
	w.Op = r.Op
	var flags int32
	switch r.Op {
	case jute.OpCreate:
		var q jute.CreateRequest
		err = q.Decode(r.body)
		w.Path, w.Data, w.ACL, flags = q.Path, q.Data, q.ACL, q.Flags
		w.Ephemeral, w.Sequential = flags&jute.FlagEphemeral != 0, flags&jute.FlagSequential != 0
	case jute.OpDelete:
		var q jute.PathVersion
		err = q.Decode(r.body)
		w.Path, w.Version = q.Path, q.Version
	case jute.OpSetData:
		var q jute.SetDataRequest
		err = q.Decode(r.body)
		w.Path, w.Data, w.Version = q.Path, q.Data, q.Version
	case jute.OpSetACL:
		var q jute.SetACLRequest
		err = q.Decode(r.body)
		w.Path, w.ACL, w.Version = q.Path, q.ACL, q.Version
	}
	if err != nil {
		return w, "", jute.OK, err
	}
	as, w.Path = c.s.cutChroot(w.Path)
	switch {
	case flags >= 4 && flags <= 6: // containers and nodes with a time to live
		return w, as, jute.Unimplemented, nil
	case flags < 0 || flags > jute.FlagEphemeral|jute.FlagSequential:
		return w, as, jute.BadArguments, nil
	}
	return w, as, c.check(&w), nil
}

func (c *conn) check(w *Write) jute.Code {
	switch w.Op {
	case jute.OpDelete:
		switch {
		case !hasParent(w.Path) || w.Path == "/":
			return jute.BadArguments
		case !validPath(w.Path): // ZooKeeper checks no more: a bad path has no node
			return jute.NoNode
		}
		return jute.OK
	case jute.OpCreate:
		if !hasParent(w.Path) {
			return jute.BadArguments
		}
	default:
		if !validPath(w.Path) {
			return jute.BadArguments
		}
	}
	if w.Op != jute.OpSetData {
		acl, ok := c.fixACL(w.ACL)
		if !ok {
			return jute.InvalidACL
		}
		w.ACL = acl
	}
	if w.Op == jute.OpCreate {
		return c.checkNewPath(w)
	}
	return jute.OK
}

// checkNewPath refuses what can never be made. ZooKeeper looks for the parent before it looks at the name.
func (c *conn) checkNewPath(w *Write) jute.Code {
	path := w.Path
	if w.Sequential {
		path += "0"
	} else if path == "/" {
		return jute.NodeExists
	}
	if validPath(path) {
		return jute.OK
	}
	c.s.gate.RLock()
	defer c.s.gate.RUnlock()
	if _, ok := c.s.tree.Node(w.Path[:strings.LastIndexByte(w.Path, '/')], c.observer()); !ok {
		return jute.NoNode
	}
	return jute.BadArguments
}

// sync returns when this node shows everything that was answered anywhere before.
func (c *conn) sync(r request) {
	var req jute.Path
	if err := req.Decode(r.body); err != nil {
		c.malformed(r, err)
		return
	}
	index, err := c.s.cfg.Backend.Sync(c.ctx)
	if !c.settled(r, Result{Index: index}, err) {
		return
	}
	c.replyWith(func(Tree) (int32, jute.Code) { return r.Xid, jute.OK }, req.Append)
}

// closeSession ends the session: its ephemerals are gone before the reply, then the connection is closed.
func (c *conn) closeSession(r request) {
	res, err := c.s.cfg.Backend.CloseSession(c.ctx, c.caller)
	if errors.Is(err, ErrSessionGone) {
		err = nil // somebody was faster; the client gets what it asked for
	}
	if !c.settled(r, res, err) {
		return
	}
	c.reply(r.Xid, jute.OK)
	c.mu.Lock()
	c.finishLocked()
	c.mu.Unlock()
}
