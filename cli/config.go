package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
)

func (a *app) configCommand() *cobra.Command {
	return group("config", "Show and change configurations of topics and brokers", a.configGet(), a.configSet(), a.configUnset())
}

func (a *app) configSet() *cobra.Command {
	var b brokers
	cmd := &cobra.Command{
		Use: "set topic NAME KEY=VALUE...", Short: "Change settings of a topic", Args: cobra.MinimumNArgs(3),
		Example:   "  barnabas config set topic orders max.message.bytes=4194304 min.insync.replicas=2",
		ValidArgs: []string{"topic"},
		RunE: func(cmd *cobra.Command, args []string) error {
			var changes []kadm.AlterConfig
			for _, kv := range args[2:] {
				k, v, ok := strings.Cut(kv, "=")
				if !ok || k == "" {
					return usagef("%q is not key=value", kv)
				}
				changes = append(changes, kadm.AlterConfig{Op: kadm.SetConfig, Name: k, Value: &v})
			}
			return a.alterConfig(cmd, b, args, changes)
		}}
	b.flag(cmd)
	return cmd
}

func (a *app) configUnset() *cobra.Command {
	var b brokers
	cmd := &cobra.Command{
		Use: "unset topic NAME KEY...", Short: "Give settings of a topic their defaults again", Args: cobra.MinimumNArgs(3),
		Example:   "  barnabas config unset topic orders max.message.bytes",
		ValidArgs: []string{"topic"},
		RunE: func(cmd *cobra.Command, args []string) error {
			var changes []kadm.AlterConfig
			for _, k := range args[2:] {
				changes = append(changes, kadm.AlterConfig{Op: kadm.DeleteConfig, Name: k})
			}
			return a.alterConfig(cmd, b, args, changes)
		}}
	b.flag(cmd)
	return cmd
}

// alterConfig changes the settings of the topic args[1], all of them or none.
func (a *app) alterConfig(cmd *cobra.Command, b brokers, args []string, changes []kadm.AlterConfig) error {
	if args[0] != "topic" {
		return usagef("%q: only a topic's configuration can be changed while it runs; a broker's is in its file", args[0])
	}
	adm, err := b.admin()
	if err != nil {
		return err
	}
	defer adm.Close()
	resp, err := adm.AlterTopicConfigs(cmd.Context(), changes, args[1])
	if err != nil {
		return fmt.Errorf("change configuration: %w", err)
	}
	var out []outcome
	for _, r := range resp {
		o := outcome{Name: r.Name}
		if r.Err != nil {
			o.Error = errorText(r.Err, r.ErrMessage)
		}
		out = append(out, o)
	}
	return a.report("changed", out)
}

func (a *app) configGet() *cobra.Command {
	var b brokers
	var all bool
	cmd := &cobra.Command{
		Use: "get topic|broker NAME", Short: "Show the configuration of a topic or a broker", Args: cobra.ExactArgs(2),
		Example:   "  barnabas config get topic orders\n  barnabas config get broker 1 --all",
		ValidArgs: []string{"topic", "broker"},
		RunE: func(cmd *cobra.Command, args []string) error {
			adm, err := b.admin()
			if err != nil {
				return err
			}
			defer adm.Close()
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
			default:
				return usagef("%q is neither topic nor broker", args[0])
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
