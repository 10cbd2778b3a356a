package cli

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
)

func (a *app) configCommand() *cobra.Command {
	return group("config", "Show configurations of topics and brokers", a.configGet())
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
