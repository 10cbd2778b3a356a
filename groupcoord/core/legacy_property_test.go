package core

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// Whatever members, sessions, the coordinator and the clock do: no partition has two owners that live, nothing is held beyond its
// bound, members' views are whole, and when all is calm every partition is owned as the members compute it.
func TestLegacyProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := newPark(t)
		p.check = func() { p.checkOwners(rt); p.checkBounds(rt) }
		p.topic("t", rapid.IntRange(1, 7).Draw(rt, "partitions of t"))
		p.topic("u", rapid.IntRange(1, 4).Draw(rt, "partitions of u"))
		dialect := rapid.SampledFrom([]state.Dialect{state.DialectJVM, state.DialectJVM, state.DialectKafkaNode, state.DialectPykafka}).Draw(rt, "dialect")
		topics := []string{"t:1"}
		if dialect == state.DialectJVM {
			topics = []string{"t:1", "t:2,u:1", "~t|u|v"}
		}
		topicOf := rapid.SampledFrom(topics)
		live := func() (out []*zkMember) {
			for _, m := range p.members {
				if m.act != actGone && m.act != actIdle {
					out = append(out, m)
				}
			}
			return out
		}
		pick := func(rt *rapid.T) *zkMember {
			all := live()
			if len(all) == 0 {
				rt.Skip("nobody is there")
			}
			return rapid.SampledFrom(all).Draw(rt, "member")
		}
		rt.Repeat(map[string]func(*rapid.T){
			"": func(rt *rapid.T) { p.check() },
			"start": func(rt *rapid.T) {
				if len(live()) > 6 {
					rt.Skip("enough")
				}
				m := p.add(fmt.Sprintf("g_%c%d", 'a'+rune(rapid.IntRange(0, 25).Draw(rt, "name")), len(p.members)), dialect, topicOf.Draw(rt, "topics"))
				m.start()
			},
			"step": func(rt *rapid.T) {
				pick(rt).step()
			},
			"run": func(rt *rapid.T) { p.run() },
			"pass": func(rt *rapid.T) {
				p.pass(time.Duration(rapid.IntRange(1, 60).Draw(rt, "50 ms")) * 50 * time.Millisecond)
			},
			"tick": func(rt *rapid.T) {
				p.advance(time.Duration(rapid.IntRange(1, 400).Draw(rt, "ms")) * time.Millisecond)
			},
			"pause":  func(rt *rapid.T) { pick(rt).paused = true },
			"resume": func(rt *rapid.T) { pick(rt).paused = false },
			"stop": func(rt *rapid.T) {
				if m := pick(rt); !m.expired {
					m.quit(false)
				}
			},
			"expire": func(rt *rapid.T) {
				if m := pick(rt); !m.expired {
					m.quit(true)
				}
			},
			"grow": func(rt *rapid.T) {
				t, _ := p.s.View().Topic("t")
				p.topic("t", int(t.Partitions)+1)
			},
			"create": func(rt *rapid.T) {
				if _, ok := p.s.View().Topic("v"); ok {
					rt.Skip("there is one")
				}
				p.topic("v", 2)
			},
			"failover": func(rt *rapid.T) { p.failover() },
		})
		for _, m := range p.members {
			m.paused = false
		}
		p.pass(45 * time.Second)
		p.checkCalm(rt)
	})
}

// checkOwners: no two live sessions believe that they have a partition, and each owner znode is of the member that believes so.
func (p *park) checkOwners(rt *rapid.T) {
	who := map[id.TopicPartition]string{}
	for _, m := range p.members {
		if m.expired || m.act == actGone {
			continue
		}
		for _, tp := range m.owned {
			if other, taken := who[tp]; taken {
				rt.Fatalf("%v has two owners: %s and %s\n%s", tp, other, m.name, p.out.String())
			}
			who[tp] = m.name
		}
	}
}

// checkBounds: nothing waits longer than its bound, however many coordinators held it; the last one may need a moment to know.
func (p *park) checkBounds(rt *rapid.T) {
	for r, req := range p.open {
		bound := claimBound
		if req.Command.GetClaimOwner() == nil && req.Command.GetAwaitOffsets() == nil {
			bound = joinBound
		}
		if req.Waited > 0 {
			bound = max(bound, req.Waited+reportsBegin)
		}
		if waited := req.Waited + p.now - p.asked[r]; waited > bound+time.Second {
			rt.Fatalf("%s has waited for %s: %v\n%s", p.names[r], waited, req.Command, p.out.String())
		}
	}
}

// checkCalm: everybody is steady, in one complete generation, and all is owned.
func (p *park) checkCalm(rt *rapid.T) {
	g, _ := p.s.View().Legacy("g")
	want := map[id.TopicPartition]string{}
	for _, m := range p.members {
		if m.act == actGone || m.act == actIdle {
			continue
		}
		if m.act != actSteady || m.pending || m.expired {
			rt.Fatalf("%s is %d, pending %v, expired %v, tries %d, waits for %v\n%s", m.name, m.act, m.pending, m.expired, m.tries, p.open[m.asked], p.out.String())
		}
		mine, ok := m.assignment()
		if !ok {
			rt.Fatalf("%s cannot compute its partitions", m.name)
		}
		for _, tp := range mine {
			if want[tp] != "" {
				rt.Fatalf("%s and %s compute %v", m.name, want[tp], tp)
			}
			want[tp] = m.name
		}
		if len(mine) != len(m.owned) {
			rt.Fatalf("%s owns %v, computes %v\n%s", m.name, m.owned, mine, p.out.String())
		}
	}
	if g != nil && !g.Complete {
		rt.Fatalf("generation %d is not complete\n%s", g.Number, p.out.String())
	}
	if g != nil {
		raw := 0
		p.s.View().Members("g", func(string, *state.Znode) bool { raw++; return true })
		if raw != len(g.Members) {
			rt.Fatalf("%d members, %d are shown\n%s", raw, len(g.Members), p.out.String())
		}
		for _, t := range g.Topics {
			row, ok := p.s.View().Topic(t.Name)
			if ok && row.Partitions != t.Partitions {
				rt.Fatalf("%s has %d partitions, %d are shown", t.Name, row.Partitions, t.Partitions)
			}
		}
	}
}
