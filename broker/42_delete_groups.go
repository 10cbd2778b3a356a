package broker

import (
	"context"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

var deleteGroupsAPI = register(42, 2, (*Server).deleteGroups)

// deleteGroups removes groups without live members of any kind, with their offsets on every face.
func (s *Server) deleteGroups(ctx context.Context, _ *call, req *kmsg.DeleteGroupsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DeleteGroupsResponse)
	resp.Groups = make([]kmsg.DeleteGroupsResponseGroup, len(req.Groups))
	v := s.deps.Views.View()
	each(len(req.Groups), func(i int) {
		out := kmsg.NewDeleteGroupsResponseGroup()
		out.Group = req.Groups[i]
		if out.ErrorCode = s.refuseGroup(v, out.Group, 1); out.ErrorCode == 0 {
			out.ErrorCode = s.deleteGroup(ctx, out.Group)
		}
		resp.Groups[i] = out
	})
	return resp
}

func (s *Server) deleteGroup(ctx context.Context, group string) int16 {
	r, f := s.doGroup(ctx, &statepb.Command{Body: &statepb.Command_DeleteGroup{DeleteGroup: &statepb.DeleteGroup{Group: group}}})
	if r.GetCode() == statepb.Code_NOT_EMPTY {
		return kerr.NonEmptyGroup.Code
	}
	return f
}

// doGroup has a command carried out by the coordinator and returns its outcome and code.
func (s *Server) doGroup(ctx context.Context, cmd *statepb.Command) (*statepb.Result, int16) {
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	r, err := s.deps.Groups.Do(ctx, cmd)
	if f := settled(r, err); f != nil {
		return r, f.code
	}
	return r, 0
}

// subscribed tells which topics the members of a group read; all is true when that cannot be told.
func subscribed(v *state.View, g *state.Group) (topics map[string]bool, all bool) {
	topics = map[string]bool{}
	for _, m := range g.Members {
		if m.Consumer != nil {
			for _, t := range m.Consumer.Topics {
				topics[t] = true
			}
			for _, tp := range slices.Concat(m.Consumer.Target, m.Consumer.Assigned, m.Consumer.Revoking) { // by regex
				if t, ok := v.TopicByID(tp.TopicID); ok {
					topics[t.Name] = true
				}
			}
			continue
		}
		for _, p := range m.Protocols {
			if p.Name != g.Protocol {
				continue
			}
			var meta kmsg.ConsumerMemberMetadata
			if meta.ReadFrom(p.Metadata) != nil {
				return nil, true
			}
			for _, t := range meta.Topics {
				topics[t] = true
			}
		}
	}
	return topics, false
}
