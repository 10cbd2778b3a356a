package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var leaveGroupAPI = register(13, 5, (*Server).leaveGroup)

// leaveGroup takes members out of a group: one up to v2, several from v3 (KIP-345), with reasons from v5 (KIP-800).
func (s *Server) leaveGroup(ctx context.Context, c *call, req *kmsg.LeaveGroupRequest) kmsg.Response {
	if resp, ok := s.ask(ctx, c, req, groupWait); ok {
		return resp
	}
	resp := req.ResponseKind().(*kmsg.LeaveGroupResponse)
	resp.ErrorCode = kerr.NotCoordinator.Code
	return resp
}
