package raftmeta

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barnabas-mq/barnabas/internal/vfs"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

func writeSnap(s *snapStore, index, term uint64, body []byte) error {
	k, err := s.Create(1, index, term, servers("a", "b"), 1, nil)
	if err != nil {
		return err
	}
	for half := range 2 {
		if _, err := k.Write(body[half*len(body)/2 : (half+1)*len(body)/2]); err != nil {
			return errors.Join(err, k.Cancel())
		}
	}
	return k.Close()
}

func memSnaps(t *testing.T, fs vfs.FS) *snapStore {
	t.Helper()
	s, err := openSnapStore(fs, "/d/snapshots", quiet())
	must(t, err)
	return s
}

func TestSnapshotRoundTrip(t *testing.T) {
	fs := vfs.NewMem(time.Now)
	s := memSnaps(t, fs)
	bodies := map[uint64][]byte{}
	for i := uint64(1); i <= 4; i++ {
		bodies[i] = bytes.Repeat([]byte{byte(i)}, int(10000*i))
		must(t, writeSnap(s, i*10, i, bodies[i]))
	}
	metas, err := s.List()
	must(t, err)
	if len(metas) != snapKeep || metas[0].Index != 40 || metas[1].Index != 30 {
		t.Fatalf("kept %v", metas)
	}
	meta, r, err := s.Open(metas[0].ID)
	must(t, err)
	got, err := io.ReadAll(r)
	must(t, errors.Join(err, r.Close()))
	if !bytes.Equal(got, bodies[4]) || meta.Size != int64(len(got)) || meta.Term != 4 || len(meta.Configuration.Servers) != 2 {
		t.Errorf("read %d bytes, meta %+v", len(got), meta)
	}
	// An unfinished one is never seen and goes at the next open.
	k, err := s.Create(1, 50, 5, raft.Configuration{}, 1, nil)
	must(t, err)
	_, err = k.Write([]byte("half"))
	must(t, err)
	s = memSnaps(t, fs)
	names, err := fs.ReadDir(s.dir)
	must(t, err)
	if strings.Contains(strings.Join(names, " "), snapTmp) || len(names) != 2 {
		t.Errorf("left: %v", names)
	}
}

// A changed byte anywhere is found before a reader gets the first one.
func TestSnapshotCorruption(t *testing.T) {
	fs := vfs.NewMem(time.Now)
	s := memSnaps(t, fs)
	must(t, writeSnap(s, 10, 1, bytes.Repeat([]byte("body"), 500)))
	name := snapName(10, 1)
	whole, err := vfs.ReadFile(fs, filepath.Join(s.dir, name))
	must(t, err)
	for at := range whole {
		bad := bytes.Clone(whole)
		bad[at] ^= 0x40
		must(t, vfs.WriteFileAtomic(fs, filepath.Join(s.dir, name), bad))
		if _, _, err := s.Open(name); !errors.Is(err, ErrSnapshotCorrupt) {
			t.Fatalf("byte %d of %d: %v", at, len(whole), err)
		}
	}
	must(t, vfs.WriteFileAtomic(fs, filepath.Join(s.dir, name), whole[:len(whole)-1]))
	if _, _, err := s.Open(name); !errors.Is(err, ErrSnapshotCorrupt) {
		t.Fatalf("cut: %v", err)
	}
	if metas, err := s.List(); err != nil || len(metas) != 0 {
		t.Fatalf("List shows it: %v %v", metas, err)
	}
}

// A power cut at every operation of a sink: the older snapshot is there whole, or both are; nothing else counts.
func TestSnapshotPowerCut(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	old, body := []byte("the old state"), bytes.Repeat([]byte("the new state "), 3000)
	for _, keep := range []float64{0, 0.5, 1} {
		base := vfs.NewMem(time.Now)
		s := memSnaps(t, base)
		must(t, writeSnap(s, 10, 1, old))
		var clones []*vfs.Mem
		s.fs = vfs.WithFaults(base, func(vfs.Op) error {
			clones = append(clones, base.CrashClone(rng, vfs.Crash{Keep: keep, Torn: true}))
			return nil
		})
		must(t, writeSnap(s, 20, 2, body))
		clones = append(clones, base.CrashClone(rng, vfs.Crash{Keep: keep, Torn: true}))
		for i, m := range clones {
			ref, corrupt, err := memSnaps(t, m).newest()
			must(t, err)
			if len(corrupt) > 0 || ref != (snapRef{10, 1}) && ref != (snapRef{20, 2}) {
				t.Fatalf("keep %v, operation %d: %v, corrupt %v", keep, i, ref, corrupt)
			}
			if i == len(clones)-1 && ref != (snapRef{20, 2}) {
				t.Fatalf("keep %v: the finished snapshot is lost", keep)
			}
		}
	}
}

// A fault of the disk at any operation is an error, and leaves the older snapshot the newest.
func TestSnapshotDiskFault(t *testing.T) {
	broken := errors.New("disk on fire")
	for fail := 0; ; fail++ {
		base := vfs.NewMem(time.Now)
		s := memSnaps(t, base)
		must(t, writeSnap(s, 10, 1, []byte("old")))
		n, finished := 0, false
		s.final = func(snapRef, bool) error { finished = true; return nil }
		s.fs = vfs.WithFaults(base, func(vfs.Op) error {
			if n++; n-1 == fail && !finished {
				return broken
			}
			return nil
		})
		err := writeSnap(s, 20, 2, []byte("new state"))
		if err == nil {
			if n <= fail || finished {
				return // every operation of the sink has failed once
			}
			t.Fatalf("operation %d failed without an error", fail)
		}
		if finished || !errors.Is(err, broken) {
			t.Fatalf("operation %d: finished %v, %v", fail, finished, err)
		}
		if _, _, err := memSnaps(t, base).newest(); err != nil {
			t.Fatal(err)
		}
	}
}

// A corrupt newest snapshot is put aside if an older one and the log reach past it, else the node does not start.
func TestCorruptNewestSnapshot(t *testing.T) {
	damage := func(dir string, index, term uint64) {
		p := filepath.Join(dir, "snapshots", snapName(index, term))
		b, err := vfs.ReadFile(vfs.OS(), p)
		must(t, err)
		b[len(b)-1] ^= 1
		must(t, vfs.WriteFileAtomic(vfs.OS(), p, b))
	}
	conf := servers("F", "D", "L")
	for name, c := range map[string]struct {
		log  span
		fail bool
	}{"log reaches past it": {span{11, 40, 1}, false}, "log ends below it": {span{11, 15, 1}, true}, "log begins after the older one": {span{20, 40, 1}, true}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			seedSnapshot(t, dir, conf, 10, 1, body(span{2, 10, 1}))
			seedSnapshot(t, dir, conf, 20, 1, body(span{2, 20, 1}))
			seedWAL(t, dir, entries(conf, c.log)[1:])
			damage(dir, 20, 1)
			f, err := openLone(t, loneOpts{kind: "heal", dir: dir, id: "F"})
			if (err != nil) != c.fail {
				t.Fatalf("open: %v", err)
			}
			if err != nil {
				return
			}
			if ref, corrupt, err := f.healed.snaps.newest(); err != nil || len(corrupt) > 0 || ref.index != 10 {
				t.Errorf("newest %v, corrupt %v, %v", ref, corrupt, err)
			}
		})
	}
}

// The file's header tells level and cluster id, which it takes from the state's own header.
func TestDescribeState(t *testing.T) {
	st := state.New()
	st.Apply(7, 3, mustMarshal(&statepb.Entry{Commands: []*statepb.Command{{Version: 1, Body: &statepb.Command_Bootstrap{
		Bootstrap: &statepb.Bootstrap{ClusterId: "AAAAAAAAAAAAAAAAAAAAAA", Level: 1}}}}}))
	var b bytes.Buffer
	_, err := st.Snapshot().WriteTo(&b)
	must(t, err)
	level, cluster, err := describeState(bytes.NewReader(b.Bytes()))
	if err != nil || level != 1 || cluster != "AAAAAAAAAAAAAAAAAAAAAA" {
		t.Errorf("level %d, cluster %q, %v", level, cluster, err)
	}
	for n := range 20 {
		if _, _, err := describeState(bytes.NewReader(b.Bytes()[:n])); err == nil {
			t.Errorf("%d bytes are a header", n)
		}
	}
}
