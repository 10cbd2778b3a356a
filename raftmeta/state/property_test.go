package state

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/barnabas-mq/barnabas/internal/id"
	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// draw makes a random command; small name spaces so that commands meet.
func draw(t *rapid.T, sessions []*pb.Result) *pb.Command {
	name := func(prefix string, n int) string {
		return fmt.Sprintf("%s%d", prefix, rapid.IntRange(0, n).Draw(t, prefix))
	}
	n := func(label string, lo, hi int) int32 { return int32(rapid.IntRange(lo, hi).Draw(t, label)) }
	path := rapid.SampledFrom([]string{"/a", "/a/b", "/a/b/c", "/consumers/g0", "/consumers/g0/ids", "/consumers/g0/ids/m", "/consumers/g0/owners",
		"/consumers/g0/owners/t0", "/consumers/g0/owners/t0/0", "/consumers/g0/offsets/t0/1", "/consumers/g0/offsets/t0", "/brokers/ids/1"}).Draw(t, "path")
	c := &pb.Command{Version: CommandVersion}
	var ses *pb.Result
	if len(sessions) > 0 && rapid.Bool().Draw(t, "in session") {
		ses = rapid.SampledFrom(sessions).Draw(t, "session")
		c.Origin = &pb.Origin{Session: ses.Value, AttachEpoch: uint64(n("epoch", 1, 2))}
	}
	switch rapid.IntRange(0, 16).Draw(t, "kind") {
	case 0:
		return register(n("broker", -1, 4), name("dir", 3), name("nonce", 2))
	case 1:
		return mkTopic(name("t", 2), byte(n("id", 0, 9)), []int32{n("r1", 1, 3), n("r2", 1, 3)}, []int32{n("r3", 1, 3)})
	case 2:
		c.Body = &pb.Command_DeleteTopic{DeleteTopic: &pb.DeleteTopic{Name: name("t", 2)}}
	case 3:
		c.Body = &pb.Command_CreatePartitions{CreatePartitions: &pb.CreatePartitions{Name: name("t", 2), From: n("from", 1, 80),
			Assignments: []*pb.Assignment{{Replicas: []int32{n("r1", 1, 3)}}}}}
	case 4:
		c.Body = &pb.Command_FenceBroker{FenceBroker: &pb.FenceBroker{Broker: n("broker", 1, 3), Epoch: uint64(n("epoch", 1, 60)), Left: rapid.Bool().Draw(t, "left")}}
	case 5:
		c.Body = session().Body
	case 6:
		c.Body = create(path, fmt.Sprint(n("data", 0, 99))).Body
		c.GetCreateZnode().Sequential, c.GetCreateZnode().Ephemeral = rapid.Bool().Draw(t, "seq"), rapid.Bool().Draw(t, "eph")
	case 7:
		c.Body = del(path, n("version", -1, 1)).Body
	case 8:
		c.Body = set(path, fmt.Sprint(n("data", 0, 99)), n("version", -1, 1)).Body
	case 9:
		return commit(name("g", 1), name("t", 2), n("partition", 0, 40), int64(n("offset", 0, 1000)))
	case 10:
		c.Body = &pb.Command_DeleteOffsets{DeleteOffsets: &pb.DeleteOffsets{Group: name("g", 1)}}
	case 11:
		c.Body = &pb.Command_SetConfig{SetConfig: &pb.SetConfig{Type: "topics", Name: name("t", 2), ZnodeVersion: -1, RemoveRow: rapid.Bool().Draw(t, "remove"),
			Entries: []*pb.ConfigEntry{{Name: name("k", 2), Value: "v"}, {Name: name("k", 2), Remove: true}}}}
	case 12:
		c.Body = &pb.Command_TermStarted{TermStarted: &pb.TermStarted{Broker: n("broker", 1, 3)}}
	case 13:
		if ses != nil {
			c.Origin = nil
			c.Body = &pb.Command_CloseSession{CloseSession: &pb.CloseSession{Session: ses.Value, AttachEpoch: uint64(n("epoch", 1, 2))}}
			return c
		}
		c.Body = &pb.Command_AllocateProducerIds{AllocateProducerIds: &pb.AllocateProducerIds{Broker: 1, Count: n("count", 0, 1000)}}
	case 14:
		c.Body = &pb.Command_ClaimOwner{ClaimOwner: &pb.ClaimOwner{Group: "g0", Topic: "t0", Name: "0", Ephemeral: true}}
	case 15:
		members := []string{"a", "b"}[:n("members", 0, 2)]
		st := pb.GroupState_GROUP_STABLE
		if len(members) == 0 {
			st = pb.GroupState_GROUP_EMPTY
		}
		return put(name("g", 1), uint64(n("version", 0, 20)), n("generation", 1, 3), st, members...)
	case 16:
		return dropGroup(name("g", 1), rapid.Bool().Draw(t, "unused"))
	}
	return c
}

// Equal logs give equal hashes, whether replayed in one go or through snapshots taken anywhere; directories count what
// they hold; a (group, partition) has one owner because a name is a key.
func TestEqualLogsEqualStates(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		a := newFold(t)
		b := newFold(t)
		var sessions []*pb.Result
		for range rapid.IntRange(1, 60).Draw(rt, "entries") {
			var cmds []*pb.Command
			for range rapid.IntRange(1, 4).Draw(rt, "commands") {
				cmds = append(cmds, draw(rt, sessions))
			}
			a.term += id.Term(rapid.IntRange(0, 1).Draw(rt, "term"))
			b.term = a.term
			for i, r := range a.do(cmds...) {
				if cmds[i].GetCreateSession() != nil && r.Code == pb.Code_OK {
					sessions = append(sessions, r)
				}
			}
			b.do(cmds...)
			if rapid.IntRange(0, 3).Draw(rt, "snapshot") == 0 {
				b.s = roundTrip(t, b.s)
			}
			if a.s.Hash() != b.s.Hash() {
				rt.Fatalf("hashes differ at index %d", a.index)
			}
		}
		checkCounts(rt, a.s)
	})
}

// Whatever directories sessions make of a group's paths, and whoever deletes them: what holds a child stays, and counts it.
func TestDirectoriesOutliveTheirMakers(t *testing.T) {
	paths := []string{"/consumers/g", "/consumers/g/ids", "/consumers/g/ids/m", "/consumers/g/owners", "/consumers/g/owners/t", "/consumers/g/owners/t/0",
		"/consumers/g/offsets", "/consumers/g/offsets/t", "/consumers/g/offsets/t/0", "/consumers/g/x", "/consumers/g/offsets/t/q"}
	rapid.Check(t, func(rt *rapid.T) {
		f := newFold(t)
		f.broker(1, "a")
		f.ok(mkTopic("t", 1, []int32{1}))
		ses := []int64{f.ok(session()).Value, f.ok(session()).Value}
		for range rapid.IntRange(3, 25).Draw(rt, "steps") {
			path, of := rapid.SampledFrom(paths).Draw(rt, "path"), rapid.SampledFrom(ses).Draw(rt, "session")
			c := del(path, -1)
			switch rapid.IntRange(0, 11).Draw(rt, "kind") {
			case 0, 1:
				c = create(path, "1")
			case 2, 3:
				c = ephemeral(of, 1, path)
			case 4, 5:
				c = commit("g", "t", rapid.Int32Range(0, 1).Draw(rt, "partition"), 5)
			case 6:
				c = &pb.Command{Body: &pb.Command_ExpireSessions{ExpireSessions: &pb.ExpireSessions{Sessions: []*pb.CloseSession{{Session: of, AttachEpoch: 1}}}}}
			case 7:
				c = &pb.Command{Body: &pb.Command_DeleteGroup{DeleteGroup: &pb.DeleteGroup{Group: "g"}}}
			case 8:
				c = &pb.Command{Body: &pb.Command_DeleteOffsets{DeleteOffsets: &pb.DeleteOffsets{Group: "g"}}}
			case 9:
				g, _ := f.s.View().Group("g")
				if o, ok := f.s.View().Offset("g", "t", 0); ok && g != nil {
					c = &pb.Command{Body: &pb.Command_ExpireOffsets{ExpireOffsets: &pb.ExpireOffsets{Group: "g", GroupVersion: g.Version,
						Items: []*pb.ExpiredOffset{{Topic: "t", Mzxid: int64(o.Mzxid)}}}}}
				}
			}
			f.do(c)
			checkCounts(rt, f.s)
			f.s.View().znodes.Scan(func(k string, _ *Znode) bool {
				parent, _, _ := strings.Cut(k, "\x00")
				if _, ok := f.s.View().Znode(parent); !ok && parent != "" {
					rt.Fatalf("%q is below nothing", k)
				}
				return true
			})
		}
	})
}

// Clients make and delete what they like at the cluster's own paths while the cluster goes on: nothing it stands on goes.
func TestOwnPathsUnderClients(t *testing.T) {
	var paths []string
	f := newFold(t)
	keys, _ := f.s.znodes.collect("")
	for _, k := range keys[1:] { // the root is first
		path, _ := znodePath(k)
		paths = append(paths, path)
	}
	paths = append(paths, "/brokers/topics/t", "/brokers/topics/t/partitions", "/brokers/topics/t/partitions/0", "/brokers/topics/t/partitions/0/state",
		"/config/topics/t", "/brokers/ids/1", "/controller", "/admin/delete_topics/t", "/config/changes/c", "/consumers/g")
	types := []string{"topics", "brokers", "clients", "users"}
	rapid.Check(t, func(rt *rapid.T) {
		f := newFold(t)
		ses := f.ok(session()).Value
		for range rapid.IntRange(3, 40).Draw(rt, "steps") {
			path := rapid.SampledFrom(paths).Draw(rt, "path")
			c, yes := del(path, -1), rapid.Bool().Draw(rt, "yes")
			switch rapid.IntRange(0, 14).Draw(rt, "kind") {
			case 0:
				c = create(path, "1")
			case 1:
				c = ephemeral(ses, 1, path)
			case 2:
				c = register(1, "a", "a")
			case 3:
				c = mkTopic("t", 1, []int32{1})
			case 4:
				c = &pb.Command{Body: &pb.Command_DeleteTopic{DeleteTopic: &pb.DeleteTopic{Name: "t"}}}
			case 5:
				c = &pb.Command{Body: &pb.Command_SetConfig{SetConfig: &pb.SetConfig{Type: rapid.SampledFrom(types).Draw(rt, "type"), Name: "t", ZnodeVersion: -1,
					RemoveRow: yes, Entries: []*pb.ConfigEntry{{Name: "k", Value: "v"}}}}}
			case 6:
				c = commit("g", "t", 0, 5)
			case 7:
				c = &pb.Command{Body: &pb.Command_TermStarted{TermStarted: &pb.TermStarted{Broker: 1}}}
			case 8:
				c = &pb.Command{Body: &pb.Command_SetBrokerVisible{SetBrokerVisible: &pb.SetBrokerVisible{Broker: 1, Visible: yes}}}
			case 9:
				c = &pb.Command{Body: &pb.Command_CloseSession{CloseSession: &pb.CloseSession{Session: ses, AttachEpoch: 1}}}
			case 10:
				c = &pb.Command{Body: &pb.Command_AllocateProducerIds{AllocateProducerIds: &pb.AllocateProducerIds{Broker: 1, Count: 10}}}
			case 11:
				c = &pb.Command{Body: &pb.Command_FenceBroker{FenceBroker: &pb.FenceBroker{Broker: 1, Epoch: 5}}}
			}
			f.do(c)
			checkCounts(rt, f.s)
		}
	})
}

// checkCounts compares every directory's child count with the rows that are there.
func checkCounts(t *rapid.T, s *State) {
	v := s.View()
	count := map[string]int32{}
	keys, zs := s.znodes.collect("")
	for _, k := range keys {
		if path, _ := znodePath(k); path != "/" {
			parent, _ := SplitPath(path)
			count[parent]++
		}
	}
	v.Brokers(func(b *Broker) bool {
		if b.Visible {
			count["/brokers/ids"]++
		}
		return true
	})
	v.Topics(func(*Topic) bool { count["/brokers/topics"]++; return true })
	for _, typ := range []string{"topics", "brokers", "clients", "users"} {
		v.Configs(typ, func(*Config) bool { count["/config/"+typ]++; return true })
	}
	for _, g := range []string{"g", "g0", "g1"} {
		v.Offsets(g, func(topic string, _ *Offset) bool { count["/consumers/"+g+"/offsets/"+topic]++; return true })
	}
	for i, z := range zs {
		path, _ := znodePath(keys[i])
		if z.Stat.Children != count[path] {
			t.Fatalf("%s says %d children, there are %d", path, z.Stat.Children, count[path])
		}
	}
	v.Topics(func(tp *Topic) bool {
		n := int32(0)
		v.Partitions(tp.Name, func(p int32, row *Partition) bool { n++; return true })
		if n != tp.Partitions {
			t.Fatalf("topic %s says %d partitions, there are %d", tp.Name, tp.Partitions, n)
		}
		return true
	})
}

// Forwards are dropped, repeated and reordered, entries come from changing leaders: every command of a lane happens once
// and in order, and a repeat gets the first answer.
func TestLanesUnderDisorder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := newFold(t)
		lanes := []uint64{f.broker(1, "a").Epoch, f.broker(2, "a").Epoch}
		f.ok(create("/q", ""))
		const total = 12
		type lane struct {
			acked uint64
			names map[uint64]string
		}
		st := map[uint64]*lane{lanes[0]: {names: map[uint64]string{}}, lanes[1]: {names: map[uint64]string{}}}
		for step := 0; step < 400; step++ {
			var cmds []*pb.Command
			for range rapid.IntRange(1, 5).Draw(rt, "batch") {
				l := rapid.SampledFrom(lanes).Draw(rt, "lane")
				lo := int(st[l].acked) + 1
				hi := min(lo+4, total)
				if lo > total {
					continue
				}
				seq := uint64(rapid.IntRange(max(1, lo-2), hi).Draw(rt, "seq"))
				seen := uint64(0)
				if st[l].acked > 2 {
					seen = st[l].acked - 2
				}
				c := &pb.Command{Version: CommandVersion, Lane: l, Seq: seq, Seen: min(seen, seq-1),
					Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: "/q/n-", Sequential: true}}}
				cmds = append(cmds, proto.Clone(c).(*pb.Command))
			}
			if len(cmds) == 0 {
				break
			}
			f.term += id.Term(rapid.IntRange(0, 1).Draw(rt, "term"))
			for i, r := range f.do(cmds...) {
				l, seq := st[cmds[i].Lane], cmds[i].Seq
				if r.Code != pb.Code_OK {
					continue
				}
				if was, ok := l.names[seq]; ok && was != r.Path {
					rt.Fatalf("lane %d number %d: first %s, then %s", cmds[i].Lane, seq, was, r.Path)
				}
				l.names[seq] = r.Path
				l.acked = max(l.acked, seq)
			}
			if rapid.IntRange(0, 5).Draw(rt, "snapshot") == 0 {
				f.s = roundTrip(t, f.s)
			}
		}
		used := map[string]bool{}
		done := uint64(0)
		for _, l := range st {
			done += l.acked
			for seq, name := range l.names {
				if used[name] {
					rt.Fatalf("name %s twice", name)
				}
				used[name] = true
				if seq > 1 && l.names[seq-1] >= name {
					rt.Fatalf("number %d got %s before number %d got %s", seq, name, seq-1, l.names[seq-1])
				}
			}
		}
		if z, _ := f.s.View().Znode("/q"); uint64(z.Stat.Creates) != done {
			rt.Fatalf("%d nodes were made for %d commands", z.Stat.Creates, done)
		}
	})
}

func TestLaneResultAfterRestore(t *testing.T) {
	f := newFold(t)
	l := f.broker(1, "a").Epoch
	f.do(&pb.Command{Lane: l, Seq: 1, Body: create("/x", "").Body})
	f.s = roundTrip(t, f.s)
	if r, settled, ended := f.s.LaneResult(l, 1); !settled || ended || r.Path != "/x" {
		t.Fatalf("%v %v %v", r, settled, ended)
	}
	if _, settled, ended := f.s.LaneResult(l, 2); settled || ended {
		t.Fatal("a command that was never applied is settled")
	}
	f.broker(1, "b")
	if _, _, ended := f.s.LaneResult(l, 1); !ended {
		t.Fatal("the lane of a replaced incarnation goes on")
	}
}
