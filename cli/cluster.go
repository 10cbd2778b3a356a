package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
)

func (a *app) clusterCommand() *cobra.Command {
	return group("cluster", "Make a cluster, and look at it", a.clusterInit(), a.clusterStatus(), a.clusterLevel())
}

const initHelp = `Make the first node the first of a new cluster.

The node must run ("barnabas server"), with an empty data directory and without --join. Its id and the ids of its cluster
and directory are made here, once. Other nodes then join it: "barnabas server --join HOST:7946".`

func (a *app) clusterInit() *cobra.Command {
	var admin string
	cmd := &cobra.Command{Use: "init", Short: "Make a running, empty node the first of a new cluster", Long: initHelp, Args: cobra.NoArgs,
		Example: "  barnabas cluster init\n  barnabas cluster init --admin kafka1:8080",
		RunE: func(cmd *cobra.Command, _ []string) error {
			id, err := initCluster(cmd.Context(), admin)
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.json(map[string]string{"clusterId": id})
			}
			_, err = fmt.Fprintf(a.Out, "cluster %s has begun\n", id)
			return err
		}}
	cmd.Flags().StringVarP(&admin, "admin", "a", "localhost:8080", "admin address of the node")
	return cmd
}

// initCluster asks the node over its admin port.
func initCluster(ctx context.Context, admin string) (string, error) {
	var answer struct {
		ClusterID string `json:"clusterId"`
	}
	if err := post(ctx, "cluster init", admin, "/v1/cluster/init", &answer); err != nil {
		return "", err
	}
	if answer.ClusterID == "" {
		return "", notAdmin("cluster init", admin)
	}
	return answer.ClusterID, nil
}

const levelHelp = `Raise the cluster's feature level, after all of its nodes run a newer build.

Commands of a newer build are used only from its level on, so nodes of the older build stay in the cluster unharmed until
then. Without --to the highest level is taken that every live node serves. There is no way back.`

func (a *app) clusterLevel() *cobra.Command {
	var admin string
	var to uint32
	cmd := &cobra.Command{Use: "level", Short: "Raise the feature level after an upgrade", Long: levelHelp, Args: cobra.NoArgs,
		Example: "  barnabas cluster level\n  barnabas cluster level --to 2 --admin kafka1:8080",
		RunE: func(cmd *cobra.Command, _ []string) error {
			path := "/v1/cluster/level"
			if to > 0 {
				path += "?level=" + strconv.FormatUint(uint64(to), 10)
			}
			var answer struct {
				Level uint32 `json:"level"`
			}
			if err := post(cmd.Context(), "cluster level", admin, path, &answer); err != nil {
				return err
			}
			if answer.Level == 0 {
				return notAdmin("cluster level", admin)
			}
			if a.output == "json" {
				return a.json(answer)
			}
			_, err := fmt.Fprintf(a.Out, "the cluster is at feature level %d\n", answer.Level)
			return err
		}}
	cmd.Flags().StringVarP(&admin, "admin", "a", "localhost:8080", "admin address of a node")
	cmd.Flags().Uint32Var(&to, "to", 0, "level to raise to; 0: the highest that all live nodes serve")
	return cmd
}

// post asks a node's admin port, which answers in JSON: what is asked, or {"error": ...}.
func post(ctx context.Context, verb, admin, path string, answer any) error {
	return askAdmin(ctx, 30*time.Second, http.MethodPost, verb, admin, path, answer)
}

// get asks the admin ports of one node after the other, until one answers.
func get(ctx context.Context, verb, admins, path string, answer any) (err error) {
	all := splitList(admins)
	if len(all) == 0 {
		return usagef("--admin names no node")
	}
	for i, admin := range all {
		limit := answerWait
		if i == len(all)-1 {
			limit = 10 * time.Second
		}
		if err = askAdmin(ctx, limit, http.MethodGet, verb, admin, path, answer); err == nil || ctx.Err() != nil {
			return err
		}
	}
	if len(all) == 1 && errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: ask another node with --admin, which takes several (host:port,...)", err)
	}
	return err
}

func askAdmin(ctx context.Context, limit time.Duration, method, verb, admin, path string, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+admin+path, nil)
	if err != nil {
		return usagef("--admin %q is not host:port", admin)
	}
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("%s: %w", verb, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil {
		return fmt.Errorf("%s: %w", verb, err)
	}
	var refusal struct {
		Error string `json:"error"`
	}
	if err = json.Unmarshal(body, &refusal); refusal.Error != "" {
		return fmt.Errorf("%s: the node refuses: %s", verb, refusal.Error)
	}
	if err != nil || resp.StatusCode != http.StatusOK || json.Unmarshal(body, answer) != nil {
		return notAdmin(verb, admin)
	}
	return nil
}

func notAdmin(verb, admin string) error {
	return fmt.Errorf("%s: %s does not answer like a barnabas node: is it the admin port?", verb, admin)
}

// clusterView is what `cluster status` shows.
type clusterView struct {
	ClusterID       string       `json:"clusterId"`
	Controller      int32        `json:"controller"`
	Brokers         []brokerView `json:"brokers"`
	Topics          int          `json:"topics"`
	Partitions      int          `json:"partitions"`
	UnderReplicated int          `json:"underReplicated"`
	Offline         int          `json:"offline"`
}

type brokerView struct {
	ID      int32  `json:"id"`
	Address string `json:"address"`
	Rack    string `json:"rack,omitempty"`
	Leads   int    `json:"leads"`
	InSync  int    `json:"inSync"`
}

func (a *app) clusterStatus() *cobra.Command {
	var b brokers
	cmd := &cobra.Command{Use: "status", Short: "Show brokers, the controller and the state of all partitions", Args: cobra.NoArgs,
		Long: "Show brokers, the controller and the state of all partitions. Fails (exit 1) when a partition has no leader.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			adm, err := b.admin()
			if err != nil {
				return err
			}
			defer adm.Close()
			m, err := adm.Metadata(cmd.Context())
			if err != nil {
				return fmt.Errorf("cluster status: %w", err)
			}
			v := summarize(m)
			if err := a.printCluster(v); err != nil {
				return err
			}
			if v.Offline > 0 {
				return fmt.Errorf("%d partitions have no leader", v.Offline)
			}
			return nil
		}}
	b.flag(cmd)
	return cmd
}

func summarize(m kadm.Metadata) clusterView {
	v := clusterView{ClusterID: m.Cluster, Controller: m.Controller, Brokers: []brokerView{}, Topics: len(m.Topics)}
	leads, inSync := map[int32]int{}, map[int32]int{}
	for _, t := range m.Topics {
		for _, p := range t.Partitions {
			v.Partitions++
			leads[p.Leader]++
			for _, r := range p.ISR {
				inSync[r]++
			}
			if p.Leader < 0 {
				v.Offline++
			} else if len(p.ISR) < len(p.Replicas) {
				v.UnderReplicated++
			}
		}
	}
	for _, b := range m.Brokers {
		bv := brokerView{ID: b.NodeID, Address: fmt.Sprintf("%s:%d", b.Host, b.Port), Leads: leads[b.NodeID], InSync: inSync[b.NodeID]}
		if b.Rack != nil {
			bv.Rack = *b.Rack
		}
		v.Brokers = append(v.Brokers, bv)
	}
	return v
}

func (a *app) printCluster(v clusterView) error {
	if a.output == "json" {
		return a.json(v)
	}
	fmt.Fprintf(a.Out, "cluster %s: %d topics, %d partitions, %d under-replicated, %d without a leader\n",
		v.ClusterID, v.Topics, v.Partitions, v.UnderReplicated, v.Offline)
	rows := [][]string{{"BROKER", "ADDRESS", "LEADS", "IN SYNC", ""}}
	for _, b := range v.Brokers {
		mark := ""
		if b.ID == v.Controller {
			mark = "controller"
		}
		rows = append(rows, []string{strconv.Itoa(int(b.ID)), b.Address, strconv.Itoa(b.Leads), strconv.Itoa(b.InSync), mark})
	}
	return a.table(rows)
}
