package controller

import (
	"slices"
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// What old tools write below /config/changes is read by nobody, and goes after a quarter of an hour, as Kafka's controller sees to.
// What else is there stays, and a new leader begins to count anew.
func TestOldNoticesGo(t *testing.T) {
	f := newFixture(t, 1)
	write := func(path string, sequential bool) {
		t.Helper()
		if r := f.apply(&statepb.Command{Body: &statepb.Command_CreateZnode{CreateZnode: &statepb.CreateZnode{
			Path: path, Data: []byte("{}"), Sequential: sequential}}}); r.Code != statepb.Code_OK {
			t.Fatal(path, r)
		}
	}
	kept := func(want ...string) {
		t.Helper()
		var got []string
		f.v.ZnodeChildren("/config/changes", func(name string, _ *state.Znode) bool {
			got = append(got, name)
			return true
		})
		if !slices.Equal(got, want) {
			t.Fatalf("%v are there, want %v", got, want)
		}
	}
	const a, b, c = "config_change_0000000000", "config_change_0000000001", "config_change_0000000003"
	write("/config/changes/config_change_", true) // before this term
	f.begin(0)
	f.run(5*time.Minute, 1)
	write("/config/changes/config_change_", true)
	write("/config/changes/mine", false)
	f.run(9*time.Minute, 1)
	kept(a, b, "mine")
	f.run(2*time.Minute, 1)
	kept(b, "mine")
	// The next leader knows nothing of its age.
	f.begin(0)
	f.run(14*time.Minute, 1)
	write("/config/changes/config_change_", true)
	kept(b, c, "mine")
	f.run(2*time.Minute, 1)
	kept(c, "mine")
	// Unknown outcomes are decided again.
	f.now += KeepNotices
	f.c.Heard(1, f.epoch[1], f.v.Index(), nil, f.now)
	ds, _ := f.c.Decide(f.now)
	if len(ds) != 1 || ds[0].Command.GetDeleteZnode().GetPath() != "/config/changes/"+c {
		t.Fatal(ds)
	}
	f.c.Settled(ds[0].ID, nil, f.now)
	f.run(KeepNotices+time.Second, 1)
	kept("mine")
	// Many at once go in turns.
	for range 3 * maxNotices {
		write("/config/changes/config_change_", true)
	}
	f.run(KeepNotices+time.Second, 1)
	kept("mine")
}
