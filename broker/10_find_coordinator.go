package broker

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/internal/id"
)

var findCoordinatorAPI = register(10, 4, (*Server).findCoordinator)

// findCoordinator names the broker on the Raft leader for every group and every transaction. (v0 is ConsumerMetadata of 0.8.2.)
func (s *Server) findCoordinator(_ context.Context, c *call, req *kmsg.FindCoordinatorRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.FindCoordinatorResponse)
	at, ok := controller(s.deps.Views.View(), c.listener)
	var f *fault
	switch {
	case req.CoordinatorType != 0 && req.CoordinatorType != 1:
		f = faultOf(kerr.InvalidRequest, fmt.Sprintf("there are coordinators of type 0 (group) and 1 (transaction), not %d", req.CoordinatorType))
	case !ok:
		f = faultOf(kerr.CoordinatorNotAvailable, "no coordinator is known at this moment; ask again")
	}
	code := int16(0)
	if f != nil {
		code, at = f.code, node{id: id.NoBroker, port: -1}
	}
	if req.Version < 4 {
		resp.ErrorCode, resp.ErrorMessage = code, f.message()
		resp.NodeID, resp.Host, resp.Port = int32(at.id), at.host, at.port
		return resp
	}
	for _, key := range req.CoordinatorKeys {
		out := kmsg.NewFindCoordinatorResponseCoordinator()
		out.Key, out.ErrorCode, out.ErrorMessage = key, code, f.message()
		out.NodeID, out.Host, out.Port = int32(at.id), at.host, at.port
		resp.Coordinators = append(resp.Coordinators, out)
	}
	return resp
}
