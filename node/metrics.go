package node

import (
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/barnabas-mq/barnabas/broker"
	"github.com/barnabas-mq/barnabas/console"
	"github.com/barnabas-mq/barnabas/internal/id"
)

// maxLegacySeries bounds the series of old clients: client ids are of the clients' making. Those beyond are counted as "other".
const maxLegacySeries = 500

// legacyBelow is the first version of each API that Apache Kafka 4 still serves (KIP-896); requests below it are what an upgrade to it
// would break.
var legacyBelow = map[string]int16{
	"Produce": 3, "Fetch": 4, "ListOffsets": 1, "OffsetCommit": 2, "OffsetFetch": 1, "JoinGroup": 2, "CreateTopics": 2, "DeleteTopics": 1,
	"DescribeConfigs": 1, "OffsetForLeaderEpoch": 2,
}

// metrics is what this node counts by itself; what follows from the state is console.StateMetrics.
type metrics struct {
	requests *prometheus.HistogramVec
	legacy   *prometheus.CounterVec
	flushes  prometheus.Histogram
	open     prometheus.Gauge
	refused  *prometheus.CounterVec

	byAPI  sync.Map // apiVersion -> prometheus.Observer
	series sync.Map // legacySeries -> prometheus.Counter
	count  atomic.Int32
}

type apiVersion struct {
	api     string
	version int16
}

type legacySeries struct {
	apiVersion
	client string
}

var _ broker.Metrics = (*metrics)(nil)

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "barnabas_request_seconds",
			Help: "Time from a request's last byte to its response.", Buckets: prometheus.ExponentialBuckets(0.0005, 4, 9)}, []string{"api", "version"}),
		legacy: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "barnabas_legacy_requests_total",
			Help: "Requests of versions that Apache Kafka 4 does not serve."}, []string{"api", "version", "client"}),
		flushes: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "barnabas_log_flush_seconds",
			Help: "Time of a sync of a partition's log.", Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9)}),
		open: prometheus.NewGauge(prometheus.GaugeOpts{Name: "barnabas_kafka_connections", Help: "Open connections of Kafka clients."}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "barnabas_refused_connections_total",
			Help: "Connections closed for what the client sent."}, []string{"why"}),
	}
	reg.MustRegister(m.requests, m.legacy, m.flushes, m.open, m.refused)
	return m
}

// Request implements broker.Metrics.
func (m *metrics) Request(api string, version int16, client string, took time.Duration) {
	k := apiVersion{api, version}
	o, ok := m.byAPI.Load(k)
	if !ok {
		o, _ = m.byAPI.LoadOrStore(k, m.requests.WithLabelValues(api, strconv.Itoa(int(version))))
	}
	o.(prometheus.Observer).Observe(took.Seconds())
	if version >= legacyBelow[api] {
		return
	}
	s := legacySeries{k, strings.ToValidUTF8(client, "?")}
	c, ok := m.series.Load(s)
	if !ok {
		if m.count.Add(1) > maxLegacySeries {
			m.count.Add(-1)
			s.client = "other"
		}
		c, _ = m.series.LoadOrStore(s, m.legacy.WithLabelValues(api, strconv.Itoa(int(version)), s.client))
	}
	c.(prometheus.Counter).Inc()
}

// Connections implements broker.Metrics.
func (m *metrics) Connections(delta int) { m.open.Add(float64(delta)) }

// Refused implements broker.Metrics.
func (m *metrics) Refused(why string) { m.refused.WithLabelValues(why).Inc() }

func (m *metrics) synced(took time.Duration) { m.flushes.Observe(took.Seconds()) }

// watch adds what others count when they are asked.
func (m *metrics) watch(reg prometheus.Registerer, unhealthy func() int) {
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "barnabas_unhealthy_reasons", Help: "Reasons that /healthz lists."},
		func() float64 { return float64(unhealthy()) }))
}

// marks are the ends of the partitions that this node leads.
func (n *node) marks() map[id.TopicPartition]console.LogMarks {
	out := map[id.TopicPartition]console.LogMarks{}
	for _, l := range n.parts.DescribeLogs() {
		if l.Role == "leading" {
			out[l.TopicPartition] = console.LogMarks{Start: l.LogStart, HighWatermark: l.HighWatermark}
		}
	}
	return out
}
