package core

import (
	"fmt"
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
}

type readerConn struct {
	Fetcher
	of   string // member; "": a simple consumer's
	last map[id.TopicPartition]time.Duration
	lag  time.Duration // of the report, while it goes on
}

// tell is a broker's registry as reports bring it: of what goes on the last fetch may have been later, by less than a refresh; of what is
// closed the newest of each client id and host is told, and when those are more than two, one for the others.
func (r *readers) tell(tp id.TopicPartition) (out []Fetcher) {
	last := map[[2]string]*readerConn{}
	others := time.Duration(-1)
	for _, c := range r.conns {
		at, ok := c.last[tp]
		if !ok {
			continue
		}
		if !c.Closed {
			x := c.Fetcher
			if x.Idle = r.p.now - at; x.Idle <= 2*time.Second {
				x.Idle += c.lag
			}
			out = append(out, x)
			continue
		}
		k := [2]string{c.ClientID, c.Host}
		if known := last[k]; known == nil || known.last[tp] < at {
			last[k] = c
		}
	}
	for len(last) > 2 {
		var old [2]string
		for k, c := range last {
			if o := last[old]; o == nil || c.last[tp] < o.last[tp] || c.last[tp] == o.last[tp] && c.Conn < o.Conn {
				old = k
			}
		}
		others = max(others, last[old].last[tp])
		delete(last, old)
	}
	for _, c := range last {
		x := c.Fetcher
		x.Idle = r.p.now - c.last[tp]
		out = append(out, x)
	}
	if others >= 0 {
		out = append(out, Fetcher{Broker: 1, Epoch: 1, Idle: r.p.now - others, Closed: true})
	}
	return out
}

// A fence cuts off a connection of the member that expired and nobody else's, whatever client ids its machine's readers share, however they
// come and go, and whatever the brokers forget by restarting.
func TestFencesCutNobodyElse(t *testing.T) {
	cut := 0
	rapid.Check(t, func(rt *rapid.T) {
		p := newPark(t)
		r := &readers{p: p}
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
		}
		var procs []*process
		connect := func(of, client, host string) *readerConn {
			c := &readerConn{Fetcher: Fetcher{Broker: 1, Epoch: 1, Conn: uint64(len(r.conns) + 1), ClientID: client, Host: host}, of: of,
				last: map[id.TopicPartition]time.Duration{}, lag: time.Duration(len(r.conns)*1700%5000) * time.Millisecond}
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
		fetch := func(rt *rapid.T, m *process) { // what it owns
			conns := open(m.name)
			if len(conns) == 0 || rapid.IntRange(0, 9).Draw(rt, "a new connection") == 0 {
				conns = []*readerConn{connect(m.name, m.client, "10.0.0.1")}
			}
			for tp, claim := range owns(m) {
				conns[0].last[tp], m.fetched[tp] = p.now, claim
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
						From: pb.OffsetOrigin_ORIGIN_KAFKA, Items: []*pb.OffsetItem{{Topic: tp.Topic, Partition: tp.Partition, Offset: int64(p.now)}}}}})
					continue
				}
				p.apply(&pb.Command{Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: "/consumers/g/offsets/t", Null: true}}})
				path, data := fmt.Sprint("/consumers/g/offsets/t/", tp.Partition), []byte(fmt.Sprint(int64(p.now)))
				if res := p.apply(&pb.Command{Origin: m.origin(), Body: &pb.Command_SetZnode{SetZnode: &pb.SetZnode{Path: path, Data: data, Version: -1}}}); res.Code == pb.Code_NO_NODE {
					p.apply(&pb.Command{Origin: m.origin(), Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: path, Data: data}}})
				}
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) { p.check() },
			"start": func(rt *rapid.T) {
				m := &process{zkMember: p.add(fmt.Sprintf("g_%03d", len(procs)), state.DialectJVM, "t:1"), client: clients.Draw(rt, "client"),
					fetched: map[id.TopicPartition]id.ZXID{}}
				procs = append(procs, m)
				m.start()
				p.pass(3 * time.Second)
				if rapid.Bool().Draw(rt, "works") {
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
			"all work": func(rt *rapid.T) {
				for _, m := range procs {
					if m.act != actGone && !m.expired {
						fetch(rt, m)
						commit(rt, m)
					}
				}
			},
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
				rapid.SampledFrom(r.conns).Draw(rt, "connection").Closed = true
			},
			"freeze": func(rt *rapid.T) { // its connections stay
				m := one(rt)
				m.quit(true)
				m.paused = true
				p.pass(time.Duration(rapid.IntRange(0, 12).Draw(rt, "s")) * time.Second)
			},
			"die": func(rt *rapid.T) {
				m := one(rt)
				for _, c := range open(m.name) {
					c.Closed = true
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
			"restart the broker": func(rt *rapid.T) {
				if rapid.IntRange(0, 2).Draw(rt, "really") > 0 {
					return
				}
				r.conns = append(r.conns, nil)
				n := len(r.conns)
				for i := range r.conns { // nobody is connected, and nobody knows who was
					r.conns[i] = &readerConn{Fetcher: Fetcher{Broker: 1, Closed: true}, of: "forgotten"}
				}
				p.apply(&pb.Command{Body: &pb.Command_RegisterBroker{RegisterBroker: &pb.RegisterBroker{DirectoryId: "d", Nonce: fmt.Sprint(n), WantedId: 1, MinLevel: 1, MaxLevel: 1}}})
			},
		})
	})
	if cut == 0 {
		t.Error("nobody was cut off")
	}
	t.Logf("%d connections were cut off", cut)
}
