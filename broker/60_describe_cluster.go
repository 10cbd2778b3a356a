package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var describeClusterAPI = register(60, 1, (*Server).describeCluster)

func (s *Server) describeCluster(_ context.Context, c *call, req *kmsg.DescribeClusterRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DescribeClusterResponse)
	resp.EndpointType = req.EndpointType
	if req.Version >= 1 && req.EndpointType != 1 { // 2 asks for KRaft controllers (KIP-919), which have no Kafka port here
		f := faultOf(kerr.MismatchedEndpointType, "this is a broker's endpoint; there are no controller endpoints")
		resp.ErrorCode, resp.ErrorMessage = f.code, f.message()
		return resp
	}
	v := s.deps.Views.View()
	resp.ClusterID = v.ClusterID()
	ctl, _ := controller(v, c.listener)
	resp.ControllerID = int32(ctl.id)
	resp.ClusterAuthorizedOperations = operations(req.IncludeClusterAuthorizedOperations, brokerOperations)
	for _, n := range nodes(v, c.listener) {
		b := kmsg.NewDescribeClusterResponseBroker()
		b.NodeID, b.Host, b.Port, b.Rack = int32(n.id), n.host, n.port, n.rack
		resp.Brokers = append(resp.Brokers, b)
	}
	return resp
}
