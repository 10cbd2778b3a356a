package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

var offsetDeleteAPI = register(47, 0, (*Server).offsetDelete)

// offsetDelete removes committed offsets (KIP-496): not of topics that a member of the group reads.
func (s *Server) offsetDelete(ctx context.Context, _ *call, req *kmsg.OffsetDeleteRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.OffsetDeleteResponse)
	v := s.deps.Views.View()
	if resp.ErrorCode = s.refuseGroup(v, req.Group, 1); resp.ErrorCode != 0 {
		return resp
	}
	g, ok := v.Group(req.Group)
	switch {
	case !ok:
		resp.ErrorCode = kerr.GroupIDNotFound.Code
		return resp
	case len(g.Members) > 0 && g.ProtocolType != "consumer":
		resp.ErrorCode = kerr.NonEmptyGroup.Code
		return resp
	}
	topics, all := subscribed(v, g)
	ownedByZnodes(v, g.Name, topics)
	cmd := &statepb.DeleteOffsets{Group: req.Group}
	for _, t := range req.Topics {
		out := kmsg.NewOffsetDeleteResponseTopic()
		out.Topic = t.Topic
		for _, p := range t.Partitions {
			o := kmsg.NewOffsetDeleteResponseTopicPartition()
			o.Partition = p.Partition
			switch {
			case all || topics[t.Topic]:
				o.ErrorCode = kerr.GroupSubscribedToTopic.Code
			case hasOffset(v, req.Group, t.Topic, p.Partition):
				cmd.Items = append(cmd.Items, &statepb.OffsetItem{Topic: t.Topic, Partition: p.Partition})
			}
			out.Partitions = append(out.Partitions, o)
		}
		resp.Topics = append(resp.Topics, out)
	}
	if len(cmd.Items) > 0 { // without items the command means the whole group
		_, resp.ErrorCode = s.doGroup(ctx, &statepb.Command{Body: &statepb.Command_DeleteOffsets{DeleteOffsets: cmd}})
	}
	if resp.ErrorCode != 0 {
		resp.Topics = nil
	}
	return resp
}

// ownedByZnodes adds the topics that live znode consumers read.
func ownedByZnodes(v *state.View, group string, topics map[string]bool) {
	live := false
	v.Members(group, func(string, *state.Znode) bool { live = true; return false })
	if !live || topics == nil {
		return
	}
	v.ZnodeChildren("/consumers/"+group+"/owners", func(topic string, _ *state.Znode) bool {
		v.Owners(group, topic, func(string, *state.Znode) bool { topics[topic] = true; return false })
		return true
	})
}

func hasOffset(v *state.View, group, topic string, p int32) bool {
	_, ok := v.Offset(group, topic, p)
	return ok
}
