package log

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/vfs"
	"github.com/barnabas-mq/barnabas/partition/record"
)

// model is the simplest thing that behaves like a Log: a list of batches. TestAgainstModel drives both with random operations, crashes
// among them, and compares all that can be seen.
type model struct {
	start   id.Offset
	base    id.Offset // where the list begins: the offset of the last TruncateFullyAndStartAt
	batches []record.Batch
	begun   []EpochStart // by BeginEpoch
}

func (m *model) end() id.Offset {
	if n := len(m.batches); n > 0 {
		return m.batches[n-1].LastOffset() + 1
	}
	return m.base
}

// cut drops batches that hold offset or later.
func (m *model) cut(offset id.Offset) {
	if offset >= m.end() {
		m.cutBegun(offset)
		return
	}
	n := 0
	for n < len(m.batches) && m.batches[n].LastOffset() < offset {
		n++
	}
	m.batches = m.batches[:n:n]
	m.cutBegun(m.end())
}

func (m *model) cutBegun(end id.Offset) {
	m.begun = slices.DeleteFunc(m.begun, func(e EpochStart) bool { return e.Start >= end })
}

func (m *model) epochs() (out []EpochStart) {
	all := slices.Clone(m.begun)
	for _, b := range m.batches {
		all = append(all, EpochStart{b.LeaderEpoch(), b.BaseOffset()})
	}
	slices.SortFunc(all, func(a, b EpochStart) int {
		if a.Epoch != b.Epoch {
			return int(a.Epoch - b.Epoch)
		}
		return int(a.Start - b.Start)
	})
	for _, e := range all {
		for len(out) > 0 && out[len(out)-1].Start >= e.Start && out[len(out)-1].Epoch < e.Epoch {
			out = out[:len(out)-1] // an epoch without records
		}
		if len(out) == 0 || out[len(out)-1].Epoch < e.Epoch {
			out = append(out, e)
		}
	}
	return cutEpochsBelow(out, m.start)
}

// remembered are the batches of a producer that a resend must find.
func (m *model) remembered(pid int64) (out []record.Batch) {
	for _, b := range slices.Backward(m.batches) {
		if b.ProducerID() != pid {
			continue
		}
		if len(out) == rememberedBatches || len(out) > 0 && out[0].ProducerEpoch() != b.ProducerEpoch() {
			break
		}
		out = append(out, b)
	}
	return out
}

type machine struct {
	t     *rapid.T
	fsys  *vfs.Mem
	hook  func(vfs.Op) error // asked before each disk operation
	cfg   Config
	l     *Log
	m     model
	epoch id.LeaderEpoch
	n     int
	rng   *rand.Rand
}

func (x *machine) must(err error) {
	x.t.Helper()
	if err != nil {
		x.t.Fatal(err)
	}
}

func (x *machine) reopen() Recovery {
	x.t.Helper()
	fsys := vfs.WithFaults(x.fsys, func(op vfs.Op) error {
		if x.hook != nil {
			return x.hook(op)
		}
		return nil
	})
	l, r, err := Open(fsys, "data/t-0", x.cfg, now)
	x.must(err)
	x.l = l
	return r
}

func (x *machine) append(t *rapid.T) {
	x.n++
	h := record.PlainHeader()
	pid := rapid.Int64Range(-1, 1).Draw(t, "pid")
	if pid >= 0 {
		h.ProducerID, h.ProducerEpoch, h.BaseSequence = pid, 0, 0
		if last := x.m.remembered(pid); len(last) > 0 {
			h.ProducerEpoch, h.BaseSequence = last[0].ProducerEpoch(), record.AddSequence(last[0].LastSequence(), 1)
			if rapid.IntRange(0, 9).Draw(t, "newEpoch") == 0 {
				h.ProducerEpoch++
				h.BaseSequence = 0
			}
		}
	}
	if rapid.IntRange(0, 4).Draw(t, "newLeader") == 0 {
		x.epoch++
	}
	n := rapid.IntRange(1, 4).Draw(t, "records")
	recs := make([]record.Record, n)
	for i := range recs {
		value := make([]byte, rapid.IntRange(10, 200).Draw(t, "size"))
		copy(value, fmt.Sprintf("%d/%d", x.n, i))
		recs[i] = record.Record{Offset: id.Offset(i), Timestamp: now + rapid.Int64Range(-50, 50).Draw(t, "ts"), Value: value}
	}
	b, err := record.NewCodecs(0).Build(nil, h, recs)
	x.must(err)
	follower := rapid.Bool().Draw(t, "follower")
	var a Appended
	if follower {
		record.Batch(b).Assign(x.m.end(), x.epoch)
		a, err = x.l.AppendAsFollower(b, now)
	} else {
		a, err = x.l.AppendAsLeader(b, x.epoch, now)
	}
	x.must(err)
	if a.Base != x.m.end() || a.Last != a.Base+id.Offset(n)-1 || a.Duplicate {
		x.t.Fatalf("appended at %+v, the log ended at %d", a, x.m.end())
	}
	x.m.batches = append(x.m.batches, record.Batch(bytes.Clone(b)))
}

func (x *machine) offset(t *rapid.T) id.Offset {
	return id.Offset(rapid.Int64Range(int64(x.m.start), int64(x.m.end())+2).Draw(t, "offset"))
}

func (x *machine) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"":        func(*rapid.T) { x.compare() },
		"append1": x.append, "append2": x.append, "append3": x.append, "append4": x.append,
		"sync": func(*rapid.T) {
			end, err := x.l.Sync()
			x.must(err)
			if end != x.m.end() {
				x.t.Fatalf("synced to %d of %d", end, x.m.end())
			}
		},
		"begin": func(*rapid.T) {
			x.epoch++
			x.must(x.l.BeginEpoch(x.epoch))
			x.m.begun = append(x.m.begun, EpochStart{x.epoch, x.m.end()})
		},
		"roll":       func(*rapid.T) { x.must(x.l.Roll(now)) },
		"checkpoint": func(*rapid.T) { x.must(x.l.Checkpoint()) },
		"truncate": func(t *rapid.T) {
			offset := x.offset(t)
			for _, b := range x.m.batches {
				if b.LastOffset() >= offset && b.BaseOffset() < x.m.start {
					t.Skip() // the log start would fall: TestTruncateInsideTheBatchOfTheLogStart
				}
			}
			end, err := x.l.TruncateTo(offset)
			x.must(err)
			if x.m.cut(offset); end != x.m.end() || x.l.SyncedEnd() > end {
				x.t.Fatalf("truncated to %d: end %d, want %d", offset, end, x.m.end())
			}
			x.resend(t)
		},
		"setLogStart": func(t *rapid.T) {
			start := min(x.offset(t), x.m.end())
			x.must(x.l.SetLogStart(start))
			x.m.start = max(x.m.start, start)
		},
		"startAnew": func(t *rapid.T) {
			if rapid.IntRange(0, 3).Draw(t, "rarely") != 0 {
				t.Skip()
			}
			offset := x.offset(t)
			x.must(x.l.TruncateFullyAndStartAt(offset, now))
			x.m = model{start: offset, base: offset}
		},
		"close": func(*rapid.T) {
			x.must(x.l.Close())
			if r := x.reopen(); !r.Clean {
				x.t.Fatalf("not clean after Close: %+v", r)
			}
		},
		"kill": func(*rapid.T) {
			if r := x.reopen(); r.CutBytes != 0 || r.Rot || r.LostBelow != 0 || len(r.Damaged) != 0 {
				x.t.Fatalf("after a kill: %+v", r)
			}
			x.forget()
		},
		"crash": func(t *rapid.T) {
			synced := x.l.SyncedEnd()
			x.fsys = x.fsys.CrashClone(x.rng, vfs.Crash{Keep: rapid.Float64Range(0, 1).Draw(t, "keep"), Torn: rapid.Bool().Draw(t, "torn")})
			if r := x.reopen(); r.LostBelow != 0 || len(r.Damaged) != 0 {
				x.t.Fatalf("after a crash: %+v", r)
			}
			end := x.l.LogEnd()
			if end < synced {
				x.t.Fatalf("synced to %d, after the crash the log ends at %d", synced, end)
			}
			if end < x.m.end() {
				x.m.cut(end)
			}
			if x.m.end() != end {
				x.t.Fatalf("the log ends at %d, in the middle of a batch", end)
			}
			x.forget()
		},
		"resend": x.resend,
	}
}

// forget allows what a crash may do to epochs without records: they are gone, or, at the log end, still there.
func (x *machine) forget() {
	x.m.begun = slices.DeleteFunc(x.m.begun, func(e EpochStart) bool { return !slices.Contains(x.l.Epochs(), e) })
	if n := len(x.l.Epochs()); n > 0 {
		if e := x.l.Epochs()[n-1]; e.Start == x.m.end() && e.Epoch <= x.epoch {
			x.m.begun = append(x.m.begun, e)
		}
	}
}

// resend repeats remembered batches: each must be answered with its first offset. A gap must be refused.
func (x *machine) resend(*rapid.T) {
	for pid := int64(0); pid <= 1; pid++ {
		last := x.m.remembered(pid)
		for _, b := range last {
			a, err := x.l.AppendAsLeader(bytes.Clone(b), x.epoch, now)
			if err != nil || !a.Duplicate || a.Base != b.BaseOffset() || a.Last != b.LastOffset() {
				x.t.Fatalf("resend of producer %d sequence %d: %+v %v, want offset %d", pid, b.BaseSequence(), a, err, b.BaseOffset())
			}
		}
		if len(last) > 0 {
			h := record.PlainHeader()
			h.ProducerID, h.ProducerEpoch, h.BaseSequence = pid, last[0].ProducerEpoch(), record.AddSequence(last[0].LastSequence(), 2)
			if _, err := x.l.AppendAsLeader(batch(x.t, 1, 10, "gap", func(to *record.BatchHeader) { *to = h }), x.epoch, now); !errors.Is(err, ErrOutOfOrderSequence) {
				x.t.Fatalf("gap: %v", err)
			}
		}
	}
}

func (x *machine) compare() {
	x.t.Helper()
	l, m := x.l, &x.m
	if l.LogStart() != m.start || l.LogEnd() != m.end() {
		x.t.Fatalf("log is [%d, %d), want [%d, %d)", l.LogStart(), l.LogEnd(), m.start, m.end())
	}
	if !slices.Equal(cutEpochsBelow(l.Epochs(), m.start), m.epochs()) {
		x.t.Fatalf("epochs %v, want %v", l.Epochs(), m.epochs())
	}
	var want []record.Batch
	for _, b := range m.batches {
		if b.LastOffset() >= m.start {
			want = append(want, b)
		}
	}
	got := readAll(x.t, l)
	if !slices.EqualFunc(got, want, func(a, b record.Batch) bool { return bytes.Equal(a, b) }) {
		x.t.Fatalf("%d batches, want %d, or their bytes differ", len(got), len(want))
	}
	x.compareTimes(want)
}

func (x *machine) compareTimes(batches []record.Batch) {
	c := record.NewCodecs(0)
	for _, ts := range []int64{now - 51, now - 20, now, now + 30, now + 51} {
		want, found := TimedOffset{}, false
		for _, b := range batches {
			records, err := c.Records(b)
			x.must(err)
			var rec record.Record
			for !found {
				more, err := records.Next(&rec)
				x.must(err)
				if !more {
					break
				}
				if rec.Timestamp >= ts && rec.Offset >= x.m.start {
					want, found = TimedOffset{rec.Offset, rec.Timestamp, b.LeaderEpoch()}, true
				}
			}
		}
		got, ok, err := x.l.OffsetForTime(ts)
		if err != nil || ok != found || got != want {
			x.t.Fatalf("time %d: %+v %t %v, want %+v %t", ts, got, ok, err, want, found)
		}
	}
}

func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := &machine{t: t, fsys: vfs.NewMem(nil), rng: rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))}
		x.cfg = Config{SegmentBytes: rapid.Int64Range(300, 3000).Draw(t, "segment"), IndexIntervalBytes: rapid.Int64Range(1, 500).Draw(t, "interval")}
		x.reopen()
		t.Repeat(x.actions())
	})
}

// TestPowerLossInsideOperations takes the power at a random disk operation within a random action, and looks at what is left: it must
// be the log before or the log after, cut at most at what was not synced.
func TestPowerLossInsideOperations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := &machine{t: t, fsys: vfs.NewMem(nil), rng: rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))}
		x.cfg = Config{SegmentBytes: rapid.Int64Range(300, 2000).Draw(t, "segment"), IndexIntervalBytes: 100}
		x.reopen()
		actions := x.actions()
		for _, name := range []string{"resend", "kill", "crash"} {
			delete(actions, name)
		}
		for name, action := range actions {
			if name == "" {
				continue
			}
			actions[name] = func(t *rapid.T) {
				left := rapid.IntRange(0, 50).Draw(t, "powerLossAt")
				crash := vfs.Crash{Keep: rapid.Float64Range(0, 1).Draw(t, "keep"), Torn: rapid.Bool().Draw(t, "torn")}
				var after *vfs.Mem
				x.hook = func(vfs.Op) error {
					if left--; left == 0 {
						after = x.fsys.CrashClone(x.rng, crash)
					}
					return nil
				}
				before, synced := x.m, x.l.SyncedEnd()
				before.batches = slices.Clone(before.batches)
				action(t)
				x.hook = nil
				if after != nil {
					x.examine(after, &before, synced)
				}
			}
		}
		t.Repeat(actions)
	})
}

// examine opens what a power loss left within an action that led from the state before to x.m.
func (x *machine) examine(fsys *vfs.Mem, before *model, synced id.Offset) {
	x.t.Helper()
	l, r, err := Open(fsys, "data/t-0", x.cfg, now)
	x.must(err)
	if r.LostBelow != 0 || r.Rot || len(r.Damaged) != 0 {
		x.t.Fatalf("power loss: %+v", r)
	}
	anew := x.m.base != before.base
	if kept := min(synced, x.m.end()); l.LogEnd() < kept && !anew {
		x.t.Fatalf("power loss: synced to %d, log ends at %d", kept, l.LogEnd())
	}
	if start := min(before.start, x.m.start); l.LogStart() < start && !anew {
		x.t.Fatalf("power loss: log start %d, was %d", l.LogStart(), start)
	}
	known := map[id.Offset][]record.Batch{}
	for _, b := range slices.Concat(before.batches, x.m.batches) {
		known[b.BaseOffset()] = append(known[b.BaseOffset()], b)
	}
	for _, b := range readAll(x.t, l) {
		if !slices.ContainsFunc(known[b.BaseOffset()], func(k record.Batch) bool { return bytes.Equal(b, k) }) {
			x.t.Fatalf("power loss: batch at %d was never appended", b.BaseOffset())
		}
	}
	end := l.LogEnd()
	if anew && l.LogStart() == end && end == x.m.base && end > before.end() && (len(l.Producers()) > 0 || len(l.Epochs()) > 0) {
		x.t.Fatalf("power loss: started anew at %d, but knows producers %v and epochs %v", end, l.Producers(), l.Epochs())
	}
	for _, e := range l.Epochs() {
		if e.Start > end {
			x.t.Fatalf("power loss: epoch %v begins beyond the log end %d", e, end)
		}
	}
	for _, b := range slices.Concat(before.batches, x.m.batches) {
		if b.ProducerID() < 0 || b.LastOffset() < end {
			continue
		}
		if old, _ := l.writer.producers.judge(b); old != nil && old.last >= end {
			x.t.Fatalf("power loss: batch at %d is taken for a duplicate, but the log ends at %d", b.BaseOffset(), end)
		}
	}
	// It must be a working log.
	if a, err := l.AppendAsLeader(batch(x.t, 2, 10, "after", nil), x.epoch+1, now); err != nil || a.Base != end {
		x.t.Fatalf("append after power loss: %+v %v", a, err)
	}
	x.must(l.Close())
}
