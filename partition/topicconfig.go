package partition

import (
	"log/slog"
	"math"
	"strconv"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/partition/log"
	"github.com/barnabas-mq/barnabas/partition/record"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// topicConfig is what a topic's configuration row comes to. Never written to after it was made.
type topicConfig struct {
	maxMessageBytes  int
	minISR           int // 0: by replica count
	timestampType    record.TimestampType
	maxTimestampDiff int64 // ms; 0: any
	log              log.Config
}

// topicConfig reads a topic's row. A value that no check let through is as good as absent: one line in the log, the default.
func (m *Manager) topicConfig(v *state.View, topic string, tid id.TopicID) *topicConfig {
	c := &topicConfig{
		maxMessageBytes: m.cfg.MaxMessageBytes,
		minISR:          m.cfg.MinISR,
		log: log.Config{
			SegmentBytes: m.cfg.SegmentBytes, SegmentMs: m.cfg.SegmentMs, IndexIntervalBytes: m.cfg.IndexIntervalBytes,
			TopicID: tid, Logger: m.log,
		},
	}
	row, ok := v.Config("topics", topic)
	if !ok {
		return c
	}
	number := func(key string, low, high int64, set func(int64)) {
		text, ok := row.Get(key)
		if !ok {
			return
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < low || n > high {
			m.log.Warn("topic configuration ignored", slog.String("topic", topic), slog.String("key", key), slog.String("value", text))
			return
		}
		set(n)
	}
	number("max.message.bytes", 0, math.MaxInt32, func(n int64) { c.maxMessageBytes = int(n) })
	number("min.insync.replicas", 1, math.MaxInt16, func(n int64) { c.minISR = int(n) })
	number("segment.bytes", 14, math.MaxInt32, func(n int64) { c.log.SegmentBytes = n })
	number("segment.ms", 1, math.MaxInt64, func(n int64) { c.log.SegmentMs = n })
	number("index.interval.bytes", 0, math.MaxInt32, func(n int64) { c.log.IndexIntervalBytes = n })
	number("message.timestamp.difference.max.ms", 0, math.MaxInt64, func(n int64) {
		if n != math.MaxInt64 {
			c.maxTimestampDiff = n
		}
	})
	if t, ok := row.Get("message.timestamp.type"); ok && t == "LogAppendTime" {
		c.timestampType = record.LogAppendTime
	}
	return c
}

// minISR is how many replicas must have a record before it counts as committed.
func (c *topicConfig) minISRFor(replicas int) int {
	n := c.minISR
	if n == 0 {
		n = (replicas + 1) / 2
	}
	return min(n, replicas)
}
