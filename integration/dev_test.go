package integration

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/integration/check"
	"github.com/barnabas-mq/barnabas/integration/harness"
	"github.com/barnabas-mq/barnabas/internal/testtool"
)

// clusterFile is DIR/cluster.json, as users' scripts read it.
type clusterFile struct {
	Nodes []struct {
		ID        int    `json:"id"`
		Pid       int    `json:"pid"`
		Kafka     string `json:"kafka"`
		ZooKeeper string `json:"zookeeper"`
		Admin     string `json:"admin"`
		Config    string `json:"config"`
	} `json:"nodes"`
}

func (f clusterFile) brokers() (all []string) {
	for _, n := range f.Nodes {
		all = append(all, n.Kafka)
	}
	return all
}

// dev starts `barnabas dev` in the folder and returns when it has written cluster.json.
func dev(t *testing.T, dir string, args ...string) (*testtool.Process, clusterFile) {
	t.Helper()
	p := testtool.Start(t, "dev", exec.Command(harness.Binary(t, false), append([]string{"dev", "--dir", dir}, args...)...))
	var f clusterFile
	testtool.Eventually(t, harness.StartLimit, func() error {
		if !p.Alive() {
			t.Fatalf("dev ended:\n%s", p.Tail(40))
		}
		data, err := os.ReadFile(filepath.Join(dir, "cluster.json"))
		if err != nil {
			return err
		}
		f = clusterFile{}
		if err := json.Unmarshal(data, &f); err != nil {
			return err
		}
		for _, n := range f.Nodes {
			if n.Pid == 0 || syscall.Kill(n.Pid, 0) != nil {
				return fmt.Errorf("node %d, pid %d, does not run", n.ID, n.Pid)
			}
		}
		return nil
	})
	return p, f
}

// TestDev is the life of a local cluster as conventions promise it: one command, cluster.json, a node killed and started by
// hand, a stop that leaves nothing running, and the same folder taken up again.
func TestDev(t *testing.T) {
	dir := filepath.Join(testtool.Folder(t), "cluster")
	first := testtool.FreePorts(t, 12)
	flags := []string{"--nodes", "3", "--kafka-port", strconv.Itoa(first), "--zk-port", strconv.Itoa(first + 3),
		"--admin-port", strconv.Itoa(first + 6), "--cluster-port", strconv.Itoa(first + 9)}
	supervisor, f := dev(t, dir, flags...)
	if len(f.Nodes) != 3 {
		t.Fatalf("cluster.json names %d nodes: %+v", len(f.Nodes), f)
	}
	for i, n := range f.Nodes {
		if want := fmt.Sprintf("127.0.0.1:%d", first+i); n.Kafka != want {
			t.Errorf("node %d is at %s, want %s", n.ID, n.Kafka, want)
		}
		for _, addr := range []string{n.Kafka, n.ZooKeeper, n.Admin} {
			c, err := net.DialTimeout("tcp", addr, time.Minute)
			if err != nil {
				t.Fatalf("cluster.json is written before node %d serves: %v", n.ID, err)
			}
			c.Close()
		}
	}
	harness.CreateTopic(t, f.brokers(), "kept", 3, 3, nil)
	var h check.History
	produce := func(n int, name string) {
		p := harness.Produce(t, f.brokers(), "kept", &h, harness.ProducerOptions{Name: name})
		p.AwaitAcks(t, n)
		if failed := p.Stop(t); len(failed) > 0 {
			t.Errorf("%d records failed, first: %v", len(failed), failed[0])
		}
	}
	produce(200, "first")

	victim := f.Nodes[1]
	if err := syscall.Kill(victim.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	produce(200, "second")
	if !supervisor.Alive() {
		t.Fatal("dev ended with one of its nodes")
	}
	byHand := testtool.Start(t, "by-hand", exec.Command(harness.Binary(t, false), "server", "--config", victim.Config))
	harness.AwaitLeaders(t, victim.Kafka, "kept", 3)
	testtool.Eventually(t, harness.StartLimit, func() error {
		data, err := os.ReadFile(filepath.Join(dir, "cluster.json"))
		if err == nil && !strings.Contains(string(data), strconv.Itoa(byHand.Pid())) {
			err = fmt.Errorf("cluster.json does not name pid %d of the node started by hand", byHand.Pid())
		}
		return err
	})
	if err := supervisor.Stop(time.Minute); err != nil {
		t.Fatalf("dev did not stop in good order: %v", err)
	}
	for _, n := range []int{f.Nodes[0].Pid, f.Nodes[2].Pid} {
		if syscall.Kill(n, 0) == nil {
			t.Errorf("pid %d outlived dev", n)
		}
	}
	if err := byHand.Stop(time.Minute); err != nil {
		t.Errorf("the node started by hand: %v", err)
	}

	again, f := dev(t, dir)
	for _, b := range f.brokers() {
		harness.AwaitLeaders(t, b, "kept", 3)
	}
	produce(200, "third")
	final := harness.ReadAll(t, f.brokers(), "kept", "final")
	h.Fail(t, final, append(append(check.NoLoss(h.Acks(), final), check.NoDuplicate(final)...), check.OffsetUnique(h.Acks(), final)...))
	if err := again.Stop(time.Minute); err != nil {
		t.Errorf("dev, the second time: %v", err)
	}
}
