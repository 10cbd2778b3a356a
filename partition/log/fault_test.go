package log

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/vfs"
	"github.com/barnabas-mq/barnabas/partition/record"
)

// S30: a full disk refuses appends, tears nothing, and once freed all goes on.
func TestFullDisk(t *testing.T) {
	mem := vfs.NewMem(nil)
	var full func(vfs.Op) error
	fsys := vfs.WithFaults(mem, func(op vfs.Op) error {
		if full != nil {
			return full(op)
		}
		return nil
	})
	l, _ := open(t, fsys, Config{SegmentBytes: 1000})
	appendN(t, l, 3, 0)
	for _, kind := range []vfs.OpKind{vfs.OpWriteAt, vfs.OpCreate, vfs.OpRename} {
		before := l.LogEnd()
		full = func(op vfs.Op) error {
			if op.Kind != kind {
				return nil
			}
			if kind == vfs.OpWriteAt {
				return &vfs.ShortWrite{N: 70, Err: unix.ENOSPC}
			}
			return unix.ENOSPC
		}
		var err error
		good := 0
		for err == nil { // a full directory only hurts at the next roll
			good++
			_, err = l.AppendAsLeader(batch(t, 2, 90, "x", nil), 0, now)
		}
		if !errors.Is(err, unix.ENOSPC) || l.Failed() != nil {
			t.Fatalf("%v: %v, failed %v", kind, err, l.Failed())
		}
		if want := before + id.Offset(2*(good-1)); l.LogEnd() != want {
			t.Fatalf("%v: log end %d, want %d", kind, l.LogEnd(), want)
		}
		readAll(t, l)
		full = nil
		if a := appendN(t, l, 2, 0); a.Base != before+id.Offset(2*(good-1)) {
			t.Fatalf("%v: %+v", kind, a)
		}
	}
	want := l.LogEnd()
	l, r := open(t, mem, Config{SegmentBytes: 1000})
	if l.LogEnd() != want || len(r.Damaged) != 0 || r.CutBytes != 0 {
		t.Fatalf("log end %d, want %d: %+v", l.LogEnd(), want, r)
	}
	readAll(t, l)
}

// After a failed fsync nobody knows what is on disk: no ack, no more writes, reads go on.
func TestFailedSyncEndsWriting(t *testing.T) {
	mem := vfs.NewMem(nil)
	var broken atomic.Bool
	fsys := vfs.WithFaults(mem, func(op vfs.Op) error {
		if broken.Load() && op.Kind == vfs.OpSync && strings.HasSuffix(op.Name, logSuffix) {
			return unix.EIO
		}
		return nil
	})
	l, _ := open(t, fsys, Config{})
	appendN(t, l, 3, 0)
	_, err := l.Sync()
	must(t, err)
	appendN(t, l, 3, 0)
	broken.Store(true)
	if _, err := l.Sync(); !errors.Is(err, ErrFailed) || !errors.Is(err, unix.EIO) {
		t.Fatal(err)
	}
	broken.Store(false)
	if _, err := l.Sync(); !errors.Is(err, ErrFailed) {
		t.Fatalf("a retry must not succeed: %v", err)
	}
	if _, err := l.AppendAsLeader(batch(t, 1, 1, "x", nil), 0, now); !errors.Is(err, ErrFailed) {
		t.Fatal(err)
	}
	if l.SyncedEnd() != 3 || len(readAll(t, l)) != 2 {
		t.Fatal(l.SyncedEnd())
	}
	must(t, l.Close())
	l, _ = open(t, mem, Config{})
	if l.LogEnd() != 6 || l.SyncedEnd() != 6 {
		t.Fatal(l.LogEnd(), l.SyncedEnd())
	}
}

func flip(t *testing.T, fsys vfs.FS, name string, at int64) {
	t.Helper()
	f, err := fsys.OpenRW(name)
	must(t, err)
	var b [1]byte
	_, err = f.ReadAt(b[:], at)
	must(t, err)
	b[0] ^= 0x10
	_, err = f.WriteAt(b[:], at)
	must(t, err)
	must(t, f.Close())
}

// S31: whatever bit of a segment flips, damage is told and never served; what lies before and behind stays readable; cutting at the
// damage and fetching again heals.
func TestBitRotIsNeverServed(t *testing.T) {
	for at := int64(0); at < 600; at += 7 {
		fsys := vfs.NewMem(nil)
		cfg := Config{SegmentBytes: 800, IndexIntervalBytes: 200}
		l, _ := open(t, fsys, cfg)
		for range 12 {
			appendN(t, l, 2, 0)
		}
		must(t, l.Checkpoint())
		want := readAll(t, l)
		flip(t, fsys, segmentPath(l.dir, 0, logSuffix), at)
		bad := 0
		check := func(l *Log) {
			for _, b := range want {
				data, err := l.Read(Fetch{Offset: b.BaseOffset(), MaxBytes: len(b), UpTo: All, MinOneBatch: true})
				var corrupt *CorruptError
				switch {
				case err == nil:
					if !bytes.HasPrefix(data, b) {
						// The leader epoch and nothing else is outside the checksum (Kafka's format).
						got, _, _ := record.Next(data)
						got.Assign(got.BaseOffset(), b.LeaderEpoch())
						if !bytes.HasPrefix(got, b) {
							t.Fatalf("bit %d: other bytes served at %d", at, b.BaseOffset())
						}
					}
				case errors.As(err, &corrupt) && errors.Is(err, record.ErrCorrupt):
					bad++
					if code, ok := record.Code(corrupt); len(data) > 0 || ok && code != 2 {
						t.Fatal("bytes came with the error")
					}
				default:
					t.Fatalf("bit %d, offset %d: %v", at, b.BaseOffset(), err)
				}
			}
		}
		check(l)
		l, r := open(t, fsys, cfg)
		check(l)
		if len(r.Damaged) == 0 && bad == 0 {
			continue // the leader epoch
		}
		offset := id.Offset(0)
		for offset < l.LogEnd() {
			data, err := l.Read(Fetch{Offset: offset, MaxBytes: 1, UpTo: All, MinOneBatch: true})
			if err != nil {
				break
			}
			b, _, _ := record.Next(data)
			offset = b.LastOffset() + 1
		}
		end, err := l.TruncateTo(offset)
		must(t, err)
		for _, b := range want {
			if b.LastOffset() >= end {
				_, err := l.AppendAsFollower(bytes.Clone(b), now)
				must(t, err)
			}
		}
		if got := readAll(t, l); len(got) != len(want) {
			t.Fatalf("bit %d: not healed", at)
		}
	}
}

// A damaged index costs time, not answers.
func TestDamagedIndexIsOnlyAHint(t *testing.T) {
	fsys := vfs.NewMem(nil)
	l, _ := open(t, fsys, Config{SegmentBytes: 2000, IndexIntervalBytes: 100})
	for range 20 {
		appendN(t, l, 2, 0)
	}
	want := len(readAll(t, l))
	for _, suffix := range []string{indexSuffix, timeIndexSuffix} {
		name := segmentPath(l.dir, 0, suffix)
		info, err := fsys.Stat(name)
		must(t, err)
		if info.Size < 12 {
			t.Fatal("the index is empty")
		}
		for at := range info.Size {
			flip(t, fsys, name, at)
			if got := len(readAll(t, l)); got != want {
				t.Fatalf("%s bit %d: %d batches, want %d", suffix, at, got, want)
			}
			flip(t, fsys, name, at)
		}
	}
}

// S31: the last bytes of the newest segment are gone, or of an older one.
func TestCutFiles(t *testing.T) {
	for cut := int64(1); cut < 400; cut += 13 {
		for _, newest := range []bool{true, false} {
			fsys := vfs.NewMem(nil)
			cfg := Config{SegmentBytes: 800}
			l, _ := open(t, fsys, cfg)
			for range 12 {
				appendN(t, l, 2, 0)
			}
			segs, err := l.Segments()
			must(t, err)
			must(t, l.Close())
			seg := segs[0]
			if newest {
				seg = segs[len(segs)-1]
			}
			f, err := fsys.OpenRW(segmentPath(l.dir, seg.Base, logSuffix))
			must(t, err)
			must(t, f.Truncate(max(0, seg.Size-cut)))
			must(t, f.Close())
			l, r := open(t, fsys, cfg)
			if newest && (r.LostBelow != 24 || r.Clean) || !newest && (len(r.Damaged) != 1 || l.LogEnd() != 24) {
				t.Fatalf("cut %d, newest %t: %+v, log end %d", cut, newest, r, l.LogEnd())
			}
			if newest {
				readAll(t, l)
				continue
			}
			d := r.Damaged[0]
			if _, err := l.Read(Fetch{Offset: d.Offset, MaxBytes: 1000, UpTo: All}); !errors.Is(err, record.ErrCorrupt) {
				t.Fatalf("cut %d: read at the damage: %v", cut, err)
			}
			if _, err := l.Read(Fetch{Offset: segs[1].Base, MaxBytes: 1000, UpTo: All}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Good batches behind a bad one in the newest segment: they are cut, since a log has no hole, but kept aside.
func TestRotInTheNewestSegmentIsKeptAside(t *testing.T) {
	fsys := vfs.NewMem(nil)
	l, _ := open(t, fsys, Config{})
	for range 5 {
		appendN(t, l, 2, 0)
	}
	must(t, l.Checkpoint())
	size := l.Size() / 5
	flip(t, fsys, segmentPath(l.dir, 0, logSuffix), size+size/2)
	l, r := open(t, fsys, Config{})
	if !r.Rot || r.CutAt != 2 || r.CutBytes != 4*size || r.LostBelow != 10 || l.LogEnd() != 2 {
		t.Fatalf("%+v", r)
	}
	info, err := fsys.Stat(fmt.Sprintf("%s.%d.damaged", segmentPath(l.dir, 0, logSuffix), size))
	if err != nil || info.Size != 4*size {
		t.Fatal(info, err)
	}
}

func TestMissingAndBrokenHelpers(t *testing.T) {
	for _, broken := range []bool{true, false} {
		fsys := vfs.NewMem(nil)
		cfg := Config{SegmentBytes: 1000, IndexIntervalBytes: 100}
		l, _ := open(t, fsys, cfg)
		for i := range 20 {
			appendN(t, l, 2, id.LeaderEpoch(i/7))
			_, err := l.AppendAsLeader(produced(t, 7, 0, int32(i), 1), id.LeaderEpoch(i/7), now)
			must(t, err)
		}
		epochs := l.Epochs()
		must(t, l.Close())
		names, err := fsys.ReadDir(l.dir)
		must(t, err)
		for _, n := range names {
			if strings.HasSuffix(n, logSuffix) {
				continue
			}
			name := l.dir + "/" + n
			if broken {
				f, err := fsys.Create(name)
				must(t, err)
				_, err = f.WriteAt([]byte("what is this?"), 0)
				must(t, err)
				must(t, f.Close())
			} else {
				must(t, fsys.Remove(name))
			}
		}
		l, r := open(t, fsys, cfg)
		if r.RebuiltIndexes == 0 || len(r.Damaged) != 0 || l.LogEnd() != 60 || len(readAll(t, l)) != 40 {
			t.Fatalf("%+v, log end %d", r, l.LogEnd())
		}
		if fmt.Sprint(l.Epochs()) != fmt.Sprint(epochs) {
			t.Fatalf("epochs %v, want %v", l.Epochs(), epochs)
		}
		if a, err := l.AppendAsLeader(produced(t, 7, 0, 19, 1), 2, now); err != nil || !a.Duplicate || a.Base != 59 {
			t.Fatal(a, err)
		}
	}
}

// Readers, a syncer and a writer that appends, rolls, truncates and closes.
func TestReadersBesideTheWriter(t *testing.T) {
	l, _ := open(t, vfs.NewMem(nil), Config{SegmentBytes: 2000, IndexIntervalBytes: 200})
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for i := range 3 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				end := l.LogEnd()
				data, err := l.Read(Fetch{Offset: end * id.Offset(i) / 3, MaxBytes: 700, UpTo: All, MinOneBatch: true})
				if err != nil && !errors.Is(err, ErrOffsetOutOfRange) {
					t.Error(err)
					return
				}
				for len(data) > 0 {
					var b record.Batch
					if b, data, err = record.Next(data); err != nil || b.Check() != nil {
						t.Error(err)
						return
					}
				}
				if _, _, err := l.OffsetForTime(now + 1); err != nil {
					t.Error(err)
					return
				}
				l.EndOffsetForEpoch(3)
			}
		})
	}
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if _, err := l.Sync(); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	for i := range 400 {
		appendN(t, l, 1+i%3, id.LeaderEpoch(i/40))
		if i%50 == 49 {
			_, err := l.TruncateTo(l.LogEnd() - 20)
			must(t, err)
		}
		if i == 300 {
			must(t, l.SetLogStart(l.LogEnd()/2))
		}
	}
	close(stop)
	wg.Wait()
	must(t, l.Close())
}

// Thousands of partitions are made at once, and most stay empty: a new log costs few syncs, its close and its next start hardly any.
func TestEmptyLogIsCheap(t *testing.T) {
	syncs := 0
	mem := vfs.NewMem(nil)
	fsys := vfs.WithFaults(mem, func(op vfs.Op) error {
		if op.Kind == vfs.OpSync || op.Kind == vfs.OpSyncDir {
			syncs++
		}
		return nil
	})
	l, _ := open(t, fsys, Config{TopicID: id.TopicID{1}})
	if syncs > 6 { // three of them for directories that a later log finds
		t.Errorf("%d syncs for a new log", syncs)
	}
	syncs = 0
	must(t, l.Checkpoint())
	must(t, l.Close())
	l, _ = open(t, fsys, Config{TopicID: id.TopicID{1}})
	must(t, l.Close())
	if syncs > 1 {
		t.Errorf("%d syncs for closing and opening an empty log", syncs)
	}
	l, _ = open(t, fsys, Config{TopicID: id.TopicID{1}})
	appendN(t, l, 3, 0)
	must(t, l.Close())
	if l, r := open(t, fsys, Config{TopicID: id.TopicID{1}}); l.LogEnd() != 3 || !r.Clean {
		t.Errorf("after an append and a close: end %d, clean %v", l.LogEnd(), r.Clean)
	} else {
		must(t, l.Close())
	}
}
