package log

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/vfs"
	"github.com/barnabas-mq/barnabas/partition/record"
)

const now = 1_500_000_000_000

func must(t tb, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// batch makes a magic 2 batch of n records with values of size bytes that tell them apart by tag.
func batch(t tb, n, size int, tag string, change func(*record.BatchHeader)) []byte {
	t.Helper()
	return batchAt(t, n, size, tag, now, change)
}

func batchAt(t tb, n, size int, tag string, ts int64, change func(*record.BatchHeader)) []byte {
	t.Helper()
	h := record.PlainHeader()
	if change != nil {
		change(&h)
	}
	recs := make([]record.Record, n)
	for i := range recs {
		value := bytes.Repeat([]byte{byte(i)}, size)
		copy(value, fmt.Sprintf("%s/%d", tag, i))
		recs[i] = record.Record{Offset: id.Offset(i), Timestamp: ts + int64(i), Value: value}
	}
	out, err := record.NewCodecs(0).Build(nil, h, recs)
	must(t, err)
	return out
}

func open(t testing.TB, fsys vfs.FS, cfg Config) (*Log, Recovery) {
	t.Helper()
	l, r, err := Open(fsys, "data/t-0", cfg, now)
	must(t, err)
	return l, r
}

func appendN(t testing.TB, l *Log, n int, epoch id.LeaderEpoch) Appended {
	t.Helper()
	a, err := l.AppendAsLeader(batch(t, n, 50, fmt.Sprintf("e%d", epoch), nil), epoch, now)
	must(t, err)
	return a
}

// readAll reads everything from the log start.
func readAll(t tb, l *Log) (out []record.Batch) {
	t.Helper()
	next := l.LogStart()
	for next < l.LogEnd() {
		data, err := l.Read(Fetch{Offset: next, MaxBytes: 1000, UpTo: All, MinOneBatch: true})
		must(t, err)
		if len(data) == 0 {
			t.Fatalf("nothing at %d, the log ends at %d", next, l.LogEnd())
		}
		for len(data) > 0 {
			var b record.Batch
			b, data, err = record.Next(data)
			must(t, err)
			out = append(out, b)
			next = b.LastOffset() + 1
		}
	}
	return out
}

func TestAppendReadReopen(t *testing.T) {
	fsys := vfs.NewMem(nil)
	cfg := Config{SegmentBytes: 1000, IndexIntervalBytes: 150}
	l, r := open(t, fsys, cfg)
	if r.CutBytes != 0 || l.LogEnd() != 0 || l.LogStart() != 0 {
		t.Fatalf("%+v", r)
	}
	for i := range 30 {
		a := appendN(t, l, 3, id.LeaderEpoch(i/10))
		if a.Base != id.Offset(3*i) || a.Last != a.Base+2 {
			t.Fatalf("%d: %+v", i, a)
		}
	}
	if l.SyncedEnd() == l.LogEnd() {
		t.Fatal("nothing was synced yet")
	}
	end, err := l.Sync()
	if err != nil || end != 90 || l.SyncedEnd() != 90 {
		t.Fatal(end, err)
	}
	check := func(l *Log) {
		t.Helper()
		all := readAll(t, l)
		if len(all) != 30 {
			t.Fatalf("%d batches", len(all))
		}
		for i, b := range all {
			if b.BaseOffset() != id.Offset(3*i) || b.LeaderEpoch() != id.LeaderEpoch(i/10) {
				t.Fatalf("batch %d: %d epoch %d", i, b.BaseOffset(), b.LeaderEpoch())
			}
		}
		for epoch, want := range map[id.LeaderEpoch]EpochEnd{0: {0, 30}, 1: {1, 60}, 2: {2, 90}, 3: {-1, -1}, -1: {-1, -1}} {
			if got := l.EndOffsetForEpoch(epoch); got != want {
				t.Errorf("epoch %d: %+v, want %+v", epoch, got, want)
			}
		}
	}
	check(l)
	if segs, err := l.Segments(); err != nil || len(segs) < 5 {
		t.Fatal(segs, err)
	}
	must(t, l.Close())
	if _, err := l.Read(Fetch{UpTo: All}); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	l, r = open(t, fsys, cfg)
	if !r.Clean || r.ScannedBytes != 0 {
		t.Fatalf("%+v", r)
	}
	check(l)
	// A kill: nothing is closed, everything is in the page cache.
	l, r = open(t, fsys, cfg)
	if !r.Clean {
		t.Fatalf("a log that was only read is clean: %+v", r)
	}
	appendN(t, l, 1, 2)
	l, r = open(t, fsys, cfg)
	if r.Clean || r.CutBytes != 0 || l.LogEnd() != 91 || r.LostBelow != 0 || len(r.Damaged) != 0 {
		t.Fatalf("%+v", r)
	}
}

// tb is what testing.TB and *rapid.T share.
type tb interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}
