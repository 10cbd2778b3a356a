package zkcompat_test

import (
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
	"github.com/barnabas-mq/barnabas/zkcompat/jute"
)

func jvmRegistration(topic string) []byte {
	return []byte(`{"version":1,"subscription":{"` + topic + `":1},"pattern":"static","timestamp":"1"}`)
}

// group makes what a group's first consumer makes, and a topic.
func (f *fold) group(t *testing.T, a *rawClient) {
	t.Helper()
	a.create("/brokers/topics/t", `{"version":1,"partitions":{"0":[1],"1":[1]}}`, 0)
	for _, p := range []string{"/consumers/g", "/consumers/g/ids", "/consumers/g/owners", "/consumers/g/owners/t", "/consumers/g/offsets", "/consumers/g/offsets/t"} {
		a.create(p, "", 0)
	}
}

// A held join and a held claim outlive the coordinator: the node repeats them to the next one. Members see nothing half done, tools
// see the tree as it is, pings are answered all the while.
func TestHoldsOutliveTheCoordinator(t *testing.T) {
	f := newFold(t, 1)
	c := f.coordinate(t)
	n := f.coordinated(t, c, 0)
	_, addr := serve(t, n.b, nil)
	tool, a, b := session(t, addr), session(t, addr), session(t, addr)
	f.group(t, tool)
	a.must(jute.OpCreate, createReq("/consumers/g/ids/a", jvmRegistration("t"), jute.FlagEphemeral))
	a.must(jute.OpGetChildren, &jute.PathWatch{Path: "/consumers/g/ids", Watch: true})
	a.must(jute.OpCreate, createReq("/consumers/g/owners/t/0", []byte("a-0"), jute.FlagEphemeral))

	// The first generation is not claimed whole: a second member is held, and seen by tools only.
	join := b.send(jute.OpCreate, createReq("/consumers/g/ids/b", jvmRegistration("t"), jute.FlagEphemeral))
	for {
		if m, _ := tool.call(jute.OpExists, &jute.PathWatch{Path: "/consumers/g/ids/b"}); m.Err == jute.OK {
			break
		}
	}
	if m, ev := a.call(jute.OpGetData, &jute.PathWatch{Path: "/consumers/g/ids/b"}); m.Err != jute.NoNode || len(ev) > 0 {
		t.Fatal("a member saw what is not published:", m, ev)
	}
	c.next()
	b.sendXid(jute.XidPing, jute.OpPing, nil)
	if m := b.next(); m.Xid != jute.XidPing {
		t.Fatal(m)
	}
	a.must(jute.OpCreate, createReq("/consumers/g/owners/t/1", []byte("a-0"), jute.FlagEphemeral)) // now it is whole
	if m := b.next(); m.Xid != join || m.Err != jute.OK {
		t.Fatal(m)
	}
	if e, ok := a.next().event(); !ok || e.Type != jute.NodeChildrenChanged || e.Path != "/consumers/g/ids" {
		t.Fatal(e)
	}
	if m, _ := a.call(jute.OpGetData, &jute.PathWatch{Path: "/consumers/g/ids/b"}); m.Err != jute.OK {
		t.Fatal(m)
	}

	// b claims what a still has, over a fail-over, until a releases it.
	claim := b.send(jute.OpCreate, createReq("/consumers/g/owners/t/1", []byte("b-0"), jute.FlagEphemeral))
	b.sendXid(jute.XidPing, jute.OpPing, nil)
	if m := b.next(); m.Xid != jute.XidPing {
		t.Fatal(m)
	}
	c.next()
	// A blind delete by another member finds nothing (zk-paths.md 6.4).
	d := session(t, addr)
	held := d.send(jute.OpCreate, createReq("/consumers/g/ids/d", jvmRegistration("t"), jute.FlagEphemeral))
	a.must(jute.OpDelete, &jute.PathVersion{Path: "/consumers/g/owners/t/1", Version: -1})
	if m := b.next(); m.Xid != claim || m.Err != jute.OK {
		t.Fatal(m)
	}
	if m, _ := a.call(jute.OpDelete, &jute.PathVersion{Path: "/consumers/g/owners/t/1", Version: -1}); m.Err != jute.NoNode {
		t.Fatal("a member deleted another's owner:", m)
	}
	if counts := n.b.GateCounts(); counts[state.GateDelete] != 1 {
		t.Error(counts)
	}
	tool.must(jute.OpExists, &jute.PathWatch{Path: "/consumers/g/owners/t/1"})
	a.must(jute.OpDelete, &jute.PathVersion{Path: "/consumers/g/owners/t/0", Version: -1})
	a.must(jute.OpCreate, createReq("/consumers/g/owners/t/0", []byte("a-0"), jute.FlagEphemeral))
	if m := d.next(); m.Xid != held || m.Err != jute.OK {
		t.Fatal(m)
	}
}

// With its gates off a group is as on any ZooKeeper.
func TestGatesOff(t *testing.T) {
	f := newFold(t, 1)
	c := f.coordinate(t)
	n := f.coordinated(t, c, 0)
	_, addr := serve(t, n.b, nil)
	tool, a, b := session(t, addr), session(t, addr), session(t, addr)
	f.group(t, tool)
	a.must(jute.OpCreate, createReq("/consumers/g/ids/a", jvmRegistration("t"), jute.FlagEphemeral))
	a.must(jute.OpGetChildren, &jute.PathWatch{Path: "/consumers/g/ids", Watch: true})
	if r := f.apply(&statepb.Command{Body: &statepb.Command_SetConfig{SetConfig: &statepb.SetConfig{Type: "groups", Name: "g", ZnodeVersion: -1,
		Entries: []*statepb.ConfigEntry{{Name: "legacy.gates.off", Value: "all"}}}}}); r.Code != statepb.Code_OK {
		t.Fatal(r)
	}
	start := time.Now()
	b.must(jute.OpCreate, createReq("/consumers/g/ids/b", jvmRegistration("t"), jute.FlagEphemeral))
	a.must(jute.OpCreate, createReq("/consumers/g/owners/t/0", []byte("a-0"), jute.FlagEphemeral))
	if m, _ := b.call(jute.OpCreate, createReq("/consumers/g/owners/t/0", []byte("b-0"), jute.FlagEphemeral)); m.Err != jute.NodeExists {
		t.Fatal(m)
	}
	if took := time.Since(start); took > 7*time.Second {
		t.Errorf("nothing was to be held, it took %s", took)
	}
	b.must(jute.OpDelete, &jute.PathVersion{Path: "/consumers/g/owners/t/0", Version: -1})
	for {
		m, ev := a.call(jute.OpGetData, &jute.PathWatch{Path: "/consumers/g/ids/b"})
		if len(ev) == 1 && ev[0].Type != jute.NodeChildrenChanged {
			t.Fatal(ev)
		}
		if m.Err == jute.OK {
			break
		}
	}
}
