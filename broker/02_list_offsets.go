package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/partition"
)

var listOffsetsAPI = register(2, 7, (*Server).listOffsets).frames(listFrames)

// maxOldOffsets bounds the list of a ListOffsets v0, whatever the client asks.
const maxOldOffsets = 100_000

// listOffsets answers with one offset per partition; v0, which is another request under the same key, with a list.
func (s *Server) listOffsets(_ context.Context, _ *call, req *kmsg.ListOffsetsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
	for i := range req.Topics {
		t := kmsg.NewListOffsetsResponseTopic()
		t.Topic = req.Topics[i].Topic
		for j := range req.Topics[i].Partitions {
			t.Partitions = append(t.Partitions, s.listOffset(req, t.Topic, &req.Topics[i].Partitions[j]))
		}
		resp.Topics = append(resp.Topics, t)
	}
	return resp
}

func (s *Server) listOffset(req *kmsg.ListOffsetsRequest, topic string, p *kmsg.ListOffsetsRequestTopicPartition) kmsg.ListOffsetsResponseTopicPartition {
	out := kmsg.NewListOffsetsResponseTopicPartition()
	out.Partition = p.Partition
	if req.Version == 0 {
		offsets, err := s.deps.Partitions.ListOffsetsV0(topic, p.Partition, p.Timestamp, int(min(max(p.MaxNumOffsets, 0), maxOldOffsets)))
		out.ErrorCode = oldCode(codeOf(err), 0, listOffsetsCodes)
		out.OldStyleOffsets = make([]int64, 0, len(offsets))
		for _, o := range offsets {
			out.OldStyleOffsets = append(out.OldStyleOffsets, int64(o))
		}
		return out
	}
	at, err := s.deps.Partitions.ListOffset(topic, p.Partition, p.Timestamp, id.LeaderEpoch(p.CurrentLeaderEpoch), partition.Isolation(req.IsolationLevel))
	if err != nil {
		out.ErrorCode = oldCode(codeOf(err), req.Version, listOffsetsCodes)
		return out // offset, timestamp and epoch are -1
	}
	out.Offset, out.Timestamp, out.LeaderEpoch = int64(at.Offset), at.Timestamp, int32(at.LeaderEpoch)
	return out
}
