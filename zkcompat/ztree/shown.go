package ztree

import (
	"strings"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// What a member of a group is shown of its group and its topics is the published generation (state.Legacy), not the raw tree: all
// members compute their partitions from the same input, and learn of a change when it is complete. Everybody else sees the raw tree.
// A member's own registration it sees as it wrote it.

// Gated tells whether o is shown the node at path by a generation, and which change brought that one about: what happens to the raw
// node meanwhile is no event for o.
func (v View) Gated(path string, o Observer) (since id.ZXID, gated bool) {
	g := v.generation(path, o)
	if g == nil {
		return 0, false
	}
	return g.Zxid, true
}

// Unlimited tells whether o may read as fast as it likes: the load gate of a group that it is in is off.
func (v View) Unlimited(o Observer) bool {
	unlimited := false
	v.s.GroupsOf(o.Session, func(group string) bool {
		unlimited = !v.s.GateOn(group, state.GateLoad)
		return !unlimited
	})
	return unlimited
}

// Listing returns the generation by which o is given the names below path, when those are the members of a group; else nil.
func (v View) Listing(path string, o Observer) *state.Legacy {
	if !strings.HasPrefix(path, groupsDir) || !strings.HasSuffix(path, "/ids") {
		return nil
	}
	return v.generation(path, o)
}

// generation returns what o is shown path by, nil for the raw tree.
func (v View) generation(path string, o Observer) *state.Legacy {
	if o.Session == 0 {
		return nil
	}
	if rest, ok := strings.CutPrefix(path, groupsDir); ok {
		group, rest, _ := strings.Cut(rest, "/")
		if rest == "ids" {
			return v.s.Generation(o.Session, group)
		}
		member, ok := strings.CutPrefix(rest, "ids/")
		if !ok || strings.Contains(member, "/") {
			return nil
		}
		if own, ok := v.s.MemberOf(o.Session, group); !ok || own == member {
			return nil
		}
		return v.s.Generation(o.Session, group)
	}
	rest, ok := strings.CutPrefix(path, "/brokers/topics")
	if !ok {
		return nil
	}
	var found *state.Legacy // of the groups of a session, the first one that tells of the topic
	v.s.GroupsOf(o.Session, func(group string) bool {
		if g := v.s.Generation(o.Session, group); g != nil && tellsOfTopics(g, rest) {
			found = g
		}
		return found == nil
	})
	return found
}

// tellsOfTopics reports whether a generation says what there is at a path below /brokers/topics.
func tellsOfTopics(g *state.Legacy, rest string) bool {
	switch {
	case rest == "":
		return g.AllTopics
	case rest[0] != '/':
		return false
	}
	name, _, depth := topicPath(rest[1:])
	_, told := g.Topic(name)
	return told && (depth == 0 || depth == 1)
}

// shownNode is Node for a member of g.
func (v View) shownNode(path string, g *state.Legacy, o Observer) (Node, bool) {
	switch {
	case strings.HasPrefix(path, groupsDir):
		parent, name := state.SplitPath(path)
		if name == "ids" && !strings.HasSuffix(parent, "/ids") {
			z, ok := v.s.Znode(path)
			if !ok {
				return Node{}, false
			}
			n := v.stored(path, z)
			n.Stat = stat(&g.IDs, len(n.Data))
			n.Stat.NumChildren = int32(len(v.shownIDs(g, o, nil)))
			return n, true
		}
		m := g.Shows(name)
		if m == nil && o.Listed != nil && o.Listed.Group == g.Group {
			m = o.Listed.Shows(name)
		}
		if m != nil {
			return v.stored(path, &m.Node), true
		}
		return Node{}, false
	case path == "/brokers/topics":
		z, ok := v.s.Znode(path)
		if !ok {
			return Node{}, false
		}
		n := v.stored(path, z)
		n.Stat.Pzxid, n.Stat.NumChildren = int64(g.AllZxid), int32(len(v.shownTopics(g, nil)))
		return n, true
	}
	name, _, depth := topicPath(path[len(topicsDir):])
	st, _ := g.Topic(name)
	t, ok := v.s.Topic(name)
	switch {
	case !ok || st.Partitions == 0 || t.ID != st.ID:
		return Node{}, false
	case t.Partitions == st.Partitions:
		return v.topic(path[len(topicsDir):])
	case depth == 1:
		s := partitionsStat(t)
		s.NumChildren, s.Cversion, s.Pzxid = st.Partitions, st.Partitions, min(s.Pzxid, int64(g.Zxid))
		return Node{Stat: s}, true
	}
	data := v.topicJSON(t, st.Partitions)
	s := stat(&t.Stat, len(data))
	s.Mzxid = min(s.Mzxid, int64(g.Zxid))
	return Node{Data: data, Stat: s}, true
}

func (v View) shownIDs(g *state.Legacy, o Observer, names []string) []string {
	for _, m := range g.Members {
		names = append(names, m.ID)
	}
	if own, ok := v.s.MemberOf(o.Session, g.Group); ok && g.Shows(own) == nil {
		names = append(names, own) // not let in yet, or never: to itself it is there
	}
	return names
}

func (v View) shownTopics(g *state.Legacy, names []string) []string {
	for _, t := range g.All {
		if _, ok := v.s.Topic(t); ok {
			names = append(names, t)
		}
	}
	return names
}

// shownChildren is Children for a member of g.
func (v View) shownChildren(path string, g *state.Legacy, o Observer, names []string) ([]string, Stat, bool) {
	n, ok := v.shownNode(path, g, o)
	if !ok {
		return names, Stat{}, false
	}
	switch {
	case path == "/brokers/topics":
		names = v.shownTopics(g, names)
	case strings.HasPrefix(path, topicsDir):
		names = appendBelowTopic(path[len(topicsDir):], n.Stat.NumChildren, names)
	case strings.HasSuffix(path, "/ids") && state.ParsePath(path).Kind == state.PathGroupDir:
		names = v.shownIDs(g, o, names)
	}
	return names, n.Stat, true
}

// left reports the session whose membership a deletion ended.
func left(c *state.Change) (id.SessionID, bool) {
	return c.Session, c.Session != 0 && strings.HasPrefix(c.Path, groupsDir) && state.ParsePath(c.Path).Kind == state.PathMember
}
