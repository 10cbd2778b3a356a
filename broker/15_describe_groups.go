package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var describeGroupsAPI = register(15, 6, (*Server).describeGroups)

// describeGroups shows groups of all kinds as the coordinator sees them. v3 has permitted operations, v4 static members, v6 an
// error for a group that does not exist ("Dead" before).
func (s *Server) describeGroups(ctx context.Context, c *call, req *kmsg.DescribeGroupsRequest) kmsg.Response {
	if resp, ok := s.ask(ctx, c, req, groupWait); ok {
		return resp
	}
	resp := req.ResponseKind().(*kmsg.DescribeGroupsResponse)
	for _, name := range req.Groups {
		g := kmsg.NewDescribeGroupsResponseGroup()
		g.Group, g.ErrorCode, g.AuthorizedOperations = name, kerr.NotCoordinator.Code, notAsked
		resp.Groups = append(resp.Groups, g)
	}
	return resp
}
