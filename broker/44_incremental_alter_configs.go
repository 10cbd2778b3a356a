package broker

import (
	"context"
	"fmt"
	"maps"
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
		f := s.alterResource(ctx, r.ResourceType, r.ResourceName, req.ValidateOnly, func(row *state.Config, k *configKind) (*statepb.SetConfig, *fault) {
			return increments(row, k, r.Configs)
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

// alterResource changes a topic's or a group's configuration by what decide makes of the row as it is.
func (s *Server) alterResource(ctx context.Context, typ kmsg.ConfigResourceType, name string, validateOnly bool,
	decide func(*state.Config, *configKind) (*statepb.SetConfig, *fault)) *fault {
	k, ok := configKinds[typ]
	if !ok {
		return faultOf(kerr.InvalidRequest, "only topics' and groups' settings can be changed while a broker runs; a broker's are in its configuration file")
	}
	for range alterTries {
		v := s.deps.Views.View()
		if f := k.exists(v, name); f != nil {
			return f
		}
		row, ok := v.Config(k.entity, name)
		if !ok {
			row = &state.Config{}
		}
		cmd, f := decide(row, k)
		if f != nil || validateOnly {
			return f
		}
		cmd.Type, cmd.Name, cmd.ZnodeVersion = k.entity, name, -1
		if ok {
			cmd.ExistsOnly, cmd.ZnodeVersion = true, row.Stat.Version
		}
		r, err := s.propose(ctx, 0, &statepb.Command{Body: &statepb.Command_SetConfig{SetConfig: cmd}})
		if err != nil || r.Code != statepb.Code_BAD_VERSION && r.Code != statepb.Code_NO_NODE {
			return settled(r, err)
		}
	}
	return faultOf(kerr.InvalidRequest, "others keep changing these settings; try again")
}

// increments turns the operations into what the row becomes.
func increments(row *state.Config, k *configKind, ops []kmsg.IncrementalAlterConfigsRequestResourceConfig) (*statepb.SetConfig, *fault) {
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
		value, f := increment(row, k, &ops[i])
		if f != nil {
			return nil, f
		}
		set[name] = value
	}
	all := map[string]string{}
	for _, kv := range row.Entries {
		all[kv.Name] = kv.Value
	}
	for _, e := range cmd.Entries {
		delete(all, e.Name)
	}
	maps.Copy(all, set)
	if f := k.allowed(set, all); f != nil {
		return nil, f
	}
	cmd.Entries = append(cmd.Entries, protoEntries(set)...)
	return cmd, nil
}

func increment(row *state.Config, k *configKind, op *kmsg.IncrementalAlterConfigsRequestResourceConfig) (string, *fault) {
	if op.Value == nil {
		return "", faultOf(kerr.InvalidConfig, fmt.Sprintf("configuration %s has no value", clip(op.Name)))
	}
	if op.Op == kmsg.IncrementalAlterConfigOpSet {
		return *op.Value, nil
	}
	def, ok := k.setting(op.Name)
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
