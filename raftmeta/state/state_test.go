package state

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/barnabas-mq/barnabas/internal/id"
	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// cases.md 3, with its numbers.
func TestParentCounters(t *testing.T) {
	f := newFold(t)
	f.ok(create("/p", ""))
	f.ok(create("/p/a", ""))
	f.ok(create("/p/b", ""))
	f.ok(del("/p/a", -1))
	seq := f.ok(&pb.Command{Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: "/p/s-", Sequential: true}}})
	if seq.Path != "/p/s-0000000002" {
		t.Fatalf("sequential name %s", seq.Path)
	}
	z, _ := f.s.View().Znode("/p")
	if z.Stat.Cversion() != 4 || z.Stat.Children != 2 {
		t.Fatalf("cversion %d children %d", z.Stat.Cversion(), z.Stat.Children)
	}
	pzxid := z.Stat.Pzxid
	f.ok(set("/p/b", "x", -1))
	z, _ = f.s.View().Znode("/p")
	if z.Stat.Cversion() != 4 || z.Stat.Pzxid != pzxid {
		t.Fatal("setData of a child moved its parent's counters")
	}
	r := f.ok(del("/p/b", 1))
	z, _ = f.s.View().Znode("/p")
	if z.Stat.Cversion() != 5 || int64(z.Stat.Pzxid) != r.Zxid {
		t.Fatalf("cversion %d pzxid %d, want 5 and %d", z.Stat.Cversion(), z.Stat.Pzxid, r.Zxid)
	}
}

func TestZnodeRefusals(t *testing.T) {
	f := newFold(t)
	ses := f.ok(session())
	f.ok(create("/a", "1"))
	f.ok(create("/a/b", "1"))
	f.ok(ephemeral(ses.Value, ses.Epoch, "/e"))
	for _, c := range []struct {
		name string
		cmd  *pb.Command
		want pb.Code
	}{
		{"parent missing", create("/x/y", ""), pb.Code_NO_NODE},
		{"exists", create("/a", ""), pb.Code_NODE_EXISTS},
		{"child of ephemeral", create("/e/x", ""), pb.Code_NO_CHILDREN_FOR_EPHEMERALS},
		{"bad path", create("/a//b", ""), pb.Code_INVALID},
		{"relative", create("a", ""), pb.Code_INVALID},
		{"delete with children", del("/a", -1), pb.Code_NOT_EMPTY},
		{"delete wrong version", del("/a/b", 3), pb.Code_BAD_VERSION},
		{"delete missing", del("/nope", -1), pb.Code_NO_NODE},
		{"delete root", del("/brokers/topics", -1), pb.Code_NO_AUTH},
		{"delete the root of all", del("/", -1), pb.Code_INVALID},
		{"set wrong version", set("/a", "", 1), pb.Code_BAD_VERSION},
		{"set missing", set("/nope", "", -1), pb.Code_NO_NODE},
		{"broker by hand", create("/brokers/ids/9", "{}"), pb.Code_NO_AUTH},
		{"controller by hand", set("/controller_epoch", "9", -1), pb.Code_NO_AUTH},
		{"ephemeral without session", ephemeral(0, 0, "/e2"), pb.Code_INVALID},
		{"unknown session", ephemeral(99, 1, "/e2"), pb.Code_SESSION_EXPIRED},
		{"old attach epoch", ephemeral(ses.Value, ses.Epoch+1, "/e2"), pb.Code_SESSION_MOVED},
	} {
		before := f.s.View().ZXID()
		if r := f.do(c.cmd)[0]; r.Code != c.want {
			t.Errorf("%s: got %v (%s), want %v", c.name, r.Code, r.Text, c.want)
		}
		if f.s.View().ZXID() != before {
			t.Errorf("%s: a refusal took a zxid", c.name)
		}
	}
}

func TestSessionEndTakesItsEphemeralsInOneEntry(t *testing.T) {
	f := newFold(t)
	a, b := f.ok(session()), f.ok(session())
	if a.Value == b.Value || a.Value == 0 {
		t.Fatal("session ids are not unique")
	}
	f.ok(ephemeral(a.Value, 1, "/mine"))
	f.ok(ephemeral(b.Value, 1, "/theirs"))
	f.want(pb.Code_NODE_EXISTS, ephemeral(b.Value, 1, "/mine"))
	moved := f.ok(&pb.Command{Body: &pb.Command_AttachSession{AttachSession: &pb.AttachSession{Session: a.Value, Password: topicID(7), Broker: 2, TimeoutMs: 7000}}})
	if ses, ok := f.s.View().Session(id.SessionID(a.Value)); moved.Value != 7000 || !ok || ses.TimeoutMs != 7000 {
		t.Errorf("attached with a timeout of 7 s: %v, %+v", moved, ses)
	}
	f.want(pb.Code_NO_AUTH, &pb.Command{Body: &pb.Command_AttachSession{AttachSession: &pb.AttachSession{Session: a.Value, Password: topicID(8)}}})
	f.want(pb.Code_SESSION_MOVED, &pb.Command{Body: &pb.Command_CloseSession{CloseSession: &pb.CloseSession{Session: a.Value, AttachEpoch: 1}}})
	r := f.ok(&pb.Command{Body: &pb.Command_ExpireSessions{ExpireSessions: &pb.ExpireSessions{Sessions: []*pb.CloseSession{
		{Session: a.Value, AttachEpoch: moved.Epoch}, {Session: b.Value, AttachEpoch: 77}}}}})
	if r.Parts[0].Code != pb.Code_OK || r.Parts[1].Code != pb.Code_SESSION_MOVED {
		t.Fatalf("parts %v", r.Parts)
	}
	v := f.s.View()
	if _, ok := v.Znode("/mine"); ok {
		t.Fatal("the ephemeral outlived its session")
	}
	if _, ok := v.Znode("/theirs"); !ok || len(v.Ephemerals(id.SessionID(b.Value))) != 1 {
		t.Fatal("another session's ephemeral went")
	}
}

// A fenced broker's leaderships move in the same entry; its lane ends; the new leader waits unless the death is proven.
func TestFenceMovesEverythingAtOnce(t *testing.T) {
	for _, proven := range []bool{true, false} {
		f := newFold(t)
		var epochs [4]uint64
		for n := int32(1); n <= 3; n++ {
			epochs[n] = f.broker(n, "n1").Epoch
		}
		f.ok(mkTopic("t", 1, []int32{1, 2, 3}, []int32{2, 3, 1}, []int32{1}))
		fence := &pb.Command{Body: &pb.Command_FenceBroker{FenceBroker: &pb.FenceBroker{Broker: 1, Epoch: epochs[1], Proven: proven}}}
		f.ok(fence)
		f.want(pb.Code_STALE, fence)
		if p := f.part("t", 0); p.Leader != 2 || p.LeaderEpoch != 1 || !slices.Equal(p.ISR, []id.BrokerID{2, 3}) || p.GraceNeeded == proven {
			t.Fatalf("partition 0: %+v", p)
		}
		if p := f.part("t", 1); p.Leader != 2 || p.LeaderEpoch != 0 || p.Epoch != 1 || !slices.Equal(p.ISR, []id.BrokerID{2, 3}) {
			t.Fatalf("partition 1: %+v", p)
		}
		if p := f.part("t", 2); p.Leader != id.NoBroker || !slices.Equal(p.ISR, []id.BrokerID{1}) {
			t.Fatalf("partition 2: %+v", p)
		}
		r := f.do(&pb.Command{Lane: epochs[1], Seq: 1, Body: &pb.Command_Tick{Tick: &pb.Tick{}}})[0]
		if r.Code != pb.Code_LANE_ENDED {
			t.Fatalf("a fenced incarnation's command: %v", r.Code)
		}
		back := f.broker(1, "n2")
		if back.Epoch == epochs[1] {
			t.Fatal("the new incarnation has the old epoch")
		}
		if p := f.part("t", 2); p.Leader != 1 || p.LeaderEpoch != 2 {
			t.Fatalf("the last of an ISR did not get its partition back: %+v", p)
		}
		if again := f.broker(1, "n2"); again.Epoch != back.Epoch {
			t.Fatal("a repeated registration made another incarnation")
		}
		roundTrip(t, f.s)
	}
}

// A grace outlives the leader that was in it: one that dies before it has waited the earlier leader out hands the wait on
// (internal/lease: the model's fault "grace forgotten by the next election").
func TestGraceStaysUntilALeaderHasWaited(t *testing.T) {
	f := newFold(t)
	var epochs [4]uint64
	for n := int32(1); n <= 3; n++ {
		epochs[n] = f.broker(n, "n1").Epoch
	}
	f.ok(mkTopic("t", 1, []int32{1, 2, 3}))
	fence := func(b int32, proven bool) {
		f.ok(&pb.Command{Body: &pb.Command_FenceBroker{FenceBroker: &pb.FenceBroker{Broker: b, Epoch: epochs[b], Proven: proven}}})
	}
	fence(1, false)
	fence(2, true)
	p := f.part("t", 0)
	if p.Leader != 3 || !p.GraceNeeded {
		t.Fatalf("%+v", p)
	}
	top, _ := f.s.View().Topic("t")
	alter := func(waited bool) {
		p := f.part("t", 0)
		f.ok(&pb.Command{Body: &pb.Command_AlterPartition{AlterPartition: &pb.AlterPartition{TopicId: top.ID[:], Broker: 3, BrokerEpoch: epochs[3],
			LeaderEpoch: int32(p.LeaderEpoch), PartitionEpoch: int32(p.Epoch), Isr: []int32{3}, Waited: waited}}})
	}
	if alter(false); !f.part("t", 0).GraceNeeded {
		t.Fatal("a change of the ISR ended the grace")
	}
	if alter(true); f.part("t", 0).GraceNeeded {
		t.Fatal("the grace did not end")
	}
}

// faults.md S04: all brokers are killed and two return. They may serve; nobody waits for the third, which is found dead.
func TestAllRestartTwoReturn(t *testing.T) {
	f := newFold(t)
	var third uint64
	for n := int32(1); n <= 3; n++ {
		third = f.broker(n, "n1").Epoch
	}
	f.ok(mkTopic("t", 1, []int32{1, 2, 3}, []int32{3, 1, 2}))
	for n := int32(1); n <= 2; n++ {
		c := register(n, fmt.Sprintf("dir-%d", n), "n2")
		c.GetRegisterBroker().KeepsLog = true
		f.ok(c)
	}
	f.ok(&pb.Command{Body: &pb.Command_FenceBroker{FenceBroker: &pb.FenceBroker{Broker: 3, Epoch: third, Proven: true}}})
	for n := int32(0); n < 2; n++ {
		if p := f.part("t", n); p.Leader != 1 && p.Leader != 2 || len(p.ISR) != 2 {
			t.Fatalf("partition %d: %+v", n, p)
		}
	}
	// One that may have lost what it acknowledged leaves the ISR as long as others are in it.
	f.broker(1, "n3")
	if p := f.part("t", 0); p.Leader != 2 || !slices.Equal(p.ISR, []id.BrokerID{2}) {
		t.Fatalf("%+v", p)
	}
}

func TestAlterPartitionIsCompareAndSet(t *testing.T) {
	f := newFold(t)
	e1, e2 := f.broker(1, "a").Epoch, f.broker(2, "a").Epoch
	f.ok(mkTopic("t", 1, []int32{1, 2}))
	alter := func(pe int32, isr []int32, epochs []uint64) *pb.Command {
		return &pb.Command{Body: &pb.Command_AlterPartition{AlterPartition: &pb.AlterPartition{TopicId: topicID(1), Broker: 1, BrokerEpoch: e1,
			PartitionEpoch: pe, Isr: isr, IsrEpochs: epochs}}}
	}
	f.ok(alter(0, []int32{1}, nil))
	f.want(pb.Code_STALE, alter(0, []int32{1, 2}, nil))
	f.want(pb.Code_FENCED, alter(1, []int32{1, 2}, []uint64{e1, e2 + 9}))
	f.want(pb.Code_INVALID, alter(1, []int32{2}, nil))
	f.want(pb.Code_INVALID, alter(1, []int32{1, 1}, nil))
	f.want(pb.Code_INVALID, alter(1, []int32{1, 3}, nil))
	f.ok(alter(1, []int32{1, 2}, []uint64{e1, e2}))
	if p := f.part("t", 0); p.Epoch != 2 || p.LeaderEpoch != 0 {
		t.Fatalf("%+v", p)
	}
}

func TestBrokerZnodesNeverEmpty(t *testing.T) {
	f := newFold(t)
	e1, e2 := f.broker(1, "a").Epoch, f.broker(2, "a").Epoch
	hide := func(n int32, e uint64) *pb.Command {
		return &pb.Command{Body: &pb.Command_SetBrokerVisible{SetBrokerVisible: &pb.SetBrokerVisible{Broker: n, Epoch: e}}}
	}
	f.ok(hide(1, e1))
	f.want(pb.Code_INVALID, hide(2, e2))
	f.want(pb.Code_STALE, hide(2, e2+1))
	z, _ := f.s.View().Znode("/brokers/ids")
	if z.Stat.Children != 1 {
		t.Fatalf("%d children", z.Stat.Children)
	}
}

// A broker that is back before its znode went is no change in /brokers/ids: old clients rebalance on every one. At another
// address it is.
func TestQuickRestartKeepsTheBrokersZnode(t *testing.T) {
	f := newFold(t)
	f.broker(1, "a")
	shown := func() (n int) {
		for _, c := range f.last.Changes {
			if c.Kind == BrokerShown || c.Kind == BrokerHidden {
				n++
			}
		}
		return n
	}
	before, _ := f.s.View().Znode("/brokers/ids")
	first, _ := f.s.View().Broker(1)
	f.broker(1, "b")
	after, _ := f.s.View().Znode("/brokers/ids")
	second, _ := f.s.View().Broker(1)
	if shown() != 0 || before.Stat != after.Stat || first.Stat != second.Stat || first.Epoch == second.Epoch {
		t.Fatalf("%d events, %+v then %+v", shown(), first, second)
	}
	moved := register(1, "dir-1", "c")
	moved.GetRegisterBroker().Endpoints[0].Port++
	f.ok(moved)
	if third, _ := f.s.View().Broker(1); shown() != 2 || third.Stat.Czxid == second.Stat.Czxid {
		t.Fatalf("%d events for a new address, %+v", shown(), third)
	}
}

func TestOffsetFaces(t *testing.T) {
	f := newFold(t)
	f.ok(commit("g", "t", 0, 42))
	f.ok(commit("g", "t", 17, 1))
	v := f.s.View()
	if o, ok := v.Offset("g", "t", 0); !ok || o.Offset != 42 || o.Version != 0 {
		t.Fatalf("%+v", o)
	}
	if z, ok := v.Znode("/consumers/g/offsets/t"); !ok || z.Stat.Children != 2 || !z.Null {
		t.Fatal("the directory of the offsets is missing or does not count them")
	}
	if _, ok := v.Group("g"); !ok {
		t.Fatal("no group row")
	}
	f.ok(set("/consumers/g/offsets/t/0", "50", 0))
	f.want(pb.Code_BAD_VERSION, set("/consumers/g/offsets/t/0", "51", 0))
	f.want(pb.Code_INVALID, set("/consumers/g/offsets/t/0", "abc", -1))
	f.want(pb.Code_NODE_EXISTS, create("/consumers/g/offsets/t/0", "1"))
	f.want(pb.Code_INVALID, create("/consumers/g/offsets/t/0/x", "1"))
	f.ok(create("/consumers/g/offsets/t/3", "9"))
	f.ok(create("/consumers/g/offsets/t/name", "free"))
	f.ok(commit("g", "t", 0, 60))
	if o, _ := f.s.View().Offset("g", "t", 0); o.Offset != 60 || o.Version != 2 {
		t.Fatalf("%+v", o)
	}
	f.ok(del("/consumers/g/offsets/t/0", 2))
	if _, ok := f.s.View().Offset("g", "t", 0); ok {
		t.Fatal("a deleted znode left its offset")
	}
	f.want(pb.Code_INVALID, commit("a/b", "t", 0, 1))
	f.want(pb.Code_INVALID, commit("", "t", 0, 1))
	roundTrip(t, f.s)
}

// cases.md 25: offsets and configuration go with the topic.
func TestDeleteTopicTakesOffsetsAndConfig(t *testing.T) {
	f := newFold(t)
	f.broker(1, "a")
	f.ok(&pb.Command{Body: &pb.Command_SetConfig{SetConfig: &pb.SetConfig{Type: "topics", Name: "t", CreateOnly: true, ZnodeVersion: -1,
		Entries: []*pb.ConfigEntry{{Name: "retention.ms", Value: "1"}}}}})
	c := mkTopic("t", 1, []int32{1}, []int32{1})
	c.GetCreateTopic().KeepConfig = true
	f.ok(c)
	if cfg, ok := f.s.View().Config("topics", "t"); !ok || len(cfg.Entries) != 1 {
		t.Fatal("the config that preceded its topic is gone")
	}
	f.ok(commit("g", "t", 1, 500))
	f.ok(commit("g", "u", 1, 7))
	f.want(pb.Code_TOPIC_EXISTS, mkTopic("t", 2, []int32{1}))
	f.ok(&pb.Command{Body: &pb.Command_DeleteTopic{DeleteTopic: &pb.DeleteTopic{Name: "t"}}})
	v := f.s.View()
	if _, ok := v.Offset("g", "t", 1); ok {
		t.Fatal("offset left")
	}
	if _, ok := v.Znode("/consumers/g/offsets/t"); ok {
		t.Fatal("offset directory left")
	}
	if _, ok := v.Offset("g", "u", 1); !ok {
		t.Fatal("another topic's offset went")
	}
	if _, ok := v.Config("topics", "t"); ok {
		t.Fatal("config left")
	}
	if _, ok := v.Partition("t", 0); ok {
		t.Fatal("partitions left")
	}
	f.ok(mkTopic("t", 3, []int32{1}))
}

func TestOneOwner(t *testing.T) {
	f := newFold(t)
	a, b := f.ok(session()), f.ok(session())
	for _, p := range []string{"/consumers/g", "/consumers/g/owners", "/consumers/g/owners/t"} {
		f.ok(create(p, ""))
	}
	claim := func(s int64, version uint64) *pb.Command {
		return &pb.Command{Origin: &pb.Origin{Session: s, AttachEpoch: 1}, Body: &pb.Command_ClaimOwner{ClaimOwner: &pb.ClaimOwner{
			Group: "g", Topic: "t", Name: "0", Data: []byte("x"), Ephemeral: true, GroupVersion: version}}}
	}
	g, _ := f.s.View().Group("g")
	f.want(pb.Code_STALE, claim(a.Value, g.Version+1))
	f.ok(claim(a.Value, g.Version))
	f.want(pb.Code_NODE_EXISTS, claim(b.Value, 0))
	if after, _ := f.s.View().Group("g"); after.Version == g.Version {
		t.Fatal("a claim did not move the group's version")
	}
	f.ok(&pb.Command{Body: &pb.Command_CloseSession{CloseSession: &pb.CloseSession{Session: a.Value, AttachEpoch: 1}}})
	f.ok(claim(b.Value, 0))
}

func TestZxidFollowsTheTerm(t *testing.T) {
	f := newFold(t)
	f.term = 5
	if r := f.ok(create("/a", "")); r.Zxid != 5<<32 {
		t.Fatalf("%x", r.Zxid)
	}
	if r := f.ok(create("/b", "")); r.Zxid != 5<<32+1 {
		t.Fatalf("%x", r.Zxid)
	}
	f.ok(&pb.Command{Body: &pb.Command_RaiseZxid{RaiseZxid: &pb.RaiseZxid{Zxid: 9 << 32}}})
	f.term = 6
	if r := f.ok(create("/c", "")); r.Zxid != 9<<32+1 {
		t.Fatalf("%x", r.Zxid)
	}
	f.ok(&pb.Command{Body: &pb.Command_RaiseZxid{RaiseZxid: &pb.RaiseZxid{Zxid: 1}}}) // it only raises
	if r := f.ok(create("/d", "")); r.Zxid != 9<<32+2 {
		t.Fatalf("%x", r.Zxid)
	}
}

func TestMindsCommandsNeedTheirTerm(t *testing.T) {
	f := newFold(t)
	f.term = 3
	c := &pb.Command{Term: 2, Body: &pb.Command_TermStarted{TermStarted: &pb.TermStarted{Broker: 1}}}
	f.want(pb.Code_STALE_TERM, c)
	c.Term = 3
	f.ok(c)
	first := f.s.View()
	f.ok(c)
	if _, e := f.s.View().Controller(); e != 1 {
		t.Fatalf("controller epoch %d", e)
	}
	if first.ZXID() != f.s.View().ZXID() {
		t.Fatal("a repeated TermStarted changed something")
	}
}

func TestClusterClockIsClamped(t *testing.T) {
	f := newFold(t)
	before := f.s.View().ClockMs()
	b, err := proto.Marshal(&pb.Entry{ClockStepMs: 3_600_000})
	if err != nil {
		t.Fatal(err)
	}
	f.index++
	v := f.s.Apply(f.index, 1, b).View
	if v.ClockMs()-before != maxClockStepMs {
		t.Fatalf("one entry moved the clock by %d ms", v.ClockMs()-before)
	}
}

// A level is raised only when every live broker serves it; before that its commands are refused, not applied.
func TestLevels(t *testing.T) {
	f := newFold(t)
	f.broker(1, "a") // serves level 1 only
	f.want(pb.Code_LEVEL, &pb.Command{Level: 2, Body: &pb.Command_Annotate{Annotate: &pb.Annotate{Note: "x"}}})
	f.want(pb.Code_LEVEL, &pb.Command{Body: &pb.Command_RaiseLevel{RaiseLevel: &pb.RaiseLevel{Level: 2}}})
	high := register(2, "dir-2", "a")
	high.GetRegisterBroker().MinLevel, high.GetRegisterBroker().MaxLevel = 2, 3
	f.want(pb.Code_LEVEL, high)
	if f.s.View().Level() != 1 {
		t.Fatalf("level %d", f.s.View().Level())
	}
}

func TestUnknownCommandsCrash(t *testing.T) {
	for name, data := range map[string][]byte{
		"not an entry":    {0xff, 0xff},
		"unknown version": encode(t, &pb.Command{Version: 9, Body: &pb.Command_Tick{Tick: &pb.Tick{}}}),
		"no kind":         encode(t, &pb.Command{}),
	} {
		t.Run(name, func(t *testing.T) {
			f := newFold(t)
			defer func() {
				if recover() == nil {
					t.Fatal("guessed instead of stopping")
				}
			}()
			f.s.Apply(99, 1, data)
		})
	}
}

func TestSnapshotRefusesDamage(t *testing.T) {
	f := newFold(t)
	f.broker(1, "a")
	f.ok(mkTopic("t", 1, []int32{1}))
	f.ok(commit("g", "t", 0, 1))
	var b bytes.Buffer
	if _, err := f.s.Snapshot().WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	good := b.Bytes()
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 0x40
		if _, err := Restore(bytes.NewReader(bad), false); !errors.Is(err, ErrSnapshot) {
			t.Fatalf("bit flipped in byte %d of %d: %v", i, len(good), err)
		}
		if _, err := Restore(bytes.NewReader(good[:i]), false); !errors.Is(err, ErrSnapshot) {
			t.Fatalf("cut at byte %d of %d: %v", i, len(good), err)
		}
	}
}

func TestPaths(t *testing.T) {
	for path, bad := range map[string]bool{
		"/": false, "/a": false, "/a/b'c'": false, "": true, "a": true, "/a/": true, "//a": true, "/a/./b": true, "/a/..": true,
		"/a\x00b": true, "/\u0001": true, "/ü": false,
	} {
		if why := ValidPath(path); (why != "") != bad {
			t.Errorf("%q: %q", path, why)
		}
	}
	for path, kind := range map[string]PathKind{
		"/consumers": Free, "/consumers/g": PathGroupDir, "/consumers/g/ids": PathGroupDir, "/consumers/g/ids/x": PathMember,
		"/consumers/g/owners/t": PathGroupDir, "/consumers/g/owners/t/1-2": PathOwner, "/consumers/g/offsets/t/7": PathOffset,
		"/consumers/g/offsets/t/07": Free, "/consumers/g/x": Free, "/brokers/ids/1": PathBroker, "/brokers/topics/t": PathTopic,
		"/brokers/topics/t/partitions/0/state": PathTopic, "/config/topics/t": PathConfig, "/config/changes/c": Free,
		"/controller": PathController, "/storm/x": Free,
	} {
		if got := ParsePath(path).Kind; got != kind {
			t.Errorf("%s: kind %d, want %d", path, got, kind)
		}
	}
}

func TestTopicNames(t *testing.T) {
	for name, bad := range map[string]bool{"a": false, "A.b_c-9": false, "": true, ".": true, "..": true, "a b": true, "ü": true,
		strings.Repeat("a", 249): false, strings.Repeat("a", 250): true, "a/b": true} {
		if why := ValidTopicName(name); (why != "") != bad {
			t.Errorf("%q: %q", name, why)
		}
	}
}

// A new data directory may take the id of a fenced broker. It has none of the old one's records, so it leaves every ISR in the
// same entry; where the old one was the last of an ISR, nobody leads until an operator decides.
func TestNewDirectoryTakesAFencedID(t *testing.T) {
	f := newFold(t)
	first := f.broker(1, "a")
	f.broker(2, "a")
	f.ok(mkTopic("t", 1, []int32{1, 2}, []int32{1}))
	other := func() *pb.Command {
		c := register(1, "dir-new", "b")
		c.GetRegisterBroker().KeepsLog = true
		return c
	}
	f.want(pb.Code_INVALID, other()) // the old one is live
	f.want(pb.Code_INVALID, register(3, "dir-1", "b"))
	f.ok(&pb.Command{Body: &pb.Command_FenceBroker{FenceBroker: &pb.FenceBroker{Broker: 1, Epoch: first.Epoch, Proven: true}}})
	next := f.ok(other())
	if b, _ := f.s.View().Broker(1); b.Directory != "dir-new" || next.Epoch == first.Epoch {
		t.Fatalf("%+v", b)
	}
	if p := f.part("t", 0); p.Leader != 2 || !slices.Equal(p.ISR, []id.BrokerID{2}) {
		t.Errorf("partition 0: %+v", p)
	}
	if p := f.part("t", 1); p.Leader != id.NoBroker || slices.Contains(p.ISR, 1) {
		t.Errorf("an empty directory leads what its predecessor was the last to hold: %+v", p)
	}
	roundTrip(t, f.s)
}

// Kept results are bounded: a proposer that never says what it has seen is refused, and goes on when it does.
func TestLaneResultsAreBounded(t *testing.T) {
	f := newFold(t)
	l := f.broker(1, "a").Epoch
	tick := func(seq, seen uint64) *pb.Command {
		return &pb.Command{Lane: l, Seq: seq, Seen: seen, Body: &pb.Command_Tick{Tick: &pb.Tick{}}}
	}
	for seq := uint64(1); seq <= MaxLaneResults; {
		var batch []*pb.Command
		for ; seq <= MaxLaneResults && len(batch) < 1000; seq++ {
			batch = append(batch, tick(seq, 0))
		}
		for _, r := range f.do(batch...) {
			if r.Code != pb.Code_OK {
				t.Fatal(r)
			}
		}
	}
	f.want(pb.Code_LANE_GAP, tick(MaxLaneResults+1, 0))
	f.ok(tick(MaxLaneResults+1, MaxLaneResults/2))
	f.want(pb.Code_LANE_GAP, tick(MaxLaneResults/2, 0)) // its result was seen: there is nothing to answer
	roundTrip(t, f.s)
}

// Owners of the brokers' znodes are no sessions: no session ever has such an id, and none can own such a node.
func TestBrokerZnodesHaveReservedOwners(t *testing.T) {
	f := newFold(t)
	f.broker(7, "a")
	f.ok(&pb.Command{Term: uint64(f.term), Body: &pb.Command_TermStarted{TermStarted: &pb.TermStarted{Broker: 7}}})
	ses := f.ok(session())
	b, _ := f.s.View().Broker(7)
	z, ok := f.s.View().Znode("/controller")
	if !ok || b.Stat.EphemeralOwner != brokerOwner|7 || z.Stat.EphemeralOwner != brokerOwner|7 || ses.Value >= brokerOwner || ses.Value <= 0 {
		t.Fatalf("broker %x, controller %x, session %x", b.Stat.EphemeralOwner, z.Stat.EphemeralOwner, ses.Value)
	}
	f.want(pb.Code_SESSION_EXPIRED, ephemeral(brokerOwner|7, 1, "/mine"))
	if again := roundTrip(t, f.s); len(again.View().Ephemerals(id.SessionID(brokerOwner|7))) != 0 {
		t.Fatal("a broker's znode is some session's ephemeral")
	}
}

// What a newer build wrote is refused by name, not skipped: an unknown section, format, level, field of a header or row.
func TestSnapshotOfANewerBuildIsRefused(t *testing.T) {
	f := newFold(t)
	f.ok(create("/a", "1"))
	good := snapshotBytes(t, f.s).Bytes()
	end := len(good) - 33 // the closing zero and the checksum
	if good[end] != 0 {
		t.Fatal("a snapshot does not end as this test knows it")
	}
	section := slices.Concat(good[:end], []byte{0x77, 0}, good[end:])
	sum := sha256.Sum256(section[:len(section)-32])
	copy(section[len(section)-32:], sum[:])
	if _, err := Restore(bytes.NewReader(section), false); !errors.Is(err, ErrSnapshot) || !strings.Contains(err.Error(), "unknown section") {
		t.Errorf("an unknown section: %v", err)
	}
	for what, header := range map[string][]byte{
		"a format":       {1 << 3, snapshotFormat + 1, 2 << 3, 1},
		"a level":        {1 << 3, snapshotFormat, 2 << 3, MaxLevel + 1},
		"a header field": {1 << 3, snapshotFormat, 2 << 3, 1, 9 << 3, 1},
	} {
		in := slices.Concat([]byte(snapshotMagic), []byte{byte(len(header))}, header)
		if _, err := Restore(bytes.NewReader(in), false); !errors.Is(err, ErrSnapshot) || strings.Contains(err.Error(), "end") {
			t.Errorf("%s of a newer build: %v", what, err)
		}
	}
}

// A session may make a directory of a group ephemeral, which no client does: what others commit below it outlives the session.
func TestOffsetsBelowAnEphemeralDirectory(t *testing.T) {
	for _, dir := range []string{"/consumers/g", "/consumers/g/offsets", "/consumers/g/offsets/t"} {
		f := newFold(t)
		f.broker(1, "a")
		f.ok(mkTopic("t", 1, []int32{1}))
		ses := f.ok(session()).Value
		for _, above := range []string{"/consumers/g", "/consumers/g/offsets"} {
			if len(above) < len(dir) {
				f.ok(create(above, ""))
			}
		}
		f.ok(ephemeral(ses, 1, dir))
		f.ok(commit("g", "t", 0, 5))
		if z, _ := f.s.View().Znode(dir); z.Stat.EphemeralOwner != 0 {
			t.Errorf("%s still shows its session, and would go with it once a snapshot was restored", dir)
		}
		f.ok(&pb.Command{Body: &pb.Command_CloseSession{CloseSession: &pb.CloseSession{Session: ses, AttachEpoch: 1}}})
		if _, ok := f.s.View().Offset("g", "t", 0); !ok {
			t.Errorf("%s: the offset went with a session", dir)
		}
		for _, path := range []string{"/consumers/g/offsets/t/0", "/consumers/g/offsets/t", "/consumers/g/offsets", "/consumers/g"} {
			f.ok(del(path, -1))
		}
	}
}

// A data directory outlives the build that wrote it. If this fails, the form of keys or rows has changed: then snapshotFormat must be
// raised, and older snapshots be read too.
func TestSnapshotsKeepTheirForm(t *testing.T) {
	f := newFold(t)
	f.broker(1, "a")
	f.broker(2, "b")
	replicas := make([][]int32, 300)
	for i := range replicas {
		replicas[i] = []int32{1, 2}
	}
	f.ok(mkTopic("t", 1, replicas...))
	f.ok(&pb.Command{Body: &pb.Command_SetConfig{SetConfig: &pb.SetConfig{Type: "topics", Name: "t", ZnodeVersion: -1,
		Entries: []*pb.ConfigEntry{{Name: "retention.ms", Value: "1"}}}}})
	ses := f.ok(session()).Value
	for _, path := range []string{"/a", "/a/b", "/consumers/g", "/consumers/g/ids", "/consumers/g/owners", "/consumers/g/owners/t"} {
		f.ok(create(path, "x"))
	}
	f.ok(ephemeral(ses, 1, "/e"))
	f.ok(ephemeral(ses, 1, "/consumers/g/ids/m"))
	f.ok(ephemeral(ses, 1, "/consumers/g/owners/t/0"))
	f.ok(put("modern", 0, 1, pb.GroupState_GROUP_STABLE, "m", "n"))
	for p := int32(0); p < 300; p += 3 {
		f.ok(commit("h", "t", p, int64(p)))
	}
	const want = "b2a653e71428c9a8670f4a221ab879e022a0935184fc5e62b78879603309abbf"
	if got := fmt.Sprintf("%x", sha256.Sum256(snapshotBytes(t, f.s).Bytes())); got != want {
		t.Errorf("the snapshot's bytes are %s, not %s", got, want)
	}
}
