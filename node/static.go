package node

import (
	"maps"
	"strconv"

	"github.com/barnabas-mq/barnabas/node/config"
)

// kafkaDefaults are settings that nobody needs to be shown as set: kafka-topics --describe lists those that are not default.
var kafkaDefaults = map[string]string{
	"log.segment.bytes": "1073741824", "log.roll.ms": "604800000", "log.index.interval.bytes": "4096", "message.max.bytes": "1048588",
	"log.retention.ms": "604800000", "log.retention.bytes": "-1",
}

// static are the broker's settings under Kafka's names, as DescribeConfigs shows them; those that a topic does not set
// itself are its defaults.
func static(c config.Config) map[string]string {
	num := func(n int64) string { return strconv.FormatInt(n, 10) }
	retention := num(-1)
	if c.Log.RetentionTime != config.Unlimited {
		retention = num(c.Log.RetentionTime.Milliseconds())
	}
	all := map[string]string{
		"node.id":                   num(int64(c.NodeID)),
		"log.dirs":                  c.DataDir,
		"num.partitions":            num(int64(c.Topics.Partitions)),
		"auto.create.topics.enable": strconv.FormatBool(c.Topics.AutoCreate),
		"delete.topic.enable":       strconv.FormatBool(c.Topics.Delete),
		"log.segment.bytes":         num(int64(c.Log.SegmentBytes)),
		"log.roll.ms":               num(c.Log.RollAfter.Milliseconds()),
		"log.index.interval.bytes":  num(int64(c.Log.IndexIntervalBytes)),
		"message.max.bytes":         num(int64(c.Log.MessageMaxBytes)),
		"log.retention.ms":          retention,
		"log.retention.bytes":       num(c.Log.RetentionBytes),
		"socket.request.max.bytes":  num(int64(c.Network.RequestMaxBytes)),
		"replica.fetch.max.bytes":   num(int64(c.Network.ReplicaFetchMaxBytes)),
	}
	maps.DeleteFunc(all, func(k, v string) bool { return kafkaDefaults[k] == v })
	return all
}
