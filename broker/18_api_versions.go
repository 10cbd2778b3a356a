package broker

import (
	"context"
	"regexp"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const apiVersionsKey = 18

var apiVersionsAPI = register(apiVersionsKey, 4, (*Server).apiVersions)

// softwareName is what a client may call itself (KIP-511).
var softwareName = regexp.MustCompile(`^[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?$`)

func (s *Server) apiVersions(_ context.Context, _ *call, req *kmsg.ApiVersionsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ApiVersionsResponse)
	if req.Version >= 3 && !(softwareName.MatchString(req.ClientSoftwareName) && softwareName.MatchString(req.ClientSoftwareVersion)) {
		resp.ErrorCode = kerr.InvalidRequest.Code
		return resp
	}
	for i := range s.sorted {
		resp.ApiKeys = append(resp.ApiKeys, s.sorted[i].versions())
	}
	addFeatures(resp)
	return resp
}

// addFeatures tells clients that consumer groups (KIP-848) are there, as Kafka's feature group.version does from level 1 on. It never
// changes, so its epoch does not. A minimum of 0 is told from v4 on: older clients cannot read it.
func addFeatures(resp *kmsg.ApiVersionsResponse) {
	if resp.Version < 3 {
		return
	}
	const name = "group.version"
	if resp.Version >= 4 {
		f := kmsg.NewApiVersionsResponseSupportedFeature()
		f.Name, f.MinVersion, f.MaxVersion = name, 0, 1
		resp.SupportedFeatures = append(resp.SupportedFeatures, f)
	}
	f := kmsg.NewApiVersionsResponseFinalizedFeature()
	f.Name, f.MinVersionLevel, f.MaxVersionLevel = name, 1, 1
	resp.FinalizedFeatures, resp.FinalizedFeaturesEpoch = append(resp.FinalizedFeatures, f), 1
}

func (a *api) versions() kmsg.ApiVersionsResponseApiKey {
	k := kmsg.NewApiVersionsResponseApiKey()
	k.ApiKey, k.MaxVersion = a.key, a.max
	return k
}

// apiVersionsUnsupported answers a version that is not served: error 35 in a version 0 body that holds the range of ApiVersions
// itself, and the connection stays open (KIP-511).
func (s *Server) apiVersionsUnsupported(c *call) turn {
	return turn{run: func(context.Context) kmsg.Response {
		resp := kmsg.NewPtrApiVersionsResponse()
		resp.ErrorCode = kerr.UnsupportedVersion.Code
		resp.ApiKeys = []kmsg.ApiVersionsResponseApiKey{c.api.versions()}
		return resp
	}}
}
