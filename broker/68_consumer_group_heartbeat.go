package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var consumerGroupHeartbeatAPI = register(68, 1, (*Server).consumerGroupHeartbeat)

// consumerGroupHeartbeat is a member's whole life in a group that the coordinator assigns (KIP-848): it joins with epoch 0, tells what it
// owns, hears what it is to own, and leaves with epoch -1, or -2 for a while. v1 has subscriptions by regular expression, and ids that
// the client makes.
func (s *Server) consumerGroupHeartbeat(ctx context.Context, c *call, req *kmsg.ConsumerGroupHeartbeatRequest) kmsg.Response {
	if resp, ok := s.ask(ctx, c, req, groupWait); ok {
		return resp
	}
	resp := req.ResponseKind().(*kmsg.ConsumerGroupHeartbeatResponse)
	resp.ErrorCode = kerr.NotCoordinator.Code
	return resp
}
