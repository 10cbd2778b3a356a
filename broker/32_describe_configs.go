package broker

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

var describeConfigsAPI = register(32, 4, (*Server).describeConfigs)

func (s *Server) describeConfigs(_ context.Context, _ *call, req *kmsg.DescribeConfigsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
	v := s.deps.Views.View()
	resp.Resources = []kmsg.DescribeConfigsResponseResource{}
	for i := range req.Resources {
		r := &req.Resources[i]
		out := kmsg.NewDescribeConfigsResponseResource()
		out.ResourceType, out.ResourceName = r.ResourceType, r.ResourceName
		var f *fault
		switch r.ResourceType {
		case kmsg.ConfigResourceTypeTopic:
			out.Configs, f = s.describeTopic(v, req, r)
		case kmsg.ConfigResourceTypeGroupConfig:
			out.Configs, f = s.describeGroup(v, req, r)
		case kmsg.ConfigResourceTypeBroker:
			out.Configs, f = s.describeBroker(v, req, r)
		default:
			f = faultOf(kerr.InvalidRequest, fmt.Sprintf("configurations of resource type %d are not kept", r.ResourceType))
		}
		if f != nil {
			out.ErrorCode, out.ErrorMessage = f.code, f.message()
		}
		if out.Configs == nil {
			out.Configs = []kmsg.DescribeConfigsResponseResourceConfig{}
		}
		resp.Resources = append(resp.Resources, out)
	}
	return resp
}

// wants says whether a resource's request includes a name; null names mean all, unknown ones nothing.
func wants(r *kmsg.DescribeConfigsRequestResource, name string) bool {
	return r.ConfigNames == nil || slices.Contains(r.ConfigNames, name)
}

func (s *Server) describeTopic(v *state.View, req *kmsg.DescribeConfigsRequest, r *kmsg.DescribeConfigsRequestResource) ([]kmsg.DescribeConfigsResponseResourceConfig, *fault) {
	if why := state.ValidTopicName(r.ResourceName); why != "" {
		return nil, faultOf(kerr.InvalidTopicException, why)
	}
	t, ok := v.Topic(r.ResourceName)
	if !ok {
		return nil, faultOf(kerr.UnknownTopicOrPartition, "")
	}
	first, _ := v.Partition(t.Name, 0)
	entries, _ := v.Config("topics", t.Name)
	var out []kmsg.DescribeConfigsResponseResourceConfig
	for i := range topicSettings {
		def := &topicSettings[i]
		if wants(r, def.name) {
			out = append(out, described(req, def.name, def.typ, def.help, false, s.topicSynonyms(def, entries, len(first.Replicas))))
		}
	}
	if entries != nil {
		// Old tools write what they like; show it rather than hide it.
		for _, kv := range entries.Entries {
			if _, known := topicSetting(kv.Name); !known && wants(r, kv.Name) {
				in := []synonym{{kv.Name, kv.Value, kmsg.ConfigSourceDynamicTopicConfig}}
				out = append(out, described(req, kv.Name, kmsg.ConfigTypeString, "not known to this version of barnabas", false, in))
			}
		}
	}
	return out, nil
}

func (s *Server) describeBroker(v *state.View, req *kmsg.DescribeConfigsRequest, r *kmsg.DescribeConfigsRequestResource) ([]kmsg.DescribeConfigsResponseResourceConfig, *fault) {
	if r.ResourceName != "" {
		n, err := strconv.ParseInt(r.ResourceName, 10, 32)
		if err != nil || id.BrokerID(n) != s.cfg.ID {
			return nil, faultOf(kerr.InvalidRequest, fmt.Sprintf("ask broker %s itself; this is broker %d", clip(r.ResourceName), s.cfg.ID))
		}
	}
	dynamic := map[string]synonym{}
	add := func(name string, source kmsg.ConfigSource) {
		if row, ok := v.Config("brokers", name); ok {
			for _, kv := range row.Entries {
				dynamic[kv.Name] = synonym{kv.Name, kv.Value, source}
			}
		}
	}
	add("<default>", kmsg.ConfigSourceDynamicDefaultBrokerConfig)
	static := s.cfg.Static
	if r.ResourceName == "" { // the cluster-wide defaults alone
		static = nil
	} else {
		add(r.ResourceName, kmsg.ConfigSourceDynamicBrokerConfig)
	}
	names := sortedKeys(static)
	for name := range dynamic {
		if _, ok := static[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var out []kmsg.DescribeConfigsResponseResourceConfig
	for _, name := range names {
		if !wants(r, name) {
			continue
		}
		var in []synonym
		d, isDynamic := dynamic[name]
		if isDynamic {
			in = append(in, d)
		}
		if value, ok := static[name]; ok {
			in = append(in, synonym{name, value, kmsg.ConfigSourceStaticBrokerConfig})
		}
		out = append(out, described(req, name, kmsg.ConfigTypeString, "", !isDynamic, in))
	}
	return out, nil
}

func described(req *kmsg.DescribeConfigsRequest, name string, typ kmsg.ConfigType, help string, readOnly bool, in []synonym) kmsg.DescribeConfigsResponseResourceConfig {
	out := kmsg.NewDescribeConfigsResponseResourceConfig()
	out.Name, out.Value, out.Source, out.ReadOnly, out.ConfigType = name, &in[0].value, in[0].source, readOnly, typ
	out.IsDefault = in[0].source == kmsg.ConfigSourceDefaultConfig
	out.ConfigSynonyms = []kmsg.DescribeConfigsResponseResourceConfigConfigSynonym{}
	if req.IncludeSynonyms {
		for i := range in {
			syn := kmsg.NewDescribeConfigsResponseResourceConfigConfigSynonym()
			syn.Name, syn.Value, syn.Source = in[i].name, &in[i].value, in[i].source
			out.ConfigSynonyms = append(out.ConfigSynonyms, syn)
		}
	}
	if req.IncludeDocumentation && help != "" {
		out.Documentation = &help
	}
	return out
}
