package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/internal/id"
)

var offsetForLeaderEpochAPI = register(23, 4, (*Server).offsetForLeaderEpoch).frames(listFrames)

func (s *Server) offsetForLeaderEpoch(_ context.Context, _ *call, req *kmsg.OffsetForLeaderEpochRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
	for i := range req.Topics {
		t := kmsg.NewOffsetForLeaderEpochResponseTopic()
		t.Topic = req.Topics[i].Topic
		for j := range req.Topics[i].Partitions {
			p := &req.Topics[i].Partitions[j]
			out := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
			epoch, end, err := s.deps.Partitions.EndOffsetForEpoch(t.Topic, p.Partition, id.LeaderEpoch(p.CurrentLeaderEpoch), id.LeaderEpoch(p.LeaderEpoch))
			out.Partition, out.LeaderEpoch, out.EndOffset = p.Partition, int32(epoch), int64(end)
			out.ErrorCode = oldCode(codeOf(err), req.Version, epochCodes)
			t.Partitions = append(t.Partitions, out)
		}
		resp.Topics = append(resp.Topics, t)
	}
	return resp
}
