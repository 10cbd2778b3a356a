package cli

import (
	"encoding/base64"
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

func (a *app) topicCommand() *cobra.Command {
	return group("topic", "Create, list, describe, alter and delete topics",
		a.topicCreate(), a.topicList(), a.topicDescribe(), a.topicAlter(), a.topicDelete())
}

func (a *app) topicCreate() *cobra.Command {
	var b brokers
	var partitions int32
	var replicas int16
	var configs []string
	var ifNotExists bool
	cmd := &cobra.Command{
		Use: "create TOPIC...", Short: "Create topics", Args: cobra.MinimumNArgs(1),
		Example: "  barnabas topic create orders --partitions 12 --replication-factor 3\n" +
			"  barnabas topic create big --config max.message.bytes=4194304",
		RunE: func(cmd *cobra.Command, topics []string) error {
			set, err := configMap(configs)
			if err != nil {
				return err
			}
			adm, err := b.admin()
			if err != nil {
				return err
			}
			defer adm.Close()
			resp, err := adm.CreateTopics(cmd.Context(), partitions, replicas, set, topics...)
			if err != nil {
				return fmt.Errorf("create topics: %w", err)
			}
			return a.reportCreated(resp.Sorted(), ifNotExists)
		},
	}
	b.flag(cmd)
	f := cmd.Flags()
	f.Int32VarP(&partitions, "partitions", "p", -1, "number of partitions; -1: the broker's num.partitions")
	f.Int16VarP(&replicas, "replication-factor", "r", -1, "number of replicas; -1: the broker's default.replication.factor")
	f.StringArrayVar(&configs, "config", nil, "topic configuration key=value; may be repeated")
	f.BoolVar(&ifNotExists, "if-not-exists", false, "a topic that is there already is no error")
	return cmd
}

func configMap(pairs []string) (map[string]*string, error) {
	out := map[string]*string{}
	for _, kv := range pairs {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || k == "" {
			return nil, usagef("--config %q is not key=value", kv)
		}
		out[k] = &v
	}
	return out, nil
}

// outcome is one line of a verb that works on several things.
type outcome struct {
	Name  string `json:"name"`
	Error string `json:"error,omitempty"`
	note  string
}

// report prints the outcomes and fails when one of them did.
func (a *app) report(did string, all []outcome) error {
	failed := 0
	for _, o := range all {
		if o.Error != "" {
			failed++
		}
	}
	if a.output == "json" {
		if err := a.json(all); err != nil {
			return err
		}
	} else {
		for _, o := range all {
			switch {
			case o.Error != "":
				fmt.Fprintf(a.Err, "%s: %s\n", o.Name, o.Error)
			default:
				fmt.Fprintf(a.Out, "%s %s%s\n", did, o.Name, o.note)
			}
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d failed", failed, len(all))
	}
	return nil
}

func errorText(err error, message string) string {
	if message != "" && !strings.Contains(err.Error(), message) {
		return err.Error() + ": " + message
	}
	return err.Error()
}

func (a *app) reportCreated(all []kadm.CreateTopicResponse, ifNotExists bool) error {
	var out []outcome
	for _, r := range all {
		o := outcome{Name: r.Topic}
		switch {
		case r.Err != nil && ifNotExists && errors.Is(r.Err, kerr.TopicAlreadyExists):
			o.note = " (it was there already)"
		case r.Err != nil:
			o.Error = errorText(r.Err, r.ErrMessage)
		case r.NumPartitions > 0:
			o.note = fmt.Sprintf(" with %d partitions and replication factor %d", r.NumPartitions, r.ReplicationFactor)
		}
		out = append(out, o)
	}
	return a.report("created", out)
}

// topicView is a topic as list and describe show it.
type topicView struct {
	Name       string            `json:"name"`
	ID         string            `json:"id,omitempty"`
	Partitions []partitionView   `json:"partitions"`
	Configs    map[string]string `json:"configs,omitempty"`
}

type partitionView struct {
	Partition   int32   `json:"partition"`
	Leader      int32   `json:"leader"`
	LeaderEpoch int32   `json:"leaderEpoch"`
	Replicas    []int32 `json:"replicas"`
	ISR         []int32 `json:"isr"`
}

func viewOf(t kadm.TopicDetail) topicView {
	v := topicView{Name: t.Topic, Partitions: []partitionView{}}
	if t.ID != (kadm.TopicID{}) {
		v.ID = base64.RawURLEncoding.EncodeToString(t.ID[:]) // as Kafka writes it
	}
	for _, p := range t.Partitions.Sorted() {
		v.Partitions = append(v.Partitions, partitionView{p.Partition, p.Leader, p.LeaderEpoch, p.Replicas, p.ISR})
	}
	return v
}

func (v topicView) replication() int {
	if len(v.Partitions) == 0 {
		return 0
	}
	return len(v.Partitions[0].Replicas)
}

func (v topicView) underReplicated() (n int) {
	for _, p := range v.Partitions {
		if len(p.ISR) < len(p.Replicas) {
			n++
		}
	}
	return n
}

func (a *app) topicList() *cobra.Command {
	var b brokers
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List topics", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			adm, err := b.admin()
			if err != nil {
				return err
			}
			defer adm.Close()
			topics, err := adm.ListTopics(cmd.Context())
			if err != nil {
				return fmt.Errorf("list topics: %w", err)
			}
			views := []topicView{}
			for _, t := range topics.Sorted() {
				views = append(views, viewOf(t))
			}
			if a.output == "json" {
				return a.json(views)
			}
			rows := [][]string{{"TOPIC", "PARTITIONS", "REPLICAS", "UNDER-REPLICATED"}}
			for _, v := range views {
				rows = append(rows, []string{v.Name, strconv.Itoa(len(v.Partitions)), strconv.Itoa(v.replication()), strconv.Itoa(v.underReplicated())})
			}
			return a.table(rows)
		}}
	b.flag(cmd)
	return cmd
}

func (a *app) topicDescribe() *cobra.Command {
	var b brokers
	cmd := &cobra.Command{Use: "describe TOPIC...", Short: "Show partitions, leaders, replicas and configuration", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			adm, err := b.admin()
			if err != nil {
				return err
			}
			defer adm.Close()
			topics, err := adm.ListTopicsWithInternal(cmd.Context(), names...)
			if err != nil {
				return fmt.Errorf("describe topics: %w", err)
			}
			if err := topics.Error(); err != nil {
				return fmt.Errorf("describe topics: %w", err)
			}
			configs, err := adm.DescribeTopicConfigs(cmd.Context(), names...)
			if err != nil {
				return fmt.Errorf("describe configurations: %w", err)
			}
			var views []topicView
			for _, t := range topics.Sorted() {
				v := viewOf(t)
				v.Configs = ownConfigs(configs, t.Topic)
				views = append(views, v)
			}
			if a.output == "json" {
				return a.json(views)
			}
			return a.printTopics(views)
		}}
	b.flag(cmd)
	return cmd
}

// ownConfigs are the settings that were made for the topic itself.
func ownConfigs(all kadm.ResourceConfigs, topic string) map[string]string {
	out := map[string]string{}
	for _, r := range all {
		if r.Name != topic {
			continue
		}
		for _, c := range r.Configs {
			if c.Source.String() == "DYNAMIC_TOPIC_CONFIG" {
				out[c.Key] = c.MaybeValue()
			}
		}
	}
	return out
}

func (a *app) printTopics(views []topicView) error {
	for i, v := range views {
		if i > 0 {
			fmt.Fprintln(a.Out)
		}
		var configs []string
		for k, val := range v.Configs {
			configs = append(configs, k+"="+val)
		}
		sort.Strings(configs)
		fmt.Fprintf(a.Out, "%s: %d partitions, replication factor %d", v.Name, len(v.Partitions), v.replication())
		if v.ID != "" {
			fmt.Fprintf(a.Out, ", id %s", v.ID)
		}
		fmt.Fprintln(a.Out)
		if len(configs) > 0 {
			fmt.Fprintf(a.Out, "configuration: %s\n", strings.Join(configs, ", "))
		}
		rows := [][]string{{"PARTITION", "LEADER", "EPOCH", "REPLICAS", "IN SYNC"}}
		for _, p := range v.Partitions {
			leader := strconv.Itoa(int(p.Leader))
			if p.Leader < 0 {
				leader = "none"
			}
			rows = append(rows, []string{strconv.Itoa(int(p.Partition)), leader, strconv.Itoa(int(p.LeaderEpoch)), joinInts(p.Replicas), joinInts(p.ISR)})
		}
		if err := a.table(rows); err != nil {
			return err
		}
	}
	return nil
}

func joinInts(ns []int32) string {
	var out []string
	for _, n := range ns {
		out = append(out, strconv.Itoa(int(n)))
	}
	return strings.Join(out, ",")
}

func (a *app) topicAlter() *cobra.Command {
	var b brokers
	var partitions int
	cmd := &cobra.Command{Use: "alter TOPIC...", Short: "Raise the number of partitions", Args: cobra.MinimumNArgs(1),
		Long:    "Raise the number of partitions. Records with a key go to other partitions afterwards; the old ones stay where they are.",
		Example: "  barnabas topic alter orders --partitions 24",
		RunE: func(cmd *cobra.Command, names []string) error {
			if partitions < 1 {
				return usagef("--partitions is missing")
			}
			adm, err := b.admin()
			if err != nil {
				return err
			}
			defer adm.Close()
			resp, err := adm.UpdatePartitions(cmd.Context(), partitions, names...)
			if err != nil {
				return fmt.Errorf("alter topics: %w", err)
			}
			var out []outcome
			for _, r := range resp.Sorted() {
				o := outcome{Name: r.Topic, note: fmt.Sprintf(" to %d partitions", partitions)}
				if r.Err != nil {
					o.Error = errorText(r.Err, r.ErrMessage)
				}
				out = append(out, o)
			}
			return a.report("altered", out)
		}}
	b.flag(cmd)
	cmd.Flags().IntVarP(&partitions, "partitions", "p", 0, "the new number of partitions")
	return cmd
}

func (a *app) topicDelete() *cobra.Command {
	var b brokers
	cmd := &cobra.Command{Use: "delete TOPIC...", Aliases: []string{"rm"}, Short: "Delete topics and all their records", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			adm, err := b.admin()
			if err != nil {
				return err
			}
			defer adm.Close()
			resp, err := adm.DeleteTopics(cmd.Context(), names...)
			if err != nil {
				return fmt.Errorf("delete topics: %w", err)
			}
			var out []outcome
			for _, r := range resp.Sorted() {
				o := outcome{Name: r.Topic}
				if r.Err != nil {
					o.Error = errorText(r.Err, r.ErrMessage)
				}
				out = append(out, o)
			}
			return a.report("deleted", out)
		}}
	b.flag(cmd)
	return cmd
}
