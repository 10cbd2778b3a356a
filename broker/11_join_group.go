package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var joinGroupAPI = register(11, 9, (*Server).joinGroup).frames(listFrames)

// joinGroup parks a member at the coordinator until its generation is complete. v1 has a rebalance timeout, v4 makes a new member
// come twice (KIP-394), v5 has static members (KIP-345), v8 a reason, v9 a leader that need not assign (KIP-814).
func (s *Server) joinGroup(ctx context.Context, c *call, req *kmsg.JoinGroupRequest) kmsg.Response {
	if resp, ok := s.ask(ctx, c, req, 0); ok {
		return resp
	}
	resp := req.ResponseKind().(*kmsg.JoinGroupResponse)
	resp.ErrorCode, resp.Generation, resp.MemberID = kerr.NotCoordinator.Code, -1, req.MemberID
	if req.Version < 7 {
		resp.Protocol = new(string)
	}
	return resp
}
