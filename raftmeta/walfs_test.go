package raftmeta

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/types"
	"pgregory.net/rapid"
)

// A file that is filled with zeros ahead of what is appended holds what was appended and keeps its size, also when it is opened
// again where the end was lost.
func TestWALFileHoldsWhatWasAppended(t *testing.T) {
	dir := t.TempDir()
	n := 0
	rapid.Check(t, func(r *rapid.T) {
		size := rapid.SampledFrom([]int{1 << 10, zeroAhead, zeroAhead + 10, 3 * zeroAhead}).Draw(r, "size")
		n++
		name := filepath.Base(t.Name()) + string(rune('a'+n%26)) + ".wal"
		defer os.Remove(filepath.Join(dir, name))
		w := walFS{fs.New()}
		open := func() types.WritableFile { f, err := w.OpenWriter(dir, name); must(t, err); return f }
		f, err := w.Create(dir, name, uint64(size))
		must(t, err)
		want, at := make([]byte, size), 0
		for range rapid.IntRange(1, 30).Draw(r, "steps") {
			switch p := bytes.Repeat([]byte{byte(at%250) + 1}, min(rapid.SampledFrom([]int{1, 700, 100_000}).Draw(r, "bytes"), size-at)); {
			case rapid.IntRange(0, 9).Draw(r, "reopen") == 0:
				must(t, f.Close())
				f = open()
			case rapid.IntRange(0, 9).Draw(r, "lose") == 0: // raft-wal appends again after the last entry that it finds whole
				at -= min(at, 50)
			default:
				_, err := f.WriteAt(p, int64(at))
				must(t, err)
				must(t, f.Sync())
				at += copy(want[at:], p)
			}
		}
		must(t, f.Close())
		got, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		if len(got) != size || !bytes.Equal(got[:at], want[:at]) {
			r.Fatalf("%d of %d bytes reserved, and the %d appended differ", len(got), size, at)
		}
	})
}
