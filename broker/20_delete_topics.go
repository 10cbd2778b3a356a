package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

var deleteTopicsAPI = register(20, 6, (*Server).deleteTopics).frames(listFrames)

// deleteTopics deletes by name, from v6 also by id. A delete by id that finds another topic under the name deletes nothing.
func (s *Server) deleteTopics(ctx context.Context, _ *call, req *kmsg.DeleteTopicsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DeleteTopicsResponse)
	asked := req.Topics
	if req.Version < 6 {
		asked = nil
		for i := range req.TopicNames {
			asked = append(asked, kmsg.DeleteTopicsRequestTopic{Topic: &req.TopicNames[i]})
		}
	}
	resp.Topics = make([]kmsg.DeleteTopicsResponseTopic, len(asked))
	each(len(asked), func(i int) {
		out := kmsg.NewDeleteTopicsResponseTopic()
		out.Topic, out.TopicID = asked[i].Topic, asked[i].TopicID
		if f := s.deleteTopic(ctx, req.TimeoutMillis, &out); f != nil {
			out.ErrorCode, out.ErrorMessage = f.code, f.message()
		}
		resp.Topics[i] = out
	})
	return resp
}

func (s *Server) deleteTopic(ctx context.Context, timeoutMs int32, out *kmsg.DeleteTopicsResponseTopic) *fault {
	v := s.deps.Views.View()
	if s.cfg.NoDelete {
		return faultOf(kerr.TopicDeletionDisabled, "delete.topic.enable is false on this broker")
	}
	byID := out.TopicID != [16]byte{}
	switch {
	case out.Topic != nil && byID:
		return faultOf(kerr.InvalidRequest, "give the topic's name or its id, not both")
	case out.Topic == nil:
		t, ok := v.TopicByID(out.TopicID)
		if !ok {
			return faultOf(kerr.UnknownTopicID, "")
		}
		out.Topic = &t.Name
	default:
		t, ok := v.Topic(*out.Topic)
		if !ok {
			return faultOf(kerr.UnknownTopicOrPartition, "")
		}
		out.TopicID = t.ID
	}
	cmd := &statepb.DeleteTopic{Name: *out.Topic, TopicId: out.TopicID[:]}
	return settled(s.propose(ctx, timeoutMs, &statepb.Command{Body: &statepb.Command_DeleteTopic{DeleteTopic: cmd}}))
}
