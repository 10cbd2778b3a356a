package raftmeta

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barnabas-mq/barnabas/internal/vfs"
)

// A bolt log keeps stale entries below an installed snapshot; such a node became leader and fed 16 wrong entries to a
// voter. The same with the healing wrapper: the voter gets the snapshot.
func TestStaleEntriesBelowSnapshot(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind  string
		wrong int
	}{{"bolt", 16}, {"heal", 0}} {
		t.Run(c.kind, func(t *testing.T) {
			fl, dl := newLayer(t), newLayer(t)
			conf := raft.Configuration{Servers: []raft.Server{
				{ID: "F", Address: raft.ServerAddress(fl.Addr().String())},
				{ID: "D", Address: raft.ServerAddress(dl.Addr().String())},
				{ID: "L", Address: "127.0.0.1:1"},
			}}
			g := newGhost(t, "L", conf)
			f := mustLone(t, loneOpts{kind: c.kind, dir: t.TempDir(), id: "F", layer: fl, timeout: 5 * time.Second,
				seed: entries(conf, span{2, 74, 1}, span{75, 90, 2}), term: 2})
			ok, err := g.install(f.addr, 3, 100, 3, body(span{2, 74, 1}, span{75, 100, 3}))
			if err != nil || !ok {
				t.Fatalf("install: %v %v", ok, err)
			}
			if stale := f.entry(80) == data(80, 2); stale != (c.wrong > 0) {
				t.Fatalf("entry 80 after the install: %q", f.entry(80))
			}
			if r := g.append(f.addr, 3, 100, 3, 100, span{101, 101, 3}); !r.Success {
				t.Fatalf("append of 101 refused: %+v", r)
			}
			d := mustLone(t, loneOpts{kind: c.kind, dir: t.TempDir(), id: "D", layer: dl, timeout: 5 * time.Second,
				seed: entries(conf, span{2, 74, 1}), term: 3})
			var tr raft.TimeoutNowResponse
			must(t, g.TimeoutNow("F", f.addr, &raft.TimeoutNowRequest{RPCHeader: g.header()}, &tr))
			eventually(t, "D applies 101", func() bool { return d.f.copy()[101] != "" })
			wrong := 0
			d.f.mu.Lock()
			for _, v := range d.f.ever {
				if strings.HasPrefix(v, "t2-") {
					wrong++
				}
			}
			d.f.mu.Unlock()
			if wrong != c.wrong {
				t.Errorf("D applied %d stale entries, want %d", wrong, c.wrong)
			}
		})
	}
}

// raft-wal killed between "snapshot final" and "old log removed" ends below the snapshot and refuses every append.
func TestLogEndsBelowSnapshot(t *testing.T) {
	for _, kind := range []string{"wal", "heal"} {
		t.Run(kind, func(t *testing.T) {
			conf := servers("F", "D", "L")
			dir := t.TempDir()
			seedSnapshot(t, dir, conf, 100, 3, body(span{2, 74, 1}, span{75, 100, 3}))
			seedWAL(t, dir, entries(conf, span{2, 90, 1}))
			f := mustLone(t, loneOpts{kind: kind, dir: dir, id: "F"})
			g := newGhost(t, "L", conf)
			var ok bool
			for range 3 { // as often as the leader likes
				ok = g.append(f.addr, 3, 100, 3, 100, span{101, 101, 3}).Success
			}
			if want := kind == "heal"; ok != want {
				t.Fatalf("append accepted: %v, want %v", ok, want)
			}
		})
	}
}

// With a tail past the snapshot (or up to it, in another term) raft keeps lastLogIndex in memory and is sent the snapshot endlessly; healed, the
// instance is opened again and goes on.
func TestTailPastSnapshot(t *testing.T) {
	t.Parallel()
	conf := servers("F", "D", "L")
	snap := body(span{2, 74, 1}, span{75, 100, 3})
	for _, kind := range []string{"bolt", "wal", "heal"} {
		t.Run(kind, func(t *testing.T) {
			dir, g := t.TempDir(), newGhost(t, "L", conf)
			f := mustLone(t, loneOpts{kind: kind, dir: dir, id: "F", term: 2, seed: entries(conf, span{2, 74, 1}, span{75, 300, 2})})
			if ok, err := g.install(f.addr, 3, 100, 3, snap); err != nil || !ok {
				t.Fatalf("install: %v %v", ok, err)
			}
			if kind != "heal" {
				for range 3 {
					if r := g.append(f.addr, 3, 100, 3, 100, span{101, 101, 3}); r.Success || r.LastLog != 300 {
						t.Fatalf("the fault is gone, this wrapper may be too: %+v", r)
					}
					if ok, err := g.install(f.addr, 3, 100, 3, snap); kind == "bolt" && err == nil && !ok {
						t.Fatalf("install refused")
					}
				}
				return
			}
			if !f.reopen.Load() {
				t.Fatal("no reopen asked for")
			}
			var r raft.AppendEntriesResponse
			if err := g.AppendEntries("F", f.addr, &raft.AppendEntriesRequest{RPCHeader: g.header(), Term: 3}, &r); err == nil {
				t.Fatal("a request reached raft before it was opened again")
			}
			f.stop()
			f = mustLone(t, loneOpts{kind: kind, dir: dir, id: "F"})
			if r := g.append(f.addr, 3, 100, 3, 100, span{101, 101, 3}); !r.Success {
				t.Fatalf("after reopening: %+v", r)
			}
		})
	}
}

// A log that begins right after the snapshot, with a conflicting tail there: raft looks the previous entry up in the log
// only, and would be sent snapshots for ever.
func TestConflictRightAfterSnapshot(t *testing.T) {
	conf := servers("F", "D", "L")
	for _, kind := range []string{"bolt", "heal"} {
		t.Run(kind, func(t *testing.T) {
			f := mustLone(t, loneOpts{kind: kind, dir: t.TempDir(), id: "F", term: 1, seed: entries(conf)})
			g := newGhost(t, "L", conf)
			if ok, err := g.install(f.addr, 3, 100, 3, body(span{2, 100, 3})); err != nil || !ok {
				t.Fatalf("install: %v %v", ok, err)
			}
			if r := g.append(f.addr, 3, 100, 3, 100, span{101, 105, 3}); !r.Success {
				t.Fatalf("append: %+v", r)
			}
			r := g.append(f.addr, 4, 100, 3, 100, span{101, 102, 4})
			if want := kind == "heal"; r.Success != want {
				t.Fatalf("append over a conflicting tail: %v, want %v", r.Success, want)
			}
		})
	}
}

// An InstallSnapshot at or below the applied index is not installed; the leader learns that this node has it.
func TestInstallAtOrBelowApplied(t *testing.T) {
	conf := servers("F", "D", "L")
	f := mustLone(t, loneOpts{kind: "heal", dir: t.TempDir(), id: "F", term: 1, seed: entries(conf)})
	g := newGhost(t, "L", conf)
	if r := g.append(f.addr, 1, 1, 1, 60, span{2, 60, 1}); !r.Success {
		t.Fatalf("append: %+v", r)
	}
	eventually(t, "60 applied", func() bool { return f.f.copy()[60] != "" })
	for _, index := range []uint64{30, 60} {
		ok, err := g.install(f.addr, 1, index, 1, body(span{2, index, 9})) // its content would show
		if err != nil || !ok {
			t.Fatalf("install at %d: %v %v", index, ok, err)
		}
		if m := f.f.copy(); len(m) != 59 || m[20] != data(20, 1) {
			t.Fatalf("install at %d changed the state", index)
		}
		if metas, _ := f.healed.snaps.List(); len(metas) != 0 {
			t.Fatal("a snapshot was stored")
		}
	}
	// The same connection and the log go on.
	if r := g.append(f.addr, 1, 60, 1, 61, span{61, 61, 1}); !r.Success {
		t.Fatalf("append after: %+v", r)
	}
	// The race that the transport can not see is closed by the store.
	f.healed.snaps.receiving = func() uint64 { return 50 }
	if _, err := f.healed.snaps.Create(1, 50, 1, conf, 1, nil); err == nil {
		t.Fatal("the store accepts a received snapshot below the applied index")
	}
}

// Kill at every step of an InstallSnapshot, with each shape the old log can have. Every copy of the directory must open,
// and take the cluster's truth: the snapshot (again, if it was not final) and what follows it.
func TestKillAtEveryStepOfInstall(t *testing.T) {
	t.Parallel()
	conf := servers("F", "D", "L")
	truth := []span{{2, 74, 1}, {75, 100, 3}}
	for name, seed := range map[string][]*raft.Log{
		"behind":         entries(conf, span{2, 60, 1}),
		"stale-below":    entries(conf, span{2, 74, 1}, span{75, 90, 2}),
		"stale-exact":    entries(conf, span{2, 74, 1}, span{75, 100, 2}),
		"stale-past":     entries(conf, span{2, 74, 1}, span{75, 130, 2}),
		"match-and-past": entries(conf, append(truth, span{101, 104, 3})...),
		"empty":          entries(conf)[:1],
	} {
		t.Run(name, func(t *testing.T) {
			dir, g := t.TempDir(), newGhost(t, "L", conf)
			var kills []string
			step := func(s string) {
				to := filepath.Join(t.TempDir(), fmt.Sprintf("%02d-%s", len(kills), s))
				must(t, os.CopyFS(to, os.DirFS(dir)))
				kills = append(kills, to)
			}
			f := mustLone(t, loneOpts{kind: "heal", dir: dir, id: "F", term: 2, seed: seed, step: step})
			if ok, err := g.install(f.addr, 3, 100, 3, body(truth...)); err != nil || !ok {
				t.Fatalf("install: %v %v", ok, err)
			}
			step("end")
			if !f.reopen.Load() {
				g.append(f.addr, 3, 100, 3, 100, span{101, 101, 3}) // kills at the steps of the next append too
				step("appended")
			}
			f.stop()
			if len(kills) < 7 {
				t.Fatalf("only %d steps: %v", len(kills), kills)
			}
			for _, k := range kills {
				checkAfterKill(t, k, g, truth, name == "match-and-past")
			}
		})
	}
}

func checkAfterKill(t *testing.T, dir string, g *ghost, truth []span, tail bool) {
	t.Helper()
	f, err := openLone(t, loneOpts{kind: "heal", dir: dir, id: "F"})
	if err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	defer func() { f.stop() }()
	if tail && f.entry(104) != data(104, 3) {
		t.Errorf("%s: lost acknowledged entry 104: %s", dir, f.entry(104))
	}
	for try := 0; ; try++ { // as a leader does: append after 100, else send the snapshot
		if g.append(f.addr, 3, 100, 3, 101, span{101, 101, 3}).Success {
			break
		}
		if try == 3 {
			t.Fatalf("%s: append refused for ever", dir)
		}
		if ok, err := g.install(f.addr, 3, 100, 3, body(truth...)); err != nil || !ok {
			t.Fatalf("%s: install: %v %v", dir, ok, err)
		}
		if f.reopen.Load() {
			f.stop()
			f = mustLone(t, loneOpts{kind: "heal", dir: dir, id: "F"})
		}
	}
	eventually(t, dir+": 101 applied", func() bool { return f.f.copy()[101] != "" })
	want := map[uint64]string{}
	for _, s := range append(truth, span{101, 101, 3}) {
		for i := s.from; i <= s.to; i++ {
			want[i] = data(i, s.term)
		}
	}
	if got := f.f.copy(); !maps.Equal(got, want) {
		t.Errorf("%s: state differs from the truth: %d entries, want %d", dir, len(got), len(want))
	}
}

func seedSnapshot(t *testing.T, dir string, conf raft.Configuration, index, term uint64, body []byte) {
	t.Helper()
	s, err := openSnapStore(vfs.OS(), filepath.Join(dir, "snapshots"), quiet())
	must(t, err)
	k, err := s.Create(1, index, term, conf, 1, nil)
	must(t, err)
	_, err = k.Write(body)
	must(t, err)
	must(t, k.Close())
}

func seedWAL(t *testing.T, dir string, logs []*raft.Log) {
	t.Helper()
	must(t, vfs.EnsureDir(vfs.OS(), filepath.Join(dir, "wal")))
	l, err := openWAL(filepath.Join(dir, "wal"), 64<<10, quiet())
	must(t, err)
	must(t, l.StoreLogs(logs))
	must(t, l.Close())
}

// Rules of the wrapper alone.
func TestHealStoreRules(t *testing.T) {
	ref := snapRef{100, 3}
	run := func(spans ...span) *healStore {
		h := newHealStore(raft.NewInmemStore(), nil)
		if len(spans) > 0 {
			must(t, h.inner.StoreLogs(entries(raft.Configuration{}, spans...)[1:]))
		}
		return h
	}
	bounds := func(h *healStore) [2]uint64 {
		a, b, err := h.bounds()
		must(t, err)
		return [2]uint64{a, b}
	}
	for _, c := range []struct {
		name string
		log  []span
		want [2]uint64
		bad  bool
	}{
		{name: "empty"},
		{name: "holds", log: []span{{50, 120, 3}}, want: [2]uint64{50, 120}},
		{name: "right after", log: []span{{101, 120, 4}}, want: [2]uint64{101, 120}},
		{name: "below", log: []span{{50, 90, 3}}},
		{name: "other term", log: []span{{50, 120, 2}}},
		{name: "gap", log: []span{{102, 120, 4}}, want: [2]uint64{102, 120}, bad: true},
	} {
		h := run(c.log...)
		if err := h.open(ref); (err != nil) != c.bad {
			t.Errorf("%s: open: %v", c.name, err)
		}
		if got := bounds(h); got != c.want {
			t.Errorf("%s: log %v, want %v", c.name, got, c.want)
		}
	}
	// Without a snapshot the log must begin at 1.
	if err := run(span{5, 9, 1}).open(snapRef{}); err == nil {
		t.Error("a log from 5 without a snapshot was opened")
	}
	// A gap that the snapshot covers deletes; any other is refused.
	h := run(span{50, 90, 3})
	h.setSnapshot(ref)
	if err := h.StoreLog(&raft.Log{Index: 102, Term: 3}); err == nil || !strings.Contains(err.Error(), "gap") {
		t.Errorf("gap past the snapshot: %v", err)
	}
	must(t, h.StoreLog(&raft.Log{Index: 101, Term: 3}))
	if got := bounds(h); got != [2]uint64{101, 101} {
		t.Errorf("after the gap: %v", got)
	}
	var l raft.Log
	if err := h.GetLog(100, &l); err != nil || l.Term != 3 || l.Index != 100 {
		t.Errorf("the snapshot's last entry: %+v %v", l, err)
	}
	if err := h.GetLog(99, &l); err == nil {
		t.Error("entry 99 found")
	}
	if err := run().StoreLog(&raft.Log{Index: 7}); err == nil {
		t.Error("an empty log without a snapshot took entry 7")
	}
	if _, ok := any(h).(raft.MonotonicLogStore); ok {
		t.Error("raft would delete the whole log after each InstallSnapshot")
	}
}
