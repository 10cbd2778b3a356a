package main

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/barnabas-mq/barnabas/internal/testtool"
)

// The demo, in small: it must go through with Java members and with our own, whichever broker dies.
func TestDemo(t *testing.T) {
	if testing.Short() {
		t.Skip("runs whole clusters: not in the short run")
	}
	bin := filepath.Join(t.TempDir(), "barnabas")
	if out, err := exec.Command("go", "build", "-o", bin, "../../cmd/barnabas").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	for _, c := range []struct {
		name string
		kill int
		java bool
	}{{"java", 3, true}, {"ours", 1, false}} {
		t.Run(c.name, func(t *testing.T) {
			tools := t.TempDir()
			if c.java {
				testtool.Need(t, testtool.Java)
				testtool.Need(t, testtool.Kafka082)
				tools = filepath.Dir(testtool.Need(t, testtool.Programs))
			}
			runtime.LockOSThread() // the children die with this thread
			defer runtime.UnlockOSThread()
			first := testtool.FreePorts(t, 12)
			r, dir, err := run(t.Context(), options{bin: bin, tools: tools, dir: testtool.Folder(t), members: 4, partitions: 12, limit: 120_000, kill: c.kill,
				kafkaPort: first, zkPort: first + 3, admin: first + 6, peers: first + 9})
			if err != nil {
				t.Fatalf("%v (logs in %s)", err, dir)
			}
			r.print(t.Output())
			if r.bad() || len(r.faults) > 0 || r.sent != 120_000 {
				t.Errorf("%+v", r)
			}
		})
	}
}
