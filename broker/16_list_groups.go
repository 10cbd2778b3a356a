package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var listGroupsAPI = register(16, 5, (*Server).listGroups)

// listGroups lists the groups that this broker coordinates: all of them, or none, so that tools which ask every broker see each
// group once. v4 filters by state, v5 by type; groups of ZooKeeper consumers are "classic" too.
func (s *Server) listGroups(ctx context.Context, c *call, req *kmsg.ListGroupsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ListGroupsResponse)
	resp.Groups = []kmsg.ListGroupsResponseGroup{}
	if ctl, _ := s.deps.Views.View().Controller(); ctl != s.cfg.ID {
		return resp
	}
	if resp, ok := s.ask(ctx, c, req, groupWait); ok {
		return resp
	}
	resp.ErrorCode = kerr.CoordinatorNotAvailable.Code
	return resp
}
