package cli

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/barnabas-mq/barnabas/cli/devcluster"
)

const devHelp = `Run a cluster of one or three brokers on this machine until Ctrl-C.

Everything is in one directory; the same directory starts again as it was. Node n listens on the first port of each
kind plus n-1: Kafka 9092, ZooKeeper 2181, health and metrics 8080, cluster 7946, all on 127.0.0.1. A node that dies is
left dead; "barnabas server --config DIR/<n>/barnabas.properties" starts it again. DIR/cluster.json tells scripts where
everything is, from when all nodes serve until they stop.`

func (a *app) devCommand() *cobra.Command {
	var c devcluster.Config
	cmd := &cobra.Command{Use: "dev", Short: "Run a local cluster", Long: devHelp, Args: cobra.NoArgs,
		Example: "  barnabas dev\n  barnabas dev --nodes 3 --dir /tmp/three --kafka-port 19092",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("nodes") && c.Nodes == 0 {
				return usagef("--nodes 0: a local cluster has 1 or 3")
			}
			c.Log = slog.New(&lineHandler{w: a.Err})
			fmt.Fprintf(a.Err, "starting in %s ...\n", c.Dir)
			return devcluster.Run(cmd.Context(), c, func(cl devcluster.Cluster) { a.printDev(c.Dir, cl) })
		}}
	f := cmd.Flags()
	f.IntVarP(&c.Nodes, "nodes", "n", 0, "number of brokers, 1 or 3 (default: 1, or as the directory was made)")
	f.StringVarP(&c.Dir, "dir", "d", "barnabas-dev", "directory of the cluster")
	f.IntVar(&c.KafkaPort, "kafka-port", 0, "first Kafka port (default 9092)")
	f.IntVar(&c.ZooKeeperPort, "zk-port", 0, "first ZooKeeper port (default 2181)")
	f.IntVar(&c.AdminPort, "admin-port", 0, "first port for health and metrics (default 8080)")
	f.IntVar(&c.PeerPort, "cluster-port", 0, "first port between nodes (default 7946)")
	return cmd
}

func (a *app) printDev(dir string, cl devcluster.Cluster) {
	if a.output == "json" {
		_ = a.json(cl) // a closed terminal is no reason to stop the brokers
		return
	}
	rows := [][]string{{"NODE", "PID", "KAFKA", "ZOOKEEPER", "ADMIN", "CONFIGURATION"}}
	var kafka, zoo []string
	for _, n := range cl.Nodes {
		rows = append(rows, []string{strconv.Itoa(n.ID), strconv.Itoa(n.PID), n.Kafka, n.ZooKeeper, "http://" + n.Admin, n.Config})
		kafka, zoo = append(kafka, n.Kafka), append(zoo, n.ZooKeeper)
	}
	_ = a.table(rows)
	fmt.Fprintf(a.Out, "\nready: --bootstrap-server %s, --zookeeper %s; Ctrl-C stops all nodes\n", strings.Join(kafka, ","), strings.Join(zoo, ","))
}

// lineHandler prints a log record as one plain line, for people.
type lineHandler struct {
	w interface{ Write([]byte) (int, error) }
}

func (h *lineHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }
func (h *lineHandler) WithAttrs([]slog.Attr) slog.Handler           { return h }
func (h *lineHandler) WithGroup(string) slog.Handler                { return h }
func (h *lineHandler) Handle(_ context.Context, r slog.Record) error {
	line := r.Message
	r.Attrs(func(at slog.Attr) bool { line += fmt.Sprintf(" (%s %v)", at.Key, at.Value); return true })
	_, err := fmt.Fprintln(h.w, line)
	return err
}
