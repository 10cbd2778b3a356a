package broker

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// Gates of a group's ZooKeeper consumers are the group's configuration, before it has members too.
func TestGroupConfigs(t *testing.T) {
	f := start(t, nil)
	c := f.dial(t)
	setting := func(name string, op kmsg.IncrementalAlterConfigOp, value string) int16 {
		req := kmsg.NewPtrIncrementalAlterConfigsRequest()
		r := kmsg.NewIncrementalAlterConfigsRequestResource()
		r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeGroupConfig, "g"
		r.Configs = []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: name, Op: op, Value: &value}}
		req.Resources = []kmsg.IncrementalAlterConfigsRequestResource{r}
		return ask[*kmsg.IncrementalAlterConfigsResponse](c, req).Resources[0].ErrorCode
	}
	set := func(op kmsg.IncrementalAlterConfigOp, value string) int16 { return setting(state.GatesOff, op, value) }
	for _, own := range []struct {
		name, value string
		want        int16
	}{
		{state.GroupHeartbeat, "46000", kerr.InvalidConfig.Code}, // above the broker's session
		{state.GroupSession, "0", kerr.InvalidConfig.Code},
		{state.GroupSession, "60000", 0},
		{state.GroupHeartbeat, "46000", 0},
		{state.GroupSession, "45000", kerr.InvalidConfig.Code},
	} {
		if code := setting(own.name, kmsg.IncrementalAlterConfigOpSet, own.value); code != own.want {
			t.Errorf("%s=%s: %d, want %d", own.name, own.value, code, own.want)
		}
	}
	if code := set(kmsg.IncrementalAlterConfigOpSet, "claim,fence"); code != 0 {
		t.Fatal(code)
	}
	if code := set(kmsg.IncrementalAlterConfigOpSubtract, "fence"); code != 0 {
		t.Fatal(code)
	}
	if code := set(kmsg.IncrementalAlterConfigOpSet, "door"); code != kerr.InvalidConfig.Code {
		t.Fatal(code)
	}
	v := f.meta.View()
	if v.GateOn("g", state.GateClaim) || !v.GateOn("g", state.GateFence) || !v.GateOn("other", state.GateClaim) {
		t.Error("the gates are not as they were set")
	}
	req := kmsg.NewPtrDescribeConfigsRequest()
	req.Version = 4
	r := kmsg.NewDescribeConfigsRequestResource()
	r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeGroupConfig, "g"
	req.Resources = []kmsg.DescribeConfigsRequestResource{r}
	got := ask[*kmsg.DescribeConfigsResponse](c, req).Resources[0]
	if got.ErrorCode != 0 || len(got.Configs) != 3 {
		t.Fatalf("%+v", got)
	}
	for i, want := range []string{"46000", "60000", "claim"} {
		if o := got.Configs[i]; *o.Value != want || o.Source != kmsg.ConfigSourceGroupConfig {
			t.Errorf("%+v, want %s", o, want)
		}
	}
}

// A connection that is cut off from a partition gets nothing more of it, and other partitions and connections are served.
func TestFencedFetch(t *testing.T) {
	f := startReal(t, nil)
	f.meta.must(t, &statepb.Command{Body: &statepb.Command_CreateTopic{CreateTopic: &statepb.CreateTopic{
		Name: "t", TopicId: []byte("0123456789abcdef"), Assignments: []*statepb.Assignment{{Replicas: []int32{1}}, {Replicas: []int32{1}}},
	}}})
	c, other := f.dial(t), f.dial(t)
	for p := range int32(2) {
		if got := produced1(c, produceOne(3, 1, "t", p, batch(t, "x"))); got.ErrorCode != 0 {
			t.Fatal(got)
		}
	}
	read := func(c *client) (lengths []int) {
		req := fetchOne(3, "t", 0, 100, 1)
		one := req.Topics[0].Partitions[0]
		one.Partition = 1
		req.Topics[0].Partitions = append(req.Topics[0].Partitions, one)
		for _, p := range ask[*kmsg.FetchResponse](c, req).Topics[0].Partitions {
			if p.ErrorCode != 0 {
				t.Fatal(p)
			}
			lengths = append(lengths, len(p.RecordBatches))
		}
		return lengths
	}
	if n := read(c); n[0] == 0 || n[1] == 0 {
		t.Fatal(n)
	}
	b, _ := f.meta.View().Broker(1)
	cut := &statepb.FenceFetches{Group: "g", Member: "m", Fetches: []*statepb.FencedFetch{{Broker: 1, Epoch: uint64(b.Epoch), Conn: 1, Topic: "t", Partition: 0}}}
	f.meta.must(t, &statepb.Command{Body: &statepb.Command_FenceFetches{FenceFetches: cut}})
	if n := read(c); n[0] != 0 || n[1] == 0 {
		t.Error("the cut off connection was served", n)
	}
	if n := read(other); n[0] == 0 || n[1] == 0 {
		t.Error("another connection was not served", n)
	}
	if n := ask[*kmsg.FetchResponse](c, fetchOne(3, "t", 0, 100, 1)).Topics[0].Partitions[0]; n.ErrorCode != 0 || len(n.RecordBatches) != 0 {
		t.Error(n)
	}
	cut.Lift = true
	f.meta.must(t, &statepb.Command{Body: &statepb.Command_FenceFetches{FenceFetches: cut}})
	if n := read(c); n[0] == 0 || n[1] == 0 {
		t.Error("it is not served again", n)
	}
}

// Who fetches under the name of a group of znode consumers gets nothing from a partition that its owner has been told to release, until
// it is claimed anew or the generation is complete; others, and the group with its gate off, are served.
func TestFetchOfWhatIsToBeReleased(t *testing.T) {
	f := startReal(t, nil)
	f.meta.must(t, &statepb.Command{Body: &statepb.Command_CreateTopic{CreateTopic: &statepb.CreateTopic{
		Name: "t", TopicId: []byte("0123456789abcdef"), Assignments: []*statepb.Assignment{{Replicas: []int32{1}}},
	}}})
	c := f.dial(t)
	if got := produced1(c, produceOne(3, 1, "t", 0, batch(t, "x"))); got.ErrorCode != 0 {
		t.Fatal(got)
	}
	served := func(want bool, when string) {
		t.Helper()
		if p := ask[*kmsg.FetchResponse](c, fetchOne(3, "t", 0, 100, 1)).Topics[0].Partitions[0]; p.ErrorCode != 0 || len(p.RecordBatches) > 0 != want {
			t.Errorf("%s: %+v", when, p)
		}
	}
	const group = "cli" // what the test's client calls itself
	ses := f.meta.must(t, &statepb.Command{Body: &statepb.Command_CreateSession{CreateSession: &statepb.CreateSession{TimeoutMs: 6000, Password: make([]byte, 16)}}})
	o := &statepb.Origin{Session: ses.Value, AttachEpoch: ses.Epoch}
	for _, dir := range []string{"", "/ids", "/owners", "/owners/t"} {
		f.meta.must(t, &statepb.Command{Body: &statepb.Command_CreateZnode{CreateZnode: &statepb.CreateZnode{Path: "/consumers/" + group + dir, Null: true}}})
	}
	f.meta.must(t, &statepb.Command{Origin: o, Body: &statepb.Command_CreateZnode{CreateZnode: &statepb.CreateZnode{Path: "/consumers/" + group + "/ids/m", Ephemeral: true,
		Data: []byte(`{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}`)}}})
	publish := func(generation int32) {
		f.meta.must(t, &statepb.Command{Body: &statepb.Command_PublishGeneration{PublishGeneration: &statepb.PublishGeneration{Group: group, Generation: generation,
			Members: []string{"m"}, Topics: []string{"t"}}}})
	}
	claim := func() {
		f.meta.must(t, &statepb.Command{Origin: o, Body: &statepb.Command_ClaimOwner{ClaimOwner: &statepb.ClaimOwner{Group: group, Topic: "t", Name: "0",
			Data: []byte("m-0"), Ephemeral: true}}})
	}
	publish(1)
	served(true, "nobody has owned it")
	claim()
	served(true, "it was claimed in the generation")
	publish(2)
	served(false, "it was claimed before the generation")
	gates := func(off string) {
		f.meta.must(t, &statepb.Command{Body: &statepb.Command_SetConfig{SetConfig: &statepb.SetConfig{Type: state.GroupConfigs, Name: group, ZnodeVersion: -1,
			Entries: []*statepb.ConfigEntry{{Name: state.GatesOff, Value: off}}}}})
	}
	gates("pause")
	served(true, "the gate is off")
	gates("")
	served(false, "the gate is on again")
	f.meta.must(t, &statepb.Command{Origin: o, Body: &statepb.Command_DeleteZnode{DeleteZnode: &statepb.DeleteZnode{Path: "/consumers/" + group + "/owners/t/0", Version: -1}}})
	claim()
	served(true, "it was claimed anew")
	publish(3)
	f.meta.must(t, &statepb.Command{Body: &statepb.Command_CompleteGeneration{CompleteGeneration: &statepb.CompleteGeneration{Group: group, Generation: 3}}})
	served(true, "the generation is over")
}
