package testtool

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestFindNamesMissingAndFoundTools(t *testing.T) {
	dir := t.TempDir()
	for _, tool := range []Tool{Kafka081, Kafka082, Kafka111, Kafka44, ZooKeeper395, Programs, Python, PyKafka, Node, Sarama} {
		if _, err := find(dir, tool); !errors.Is(err, os.ErrNotExist) {
			if tool == Node && err != nil {
				continue // this machine has no Node.js at all
			}
			t.Errorf("find(%s) in an empty folder: err = %v, want not-exist", tool, err)
		}
	}
	lib := filepath.Join(dir, string(Kafka082), "lib")
	if err := os.MkdirAll(lib, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := find(dir, Kafka082); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder without jars counts as the tool: err = %v", err)
	}
	if err := os.WriteFile(filepath.Join(lib, "a.jar"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := find(dir, Kafka082); err != nil || got != lib {
		t.Errorf("find = %q, %v; want %q", got, err, lib)
	}
}

func TestDirFollowsTheEnvironment(t *testing.T) {
	t.Setenv("BARNABAS_TOOLS", "/somewhere/else")
	if got := Dir(t); got != "/somewhere/else" {
		t.Errorf("Dir = %q", got)
	}
}

// recorder is a testing.TB that notes how a test ended instead of ending it.
type recorder struct {
	testing.TB
	skipped, failed bool
}

func (r *recorder) Helper()               {}
func (r *recorder) Skipf(string, ...any)  { r.skipped = true; panic(r) }
func (r *recorder) Fatalf(string, ...any) { r.failed = true; panic(r) }

func need(t *testing.T) *recorder {
	r := &recorder{TB: t}
	func() {
		defer func() { _ = recover() }()
		Need(r, Kafka082)
	}()
	return r
}

func TestNeedSkipsLocallyAndFailsUnderCI(t *testing.T) {
	if testing.Short() {
		if r := need(t); !r.skipped {
			t.Error("the short run needs a tool")
		}
		return
	}
	t.Setenv("BARNABAS_TOOLS", t.TempDir())
	t.Setenv("CI", "")
	if r := need(t); !r.skipped || r.failed {
		t.Errorf("without CI: skipped %v, failed %v; want a skip", r.skipped, r.failed)
	}
	t.Setenv("CI", "true")
	if r := need(t); r.skipped || !r.failed {
		t.Errorf("with CI=true: skipped %v, failed %v; want a failure", r.skipped, r.failed)
	}
}

// Ports that a test was given are nobody else's until it ends, whether its program listens yet or not.
func TestFreePortsAreReserved(t *testing.T) {
	var first int
	t.Run("while it runs", func(t *testing.T) {
		first = FreePorts(t, 3)
		for _, from := range []int{first - 1, first, first + 2} {
			if reserve(t, from, 2) != nil {
				t.Errorf("%d and %d are given away twice", from, from+1)
			}
		}
	})
	Eventually(t, time.Minute, func() error { // another test may have been given them meanwhile
		if free := reserve(t, first, 3); free != nil {
			free()
			return nil
		}
		return errors.New("they are still reserved after its end")
	})
}
