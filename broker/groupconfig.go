package broker

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// configKind is a kind of resource whose settings can be changed while brokers run.
type configKind struct {
	entity  string // type of the state's rows
	exists  func(v *state.View, name string) *fault
	setting func(name string) (*setting, bool)
	check   func(map[string]string) *fault // of what is set
	fits    func(map[string]string) *fault // of all that the resource then has; nil: each may have any valid value
}

// allowed checks what is set, and then with it all that the resource has.
func (k *configKind) allowed(set, all map[string]string) *fault {
	if f := k.check(set); f != nil || k.fits == nil {
		return f
	}
	return k.fits(all)
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
	}, topicSetting, checkTopicConfigs, nil},
	// A group may be configured before it has members (KIP-848).
	kmsg.ConfigResourceTypeGroupConfig: {state.GroupConfigs, func(_ *state.View, name string) *fault {
		if why := state.ValidGroupID(name); why != "" {
			return faultOf(kerr.InvalidGroupID, why)
		}
		return nil
	}, groupSetting, func(set map[string]string) *fault { return checkConfigs(set, groupSetting, "group") }, groupConfigsFit},
}

// groupSettings is every configuration of a group that is accepted, in order of name.
var groupSettings = []setting{
	{state.GroupHeartbeat, kmsg.ConfigTypeInt, "group.consumer.heartbeat.interval.ms", "1000", within(1, maxInt32), "how often members of the consumer group (KIP-848) ask"},
	{state.GroupSession, kmsg.ConfigTypeInt, "group.consumer.session.timeout.ms", "45000", within(1, maxInt32), "how long a member of the consumer group may be silent"},
	{state.GatesOff, kmsg.ConfigTypeList, "", "", gates, "gates that are off for the group's ZooKeeper consumers, or all: plain ZooKeeper behaviour"},
}

func groupSetting(name string) (*setting, bool) { return findSetting(groupSettings, name) }

// groupConfigsFit checks a group's settings against each other, or against the defaults.
func groupConfigsFit(all map[string]string) *fault {
	ms := func(name string) int64 {
		v, ok := all[name]
		if !ok {
			def, _ := groupSetting(name)
			v = def.def
		}
		n, _ := strconv.ParseInt(v, 10, 64) // checked
		return n
	}
	if ms(state.GroupHeartbeat) >= ms(state.GroupSession) {
		return faultOf(kerr.InvalidConfig, fmt.Sprintf("%s is not below %s", state.GroupHeartbeat, state.GroupSession))
	}
	return nil
}

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

func (s *Server) describeGroup(v *state.View, req *kmsg.DescribeConfigsRequest, r *kmsg.DescribeConfigsRequestResource) ([]kmsg.DescribeConfigsResponseResourceConfig, *fault) {
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
		if value, ok := s.cfg.Static[def.broker]; ok && value != def.def {
			in = append(in, synonym{def.broker, value, kmsg.ConfigSourceStaticBrokerConfig})
		}
		in = append(in, synonym{cmp.Or(def.broker, def.name), def.def, kmsg.ConfigSourceDefaultConfig})
		out = append(out, described(req, def.name, def.typ, def.help, false, in))
	}
	return out, nil
}
