package console

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/barnabas-mq/barnabas/groupcoord"
	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// The metrics that follow from the metadata state; names are kafka_exporter's where it has one.
var (
	descBrokers    = desc("kafka_brokers", "Live brokers.")
	descPartitions = desc("kafka_topic_partitions", "Partitions of a topic.", "topic")
	descLeader     = desc("kafka_topic_partition_leader", "Broker that leads a partition, -1 for none.", "topic", "partition")
	descReplicas   = desc("kafka_topic_partition_replicas", "Replicas of a partition.", "topic", "partition")
	descISR        = desc("kafka_topic_partition_in_sync_replica", "Replicas of a partition that are in sync.", "topic", "partition")
	descUnder      = desc("kafka_topic_partition_under_replicated_partition", "1 when a partition lacks replicas in sync.", "topic", "partition")
	descMembers    = desc("kafka_consumergroup_members", "Members of a group, of all kinds. Shown by the coordinator's node.", "consumergroup")
	descLag        = desc("kafka_consumergroup_lag", "Records between a committed offset and the end. Shown by the partition's leader.", "consumergroup", "topic", "partition")
	descLagSum     = desc("kafka_consumergroup_lag_sum", "Lag of a group in the partitions of a topic that this node leads: the sum over the nodes is the topic's.", "consumergroup", "topic")
	descEnd        = desc("kafka_topic_partition_current_offset", "High watermark. Shown by the partition's leader.", "topic", "partition")
	descStart      = desc("kafka_topic_partition_oldest_offset", "Log start. Shown by the partition's leader.", "topic", "partition")
	descRebalances = desc("barnabas_group_rebalances_total", "Rebalances that this node's coordinator carried out.", "reason", "kind")
	descGates      = desc("barnabas_gate_hold_seconds", "Requests of znode consumers that a gate has answered later, or otherwise, than ZooKeeper would.", "gate")
	descCommitted  = desc("kafka_consumergroup_current_offset", "Committed offset.", "consumergroup", "topic", "partition")
	descSessions   = desc("barnabas_zk_sessions", "Living ZooKeeper sessions in the cluster.")
	descIndex      = desc("barnabas_raft_applied_index", "Last Raft entry that this node has applied.")
	descTerm       = desc("barnabas_raft_term", "Term of that entry.")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// LogMarks are the ends of a partition that this node leads.
type LogMarks struct{ Start, HighWatermark id.Offset }

// StateMetrics shows the metadata state of a node, and what only it knows: its partitions' ends and what its coordinator did. The
// functions are called at each scrape. With Self and Logs each series of a partition comes from its leader alone, and each of a group
// from the coordinator: sums over the nodes are true. Without them (nil) offsets and members are shown from the state.
type StateMetrics struct {
	View   func() *state.View
	Self   func() id.BrokerID                    // NoBroker: not known yet
	Logs   func() map[id.TopicPartition]LogMarks // of the partitions that this node leads
	Counts func() groupcoord.Counts              // of this node's coordinator
}

var _ prometheus.Collector = StateMetrics{}

// Describe lists the metrics.
func (StateMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descBrokers, descPartitions, descLeader, descReplicas, descISR, descUnder, descCommitted,
		descMembers, descLag, descLagSum, descEnd, descStart, descRebalances, descGates, descSessions, descIndex, descTerm} {
		ch <- d
	}
}

// Collect reads one view.
func (m StateMetrics) Collect(ch chan<- prometheus.Metric) {
	v := m.View()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	gauge(descBrokers, float64(len(v.LiveBrokers())))
	gauge(descIndex, float64(v.Index()))
	gauge(descTerm, float64(v.Term()))
	sessions := 0
	v.Sessions(func(*state.Session) bool { sessions++; return true })
	gauge(descSessions, float64(sessions))
	v.Topics(func(t *state.Topic) bool {
		gauge(descPartitions, float64(t.Partitions), t.Name)
		v.Partitions(t.Name, func(n int32, p *state.Partition) bool {
			no := strconv.Itoa(int(n))
			gauge(descLeader, float64(p.Leader), t.Name, no)
			gauge(descReplicas, float64(len(p.Replicas)), t.Name, no)
			gauge(descISR, float64(len(p.ISR)), t.Name, no)
			under := 0.0
			if len(p.ISR) < len(p.Replicas) || p.Leader == id.NoBroker {
				under = 1
			}
			gauge(descUnder, under, t.Name, no)
			return true
		})
		return true
	})
	m.groups(v, gauge)
	if m.Counts == nil {
		return
	}
	counts := m.Counts()
	for k, n := range counts.Rebalances {
		ch <- prometheus.MustNewConstMetric(descRebalances, prometheus.CounterValue, float64(n), k.Reason, k.Kind)
	}
	for gate, c := range counts.Gates {
		ch <- prometheus.MustNewConstSummary(descGates, uint64(c.Times), c.Held.Seconds(), nil, gate)
	}
}

// groups shows partitions' ends, and groups' members, offsets and lag.
func (m StateMetrics) groups(v *state.View, gauge func(*prometheus.Desc, float64, ...string)) {
	var logs map[id.TopicPartition]LogMarks
	if m.Logs != nil {
		logs = m.Logs()
	}
	for tp, marks := range logs {
		gauge(descEnd, float64(marks.HighWatermark), tp.Topic, strconv.Itoa(int(tp.Partition)))
		gauge(descStart, float64(marks.Start), tp.Topic, strconv.Itoa(int(tp.Partition)))
	}
	coordinator := m.Self == nil
	if !coordinator {
		c, _ := v.Controller()
		coordinator = c == m.Self()
	}
	v.Groups(func(g *state.Group) bool {
		members := len(g.Members)
		v.Members(g.Name, func(string, *state.Znode) bool { members++; return true })
		if coordinator {
			gauge(descMembers, float64(members), g.Name)
		}
		sums := map[string]float64{}
		v.Offsets(g.Name, func(topic string, o *state.Offset) bool {
			no := strconv.Itoa(int(o.Partition))
			marks, leads := logs[id.TopicPartition{Topic: topic, Partition: o.Partition}]
			if leads || m.Logs == nil || coordinator && !hasLeader(v, topic, o.Partition) {
				gauge(descCommitted, float64(o.Offset), g.Name, topic, no)
			}
			if leads && o.Offset >= 0 {
				lag := max(float64(marks.HighWatermark-o.Offset), 0)
				gauge(descLag, lag, g.Name, topic, no)
				sums[topic] += lag
			}
			return true
		})
		for topic, lag := range sums {
			gauge(descLagSum, lag, g.Name, topic)
		}
		return true
	})
}

func hasLeader(v *state.View, topic string, p int32) bool {
	row, ok := v.Partition(topic, p)
	return ok && row.Leader != id.NoBroker
}
