package broker

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

var incrementalAlterConfigsAPI = register(44, 1, (*Server).incrementalAlterConfigs)

// incrementalAlterConfigs changes single settings of topics (KIP-339): all of one topic's or none.
func (s *Server) incrementalAlterConfigs(ctx context.Context, _ *call, req *kmsg.IncrementalAlterConfigsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.IncrementalAlterConfigsResponse)
	for i := range req.Resources {
		r := &req.Resources[i]
		out := kmsg.NewIncrementalAlterConfigsResponseResource()
		out.ResourceType, out.ResourceName = r.ResourceType, r.ResourceName
		f := s.alterTopic(ctx, r.ResourceType, r.ResourceName, req.ValidateOnly, func(row *state.Config) (*statepb.SetConfig, *fault) {
			return increments(row, r.Configs)
		})
		if f != nil {
			out.ErrorCode, out.ErrorMessage = f.code, f.message()
		}
		resp.Resources = append(resp.Resources, out)
	}
	return resp
}

// alterTries is how often a change is decided again because the row changed meanwhile.
const alterTries = 5

// alterTopic changes a topic's configuration by what decide makes of the row as it is.
func (s *Server) alterTopic(ctx context.Context, typ kmsg.ConfigResourceType, name string, validateOnly bool, decide func(*state.Config) (*statepb.SetConfig, *fault)) *fault {
	if typ != kmsg.ConfigResourceTypeTopic {
		return faultOf(kerr.InvalidRequest, "only topics' settings can be changed while a broker runs; a broker's are in its configuration file")
	}
	if why := state.ValidTopicName(name); why != "" {
		return faultOf(kerr.InvalidTopicException, why)
	}
	for range alterTries {
		v := s.deps.Views.View()
		if _, ok := v.Topic(name); !ok {
			return faultOf(kerr.UnknownTopicOrPartition, "")
		}
		row, ok := v.Config("topics", name)
		if !ok {
			row = &state.Config{}
		}
		cmd, f := decide(row)
		if f != nil || validateOnly {
			return f
		}
		cmd.Type, cmd.Name, cmd.ZnodeVersion = "topics", name, -1
		if ok {
			cmd.ExistsOnly, cmd.ZnodeVersion = true, row.Stat.Version
		}
		r, err := s.propose(ctx, 0, &statepb.Command{Body: &statepb.Command_SetConfig{SetConfig: cmd}})
		if err != nil || r.Code != statepb.Code_BAD_VERSION && r.Code != statepb.Code_NO_NODE {
			return settled(r, err)
		}
	}
	return faultOf(kerr.InvalidRequest, "others keep changing this topic's settings; try again")
}

// increments turns the operations into what the row becomes.
func increments(row *state.Config, ops []kmsg.IncrementalAlterConfigsRequestResourceConfig) (*statepb.SetConfig, *fault) {
	cmd := &statepb.SetConfig{}
	set := map[string]string{}
	for i := range ops {
		name := ops[i].Name
		if slices.ContainsFunc(ops[:i], func(o kmsg.IncrementalAlterConfigsRequestResourceConfig) bool { return o.Name == name }) {
			return nil, faultOf(kerr.InvalidRequest, fmt.Sprintf("configuration %s is given twice", clip(name)))
		}
		if ops[i].Op == kmsg.IncrementalAlterConfigOpDelete {
			cmd.Entries = append(cmd.Entries, &statepb.ConfigEntry{Name: name, Remove: true})
			continue
		}
		value, f := increment(row, &ops[i])
		if f != nil {
			return nil, f
		}
		set[name] = value
	}
	if f := checkTopicConfigs(set); f != nil {
		return nil, f
	}
	cmd.Entries = append(cmd.Entries, protoEntries(set)...)
	return cmd, nil
}

func increment(row *state.Config, op *kmsg.IncrementalAlterConfigsRequestResourceConfig) (string, *fault) {
	if op.Value == nil {
		return "", faultOf(kerr.InvalidConfig, fmt.Sprintf("configuration %s has no value", clip(op.Name)))
	}
	if op.Op == kmsg.IncrementalAlterConfigOpSet {
		return *op.Value, nil
	}
	def, ok := topicSetting(op.Name)
	if !ok || def.typ != kmsg.ConfigTypeList || op.Op != kmsg.IncrementalAlterConfigOpAppend && op.Op != kmsg.IncrementalAlterConfigOpSubtract {
		return "", faultOf(kerr.InvalidConfig, fmt.Sprintf("operation %d cannot be done on configuration %s", op.Op, clip(op.Name)))
	}
	now, ok := row.Get(op.Name)
	if !ok {
		now = def.def
	}
	items := strings.FieldsFunc(now, func(r rune) bool { return r == ',' })
	for item := range strings.SplitSeq(*op.Value, ",") {
		at := slices.Index(items, item)
		switch {
		case op.Op == kmsg.IncrementalAlterConfigOpAppend && at < 0:
			items = append(items, item)
		case op.Op == kmsg.IncrementalAlterConfigOpSubtract && at >= 0:
			items = slices.Delete(items, at, at+1)
		}
	}
	return strings.Join(items, ","), nil
}
