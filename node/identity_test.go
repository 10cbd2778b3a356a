package node

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/internal/vfs"
)

func TestIdentitySurvivesARestart(t *testing.T) {
	fs := vfs.NewMem(time.Now)
	d, err := openDataDir(fs, "/data", identity{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openDataDir(fs, "/data", identity{}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Fatalf("a second opener got in: %v", err)
	}
	if err := d.joined("cluster-1"); err != nil {
		t.Fatal(err)
	}
	crashed := fs.CrashClone(rand.New(rand.NewPCG(1, 2)), vfs.Crash{})
	again, err := openDataDir(crashed, "/data", identity{})
	if err != nil || again.identity != d.identity {
		t.Fatalf("%+v %v, want %+v", again, err, d.identity)
	}
}

// A run without synced acks makes the next one's disk doubtful, also over a kill; a run with them makes it good again.
func TestUnsyncedAcksAreRemembered(t *testing.T) {
	fs := vfs.NewMem(time.Now)
	for i, run := range []struct{ unsynced, keeps bool }{{false, true}, {true, true}, {true, false}, {false, false}, {false, true}} {
		d, err := openDataDir(fs, "/data", identity{})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.acksAre(run.unsynced); err != nil || d.keepsLog != run.keeps {
			t.Fatalf("run %d: keeps %v, want %v (%v)", i, d.keepsLog, run.keeps, err)
		}
		fs = fs.CrashClone(rand.New(rand.NewPCG(1, 2)), vfs.Crash{})
	}
}

func TestIdentityRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  identity
		err   string
	}{
		"another node":    {map[string]string{"meta.properties": "version=1\ndirectory.id=a\n"}, identity{Directory: "b"}, "another node"},
		"another cluster": {map[string]string{"meta.properties": "version=1\ndirectory.id=a\ncluster.id=x\n"}, identity{ClusterID: "y"}, "belongs to cluster x"},
		"kafka's":         {map[string]string{"meta.properties": "version=1\nnode.id=1\ndirectory.id=a\n"}, identity{}, "Apache Kafka"},
		"damaged":         {map[string]string{"meta.properties": "version=1\n"}, identity{}, "damaged"},
		"newer":           {map[string]string{"meta.properties": "version=2\ndirectory.id=a\n"}, identity{}, "version"},
		"not empty":       {map[string]string{"t-0": ""}, identity{}, "not empty"},
	} {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewMem(time.Now)
			if err := vfs.EnsureDir(fs, "/data"); err != nil {
				t.Fatal(err)
			}
			for n, text := range c.files {
				if err := vfs.WriteFileAtomic(fs, "/data/"+n, []byte(text)); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := openDataDir(fs, "/data", c.want); err == nil || !strings.Contains(err.Error(), c.err) {
				t.Fatalf("got %v, want %q", err, c.err)
			}
			if _, err := fs.Lock("/data/.lock"); err != nil {
				t.Fatalf("the lock stayed: %v", err)
			}
		})
	}
}
