package integration

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/integration/harness"
	"github.com/barnabas-mq/barnabas/internal/testtool"
)

// A rolling upgrade: two nodes of a build that also serves feature level 2 live with one that serves level 1. What belongs
// to level 2 is refused until every live broker can, so the older node is never handed what it does not know; then the
// level is raised, and the older build refuses to come back.
func TestOneLevelOlderInTheQuorum(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a cluster")
	}
	newer := harness.TaggedBinary(t, "barnabas_level2")
	c := harness.Prepare(t, harness.Options{Nodes: 3})
	older := harness.Binary(t, false)
	for _, n := range c.Nodes {
		n.Use(newer)
		if n.ID == 3 {
			n.Use(older)
		}
		n.Start()
	}
	c.AwaitServing()
	harness.CreateTopic(t, c.Brokers(), "level", 3, 3, nil)

	ask(t, c.Node(1), "/v1/cluster/level?level=2", http.StatusConflict, "broker 3 serves levels 1 to 1")
	ask(t, c.Node(3), "/v1/cluster/level?level=2", http.StatusConflict, "serves feature levels 1 to 1")
	ask(t, c.Node(1), "/v1/annotate?note=x", http.StatusConflict, "needs feature level 2")
	ask(t, c.Node(2), "/v1/cluster/level", http.StatusOK, `"level":1`)
	c.AwaitServing() // nobody was hurt by any of this

	c.Node(3).Stop()
	c.Node(3).Use(newer)
	c.Node(3).Start()
	c.AwaitServing()
	ask(t, c.Node(1), "/v1/cluster/level", http.StatusOK, `"level":2`)
	ask(t, c.Node(3), "/v1/annotate?note=x", http.StatusOK, "{}")

	c.Node(3).Stop()
	c.Node(3).Use(older)
	c.Node(3).Start()
	testtool.Eventually(t, time.Minute, func() error {
		if c.Node(3).Alive() {
			return fmt.Errorf("a build without level 2 runs in a cluster at level 2:\n%s", c.Node(3).Log(20))
		}
		return nil
	})
	if log := c.Node(3).Log(200); !strings.Contains(log, "newer build") {
		t.Fatalf("the older build does not say what to do:\n%s", log)
	}
	c.Node(3).Use(newer)
	c.Node(3).Start()
	c.AwaitServing()
}

// ask posts to a node's admin port and checks the answer.
func ask(t *testing.T, n *harness.Node, path string, code int, want string) {
	t.Helper()
	resp, err := http.Post("http://"+n.Admin+path, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != code || !strings.Contains(string(body), want) {
		t.Fatalf("node %d, %s: %d %s, want %d with %q", n.ID, path, resp.StatusCode, body, code, want)
	}
}
