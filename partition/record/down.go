package record

import (
	"fmt"

	"github.com/barnabas-mq/barnabas/internal/id"
)

func offset(i int) id.Offset { return id.Offset(i) }

// DownRules says how stored batches are turned into a message set for an old fetcher.
type DownRules struct {
	// Magic is 0 (Fetch v0, v1) or 1 (Fetch v2, v3).
	Magic int8
	// From is the fetch offset: records below it are left out.
	From id.Offset
	// UpTo leaves out records at and above it (the high watermark); 0 means no such limit.
	UpTo id.Offset
	// MaxBytes bounds the set. With AtLeastOne (KIP-74) the first message is sent whole even if it is larger; without, it is cut
	// off, by which clients before 0.10.1 notice that their fetch size is too small.
	MaxBytes   int
	AtLeastOne bool
}

// Down is a converted set.
type Down struct {
	// Set is the message set, ready to be sent.
	Set []byte
	// Next is the offset after the last record considered. If Set is empty and Next is below the high watermark, what was read
	// held nothing for old clients (control batches, holes of compaction): read on from Next, or they never get past it.
	Next id.Offset
}

// DownConvert converts whole magic 2 batches, in order, which have passed Check. Headers and control batches are left out. A
// codec is kept, as one wrapper message per batch: gzip; snappy with xerial's framing; LZ4, for magic 0 with its wrong checksum.
// zstd, which no client of these formats knows, becomes plain messages. A wrapper too large for MaxBytes becomes as many plain
// messages as fit. Errors: ErrCorrupt, ErrInvalidRecord, ErrTooLarge (unpacks beyond the cap), ErrUnsupportedFormat.
func (c *Codecs) DownConvert(dst, batches []byte, r DownRules) (Down, error) {
	if r.Magic < 0 || r.Magic > 1 {
		return Down{}, fmt.Errorf("%w: cannot convert down to magic %d", ErrUnsupportedFormat, r.Magic)
	}
	w := downWriter{c: c, r: r, out: dst, start: len(dst), next: r.From}
	for len(batches) > 0 && !w.full {
		b, rest, err := Next(batches)
		if err != nil {
			return Down{}, err
		}
		batches = rest
		if r.UpTo > 0 && b.BaseOffset() >= r.UpTo {
			break
		}
		if b.IsControl() || b.Count() == 0 || b.LastOffset() < r.From {
			w.next = max(w.next, b.LastOffset()+1)
			continue
		}
		if err := w.batch(b); err != nil {
			return Down{}, err
		}
	}
	return Down{Set: w.out[w.start:], Next: w.next}, nil
}

// downWriter writes one set.
type downWriter struct {
	c     *Codecs
	r     DownRules
	out   []byte
	start int
	next  id.Offset
	full  bool
}

func (w *downWriter) room() int { return w.r.MaxBytes - (len(w.out) - w.start) }

func (w *downWriter) batch(b Batch) error {
	if codec := b.Codec(); codec != None && codec != Zstd {
		done, err := w.wrapped(b, codec)
		if done || err != nil {
			return err
		}
	}
	return w.plain(b)
}

// each calls fn for the records of b that are asked for, until it returns false.
func (w *downWriter) each(b Batch, fn func(*Record) bool) error {
	records, err := w.c.Records(b)
	if err != nil {
		return err
	}
	var rec Record
	for {
		more, err := records.Next(&rec)
		if !more {
			return err
		}
		if w.r.UpTo > 0 && rec.Offset >= w.r.UpTo {
			return nil
		}
		if rec.Offset >= w.r.From && !fn(&rec) {
			return nil
		}
	}
}

// plain writes uncompressed messages while there is room.
func (w *downWriter) plain(b Batch) error {
	err := w.each(b, func(rec *Record) bool {
		m := message{offset: int64(rec.Offset), magic: w.r.Magic, tsType: b.TimestampType(), timestamp: rec.Timestamp, key: rec.Key, value: rec.Value}
		size := msgOverhead(m.magic) + len(m.key) + len(m.value)
		if size > w.room() {
			w.full = true
			if len(w.out) > w.start {
				return false
			}
			w.out = appendMessage(w.out, &m)
			if w.r.AtLeastOne {
				w.next = rec.Offset + 1
			} else {
				w.out = w.out[:w.start+max(w.r.MaxBytes, 0)]
			}
			return false
		}
		w.out = appendMessage(w.out, &m)
		w.next = rec.Offset + 1
		return true
	})
	if err == nil && !w.full {
		w.passed(b)
	}
	return err
}

// passed moves next behind a batch of which nothing is left.
func (w *downWriter) passed(b Batch) {
	if w.r.UpTo == 0 || b.LastOffset() < w.r.UpTo {
		w.next = max(w.next, b.LastOffset()+1)
	}
}

// wrapped writes the batch as one packed message; false, with nothing written, if that is too large for the first in the set.
func (w *downWriter) wrapped(b Batch, codec Codec) (done bool, err error) {
	inner := w.c.scratch[:0]
	wrapper := message{magic: w.r.Magic, codec: codec, tsType: b.TimestampType(), timestamp: NoTimestamp}
	first := id.Offset(-1)
	err = w.each(b, func(rec *Record) bool {
		if first < 0 {
			first = rec.Offset
		}
		m := message{offset: int64(rec.Offset), magic: w.r.Magic, tsType: b.TimestampType(), timestamp: rec.Timestamp, key: rec.Key, value: rec.Value}
		if m.magic == 1 {
			m.offset -= int64(first)
		}
		inner = appendMessage(inner, &m)
		wrapper.offset = int64(rec.Offset)
		wrapper.timestamp = max(wrapper.timestamp, rec.Timestamp)
		return true
	})
	w.c.scratch = inner[:0]
	if err != nil {
		return false, err
	}
	if first < 0 {
		w.passed(b)
		return true, nil
	}
	if wrapper.value, err = w.c.compress(nil, codec, w.r.Magic, inner); err != nil {
		return false, err
	}
	if msgOverhead(w.r.Magic)+len(wrapper.value) > w.room() {
		if len(w.out) == w.start {
			return false, nil // plain messages can be sent in parts
		}
		w.full = true
		return true, nil
	}
	w.out = appendMessage(w.out, &wrapper)
	w.next = id.Offset(wrapper.offset) + 1
	w.passed(b)
	return true, nil
}
