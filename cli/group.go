package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
)

func (a *app) groupCommand() *cobra.Command {
	return group("group", "List, describe, explain, reset and delete groups of consumers",
		a.groupList(), a.groupDescribe(), a.groupExplain(), a.groupReset(), a.groupMove(), a.groupDelete())
}

// groupView is a group as list and describe show it.
type groupView struct {
	Name     string       `json:"name"`
	State    string       `json:"state"`
	Type     string       `json:"type"`
	Strategy string       `json:"strategy,omitempty"`
	Members  []memberView `json:"members"`
	Lag      int64        `json:"lag"`
	Offsets  []offsetView `json:"offsets,omitempty"`
}

type memberView struct {
	ID         string `json:"id"`
	Kind       string `json:"kind"` // zookeeper, classic or consumer
	Instance   string `json:"instance,omitempty"`
	Client     string `json:"client"`
	Host       string `json:"host"`
	Partitions string `json:"partitions"`
}

type offsetView struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Committed *int64 `json:"committed"` // null: none
	End       int64  `json:"end"`
	Lag       *int64 `json:"lag"`
	Member    string `json:"member,omitempty"`
}

// Kinds of members, and of groups whose members are all of one kind.
const (
	kindZooKeeper = "zookeeper" // by znodes
	kindClassic   = "classic"   // by JoinGroup
	kindConsumer  = "consumer"  // by ConsumerGroupHeartbeat (KIP-848)
	kindMixed     = "mixed"
)

// groupType is a group's kind for people. consumer says that the coordinator assigns.
func groupType(members []memberView, protocolType string, consumer bool) string {
	kind := ""
	for _, m := range members {
		if kind != "" && kind != m.Kind {
			return kindMixed
		}
		kind = m.Kind
	}
	switch {
	case kind != "" && kind != kindClassic:
		return kind
	case consumer:
		return kindConsumer
	case protocolType == "":
		return "offsets only"
	case protocolType != "consumer":
		return protocolType // connect, sr, ...
	}
	return kindClassic
}

// groupViewOf shows a group; by848 are the kinds of its members if it is one of KIP-848, else nil.
func groupViewOf(g kadm.DescribedGroupLag, by848 map[string]string) groupView {
	v := groupView{Name: g.Group, State: g.State, Strategy: g.Protocol, Members: []memberView{}}
	for _, m := range g.Members {
		mv := memberView{ID: m.MemberID, Client: m.ClientID, Host: m.ClientHost, Kind: kindClassic}
		if host, ok := strings.CutPrefix(m.ClientHost, kindZooKeeper); ok && (host == "" || host[0] == '/') {
			mv.Kind, mv.Host = kindZooKeeper, host
		} else if k := by848[m.MemberID]; k != "" {
			mv.Kind = k
		}
		if m.InstanceID != nil {
			mv.Instance = *m.InstanceID
		}
		if c, ok := m.Assigned.AsConsumer(); ok {
			var parts []string
			for _, t := range c.Topics {
				parts = append(parts, t.Topic+"("+joinInts(t.Partitions)+")")
			}
			sort.Strings(parts)
			mv.Partitions = strings.Join(parts, " ")
		}
		v.Members = append(v.Members, mv)
	}
	v.Type = groupType(v.Members, g.ProtocolType, by848 != nil)
	for _, l := range g.Lag.Sorted() {
		o := offsetView{Topic: l.Topic, Partition: l.Partition, End: l.End.Offset}
		if l.Commit.At >= 0 {
			o.Committed = &l.Commit.At
		}
		if l.Err == nil && l.Lag >= 0 {
			o.Lag = &l.Lag
			v.Lag += l.Lag
		}
		if l.Member != nil {
			o.Member = l.Member.MemberID
		}
		v.Offsets = append(v.Offsets, o)
	}
	return v
}

// lags asks for groups; without names for all.
func lags(ctx context.Context, adm *kadm.Client, names ...string) ([]groupView, error) {
	if len(names) == 0 {
		all, err := adm.ListGroups(ctx)
		if err != nil {
			return nil, fmt.Errorf("list groups: %w", err)
		}
		if names = all.Groups(); len(names) == 0 {
			return []groupView{}, nil
		}
	}
	got, err := adm.Lag(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("describe groups: %w", err)
	}
	by848 := kinds848(ctx, adm, names)
	var views []groupView
	for _, g := range got.Sorted() {
		if g.State == "Dead" {
			return nil, fmt.Errorf("describe groups: there is no group %s", g.Group)
		}
		if err := g.Error(); err != nil {
			return nil, fmt.Errorf("describe groups: %s: %w", g.Group, err)
		}
		views = append(views, groupViewOf(g, by848[g.Group]))
	}
	return views, nil
}

// kinds848 tells the kinds of the members of those groups that are of KIP-848, the empty ones too. Brokers that do not know such
// groups have none.
func kinds848(ctx context.Context, adm *kadm.Client, names []string) map[string]map[string]string {
	out := map[string]map[string]string{}
	described, err := adm.DescribeConsumerGroups(ctx, names...)
	if err != nil && len(described) == 0 {
		return out
	}
	for _, g := range described {
		if g.Err != nil { // not of that kind
			continue
		}
		kinds := map[string]string{}
		for _, m := range g.Members {
			kinds[m.MemberID] = kindConsumer
			if m.MemberType == 0 {
				kinds[m.MemberID] = kindClassic
			}
		}
		out[g.Group] = kinds
	}
	return out
}

func (a *app) groupList() *cobra.Command {
	var b brokers
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List groups of all kinds with state, members and lag", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			views, err := b.allGroups(cmd.Context())
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.json(views)
			}
			rows := [][]string{{"GROUP", "TYPE", "STATE", "MEMBERS", "LAG"}}
			for _, v := range views {
				rows = append(rows, []string{v.Name, v.Type, v.State, strconv.Itoa(len(v.Members)), strconv.FormatInt(v.Lag, 10)})
			}
			return a.table(rows)
		}}
	b.flag(cmd)
	return cmd
}

// allGroups asks every broker for its groups. One that freezes is in the list of brokers for two seconds more, and may be the
// coordinator: without its answer nothing is known, and the next attempt begins with who is there then.
func (b *brokers) allGroups(ctx context.Context) (views []groupView, err error) {
	for range 4 {
		if views, err = b.allGroupsOnce(ctx); !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			break
		}
	}
	return views, err
}

func (b *brokers) allGroupsOnce(ctx context.Context) ([]groupView, error) {
	adm, err := b.admin()
	if err != nil {
		return nil, err
	}
	defer adm.Close()
	ctx, cancel := context.WithTimeout(ctx, 2*answerWait-time.Second)
	defer cancel()
	views, err := lags(ctx, adm)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w (%w)", err, ctx.Err())
	}
	return views, err
}

func (a *app) groupDescribe() *cobra.Command {
	var b brokers
	cmd := &cobra.Command{Use: "describe GROUP...", Short: "Show members, assignments, committed offsets and lag", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			adm, err := b.admin()
			if err != nil {
				return err
			}
			defer adm.Close()
			views, err := lags(cmd.Context(), adm, names...)
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.json(views)
			}
			for i, v := range views {
				if i > 0 {
					fmt.Fprintln(a.Out)
				}
				if err := a.printGroup(v); err != nil {
					return err
				}
			}
			return nil
		}}
	b.flag(cmd)
	return cmd
}

func (a *app) printGroup(v groupView) error {
	fmt.Fprintf(a.Out, "%s: %s, %s", v.Name, v.Type, v.State)
	if v.Strategy != "" {
		fmt.Fprintf(a.Out, ", strategy %s", v.Strategy)
	}
	fmt.Fprintf(a.Out, ", %d members, lag %d\n", len(v.Members), v.Lag)
	if len(v.Members) > 0 {
		rows := [][]string{{"MEMBER", "KIND", "CLIENT", "HOST", "PARTITIONS"}}
		for _, m := range v.Members {
			rows = append(rows, []string{m.ID, m.Kind, m.Client, m.Host, m.Partitions})
		}
		if err := a.table(rows); err != nil {
			return err
		}
	}
	if len(v.Offsets) == 0 {
		return nil
	}
	number := func(n *int64) string {
		if n == nil {
			return "-"
		}
		return strconv.FormatInt(*n, 10)
	}
	rows := [][]string{{"TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER"}}
	for _, o := range v.Offsets {
		rows = append(rows, []string{o.Topic, strconv.Itoa(int(o.Partition)), number(o.Committed), strconv.FormatInt(o.End, 10), number(o.Lag), o.Member})
	}
	return a.table(rows)
}

func (a *app) groupExplain() *cobra.Command {
	var admin string
	cmd := &cobra.Command{Use: "explain GROUP", Short: "Tell why the group rebalanced, the last 100 times", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var got struct {
				Group      string `json:"group"`
				Generation int32  `json:"generation"`
				Rebalances []struct {
					Time       time.Time `json:"time"`
					Generation int32     `json:"generation"`
					Cause      string    `json:"cause"`
					Why        string    `json:"why"`
					Before     int32     `json:"membersBefore"`
					After      int32     `json:"membersAfter"`
					Joined     []string  `json:"joined,omitempty"`
					Left       []string  `json:"left,omitempty"`
					WaitedMs   int64     `json:"waitedMs"`
					WaitedFor  string    `json:"waitedFor,omitempty"`
					Kind       string    `json:"kind,omitempty"`
					Holds      []string  `json:"holds,omitempty"`
				} `json:"rebalances"`
			}
			if err := get(cmd.Context(), "group explain", admin, "/v1/groups/"+url.PathEscape(args[0])+"/rebalances", &got); err != nil {
				return err
			}
			if a.output == "json" {
				return a.json(got)
			}
			for _, r := range got.Rebalances {
				fmt.Fprintf(a.Out, "%s  %sgeneration %d  %s: %s\n", r.Time.Local().Format(time.DateTime), strings.TrimPrefix(r.Kind+" ", " "), r.Generation, r.Cause, r.Why)
				fmt.Fprintf(a.Out, "    members %d -> %d, waited %s", r.Before, r.After, time.Duration(r.WaitedMs)*time.Millisecond)
				if r.WaitedFor != "" {
					fmt.Fprintf(a.Out, ", last for %s", r.WaitedFor)
				}
				fmt.Fprintln(a.Out)
				for _, part := range []struct {
					word string
					list []string
				}{{"joined", r.Joined}, {"left", r.Left}, {"held", r.Holds}} {
					if len(part.list) > 0 {
						fmt.Fprintf(a.Out, "    %s: %s\n", part.word, strings.Join(part.list, ", "))
					}
				}
			}
			return nil
		}}
	cmd.Flags().StringVarP(&admin, "admin", "a", "localhost:8080", "admin addresses of nodes, host:port,...; the first that answers tells")
	return cmd
}

func (a *app) groupDelete() *cobra.Command {
	var b brokers
	cmd := &cobra.Command{Use: "delete GROUP...", Short: "Delete groups without members, with their offsets", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			adm, err := b.admin()
			if err != nil {
				return err
			}
			defer adm.Close()
			got, err := adm.DeleteGroups(cmd.Context(), names...)
			if err != nil && len(got) == 0 {
				return fmt.Errorf("delete groups: %w", err)
			}
			var out []outcome
			for _, g := range got.Sorted() {
				o := outcome{Name: g.Group}
				if g.Err != nil {
					o.Error = g.Err.Error()
				}
				out = append(out, o)
			}
			return a.report("deleted", out)
		}}
	b.flag(cmd)
	return cmd
}

func (a *app) groupReset() *cobra.Command {
	var b brokers
	var topics []string
	var to string
	var dry bool
	cmd := &cobra.Command{
		Use: "reset-offsets GROUP --topic TOPIC[:PARTITION,...] --to WHERE", Short: "Move the committed offsets of a group without members", Args: cobra.ExactArgs(1),
		Long: "Move the committed offsets of a group without members. WHERE is earliest, latest, an offset, a time like\n" +
			"2026-01-31T12:00:00Z, or a duration like 2h for that long ago.",
		Example: "  barnabas group reset-offsets billing --topic orders --to earliest\n" +
			"  barnabas group reset-offsets billing --topic orders:0,3 --to 1500 --dry-run",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(topics) == 0 || to == "" {
				return usagef("--topic and --to are both needed (see %s --help)", cmd.CommandPath())
			}
			adm, err := b.admin()
			if err != nil {
				return err
			}
			defer adm.Close()
			return a.resetOffsets(cmd.Context(), adm, args[0], topics, to, dry)
		},
	}
	b.flag(cmd)
	f := cmd.Flags()
	f.StringArrayVarP(&topics, "topic", "t", nil, "topic, or topic:partition,...; may be repeated")
	f.StringVar(&to, "to", "", "earliest, latest, an offset, a time, or a duration ago")
	f.BoolVar(&dry, "dry-run", false, "only show what would be committed")
	return cmd
}

func (a *app) resetOffsets(ctx context.Context, adm *kadm.Client, name string, topics []string, to string, dry bool) error {
	wanted, err := partitionSets(topics)
	if err != nil {
		return err
	}
	described, err := adm.DescribeGroups(ctx, name)
	if err != nil {
		return fmt.Errorf("reset offsets: %w", err)
	}
	if g := described[name]; len(g.Members) > 0 {
		return fmt.Errorf("reset offsets: group %s has %d members (%s): stop them first", name, len(g.Members), g.State)
	}
	where, err := place(ctx, adm, wanted.names(), to)
	if err != nil {
		return err
	}
	var offsets kadm.Offsets
	moved := []offsetMoved{}
	rows := [][]string{{"TOPIC", "PARTITION", "OFFSET"}}
	for _, o := range where {
		if set := wanted[o.Topic]; len(set) > 0 && !set[o.Partition] {
			continue
		}
		offsets.AddOffset(o.Topic, o.Partition, o.Offset, -1)
		moved = append(moved, offsetMoved{o.Topic, o.Partition, o.Offset})
		rows = append(rows, []string{o.Topic, strconv.Itoa(int(o.Partition)), strconv.FormatInt(o.Offset, 10)})
	}
	for topic, set := range wanted {
		for p := range set {
			if _, ok := offsets.Lookup(topic, p); !ok {
				return fmt.Errorf("reset offsets: topic %s has no partition %d", topic, p)
			}
		}
	}
	if !dry {
		got, err := adm.CommitOffsets(ctx, name, offsets)
		if err == nil {
			err = got.Error()
		}
		if err != nil {
			return fmt.Errorf("reset offsets of %s: %w", name, err)
		}
	}
	if a.output == "json" {
		return a.json(moved)
	}
	return a.table(rows)
}

type offsetMoved struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
}

// partitionSet is what --topic asks for: no partitions mean all.
type partitionSet map[string]map[int32]bool

func (s partitionSet) names() (out []string) {
	for t := range s {
		out = append(out, t)
	}
	sort.Strings(out)
	return out
}

func partitionSets(topics []string) (partitionSet, error) {
	out := partitionSet{}
	for _, t := range topics {
		name, list, some := strings.Cut(t, ":")
		if out[name] == nil {
			out[name] = map[int32]bool{}
		}
		for _, p := range strings.Split(list, ",") {
			n, err := strconv.ParseInt(p, 10, 32)
			if some && (err != nil || n < 0) || name == "" {
				return nil, usagef("--topic %q is not topic or topic:partition,...", t)
			}
			if some {
				out[name][int32(n)] = true
			}
		}
	}
	return out, nil
}

// place finds the offset of each partition that --to means, within what the partitions hold.
func place(ctx context.Context, adm *kadm.Client, topics []string, to string) ([]kadm.ListedOffset, error) {
	starts, err := offsetsOf(adm.ListStartOffsets(ctx, topics...))
	if err != nil {
		return nil, err
	}
	ends, err := offsetsOf(adm.ListEndOffsets(ctx, topics...))
	if err != nil {
		return nil, err
	}
	at := starts
	offset, noNumber := strconv.ParseInt(to, 10, 64)
	switch {
	case to == "earliest":
	case to == "latest":
		at = ends
	case noNumber == nil:
	default:
		when, err := moment(to)
		if err != nil {
			return nil, err
		}
		if at, err = offsetsOf(adm.ListOffsetsAfterMilli(ctx, when.UnixMilli(), topics...)); err != nil {
			return nil, err
		}
	}
	var out []kadm.ListedOffset
	at.Each(func(o kadm.ListedOffset) {
		start, _ := starts.Lookup(o.Topic, o.Partition)
		end, _ := ends.Lookup(o.Topic, o.Partition)
		if noNumber == nil {
			o.Offset = offset
		}
		o.Offset = min(max(o.Offset, start.Offset), end.Offset)
		out = append(out, o)
	})
	sort.Slice(out, func(i, j int) bool {
		return out[i].Topic < out[j].Topic || out[i].Topic == out[j].Topic && out[i].Partition < out[j].Partition
	})
	return out, nil
}

func offsetsOf(o kadm.ListedOffsets, err error) (kadm.ListedOffsets, error) {
	if err = errors.Join(err, o.Error()); err != nil {
		return nil, fmt.Errorf("list offsets: %w", err)
	}
	return o, nil
}

func moment(to string) (time.Time, error) {
	if when, err := time.Parse(time.RFC3339, to); err == nil {
		return when, nil
	}
	ago, err := time.ParseDuration(to)
	if err != nil || ago < 0 {
		return time.Time{}, usagef("--to %q is not earliest, latest, an offset, a time like 2026-01-31T12:00:00Z or a duration like 2h", to)
	}
	return time.Now().Add(-ago), nil
}
