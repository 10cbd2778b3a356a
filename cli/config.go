package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func (a *app) configCommand() *cobra.Command {
	return group("config", "Show and change configurations of topics, groups and brokers", a.configGet(), a.configSet(), a.configUnset())
}

func (a *app) configSet() *cobra.Command {
	var b brokers
	cmd := &cobra.Command{
		Use: "set topic|group NAME KEY=VALUE...", Short: "Change settings of a topic or a group", Args: cobra.MinimumNArgs(3),
		Example: "  barnabas config set topic orders max.message.bytes=4194304 min.insync.replicas=2\n" +
			"  barnabas config set group billing consumer.session.timeout.ms=20000",
		ValidArgs: []string{"topic", "group"},
		RunE: func(cmd *cobra.Command, args []string) error {
			var changes []kmsg.IncrementalAlterConfigsRequestResourceConfig
			for _, kv := range args[2:] {
				k, v, ok := strings.Cut(kv, "=")
				if !ok || k == "" {
					return usagef("%q is not key=value", kv)
				}
				changes = append(changes, kmsg.IncrementalAlterConfigsRequestResourceConfig{Op: kmsg.IncrementalAlterConfigOpSet, Name: k, Value: &v})
			}
			return a.alterConfig(cmd, b, args, changes)
		}}
	b.flag(cmd)
	return cmd
}

func (a *app) configUnset() *cobra.Command {
	var b brokers
	cmd := &cobra.Command{
		Use: "unset topic|group NAME KEY...", Short: "Give settings of a topic or a group their defaults again", Args: cobra.MinimumNArgs(3),
		Example:   "  barnabas config unset topic orders max.message.bytes",
		ValidArgs: []string{"topic", "group"},
		RunE: func(cmd *cobra.Command, args []string) error {
			var changes []kmsg.IncrementalAlterConfigsRequestResourceConfig
			for _, k := range args[2:] {
				changes = append(changes, kmsg.IncrementalAlterConfigsRequestResourceConfig{Op: kmsg.IncrementalAlterConfigOpDelete, Name: k})
			}
			return a.alterConfig(cmd, b, args, changes)
		}}
	b.flag(cmd)
	return cmd
}

// resourceTypes are the kinds of things whose settings can be changed while brokers run.
var resourceTypes = map[string]kmsg.ConfigResourceType{"topic": kmsg.ConfigResourceTypeTopic, "group": kmsg.ConfigResourceTypeGroupConfig}

// alterConfig changes the settings of the topic or group args[1], all of them or none.
func (a *app) alterConfig(cmd *cobra.Command, b brokers, args []string, changes []kmsg.IncrementalAlterConfigsRequestResourceConfig) error {
	r := kmsg.NewIncrementalAlterConfigsRequestResource()
	var ok bool
	if r.ResourceType, ok = resourceTypes[args[0]]; !ok {
		return usagef("%q: only the configuration of a topic or a group can be changed while it runs; a broker's is in its file", args[0])
	}
	r.ResourceName, r.Configs = args[1], changes
	cl, err := b.client()
	if err != nil {
		return err
	}
	defer cl.Close()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	req.Resources = []kmsg.IncrementalAlterConfigsRequestResource{r}
	resp, err := req.RequestWith(cmd.Context(), cl)
	if err != nil {
		return fmt.Errorf("change configuration: %w", err)
	}
	var out []outcome
	for _, r := range resp.Resources {
		o := outcome{Name: r.ResourceName}
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			o.Error = errorText(err, deref(r.ErrorMessage))
		}
		out = append(out, o)
	}
	return a.report("changed", out)
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func (a *app) configGet() *cobra.Command {
	var b brokers
	var all bool
	cmd := &cobra.Command{
		Use: "get topic|group|broker NAME", Short: "Show the configuration of a topic, a group or a broker", Args: cobra.ExactArgs(2),
		Example:   "  barnabas config get topic orders\n  barnabas config get broker 1 --all",
		ValidArgs: []string{"topic", "group", "broker"},
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := b.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			adm := kadm.NewClient(cl)
			var configs kadm.ResourceConfigs
			switch args[0] {
			case "topic":
				configs, err = adm.DescribeTopicConfigs(cmd.Context(), args[1])
			case "broker":
				n, perr := strconv.ParseInt(args[1], 10, 32)
				if perr != nil {
					return usagef("%q is not a broker id", args[1])
				}
				configs, err = adm.DescribeBrokerConfigs(cmd.Context(), int32(n))
			case "group":
				configs, err = describeGroupConfigs(cmd.Context(), cl, args[1])
			default:
				return usagef("%q is no topic, group or broker", args[0])
			}
			if err != nil {
				return fmt.Errorf("get configuration: %w", err)
			}
			return a.printConfigs(configs, all)
		}}
	b.flag(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "show defaults too")
	return cmd
}

// describeGroupConfigs asks for a group's settings; kadm knows those of topics and brokers only.
func describeGroupConfigs(ctx context.Context, cl *kgo.Client, name string) (kadm.ResourceConfigs, error) {
	req := kmsg.NewPtrDescribeConfigsRequest()
	r := kmsg.NewDescribeConfigsRequestResource()
	r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeGroupConfig, name
	req.Resources = []kmsg.DescribeConfigsRequestResource{r}
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return nil, err
	}
	var out kadm.ResourceConfigs
	for _, r := range resp.Resources {
		rc := kadm.ResourceConfig{Name: r.ResourceName, Err: kerr.ErrorForCode(r.ErrorCode), ErrMessage: deref(r.ErrorMessage)}
		for _, c := range r.Configs {
			rc.Configs = append(rc.Configs, kadm.Config{Key: c.Name, Value: c.Value, Sensitive: c.IsSensitive, Source: c.Source})
		}
		out = append(out, rc)
	}
	return out, nil
}

// configView is one setting as it is shown.
type configView struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Source string `json:"source"`
}

func (a *app) printConfigs(configs kadm.ResourceConfigs, all bool) error {
	views := []configView{}
	for _, r := range configs {
		if r.Err != nil {
			return fmt.Errorf("%s: %s", r.Name, errorText(r.Err, r.ErrMessage))
		}
		for _, c := range r.Configs {
			source := c.Source.String()
			if !all && source == "DEFAULT_CONFIG" {
				continue
			}
			value := c.MaybeValue()
			if c.Sensitive {
				value = "(hidden)"
			}
			views = append(views, configView{c.Key, value, source})
		}
	}
	if a.output == "json" {
		return a.json(views)
	}
	rows := [][]string{{"KEY", "VALUE", "SOURCE"}}
	for _, v := range views {
		rows = append(rows, []string{v.Key, v.Value, v.Source})
	}
	return a.table(rows)
}
