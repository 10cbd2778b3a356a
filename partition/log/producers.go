package log

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/vfs"
	"github.com/barnabas-mq/barnabas/partition/record"
)

// rememberedBatches is how many batches of a producer are known by offset (KIP-98; as many as a client may have in flight).
const rememberedBatches = 5

// producers is the idempotent producers' state, by producer id (ProducerStateManager).
type producers map[int64]*producer

type producer struct {
	epoch    int16
	lastSeen int64           // milliseconds of the clock that appends are given; for expiry
	batches  []producerBatch // newest last, at most five; empty if only markers were seen
}

type producerBatch struct {
	firstSeq, lastSeq int32
	base, last        id.Offset
	timestamp         int64 // largest of the batch
}

func batchOf(b record.Batch) producerBatch {
	return producerBatch{b.BaseSequence(), b.LastSequence(), b.BaseOffset(), b.LastOffset(), b.MaxTimestamp()}
}

// judge says whether a leader may append b: nil; or, with a batch, that it is there already; or the error. An unknown
// producer may begin with any sequence: its state may have expired (KIP-360, cases.md 24).
func (ps producers) judge(b record.Batch) (*producerBatch, error) {
	p := ps[b.ProducerID()]
	if p == nil || b.BaseSequence() < 0 {
		return nil, p.fenced(b)
	}
	if err := p.fenced(b); err != nil {
		return nil, err
	}
	if b.ProducerEpoch() > p.epoch {
		if b.BaseSequence() != 0 {
			return nil, fmt.Errorf("%w: producer %d begins epoch %d with sequence %d", ErrOutOfOrderSequence, b.ProducerID(), b.ProducerEpoch(),
				b.BaseSequence())
		}
		return nil, nil
	}
	if len(p.batches) == 0 {
		return nil, nil
	}
	for i := range p.batches {
		if old := &p.batches[i]; old.firstSeq == b.BaseSequence() && old.lastSeq == b.LastSequence() {
			return old, nil
		}
	}
	expected := record.AddSequence(p.batches[len(p.batches)-1].lastSeq, 1)
	if b.BaseSequence() == expected {
		return nil, nil
	}
	sentinel := ErrOutOfOrderSequence
	if before(b.BaseSequence(), expected) && before(b.LastSequence(), expected) {
		sentinel = ErrDuplicateSequence
	}
	return nil, fmt.Errorf("%w: producer %d epoch %d sent %d to %d, expected is %d", sentinel, b.ProducerID(), b.ProducerEpoch(), b.BaseSequence(),
		b.LastSequence(), expected)
}

func (p *producer) fenced(b record.Batch) error {
	if p != nil && b.ProducerEpoch() < p.epoch {
		return fmt.Errorf("%w: producer %d has epoch %d, this is %d", ErrProducerFenced, b.ProducerID(), p.epoch, b.ProducerEpoch())
	}
	return nil
}

// before says that seq lies behind expected, in the half of the circle of sequence numbers that precedes it.
func before(seq, expected int32) bool {
	const circle = 1 << 31
	distance := (int64(expected) - int64(seq) + circle) % circle
	return distance > 0 && distance <= circle/2
}

// update takes note of an appended batch, without judging it.
func (ps producers) update(b record.Batch, now int64) {
	pid := b.ProducerID()
	if pid < 0 {
		return
	}
	p := ps[pid]
	if p == nil || p.epoch != b.ProducerEpoch() {
		p = &producer{epoch: b.ProducerEpoch()}
		ps[pid] = p
	}
	p.lastSeen = max(p.lastSeen, now)
	if b.IsControl() || b.BaseSequence() < 0 {
		return
	}
	if len(p.batches) == rememberedBatches {
		copy(p.batches, p.batches[1:])
		p.batches = p.batches[:rememberedBatches-1]
	}
	p.batches = append(p.batches, batchOf(b))
}

// ProducerInfo describes a producer known to the log (DescribeProducers).
type ProducerInfo struct {
	ID           int64
	Epoch        int16
	LastSequence int32 // -1 if none is known
	LastSeen     int64 // as given to the append, milliseconds
}

// Producers lists the idempotent producers known, by id.
func (l *Log) Producers() []ProducerInfo {
	l.writer.Lock()
	defer l.writer.Unlock()
	out := make([]ProducerInfo, 0, len(l.writer.producers))
	for _, pid := range slices.Sorted(maps.Keys(l.writer.producers)) {
		p := l.writer.producers[pid]
		info := ProducerInfo{ID: pid, Epoch: p.epoch, LastSequence: -1, LastSeen: p.lastSeen}
		if n := len(p.batches); n > 0 {
			info.LastSequence = p.batches[n-1].lastSeq
		}
		out = append(out, info)
	}
	return out
}

// ExpireProducers forgets producers last seen before the given time, and returns how many. It is the only way but truncation that
// state goes: removal of their records does not touch it.
func (l *Log) ExpireProducers(before int64) int {
	l.writer.Lock()
	defer l.writer.Unlock()
	n := len(l.writer.producers)
	maps.DeleteFunc(l.writer.producers, func(_ int64, p *producer) bool { return p.lastSeen < before })
	if len(l.writer.producers) < n {
		l.writer.settled = false
	}
	return n - len(l.writer.producers)
}

// A producers file: "BPS1", CRC-32C of the rest, count; per producer, ids ascending: id 8, epoch 2, lastSeen 8, batches 1; per batch:
// firstSeq 4, lastSeq 4, base 8, last 8, timestamp 8. Big-endian.
const (
	producersMagic     = "BPS1"
	producersHeader    = 12
	producerSize       = 19
	producerBatchSize  = 32
	producersCRCOffset = 4
)

func (ps producers) encode() []byte {
	out := append([]byte(producersMagic), 0, 0, 0, 0)
	out = binary.BigEndian.AppendUint32(out, uint32(len(ps)))
	for _, pid := range slices.Sorted(maps.Keys(ps)) {
		p := ps[pid]
		out = binary.BigEndian.AppendUint64(out, uint64(pid))
		out = binary.BigEndian.AppendUint16(out, uint16(p.epoch))
		out = binary.BigEndian.AppendUint64(out, uint64(p.lastSeen))
		out = append(out, byte(len(p.batches)))
		for _, b := range p.batches {
			out = binary.BigEndian.AppendUint32(out, uint32(b.firstSeq))
			out = binary.BigEndian.AppendUint32(out, uint32(b.lastSeq))
			out = binary.BigEndian.AppendUint64(out, uint64(b.base))
			out = binary.BigEndian.AppendUint64(out, uint64(b.last))
			out = binary.BigEndian.AppendUint64(out, uint64(b.timestamp))
		}
	}
	binary.BigEndian.PutUint32(out[producersCRCOffset:], crc32.Checksum(out[producersCRCOffset+4:], crc32.MakeTable(crc32.Castagnoli)))
	return out
}

// decodeProducers is false for anything encode did not write.
func decodeProducers(p []byte) (producers, bool) {
	if len(p) < producersHeader || string(p[:4]) != producersMagic ||
		binary.BigEndian.Uint32(p[producersCRCOffset:]) != crc32.Checksum(p[producersCRCOffset+4:], crc32.MakeTable(crc32.Castagnoli)) {
		return nil, false
	}
	n := binary.BigEndian.Uint32(p[8:])
	p = p[producersHeader:]
	ps := producers{}
	for range n {
		if len(p) < producerSize {
			return nil, false
		}
		pid := int64(binary.BigEndian.Uint64(p))
		pr := &producer{epoch: int16(binary.BigEndian.Uint16(p[8:])), lastSeen: int64(binary.BigEndian.Uint64(p[10:]))}
		batches := int(p[18])
		p = p[producerSize:]
		if batches > rememberedBatches || len(p) < batches*producerBatchSize {
			return nil, false
		}
		for range batches {
			pr.batches = append(pr.batches, producerBatch{
				firstSeq: int32(binary.BigEndian.Uint32(p)), lastSeq: int32(binary.BigEndian.Uint32(p[4:])),
				base: id.Offset(binary.BigEndian.Uint64(p[8:])), last: id.Offset(binary.BigEndian.Uint64(p[16:])),
				timestamp: int64(binary.BigEndian.Uint64(p[24:])),
			})
			p = p[producerBatchSize:]
		}
		ps[pid] = pr
	}
	return ps, len(p) == 0
}

// writeProducers writes the state as of offset.
func (l *Log) writeProducers(offset id.Offset) error {
	return vfs.WriteFileAtomic(l.fs, segmentPath(l.dir, offset, producersSuffix), l.writer.producers.encode())
}

// producerFiles lists the offsets of the producers files, oldest first.
func producerFiles(fsys vfs.FS, dir string) ([]id.Offset, error) {
	names, err := fsys.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []id.Offset
	for _, n := range names {
		if offset, ok := parseSegmentName(n, producersSuffix); ok {
			out = append(out, offset)
		}
	}
	return out, nil
}

// loadProducers reads the newest good producers file at or below offset; state as of from. Without one: empty, as of 0.
func loadProducers(fsys vfs.FS, dir string, offset id.Offset) (ps producers, from id.Offset, err error) {
	offsets, err := producerFiles(fsys, dir)
	if err != nil {
		return nil, 0, err
	}
	for _, o := range slices.Backward(offsets) {
		if o > offset {
			continue
		}
		data, err := vfs.ReadFile(fsys, segmentPath(dir, o, producersSuffix))
		if err != nil {
			return nil, 0, err
		}
		if ps, ok := decodeProducers(data); ok {
			return ps, o, nil
		}
	}
	return producers{}, 0, nil
}

// pruneProducers removes producers files that no truncation will need: those that are not at the base of a segment or at the end.
func (l *Log) pruneProducers(v *view) error {
	offsets, err := producerFiles(l.fs, l.dir)
	if err != nil {
		return err
	}
	for _, o := range offsets {
		_, sealed := slices.BinarySearchFunc(v.sealed, o, func(s *segment, o id.Offset) int { return int(max(-1, min(1, s.base-o))) })
		if !sealed && o != v.active.base {
			if err := l.fs.Remove(segmentPath(l.dir, o, producersSuffix)); err != nil {
				return err
			}
		}
	}
	return nil
}
