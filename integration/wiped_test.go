package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/barnabas-mq/barnabas/integration/harness"
	"github.com/barnabas-mq/barnabas/internal/testtool"
)

// A voter whose directory was emptied must not vote: with two of three emptied, their blank logs would be the majority, and
// every topic would be gone. It ends and says why; a cluster that is new as a whole starts all the same.
func TestEmptiedVoter(t *testing.T) {
	c := harness.Start(t, harness.Options{Nodes: 3})
	harness.CreateTopic(t, c.Brokers(), "kept", 3, 3, nil)
	wipe := func(n *harness.Node) {
		n.Kill()
		if err := os.RemoveAll(filepath.Join(filepath.Dir(n.Config), "data")); err != nil {
			t.Fatal(err)
		}
	}
	one, two, three := c.Node(1), c.Node(2), c.Node(3)
	wipe(one)
	one.Start()
	testtool.Eventually(t, harness.StartLimit, func() error { return ended(one) })
	if log := one.Log(20); !strings.Contains(log, "put its old directory back") {
		t.Errorf("node 1 does not say why it ended:\n%s", log)
	}
	harness.CreateTopic(t, []string{two.Kafka, three.Kafka}, "later", 1, 2, nil) // the others go on

	// Two of three have lost everything: the third cannot decide alone, and they do not decide without it.
	three.Stop()
	wipe(two)
	one.Start()
	two.Start()
	three.Start()
	for _, n := range []*harness.Node{one, two} {
		testtool.Eventually(t, harness.StartLimit, func() error {
			if !strings.Contains(n.Log(50), "takes part once all other voters have said that it is new") {
				return fmt.Errorf("node %d does not say that it waits", n.ID)
			}
			return nil
		})
		if log := n.Log(50); strings.Contains(log, "node started") {
			t.Fatalf("node %d, emptied, takes part:\n%s", n.ID, log)
		}
	}
}

func ended(n *harness.Node) error {
	if n.Alive() {
		return fmt.Errorf("node %d still runs", n.ID)
	}
	return nil
}
