package broker

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

var createTopicsAPI = register(19, 7, (*Server).createTopics).frames(listFrames)

// createTopics makes topics, each by a command of its own. The answer comes when this node has applied them, so a Metadata request
// after it shows them with leaders.
func (s *Server) createTopics(ctx context.Context, _ *call, req *kmsg.CreateTopicsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
	resp.Topics = make([]kmsg.CreateTopicsResponseTopic, len(req.Topics))
	count := map[string]int{}
	for i := range req.Topics {
		count[req.Topics[i].Topic]++
	}
	each(len(req.Topics), func(i int) {
		t := &req.Topics[i]
		out := kmsg.NewCreateTopicsResponseTopic()
		out.Topic, out.Configs = t.Topic, []kmsg.CreateTopicsResponseTopicConfig{}
		out.NumPartitions, out.ReplicationFactor = -1, -1
		var f *fault
		if count[t.Topic] > 1 {
			f = faultOf(kerr.InvalidRequest, "the topic is in the request more than once")
		} else {
			f = s.createTopic(ctx, req, t, &out)
		}
		if f != nil {
			out.ErrorCode, out.ErrorMessage = f.code, f.message()
		}
		resp.Topics[i] = out
	})
	return resp
}

func (s *Server) createTopic(ctx context.Context, req *kmsg.CreateTopicsRequest, t *kmsg.CreateTopicsRequestTopic, out *kmsg.CreateTopicsResponseTopic) *fault {
	w := topicWish{name: t.Topic, partitions: t.NumPartitions, replication: t.ReplicationFactor, configs: map[string]string{}}
	for _, a := range t.ReplicaAssignment {
		if w.assignments == nil {
			w.assignments = map[int32][]int32{}
		}
		if _, ok := w.assignments[a.Partition]; ok {
			return faultOf(kerr.InvalidReplicaAssignment, fmt.Sprintf("partition %d is assigned twice", a.Partition))
		}
		w.assignments[a.Partition] = a.Replicas
	}
	for _, c := range t.Configs {
		if c.Value == nil {
			return faultOf(kerr.InvalidConfig, fmt.Sprintf("configuration %s has no value", clip(c.Name)))
		}
		if _, ok := w.configs[c.Name]; ok {
			return faultOf(kerr.InvalidConfig, fmt.Sprintf("configuration %s is given twice", clip(c.Name)))
		}
		w.configs[c.Name] = *c.Value
	}
	if state.InternalTopic(t.Topic) {
		return faultOf(kerr.InvalidTopicException, t.Topic+" is made by the cluster, when a client asks for it")
	}
	plan, f := s.planTopic(s.deps.Views.View(), &w)
	if f != nil {
		return f
	}
	if !req.ValidateOnly {
		if f := settled(s.propose(ctx, req.TimeoutMillis, plan.command())); f != nil {
			return f
		}
		out.TopicID = plan.id
	}
	out.NumPartitions, out.ReplicationFactor = int32(len(plan.assignments)), plan.replication()
	out.Configs = s.createdConfigs(configEntries(plan.configs), int(plan.replication()))
	return nil
}

func (s *Server) createdConfigs(entries *state.Config, replicas int) []kmsg.CreateTopicsResponseTopicConfig {
	out := make([]kmsg.CreateTopicsResponseTopicConfig, 0, len(topicSettings))
	for i := range topicSettings {
		in := s.topicSynonyms(&topicSettings[i], entries, replicas)[0]
		c := kmsg.NewCreateTopicsResponseTopicConfig()
		c.Name, c.Value, c.Source = topicSettings[i].name, &in.value, int8(in.source)
		out = append(out, c)
	}
	return out
}
