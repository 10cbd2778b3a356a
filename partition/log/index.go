package log

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sort"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/vfs"
	"github.com/barnabas-mq/barnabas/partition/record"
)

// indexEntry maps a batch's last offset, relative to the segment, to its position. On disk: two big-endian int32.
type indexEntry struct {
	offset   uint32
	position uint32
}

// timeEntry says that the largest timestamp so far was first seen in the batch that ends at offset. On disk: int64, int32.
type timeEntry struct {
	timestamp int64
	offset    uint32
}

const (
	indexEntrySize = 8
	timeEntrySize  = 12
)

// appendTime adds an entry if it is newer than the last (TimeIndex.maybeAppend).
func appendTime(times []timeEntry, base id.Offset, m maxTimestamp) []timeEntry {
	if m.maxTS < 0 || len(times) > 0 && m.maxTS <= times[len(times)-1].timestamp {
		return times
	}
	return append(times, timeEntry{m.maxTS, uint32(m.maxTSOffset - base)})
}

func encodeIndex(entries []indexEntry) []byte {
	out := make([]byte, 0, len(entries)*indexEntrySize)
	for _, e := range entries {
		out = binary.BigEndian.AppendUint32(out, e.offset)
		out = binary.BigEndian.AppendUint32(out, e.position)
	}
	return out
}

func encodeTimes(entries []timeEntry) []byte {
	out := make([]byte, 0, len(entries)*timeEntrySize)
	for _, e := range entries {
		out = binary.BigEndian.AppendUint64(out, uint64(e.timestamp))
		out = binary.BigEndian.AppendUint32(out, e.offset)
	}
	return out
}

func decodeIndex(p []byte) []indexEntry {
	out := make([]indexEntry, len(p)/indexEntrySize)
	for i := range out {
		out[i] = indexEntry{binary.BigEndian.Uint32(p[i*indexEntrySize:]), binary.BigEndian.Uint32(p[i*indexEntrySize+4:])}
	}
	return out
}

func decodeTimes(p []byte) []timeEntry {
	out := make([]timeEntry, len(p)/timeEntrySize)
	for i := range out {
		out[i] = timeEntry{int64(binary.BigEndian.Uint64(p[i*timeEntrySize:])), binary.BigEndian.Uint32(p[i*timeEntrySize+8:])}
	}
	return out
}

var errBadIndex = errors.New("index file is damaged")

// loadIndexes reads and checks both index files of a segment with size bytes of log. errBadIndex (or not found) asks for a rebuild.
func loadIndexes(fsys vfs.FS, dir string, base id.Offset, size int64) ([]indexEntry, []timeEntry, error) {
	raw, err := vfs.ReadFile(fsys, segmentPath(dir, base, indexSuffix))
	if err != nil {
		return nil, nil, err
	}
	rawTimes, err := vfs.ReadFile(fsys, segmentPath(dir, base, timeIndexSuffix))
	if err != nil {
		return nil, nil, err
	}
	if len(raw)%indexEntrySize != 0 || len(rawTimes)%timeEntrySize != 0 {
		return nil, nil, fmt.Errorf("%w: %d and %d bytes are not whole entries", errBadIndex, len(raw), len(rawTimes))
	}
	index, times := decodeIndex(raw), decodeTimes(rawTimes)
	for i, e := range index {
		if int64(e.position) >= size || i > 0 && (e.offset <= index[i-1].offset || e.position <= index[i-1].position) {
			return nil, nil, fmt.Errorf("%w: entry %d does not rise, or points past the log", errBadIndex, i)
		}
	}
	for i, e := range times {
		if i > 0 && (e.timestamp <= times[i-1].timestamp || e.offset < times[i-1].offset) {
			return nil, nil, fmt.Errorf("%w: time entry %d does not rise", errBadIndex, i)
		}
	}
	return index, times, nil
}

// floorPosition is the position of the batch to begin at when looking for a relative offset.
func floorPosition(index []indexEntry, rel int64) int64 {
	i := sort.Search(len(index), func(i int) bool { return int64(index[i].offset) > rel })
	if i == 0 {
		return 0
	}
	return int64(index[i-1].position)
}

// floorTime is the relative offset to begin at when looking for a timestamp.
func floorTime(times []timeEntry, ts int64) int64 {
	i := sort.Search(len(times), func(i int) bool { return times[i].timestamp > ts })
	if i == 0 {
		return 0
	}
	return int64(times[i-1].offset)
}

// filePosition is floorPosition on the index file of a sealed segment, by binary search with small reads. An index that cannot be
// used costs a scan from the start, never an error.
func filePosition(fsys vfs.FS, dir string, s *segment, rel int64) int64 {
	f, err := fsys.Open(segmentPath(dir, s.base, indexSuffix))
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }()
	size, err := f.Size()
	if err != nil {
		return 0
	}
	var buf [indexEntrySize]byte
	at := func(i int) indexEntry {
		if n, rerr := f.ReadAt(buf[:], int64(i)*indexEntrySize); n < len(buf) {
			err = rerr
			return indexEntry{}
		}
		return indexEntry{binary.BigEndian.Uint32(buf[:]), binary.BigEndian.Uint32(buf[4:])}
	}
	i := sort.Search(int(size/indexEntrySize), func(i int) bool { return int64(at(i).offset) > rel })
	if i == 0 || err != nil {
		return 0
	}
	pos := int64(at(i - 1).position)
	if err != nil || pos >= s.size {
		return 0
	}
	return pos
}

// headerWindow is how much seek reads at once: a few batches' headers when they are small.
const headerWindow = 4096

// seek walks headers from pos, without CRCs, to the first batch whose last offset is at least offset. found is false if there is
// none before size.
func seek(f vfs.File, pos, size int64, match func(b record.Batch) bool) (at int64, total int64, found bool, err error) {
	buf := make([]byte, headerWindow)
	var have []byte
	for pos < size {
		if len(have) < record.HeaderSize {
			want := min(headerWindow, size-pos)
			if want < record.HeaderSize {
				return pos, 0, false, fmt.Errorf("%w: %d bytes are too few for a batch", record.ErrCorrupt, want)
			}
			n, err := f.ReadAt(buf[:want], pos)
			if err != nil && !(err == io.EOF && int64(n) == want) {
				return pos, 0, false, err
			}
			have = buf[:want]
		}
		total, magic, err := record.Peek(have)
		if err == nil && (magic != 2 || total < record.HeaderSize || total > size-pos) {
			err = fmt.Errorf("%w: magic %d, %d bytes where %d are left", record.ErrCorrupt, magic, total, size-pos)
		}
		if err != nil {
			return pos, 0, false, err
		}
		if match(record.Batch(have[:record.HeaderSize])) {
			return pos, total, true, nil
		}
		pos += total
		have = have[min(total, int64(len(have))):]
	}
	return pos, 0, false, nil
}
