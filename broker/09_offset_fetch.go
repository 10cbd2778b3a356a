package broker

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

var offsetFetchAPI = register(9, 9, (*Server).offsetFetch).frames(listFrames)

// offsetFetch reads the one store of offsets. A missing offset is -1: with error 3 in version 0, which is the znode's face and
// served by every broker, without error later. From v2 a null list of topics means all; v8 asks for several groups, and v9 names the
// member of a consumer group, whose epoch is checked. From v1 on the coordinator proves first that it still is the one: after a freeze
// its view may be of a past in which others have committed since.
func (s *Server) offsetFetch(ctx context.Context, c *call, req *kmsg.OffsetFetchRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.OffsetFetchResponse)
	s.awaitOffsets(ctx, c, req)
	proof := int16(0)
	if req.Version > 0 && s.deps.ProveLeading != nil && s.deps.ProveLeading(ctx) != nil {
		proof = kerr.NotCoordinator.Code
	}
	v := s.deps.Views.View() // after the proof
	if req.Version >= 8 {
		for i := range req.Groups {
			resp.Groups = append(resp.Groups, s.fetchGroup(v, req.Version, proof, &req.Groups[i]))
		}
		return resp
	}
	g := kmsg.OffsetFetchRequestGroup{Group: req.Group}
	if req.Topics != nil || req.Version < 2 {
		g.Topics = make([]kmsg.OffsetFetchRequestGroupTopic, 0, len(req.Topics))
	}
	for _, t := range req.Topics {
		g.Topics = append(g.Topics, kmsg.OffsetFetchRequestGroupTopic{Topic: t.Topic, Partitions: t.Partitions})
	}
	out := s.fetchGroup(v, req.Version, proof, &g)
	resp.ErrorCode = out.ErrorCode
	for _, t := range out.Topics {
		rt := kmsg.NewOffsetFetchResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rt.Partitions = append(rt.Partitions, kmsg.OffsetFetchResponseTopicPartition(p))
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

// awaitHold is above the coordinator's own bound (2 s); some old consumers' sockets give up after 3 s.
const awaitHold = 2500 * time.Millisecond

// awaitOffsets holds an old consumer's read while its group of znode consumers rebalances and the former owners of the partitions have
// not committed yet: old consumers read their offsets before they claim (zk-paths.md 6.6). Old tools, which send no client id, are not
// held: they give up after 0.6 s. Nor are versions that old consumers do not send, or read after they have claimed (v0).
func (s *Server) awaitOffsets(ctx context.Context, c *call, req *kmsg.OffsetFetchRequest) {
	if req.Version < 1 || req.Version > 2 || c.clientID == "" {
		return
	}
	v := s.deps.Views.View()
	ask := &statepb.AwaitOffsets{Group: req.Group, By: text(c.clientID) + "@" + c.host}
	for _, t := range req.Topics {
		for _, n := range t.Partitions {
			if _, waits := v.OffsetWaits(0, req.Group, t.Topic, n); waits {
				ask.Partitions = append(ask.Partitions, &statepb.OwnedPartition{Topic: t.Topic, Partition: n})
			}
		}
	}
	if len(ask.Partitions) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, awaitHold)
	defer cancel()
	// Without an answer the read is answered as it is: nothing was promised.
	_, _ = s.deps.Groups.Do(ctx, &statepb.Command{Body: &statepb.Command_AwaitOffsets{AwaitOffsets: ask}})
}

// fetchGroup answers for one group. A fault of the whole group is in ErrorCode, and, as versions below 2 have no such field, in every
// partition. proof is 0, or why this broker may not answer for the coordinator.
func (s *Server) fetchGroup(v *state.View, version, proof int16, g *kmsg.OffsetFetchRequestGroup) kmsg.OffsetFetchResponseGroup {
	out := kmsg.NewOffsetFetchResponseGroup()
	out.Group, out.Topics = g.Group, []kmsg.OffsetFetchResponseGroupTopic{}
	whole := s.refuseGroup(v, g.Group, version)
	if whole == 0 {
		whole = proof
	}
	if row, ok := v.Group(g.Group); whole == 0 && ok && version >= 9 {
		whole = refuseMember(row, g.MemberID, g.MemberEpoch)
	}
	if out.ErrorCode = whole; whole != 0 && version >= 8 {
		return out
	}
	if g.Topics == nil {
		if whole == 0 {
			out.Topics = allOffsets(v, g.Group)
		}
		return out
	}
	for i := range g.Topics {
		t := kmsg.NewOffsetFetchResponseGroupTopic()
		t.Topic = g.Topics[i].Topic
		for _, n := range g.Topics[i].Partitions {
			p := noOffset(n)
			o, ok := v.Offset(g.Group, t.Topic, n)
			switch {
			case whole != 0:
				p.ErrorCode = whole
			case ok:
				p = offsetOf(o)
				if version == 0 { // a znode holds no metadata
					p.Metadata = new(string)
				}
			case version == 0:
				p.ErrorCode = kerr.UnknownTopicOrPartition.Code
			}
			t.Partitions = append(t.Partitions, p)
		}
		out.Topics = append(out.Topics, t)
	}
	return out
}

// refuseMember checks who asks for a group's offsets (ConsumerGroup.validateOffsetFetch): nobody, or a member in its epoch.
func refuseMember(g *state.Group, member *string, epoch int32) int16 {
	if !g.Consumer || member == nil && epoch < 0 {
		return 0
	}
	id := ""
	if member != nil {
		id = *member
	}
	switch m := g.Member(id); {
	case m == nil || m.Consumer == nil:
		return kerr.UnknownMemberID.Code
	case m.Consumer.Epoch == epoch:
		return 0
	case m.Classic():
		return kerr.IllegalGeneration.Code
	}
	return kerr.StaleMemberEpoch.Code
}

func allOffsets(v *state.View, group string) []kmsg.OffsetFetchResponseGroupTopic {
	out := []kmsg.OffsetFetchResponseGroupTopic{}
	v.Offsets(group, func(topic string, o *state.Offset) bool {
		if len(out) == 0 || out[len(out)-1].Topic != topic {
			t := kmsg.NewOffsetFetchResponseGroupTopic()
			t.Topic = topic
			out = append(out, t)
		}
		last := &out[len(out)-1]
		last.Partitions = append(last.Partitions, offsetOf(o))
		return true
	})
	return out
}

func noOffset(n int32) kmsg.OffsetFetchResponseGroupTopicPartition {
	p := kmsg.NewOffsetFetchResponseGroupTopicPartition()
	none := ""
	p.Partition, p.Offset, p.LeaderEpoch, p.Metadata = n, -1, -1, &none
	return p
}

func offsetOf(o *state.Offset) kmsg.OffsetFetchResponseGroupTopicPartition {
	p := noOffset(o.Partition)
	p.Offset, p.LeaderEpoch, p.Metadata = int64(o.Offset), int32(o.LeaderEpoch), &o.Metadata
	return p
}
