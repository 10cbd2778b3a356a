package broker

import (
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// configKind is a kind of resource whose settings can be changed while brokers run.
type configKind struct {
	entity  string // type of the state's rows
	exists  func(v *state.View, name string) *fault
	setting func(name string) (*setting, bool)
	check   func(map[string]string) *fault
}

var configKinds = map[kmsg.ConfigResourceType]*configKind{
	kmsg.ConfigResourceTypeTopic: {"topics", func(v *state.View, name string) *fault {
		if why := state.ValidTopicName(name); why != "" {
			return faultOf(kerr.InvalidTopicException, why)
		}
		if _, ok := v.Topic(name); !ok {
			return faultOf(kerr.UnknownTopicOrPartition, "")
		}
		return nil
	}, topicSetting, checkTopicConfigs},
	// A group may be configured before it has members (KIP-848).
	kmsg.ConfigResourceTypeGroupConfig: {state.GroupConfigs, func(_ *state.View, name string) *fault {
		if why := state.ValidGroupID(name); why != "" {
			return faultOf(kerr.InvalidGroupID, why)
		}
		return nil
	}, groupSetting, func(set map[string]string) *fault { return checkConfigs(set, groupSetting, "group") }},
}

// groupSettings is every configuration of a group that is accepted, in order of name.
var groupSettings = []setting{
	{state.GatesOff, kmsg.ConfigTypeList, "", "", gates, "gates that are off for the group's ZooKeeper consumers, or all: plain ZooKeeper behaviour"},
}

func groupSetting(name string) (*setting, bool) { return findSetting(groupSettings, name) }

// gates is a list of gates, or all, or nothing.
func gates(v string) error {
	if v == "" {
		return nil
	}
	words := []string{"all"}
	for _, g := range state.Gates {
		words = append(words, string(g))
	}
	return listOf(words...)(v)
}

func describeGroup(v *state.View, req *kmsg.DescribeConfigsRequest, r *kmsg.DescribeConfigsRequestResource) ([]kmsg.DescribeConfigsResponseResourceConfig, *fault) {
	if f := configKinds[kmsg.ConfigResourceTypeGroupConfig].exists(v, r.ResourceName); f != nil {
		return nil, f
	}
	row, _ := v.Config(state.GroupConfigs, r.ResourceName)
	var out []kmsg.DescribeConfigsResponseResourceConfig
	for i := range groupSettings {
		def := &groupSettings[i]
		if !wants(r, def.name) {
			continue
		}
		var in []synonym
		if row != nil {
			if value, ok := row.Get(def.name); ok {
				in = append(in, synonym{def.name, value, kmsg.ConfigSourceGroupConfig})
			}
		}
		in = append(in, synonym{def.name, def.def, kmsg.ConfigSourceDefaultConfig})
		out = append(out, described(req, def.name, def.typ, def.help, false, in))
	}
	return out, nil
}
