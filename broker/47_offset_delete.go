package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

var offsetDeleteAPI = register(47, 0, (*Server).offsetDelete)

// deleteTries bounds how often a deletion is decided again because the group's members change meanwhile.
const deleteTries = 5

// offsetDelete removes committed offsets (KIP-496): not of topics that a member of the group reads. It is decided here and carried out only
// if the group's members are still the same.
func (s *Server) offsetDelete(ctx context.Context, _ *call, req *kmsg.OffsetDeleteRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.OffsetDeleteResponse)
	for try := 1; ; try++ {
		v := s.deps.Views.View()
		if resp.ErrorCode = s.refuseGroup(v, req.Group, 1); resp.ErrorCode != 0 {
			return resp
		}
		cmd, topics, code := decideOffsetDelete(v, req)
		if resp.ErrorCode = code; code != 0 {
			return resp
		}
		if len(cmd.Items) > 0 { // without items the command means the whole group
			var r *statepb.Result
			r, resp.ErrorCode = s.doGroup(ctx, &statepb.Command{Body: &statepb.Command_DeleteOffsets{DeleteOffsets: cmd}})
			if r.GetCode() == statepb.Code_STALE {
				if resp.ErrorCode = kerr.CoordinatorNotAvailable.Code; try < deleteTries {
					continue // the view shows why by now
				}
			}
		}
		if resp.ErrorCode == 0 {
			resp.Topics = topics
		}
		return resp
	}
}

// decideOffsetDelete tells what of a request can be done, and what its partitions are answered with when it is.
func decideOffsetDelete(v *state.View, req *kmsg.OffsetDeleteRequest) (*statepb.DeleteOffsets, []kmsg.OffsetDeleteResponseTopic, int16) {
	g, ok := v.Group(req.Group)
	switch {
	case !ok:
		return nil, nil, kerr.GroupIDNotFound.Code
	case len(g.Members) > 0 && g.ProtocolType != "consumer":
		return nil, nil, kerr.NonEmptyGroup.Code
	}
	topics, all := subscribed(v, g)
	readByZnodes(v, g.Name, topics)
	cmd := &statepb.DeleteOffsets{Group: req.Group, GroupVersion: g.Version}
	var outs []kmsg.OffsetDeleteResponseTopic
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
		outs = append(outs, out)
	}
	return cmd, outs, 0
}

// readByZnodes adds the topics that live znode consumers read: those that they name, that their generation shows them, and that they own
// partitions of.
func readByZnodes(v *state.View, group string, topics map[string]bool) {
	live := false
	v.Members(group, func(_ string, z *state.Znode) bool {
		live = true
		if reg, ok := state.ParseRegistration(z.Data); ok && topics != nil {
			for _, t := range reg.Topics {
				topics[t.Topic] = true // of a pattern: no topic's name, or one that it means
			}
		}
		return true
	})
	if !live || topics == nil {
		return
	}
	if row, ok := v.Legacy(group); ok {
		for _, t := range row.Topics {
			topics[t.Name] = true
		}
	}
	v.GroupOwners(group, func(topic, _ string, _ *state.Znode) { topics[state.OwnersTopic(topic)] = true })
}

func hasOffset(v *state.View, group, topic string, p int32) bool {
	_, ok := v.Offset(group, topic, p)
	return ok
}
