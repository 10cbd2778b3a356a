// Package devcluster runs one or three brokers on this machine's loopback as child processes: the `dev` verb.
//
// A directory holds everything: dev.json (ids and ports, made once), <n>/barnabas.properties, <n>/data, <n>/barnabas.log,
// and cluster.json while the cluster serves. Directory ids and the cluster id are made before the first start, so that all
// nodes bootstrap the same quorum. Run owns its children and waits for their end; it never touches another process.
// A child that dies is left dead; `barnabas server --config <n>/barnabas.properties` starts it again, by hand.
package devcluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Config says what to run. Ports are the first of each kind; node n has port + n - 1. A port of 0 is the default (Kafka
// 9092, ZooKeeper 2181, admin 8080, cluster 7946) or what the directory was made with.
type Config struct {
	Dir                                           string
	Nodes                                         int // 1 or 3; 0: as the directory was made, else 1
	KafkaPort, ZooKeeperPort, AdminPort, PeerPort int
	Executable                                    string        // the barnabas binary
	ReadyTimeout                                  time.Duration // how long the nodes may take to serve; 0: one minute
	StopTimeout                                   time.Duration // how long a node may take to stop before it is killed; 0: 20 s
	Log                                           *slog.Logger  // one line per event of a node
}

// Cluster is cluster.json.
type Cluster struct {
	Nodes []Node `json:"nodes"`
}

// Node is one broker process. Addresses are host:port, Config an absolute path.
type Node struct {
	ID        int    `json:"id"`
	PID       int    `json:"pid"`
	Kafka     string `json:"kafka"`
	ZooKeeper string `json:"zookeeper"`
	Admin     string `json:"admin"`
	Config    string `json:"config"`
}

// Run prepares the directory, starts the nodes, waits until all of them serve, writes cluster.json, calls ready, and
// returns when ctx ends and every child has stopped. It fails, with nothing left running, when the directory belongs to
// something else or to a running `dev`, when a port is taken, or when a node does not come to serve.
func Run(ctx context.Context, c Config, ready func(Cluster)) error {
	c, err := c.withDefaults()
	if err != nil {
		return err
	}
	dir, err := open(c)
	if err != nil {
		return err
	}
	defer dir.close()
	if err := dir.portsFree(); err != nil {
		return err
	}
	if err := os.Remove(dir.clusterFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s, err := start(c, dir)
	if err != nil {
		return err
	}
	if err := s.waitReady(ctx); err != nil {
		s.stop()
		return err
	}
	cluster := s.cluster()
	if err := writeCluster(dir.path, cluster); err != nil {
		s.stop()
		return err
	}
	s.reportDeaths()
	ready(cluster)
	<-ctx.Done()
	c.Log.Info("stopping ...")
	s.stop()
	return os.Remove(dir.clusterFile())
}

func (c Config) withDefaults() (Config, error) {
	var err error
	if c.Nodes != 0 && c.Nodes != 1 && c.Nodes != 3 {
		return c, fmt.Errorf("%d nodes: a local cluster has 1 or 3", c.Nodes)
	}
	for _, p := range []struct {
		name string
		port int
	}{{"Kafka", c.KafkaPort}, {"ZooKeeper", c.ZooKeeperPort}, {"admin", c.AdminPort}, {"cluster", c.PeerPort}} {
		if p.port < 0 || p.port > 65533 {
			return c, fmt.Errorf("the first %s port is %d: use 1 to 65533", p.name, p.port)
		}
	}
	if c.Dir, err = filepath.Abs(c.Dir); err != nil {
		return c, err
	}
	if strings.ContainsAny(c.Dir, ",\\\n") || strings.Contains(c.Dir, "${") {
		return c, fmt.Errorf("the directory %q has a comma, a backslash or ${ in its path: use another", c.Dir)
	}
	if c.Executable == "" {
		if c.Executable, err = os.Executable(); err != nil {
			return c, err
		}
	}
	if c.ReadyTimeout == 0 {
		c.ReadyTimeout = time.Minute
	}
	if c.StopTimeout == 0 {
		c.StopTimeout = 20 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// portsFree finds every port that something else listens on, before the first child starts.
func (d *directory) portsFree() error {
	var taken []string
	for _, n := range d.manifest.Nodes {
		for _, p := range n.ports() {
			l, err := net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(p.port)))
			if err != nil {
				taken = append(taken, fmt.Sprintf("port %d (%s of node %d): %v", p.port, p.name, n.ID, err))
				continue
			}
			if err := l.Close(); err != nil {
				return err
			}
		}
	}
	if taken == nil {
		return nil
	}
	return fmt.Errorf("cannot listen on\n  %s\nStop what listens there, or choose other ports with --kafka-port, --zk-port, --admin-port, --cluster-port and a new --dir",
		strings.Join(taken, "\n  "))
}

// Read returns the cluster.json of a directory.
func Read(dir string) (Cluster, error) {
	var c Cluster
	text, err := os.ReadFile(filepath.Join(dir, clusterName))
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return c, fmt.Errorf("%s is not a cluster.json: %w", filepath.Join(dir, clusterName), err)
	}
	return c, nil
}

// Announce sets the pid of the node with this configuration file in the cluster.json beside its folder. It does nothing
// when there is none or when it does not list that file: the server is not part of a local cluster.
func Announce(configFile string, pid int) error {
	if configFile == "" {
		return nil
	}
	file, err := filepath.Abs(configFile)
	if err != nil {
		return err
	}
	dir := filepath.Dir(filepath.Dir(file))
	if _, err := os.Stat(filepath.Join(dir, clusterName)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	unlock, err := lock(filepath.Join(dir, clusterLock), true)
	if err != nil {
		return err
	}
	defer unlock()
	c, err := Read(dir)
	if err != nil {
		return err
	}
	for i := range c.Nodes {
		if c.Nodes[i].Config == file && c.Nodes[i].PID != pid {
			c.Nodes[i].PID = pid
			return replace(filepath.Join(dir, clusterName), c)
		}
	}
	return nil
}

// writeCluster writes cluster.json under its lock.
func writeCluster(dir string, c Cluster) error {
	unlock, err := lock(filepath.Join(dir, clusterLock), true)
	if err != nil {
		return err
	}
	defer unlock()
	return replace(filepath.Join(dir, clusterName), c)
}
