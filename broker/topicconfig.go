package broker

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// setting is one configuration of a topic or a group that Kafka knows (org.apache.kafka.common.config.TopicConfig), or one of ours.
type setting struct {
	name   string
	typ    kmsg.ConfigType
	broker string // the broker setting that stands in when a topic has none; empty: there is none
	def    string // Kafka's default
	check  func(string) error
	help   string
}

const (
	maxInt32 = 1<<31 - 1
	maxInt64 = 1<<63 - 1
)

// topicSettings is every topic configuration that is accepted, in order of name. Those that are not acted on yet are kept and
// shown: a topic that was moved here keeps what its operator decided.
var topicSettings = []setting{
	{"cleanup.policy", kmsg.ConfigTypeList, "log.cleanup.policy", "delete", listOf("compact", "delete"), "delete, compact, or both"},
	{"compression.type", kmsg.ConfigTypeString, "compression.type", "producer", oneOf("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"), "codec of stored batches; producer keeps the producer's"},
	{"delete.retention.ms", kmsg.ConfigTypeLong, "log.cleaner.delete.retention.ms", "86400000", within(0, maxInt64), "how long deletes of a compacted topic stay readable"},
	{"file.delete.delay.ms", kmsg.ConfigTypeLong, "log.segment.delete.delay.ms", "60000", within(0, maxInt64), "how long a deleted file stays on disk"},
	{"flush.messages", kmsg.ConfigTypeLong, "log.flush.interval.messages", "9223372036854775807", within(1, maxInt64), "records between syncs; acks=all is synced in any case"},
	{"flush.ms", kmsg.ConfigTypeLong, "log.flush.interval.ms", "9223372036854775807", within(0, maxInt64), "time between syncs; acks=all is synced in any case"},
	{"follower.replication.throttled.replicas", kmsg.ConfigTypeList, "", "", throttled, "followers whose replication is throttled"},
	{"index.interval.bytes", kmsg.ConfigTypeInt, "log.index.interval.bytes", "4096", within(0, maxInt32), "bytes of log per index entry"},
	{"leader.replication.throttled.replicas", kmsg.ConfigTypeList, "", "", throttled, "leaders whose replication is throttled"},
	{"max.compaction.lag.ms", kmsg.ConfigTypeLong, "log.cleaner.max.compaction.lag.ms", "9223372036854775807", within(1, maxInt64), "longest time before a record is compacted"},
	{"max.message.bytes", kmsg.ConfigTypeInt, "message.max.bytes", "1048588", within(0, maxInt32), "largest batch accepted"},
	{"message.downconversion.enable", kmsg.ConfigTypeBoolean, "log.message.downconversion.enable", "true", boolean, "kept for old tools; old clients are always served"},
	{"message.format.version", kmsg.ConfigTypeString, "log.message.format.version", "3.0-IV1", anything, "kept for old tools; batches are stored in format 2"},
	{"message.timestamp.after.max.ms", kmsg.ConfigTypeLong, "log.message.timestamp.after.max.ms", "9223372036854775807", within(0, maxInt64), "how far in the future a timestamp may be"},
	{"message.timestamp.before.max.ms", kmsg.ConfigTypeLong, "log.message.timestamp.before.max.ms", "9223372036854775807", within(0, maxInt64), "how far in the past a timestamp may be"},
	{"message.timestamp.difference.max.ms", kmsg.ConfigTypeLong, "log.message.timestamp.difference.max.ms", "9223372036854775807", within(0, maxInt64), "how far from now a timestamp may be"},
	{"message.timestamp.type", kmsg.ConfigTypeString, "log.message.timestamp.type", "CreateTime", oneOf("CreateTime", "LogAppendTime"), "who stamps records"},
	{"min.cleanable.dirty.ratio", kmsg.ConfigTypeDouble, "log.cleaner.min.cleanable.ratio", "0.5", fraction, "share of uncompacted bytes that starts compaction"},
	{"min.compaction.lag.ms", kmsg.ConfigTypeLong, "log.cleaner.min.compaction.lag.ms", "0", within(0, maxInt64), "shortest time before a record is compacted"},
	{"min.insync.replicas", kmsg.ConfigTypeInt, "min.insync.replicas", "", within(1, maxInt32), "replicas that must have a record before acks=all; default (replicas+1)/2"},
	{"preallocate", kmsg.ConfigTypeBoolean, "log.preallocate", "false", boolean, "whether segments are made at full size"},
	{"retention.bytes", kmsg.ConfigTypeLong, "log.retention.bytes", "-1", within(-1, maxInt64), "size at which old segments are deleted"},
	{"retention.ms", kmsg.ConfigTypeLong, "log.retention.ms", "604800000", within(-1, maxInt64), "age at which segments are deleted"},
	{"segment.bytes", kmsg.ConfigTypeInt, "log.segment.bytes", "1073741824", within(14, maxInt32), "size at which a segment is closed"},
	{"segment.index.bytes", kmsg.ConfigTypeInt, "log.index.size.max.bytes", "10485760", within(4, maxInt32), "largest index of a segment"},
	{"segment.jitter.ms", kmsg.ConfigTypeLong, "log.roll.jitter.ms", "0", within(0, maxInt64), "random part of segment.ms"},
	{"segment.ms", kmsg.ConfigTypeLong, "log.roll.ms", "604800000", within(1, maxInt64), "age at which a segment is closed"},
	{"unclean.leader.election.enable", kmsg.ConfigTypeBoolean, "unclean.leader.election.enable", "false", boolean, "whether a replica outside the ISR may lead"},
}

func topicSetting(name string) (*setting, bool) { return findSetting(topicSettings, name) }

func findSetting(settings []setting, name string) (*setting, bool) {
	i, ok := slices.BinarySearchFunc(settings, name, func(s setting, n string) int { return strings.Compare(s.name, n) })
	if !ok {
		return nil, false
	}
	return &settings[i], true
}

func checkTopicConfigs(configs map[string]string) *fault {
	return checkConfigs(configs, topicSetting, "topic")
}

// checkConfigs refuses unknown names and wrong values, all of them at once.
func checkConfigs(configs map[string]string, find func(string) (*setting, bool), kind string) *fault {
	var faults []string
	for _, name := range sortedKeys(configs) {
		if err := checkConfig(name, configs[name], find, kind); err != nil {
			faults = append(faults, err.Error())
		}
	}
	if faults != nil {
		return faultOf(kerr.InvalidConfig, strings.Join(faults, "; "))
	}
	return nil
}

func checkConfig(name, value string, find func(string) (*setting, bool), kind string) error {
	def, ok := find(name)
	if !ok {
		return fmt.Errorf("unknown %s config name: %s", kind, name)
	}
	if err := def.check(value); err != nil {
		return fmt.Errorf("invalid value %s for configuration %s: %w", clip(value), name, err)
	}
	return nil
}

// CheckTopicSetting tells what is wrong with the value of a topic's setting, as CreateTopics and AlterConfigs would; nil for a name
// that is no setting.
func CheckTopicSetting(name, value string) error {
	if _, ok := topicSetting(name); !ok {
		return nil
	}
	return checkConfig(name, value, topicSetting, "topic")
}

// clip keeps a client's text in an answer short.
func clip(s string) string {
	if len(s) > 100 {
		return s[:100] + "..."
	}
	return s
}

func within(lo, hi int64) func(string) error {
	return func(v string) error {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return fmt.Errorf("it is no whole number within %d to %d", lo, hi)
		}
		if n < lo || n > hi {
			return fmt.Errorf("it is not within %d to %d", lo, hi)
		}
		return nil
	}
}

func boolean(v string) error {
	if !strings.EqualFold(v, "true") && !strings.EqualFold(v, "false") {
		return fmt.Errorf("it is neither true nor false")
	}
	return nil
}

func oneOf(words ...string) func(string) error {
	return func(v string) error {
		if !slices.Contains(words, v) {
			return fmt.Errorf("it is none of %s", strings.Join(words, ", "))
		}
		return nil
	}
}

func listOf(words ...string) func(string) error {
	one := oneOf(words...)
	return func(v string) error {
		for item := range strings.SplitSeq(v, ",") {
			if err := one(strings.TrimSpace(item)); err != nil {
				return err
			}
		}
		return nil
	}
}

func fraction(v string) error {
	f, err := strconv.ParseFloat(v, 64)
	if err != nil || !(f >= 0 && f <= 1) {
		return fmt.Errorf("it is no number within 0 to 1")
	}
	return nil
}

// throttled is a list of partition:broker, or *, or empty (kafka.server.ThrottledReplicaListValidator).
func throttled(v string) error {
	if v == "" || v == "*" {
		return nil
	}
	for item := range strings.SplitSeq(v, ",") {
		p, b, _ := strings.Cut(strings.TrimSpace(item), ":")
		if within(0, maxInt32)(p) != nil || within(0, maxInt32)(b) != nil {
			return fmt.Errorf("it is no list of partition:broker")
		}
	}
	return nil
}

func anything(string) error { return nil }

// synonym is one place that gives a setting its value, most specific first.
type synonym struct {
	name, value string
	source      kmsg.ConfigSource
}

// topicSynonyms returns where a topic's setting comes from; the first is in force. entries is the topic's row, nil if it has none;
// replicas is the topic's replication factor.
func (s *Server) topicSynonyms(def *setting, entries *state.Config, replicas int) []synonym {
	var out []synonym
	if entries != nil {
		if v, ok := entries.Get(def.name); ok {
			out = append(out, synonym{def.name, v, kmsg.ConfigSourceDynamicTopicConfig})
		}
	}
	if def.broker == "" {
		return append(out, synonym{def.name, def.def, kmsg.ConfigSourceDefaultConfig})
	}
	if v, ok := s.cfg.Static[def.broker]; ok && v != def.def {
		out = append(out, synonym{def.broker, v, kmsg.ConfigSourceStaticBrokerConfig})
	}
	value := def.def
	if def.name == "min.insync.replicas" {
		value = strconv.Itoa((replicas + 1) / 2)
		if s.cfg.MinISR > 0 {
			value = strconv.Itoa(int(s.cfg.MinISR))
		}
	}
	return append(out, synonym{def.broker, value, kmsg.ConfigSourceDefaultConfig})
}

// configEntries turns a map into rows in order of name.
func configEntries(configs map[string]string) *state.Config {
	c := &state.Config{Type: "topics"}
	for _, name := range sortedKeys(configs) {
		c.Entries = append(c.Entries, state.KV{Name: name, Value: configs[name]})
	}
	return c
}

func protoEntries(configs map[string]string) []*statepb.ConfigEntry {
	var out []*statepb.ConfigEntry
	for _, name := range sortedKeys(configs) {
		out = append(out, &statepb.ConfigEntry{Name: name, Value: configs[name]})
	}
	return out
}
