package raftmeta

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/types"
)

const smallSegment = 8 << 10

func cmds(from, to uint64) (ls []*raft.Log) {
	for i := from; i <= to; i++ {
		ls = append(ls, &raft.Log{Index: i, Term: 1, Data: make([]byte, 400)})
	}
	return ls
}

func openBareWAL(t *testing.T, dir string, meta types.MetaStore) *wal.WAL {
	t.Helper()
	w, err := wal.Open(dir, wal.WithMetaStore(meta), wal.WithSegmentSize(smallSegment), wal.WithLogger(hclog.NewNullLogger()))
	must(t, err)
	return w
}

func readable(l raft.LogStore, from, to uint64) error {
	for i := from; i <= to; i++ {
		var e raft.Log
		if err := l.GetLog(i, &e); err != nil {
			return err
		}
	}
	return nil
}

// A truncated tail, then a restart.
func TestWALTruncatedSegmentAfterReopen(t *testing.T) {
	seed := func(dir string) {
		l, err := openWAL(dir, smallSegment, quiet())
		must(t, err)
		must(t, l.StoreLogs(cmds(1, 10)))
		must(t, l.DeleteRange(8, 10))
		must(t, l.StoreLogs(cmds(8, 9)))
		must(t, l.Close())
	}
	bare := t.TempDir()
	seed(bare)
	meta := &metadb.BoltMetaDB{}
	w := openBareWAL(t, bare, meta)
	if readable(w, 1, 9) == nil {
		t.Error("the fault is gone from raft-wal: walFiler.Open may go too")
	}
	must(t, w.Close())
	must(t, meta.Close())
	l, err := openWAL(bare, smallSegment, quiet())
	must(t, err)
	must(t, readable(l, 1, 9))
	if readable(l, 10, 10) == nil {
		t.Error("entry 10 came back")
	}
	must(t, l.StoreLogs(cmds(10, 60))) // over more rotations
	must(t, l.Close())
	l, err = openWAL(bare, smallSegment, quiet())
	must(t, err)
	must(t, readable(l, 1, 60))
	must(t, l.Close())
}

// blockedMeta stops at the commit of a rotation, as a kill there would.
type blockedMeta struct {
	*metadb.BoltMetaDB
	on      bool
	reached chan struct{}
	goOn    chan struct{}
}

func (m *blockedMeta) CommitState(s types.PersistentState) error {
	if m.on {
		m.reached <- struct{}{}
		<-m.goOn
	}
	return m.BoltMetaDB.CommitState(s)
}

// A kill between a segment's last append and its rotation.
func TestWALKillBeforeRotation(t *testing.T) {
	dir := t.TempDir()
	m := &blockedMeta{BoltMetaDB: &metadb.BoltMetaDB{}, reached: make(chan struct{}, 1), goOn: make(chan struct{})}
	w := openBareWAL(t, dir, m)
	m.on = true
	next := uint64(1)
	for sealed := false; !sealed; next++ {
		must(t, w.StoreLogs(cmds(next, next)))
		files, err := filepath.Glob(filepath.Join(dir, "*.wal"))
		must(t, err)
		if len(files) != 1 {
			t.Fatalf("segments: %v", files)
		}
		sealed = next*400 > smallSegment*3/4 && len(m.reached) == 1
		if next > 40 {
			t.Fatal("no rotation")
		}
		if next*400 > smallSegment-3*400 && !sealed { // give the rotation goroutine its turn
			eventuallyOr(func() bool { return len(m.reached) == 1 })
			sealed = len(m.reached) == 1
		}
	}
	last := next - 1
	copies := []string{filepath.Join(t.TempDir(), "bare"), filepath.Join(t.TempDir(), "ours")}
	for _, c := range copies {
		must(t, os.CopyFS(c, os.DirFS(dir)))
	}
	close(m.goOn)
	must(t, w.StoreLogs(cmds(next, next))) // waits for the rotation
	must(t, w.Close())
	must(t, m.Close())

	meta := &metadb.BoltMetaDB{}
	b := openBareWAL(t, copies[0], meta)
	if err := b.StoreLogs(cmds(last+1, last+1)); err == nil {
		t.Error("the fault is gone from raft-wal: finishRotation may go too")
	}
	must(t, b.Close())
	must(t, meta.Close())
	l, err := openWAL(copies[1], smallSegment, quiet())
	must(t, err)
	must(t, readable(l, 1, last))
	must(t, l.StoreLogs(cmds(last+1, last+50)))
	must(t, l.Close())
	l, err = openWAL(copies[1], smallSegment, quiet())
	must(t, err)
	must(t, readable(l, 1, last+50))
	must(t, l.Close())
}

// Truncations right after appends that seal a segment.
func TestWALDeleteDuringRotation(t *testing.T) {
	dir := t.TempDir()
	l, err := openWAL(dir, smallSegment, quiet())
	must(t, err)
	last := uint64(0)
	for round := range 60 {
		must(t, l.StoreLogs(cmds(last+1, last+9)))
		last += 9
		if round%2 == 0 {
			must(t, l.DeleteRange(last-1, last))
			last -= 2
		}
		if got, _ := l.LastIndex(); got != last {
			t.Fatalf("round %d: last %d, want %d", round, got, last)
		}
	}
	must(t, readable(l, 1, last))
	must(t, l.Close())
	l, err = openWAL(dir, smallSegment, quiet())
	must(t, err)
	must(t, readable(l, 1, last))
	must(t, l.StoreLogs(cmds(last+1, last+9)))
	must(t, l.Close())
}

// Entries deleted from the front of the tail segment.
func TestWALDeletedPrefix(t *testing.T) {
	l, err := openWAL(t.TempDir(), smallSegment, quiet())
	must(t, err)
	defer func() { must(t, l.Close()) }()
	must(t, l.StoreLogs(cmds(1, 10)))
	must(t, l.DeleteRange(1, 6))
	if readable(l.WAL, 6, 6) != nil {
		t.Error("the fault is gone from raft-wal: walLog.GetLog may go too")
	}
	if readable(l, 6, 6) == nil {
		t.Error("entry 6 is still there")
	}
	must(t, readable(l, 7, 10))
}
