package broker

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/internal/id"
)

func createTopic(c *client, version int16, name string, partitions int32, rf int16, configs map[string]string) kmsg.CreateTopicsResponseTopic {
	c.t.Helper()
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Version, req.TimeoutMillis = version, 5000
	rt := kmsg.NewCreateTopicsRequestTopic()
	rt.Topic, rt.NumPartitions, rt.ReplicationFactor = name, partitions, rf
	for _, k := range sortedKeys(configs) {
		v := configs[k]
		rt.Configs = append(rt.Configs, kmsg.CreateTopicsRequestTopicConfig{Name: k, Value: &v})
	}
	req.Topics = append(req.Topics, rt)
	return ask[*kmsg.CreateTopicsResponse](c, req).Topics[0]
}

func TestTopicsOverEveryVersion(t *testing.T) {
	f := start(t, func(c *Config) { c.NoAutoCreate = true })
	f.meta.register(t, 2, "127.0.0.1:2")
	c := f.dial(t)
	for _, v := range versions(createTopicsAPI.max) {
		name := "t" + string(rune('0'+v))
		got := createTopic(c, v, name, 3, 2, map[string]string{"retention.ms": "1000"})
		if got.ErrorCode != 0 || got.Topic != name {
			t.Fatalf("create v%d: %+v", v, got)
		}
		if v >= 5 && (got.NumPartitions != 3 || got.ReplicationFactor != 2 || len(got.Configs) != len(topicSettings)) {
			t.Errorf("create v%d: %+v", v, got)
		}
		if again := createTopic(c, v, name, 3, 2, nil); again.ErrorCode != 36 || again.Configs == nil && v >= 5 {
			t.Errorf("create v%d again: %+v", v, again)
		}
	}
	for _, v := range versions(metadataAPI.max) {
		req := kmsg.NewPtrMetadataRequest()
		req.Version = v
		if v == 0 {
			req.Topics = []kmsg.MetadataRequestTopic{}
		}
		got := ask[*kmsg.MetadataResponse](c, req)
		if len(got.Topics) != 8 || len(got.Brokers) != 2 || v > 0 && got.ControllerID != 1 {
			t.Fatalf("metadata v%d: %+v", v, got)
		}
		for _, topic := range got.Topics {
			if topic.ErrorCode != 0 || len(topic.Partitions) != 3 || topic.Partitions[0].Leader < 1 || len(topic.Partitions[0].Replicas) != 2 {
				t.Errorf("metadata v%d: %+v", v, topic)
			}
		}
		name := "missing"
		req.Topics = []kmsg.MetadataRequestTopic{{Topic: &name}}
		if got := ask[*kmsg.MetadataResponse](c, req); len(got.Topics) != 1 || got.Topics[0].ErrorCode != 3 {
			t.Errorf("metadata v%d of a missing topic: %+v", v, got.Topics)
		}
		if v >= 1 {
			req.Topics = []kmsg.MetadataRequestTopic{}
			if got := ask[*kmsg.MetadataResponse](c, req); len(got.Topics) != 0 || len(got.Brokers) != 2 {
				t.Errorf("metadata v%d of nothing: %+v", v, got)
			}
		}
	}
	for _, v := range versions(deleteTopicsAPI.max) {
		name := "t" + string(rune('0'+v))
		req := kmsg.NewPtrDeleteTopicsRequest()
		req.Version, req.TimeoutMillis = v, 5000
		if v < 6 {
			req.TopicNames = []string{name, "missing"}
		} else {
			row, _ := f.meta.View().Topic(name)
			missing := "missing"
			req.Topics = []kmsg.DeleteTopicsRequestTopic{{TopicID: row.ID}, {Topic: &missing}}
		}
		got := ask[*kmsg.DeleteTopicsResponse](c, req)
		if got.Topics[0].ErrorCode != 0 || *got.Topics[0].Topic != name || got.Topics[1].ErrorCode != 3 {
			t.Errorf("delete v%d: %+v", v, got.Topics)
		}
		if _, ok := f.meta.View().Topic(name); ok {
			t.Errorf("delete v%d: %s is still there", v, name)
		}
	}
}

func TestPlaceSpreads(t *testing.T) {
	brokers := []id.BrokerID{1, 2, 5, 9}
	leaders, pairs := map[int32]int{}, map[[2]int32]int{}
	for _, a := range place(brokers, 0, 48, 3, 7, 11) {
		leaders[a.Replicas[0]]++
		seen := map[int32]bool{}
		for _, r := range a.Replicas {
			if seen[r] {
				t.Fatalf("twice in one partition: %v", a.Replicas)
			}
			seen[r] = true
		}
		pairs[[2]int32{a.Replicas[0], a.Replicas[1]}]++
	}
	for _, b := range brokers {
		if leaders[int32(b)] != 12 {
			t.Errorf("leaders: %v", leaders)
		}
	}
	if len(pairs) != 12 { // every broker is followed by every other
		t.Errorf("a dead broker's load does not spread: %v", pairs)
	}
	if one := place(brokers[:1], 0, 3, 1, 5, 5); len(one) != 3 || one[2].Replicas[0] != 1 {
		t.Errorf("one broker: %v", one)
	}
}
