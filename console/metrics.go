package console

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

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
	descCommitted  = desc("kafka_consumergroup_current_offset", "Committed offset.", "consumergroup", "topic", "partition")
	descSessions   = desc("barnabas_zk_sessions", "Living ZooKeeper sessions in the cluster.")
	descIndex      = desc("barnabas_raft_applied_index", "Last Raft entry that this node has applied.")
	descTerm       = desc("barnabas_raft_term", "Term of that entry.")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// StateMetrics shows the metadata state of a node; view is called at each scrape.
type StateMetrics struct{ View func() *state.View }

var _ prometheus.Collector = StateMetrics{}

// Describe lists the metrics.
func (StateMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descBrokers, descPartitions, descLeader, descReplicas, descISR, descUnder, descCommitted,
		descSessions, descIndex, descTerm} {
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
	v.Groups(func(g *state.Group) bool {
		v.Offsets(g.Name, func(topic string, o *state.Offset) bool {
			gauge(descCommitted, float64(o.Offset), g.Name, topic, strconv.Itoa(int(o.Partition)))
			return true
		})
		return true
	})
}
