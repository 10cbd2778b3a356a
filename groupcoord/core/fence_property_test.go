package core

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// readers is who fetches in the town, and what the one broker tells of it.
type readers struct {
	p     *park
	conns []*readerConn
	hw    map[id.TopicPartition]id.Offset
	end   map[id.TopicPartition]id.Offset // what connections that nobody knows any more may have got
}

type readerConn struct {
	Fetcher
	of   string // member; "": a simple consumer's
	last map[id.TopicPartition]time.Duration
	end  map[id.TopicPartition]id.Offset // high watermark when it closed
	lag  time.Duration                   // of the report, while it goes on
}

func (r *readers) close(c *readerConn) {
	if c.Closed {
		return
	}
	c.Closed = true
	for tp := range c.last {
		c.end[tp] = r.hw[tp]
	}
}

// leads begins a leadership: what closed before is forgotten.
func (r *readers) leads(tp id.TopicPartition) {
	r.end[tp] = r.hw[tp]
	for _, c := range r.conns {
		if c.Closed {
			delete(c.last, tp)
		}
	}
}

// tell is a broker's registry as reports bring it: of what goes on the last fetch may have been later, by less than a refresh; of what is
// closed the newest of each client id and host is told, and of more than two only how far the others may have got.
func (r *readers) tell(tp id.TopicPartition) (out []Fetcher) {
	newest := map[[2]string]id.Offset{}
	for _, c := range r.conns {
		at, ok := c.last[tp]
		if !ok {
			continue
		}
		if c.Closed {
			k := [2]string{c.ClientID, c.Host}
			newest[k] = max(newest[k], c.end[tp])
			continue
		}
		x := c.Fetcher
		if x.Idle = r.p.now - at; x.Idle <= 2*time.Second {
			x.Idle += c.lag
		}
		out = append(out, x)
	}
	others := r.end[tp]
	for _, k := range sortedKeys(newest) {
		if len(newest) > 2 {
			others = max(others, newest[k])
			delete(newest, k)
		}
	}
	for k, end := range newest {
		out = append(out, Fetcher{Broker: 1, Epoch: 1, ClientID: k[0], Host: k[1], Closed: true, End: end})
	}
	return append(out, Fetcher{Broker: 1, Epoch: 1, Closed: true, End: others})
}

func sortedKeys[V any](m map[[2]string]V) [][2]string {
	return slices.SortedFunc(maps.Keys(m), func(a, b [2]string) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
}

// A fence cuts off a connection of the member that expired and nobody else's, whatever client ids its machine's readers share, however they
// come and go, and whatever the brokers forget.
func TestFencesCutNobodyElse(t *testing.T) {
	cut := 0
	rapid.Check(t, func(rt *rapid.T) {
		p := newPark(t)
		r := &readers{p: p, hw: map[id.TopicPartition]id.Offset{}, end: map[id.TopicPartition]id.Offset{}}
		p.mind.cfg.Fetching, p.cfg.Fetching = r.tell, r.tell
		p.topic("t", 2)
		clients := rapid.SampledFrom([]string{"x", "y", "z", "w"})
		known := map[*readerConn]bool{}
		p.check = func() {
			p.s.View().Fences(func(f *state.Fence) bool {
				for _, c := range r.conns {
					if c.Conn == f.Conn && !known[c] {
						known[c] = true
						cut++
						if c.of != f.Member {
							rt.Fatalf("connection %+v of %q is cut off %s-%d as %s's", c.Fetcher, c.of, f.Topic, f.Partition, f.Member)
						}
					}
				}
				return true
			})
		}
		type process struct {
			*zkMember
			client  string
			fetched map[id.TopicPartition]id.ZXID // claim that it was fetched under
			next    map[id.TopicPartition]id.Offset
		}
		var procs []*process
		connect := func(of, client, host string) *readerConn {
			c := &readerConn{Fetcher: Fetcher{Broker: 1, Epoch: 1, Conn: uint64(len(r.conns) + 1), ClientID: client, Host: host}, of: of,
				last: map[id.TopicPartition]time.Duration{}, end: map[id.TopicPartition]id.Offset{}, lag: time.Duration(len(r.conns)*1700%5000) * time.Millisecond}
			r.conns = append(r.conns, c)
			return c
		}
		open := func(of string) (out []*readerConn) {
			for _, c := range r.conns {
				if !c.Closed && c.of == of {
					out = append(out, c)
				}
			}
			return out
		}
		one := func(rt *rapid.T) *process { // that lives
			var all []*process
			for _, m := range procs {
				if m.act != actGone && !m.expired {
					all = append(all, m)
				}
			}
			if len(all) == 0 {
				rt.Skip("nobody is there")
			}
			return rapid.SampledFrom(all).Draw(rt, "member")
		}
		owns := func(m *process) map[id.TopicPartition]id.ZXID {
			out := map[id.TopicPartition]id.ZXID{}
			for n := range int32(2) {
				if _, _, z := p.s.View().OwnerOf("g", "t", n); z != nil && z.Stat.EphemeralOwner == m.session {
					out[id.TopicPartition{Topic: "t", Partition: n}] = z.Stat.Czxid
				}
			}
			return out
		}
		some := func(rt *rapid.T) id.TopicPartition {
			return id.TopicPartition{Topic: "t", Partition: rapid.Int32Range(0, 1).Draw(rt, "partition")}
		}
		produce := func() {
			for n := range int32(2) {
				r.hw[id.TopicPartition{Topic: "t", Partition: n}] += 10
			}
		}
		fetch := func(rt *rapid.T, m *process) { // what it owns
			conns := open(m.name)
			if len(conns) == 0 || rapid.IntRange(0, 9).Draw(rt, "a new connection") == 0 {
				conns = []*readerConn{connect(m.name, m.client, "10.0.0.1")}
			}
			for tp, claim := range owns(m) {
				conns[0].last[tp], m.fetched[tp], m.next[tp] = p.now, claim, r.hw[tp]
			}
		}
		commit := func(rt *rapid.T, m *process) { // what it fetched
			kafka := rapid.Bool().Draw(rt, "to Kafka")
			for tp, claim := range owns(m) {
				if m.fetched[tp] != claim {
					continue
				}
				if kafka {
					p.apply(&pb.Command{Body: &pb.Command_CommitOffsets{CommitOffsets: &pb.CommitOffsets{Group: "g", Generation: -1, By: m.client + "@10.0.0.1",
						From: pb.OffsetOrigin_ORIGIN_KAFKA, Items: []*pb.OffsetItem{{Topic: tp.Topic, Partition: tp.Partition, Offset: int64(m.next[tp])}}}}})
					continue
				}
				p.apply(&pb.Command{Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: "/consumers/g/offsets/t", Null: true}}})
				path, data := fmt.Sprint("/consumers/g/offsets/t/", tp.Partition), []byte(fmt.Sprint(int64(m.next[tp])))
				if res := p.apply(&pb.Command{Origin: m.origin(), Body: &pb.Command_SetZnode{SetZnode: &pb.SetZnode{Path: path, Data: data, Version: -1}}}); res.Code == pb.Code_NO_NODE {
					p.apply(&pb.Command{Origin: m.origin(), Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: path, Data: data}}})
				}
			}
		}
		work := func(rt *rapid.T) {
			produce()
			for _, m := range procs {
				if m.act != actGone && !m.expired {
					fetch(rt, m)
					commit(rt, m)
				}
			}
		}
		start := func() *process {
			m := &process{zkMember: p.add(fmt.Sprintf("g_%03d", len(procs)), state.DialectJVM, "t:1"), client: "x",
				fetched: map[id.TopicPartition]id.ZXID{}, next: map[id.TopicPartition]id.Offset{}}
			procs = append(procs, m)
			m.start()
			p.pass(3 * time.Second)
			return m
		}
		rt.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) { p.check() },
			"start": func(rt *rapid.T) {
				m := start()
				if m.client = clients.Draw(rt, "client"); rapid.Bool().Draw(rt, "works") {
					produce()
					fetch(rt, m)
					commit(rt, m)
				}
			},
			"fetch":  func(rt *rapid.T) { fetch(rt, one(rt)) },
			"commit": func(rt *rapid.T) { commit(rt, one(rt)) },
			"reset": func(rt *rapid.T) { // by an operator, with a tool for either store
				tp := some(rt)
				p.apply(&pb.Command{Body: &pb.Command_CommitOffsets{CommitOffsets: &pb.CommitOffsets{Group: "g", Generation: -1, From: pb.OffsetOrigin_ORIGIN_KAFKA,
					By:    rapid.SampledFrom([]string{"", "x@10.0.0.2"}).Draw(rt, "by"),
					Items: []*pb.OffsetItem{{Topic: tp.Topic, Partition: tp.Partition, Offset: 1}}}}})
			},
			"all work": work,
			"read": func(rt *rapid.T) { // of a simple consumer
				conns := open("")
				if len(conns) == 0 || rapid.Bool().Draw(rt, "a new connection") {
					conns = []*readerConn{connect("", clients.Draw(rt, "client"), rapid.SampledFrom([]string{"10.0.0.1", "10.0.0.2"}).Draw(rt, "host"))}
				}
				rapid.SampledFrom(conns).Draw(rt, "connection").last[some(rt)] = p.now
			},
			"close": func(rt *rapid.T) {
				if len(r.conns) == 0 {
					rt.Skip("no connection")
				}
				r.close(rapid.SampledFrom(r.conns).Draw(rt, "connection"))
			},
			"freeze": func(rt *rapid.T) { // its connections stay
				m := one(rt)
				if rapid.Bool().Draw(rt, "beside another") {
					start()
					work(rt)
				}
				m.quit(true)
				m.paused = true
				p.pass(time.Duration(rapid.IntRange(0, 12).Draw(rt, "s")) * time.Second)
			},
			"die": func(rt *rapid.T) {
				m := one(rt)
				for _, c := range open(m.name) {
					r.close(c)
				}
				p.pass(time.Duration(rapid.IntRange(0, 6).Draw(rt, "s")) * time.Second)
				m.quit(true)
				m.paused = true
			},
			"stop": func(rt *rapid.T) { one(rt).quit(false) },
			"pass": func(rt *rapid.T) {
				p.pass(time.Duration(rapid.IntRange(1, 100).Draw(rt, "100 ms")) * 100 * time.Millisecond)
			},
			"fail over": func(rt *rapid.T) {
				if rapid.IntRange(0, 2).Draw(rt, "really") == 0 {
					p.failover()
				}
			},
			"restart the broker": func(rt *rapid.T) { // nobody is connected, and nobody knows who was
				if rapid.IntRange(0, 2).Draw(rt, "really") > 0 {
					return
				}
				for _, c := range r.conns {
					r.close(c)
				}
				for n := range int32(2) {
					r.leads(id.TopicPartition{Topic: "t", Partition: n})
				}
			},
			"lead anew": func(rt *rapid.T) { r.leads(some(rt)) },
			"produce":   func(rt *rapid.T) { produce() },
		})
	})
	if cut == 0 && !testing.Short() {
		t.Error("nobody was cut off")
	}
	t.Logf("%d connections were cut off", cut)
}

// Which connection is an expired member's, of those that the brokers tell.
func TestReaderOf(t *testing.T) {
	const host = "10.0.0.1"
	x := func(conn uint64, client string, idle time.Duration) Fetcher {
		return Fetcher{Broker: 1, Epoch: 1, Conn: conn, ClientID: client, Host: host, Idle: idle}
	}
	closed := func(client string, end id.Offset) Fetcher {
		return Fetcher{Broker: 1, Epoch: 1, Conn: 99, ClientID: client, Host: host, Closed: true, End: end}
	}
	others := Fetcher{Broker: 1, Epoch: 1, Closed: true}
	for name, c := range map[string]struct {
		byZnode, before, failover bool // committed by a znode; before the claim; by an earlier coordinator's time
		tells                     []Fetcher
		want                      uint64
	}{
		"the only one":                       {tells: []Fetcher{others, x(7, "mine", 0)}, want: 7},
		"it stands still":                    {tells: []Fetcher{others, x(7, "mine", 15*time.Second)}, want: 7},
		"by a znode":                         {byZnode: true, tells: []Fetcher{others, x(7, "mine", 0)}, want: 7},
		"it committed nothing":               {before: true, tells: []Fetcher{others, x(7, "mine", 0)}},
		"two under its client id":            {tells: []Fetcher{others, x(7, "mine", 0), x(8, "mine", 0)}},
		"another client id":                  {tells: []Fetcher{others, x(7, "mine", 0), x(8, "other", 0)}, want: 7},
		"another client id, by a znode":      {byZnode: true, tells: []Fetcher{others, x(7, "mine", 0), x(8, "other", 0)}},
		"another host, by a znode":           {byZnode: true, tells: []Fetcher{others, x(7, "mine", 0), {Broker: 1, Epoch: 1, Conn: 8, ClientID: "mine", Host: "10.0.0.2"}}},
		"another host":                       {tells: []Fetcher{others, x(7, "mine", 0), {Broker: 1, Epoch: 1, Conn: 8, ClientID: "mine", Host: "10.0.0.2"}}, want: 7},
		"one from before the claim":          {tells: []Fetcher{others, x(7, "mine", 0), x(8, "mine", time.Minute)}, want: 7},
		"the claim is older than the term":   {failover: true, tells: []Fetcher{others, x(7, "mine", 0), x(8, "mine", time.Minute)}},
		"only one, older than the term":      {failover: true, tells: []Fetcher{others, x(7, "mine", time.Minute)}, want: 7},
		"one closed that got the record":     {tells: []Fetcher{others, x(7, "mine", 0), closed("mine", 10)}},
		"one closed before the record":       {tells: []Fetcher{others, x(7, "mine", 0), closed("mine", 9)}, want: 7},
		"closed of another client id":        {tells: []Fetcher{others, x(7, "mine", 0), closed("other", 10)}, want: 7},
		"forgotten ones that got the record": {tells: []Fetcher{{Broker: 1, Closed: true, End: 10}, x(7, "mine", 0)}},
		"forgotten ones before the record":   {tells: []Fetcher{{Broker: 1, Closed: true, End: 9}, x(7, "mine", 0)}, want: 7},
		"the leader has told nothing":        {tells: []Fetcher{x(7, "mine", 0)}},
		"only another broker has told":       {tells: []Fetcher{{Broker: 2, Closed: true}, x(7, "mine", 0)}},
		"one at a former leader":             {tells: []Fetcher{others, x(7, "mine", 0), {Broker: 2, Epoch: 2, Conn: 8, ClientID: "mine", Host: host}}, want: 7},
		"it is closed itself":                {tells: []Fetcher{others, closed("mine", 10)}, want: 99}, // and so nobody is cut off
	} {
		t.Run(name, func(t *testing.T) {
			p := twoMembers(t)
			p.mind.cfg.Fetching = func(id.TopicPartition) []Fetcher { return c.tells }
			p.cfg.Fetching = p.mind.cfg.Fetching
			commit := func() {
				if c.byZnode {
					p.tell(parse("write a of=t/0 offset=10"))
				} else {
					p.tell(parse("commit of=t/0 offset=10 by=mine@" + host))
				}
			}
			if c.before {
				commit()
			}
			p.tell(parse("claim a of=t/0"))
			if !c.before {
				commit()
			}
			p.pass(20 * time.Second)
			if c.failover {
				p.failover()
				p.pass(5 * time.Second)
			}
			p.tell(parse("expire a"))
			mind := p.mind
			g := mind.legacyGroup("g")
			row, _ := p.s.View().Legacy("g")
			var got uint64
			if f := mind.readerOf(g, row.Reservation("t", 0), id.TopicPartition{Topic: "t"}, c.tells); f != nil {
				got = f.Conn
			}
			if got != c.want {
				t.Errorf("connection %d, want %d", got, c.want)
			}
		})
	}
}
