package broker

import (
	"context"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

var createPartitionsAPI = register(37, 3, (*Server).createPartitions).frames(listFrames)

func (s *Server) createPartitions(ctx context.Context, _ *call, req *kmsg.CreatePartitionsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.CreatePartitionsResponse)
	resp.Topics = make([]kmsg.CreatePartitionsResponseTopic, len(req.Topics))
	count := map[string]int{}
	for i := range req.Topics {
		count[req.Topics[i].Topic]++
	}
	each(len(req.Topics), func(i int) {
		t := &req.Topics[i]
		out := kmsg.NewCreatePartitionsResponseTopic()
		out.Topic = t.Topic
		var f *fault
		if count[t.Topic] > 1 {
			f = faultOf(kerr.InvalidRequest, "the topic is in the request more than once")
		} else {
			f = s.growTopic(ctx, req, t)
		}
		if f != nil {
			out.ErrorCode, out.ErrorMessage = f.code, f.message()
		}
		resp.Topics[i] = out
	})
	return resp
}

func (s *Server) growTopic(ctx context.Context, req *kmsg.CreatePartitionsRequest, asked *kmsg.CreatePartitionsRequestTopic) *fault {
	v := s.deps.Views.View()
	t, ok := v.Topic(asked.Topic)
	if !ok {
		return faultOf(kerr.UnknownTopicOrPartition, "")
	}
	switch {
	case state.InternalTopic(t.Name): // a group's records would be in another partition from then on
		return faultOf(kerr.InvalidTopicException, t.Name+" keeps its number of partitions")
	case asked.Count <= t.Partitions:
		return faultOf(kerr.InvalidPartitions, fmt.Sprintf("topic %s has %d partitions; it can only grow, not become %d", t.Name, t.Partitions, asked.Count))
	case asked.Count > state.MaxPartitions:
		return faultOf(kerr.InvalidPartitions, fmt.Sprintf("a topic has at most %d partitions, not %d", state.MaxPartitions, asked.Count))
	}
	more, f := morePartitions(v, t, asked)
	if f != nil || req.ValidateOnly {
		return f
	}
	cmd := &statepb.CreatePartitions{Name: t.Name, From: t.Partitions, Assignments: more}
	return settled(s.propose(ctx, req.TimeoutMillis, &statepb.Command{Body: &statepb.Command_CreatePartitions{CreatePartitions: cmd}}))
}

// morePartitions assigns the partitions that a topic lacks. Ours continue where its first partition began.
func morePartitions(v *state.View, t *state.Topic, asked *kmsg.CreatePartitionsRequestTopic) ([]*statepb.Assignment, *fault) {
	n := asked.Count - t.Partitions
	first, _ := v.Partition(t.Name, 0)
	rf := len(first.Replicas)
	if asked.Assignment != nil {
		if int32(len(asked.Assignment)) != n {
			return nil, faultOf(kerr.InvalidReplicaAssignment, fmt.Sprintf("%d partitions are added, %d are assigned", n, len(asked.Assignment)))
		}
		byPartition := map[int32][]int32{}
		for i, a := range asked.Assignment {
			if len(a.Replicas) != rf {
				return nil, faultOf(kerr.InvalidReplicaAssignment, fmt.Sprintf("the topic has %d replicas per partition, not %d", rf, len(a.Replicas)))
			}
			byPartition[t.Partitions+int32(i)] = a.Replicas
		}
		return given(v, byPartition, t.Partitions)
	}
	live := liveIDs(v)
	if f := checkReplication(rf, len(live)); f != nil {
		return nil, f
	}
	_, shift := seeds(t.ID)
	start := max(0, slices.Index(live, first.Replicas[0]))
	return place(live, t.Partitions, n, rf, uint32(start), shift), nil
}
