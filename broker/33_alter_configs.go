package broker

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

var alterConfigsAPI = register(33, 2, (*Server).alterConfigs)

// alterConfigs replaces the whole configuration of topics and groups; what is not given goes back to its default.
func (s *Server) alterConfigs(ctx context.Context, _ *call, req *kmsg.AlterConfigsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.AlterConfigsResponse)
	for i := range req.Resources {
		r := &req.Resources[i]
		out := kmsg.NewAlterConfigsResponseResource()
		out.ResourceType, out.ResourceName = r.ResourceType, r.ResourceName
		f := s.alterResource(ctx, r.ResourceType, r.ResourceName, req.ValidateOnly, func(_ *state.Config, k *configKind) (*statepb.SetConfig, *fault) {
			set := map[string]string{}
			for _, c := range r.Configs {
				if c.Value == nil {
					return nil, faultOf(kerr.InvalidConfig, fmt.Sprintf("configuration %s has no value", clip(c.Name)))
				}
				set[c.Name] = *c.Value
			}
			return &statepb.SetConfig{Entries: protoEntries(set), Replace: true}, k.allowed(set, set)
		})
		if f != nil {
			out.ErrorCode, out.ErrorMessage = f.code, f.message()
		}
		resp.Resources = append(resp.Resources, out)
	}
	return resp
}
