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

// cases.md 10.
func TestEndOffsetForEpoch(t *testing.T) {
	l, _ := open(t, vfs.NewMem(nil), Config{})
	if got := l.EndOffsetForEpoch(0); got != (EpochEnd{-1, -1}) {
		t.Fatal(got)
	}
	appendN(t, l, 10, 0)
	appendN(t, l, 15, 2)
	for asked, want := range map[id.LeaderEpoch]EpochEnd{0: {0, 10}, 1: {0, 10}, 2: {2, 25}, 3: {-1, -1}, -1: {-1, -1}} {
		if got := l.EndOffsetForEpoch(asked); got != want {
			t.Errorf("%d: %+v, want %+v", asked, got, want)
		}
	}
	must(t, l.BeginEpoch(5))
	for asked, want := range map[id.LeaderEpoch]EpochEnd{2: {2, 25}, 4: {2, 25}, 5: {5, 25}} {
		if got := l.EndOffsetForEpoch(asked); got != want {
			t.Errorf("after BeginEpoch, %d: %+v, want %+v", asked, got, want)
		}
	}
	if err := l.BeginEpoch(4); !errors.Is(err, ErrStaleEpoch) {
		t.Fatal(err)
	}
	if _, err := l.AppendAsLeader(batch(t, 1, 1, "x", nil), 4, now); !errors.Is(err, ErrStaleEpoch) {
		t.Fatal(err)
	}
	if l.EpochAt(9) != 0 || l.EpochAt(10) != 2 || l.LatestEpoch() != 5 {
		t.Fatal(l.EpochAt(9), l.EpochAt(10), l.LatestEpoch())
	}
	must(t, l.SetLogStart(12))
	for asked, want := range map[id.LeaderEpoch]EpochEnd{0: {0, 12}, 1: {1, 12}, 2: {2, 25}} {
		if got := l.EndOffsetForEpoch(asked); got != want {
			t.Errorf("after SetLogStart, %d: %+v, want %+v", asked, got, want)
		}
	}
}

func TestReadLimits(t *testing.T) {
	l, _ := open(t, vfs.NewMem(nil), Config{IndexIntervalBytes: 1})
	one := len(batch(t, 2, 50, "e0", nil))
	for range 10 {
		appendN(t, l, 2, 0)
	}
	must(t, l.SetLogStart(3))
	for _, c := range []struct {
		name  string
		f     Fetch
		first id.Offset
		count int
	}{
		{"all", Fetch{Offset: 4, MaxBytes: 1 << 20, UpTo: All}, 4, 8},
		{"inside a batch", Fetch{Offset: 5, MaxBytes: 1 << 20, UpTo: All}, 4, 8},
		{"high watermark", Fetch{Offset: 4, MaxBytes: 1 << 20, UpTo: 8}, 4, 2},
		{"high watermark inside a batch", Fetch{Offset: 4, MaxBytes: 1 << 20, UpTo: 9}, 4, 2},
		{"at the high watermark", Fetch{Offset: 8, MaxBytes: 1 << 20, UpTo: 8}, 0, 0},
		{"above it", Fetch{Offset: 12, MaxBytes: 1 << 20, UpTo: 8}, 0, 0},
		{"two and a half", Fetch{Offset: 4, MaxBytes: 2*one + one/2, UpTo: All}, 4, 2},
		{"too small", Fetch{Offset: 4, MaxBytes: one - 1, UpTo: All}, 0, 0},
		{"too small, at least one", Fetch{Offset: 4, MaxBytes: 1, UpTo: All, MinOneBatch: true}, 4, 1},
		{"at the end", Fetch{Offset: 20, MaxBytes: 1 << 20, UpTo: All, MinOneBatch: true}, 0, 0},
		{"negative size", Fetch{Offset: 4, MaxBytes: -1, UpTo: All}, 0, 0},
	} {
		data, err := l.Read(c.f)
		if err != nil || len(data) != c.count*one {
			t.Errorf("%s: %d bytes, want %d of %d (%v)", c.name, len(data), c.count, one, err)
			continue
		}
		if c.count > 0 {
			if b, _, _ := record.Next(data); b.BaseOffset() != c.first {
				t.Errorf("%s: from %d", c.name, b.BaseOffset())
			}
		}
	}
	for _, offset := range []id.Offset{-1, 2, 21} {
		if _, err := l.Read(Fetch{Offset: offset, MaxBytes: 100, UpTo: All}); !errors.Is(err, ErrOffsetOutOfRange) {
			t.Errorf("%d: %v", offset, err)
		}
	}
	buf := make([]byte, 0, 10*one)
	data, err := l.Read(Fetch{Offset: 4, MaxBytes: 3 * one, UpTo: All, Buf: buf})
	if err != nil || &data[0] != &buf[:1][0] {
		t.Fatal("the buffer was not used", err)
	}
}

func TestFollowerRefusesWhatDoesNotFit(t *testing.T) {
	leader, _ := open(t, vfs.NewMem(nil), Config{})
	for i := range 6 {
		appendN(t, leader, 2, id.LeaderEpoch(i/2))
	}
	data, err := leader.Read(Fetch{MaxBytes: 1 << 20, UpTo: All})
	must(t, err)
	one := len(data) / 6
	fresh := func() *Log {
		l, _ := open(t, vfs.NewMem(nil), Config{SegmentBytes: int64(2 * one)})
		return l
	}
	l := fresh()
	if _, err := l.AppendAsFollower(bytes.Clone(data[one:]), now); !errors.Is(err, ErrNotContiguous) || l.LogEnd() != 0 {
		t.Fatal(err)
	}
	if a, err := l.AppendAsFollower(bytes.Clone(data), now); err != nil || a.Last != 11 {
		t.Fatal(a, err)
	}
	if segs, _ := l.Segments(); len(segs) != 3 {
		t.Fatalf("%d segments", len(segs))
	}
	if got := readAll(t, l); !bytes.Equal(bytes.Join(func() (s [][]byte) {
		for _, b := range got {
			s = append(s, b)
		}
		return s
	}(), nil), data) {
		t.Fatal("not the leader's bytes")
	}
	if _, err := l.AppendAsFollower(bytes.Clone(data[:one]), now); !errors.Is(err, ErrNotContiguous) {
		t.Fatal(err)
	}
	// A bad batch after good ones: the good ones stay.
	l = fresh()
	bad := bytes.Clone(data)
	bad[2*one+80] ^= 1
	if a, err := l.AppendAsFollower(bad, now); !errors.Is(err, record.ErrCorrupt) || a.Last != 3 || l.LogEnd() != 4 {
		t.Fatal(a, err)
	}
	// Cut off, as a fetch may be.
	l = fresh()
	if a, err := l.AppendAsFollower(bytes.Clone(data[:one+one/2]), now); !errors.Is(err, record.ErrCorrupt) || a.Last != 1 {
		t.Fatal(a, err)
	}
	// Epochs that fall.
	l = fresh()
	appendN(t, l, 2, 3)
	falling := record.Batch(batch(t, 1, 1, "x", nil))
	falling.Assign(2, 1)
	if _, err := l.AppendAsFollower(falling, now); !errors.Is(err, ErrStaleEpoch) {
		t.Fatal(err)
	}
	// An epoch that was begun without records gives way.
	l = fresh()
	must(t, l.BeginEpoch(9))
	if _, err := l.AppendAsFollower(bytes.Clone(data), now); err != nil || l.LatestEpoch() != 2 {
		t.Fatal(err, l.LatestEpoch())
	}
}

func TestRollByAge(t *testing.T) {
	l, _ := open(t, vfs.NewMem(nil), Config{SegmentMs: 1000})
	appendAt := func(ts, at int64) int {
		_, err := l.AppendAsLeader(batchAt(t, 1, 10, "x", ts, nil), 0, at)
		must(t, err)
		segs, err := l.Segments()
		must(t, err)
		return len(segs)
	}
	if n := appendAt(now, now); n != 1 {
		t.Fatal(n)
	}
	if n := appendAt(now+1000, now+99999); n != 1 { // the records' time counts, not the clock
		t.Fatal(n)
	}
	if n := appendAt(now+1001, now); n != 2 {
		t.Fatal(n)
	}
	if n := appendAt(record.NoTimestamp, now+1000); n != 2 {
		t.Fatal(n)
	}
	if n := appendAt(record.NoTimestamp, now+1001); n != 3 {
		t.Fatal(n)
	}
}

func TestTruncateInsideTheBatchOfTheLogStart(t *testing.T) {
	l, _ := open(t, vfs.NewMem(nil), Config{})
	appendN(t, l, 10, 0)
	must(t, l.SetLogStart(5))
	end, err := l.TruncateTo(7)
	if err != nil || end != 0 || l.LogStart() != 0 || l.LogEnd() != 0 {
		t.Fatal(end, err, l.LogStart(), l.LogEnd())
	}
}

func TestOffsetOfMaxTimestamp(t *testing.T) {
	l, _ := open(t, vfs.NewMem(nil), Config{SegmentBytes: 400, IndexIntervalBytes: 1})
	if _, found, err := l.OffsetOfMaxTimestamp(); found || err != nil {
		t.Fatal(found, err)
	}
	for i, ts := range []int64{5, 90, 20, 90, 7} {
		_, err := l.AppendAsLeader(batchAt(t, 2, 100, fmt.Sprint(i), now+ts, nil), 0, now)
		must(t, err)
	}
	if got, found, err := l.OffsetOfMaxTimestamp(); err != nil || !found || got != (TimedOffset{3, now + 91, 0}) {
		t.Fatal(got, found, err)
	}
}

func TestDelete(t *testing.T) {
	fsys := vfs.NewMem(nil)
	l, _ := open(t, fsys, Config{TopicID: id.TopicID{1}})
	appendN(t, l, 2, 0)
	if _, _, err := Open(fsys, l.Dir(), Config{TopicID: id.TopicID{2}}, now); !errors.Is(err, ErrTopicMismatch) {
		t.Fatal(err)
	}
	must(t, l.Delete("abc"))
	if _, err := l.AppendAsLeader(batch(t, 1, 1, "x", nil), 0, now); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	if names, err := fsys.ReadDir("data"); err != nil || len(names) != 0 {
		t.Fatal(names, err)
	}
	l, _ = open(t, fsys, Config{TopicID: id.TopicID{2}})
	appendN(t, l, 2, 0)
	must(t, l.Close())
	must(t, fsys.Rename("data/t-0", "data/t-0.def-delete"))
	removed, err := FinishDeletes(fsys, "data")
	if err != nil || len(removed) != 1 {
		t.Fatal(removed, err)
	}
}

func TestBadConfigNamesEveryFault(t *testing.T) {
	_, _, err := Open(vfs.NewMem(nil), "d", Config{SegmentBytes: 3, SegmentMs: -1, IndexIntervalBytes: -1}, now)
	for _, want := range []string{"segment.bytes", "segment.ms", "index.interval.bytes"} {
		if err == nil || !bytes.Contains([]byte(err.Error()), []byte(want)) {
			t.Errorf("%s is not in %v", want, err)
		}
	}
}
