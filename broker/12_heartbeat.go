package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var heartbeatAPI = register(12, 4, (*Server).heartbeat)

// heartbeat renews a member's session and tells it of a rebalance (27). v3 has static members.
func (s *Server) heartbeat(ctx context.Context, c *call, req *kmsg.HeartbeatRequest) kmsg.Response {
	if resp, ok := s.ask(ctx, c, req, groupWait); ok {
		return resp
	}
	resp := req.ResponseKind().(*kmsg.HeartbeatResponse)
	resp.ErrorCode = kerr.NotCoordinator.Code
	return resp
}
