package core

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// What the state itself keeps of the rules for znode consumers, whoever asks: no hold stands before it here.

// owner makes an owner znode of a session, or of none.
func (p *teller) owner(session, of, data string) {
	p.t.Helper()
	topic, name, _ := strings.Cut(of, "/")
	p.apply(&pb.Command{Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: "/consumers/g/owners/" + topic, Null: true}}})
	c := &pb.Command{Body: &pb.Command_ClaimOwner{ClaimOwner: &pb.ClaimOwner{Group: "g", Topic: topic, Name: name, Data: []byte(data), Ephemeral: session != ""}}}
	if session != "" {
		c.Origin = p.origin(session)
	}
	p.must(c)
}

// Members delete what is theirs, by session or by name; tools delete anything.
func TestWhoMayDeleteAnOwner(t *testing.T) {
	for _, c := range []struct {
		owner, data, by, off string
		gone                 bool
	}{
		{"a", "a-0", "b", "", false}, {"a", "a-0", "b", "delete", true}, {"a", "a-0", "a", "", true}, {"a", "a-0", "tool", "", true}, {"a", "a-0", "", "", true},
		{"a", "b-0", "b", "", true}, {"a", "b", "b", "", true}, {"a", "bb-0", "b", "", false}, {"a", "x", "a", "", true}, {"", "a-0", "b", "", true},
	} {
		p := twoMembers(t)
		p.tellAll("session tool", "gates g off="+c.off)
		p.owner(c.owner, "t/0", c.data)
		remove := &pb.Command{Body: &pb.Command_DeleteZnode{DeleteZnode: &pb.DeleteZnode{Path: "/consumers/g/owners/t/0", Version: -1}}}
		if c.by != "" {
			remove.Origin = p.origin(c.by)
		}
		res := p.apply(remove)
		_, there := p.s.View().Owner("g", "t", "0")
		if there == c.gone || (res.Code == pb.Code_OK) != c.gone || !c.gone && res.Code != pb.Code_NO_NODE {
			t.Errorf("%+v: %s, it is there: %v", c, res.Code, there)
		}
	}
	p := twoMembers(t)
	if res := p.apply(&pb.Command{Origin: p.origin("b"), Body: &pb.Command_DeleteZnode{DeleteZnode: &pb.DeleteZnode{Path: "/consumers/g/ids/a", Version: -1}}}); res.Code != pb.Code_OK {
		t.Errorf("a registration is guarded as an owner is: %s", res.Code)
	}
}

func (p *teller) reserved() string {
	g, _ := p.s.View().Legacy("g")
	var all []string
	for _, r := range g.Reserved {
		all = append(all, fmt.Sprintf("%s/%d for %s", r.Topic, r.Partition, r.Member))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// Of an expired member's partitions those are kept that have a number, and each until it is released, or claimed by the same consumer.
func TestWhatIsReserved(t *testing.T) {
	p := twoMembers(t)
	p.topic("u", 1)
	p.mind = nil // nobody ends reservations
	p.owner("a", "t/0", "a-0")
	p.owner("a", "t/1", "a-0")
	p.owner("a", "u/0", "a-0")
	p.owner("a", "t/x", "a-0")
	p.owner("b", "u/1", "b-0")
	p.tellAll("session stray", "expire a", "expire b")
	want := func(when, want string) {
		t.Helper()
		if got := p.reserved(); got != want {
			t.Errorf("%s: %s, want %s", when, got, want)
		}
	}
	want("after the expiry", "t/0 for a, t/1 for a, u/0 for a, u/1 for b")
	claim := func(session, of string) pb.Code {
		topic, name, _ := strings.Cut(of, "/")
		return p.apply(&pb.Command{Origin: p.origin(session), Body: &pb.Command_ClaimOwner{ClaimOwner: &pb.ClaimOwner{Group: "g", Topic: topic, Name: name,
			Data: []byte("x-0"), Ephemeral: true}}}).Code
	}
	if code := claim("stray", "t/0"); code != pb.Code_NODE_EXISTS {
		t.Errorf("a session that is no member claims what is reserved: %s", code)
	}
	release := func(of ...*pb.OwnedPartition) {
		p.must(&pb.Command{Body: &pb.Command_ReleaseOwners{ReleaseOwners: &pb.ReleaseOwners{Group: "g", Session: p.raw["a"], Owned: of}}})
	}
	release(&pb.OwnedPartition{Topic: "t", Partition: 1}, &pb.OwnedPartition{Topic: "u", Partition: 1})
	want("after the release of t/1", "t/0 for a, u/0 for a, u/1 for b")
	first := p.raw["a"]
	p.tellAll("session a")
	p.must(&pb.Command{Origin: p.origin("a"), Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: "/consumers/g/ids/a", Data: []byte(readsT), Ephemeral: true}}})
	if code := claim("a", "t/0"); code != pb.Code_OK {
		t.Errorf("its own consumer claims it: %s", code)
	}
	want("after the claim of t/0", "u/0 for a, u/1 for b")
	p.raw["a"] = first
	release(&pb.OwnedPartition{Topic: "t", Partition: 0})
	want("after a release of what is not reserved", "u/0 for a, u/1 for b")
	p.tellAll("gates g off=reservation")
	if code := claim("stray", "u/0"); code != pb.Code_OK {
		t.Errorf("the gate is off: %s", code)
	}
	p.owner("stray", "t/1", "x-0")
	p.tellAll("gates g off=", "expire stray")
	want("after the expiry of no member", "u/1 for b")
	p.tellAll("session a")
	p.must(&pb.Command{Body: &pb.Command_DeleteZnode{DeleteZnode: &pb.DeleteZnode{Path: "/consumers/g/ids/a", Version: -1}}})
	p.must(&pb.Command{Origin: p.origin("a"), Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: "/consumers/g/ids/a", Data: []byte(readsT), Ephemeral: true}}})
	p.owner("a", "t/1", "a-0")
	g, _ := p.s.View().Legacy("g")
	for of, there := range map[string]bool{"u/1": true, "t/1": false, "u/0": false} {
		if topic, n := partitionOf(of); (g.Reservation(topic, n) != nil) != there {
			t.Errorf("%s is reserved: %v", of, !there)
		}
	}
	p.tellAll("gates g off=reservation", "expire a")
	want("after the expiry of a member, with the gate off", "u/1 for b")
}

// A member that was registered in several groups leaves its partitions in each.
func TestReservationsOfTwoGroups(t *testing.T) {
	p := twoMembers(t)
	p.mind = nil
	for _, dir := range []string{"", "/ids", "/owners", "/owners/t"} {
		p.must(&pb.Command{Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: "/consumers/h" + dir, Null: true}}})
	}
	p.must(&pb.Command{Origin: p.origin("a"), Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: "/consumers/h/ids/z", Data: []byte(readsT), Ephemeral: true}}})
	p.owner("a", "t/0", "a-0")
	p.must(&pb.Command{Origin: p.origin("a"), Body: &pb.Command_ClaimOwner{ClaimOwner: &pb.ClaimOwner{Group: "h", Topic: "t", Name: "1", Data: []byte("z-0"), Ephemeral: true}}})
	p.tellAll("expire a")
	h, ok := p.s.View().Legacy("h")
	if got := p.reserved(); got != "t/0 for a" || !ok || len(h.Reserved) != 1 || h.Reserved[0].Partition != 1 || h.Reserved[0].Member != "z" {
		t.Errorf("reserved in g: %s, in h: %v", got, h)
	}
}

// A fence goes when its member claims the partition again, in that group; others stay.
func TestWhichFenceIsLifted(t *testing.T) {
	p := twoMembers(t)
	p.topic("u", 1)
	p.mind = nil
	for i, f := range []struct {
		group, member, topic string
		partition            int32
	}{{"g", "a", "t", 0}, {"g", "a", "t", 1}, {"g", "a", "u", 0}, {"g", "b", "t", 0}, {"h", "a", "t", 0}} {
		p.must(&pb.Command{Body: &pb.Command_FenceFetches{FenceFetches: &pb.FenceFetches{Group: f.group, Member: f.member, Fetches: []*pb.FencedFetch{
			{Broker: 1, Epoch: 1, Conn: uint64(i + 1), Topic: f.topic, Partition: f.partition}}}}})
	}
	fenced := func() (conns []uint64) {
		p.s.View().Fences(func(f *state.Fence) bool { conns = append(conns, f.Conn); return true })
		slices.Sort(conns)
		return conns
	}
	p.owner("a", "t/0", "a-0")
	if got := fenced(); !slices.Equal(got, []uint64{2, 3, 4, 5}) {
		t.Errorf("a has t/0 again, and cut off are connections %v", got)
	}
}

// A member that lost a partition may write its offset as long as nobody else has since the partition was taken: not by what was committed
// before that, nor by its own.
func TestWhichWriteIsLate(t *testing.T) {
	for _, c := range []struct {
		name, off string
		does      []string
		want      id.Offset // after a has written 7
	}{
		{"the new owner has committed", "", []string{"claim b of=t/0", "write b of=t/0 offset=9"}, 9},
		{"the gate is off", "commit", []string{"claim b of=t/0", "write b of=t/0 offset=9"}, 7},
		{"the new owner has not", "", []string{"claim b of=t/0"}, 7},
		{"another had before", "", []string{"write b of=t/0 offset=9", "claim b of=t/0"}, 7},
		{"its own last write", "", []string{"claim b of=t/0", "write a of=t/0 offset=9"}, 7},
		{"nobody owns it now", "", []string{"claim b of=t/0", "write b of=t/0 offset=9", "delete b of=t/0"}, 7},
		{"it owns it again", "", []string{"claim b of=t/0", "write b of=t/0 offset=9", "delete b of=t/0", "claim a of=t/0"}, 7},
	} {
		p := twoMembers(t)
		p.tellAll("gates g off=" + c.off)
		for _, does := range append([]string{"claim a of=t/0", "delete a of=t/0"}, c.does...) {
			p.tell(parse(does))
		}
		p.tell(parse("write a of=t/0 offset=7"))
		if o, _ := p.s.View().Offset("g", "t", 0); o.Offset != c.want {
			t.Errorf("%s: the offset is %d, want %d", c.name, o.Offset, c.want)
		}
	}
}

// So may one that commits by Kafka's protocol without a name, at another address than the owner's.
func TestWhichCommitIsLate(t *testing.T) {
	const owner, other = "by=c@10.0.0.1", "by=c@10.0.0.2"
	for _, c := range []struct {
		name, off string
		does      []string
		want      id.Offset // after the other has committed 7
	}{
		{"the owner has committed", "", []string{"claim b of=t/0", "commit k of=t/0 offset=9 " + owner}, 9},
		{"the gate is off", "commit", []string{"claim b of=t/0", "commit k of=t/0 offset=9 " + owner}, 7},
		{"the owner had before it took it", "", []string{"commit k of=t/0 offset=9 " + owner, "claim b of=t/0"}, 7},
		{"it was the last", "", []string{"claim b of=t/0", "commit k of=t/0 offset=9 " + other}, 7},
		{"the owner has written the znode", "", []string{"claim b of=t/0", "write b of=t/0 offset=9"}, 9},
		{"nobody owns it now", "", []string{"claim b of=t/0", "commit k of=t/0 offset=9 " + owner, "delete b of=t/0"}, 7},
	} {
		p := twoMembers(t)
		p.tellAll("gates g off=" + c.off)
		for _, does := range append(c.does, "commit k of=t/0 offset=7 "+other) {
			p.tell(parse(does))
		}
		if o, _ := p.s.View().Offset("g", "t", 0); o.Offset != c.want {
			t.Errorf("%s: the offset is %d, want %d", c.name, o.Offset, c.want)
		}
	}
}

// The owner's own host is never late, whatever client commits there.
func TestCommitFromTheOwnersHost(t *testing.T) {
	p := twoMembers(t)
	p.tellAll("claim b of=t/0", "commit k of=t/0 offset=9 by=c@10.0.0.1", "commit k of=t/0 offset=7 by=d@10.0.0.1")
	if o, _ := p.s.View().Offset("g", "t", 0); o.Offset != 7 {
		t.Errorf("the offset is %d", o.Offset)
	}
}

// What a member by Kafka's protocol holds a consumer by ZooKeeper may write as long as it was the last to do so.
func TestWriteOfWhatAModernMemberHolds(t *testing.T) {
	w := newTown(t)
	w.topic("t", 4)
	a := w.add("g_a", state.DialectJVM, "t:1")
	a.start()
	w.pass(time.Second)
	m := w.consumer("M1", "t")
	m.start()
	w.pass(10 * time.Second)
	w.want(t, "shared", "M1 t[2 3]; g_a t[0 1]")
	writes := func(offset, want string) {
		t.Helper()
		const path = "/consumers/g/offsets/t/2"
		w.apply(&pb.Command{Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: "/consumers/g/offsets/t", Null: true}}})
		r := w.apply(&pb.Command{Origin: a.origin(), Body: &pb.Command_SetZnode{SetZnode: &pb.SetZnode{Path: path, Data: []byte(offset), Version: -1}}})
		if r.Code == pb.Code_NO_NODE {
			r = w.apply(&pb.Command{Origin: a.origin(), Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: path, Data: []byte(offset)}}})
		}
		if o, _ := w.s.View().Offset("g", "t", 2); r.Code != pb.Code_OK || fmt.Sprint(o.Offset) != want {
			t.Errorf("a write of %s: %s, the offset is %d, want %s", offset, r.Code, o.Offset, want)
		}
	}
	writes("5", "5")
	writes("7", "7")
	r := w.must(&pb.Command{Body: &pb.Command_CommitOffsets{CommitOffsets: &pb.CommitOffsets{Group: "g", Member: m.id, Generation: m.epoch, By: "c@h",
		From: pb.OffsetOrigin_ORIGIN_KAFKA, Items: []*pb.OffsetItem{{Topic: "t", Partition: 2, Offset: 9}}}}})
	if len(r.Parts) > 0 {
		t.Fatal(r)
	}
	writes("8", "9")
}

// What members are shown as owners' reads of offsets waits for the release by those who give theirs up, and for no others.
func TestWhichReadWaits(t *testing.T) {
	p := twoMembers(t)
	p.tellAll("claim a of=t/0", "session c", "register c")
	for p.number() == 1 {
		p.advance(10 * time.Millisecond)
	}
	waits := func(session string, want bool, when string) {
		t.Helper()
		if _, got := p.s.View().OffsetWaits(id.SessionID(p.raw[session]), "g", "t", 0); got != want {
			t.Errorf("%s: a read by %q waits: %v", when, session, got)
		}
	}
	waits("b", true, "a is to release it")
	waits("a", false, "it is its own")
	waits("", true, "a reader of no session, while the generation is claimed")
	if v := p.s.View(); v.OffsetAwaited(id.SessionID(p.raw["none"]), "g", "t", 0) || !v.OffsetAwaited(id.SessionID(p.raw["b"]), "g", "t", 0) {
		t.Error("one that is no member is held, or one that is is not")
	}
	if v := p.s.View(); !v.GivesUp("g", "t", 0) || v.GivesUp("g", "t", 1) || v.GivesUp("h", "t", 0) {
		t.Error("what is to be released: t/0 of g alone")
	}
	p.tellAll("gates g off=offset")
	waits("b", false, "the gate is off")
	p.tellAll("gates g off=", "delete a of=t/0", "claim a of=t/0")
	waits("b", false, "it was claimed anew")
	p.tellAll("expire a")
	waits("b", true, "it is reserved")
	p.tellAll("claim b of=t/1")
	p.advance(12 * time.Second)
	waits("", false, "the generation is complete, and nothing is reserved")
}

// Whether an owner is to release a partition depends on its library, on when it claimed, and on whether its generation is shown.
func TestWhoGivesUp(t *testing.T) {
	const kafkaNode = `{"version":1,"subscription":{"t": 1},"pattern":"white_list","timestamp":"1"}`
	for _, c := range []struct {
		name, as, node, does string
		want                 bool
	}{
		{"JVM", readsT, "0", "", true}, {"kafka-node", kafkaNode, "0", "", true}, {"pykafka", "t", "1-0", "", false},
		{"wvanbergen", strings.ReplaceAll(readsT, `"1"`, `1`), "0", "", false},
		{"claimed anew", readsT, "0", "delete a of=t/0,claim a of=t/0", false}, {"nobody's", readsT, "0", "delete a of=t/0", false},
		{"barrier off", readsT, "0", "gates g off=barrier", false}, {"of no session", readsT, "", "", false},
	} {
		p := &teller{park: newPark(t), raw: map[string]int64{}}
		p.topic("t", 2)
		p.tellAll("session a", "session b", "session c")
		for _, dir := range []string{"", "/ids", "/owners", "/owners/t"} {
			p.must(&pb.Command{Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: "/consumers/g" + dir, Null: true}}})
		}
		p.joinsAs("a", "a", c.as, false)
		p.joinsAs("b", "b", c.as, false)
		p.advance(12 * time.Second)
		if c.node == "" {
			p.owner("", "t/0", "tool")
		} else {
			p.owner("a", "t/"+c.node, "a")
		}
		p.joinsAs("c", "c", c.as, false)
		for p.number() == 1 {
			p.advance(10 * time.Millisecond)
		}
		for does := range strings.SplitSeq(c.does, ",") {
			if does != "" {
				p.tell(parse(does))
				p.advance(500 * time.Millisecond)
			}
		}
		v := p.s.View()
		_, waits := v.OffsetWaits(id.SessionID(p.raw["b"]), "g", "t", 0)
		if gives := v.GivesUp("g", "t", 0); gives != c.want || waits != c.want {
			t.Errorf("%s: it is to be released: %v, a read of its offset waits: %v", c.name, gives, waits)
		}
		p.advance(15 * time.Second)
		_, waits = p.s.View().OffsetWaits(0, "g", "t", 0)
		if gives := p.s.View().GivesUp("g", "t", 0); gives || waits {
			t.Errorf("%s, the generation is complete: it is to be released: %v, a read of its offset waits: %v", c.name, gives, waits)
		}
	}
}

// Each item of a commit to a mixed group is judged by who owns its partition.
func TestItemsOfACommitToAMixedGroup(t *testing.T) {
	w := newTown(t)
	w.topic("t", 4)
	w.add("g_a", state.DialectJVM, "t:1").start()
	w.pass(time.Second)
	m, c := w.consumer("M1", "t"), w.consumer("C1", "t")
	c.classic = true
	m.start()
	c.start()
	w.pass(15 * time.Second)
	w.want(t, "shared", "C1 t[2]; M1 t[3]; g_a t[0 1]")
	commits := func(when string, from pb.OffsetOrigin, by string, member *modern, at int64, partitions []int32, want ...pb.Code) {
		t.Helper()
		cmd := &pb.CommitOffsets{Group: "g", Generation: -1, By: by, From: from}
		if member != nil {
			cmd.Member, cmd.Generation = member.id, member.epoch
		}
		for _, n := range partitions {
			cmd.Items = append(cmd.Items, &pb.OffsetItem{Topic: "t", Partition: n, Offset: at})
		}
		res := w.apply(&pb.Command{Body: &pb.Command_CommitOffsets{CommitOffsets: cmd}})
		for i, n := range partitions {
			code := res.Code
			if code == pb.Code_OK && res.Parts != nil {
				code = res.Parts[i].Code
			}
			o, _ := w.s.View().Offset("g", "t", n)
			if code != want[i] || (code == pb.Code_OK) != (o != nil && int64(o.Offset) == at) {
				t.Errorf("%s: partition %d: %s, want %s; the offset is %v", when, n, code, want[i], o)
			}
		}
	}
	const v0, kafka = pb.OffsetOrigin_ORIGIN_ZNODE, pb.OffsetOrigin_ORIGIN_KAFKA
	commits("nobody else has committed it", v0, "n@10.0.0.9", nil, 1, []int32{3}, pb.Code_OK)
	commits("nor has since", v0, "n@10.0.0.9", nil, 2, []int32{3}, pb.Code_OK)
	commits("its member", kafka, "m@h", m, 3, []int32{3}, pb.Code_OK)
	commits("that has committed since", v0, "n@10.0.0.9", nil, 4, []int32{3}, pb.Code_OFFSET_STALE)
	commits("without a name", kafka, "n@10.0.0.9", nil, 5, []int32{3}, pb.Code_UNKNOWN_MEMBER)
	commits("an old consumer's", v0, "x@10.0.0.9", nil, 6, []int32{0}, pb.Code_OK)
	commits("an old consumer's, by another", v0, "n@10.0.0.9", nil, 7, []int32{0}, pb.Code_OK)
	commits("an old consumer's, by a consumer member", kafka, "m@h", m, 8, []int32{0}, pb.Code_STALE_EPOCH)
	commits("an old consumer's, by a classic member", kafka, "c@h", c, 9, []int32{0}, pb.Code_ILLEGAL_GENERATION)
	commits("its owner", kafka, "a@10.0.0.1", nil, 10, []int32{0}, pb.Code_OK)
	commits("a member's, and one that is late", kafka, "d@10.0.0.9", nil, 11, []int32{3, 0}, pb.Code_UNKNOWN_MEMBER, pb.Code_OFFSET_STALE)
}
