package console

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/barnabas-mq/barnabas/groupcoord"
	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// samples is what a registry shows, one sample a line.
func samples(t *testing.T, reg prometheus.Gatherer) string {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			name, value := f.GetName(), m.GetGauge().GetValue()+m.GetCounter().GetValue()
			if s := m.GetSummary(); s != nil {
				name, value = name+"_sum", s.GetSampleSum()
			}
			fmt.Fprintf(&b, "%s{%s} %v\n", name, strings.Join(labels, ","), value)
		}
	}
	return b.String()
}

// TestGroupMetrics: a partition's series come from its leader alone, a group's members from the coordinator, lags from committed
// offsets and high watermarks.
func TestGroupMetrics(t *testing.T) {
	s := state.New()
	e, err := proto.Marshal(&pb.Entry{Commands: []*pb.Command{
		{Version: 1, Body: &pb.Command_Bootstrap{Bootstrap: &pb.Bootstrap{ClusterId: "c", Level: 1}}},
		{Version: 1, Body: &pb.Command_RegisterBroker{RegisterBroker: &pb.RegisterBroker{DirectoryId: "d", Nonce: "n", WantedId: 1, MinLevel: 1, MaxLevel: 1}}},
		{Version: 1, Body: &pb.Command_RegisterBroker{RegisterBroker: &pb.RegisterBroker{DirectoryId: "e", Nonce: "n", WantedId: 2, MinLevel: 1, MaxLevel: 1}}},
		{Version: 1, Term: 1, Body: &pb.Command_TermStarted{TermStarted: &pb.TermStarted{Broker: 1}}},
		{Version: 1, Body: &pb.Command_CreateTopic{CreateTopic: &pb.CreateTopic{Name: "t", TopicId: make([]byte, 16),
			Assignments: []*pb.Assignment{{Replicas: []int32{1}}, {Replicas: []int32{1}}, {Replicas: []int32{2}}}}}},
		{Version: 1, Body: &pb.Command_CommitOffsets{CommitOffsets: &pb.CommitOffsets{Group: "g", Generation: -1, Items: []*pb.OffsetItem{
			{Topic: "t", Offset: 5}, {Topic: "t", Partition: 1, Offset: 9}, {Topic: "t", Partition: 2, Offset: 3}}}}},
		{Version: 1, Body: &pb.Command_PutGroup{PutGroup: &pb.PutGroup{Group: "h", Generation: 1, State: pb.GroupState_GROUP_STABLE, ProtocolType: "consumer",
			Members: []*pb.GroupMember{{Id: "m"}, {Id: "n"}}}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	s.Apply(1, 1, e)
	tp := func(p int32) id.TopicPartition { return id.TopicPartition{Topic: "t", Partition: p} }
	node := func(self id.BrokerID, logs map[id.TopicPartition]LogMarks) StateMetrics {
		return StateMetrics{View: s.View, Self: func() id.BrokerID { return self }, Logs: func() map[id.TopicPartition]LogMarks { return logs },
			Counts: func() groupcoord.Counts {
				return groupcoord.Counts{Rebalances: map[groupcoord.RebalanceKind]int64{{Kind: "legacy", Reason: "join"}: 3},
					Gates: map[string]groupcoord.GateCount{"claim": {Times: 2, Held: 3 * time.Second}}}
			}}
	}
	for self, c := range map[id.BrokerID]struct {
		logs map[id.TopicPartition]LogMarks
		want []string
	}{
		1: {map[id.TopicPartition]LogMarks{tp(0): {2, 7}, tp(1): {0, 8}}, []string{
			`kafka_consumergroup_members{consumergroup="h"} 2`, `kafka_consumergroup_members{consumergroup="g"} 0`,
			`kafka_consumergroup_current_offset{consumergroup="g",partition="0",topic="t"} 5`,
			`kafka_consumergroup_lag{consumergroup="g",partition="0",topic="t"} 2`, `kafka_consumergroup_lag{consumergroup="g",partition="1",topic="t"} 0`,
			`kafka_consumergroup_lag_sum{consumergroup="g",topic="t"} 2`, `kafka_topic_partition_oldest_offset{partition="0",topic="t"} 2`,
			`barnabas_group_rebalances_total{kind="legacy",reason="join"} 3`, `barnabas_gate_hold_seconds_sum{gate="claim"} 3`,
		}},
		2: {map[id.TopicPartition]LogMarks{tp(2): {0, 10}}, []string{
			`kafka_consumergroup_current_offset{consumergroup="g",partition="2",topic="t"} 3`, `kafka_consumergroup_lag_sum{consumergroup="g",topic="t"} 7`,
			`kafka_topic_partition_current_offset{partition="2",topic="t"} 10`,
		}},
	} {
		reg := prometheus.NewPedanticRegistry()
		reg.MustRegister(node(self, c.logs))
		text := samples(t, reg)
		for _, want := range c.want {
			if !strings.Contains(text, want+"\n") {
				t.Errorf("node %d lacks %s:\n%s", self, want, text)
			}
		}
		if self == 2 && (strings.Contains(text, "members") || strings.Contains(text, `current_offset{consumergroup="g",partition="0"`)) {
			t.Errorf("node 2 shows what is node 1's:\n%s", text)
		}
	}
}
