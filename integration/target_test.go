// Package integration runs whole clusters of real barnabas processes under real clients, old and new. Each test asks for its
// tools (internal/testtool); the harness, the proxy and the checkers lie in the folders below.
package integration

import (
	"fmt"
	"os"
	"testing"

	"github.com/barnabas-mq/barnabas/integration/harness"
	"github.com/barnabas-mq/barnabas/internal/testtool"
	"github.com/barnabas-mq/barnabas/internal/testtool/reference"
)

// target is what a test of real clients talks to: three barnabas nodes or, with BARNABAS_REFERENCE=1.1.1, a real Kafka 1.1.1 with
// a real ZooKeeper, or with BARNABAS_REFERENCE=4.4 a real Kafka 4.4: they tell a wrong test from a wrong broker.
type target struct {
	cluster   *harness.Cluster // nil for the reference
	brokers   []string
	bootstrap string
	zookeeper string
	replicas  int16 // the replication factor to ask for
}

func newTarget(t *testing.T) target {
	t.Helper()
	switch os.Getenv("BARNABAS_REFERENCE") {
	case "4.4":
		kafka := reference.Kafka44(t)
		return target{brokers: []string{kafka.Addr}, bootstrap: kafka.Addr, replicas: 1}
	case "1.1.1":
		zk := reference.ZooKeeper(t)
		kafka := reference.Kafka(t, testtool.Kafka111, zk.Addr)
		return target{brokers: []string{kafka.Addr}, bootstrap: kafka.Addr, zookeeper: zk.Addr, replicas: 1}
	}
	c := harness.Start(t, harness.Options{Nodes: 3})
	return target{cluster: c, brokers: c.Brokers(), bootstrap: c.Bootstrap(), zookeeper: c.ZooKeeper(), replicas: 3}
}

func (to target) factor() string { return fmt.Sprint(to.replicas) }
