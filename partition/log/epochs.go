package log

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/vfs"
)

// epochsFile is Kafka's leader-epoch-checkpoint: version 0, count, and a line "epoch startOffset" each.
const epochsFile = "leader-epoch-checkpoint"

// EpochStart says where a leader epoch begins. Both rise from entry to entry (KIP-101).
type EpochStart struct {
	Epoch id.LeaderEpoch
	Start id.Offset
}

// EpochEnd answers OffsetForLeaderEpoch: the largest epoch at most the asked one, and where it ends. (-1, -1) if that is unknown.
type EpochEnd struct {
	Epoch id.LeaderEpoch
	End   id.Offset
}

// LatestEpoch is the newest leader epoch known to the log, or -1.
func (l *Log) LatestEpoch() id.LeaderEpoch { return l.view.Load().latestEpoch() }

// Epochs lists the leader epochs known, oldest first; the first may begin below the log start. The slice must not be changed.
func (l *Log) Epochs() []EpochStart { return l.view.Load().epochs }

// EndOffsetForEpoch says where the asked epoch ends in this log (KIP-101, KIP-279, LeaderEpochFileCache.endOffsetFor):
// the newest epoch ends at the log end; a newer one than that is unknown; for one that the log does not have, the largest
// below it counts; for one older than all, the asked epoch itself with the start of the oldest.
func (l *Log) EndOffsetForEpoch(asked id.LeaderEpoch) EpochEnd {
	v := l.view.Load()
	latest := v.latestEpoch()
	switch {
	case asked < 0 || asked > latest:
		return EpochEnd{-1, -1}
	case asked == latest:
		return EpochEnd{asked, v.end}
	}
	i := sort.Search(len(v.epochs), func(i int) bool { return v.epochs[i].Epoch > asked })
	if i == 0 {
		return EpochEnd{asked, max(v.epochs[0].Start, v.start)}
	}
	return EpochEnd{v.epochs[i-1].Epoch, v.epochs[i].Start}
}

// EpochAt is the leader epoch of the record at offset (below the log end), or -1 if unknown.
func (l *Log) EpochAt(offset id.Offset) id.LeaderEpoch { return epochAt(l.view.Load().epochs, offset) }

func epochAt(epochs []EpochStart, offset id.Offset) id.LeaderEpoch {
	i := sort.Search(len(epochs), func(i int) bool { return epochs[i].Start > offset })
	if i == 0 {
		return -1
	}
	return epochs[i-1].Epoch
}

// BeginEpoch notes that this replica leads at epoch from the log end on; call it when leadership begins, before the first append.
// It needs no disk: an epoch without records may be forgotten by a crash. Errors: ErrStaleEpoch, ErrClosed, ErrFailed.
func (l *Log) BeginEpoch(epoch id.LeaderEpoch) error {
	l.writer.Lock()
	defer l.writer.Unlock()
	v, err := l.writable()
	if err != nil {
		return err
	}
	if epoch < v.latestEpoch() {
		return fmt.Errorf("%w: %d, the log has %d", ErrStaleEpoch, epoch, v.latestEpoch())
	}
	next := *v
	next.epochs, err = addEpoch(v.epochs, EpochStart{epoch, v.end})
	if err != nil {
		return err
	}
	l.publish(&next)
	return nil
}

// addEpoch appends an entry if its epoch is new. Entries that begin at or after it hold no records and go.
func addEpoch(epochs []EpochStart, e EpochStart) ([]EpochStart, error) {
	if e.Epoch < 0 {
		return epochs, nil
	}
	if n := len(epochs); n > 0 && epochs[n-1].Epoch == e.Epoch {
		return epochs, nil
	}
	kept := cutEpochs(epochs, e.Start)
	if n := len(kept); n > 0 && kept[n-1].Epoch > e.Epoch {
		return nil, fmt.Errorf("%w: %d at offset %d, after %d", ErrStaleEpoch, e.Epoch, e.Start, kept[n-1].Epoch)
	} else if n > 0 && kept[n-1].Epoch == e.Epoch {
		return kept, nil
	}
	return append(kept, e), nil
}

// cutEpochs drops the entries that begin at or after end. The result may be appended to: it shares no spare capacity.
func cutEpochs(epochs []EpochStart, end id.Offset) []EpochStart {
	n := sort.Search(len(epochs), func(i int) bool { return epochs[i].Start >= end })
	return epochs[:n:n]
}

// cutEpochsBelow drops what ends before start. The epoch of the record before start stays, with its true beginning (Kafka moves
// that up): a truncation to the log start then still knows how the log goes on, and a scan what is older than its segment.
func cutEpochsBelow(epochs []EpochStart, start id.Offset) []EpochStart {
	n := sort.Search(len(epochs), func(i int) bool { return epochs[i].Start >= start })
	if n == 0 {
		return epochs
	}
	return epochs[n-1:]
}

func (l *Log) writeEpochs(epochs []EpochStart) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "0\n%d\n", len(epochs))
	for _, e := range epochs {
		fmt.Fprintf(&b, "%d %d\n", e.Epoch, e.Start)
	}
	return vfs.WriteFileAtomic(l.fs, filepath.Join(l.dir, epochsFile), b.Bytes())
}

var errBadEpochs = errors.New(epochsFile + " is damaged")

// readEpochs returns errBadEpochs for content that cannot be trusted, and vfs.ErrNotExist.
func readEpochs(fsys vfs.FS, dir string) ([]EpochStart, error) {
	data, err := vfs.ReadFile(fsys, filepath.Join(dir, epochsFile))
	if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	if len(lines) < 2 || lines[0] != "0" || lines[1] != strconv.Itoa(len(lines)-2) {
		return nil, errBadEpochs
	}
	var out []EpochStart
	for _, line := range lines[2:] {
		epoch, start, ok := strings.Cut(line, " ")
		e, err1 := strconv.ParseInt(epoch, 10, 32)
		s, err2 := strconv.ParseInt(start, 10, 64)
		if !ok || err1 != nil || err2 != nil {
			return nil, errBadEpochs
		}
		next := EpochStart{id.LeaderEpoch(e), id.Offset(s)}
		if n := len(out); n > 0 && (out[n-1].Epoch >= next.Epoch || out[n-1].Start >= next.Start) {
			return nil, errBadEpochs
		}
		out = append(out, next)
	}
	return out, nil
}
