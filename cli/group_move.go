package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
)

const moveLook = time.Second

func (a *app) groupMove() *cobra.Command {
	var b brokers
	var to string
	var wait time.Duration
	var check bool
	cmd := &cobra.Command{
		Use: "move GROUP --to new|zookeeper", Short: "Follow a group from ZooKeeper's consumers to new ones, or back, and report who owns what",
		Args: cobra.ExactArgs(1),
		Long: "Follow a group while its members are replaced: those that consume by ZooKeeper by new ones (classic or KIP-848), or back.\n" +
			"Starting and stopping them is yours: start a new one, stop an old one, and so on; both kinds share the group meanwhile, under\n" +
			"one plan. Before, the command shows who owns what; then it tells each change; and when only members of the wanted kind are left\n" +
			"and every partition has an owner, it shows the new owners and that no committed offset has gone back. It fails when that\n" +
			"has not come about within --wait, with what is missing.",
		Example: "  barnabas group move billing --to new\n  barnabas group move billing --to zookeeper --wait 1h\n  barnabas group move billing --to new --check",
		RunE: func(cmd *cobra.Command, args []string) error {
			if to != "new" && to != kindZooKeeper {
				return usagef("--to is new or zookeeper, not %q (see %s --help)", to, cmd.CommandPath())
			}
			adm, err := b.admin()
			if err != nil {
				return err
			}
			defer adm.Close()
			return a.moveGroup(cmd.Context(), adm, args[0], to, wait, check)
		},
	}
	b.flag(cmd)
	f := cmd.Flags()
	f.StringVar(&to, "to", "", "new (classic and KIP-848 members) or zookeeper")
	f.DurationVar(&wait, "wait", 30*time.Minute, "how long the members may take")
	f.BoolVar(&check, "check", false, "only show how far the move is")
	return cmd
}

// moveReport is what a move came to, in JSON.
type moveReport struct {
	Group      string          `json:"group"`
	To         string          `json:"to"`
	Done       bool            `json:"done"`
	Missing    []string        `json:"missing"`
	Partitions []movePartition `json:"partitions"`
}

type movePartition struct {
	Topic           string `json:"topic"`
	Partition       int32  `json:"partition"`
	Before          string `json:"ownerBefore,omitempty"`
	After           string `json:"ownerAfter,omitempty"`
	CommittedBefore *int64 `json:"committedBefore"`
	CommittedAfter  *int64 `json:"committedAfter"`
	Lag             *int64 `json:"lag"`
}

func (a *app) moveGroup(ctx context.Context, adm *kadm.Client, name, to string, wait time.Duration, check bool) error {
	first, err := lags(ctx, adm, name)
	if err != nil {
		return err
	}
	before, now := first[0], first[0]
	if a.output != "json" {
		if err := a.printGroup(before); err != nil {
			return err
		}
	}
	ends := time.Now().Add(wait)
	missing := moveMissing(now, to)
	told := ""
	for !check && len(missing) > 0 && time.Now().Before(ends) {
		if line := moveLine(now); line != told && a.output != "json" {
			fmt.Fprintf(a.Out, "%s  %s; missing: %s\n", time.Now().Format(time.TimeOnly), line, strings.Join(missing, "; "))
			told = line
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(moveLook):
		}
		views, err := lags(ctx, adm, name)
		if err != nil {
			continue // a fail-over passes; the deadline does not
		}
		now = views[0]
		missing = moveMissing(now, to)
	}
	report := moveReport{Group: name, To: to, Done: len(missing) == 0, Missing: append([]string{}, missing...), Partitions: compareMoves(before, now)}
	if err := a.printMove(report); err != nil {
		return err
	}
	if back := wentBack(report.Partitions); len(back) > 0 {
		return fmt.Errorf("move %s: committed offsets have gone back: %s", name, strings.Join(back, ", "))
	}
	if !report.Done && !check {
		return fmt.Errorf("move %s: not done within %s: %s", name, wait, strings.Join(missing, "; "))
	}
	return nil
}

// moveMissing says what is still to come before a group has moved.
func moveMissing(v groupView, to string) (missing []string) {
	old, fresh := 0, 0
	for _, m := range v.Members {
		if (m.Kind == kindZooKeeper) == (to == kindZooKeeper) {
			fresh++
		} else {
			old++
		}
	}
	if old > 0 {
		missing = append(missing, fmt.Sprintf("%d old members to stop", old))
	}
	if fresh == 0 {
		missing = append(missing, "a new member to start")
	}
	unowned := 0
	for _, o := range v.Offsets {
		if o.Member == "" {
			unowned++
		}
	}
	if unowned > 0 {
		missing = append(missing, fmt.Sprintf("an owner of %d partitions", unowned))
	}
	return missing
}

// moveLine is how a group stands, in one line.
func moveLine(v groupView) string {
	count := map[string]int{}
	for _, m := range v.Members {
		count[m.Kind]++
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(count)) {
		parts = append(parts, fmt.Sprintf("%d %s", count[k], k))
	}
	owned := 0
	for _, o := range v.Offsets {
		if o.Member != "" {
			owned++
		}
	}
	if len(parts) == 0 {
		parts = []string{"no members"}
	}
	return fmt.Sprintf("%s, %s, %d of %d partitions owned", v.State, strings.Join(parts, " and "), owned, len(v.Offsets))
}

func compareMoves(before, after groupView) []movePartition {
	key := func(o offsetView) string { return o.Topic + "\x00" + strconv.Itoa(int(o.Partition)) }
	was := map[string]offsetView{}
	for _, o := range before.Offsets {
		was[key(o)] = o
	}
	out := []movePartition{}
	for _, o := range after.Offsets {
		b := was[key(o)]
		out = append(out, movePartition{o.Topic, o.Partition, b.Member, o.Member, b.Committed, o.Committed, o.Lag})
	}
	return out
}

// wentBack names partitions whose committed offset is lower than it was.
func wentBack(ps []movePartition) (names []string) {
	for _, p := range ps {
		if p.CommittedBefore != nil && (p.CommittedAfter == nil || *p.CommittedAfter < *p.CommittedBefore) {
			names = append(names, fmt.Sprintf("%s-%d", p.Topic, p.Partition))
		}
	}
	return names
}

func (a *app) printMove(r moveReport) error {
	if a.output == "json" {
		return a.json(r)
	}
	number := func(n *int64) string {
		if n == nil {
			return "-"
		}
		return strconv.FormatInt(*n, 10)
	}
	rows := [][]string{{"TOPIC", "PARTITION", "OWNER BEFORE", "OWNER NOW", "COMMITTED BEFORE", "COMMITTED NOW", "LAG"}}
	for _, p := range r.Partitions {
		rows = append(rows, []string{p.Topic, strconv.Itoa(int(p.Partition)), p.Before, p.After, number(p.CommittedBefore), number(p.CommittedAfter), number(p.Lag)})
	}
	if err := a.table(rows); err != nil {
		return err
	}
	word := "moved"
	if !r.Done {
		word = "not moved yet (" + strings.Join(r.Missing, "; ") + ")"
	}
	_, err := fmt.Fprintf(a.Out, "group %s: %s\n", r.Group, word)
	return errors.Join(err)
}
