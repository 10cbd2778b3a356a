package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/internal/id"
)

var listOffsetsAPI = register(2, 7, (*Server).listOffsets).frames(listFrames)

// maxOldOffsets bounds the list of a ListOffsets v0, whatever the client asks.
const maxOldOffsets = 100_000

// listOffsets answers with one offset per partition; v0, which is another request under the same key, with a list.
func (s *Server) listOffsets(ctx context.Context, _ *call, req *kmsg.ListOffsetsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
	for i := range req.Topics {
		t := kmsg.NewListOffsetsResponseTopic()
		t.Topic = req.Topics[i].Topic
		for j := range req.Topics[i].Partitions {
			p := &req.Topics[i].Partitions[j]
			item := ListOffsetsItem{
				Topic: t.Topic, Partition: p.Partition, Epoch: id.LeaderEpoch(p.CurrentLeaderEpoch), Timestamp: p.Timestamp,
				ReadCommitted: req.IsolationLevel == 1,
			}
			t.Partitions = append(t.Partitions, s.listOffset(ctx, req.Version, p.MaxNumOffsets, item))
		}
		resp.Topics = append(resp.Topics, t)
	}
	return resp
}

func (s *Server) listOffset(ctx context.Context, version int16, maxOffsets int32, item ListOffsetsItem) kmsg.ListOffsetsResponseTopicPartition {
	out := kmsg.NewListOffsetsResponseTopicPartition()
	out.Partition = item.Partition
	if version == 0 {
		offsets, code := s.deps.Partitions.ListOffsetsV0(ctx, item, min(max(maxOffsets, 0), maxOldOffsets))
		out.ErrorCode = oldCode(code, true, true, true)
		out.OldStyleOffsets = make([]int64, 0, len(offsets))
		for _, o := range offsets {
			out.OldStyleOffsets = append(out.OldStyleOffsets, int64(o))
		}
		return out
	}
	r := s.deps.Partitions.ListOffsets(ctx, item)
	out.ErrorCode = oldCode(r.Code, version < 3, true, version < 5)
	out.Offset, out.Timestamp, out.LeaderEpoch = int64(r.Offset), r.Timestamp, int32(r.Epoch)
	return out
}
