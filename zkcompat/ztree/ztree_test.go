package ztree_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
	"github.com/barnabas-mq/barnabas/zkcompat/ztree"
)

// machine applies commands one entry each.
type machine struct {
	t     testing.TB
	s     *state.State
	index id.Index
	last  state.Applied
}

const wall = 1700000000000

func newMachine(t testing.TB) *machine {
	m := &machine{t: t, s: state.New()}
	m.must(&statepb.Command{Body: &statepb.Command_Bootstrap{Bootstrap: &statepb.Bootstrap{ClusterId: "abcdefghijklmnopqrstuv", Level: 1}}})
	for b := int32(1); b <= 3; b++ {
		m.must(&statepb.Command{Body: &statepb.Command_RegisterBroker{RegisterBroker: &statepb.RegisterBroker{
			DirectoryId: fmt.Sprint("d", b), Nonce: "n", WantedId: b, MinLevel: 1, MaxLevel: 1,
			Endpoints: []*statepb.Endpoint{{Listener: "PLAINTEXT", Host: "h", Port: 9091 + b}}}}})
	}
	m.must(&statepb.Command{Body: &statepb.Command_TermStarted{TermStarted: &statepb.TermStarted{Broker: 2}}})
	return m
}

func (m *machine) apply(cs ...*statepb.Command) []*statepb.Result {
	for _, c := range cs {
		c.Version = state.CommandVersion
	}
	data, err := proto.Marshal(&statepb.Entry{ClockStepMs: 1, WallMs: wall, Commands: cs})
	if err != nil {
		m.t.Fatal(err)
	}
	m.index++
	m.last = m.s.Apply(m.index, 1, data)
	var rs []*statepb.Result
	for _, s := range m.last.Settled {
		rs = append(rs, s.Result)
	}
	return rs
}

func (m *machine) must(c *statepb.Command) *statepb.Result {
	m.t.Helper()
	r := m.apply(c)[0]
	if r.Code != statepb.Code_OK {
		m.t.Fatalf("%v: %v %s", c, r.Code, r.Text)
	}
	return r
}

func (m *machine) view() ztree.View { return ztree.New(m.s.View()) }

// write plans and carries out.
func (m *machine) write(w ztree.Write) (statepb.Code, string) {
	plan := m.view().Plan(w, fmt.Appendf(nil, "topic-%010d", m.index))
	if plan.Command == nil {
		return plan.Code, plan.Text
	}
	r := m.apply(plan.Command)[0]
	if r.Code == plan.Known {
		return statepb.Code_OK, ""
	}
	return r.Code, r.Text
}

func (m *machine) create(path, data string) {
	m.t.Helper()
	if code, text := m.write(ztree.Write{Op: ztree.OpCreate, Path: path, Data: []byte(data)}); code != statepb.Code_OK {
		m.t.Fatalf("create %s: %v %s", path, code, text)
	}
}

func TestDocuments(t *testing.T) {
	m := newMachine(t)
	m.create("/config/topics/t", `{"version":1,"config":{"retention.ms":"1000","cleanup.policy":"a\"b"}}`)
	m.create("/brokers/topics/t", `{"version":1,"partitions":{"1":[2,1],"0":[1,2]}}`)
	m.must(&statepb.Command{Body: &statepb.Command_CommitOffsets{CommitOffsets: &statepb.CommitOffsets{Group: "g", Generation: -1,
		Items: []*statepb.OffsetItem{{Topic: "t", Partition: 1, Offset: 42, LeaderEpoch: -1, RetentionMs: -1}}}}})
	null := "\x00null"
	for path, want := range map[string]string{
		"/":                                    "",
		"":                                     "",
		"/brokers/ids/1":                       `{"version":2,"host":"h","port":9092,"jmx_port":-1,"timestamp":"1700000000000","endpoints":["PLAINTEXT://h:9092"]}`,
		"/brokers/topics/t":                    `{"version":1,"partitions":{"0":[1,2],"1":[2,1]}}`,
		"/brokers/topics/t/partitions":         null,
		"/brokers/topics/t/partitions/1":       null,
		"/brokers/topics/t/partitions/1/state": `{"controller_epoch":1,"leader":2,"version":1,"leader_epoch":0,"isr":[2,1]}`,
		"/controller":                          `{"version":1,"brokerid":2,"timestamp":"1700000000000"}`,
		"/controller_epoch":                    "1",
		"/cluster/id":                          `{"version":"1","id":"abcdefghijklmnopqrstuv"}`,
		"/config/topics/t":                     `{"version":1,"config":{"cleanup.policy":"a\"b","retention.ms":"1000"}}`,
		"/consumers/g/offsets/t/1":             "42",
		"/consumers/g/offsets":                 null,
		"/consumers":                           null,
		"/latest_producer_id_block":            null,
	} {
		n, ok := m.view().Node(path, ztree.Observer{})
		got := string(n.Data)
		if n.Data == nil {
			got = null
		}
		if !ok || got != want {
			t.Errorf("%s: %v %q, want %q", path, ok, got, want)
		}
		if int(n.Stat.DataLength) != len(n.Data) {
			t.Errorf("%s: dataLength %d of %d", path, n.Stat.DataLength, len(n.Data))
		}
		if strings.HasPrefix(want, "{") && !json.Valid(n.Data) {
			t.Errorf("%s is no JSON: %s", path, n.Data)
		}
	}
	for _, path := range []string{"/brokers/ids/9", "/brokers/ids/01", "/brokers/ids/1/x", "/brokers/topics/x", "/brokers/topics/t/x",
		"/brokers/topics/t/partitions/2", "/brokers/topics/t/partitions/01", "/brokers/topics/t/partitions/1/x", "/brokers/topics/t/partitionsx",
		"/brokers/topics/t/partitions/1/state/x", "/config/topics/x", "/config/nothing/t", "/consumers/g/offsets/t/2",
		"/consumers/g/offsets/t/1/x", "/brokers/topics//partitions", "x", "//", "/brokers/ids/-1", "/brokers/ids/99999999999"} {
		if n, ok := m.view().Node(path, ztree.Observer{}); ok {
			t.Errorf("%s exists: %+v", path, n)
		}
	}
}

// Numbers that old JSON parsers read must fit 32 bits (zk-paths 0.3).
func TestNumbersAreSmall(t *testing.T) {
	m := newMachine(t)
	m.create("/brokers/topics/t", `{"version":1,"partitions":{"0":[1]}}`)
	m.must(&statepb.Command{Body: &statepb.Command_AllocateProducerIds{AllocateProducerIds: &statepb.AllocateProducerIds{Broker: 1, Count: 1000}}})
	walk(m.view(), "/", func(path string, n ztree.Node) {
		var doc any
		d := json.NewDecoder(strings.NewReader(string(n.Data)))
		d.UseNumber()
		if d.Decode(&doc) != nil {
			return
		}
		var check func(any)
		check = func(x any) {
			switch x := x.(type) {
			case json.Number:
				if v, err := x.Int64(); err != nil || v != int64(int32(v)) {
					t.Errorf("%s: %v does not fit an int", path, x)
				}
			case map[string]any:
				for _, y := range x {
					check(y)
				}
			case []any:
				for _, y := range x {
					check(y)
				}
			}
		}
		check(doc)
	})
}

func walk(v ztree.View, path string, f func(string, ztree.Node)) {
	n, ok := v.Node(path, ztree.Observer{})
	if !ok {
		panic(path + " is listed but not there")
	}
	f(path, n)
	names, _, _ := v.Children(path, ztree.Observer{}, nil)
	for _, name := range names {
		walk(v, strings.TrimSuffix(path, "/")+"/"+name, f)
	}
}

func TestPlans(t *testing.T) {
	m := newMachine(t)
	m.create("/brokers/topics/t", `{"version":1,"partitions":{"0":[1,2],"1":[2,1]}}`)
	type W = ztree.Write
	for _, c := range []struct {
		w    W
		code statepb.Code
	}{
		{W{Op: ztree.OpCreate, Path: "/brokers/topics/t", Data: []byte(`{}`)}, statepb.Code_NODE_EXISTS},
		{W{Op: ztree.OpCreate, Path: "/brokers/topics/u", Data: nil}, statepb.Code_INVALID},
		{W{Op: ztree.OpCreate, Path: "/brokers/topics/u", Data: []byte(`{"partitions":{"0":[1],"2":[1]}}`)}, statepb.Code_INVALID},
		{W{Op: ztree.OpCreate, Path: "/brokers/topics/u", Data: []byte(`{"partitions":{"0":[1]}} x`)}, statepb.Code_INVALID},
		{W{Op: ztree.OpCreate, Path: "/brokers/topics/u", Data: []byte(`{"partitions":{"0":[9]}}`)}, statepb.Code_UNKNOWN_BROKER},
		{W{Op: ztree.OpCreate, Path: "/brokers/topics/ü", Data: []byte(`{"partitions":{"0":[1]}}`)}, statepb.Code_INVALID},
		{W{Op: ztree.OpCreate, Path: "/brokers/topics/u", Ephemeral: true, Data: []byte(`{"partitions":{"0":[1]}}`)}, statepb.Code_NO_AUTH},
		{W{Op: ztree.OpSetData, Path: "/brokers/topics/x", Version: -1, Data: []byte(`{}`)}, statepb.Code_NO_NODE},
		{W{Op: ztree.OpSetData, Path: "/brokers/topics/t", Version: 7, Data: []byte(`{}`)}, statepb.Code_BAD_VERSION},
		{W{Op: ztree.OpSetData, Path: "/brokers/topics/t", Version: -1, Data: []byte(`{"partitions":{"0":[1,2]}}`)}, statepb.Code_NO_AUTH},
		{W{Op: ztree.OpSetData, Path: "/brokers/topics/t", Version: -1, Data: []byte(`{"partitions":{"0":[2,1],"1":[2,1]}}`)}, statepb.Code_NO_AUTH},
		{W{Op: ztree.OpSetData, Path: "/brokers/topics/t", Version: -1, Data: []byte(`{"partitions":{"0":[1,2],"1":[2,1]}}`)}, statepb.Code_OK},
		{W{Op: ztree.OpSetData, Path: "/brokers/topics/t", Version: 0, Data: []byte(`{"partitions":{"0":[1,2],"1":[2,1],"2":[3]}}`)}, statepb.Code_OK},
		{W{Op: ztree.OpDelete, Path: "/brokers/topics/t", Version: -1}, statepb.Code_NO_AUTH},
		{W{Op: ztree.OpSetData, Path: "/brokers/topics/t/partitions/0/state", Version: -1}, statepb.Code_NO_AUTH},
		{W{Op: ztree.OpCreate, Path: "/brokers/ids/7", Ephemeral: true, Data: []byte(`{}`)}, statepb.Code_NO_AUTH},
		{W{Op: ztree.OpCreate, Path: "/controller", Ephemeral: true}, statepb.Code_NODE_EXISTS},
		{W{Op: ztree.OpDelete, Path: "/controller", Version: -1}, statepb.Code_NO_AUTH},
		{W{Op: ztree.OpSetData, Path: "/cluster/id", Version: 9}, statepb.Code_BAD_VERSION},
		{W{Op: ztree.OpSetData, Path: "/config/topics/t", Version: -1, Data: []byte(`{"version":1,"config":{"a":"b"}}`)}, statepb.Code_OK},
		{W{Op: ztree.OpSetData, Path: "/config/topics/new", Version: -1, Data: []byte(`{"version":1,"config":{}}`)}, statepb.Code_NO_NODE},
		{W{Op: ztree.OpCreate, Path: "/config/topics/t", Data: []byte(`{"version":1,"config":{}}`)}, statepb.Code_NODE_EXISTS},
		{W{Op: ztree.OpCreate, Path: "/config/topics/new", Data: []byte(`{"version":2,"config":{}}`)}, statepb.Code_INVALID},
		{W{Op: ztree.OpCreate, Path: "/config/topics/new", Data: []byte(`{"version":1,"config":{"a":1}}`)}, statepb.Code_INVALID},
		{W{Op: ztree.OpCreate, Path: "/config/users/u", Data: nil}, statepb.Code_OK},
		{W{Op: ztree.OpCreate, Path: "/config/users/u", Data: nil}, statepb.Code_NODE_EXISTS},
		{W{Op: ztree.OpCreate, Path: "/config/users/u/clients", Data: nil}, statepb.Code_NO_AUTH},
		{W{Op: ztree.OpCreate, Path: "/config/users/none/clients", Data: nil}, statepb.Code_NO_NODE},
		{W{Op: ztree.OpSetData, Path: "/config/topics/t", Version: 9, Data: []byte(`{"version":1,"config":{}}`)}, statepb.Code_BAD_VERSION},
		{W{Op: ztree.OpDelete, Path: "/config/topics/t", Version: 1}, statepb.Code_OK},
		{W{Op: ztree.OpDelete, Path: "/config/topics/t", Version: -1}, statepb.Code_NO_NODE},
		{W{Op: ztree.OpCreate, Path: "/admin/preferred_replica_election", Data: []byte(`{"version":1,"partitions":[{"topic":"t","partition":0}]}`)}, statepb.Code_OK},
		{W{Op: ztree.OpCreate, Path: "/admin/reassign_partitions", Data: []byte(`{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2]}]}`)}, statepb.Code_OK},
		{W{Op: ztree.OpCreate, Path: "/admin/reassign_partitions", Data: []byte(`{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[3,2]}]}`)}, statepb.Code_NO_AUTH},
		{W{Op: ztree.OpCreate, Path: "/admin/delete_topics/nothing"}, statepb.Code_OK},
		{W{Op: ztree.OpCreate, Path: "/admin/delete_topics/t", Data: []byte{}}, statepb.Code_OK},
		{W{Op: ztree.OpCreate, Path: "/config/changes/config_change_", Sequential: true}, statepb.Code_OK},
		{W{Op: ztree.OpCreate, Path: "/consumers/g", Data: nil}, statepb.Code_OK},
		{W{Op: ztree.OpCreate, Path: "/consumers/g/offsets"}, statepb.Code_OK},
		{W{Op: ztree.OpCreate, Path: "/consumers/g/offsets/t"}, statepb.Code_OK},
		{W{Op: ztree.OpCreate, Path: "/consumers/g/offsets/t/0", Data: []byte("abc")}, statepb.Code_INVALID},
		{W{Op: ztree.OpCreate, Path: "/consumers/g/offsets/t/0", Data: []byte("5")}, statepb.Code_OK},
		{W{Op: ztree.OpSetACL, Path: "/consumers/g/offsets/t/0", Version: -1}, statepb.Code_NO_AUTH},
		{W{Op: ztree.OpDelete, Path: "/consumers/g/offsets/t/0", Version: 0}, statepb.Code_OK},
		{W{Op: ztree.OpDelete, Path: "/consumers", Version: -1}, statepb.Code_NOT_EMPTY},
	} {
		if code, text := m.write(c.w); code != c.code {
			t.Errorf("%d %s %s: %v %s, want %v", c.w.Op, c.w.Path, c.w.Data, code, text, c.code)
		}
	}
	if _, ok := m.s.View().Topic("t"); ok {
		t.Error("the topic is still there")
	}
	for _, p := range []string{"t", "nothing"} {
		if _, ok := m.view().Node("/admin/delete_topics/"+p, ztree.Observer{}); ok {
			t.Error("an order that was carried out is still shown")
		}
	}
}

func TestClaimsGoToTheCoordinator(t *testing.T) {
	m := newMachine(t)
	for name, want := range map[string]int32{"3": 3, "1-4": 4, "x": -1, "1-": -1} {
		p := m.view().Plan(ztree.Write{Op: ztree.OpCreate, Path: "/consumers/g/owners/t/" + name, Data: []byte("me"), Ephemeral: true}, nil)
		c := p.Command.GetClaimOwner()
		if !p.Coordinator || c.GetPartition() != want || c.GetName() != name || c.GetGroup() != "g" || c.GetTopic() != "t" || !c.Ephemeral {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

// What a view shows is a tree: each directory counts the children it lists, each child knows its place, Stats hold
// together; and each change of what a view shows has its event.
func TestViewIsATreeAndEventsAreComplete(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := newMachine(t)
		names := rapid.SampledFrom([]string{"a", "b", "c"})
		before := shown(m.view())
		for range rapid.IntRange(1, 25).Draw(r, "entries") {
			var cs []*statepb.Command
			for range rapid.IntRange(1, 3).Draw(r, "commands") {
				cs = append(cs, draw(r, m, names))
			}
			m.apply(cs...)
			events, _ := ztree.Events(m.s.View(), m.last.Changes, nil, nil)
			after := shown(m.view())
			told := map[string]bool{}
			for _, e := range events {
				told[e.Path] = true
			}
			for path, n := range after {
				old, was := before[path]
				if (!was || old.Stat.Czxid != n.Stat.Czxid || old.Stat.Mzxid != n.Stat.Mzxid || string(old.Data) != string(n.Data)) && !told[path] {
					r.Fatalf("%s changed without an event: %+v to %+v\n%v", path, old, n, events)
				}
			}
			for path := range before {
				if _, still := after[path]; !still && !told[path] {
					r.Fatalf("%s went without an event", path)
				}
			}
			before = after
		}
	})
}

// shown collects a view and checks that it is a tree.
func shown(v ztree.View) map[string]ztree.Node {
	all := map[string]ztree.Node{}
	walk(v, "/", func(path string, n ztree.Node) {
		if _, twice := all[path]; twice {
			panic(path + " is listed twice")
		}
		all[path] = n
		names, st, ok := v.Children(path, ztree.Observer{}, nil)
		slices.Sort(names)
		if !ok || st != n.Stat || int(n.Stat.NumChildren) != len(names) || len(slices.Compact(names)) != len(names) {
			panic(fmt.Sprintf("%s: %v %+v lists %v", path, ok, n.Stat, names))
		}
		if s := n.Stat; s.Mzxid < s.Czxid || s.Pzxid < s.Czxid || s.Mzxid > int64(v.Zxid()) || s.Pzxid > int64(v.Zxid()) || s.Cversion < s.NumChildren {
			panic(fmt.Sprintf("%s: %+v", path, s))
		}
		if path != "/" && ztree.Parent(path) != "/" {
			if p := all[ztree.Parent(path)]; p.Stat.Pzxid < n.Stat.Czxid {
				panic(fmt.Sprintf("%s: created at %d, its parent's pzxid is %d", path, n.Stat.Czxid, p.Stat.Pzxid))
			}
		}
	})
	return all
}

// draw makes a command as a write through Plan or as another face of the state.
func draw(r *rapid.T, m *machine, names *rapid.Generator[string]) *statepb.Command {
	name, sub := names.Draw(r, "name"), names.Draw(r, "sub")
	data := []byte(rapid.SampledFrom([]string{"", "1", "2", `{"version":1,"config":{"k":"v"}}`, `{"partitions":{"0":[1,2]}}`,
		`{"partitions":{"0":[1,2],"1":[2]}}`, `{"partitions":{"0":[3]}}`}).Draw(r, "data"))
	num := rapid.IntRange(0, 2).Draw(r, "num")
	paths := []string{"/free" + name, "/free" + name + "/" + sub, "/consumers/" + name, "/consumers/" + name + "/ids",
		"/consumers/" + name + "/ids/" + sub, "/consumers/" + name + "/owners", "/consumers/" + name + "/owners/" + sub,
		fmt.Sprintf("/consumers/%s/owners/%s/%d", name, sub, num), "/consumers/" + name + "/offsets", "/consumers/" + name + "/offsets/" + sub,
		fmt.Sprintf("/consumers/%s/offsets/%s/%d", name, sub, num), "/config/topics/" + name, "/brokers/topics/" + name,
		"/config/changes/config_change_", "/admin/delete_topics/" + name, "/config/clients/" + name}
	switch rapid.IntRange(0, 9).Draw(r, "kind") {
	case 0:
		return &statepb.Command{Body: &statepb.Command_CommitOffsets{CommitOffsets: &statepb.CommitOffsets{Group: name, Generation: -1,
			Items: []*statepb.OffsetItem{{Topic: sub, Partition: int32(num), Offset: int64(num), LeaderEpoch: -1, RetentionMs: -1}}}}}
	case 1:
		b, _ := m.s.View().Broker(id.BrokerID(num + 1))
		return &statepb.Command{Body: &statepb.Command_FenceBroker{FenceBroker: &statepb.FenceBroker{Broker: int32(num + 1),
			Epoch: uint64(b.Epoch), Left: rapid.Bool().Draw(r, "left")}}}
	case 2:
		return &statepb.Command{Body: &statepb.Command_RegisterBroker{RegisterBroker: &statepb.RegisterBroker{
			DirectoryId: fmt.Sprint("d", num+1), Nonce: fmt.Sprint(m.index), WantedId: int32(num + 1), MinLevel: 1, MaxLevel: 1}}}
	}
	w := ztree.Write{Op: rapid.SampledFrom([]ztree.Op{ztree.OpCreate, ztree.OpCreate, ztree.OpCreate, ztree.OpDelete, ztree.OpSetData}).Draw(r, "op"),
		Path: rapid.SampledFrom(paths).Draw(r, "path"), Data: data, Version: -1}
	if len(data) == 0 && rapid.Bool().Draw(r, "null") {
		w.Data = nil
	}
	w.Sequential = w.Op == ztree.OpCreate && strings.HasPrefix(w.Path, "/config/changes")
	plan := m.view().Plan(w, fmt.Appendf(nil, "t%015d", int(m.index)*8+rapid.IntRange(0, 7).Draw(r, "id")))
	if plan.Command == nil {
		return &statepb.Command{Body: &statepb.Command_Tick{Tick: &statepb.Tick{}}}
	}
	return plan.Command
}

func FuzzPlan(f *testing.F) {
	f.Add(uint8(1), "/brokers/topics/t", []byte(`{"partitions":{"0":[1]}}`))
	f.Add(uint8(3), "/config/topics/t", []byte(`{"version":1,"config":{"a":"b"}}`))
	f.Add(uint8(1), "/admin/reassign_partitions", []byte(`{"partitions":[{"topic":"t","partition":0,"replicas":[1]}]}`))
	f.Add(uint8(1), "/consumers/g/owners/t/0", []byte("me"))
	m := newMachine(f)
	m.create("/brokers/topics/t", `{"version":1,"partitions":{"0":[1,2],"1":[2,1]}}`)
	f.Fuzz(func(t *testing.T, op uint8, path string, data []byte) {
		v := m.view()
		v.Node(path, ztree.Observer{})
		v.Children(path, ztree.Observer{}, nil)
		if state.ValidPath(path) != "" {
			return
		}
		m.write(ztree.Write{Op: ztree.Op(op%4) + 1, Path: path, Data: data, Version: -1, Sequential: op&16 != 0})
	})
}

// A session in two groups, as of one ZooKeeper client that several consumers share, is shown the topics of each by that group's generation.
func TestTopicsOfASessionInTwoGroups(t *testing.T) {
	m := newMachine(t)
	for _, topic := range []string{"t", "u"} {
		m.must(&statepb.Command{Body: &statepb.Command_CreateTopic{CreateTopic: &statepb.CreateTopic{Name: topic, TopicId: []byte(topic + "123456789abcdef"),
			Assignments: []*statepb.Assignment{{Replicas: []int32{1}}}}}})
	}
	ses := m.must(&statepb.Command{Body: &statepb.Command_CreateSession{CreateSession: &statepb.CreateSession{TimeoutMs: 6000, Password: make([]byte, 16)}}})
	for group, topic := range map[string]string{"g": "t", "h": "u"} {
		for _, dir := range []string{"", "/ids"} {
			m.must(&statepb.Command{Body: &statepb.Command_CreateZnode{CreateZnode: &statepb.CreateZnode{Path: "/consumers/" + group + dir, Null: true}}})
		}
		m.must(&statepb.Command{Origin: &statepb.Origin{Session: ses.Value, AttachEpoch: ses.Epoch}, Body: &statepb.Command_CreateZnode{CreateZnode: &statepb.CreateZnode{
			Path: "/consumers/" + group + "/ids/m", Data: []byte(topic), Ephemeral: true}}})
		m.must(&statepb.Command{Body: &statepb.Command_PublishGeneration{PublishGeneration: &statepb.PublishGeneration{Group: group, Generation: 1,
			Members: []string{"m"}, Topics: []string{topic}}}})
	}
	o := ztree.Observer{Session: id.SessionID(ses.Value)}
	for _, topic := range []string{"t", "u"} {
		m.must(&statepb.Command{Body: &statepb.Command_CreatePartitions{CreatePartitions: &statepb.CreatePartitions{Name: topic, From: 1,
			Assignments: []*statepb.Assignment{{Replicas: []int32{1}}}}}})
		if _, gated := m.view().Gated("/brokers/topics/"+topic, o); !gated {
			t.Errorf("%s is shown as it is, not as the generation says", topic)
		}
		if n, ok := m.view().Node("/brokers/topics/"+topic, o); !ok || strings.Contains(string(n.Data), `"1":`) {
			t.Errorf("%s: %s", topic, n.Data)
		}
	}
}
