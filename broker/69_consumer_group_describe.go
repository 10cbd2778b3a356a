package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var consumerGroupDescribeAPI = register(69, 1, (*Server).consumerGroupDescribe)

// consumerGroupDescribe shows groups that the coordinator assigns; tools ask DescribeGroups about the others (error 69). v1 tells which
// members are classic ones.
func (s *Server) consumerGroupDescribe(ctx context.Context, c *call, req *kmsg.ConsumerGroupDescribeRequest) kmsg.Response {
	if resp, ok := s.ask(ctx, c, req, groupWait); ok {
		return resp
	}
	resp := req.ResponseKind().(*kmsg.ConsumerGroupDescribeResponse)
	for _, name := range req.Groups {
		g := kmsg.NewConsumerGroupDescribeResponseGroup()
		g.Group, g.ErrorCode, g.AuthorizedOperations = name, kerr.NotCoordinator.Code, notAsked
		resp.Groups = append(resp.Groups, g)
	}
	return resp
}
