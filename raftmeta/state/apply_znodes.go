package state

import (
	"bytes"
	"fmt"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// ---- sessions ----

func (s *State) createSession(c *statepb.CreateSession) *statepb.Result {
	if len(c.Password) != 16 || c.TimeoutMs <= 0 {
		return s.refuse(statepb.Code_INVALID, "a session needs a password of 16 bytes and a timeout")
	}
	s.meta.NextSession++
	ses := &Session{ID: id.SessionID(firstSession + s.meta.NextSession), Password: c.Password, TimeoutMs: c.TimeoutMs,
		AttachEpoch: 1, Broker: id.BrokerID(c.Broker), Host: c.Host}
	s.sessions.put(keyU64(uint64(ses.ID)), ses)
	zx := s.zxid()
	s.changed(Change{Kind: SessionCreated, ZXID: zx, Session: ses.ID, Broker: ses.Broker})
	return &statepb.Result{Zxid: int64(zx), Value: int64(ses.ID), Epoch: ses.AttachEpoch}
}

// attachSession moves a session to a new connection: writes of the old one are refused from here on.
func (s *State) attachSession(c *statepb.AttachSession) *statepb.Result {
	old, ok := s.sessions.get(keyU64(uint64(c.Session)))
	if !ok {
		return s.refuse(statepb.Code_SESSION_EXPIRED, "session %#x does not exist", c.Session)
	}
	if !bytes.Equal(old.Password, c.Password) {
		return s.refuse(statepb.Code_NO_AUTH, "session %#x: wrong password", c.Session)
	}
	ses := *old
	ses.AttachEpoch++
	ses.Broker, ses.Host = id.BrokerID(c.Broker), c.Host
	if c.TimeoutMs > 0 { // the newest connection decides (SessionTrackerImpl.touchSession)
		ses.TimeoutMs = c.TimeoutMs
	}
	s.sessions.put(keyU64(uint64(ses.ID)), &ses)
	s.changed(Change{Kind: SessionAttached, ZXID: s.meta.ZXID, Session: ses.ID, Broker: ses.Broker})
	return &statepb.Result{Zxid: int64(s.meta.ZXID), Value: int64(ses.TimeoutMs), Epoch: ses.AttachEpoch}
}

// closeSession ends a session and all its nodes. When it expired, the partitions that it owned are reserved.
func (s *State) closeSession(c *statepb.CloseSession, expired bool) *statepb.Result {
	ses, ok := s.sessions.get(keyU64(uint64(c.Session)))
	switch {
	case !ok:
		return s.refuse(statepb.Code_SESSION_EXPIRED, "session %#x does not exist", c.Session)
	case ses.AttachEpoch != c.AttachEpoch:
		return s.refuse(statepb.Code_SESSION_MOVED, "session %#x was attached again", c.Session)
	}
	zx := s.zxid()
	prefix := keyU64(uint64(ses.ID))
	var kept []owned
	if expired {
		kept = s.ownedBy(ses)
	}
	keys, _ := s.ephemerals.collect(prefix)
	for _, k := range keys {
		s.removeNode(k[len(prefix):], zx)
	}
	s.sessions.del(prefix)
	s.reserve(kept)
	s.changed(Change{Kind: SessionEnded, ZXID: zx, Session: ses.ID, Broker: ses.Broker})
	return &statepb.Result{Zxid: int64(zx)}
}

func (s *State) expireSessions(c *statepb.ExpireSessions) *statepb.Result {
	res := &statepb.Result{}
	for _, one := range c.Sessions {
		res.Parts = append(res.Parts, s.closeSession(one, true))
	}
	res.Zxid = int64(s.meta.ZXID)
	return res
}

// ---- the stored tree ----

func (s *State) newStat(zx id.ZXID, owner int64) Stat {
	return Stat{Czxid: zx, Mzxid: zx, Pzxid: zx, Ctime: s.wallMs, Mtime: s.wallMs, EphemeralOwner: owner}
}

// addNode stores a new node; its parent is stored and may have children.
func (s *State) addNode(path string, z *Znode, zx id.ZXID, owner int64) {
	z.Stat = s.newStat(zx, owner)
	s.znodes.put(znodeKey(path), z)
	parent, _ := SplitPath(path)
	s.bumpParent(parent, 1, zx)
	s.changed(Change{Kind: ZnodeCreated, ZXID: zx, Path: path})
	s.noteGroup(path)
}

func (s *State) removeNode(path string, zx id.ZXID) {
	z, ok := s.znodes.get(znodeKey(path))
	if !ok {
		panic(fmt.Sprintf("state: %s is to be removed but not stored", path))
	}
	s.znodes.del(znodeKey(path))
	if o := z.Stat.EphemeralOwner; o != 0 {
		s.ephemerals.del(ephemeralKey(o, path))
	}
	parent, _ := SplitPath(path)
	s.bumpParent(parent, -1, zx)
	s.changed(Change{Kind: ZnodeDeleted, ZXID: zx, Path: path, Session: id.SessionID(z.Stat.EphemeralOwner)})
	s.noteGroup(path)
}

// bumpParent counts a child that came (+1) or went (-1) of a stored directory; the child itself may be any row.
func (s *State) bumpParent(path string, by int32, zx id.ZXID) {
	old, ok := s.znodes.get(znodeKey(path))
	if !ok {
		panic(fmt.Sprintf("state: the parent %s is not stored", path))
	}
	z := *old
	z.Stat.Children += by
	z.Stat.Pzxid = zx
	if by > 0 {
		z.Stat.Creates++
	}
	s.znodes.put(znodeKey(path), &z)
}

// touch puts a node whose data has changed.
func (s *State) touch(z *Znode, path string, zx id.ZXID) {
	z.Stat.Mzxid, z.Stat.Mtime = zx, s.wallMs
	z.Stat.Version++
	s.znodes.put(znodeKey(path), z)
	s.changed(Change{Kind: ZnodeData, ZXID: zx, Path: path})
	s.noteGroup(path)
}

// noteGroup keeps the group's head in step with its znodes: it is there as long as /consumers/<group> or its classic part is,
// and its version moves with members and owners.
func (s *State) noteGroup(path string) {
	p := ParsePath(path)
	switch p.Kind {
	case PathMember, PathOwner:
		s.moveGroup(p.Group)
	case PathGroupDir:
		if p.Name != p.Group || p.Topic != "" {
			return
		}
		g, had := s.groups.get(p.Group)
		_, there := s.znodes.get(znodeKey("/consumers/" + p.Group))
		if !there {
			s.dropLegacy(p.Group)
		}
		if there && !had {
			s.moveGroup(p.Group)
		} else if !there && had && !g.Classic() {
			s.groups.del(p.Group)
		}
	}
}

// Stat as clients see it.
func (z *Znode) stat() *statepb.Stat {
	return &statepb.Stat{
		Czxid: int64(z.Stat.Czxid), Mzxid: int64(z.Stat.Mzxid), Pzxid: int64(z.Stat.Pzxid), Ctime: z.Stat.Ctime, Mtime: z.Stat.Mtime,
		Version: z.Stat.Version, Cversion: z.Stat.Cversion(), Aversion: z.Stat.Aversion, EphemeralOwner: z.Stat.EphemeralOwner,
		DataLength: int32(len(z.Data)), NumChildren: z.Stat.Children,
	}
}

func fromACL(in []*statepb.Acl) []ACL {
	if len(in) == 1 && in[0].Perms == 31 && in[0].Scheme == "world" && in[0].Id == "anyone" {
		return nil
	}
	var out []ACL
	for _, a := range in {
		out = append(out, ACL{Perms: a.Perms, Scheme: a.Scheme, ID: a.Id})
	}
	return out
}

// checkParent finds the stored directory in which a node is to be made, in the order of ZooKeeper's checks.
func (s *State) checkParent(path string) (*Znode, *statepb.Result) {
	if why := ValidPath(path); why != "" || path == "/" {
		return nil, s.refuse(statepb.Code_INVALID, "%q: %s", path, why)
	}
	parent, _ := SplitPath(path)
	z, ok := s.znodes.get(znodeKey(parent))
	switch {
	case ok:
		return z, nil
	case s.isOffset(parent):
		return nil, s.refuse(statepb.Code_INVALID, "%s is a committed offset and has no children", parent)
	}
	return nil, s.refuse(statepb.Code_NO_NODE, "%s does not exist", parent)
}

func (s *State) isOffset(path string) bool {
	p := ParsePath(path)
	if p.Kind != PathOffset {
		return false
	}
	_, ok := s.offset(p.Group, p.Topic, p.Partition)
	return ok
}

// projected refuses writes to nodes that only commands change.
func (s *State) projected(path string) *statepb.Result {
	switch ParsePath(path).Kind {
	case PathBroker, PathTopic, PathConfig, PathController:
		return s.refuse(statepb.Code_NO_AUTH, "%s is kept by barnabas: change it by its command", path)
	}
	return nil
}

func (s *State) createZnode(session int64, c *statepb.CreateZnode) *statepb.Result {
	path := c.Path
	if c.Sequential {
		path += "0" // what stands there is valid whatever the number will be
	}
	parent, refusal := s.checkParent(path)
	if refusal != nil {
		return refusal
	}
	if c.Sequential {
		path = fmt.Sprintf("%s%010d", c.Path, parent.Stat.Creates)
	}
	if r := s.projected(path); r != nil {
		return r
	}
	if s.exists(path) {
		return s.refuse(statepb.Code_NODE_EXISTS, "%s exists", path)
	}
	if parent.Stat.EphemeralOwner != 0 {
		return s.refuse(statepb.Code_NO_CHILDREN_FOR_EPHEMERALS, "the parent of %s is ephemeral", path)
	}
	p := ParsePath(path)
	if p.Kind == PathOffset {
		return s.createOffsetZnode(session, p, c)
	}
	z := &Znode{Data: c.Data, Null: c.Null, ACL: fromACL(c.Acl)}
	s.describe(p, z, session)
	owner := int64(0)
	if c.Ephemeral {
		if session == 0 {
			return s.refuse(statepb.Code_INVALID, "an ephemeral node needs a session")
		}
		owner = session
		s.ephemerals.put(ephemeralKey(owner, path), &marker{})
	}
	zx := s.zxid()
	s.addNode(path, z, zx, owner)
	return &statepb.Result{Zxid: int64(zx), Path: path, Stat: z.stat()}
}

func (s *State) exists(path string) bool {
	if _, ok := s.znodes.get(znodeKey(path)); ok {
		return true
	}
	return s.isOffset(path)
}

func (s *State) deleteZnode(session int64, c *statepb.DeleteZnode) *statepb.Result {
	if why := ValidPath(c.Path); why != "" || c.Path == "/" {
		return s.refuse(statepb.Code_INVALID, "%q cannot be deleted", c.Path)
	}
	if p := ParsePath(c.Path); p.Kind == PathOffset {
		return s.deleteOffsetZnode(p, c.Version)
	}
	if r := s.projected(c.Path); r != nil {
		return r
	}
	z, ok := s.znodes.get(znodeKey(c.Path))
	switch {
	case !ok:
		return s.refuse(statepb.Code_NO_NODE, "%s does not exist", c.Path)
	case s.guardDelete(session, ParsePath(c.Path), z) != nil:
		return s.guardDelete(session, ParsePath(c.Path), z)
	case c.Version != -1 && z.Stat.Version != c.Version:
		return s.refuse(statepb.Code_BAD_VERSION, "%s is at version %d", c.Path, z.Stat.Version)
	case z.Stat.Children > 0:
		return s.refuse(statepb.Code_NOT_EMPTY, "%s has %d children", c.Path, z.Stat.Children)
	case IsRoot(c.Path):
		return s.refuse(statepb.Code_NO_AUTH, "%s is kept by barnabas: clients depend on it", c.Path)
	case s.hasClassicMembers(ParsePath(c.Path)):
		return s.refuse(statepb.Code_NOT_EMPTY, "the group of %s has members that are no znodes: stop them first", c.Path)
	}
	zx := s.zxid()
	s.removeNode(c.Path, zx)
	return &statepb.Result{Zxid: int64(zx)}
}

func (s *State) setZnode(session int64, c *statepb.SetZnode) *statepb.Result {
	if why := ValidPath(c.Path); why != "" {
		return s.refuse(statepb.Code_INVALID, "%q: %s", c.Path, why)
	}
	p := ParsePath(c.Path)
	if p.Kind == PathOffset {
		return s.setOffsetZnode(session, p, c)
	}
	if r := s.projected(c.Path); r != nil {
		return r
	}
	old, ok := s.znodes.get(znodeKey(c.Path))
	switch {
	case !ok:
		return s.refuse(statepb.Code_NO_NODE, "%s does not exist", c.Path)
	case c.Version != -1 && old.Stat.Version != c.Version:
		return s.refuse(statepb.Code_BAD_VERSION, "%s is at version %d", c.Path, old.Stat.Version)
	}
	z := *old
	z.Data, z.Null = c.Data, c.Null
	s.describe(p, &z, z.Stat.EphemeralOwner)
	zx := s.zxid()
	s.touch(&z, c.Path, zx)
	return &statepb.Result{Zxid: int64(zx), Stat: z.stat()}
}

func (s *State) setACL(c *statepb.SetAcl) *statepb.Result {
	if why := ValidPath(c.Path); why != "" {
		return s.refuse(statepb.Code_INVALID, "%q: %s", c.Path, why)
	}
	old, ok := s.znodes.get(znodeKey(c.Path))
	switch {
	case !ok:
		return s.refuse(statepb.Code_NO_NODE, "%s does not exist", c.Path)
	case c.Version != -1 && old.Stat.Aversion != c.Version:
		return s.refuse(statepb.Code_BAD_VERSION, "%s has ACL version %d", c.Path, old.Stat.Aversion)
	}
	z := *old
	z.ACL = fromACL(c.Acl)
	z.Stat.Aversion++
	zx := s.zxid()
	s.znodes.put(znodeKey(c.Path), &z)
	return &statepb.Result{Zxid: int64(zx), Stat: z.stat()}
}
