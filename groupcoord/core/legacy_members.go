package core

import (
	"fmt"
	"strings"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// Registrations are read once for each version of their node, and kept: of the members that are there (regs), of those that came since they
// were looked at last (fresh), and of those that the generation shows (published).

// parsed is a registration as it was read at a version of its node.
type parsed struct {
	mzxid id.ZXID
	owner int64
	reg   state.Registration
	key   string // equal for registrations that mean the same
	line  string // of the digest of what members compute with
	ok    bool   // it can be read
}

// legacyWork counts what groups cost, for the tests of scale.
type legacyWork struct {
	parsed int // registrations read
	looked int // looks at requests that wait
}

// parse reads a registration.
func (c *Coordinator) parse(memberID string, data []byte) parsed {
	c.legacy.work.parsed++
	p := parsed{}
	if p.reg, p.ok = state.ParseRegistration(data); p.ok {
		p.key = p.reg.Key()
		p.line = fmt.Sprintf("%q %s\n", memberID, p.key)
	}
	return p
}

// registration is a member's as its node has it now.
func (c *Coordinator) registration(g *legacyGroup, memberID string, z *state.Znode) parsed {
	for _, known := range []map[string]parsed{g.regs, g.fresh} {
		if p, ok := known[memberID]; ok && p.mzxid == z.Stat.Mzxid {
			return p
		}
	}
	p := c.parse(memberID, z.Data)
	p.mzxid, p.owner = z.Stat.Mzxid, z.Stat.EphemeralOwner
	g.fresh[memberID] = p
	return p
}

// registrationIn is registration for a group that may have no memory: then it is read anew.
func (c *Coordinator) registrationIn(group, memberID string, z *state.Znode) parsed {
	if g := c.legacy.groups[group]; g != nil {
		return c.registration(g, memberID, z)
	}
	return c.parse(memberID, z.Data)
}

// shownIn is a registration as the group's generation shows it.
func (c *Coordinator) shownIn(group string, m *state.Shown) parsed {
	if g := c.legacy.groups[group]; g != nil {
		if p, ok := g.published[m.ID]; ok && p.mzxid == m.Node.Stat.Mzxid {
			return p
		}
	}
	return c.parse(m.ID, m.Node.Data)
}

// readPublished reads what a generation shows, as far as it is not known from the members themselves or from the generation before.
func (c *Coordinator) readPublished(g *legacyGroup, row *state.Legacy) {
	before := g.published
	g.published = map[string]parsed{}
	if row == nil {
		return
	}
	for _, m := range row.Members {
		p, ok := before[m.ID]
		if !ok || p.mzxid != m.Node.Stat.Mzxid {
			p = c.registration(g, m.ID, &m.Node)
		}
		if m.Pool {
			delete(g.fresh, m.ID)
			var topics []string
			for _, t := range p.reg.Topics {
				topics = append(topics, t.Topic)
			}
			p.line = poolLine(m.ID, topics)
		}
		g.published[m.ID] = p
	}
}

// poolLine and topicLine are the other lines of the digest of what members compute with; topics in order.
func poolLine(memberID string, topics []string) string {
	return fmt.Sprintf("%q pool %q\n", memberID, topics)
}

func topicLine(t state.ShownTopic) string {
	return fmt.Sprintf("%s %x %d\n", t.Name, t.ID, t.Partitions)
}

// shownKey is what the published registration of a member means, "" when there is none.
func (g *legacyGroup) shownKey(memberID string) string {
	if g.row.Shows(memberID) == nil {
		return ""
	}
	return g.published[memberID].key
}

// shownDigest is wantedDigest of what is published.
func (c *Coordinator) shownDigest(g *legacyGroup) string {
	if g.row == nil || g.row.Number == 0 || g.row.Withdrawn {
		return ""
	}
	var b, pool strings.Builder
	for _, m := range g.row.Members {
		if m.Pool {
			pool.WriteString(g.published[m.ID].line)
		} else {
			b.WriteString(g.published[m.ID].line)
		}
	}
	b.WriteString(pool.String())
	for _, t := range g.row.Topics {
		b.WriteString(topicLine(t))
	}
	if g.row.AllTopics {
		for _, t := range g.row.All {
			b.WriteString("+" + t)
		}
	}
	return b.String()
}
