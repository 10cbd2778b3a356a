package vfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, fsys FS, name, data string, sync bool) {
	t.Helper()
	f, err := fsys.Create(name)
	must(t, err)
	_, err = f.WriteAt([]byte(data), 0)
	must(t, err)
	if sync {
		must(t, f.Sync())
	}
	must(t, f.Close())
}

func TestBothFileSystemsKeepTheContract(t *testing.T) {
	for name, fsys := range map[string]FS{"os": OS(), "mem": NewMem(nil), "faults": WithFaults(NewMem(nil), func(Op) error { return nil })} {
		t.Run(name, func(t *testing.T) {
			root := "root"
			if name == "os" {
				root = filepath.Join(t.TempDir(), "root")
			}
			sub := filepath.Join(root, "a", "b")
			must(t, EnsureDir(fsys, sub))
			must(t, EnsureDir(fsys, sub))
			p := func(n string) string { return filepath.Join(sub, n) }
			if _, err := fsys.Open(p("x")); !errors.Is(err, ErrNotExist) {
				t.Fatalf("open of nothing: %v", err)
			}
			if _, err := fsys.OpenRW(p("x")); !errors.Is(err, ErrNotExist) {
				t.Fatalf("openrw of nothing: %v", err)
			}
			write(t, fsys, p("x"), "hello", true)
			must(t, WriteFileAtomic(fsys, p("y"), []byte("why")))
			if got, err := ReadFile(fsys, p("y")); err != nil || string(got) != "why" {
				t.Fatalf("%q %v", got, err)
			}
			ro, err := fsys.Open(p("x"))
			must(t, err)
			if _, err := ro.WriteAt([]byte("no"), 0); err == nil {
				t.Fatal("wrote to a file opened for reading")
			}
			must(t, ro.Close())
			if _, err := ro.ReadAt(make([]byte, 1), 0); err == nil {
				t.Fatal("read of a closed file")
			}
			f, err := fsys.OpenRW(p("x"))
			must(t, err)
			w := NewWriter(f, 5)
			_, err = fmt.Fprint(w, " world")
			must(t, err)
			if w.Offset() != 11 {
				t.Fatal(w.Offset())
			}
			must(t, f.Truncate(7))
			must(t, f.Truncate(9))
			buf := make([]byte, 20)
			n, err := f.ReadAt(buf, 0)
			if err != io.EOF || !bytes.Equal(buf[:n], []byte("hello w\x00\x00")) {
				t.Fatalf("%q %v", buf[:n], err)
			}
			if size, err := f.Size(); err != nil || size != 9 {
				t.Fatal(size, err)
			}
			must(t, fsys.Rename(p("x"), p("y")))
			must(t, fsys.Remove(p("y")))
			if n, err := f.ReadAt(buf[:5], 0); n != 5 || err != nil {
				t.Fatalf("a removed open file must stay readable: %d %v", n, err)
			}
			must(t, f.Sync())
			must(t, f.Close())
			if err := fsys.Remove(filepath.Join(root, "a")); err == nil {
				t.Fatal("removed a full directory")
			}
			write(t, fsys, p("z"), "", false)
			names, err := fsys.ReadDir(sub)
			if err != nil || !slices.Equal(names, []string{"z"}) {
				t.Fatal(names, err)
			}
			if info, err := fsys.Stat(sub); err != nil || !info.IsDir {
				t.Fatal(info, err)
			}
			must(t, fsys.SyncDir(sub))
			lock, err := fsys.Lock(p("lock"))
			must(t, err)
			if _, err := fsys.Lock(p("lock")); !errors.Is(err, ErrLocked) {
				t.Fatalf("second lock: %v", err)
			}
			must(t, lock.Close())
			lock, err = fsys.Lock(p("lock"))
			must(t, err)
			must(t, lock.Close())
			must(t, RemoveAll(fsys, root))
			must(t, RemoveAll(fsys, root))
			if _, err := fsys.Stat(root); !errors.Is(err, ErrNotExist) {
				t.Fatal(err)
			}
		})
	}
}

func TestCrashLosesWhatWasNotSynced(t *testing.T) {
	m := NewMem(nil)
	must(t, EnsureDir(m, "d"))
	write(t, m, "d/named-not-synced", "lost", false)
	must(t, m.SyncDir("d"))
	write(t, m, "d/synced-not-named", "gone", true)
	f, err := m.Create("d/both")
	must(t, err)
	_, err = f.WriteAt([]byte("kept"), 0)
	must(t, err)
	must(t, f.Sync())
	must(t, m.SyncDir("d"))
	_, err = f.WriteAt([]byte("XXXXXXXX"), 0)
	must(t, err)
	must(t, m.Rename("d/both", "d/renamed"))

	c := m.CrashClone(rand.New(rand.NewPCG(1, 1)), Crash{})
	names, err := c.ReadDir("d")
	must(t, err)
	// synced-not-named was covered by the second SyncDir.
	if !slices.Equal(names, []string{"both", "named-not-synced", "synced-not-named"}) {
		t.Fatal(names)
	}
	for name, want := range map[string]string{"d/both": "kept", "d/named-not-synced": "", "d/synced-not-named": "gone"} {
		if got, err := ReadFile(c, name); err != nil || string(got) != want {
			t.Fatalf("%s: %q %v", name, got, err)
		}
	}
	if got, err := ReadFile(m, "d/renamed"); err != nil || string(got) != "XXXXXXXX" {
		t.Fatalf("the original must go on: %q %v", got, err)
	}
	all := m.CrashClone(rand.New(rand.NewPCG(1, 1)), Crash{Keep: 1})
	if got, err := ReadFile(all, "d/renamed"); err != nil || string(got) != "XXXXXXXX" {
		t.Fatalf("%q %v", got, err)
	}
}

// A file is written, synced and cut at random; a crash must keep every byte that is the same in the synced and the present
// content, and every other byte must be one of the two or, past the synced end, zero.
func TestCrashedBytesAreOldOrNew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := NewMem(nil)
		f, err := m.Create("f")
		if err != nil {
			t.Fatal(err)
		}
		_ = m.SyncDir("/")
		var synced []byte
		content := func() []byte {
			size, _ := f.Size()
			out := make([]byte, size)
			if n, err := f.ReadAt(out, 0); int64(n) != size {
				t.Fatal(n, err)
			}
			return out
		}
		fill := byte(0)
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "op") {
			case 0:
				if err := f.Sync(); err != nil {
					t.Fatal(err)
				}
				synced = content()
			case 1:
				_ = f.Truncate(rapid.Int64Range(0, 20000).Draw(t, "size"))
			default:
				fill++
				off, n := rapid.Int64Range(0, 12000).Draw(t, "off"), rapid.IntRange(0, 6000).Draw(t, "len")
				if _, err := f.WriteAt(bytes.Repeat([]byte{fill}, n), off); err != nil {
					t.Fatal(err)
				}
			}
		}
		now := content()
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		c := m.CrashClone(rng, Crash{Keep: rapid.Float64Range(0, 1).Draw(t, "keep"), Torn: rapid.Bool().Draw(t, "torn")})
		got, err := ReadFile(c, "f")
		if err != nil {
			t.Fatal(err)
		}
		if len(got) < min(len(synced), len(now)) || len(got) > max(len(synced), len(now)) {
			t.Fatalf("size %d, synced %d, now %d", len(got), len(synced), len(now))
		}
		for i, b := range got {
			fromOld := i < len(synced) && b == synced[i] || i >= len(synced) && b == 0
			fromNew := i < len(now) && b == now[i]
			if !fromOld && !fromNew {
				t.Fatalf("byte %d is %d, neither old nor new", i, b)
			}
		}
	})
}

func TestCrashCloneRepeatsBySeed(t *testing.T) {
	m := NewMem(nil)
	must(t, m.MkdirAll("d"))
	for i := range 20 {
		write(t, m, fmt.Sprintf("d/%d", i), string(bytes.Repeat([]byte{byte(i)}, 9000)), i%3 == 0)
	}
	dump := func() string {
		c := m.CrashClone(rand.New(rand.NewPCG(7, 7)), Crash{Keep: 0.8, Torn: true})
		out := ""
		names, _ := c.ReadDir("d")
		for _, n := range names {
			data, err := ReadFile(c, "d/"+n)
			must(t, err)
			out += fmt.Sprintf("%s %d %x\n", n, len(data), data)
		}
		return out
	}
	if first, second := dump(), dump(); first != second {
		t.Fatal("two clones of one seed differ")
	}
}

func TestFaults(t *testing.T) {
	var fail Op
	var with error
	fsys := WithFaults(NewMem(nil), func(op Op) error {
		if op.Kind == fail.Kind && op.Name == fail.Name {
			return with
		}
		return nil
	})
	f, err := fsys.Create("f")
	must(t, err)
	fail, with = Op{Kind: OpWriteAt, Name: "f"}, &ShortWrite{N: 3, Err: unix.ENOSPC}
	if n, err := f.WriteAt([]byte("hello"), 0); n != 3 || !errors.Is(err, unix.ENOSPC) {
		t.Fatal(n, err)
	}
	if got, err := ReadFile(fsys, "f"); err != nil || string(got) != "hel" {
		t.Fatalf("%q %v", got, err)
	}
	fail, with = Op{Kind: OpSync, Name: "f"}, unix.EIO
	if err := f.Sync(); !errors.Is(err, unix.EIO) {
		t.Fatal(err)
	}
	fail = Op{Kind: OpRename, Name: "g.tmp"}
	if err := WriteFileAtomic(fsys, "g", []byte("x")); !errors.Is(err, unix.EIO) {
		t.Fatal(err)
	}
	if _, err := fsys.Stat("g"); !errors.Is(err, ErrNotExist) {
		t.Fatal("a failed atomic write made the file")
	}
}
