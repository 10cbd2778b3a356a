package core

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
	"github.com/barnabas-mq/barnabas/zkcompat/ztree"
)

// teller tells a story of znode consumers: members that act by themselves, and sessions that do what the story says.
type teller struct {
	*park
	raw    map[string]int64         // sessions by name
	frozen map[uint64]time.Duration // connections that ask for nothing more, since when
}

// fetches is who fetches, as the brokers report it.
func (p *teller) fetches() []Fetcher {
	all := append(slices.Clone(p.fetching), Fetcher{Broker: 1, Epoch: 1, Closed: true})
	for i := range all {
		if since, ok := p.frozen[all[i].Conn]; ok {
			all[i].Idle = p.now - since
		}
	}
	return all
}

var dialects = map[string]state.Dialect{"jvm": state.DialectJVM, "kafka-node": state.DialectKafkaNode, "pykafka": state.DialectPykafka}

func partitionOf(s string) (topic string, n int32) {
	topic, number, _ := strings.Cut(s, "/")
	i, _ := strconv.Atoi(number)
	return topic, int32(i)
}

func (p *teller) session(name string) int64 {
	if m := p.member(name); m != nil {
		return m.session
	}
	return p.raw[name]
}

func (p *teller) origin(name string) *pb.Origin {
	return &pb.Origin{Session: p.session(name), AttachEpoch: 1}
}

func (p *teller) say(format string, args ...any) { fmt.Fprintf(&p.out, "> "+format+"\n", args...) }

func (p *teller) tell(l line) {
	m := p.member(l.name)
	tp := l.kv["of"]
	topic, n := partitionOf(tp)
	switch l.verb {
	case "topic":
		p.topic(l.name, l.num("partitions", 1))
	case "start":
		if m == nil {
			m = p.add(l.name, dialects[l.str("is", "jvm")], l.str("reads", "t:1"))
		}
		m.start()
	case "pass":
		d, err := time.ParseDuration(l.name)
		if err != nil {
			p.t.Fatal(err)
		}
		p.pass(d)
	case "stop":
		m.quit(false)
	case "expire":
		if m == nil {
			p.apply(&pb.Command{Body: &pb.Command_ExpireSessions{ExpireSessions: &pb.ExpireSessions{Sessions: []*pb.CloseSession{{Session: p.raw[l.name], AttachEpoch: 1}}}}})
			return
		}
		m.quit(true)
		m.paused = l.kv["and"] == "dead"
	case "pause":
		m.paused = true
	case "resume":
		m.paused = false
	case "failover":
		p.failover()
	case "gates":
		p.must(&pb.Command{Body: &pb.Command_SetConfig{SetConfig: &pb.SetConfig{Type: state.GroupConfigs, Name: "g", ZnodeVersion: -1,
			Entries: []*pb.ConfigEntry{{Name: state.GatesOff, Value: l.kv["off"]}}}}})
	case "fetches": // a connection of a member
		p.fetching = append(p.fetching, Fetcher{Broker: 1, Epoch: 1, Conn: uint64(l.num("conn", 1)), ClientID: l.str("client", "g"), Host: l.str("host", "10.0.0.1")})
	case "closes": // a connection, and the broker remembers it
		i := slices.IndexFunc(p.fetching, func(f Fetcher) bool { return f.Conn == uint64(l.num("conn", 1)) })
		p.fetching[i].Closed, p.fetching[i].End = true, id.Offset(l.num("end", 0))
	case "freezes": // the process that has a connection
		p.frozen[uint64(l.num("conn", 1))] = p.now
	case "disconnects":
		p.fetching = slices.DeleteFunc(p.fetching, func(f Fetcher) bool { return f.Conn == uint64(l.num("conn", 1)) })
	case "fenced":
		p.s.View().Fences(func(f *state.Fence) bool {
			p.say("connection %d, %s-%d, was %s's", f.Conn, f.Topic, f.Partition, f.Member)
			return true
		})
	default:
		p.tellRaw(l, topic, n)
	}
}

func (p *teller) tellRaw(l line, topic string, n int32) {
	switch l.verb {
	case "session":
		p.raw[l.name] = p.openSession(6000)
	case "register":
		data := l.str("as", `{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}`)
		path := "/consumers/g/ids/" + l.name
		for _, dir := range []string{"/consumers/g", "/consumers/g/ids", "/consumers/g/owners", "/consumers/g/owners/t", "/consumers/g/offsets", "/consumers/g/offsets/t"} {
			p.apply(&pb.Command{Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: dir, Null: true}}})
		}
		p.ask(l.name, Request{Command: &pb.Command{Origin: p.origin(l.name), Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: path, Data: []byte(data), Ephemeral: true}}}})
	case "reregister": // the setData of kafka-node
		p.ask(l.name, Request{Command: &pb.Command{Origin: p.origin(l.name), Body: &pb.Command_SetZnode{SetZnode: &pb.SetZnode{Path: "/consumers/g/ids/" + l.name,
			Data: []byte(l.kv["as"]), Version: -1}}}})
	case "claim":
		p.ask(l.name, Request{Command: &pb.Command{Origin: p.origin(l.name), Body: &pb.Command_ClaimOwner{ClaimOwner: &pb.ClaimOwner{Group: "g", Topic: topic,
			Name: strconv.Itoa(int(n)), Partition: n, Data: []byte(l.name + "-0"), Ephemeral: true}}}})
	case "delete":
		r := p.apply(&pb.Command{Origin: p.origin(l.name), Body: &pb.Command_DeleteZnode{DeleteZnode: &pb.DeleteZnode{Path: fmt.Sprintf("/consumers/g/owners/%s/%d", topic, n), Version: -1}}})
		p.say("%s", r.Code)
	case "unregister": // by a tool
		r := p.apply(&pb.Command{Body: &pb.Command_DeleteZnode{DeleteZnode: &pb.DeleteZnode{Path: "/consumers/g/ids/" + l.name, Version: -1}}})
		p.say("%s", r.Code)
	case "read": // an offset
		if !p.s.View().OffsetAwaited(id.SessionID(p.session(l.name)), "g", topic, n) {
			p.say("%s: not held", l.name)
			return
		}
		p.ask(l.name, Request{Command: &pb.Command{Origin: p.origin(l.name), Body: &pb.Command_AwaitOffsets{AwaitOffsets: &pb.AwaitOffsets{Group: "g",
			Partitions: []*pb.OwnedPartition{{Topic: topic, Partition: n}}}}}})
	case "fetch-offset": // by Kafka's protocol
		p.ask(l.name, Request{Command: &pb.Command{Body: &pb.Command_AwaitOffsets{AwaitOffsets: &pb.AwaitOffsets{Group: "g", By: l.name,
			Partitions: []*pb.OwnedPartition{{Topic: topic, Partition: n}}}}}})
	case "write": // an offset's znode
		path, data := fmt.Sprintf("/consumers/g/offsets/%s/%d", topic, n), []byte(l.kv["offset"])
		r := p.apply(&pb.Command{Origin: p.origin(l.name), Body: &pb.Command_SetZnode{SetZnode: &pb.SetZnode{Path: path, Data: data, Version: -1}}})
		if r.Code == pb.Code_NO_NODE {
			p.apply(&pb.Command{Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: "/consumers/g/offsets/" + topic, Null: true}}})
			r = p.apply(&pb.Command{Origin: p.origin(l.name), Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: path, Data: data}}})
		}
		p.say("%s %s", r.Code, r.Text)
	case "commit": // by Kafka's protocol, without a member
		n64, _ := strconv.ParseInt(l.kv["offset"], 10, 64)
		p.commitAs(l.name, &pb.CommitOffsets{Group: "g", Generation: -1, By: l.kv["by"],
			From: pb.OffsetOrigin_ORIGIN_KAFKA, Items: []*pb.OffsetItem{{Topic: topic, Partition: n, Offset: n64}}})
	case "offset":
		if o, ok := p.s.View().Offset("g", topic, n); ok {
			p.say("%d", o.Offset)
		}
	case "owners":
		p.say("%s", p.owners())
	case "sees":
		o := ztree.Observer{Session: id.SessionID(p.session(l.name))}
		ids, _, _ := ztree.New(p.s.View()).Children("/consumers/g/ids", o, nil)
		slices.Sort(ids)
		p.say("%v", ids)
	case "members":
		for _, m := range p.members {
			p.say("%s %s tries %d", m.name, [...]string{"idle", "joining", "steady", "to rebalance", "reading", "claiming", "backing off", "given up", "gone"}[m.act], m.tries)
		}
	case "state":
		g, ok := p.s.View().Legacy("g")
		if !ok {
			p.say("nothing")
			return
		}
		var reserved []string
		for _, r := range g.Reserved {
			reserved = append(reserved, fmt.Sprintf("%s-%d for %s", r.Topic, r.Partition, r.Member))
		}
		p.say("generation %d complete %v withdrawn %v, %d members, reserved %v; %d events, %d failed attempts", g.Number, g.Complete, g.Withdrawn, len(g.Members),
			reserved, p.events, p.failures)
	case "explain":
		for _, r := range p.row().Rebalances {
			p.say("%s %d %s: %s; %d -> %d, +%v -%v, waited %d ms for %s, holds %v", r.Kind, r.Generation, r.Cause, r.Text, r.Before, r.After, r.Joined, r.Left,
				r.WaitedMs, r.WaitedFor, r.Holds)
		}
	default:
		p.t.Fatalf("unknown verb %q", l.verb)
	}
}

// Each file of testdata/legacy is a story of znode consumers: lines that say what happens, and after each one, after >, what comes of
// it. What members that act by themselves are granted is not told.
func TestLegacyStories(t *testing.T) {
	stories(t, "testdata/legacy/*.txt", func(t *testing.T, text string) func(line) string {
		p := &teller{park: newPark(t), raw: map[string]int64{}, frozen: map[uint64]time.Duration{}}
		p.mind.cfg.Fetching = func(id.TopicPartition) []Fetcher { return p.fetches() }
		p.cfg.Fetching = p.mind.cfg.Fetching
		if strings.Contains(text, "# nobody knows who fetches") {
			p.mind.cfg.Fetching, p.cfg.Fetching = nil, nil
		}
		p.onReply = func(name string, r Request, _ kmsg.Response, res *pb.Result) { p.replied(name, r, res) }
		return func(l line) string {
			p.out.Reset()
			p.tell(l)
			var told strings.Builder
			for out := range strings.Lines(p.out.String()) {
				name, code, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(out), "> "), ": ")
				if code != "OK" || p.member(name) == nil {
					told.WriteString(out)
				}
			}
			return told.String()
		}
	})
}
