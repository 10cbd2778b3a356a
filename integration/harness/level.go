package harness

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/barnabas-mq/barnabas/internal/testtool"
)

// TaggedBinary builds barnabas with a build tag, for tests in which builds of two kinds live in one cluster.
func TaggedBinary(t testing.TB, tag string) string {
	t.Helper()
	root := testtool.Root(t)
	bin := filepath.Join(root, "bin", "test", "barnabas-"+tag)
	cmd := exec.Command("go", "build", "-tags", tag, "-o", bin, "./cmd/barnabas")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cannot build barnabas with tag %s: %v\n%s", tag, err, out)
	}
	return bin
}

// Use has the node's next run be of another binary.
func (n *Node) Use(binary string) { n.binary = binary }
