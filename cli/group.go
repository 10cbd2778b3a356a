package cli

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"

	"github.com/go-zookeeper/zk"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
)

func (a *app) groupCommand() *cobra.Command {
	return group("group", "Look at consumer groups", a.groupList(), a.groupDescribe())
}

func (a *app) groupList() *cobra.Command {
	var z zkServers
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List groups, with their members", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return z.with(cmd.Context(), func(conn *zk.Conn, chroot string) error {
				names, err := childrenOrNone(conn, chroot+"/consumers")
				if err != nil {
					return err
				}
				views := []groupView{}
				for _, n := range names {
					members, err := childrenOrNone(conn, chroot+"/consumers/"+n+"/ids")
					if err != nil {
						return err
					}
					views = append(views, groupView{Group: n, Members: members})
				}
				if a.output == "json" {
					return a.json(views)
				}
				rows := [][]string{{"GROUP", "MEMBERS"}}
				for _, v := range views {
					rows = append(rows, []string{v.Group, strconv.Itoa(len(v.Members))})
				}
				return a.table(rows)
			})
		}}
	z.flag(cmd)
	return cmd
}

// groupView is a group as it is shown.
type groupView struct {
	Group      string               `json:"group"`
	Members    []string             `json:"members"`
	Partitions []groupPartitionView `json:"partitions,omitempty"`
}

// groupPartitionView is one partition of a group. Offset, End and Lag are -1 when unknown, Owner is empty for none.
type groupPartitionView struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Owner     string `json:"owner"`
	Offset    int64  `json:"offset"`
	End       int64  `json:"end"`
	Lag       int64  `json:"lag"`
}

const describeHelp = `Show which member owns which partition, how far the group has read, and how much is left to read.

Members, owners and offsets are what stands in /consumers, whichever protocol the group commits by.`

func (a *app) groupDescribe() *cobra.Command {
	var z zkServers
	var b brokers
	cmd := &cobra.Command{Use: "describe GROUP", Short: "Show owners, offsets and lag of a group", Long: describeHelp, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var v groupView
			err := z.with(cmd.Context(), func(conn *zk.Conn, chroot string) (err error) {
				v, err = readGroup(conn, chroot, args[0])
				return err
			})
			if err == nil {
				err = v.addEnds(cmd.Context(), b)
			}
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.json(v)
			}
			return a.printGroup(v)
		}}
	z.flag(cmd)
	b.flag(cmd)
	return cmd
}

// childrenOrNone lists children in order; a node that is not there has none.
func childrenOrNone(conn *zk.Conn, p string) ([]string, error) {
	names, _, err := conn.Children(p)
	if errors.Is(err, zk.ErrNoNode) {
		return []string{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p, err)
	}
	sort.Strings(names)
	return names, nil
}

func dataOrNone(conn *zk.Conn, p string) (string, error) {
	data, _, err := conn.Get(p)
	if errors.Is(err, zk.ErrNoNode) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", p, err)
	}
	return string(data), nil
}

// readGroup reads a group's znodes.
func readGroup(conn *zk.Conn, chroot, name string) (groupView, error) {
	if name == "" || strings.Contains(name, "/") {
		return groupView{}, usagef("%q is not a group's name", name)
	}
	dir := chroot + "/consumers/" + name
	v := groupView{Group: name}
	if ok, _, err := conn.Exists(dir); err != nil || !ok {
		if err == nil {
			err = errors.New("there is no such group")
		}
		return v, fmt.Errorf("group %s: %w", name, err)
	}
	var err error
	if v.Members, err = childrenOrNone(conn, dir+"/ids"); err != nil {
		return v, err
	}
	type place struct {
		topic     string
		partition int32
	}
	found := map[place]*groupPartitionView{}
	for _, kind := range []string{"owners", "offsets"} {
		topics, err := childrenOrNone(conn, dir+"/"+kind)
		if err != nil {
			return v, err
		}
		for _, t := range topics {
			parts, err := childrenOrNone(conn, dir+"/"+kind+"/"+t)
			if err != nil {
				return v, err
			}
			for _, p := range parts {
				n, err := strconv.ParseInt(p[strings.LastIndexByte(p, '-')+1:], 10, 32) // pykafka claims <leader>-<partition>
				if err != nil {
					continue
				}
				at := place{t, int32(n)}
				if found[at] == nil {
					found[at] = &groupPartitionView{Topic: t, Partition: int32(n), Offset: -1, End: -1, Lag: -1}
				}
				data, err := dataOrNone(conn, dir+"/"+kind+"/"+t+"/"+p)
				if err != nil {
					return v, err
				}
				if kind == "owners" {
					found[at].Owner = data
				} else if o, err := strconv.ParseInt(data, 10, 64); err == nil {
					found[at].Offset = o
				}
			}
		}
	}
	for _, p := range found {
		v.Partitions = append(v.Partitions, *p)
	}
	sort.Slice(v.Partitions, func(i, j int) bool {
		a, b := v.Partitions[i], v.Partitions[j]
		return a.Topic < b.Topic || a.Topic == b.Topic && a.Partition < b.Partition
	})
	return v, nil
}

// addEnds asks the brokers where the partitions end. Topics that are gone keep -1.
func (v *groupView) addEnds(ctx context.Context, b brokers) error {
	topics := map[string]bool{}
	var names []string
	for _, p := range v.Partitions {
		if !topics[p.Topic] {
			topics[p.Topic] = true
			names = append(names, p.Topic)
		}
	}
	if len(names) == 0 {
		return nil
	}
	adm, err := b.admin()
	if err != nil {
		return err
	}
	defer adm.Close()
	ends, err := adm.ListEndOffsets(ctx, names...)
	if se := (*kadm.ShardErrors)(nil); err != nil && !errors.As(err, &se) {
		return fmt.Errorf("ends of partitions: %w", err)
	}
	for i := range v.Partitions {
		p := &v.Partitions[i]
		if e, ok := ends.Lookup(p.Topic, p.Partition); ok && e.Err == nil {
			p.End = e.Offset
			if p.Offset >= 0 {
				p.Lag = max(p.End-p.Offset, 0)
			}
		}
	}
	return nil
}

func (a *app) printGroup(v groupView) error {
	number := func(n int64) string {
		if n < 0 {
			return "-"
		}
		return strconv.FormatInt(n, 10)
	}
	lag := int64(0)
	rows := [][]string{{"TOPIC", "PARTITION", "OFFSET", "END", "LAG", "OWNER"}}
	for _, p := range v.Partitions {
		lag += max(p.Lag, 0)
		owner := p.Owner
		if owner == "" {
			owner = "-"
		}
		rows = append(rows, []string{p.Topic, strconv.Itoa(int(p.Partition)), number(p.Offset), number(p.End), number(p.Lag), owner})
	}
	fmt.Fprintf(a.Out, "group %s: %d members, lag %d\n", v.Group, len(v.Members), lag)
	return a.table(rows)
}
