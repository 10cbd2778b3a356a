package broker

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

func askTopic(c *client, name string, create bool) kmsg.MetadataResponseTopic {
	req := kmsg.NewPtrMetadataRequest()
	req.Version, req.Topics, req.AllowAutoTopicCreation = 9, []kmsg.MetadataRequestTopic{{Topic: &name}}, create
	return ask[*kmsg.MetadataResponse](c, req).Topics[0]
}

// TestOffsetsTopicIsMadeForItsReaders: whoever asks for it by name begins the export, and nobody but the cluster writes it.
func TestOffsetsTopicIsMadeForItsReaders(t *testing.T) {
	f := start(t, func(c *Config) { c.NoAutoCreate = true })
	c := f.dial(t)
	if got := createTopic(c, 5, "t", 1, 1, nil); got.ErrorCode != 0 {
		t.Fatalf("%+v", got)
	}
	if got := createTopic(c, 5, state.OffsetsTopic, 3, 1, nil); got.ErrorCode != 17 {
		t.Errorf("made by a client: %+v", got)
	}
	got := askTopic(c, state.OffsetsTopic, false)
	if got.ErrorCode != 0 || !got.IsInternal || len(got.Partitions) != 50 {
		t.Fatalf("asked for: code %d, internal %v, %d partitions", got.ErrorCode, got.IsInternal, len(got.Partitions))
	}
	if got := askTopic(c, "t", false); got.IsInternal {
		t.Error("t is internal")
	}
	conf, _ := f.meta.View().Config("topics", state.OffsetsTopic)
	if v, _ := conf.Get("cleanup.policy"); v != "compact" {
		t.Errorf("cleanup.policy is %q", v)
	}

	req := produceOne(7, -1, "t", 0, batch(t, "x"))
	inner := produceOne(7, -1, state.OffsetsTopic, 3, batch(t, "x"))
	req.Topics = append(inner.Topics, req.Topics...)
	resp := ask[*kmsg.ProduceResponse](c, req)
	if a, b := resp.Topics[0].Partitions[0], resp.Topics[1].Partitions[0]; a.ErrorCode != 17 || a.Partition != 3 || b.ErrorCode != 0 {
		t.Errorf("produce: %+v, %+v", a, b)
	}
	f.parts.mu.Lock()
	for tp := range f.parts.logs {
		if tp.Topic == state.OffsetsTopic {
			t.Errorf("%v was written", tp)
		}
	}
	f.parts.mu.Unlock()

	grow := kmsg.NewPtrCreatePartitionsRequest()
	grow.Version, grow.Topics = 1, []kmsg.CreatePartitionsRequestTopic{{Topic: state.OffsetsTopic, Count: 60}}
	if got := ask[*kmsg.CreatePartitionsResponse](c, grow).Topics[0]; got.ErrorCode != 17 {
		t.Errorf("grow: %+v", got)
	}
}

// TestOffsetsTopicSwitchedOff: then it is not there, whatever may be created.
func TestOffsetsTopicSwitchedOff(t *testing.T) {
	f := start(t, func(c *Config) { c.OffsetsTopic.Off = true })
	c := f.dial(t)
	if got := askTopic(c, state.OffsetsTopic, true); got.ErrorCode != 3 {
		t.Errorf("%+v", got)
	}
}
