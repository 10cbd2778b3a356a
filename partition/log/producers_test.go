package log

import (
	"errors"
	"math"
	"testing"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/vfs"
	"github.com/barnabas-mq/barnabas/partition/record"
)

func produced(t testing.TB, pid int64, epoch int16, seq int32, n int) []byte {
	return batch(t, n, 10, "p", func(h *record.BatchHeader) { h.ProducerID, h.ProducerEpoch, h.BaseSequence = pid, epoch, seq })
}

// cases.md 12.
func TestRetriesGetTheFirstAnswer(t *testing.T) {
	fsys := vfs.NewMem(nil)
	l, _ := open(t, fsys, Config{})
	send := func(epoch int16, seq int32, n int) (Appended, error) {
		return l.AppendAsLeader(produced(t, 7, epoch, seq, n), 0, now)
	}
	for seq := range int32(5) {
		if a, err := send(0, seq, 1); err != nil || a.Base != id.Offset(seq) {
			t.Fatal(a, err)
		}
	}
	check := func(when string) {
		t.Helper()
		for seq := range int32(5) {
			if a, err := send(0, seq, 1); err != nil || !a.Duplicate || a.Base != id.Offset(seq) || a.Last != a.Base {
				t.Fatalf("%s: sequence %d: %+v %v", when, seq, a, err)
			}
		}
		if _, err := send(0, 7, 1); !errors.Is(err, ErrOutOfOrderSequence) {
			t.Fatalf("%s: gap: %v", when, err)
		}
		if _, err := send(0, 3, 4); !errors.Is(err, ErrOutOfOrderSequence) {
			t.Fatalf("%s: half old, half new: %v", when, err)
		}
		if l.LogEnd() != 5 {
			t.Fatalf("%s: log end %d", when, l.LogEnd())
		}
	}
	check("live")
	l, _ = open(t, fsys, Config{})
	check("after a kill")
	must(t, l.Close())
	l, _ = open(t, fsys, Config{})
	check("after a close")
	must(t, l.SetLogStart(5))
	check("after its records were deleted")
	must(t, l.Close())
	l, _ = open(t, fsys, Config{})
	check("after its records were deleted and a close")

	for seq := int32(5); seq < 15; seq++ {
		_, err := send(0, seq, 1)
		must(t, err)
	}
	if _, err := send(0, 0, 1); !errors.Is(err, ErrDuplicateSequence) || l.LogEnd() != 15 {
		t.Fatalf("older than the window: %v, log end %d", err, l.LogEnd())
	}
	if _, err := send(1, 3, 1); !errors.Is(err, ErrOutOfOrderSequence) {
		t.Fatalf("a new epoch begins with 0: %v", err)
	}
	if a, err := send(1, 0, 2); err != nil || a.Base != 15 {
		t.Fatal(a, err)
	}
	if _, err := send(0, 15, 1); !errors.Is(err, ErrProducerFenced) {
		t.Fatalf("old epoch: %v", err)
	}
}

// cases.md 24: a producer that nobody knows any more is let in, whatever its sequence.
func TestUnknownProducerBeginsAnywhere(t *testing.T) {
	l, _ := open(t, vfs.NewMem(nil), Config{})
	for seq := range int32(7) {
		_, err := l.AppendAsLeader(produced(t, 7, 0, seq, 1), 0, now+int64(seq))
		must(t, err)
	}
	must(t, l.SetLogStart(7))
	if _, err := l.AppendAsLeader(produced(t, 7, 0, 7, 1), 0, now+7); err != nil {
		t.Fatalf("its records are gone, not its state: %v", err)
	}
	if n := l.ExpireProducers(now + 7); n != 0 {
		t.Fatalf("%d expired that were just seen", n)
	}
	if n := l.ExpireProducers(now + 8); n != 1 || len(l.Producers()) != 0 {
		t.Fatalf("%d expired", n)
	}
	if _, err := l.AppendAsLeader(produced(t, 7, 0, 14, 1), 0, now+9); err != nil {
		t.Fatal(err)
	}
	if got := l.Producers(); len(got) != 1 || got[0] != (ProducerInfo{ID: 7, Epoch: 0, LastSequence: 14, LastSeen: now + 9}) {
		t.Fatal(got)
	}
}

func TestSequencesWrap(t *testing.T) {
	l, _ := open(t, vfs.NewMem(nil), Config{})
	for _, b := range [][]byte{produced(t, 1, 0, math.MaxInt32-1, 2), produced(t, 1, 0, 0, 2)} {
		_, err := l.AppendAsLeader(b, 0, now)
		must(t, err)
	}
	if _, err := l.AppendAsLeader(produced(t, 1, 0, math.MaxInt32-5, 2), 0, now); !errors.Is(err, ErrDuplicateSequence) {
		t.Fatal(err)
	}
	l, _ = open(t, vfs.NewMem(nil), Config{})
	for _, b := range [][]byte{produced(t, 1, 0, math.MaxInt32-1, 4), produced(t, 1, 0, 2, 2)} {
		_, err := l.AppendAsLeader(b, 0, now)
		must(t, err)
	}
}

// A follower takes what its leader took, and answers retries once it leads.
func TestFollowerKnowsTheProducers(t *testing.T) {
	leader, _ := open(t, vfs.NewMem(nil), Config{})
	for seq := range int32(3) {
		_, err := leader.AppendAsLeader(produced(t, 7, 0, seq, 1), 4, now)
		must(t, err)
	}
	data, err := leader.Read(Fetch{MaxBytes: 1 << 20, UpTo: All})
	must(t, err)
	follower, _ := open(t, vfs.NewMem(nil), Config{})
	a, err := follower.AppendAsFollower(data, now)
	if err != nil || a.Base != 0 || a.Last != 2 {
		t.Fatal(a, err)
	}
	if a, err := follower.AppendAsLeader(produced(t, 7, 0, 1, 1), 5, now); err != nil || !a.Duplicate || a.Base != 1 {
		t.Fatal(a, err)
	}
}

func FuzzDecodeProducers(f *testing.F) {
	ps := producers{}
	ps.update(record.Batch(produced(f, 7, 0, 3, 2)), now)
	f.Add(ps.encode())
	f.Add([]byte(producersMagic))
	f.Fuzz(func(t *testing.T, data []byte) {
		if ps, ok := decodeProducers(data); ok && string(ps.encode()) != string(data) {
			t.Fatal("decoded what encode does not write")
		}
	})
}
