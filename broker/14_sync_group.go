package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var syncGroupAPI = register(14, 5, (*Server).syncGroup).frames(listFrames)

// syncGroup gives members their assignment: the leader brings it, the others wait at the coordinator until it stands. v3 has
// static members, v5 checks the protocol.
func (s *Server) syncGroup(ctx context.Context, c *call, req *kmsg.SyncGroupRequest) kmsg.Response {
	if resp, ok := s.ask(ctx, c, req, 0); ok {
		return resp
	}
	resp := req.ResponseKind().(*kmsg.SyncGroupResponse)
	resp.ErrorCode, resp.MemberAssignment = kerr.NotCoordinator.Code, []byte{}
	return resp
}
