package state

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// claimOwner makes an owner znode if nobody has it: at most one owner per name at every index.
func (s *State) claimOwner(session int64, c *statepb.ClaimOwner) *statepb.Result {
	if g, ok := s.groups.get(c.Group); c.GroupVersion != 0 && (!ok || g.Version != c.GroupVersion) {
		return s.refuse(statepb.Code_STALE, "group %s has changed", c.Group)
	} else if ok {
		if r := s.checkHolder(g, c); r != nil {
			return r
		}
	}
	if r := s.checkClaim(session, c); r != nil {
		return r
	}
	res := s.createZnode(session, &statepb.CreateZnode{
		Path: "/consumers/" + c.Group + "/owners/" + c.Topic + "/" + c.Name, Data: c.Data, Null: c.Null, Acl: c.Acl, Ephemeral: c.Ephemeral,
	})
	if res.Code == statepb.Code_OK {
		s.claimed(session, c)
	}
	return res
}

// ---- offsets: one store; znodes and both APIs are its faces ----

func (s *State) offset(g, topic string, p int32) (*Offset, bool) {
	return offsetIn(s.offsets.rows, g, topic, p)
}

func (c *offsets) find(p int32) (int, bool) {
	return slices.BinarySearchFunc(c.rows, p, func(o *Offset, p int32) int { return int(o.Partition) - int(p) })
}

// putOffset stores an offset and tells the faces: a new znode, or new data of one.
func (s *State) putOffset(g, topic string, o *Offset, zx id.ZXID) {
	s.putOffsets(g, topic, []*Offset{o}, zx)
}

// putOffsets stores offsets of one chunk.
func (s *State) putOffsets(g, topic string, news []*Offset, zx id.ZXID) {
	key := offsetsKey(g, topic, news[0].Partition)
	c := &offsets{}
	if old, ok := s.offsets.get(key); ok {
		c.rows = slices.Clone(old.rows)
	} else {
		s.ensureDirs(g, topic, zx)
	}
	created := int32(0)
	for _, o := range news {
		o.CommittedMs = s.meta.ClockMs
		o.Mzxid, o.Mtime = zx, s.wallMs
		i, had := c.find(o.Partition)
		kind := OffsetChanged
		if had {
			old := c.rows[i]
			o.Czxid, o.Ctime, o.Version = old.Czxid, old.Ctime, old.Version+1
			if o.By == old.By {
				o.By, o.Since = old.By, old.Since // the same string, not another of the same content
			}
			if o.Metadata == old.Metadata {
				o.Metadata = old.Metadata
			}
			c.rows[i] = o
		} else {
			kind = OffsetCreated
			o.Czxid, o.Ctime = zx, s.wallMs
			c.rows = slices.Insert(c.rows, i, o)
			created++
		}
		s.changed(Change{Kind: kind, ZXID: zx, Group: g, Topic: topic, Partition: o.Partition})
	}
	s.offsets.put(key, c)
	for range created {
		s.bumpParent("/consumers/"+g+"/offsets/"+topic, 1, zx)
	}
}

func (s *State) dropOffset(g, topic string, p int32, zx id.ZXID) bool {
	key := offsetsKey(g, topic, p)
	old, ok := s.offsets.get(key)
	if !ok {
		return false
	}
	i, ok := old.find(p)
	if !ok {
		return false
	}
	if len(old.rows) == 1 {
		s.offsets.del(key)
	} else {
		s.offsets.put(key, &offsets{rows: slices.Delete(slices.Clone(old.rows), i, i+1)})
	}
	s.bumpParent("/consumers/"+g+"/offsets/"+topic, -1, zx)
	s.changed(Change{Kind: OffsetDeleted, ZXID: zx, Group: g, Topic: topic, Partition: p})
	return true
}

// dropOffsets removes a group's offsets of a topic and the directory that held them.
func (s *State) dropOffsets(g, topic string, zx id.ZXID) {
	_, chunks := s.offsets.collect(keyNames(g, topic))
	for _, c := range chunks {
		for _, o := range c.rows {
			s.dropOffset(g, topic, o.Partition, zx)
		}
	}
	dir := "/consumers/" + g + "/offsets/" + topic
	if z, ok := s.znodes.get(znodeKey(dir)); ok && z.Stat.Children == 0 && len(chunks) > 0 {
		s.removeNode(dir, zx)
	}
}

// ensureDirs makes the directories above a group's offsets: every group with an offset shows /consumers/<g>/offsets.
func (s *State) ensureDirs(g, topic string, zx id.ZXID) {
	leaf := "/consumers/" + g + "/offsets/" + topic
	if z, ok := s.znodes.get(znodeKey(leaf)); ok && z.Stat.EphemeralOwner == 0 { // and so are its parents
		return
	}
	for _, path := range []string{"/consumers/" + g, "/consumers/" + g + "/offsets", leaf} {
		z, ok := s.znodes.get(znodeKey(path))
		if !ok {
			s.addNode(path, &Znode{Null: true}, zx, 0)
		} else if o := z.Stat.EphemeralOwner; o != 0 { // somebody's odd directory: it must not go from above its children with a session
			kept := *z
			kept.Stat.EphemeralOwner = 0
			s.znodes.put(znodeKey(path), &kept)
			s.ephemerals.del(ephemeralKey(o, path))
		}
	}
}

// ValidGroupID reports why a group id cannot be stored and shown as a znode name, or "".
func ValidGroupID(g string) string {
	if g == "" {
		return "group id is empty"
	}
	if strings.Contains(g, "/") {
		return "group id has a '/'"
	}
	return ValidPath("/consumers/" + g)
}

// commitOffsets stores what a member or anybody else commits, if it may. An item of a topic that is gone, or is another one now, is
// refused in its part; the others are stored.
func (s *State) commitOffsets(c *statepb.CommitOffsets) *statepb.Result {
	g, known := s.groups.get(c.Group)
	if !known {
		if why := ValidGroupID(c.Group); why != "" {
			return s.refuse(statepb.Code_INVALID, "%s", why)
		}
	}
	for i, it := range c.Items {
		if i > 0 && it.Topic == c.Items[i-1].Topic && it.Partition >= 0 {
			continue
		}
		if why := ValidTopicName(it.Topic); why != "" || it.Partition < 0 {
			return s.refuse(statepb.Code_INVALID, "offset of %q-%d: %s", it.Topic, it.Partition, why)
		}
	}
	mixed := known && s.mixes(g)
	if r := s.checkCommit(g, mixed, c); r != nil {
		return r
	}
	res := &statepb.Result{Parts: s.unknownTopics(c.Items)}
	if mixed {
		res.Parts = worse(res.Parts, s.mixedParts(g, c))
	}
	res.Parts = worse(res.Parts, s.lateParts(c))
	res.Parts = worse(res.Parts, s.writtenSince(c))
	origin := FromKafka
	if c.From == statepb.OffsetOrigin_ORIGIN_ZNODE {
		origin = FromZnode
	}
	zx := s.zxid()
	res.Zxid = int64(zx)
	rows := make([]Offset, len(c.Items)) // one allocation: they are replaced together by the next commit
	var run []*Offset
	for i, it := range c.Items {
		if res.Parts != nil && res.Parts[i].Code != statepb.Code_OK {
			continue
		}
		rows[i] = Offset{
			Partition: it.Partition, Offset: id.Offset(it.Offset), LeaderEpoch: id.LeaderEpoch(it.LeaderEpoch), Metadata: it.Metadata,
			RetentionMs: it.RetentionMs, Origin: origin, By: c.By, Since: uint64(s.index),
		}
		run = append(run, &rows[i])
		if next := i + 1; next < len(c.Items) && c.Items[next].Topic == it.Topic && c.Items[next].Partition/offsetChunk == it.Partition/offsetChunk {
			continue
		}
		s.putOffsets(c.Group, it.Topic, run, zx)
		run = run[:0]
	}
	return res
}

// writtenSince judges a repeated commit: an offset that was written after its committer asked first is as the repeat wants it, or newer.
func (s *State) writtenSince(c *statepb.CommitOffsets) (parts []*statepb.Result) {
	if c.NotSince == 0 {
		return nil
	}
	for i, it := range c.Items {
		o, ok := s.offset(c.Group, it.Topic, it.Partition)
		if !ok || int64(o.Mzxid) <= c.NotSince {
			continue
		}
		parts = refusePart(parts, len(c.Items), i, s.refuse(statepb.Code_OFFSET_STALE, "%s-%d was committed since", it.Topic, it.Partition))
	}
	return parts
}

// refusePart refuses one of the n parts of a commit, which are nil as long as all are taken.
func refusePart(parts []*statepb.Result, n, i int, why *statepb.Result) []*statepb.Result {
	if parts == nil {
		parts = make([]*statepb.Result, n)
		for j := range parts {
			parts[j] = &statepb.Result{}
		}
	}
	parts[i] = why
	return parts
}

// unknownTopics gives each item a part if one of them is of a topic that is gone or was made again; nil: all are as the committer
// saw them.
func (s *State) unknownTopics(items []*statepb.OffsetItem) (parts []*statepb.Result) {
	for i, it := range items {
		if len(it.TopicId) == 0 {
			continue
		}
		if t, ok := s.topics.get(it.Topic); ok && string(it.TopicId) == string(t.ID[:]) {
			continue
		}
		parts = refusePart(parts, len(items), i, s.refuse(statepb.Code_UNKNOWN_TOPIC, "topic %s was deleted", it.Topic))
	}
	return parts
}

// expireOffsets removes offsets that the coordinator found to be past their time, if no member came and they were not committed
// since. Directories that only commits have made go with the last offset, and a group that had nothing else.
func (s *State) expireOffsets(c *statepb.ExpireOffsets) *statepb.Result {
	g, ok := s.groups.get(c.Group)
	if !ok || g.Version != c.GroupVersion {
		return s.refuse(statepb.Code_STALE, "group %s has changed", c.Group)
	}
	zx := s.zxid()
	dropped := int64(0)
	for _, it := range c.Items {
		if o, ok := s.offset(c.Group, it.Topic, it.Partition); ok && int64(o.Mzxid) == it.Mzxid {
			s.dropOffset(c.Group, it.Topic, it.Partition, zx)
			s.removeEmptyDir("/consumers/"+c.Group+"/offsets/"+it.Topic, zx)
			dropped++
		}
	}
	s.removeEmptyDir("/consumers/"+c.Group+"/offsets", zx)
	s.removeEmptyDir("/consumers/"+c.Group, zx)
	return &statepb.Result{Zxid: int64(zx), Value: dropped}
}

func (s *State) deleteOffsets(c *statepb.DeleteOffsets) *statepb.Result {
	if g, ok := s.groups.get(c.Group); c.GroupVersion != 0 && (!ok || g.Version != c.GroupVersion) {
		return s.refuse(statepb.Code_STALE, "group %s has changed", c.Group)
	}
	zx := s.zxid()
	if len(c.Items) > 0 {
		for _, it := range c.Items {
			s.dropOffset(c.Group, it.Topic, it.Partition, zx)
		}
		return &statepb.Result{Zxid: int64(zx)}
	}
	keys, _ := s.offsets.collect(keyName(c.Group))
	prefix := len(c.Group) + 1
	for _, k := range keys {
		s.dropOffsets(c.Group, k[prefix:len(k)-5], zx)
	}
	return &statepb.Result{Zxid: int64(zx)}
}

// ---- the znode face ----

func parseOffset(data []byte) (id.Offset, bool) {
	n, err := strconv.ParseInt(string(data), 10, 64)
	return id.Offset(n), err == nil
}

func offsetStat(o *Offset) *statepb.Stat {
	return &statepb.Stat{
		Czxid: int64(o.Czxid), Mzxid: int64(o.Mzxid), Pzxid: int64(o.Czxid), Ctime: o.Ctime, Mtime: o.Mtime, Version: o.Version,
		DataLength: int32(len(strconv.FormatInt(int64(o.Offset), 10))),
	}
}

func (s *State) createOffsetZnode(session int64, p Path, c *statepb.CreateZnode) *statepb.Result {
	n, ok := parseOffset(c.Data)
	if !ok || c.Ephemeral || c.Sequential {
		return s.refuse(statepb.Code_INVALID, "%s holds an offset: a persistent node with a decimal number", c.Path)
	}
	return s.writeOffsetZnode(session, p, n, c.Path)
}

func (s *State) setOffsetZnode(session int64, p Path, c *statepb.SetZnode) *statepb.Result {
	old, ok := s.offset(p.Group, p.Topic, p.Partition)
	n, isNumber := parseOffset(c.Data)
	switch {
	case !ok:
		return s.refuse(statepb.Code_NO_NODE, "%s does not exist", c.Path)
	case c.Version != -1 && old.Version != c.Version:
		return s.refuse(statepb.Code_BAD_VERSION, "%s is at version %d", c.Path, old.Version)
	case !isNumber:
		return s.refuse(statepb.Code_INVALID, "%s holds an offset: %q is no decimal number", c.Path, c.Data)
	}
	return s.writeOffsetZnode(session, p, n, c.Path)
}

func (s *State) writeOffsetZnode(session int64, p Path, n id.Offset, path string) *statepb.Result {
	by, _ := s.memberOf(session, p.Group) // "" is a tool
	if old, late := s.lateWrite(session, by, p); late {
		return &statepb.Result{Zxid: int64(s.meta.ZXID), Path: path, Stat: offsetStat(old),
			Text: fmt.Sprintf("%s: %s has lost the partition and others have committed since: not applied", path, by)}
	}
	zx := s.zxid()
	o := &Offset{Partition: p.Partition, Offset: n, LeaderEpoch: -1, RetentionMs: -1, Origin: FromZnode, By: by, Since: uint64(s.index)}
	s.putOffset(p.Group, p.Topic, o, zx)
	return &statepb.Result{Zxid: int64(zx), Path: path, Stat: offsetStat(o)}
}

func (s *State) deleteOffsetZnode(p Path, version int32) *statepb.Result {
	old, ok := s.offset(p.Group, p.Topic, p.Partition)
	switch {
	case !ok:
		return s.refuse(statepb.Code_NO_NODE, "no offset of %s for %s-%d", p.Group, p.Topic, p.Partition)
	case version != -1 && old.Version != version:
		return s.refuse(statepb.Code_BAD_VERSION, "the offset is at version %d", old.Version)
	case s.hasClassicMembers(p):
		return s.refuse(statepb.Code_NOT_EMPTY, "group %s has members that are no znodes: stop them before its offsets are deleted", p.Group)
	}
	zx := s.zxid()
	s.dropOffset(p.Group, p.Topic, p.Partition, zx)
	return &statepb.Result{Zxid: int64(zx)}
}
