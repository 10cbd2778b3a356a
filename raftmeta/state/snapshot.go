package state

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/barnabas-mq/barnabas/internal/id"
)

// A snapshot is
//
//	magic "barnabas-state\n" | header | sections | 0 | SHA-256 of all before it
//	header  = length-prefixed message: 1 format, 2 level, 3 cluster id, 4 index, 5 term
//	section = table number (1 byte) | length-prefixed messages {1 key, 2 row} in key order | length 0
//
// so each table is a stream of length-prefixed protobuf messages. A section, field or format that this build does not
// know is an error: it was written by a newer build, and leaving something out would make the state another one.

const (
	snapshotMagic  = "barnabas-state\n"
	snapshotFormat = 1
	maxRowBytes    = 256 << 20 // a lane's kept results are the largest row
)

// ErrSnapshot is wrapped by every error about a snapshot's content.
var ErrSnapshot = errors.New("state snapshot")

// Snapshot is the state after one entry, ready to be written while Apply goes on.
type Snapshot struct {
	view  *View
	lanes map[uint64]lane
}

// Index and Term name the last entry in the snapshot.
func (n *Snapshot) Index() id.Index { return n.view.index }

// Term is the term of the entry at Index.
func (n *Snapshot) Term() id.Term { return n.view.term }

// Snapshot takes the state as it is; it costs a copy of the lanes' result lists only.
func (s *State) Snapshot() *Snapshot {
	n := &Snapshot{view: s.view, lanes: map[uint64]lane{}}
	for k, l := range s.lanes {
		c := *l
		c.results = slices.Clone(l.results)
		n.lanes[k] = c
	}
	return n
}

type snapWriter struct {
	w   *bufio.Writer
	sum hash.Hash
	n   int64
	err error
}

func (w *snapWriter) write(b []byte) {
	if w.err != nil {
		return
	}
	w.sum.Write(b)
	var n int
	n, w.err = w.w.Write(b)
	w.n += int64(n)
}

func (w *snapWriter) message(fn func(*enc)) {
	var e enc
	fn(&e)
	w.write(protowire.AppendVarint(nil, uint64(len(e.b))))
	w.write(e.b)
}

func (w *snapWriter) row(key string, encode func(*enc)) {
	w.message(func(e *enc) { e.put(1, []byte(key)); e.sub(2, encode) })
}

func writeSection[T any, R row[T]](w *snapWriter, table byte, t *tree[R]) {
	w.write([]byte{table})
	t.Scan(func(k string, r R) bool {
		w.row(k, r.encode)
		return w.err == nil
	})
	w.write([]byte{0})
}

// WriteTo writes the snapshot; equal states give equal bytes.
func (n *Snapshot) WriteTo(out io.Writer) (int64, error) {
	w := &snapWriter{w: bufio.NewWriterSize(out, 1<<16), sum: sha256.New()}
	v := n.view
	w.write([]byte(snapshotMagic))
	w.message(func(e *enc) {
		e.u64(1, snapshotFormat)
		e.u64(2, uint64(v.meta.Level))
		e.str(3, v.meta.ClusterID)
		e.u64(4, uint64(v.index))
		e.u64(5, uint64(v.term))
	})
	w.write([]byte{tMeta})
	w.row("", v.meta.encode)
	w.write([]byte{0, tLanes})
	ids := make([]uint64, 0, len(n.lanes))
	for k := range n.lanes {
		ids = append(ids, k)
	}
	slices.Sort(ids)
	for _, k := range ids {
		l := n.lanes[k]
		w.row(keyU64(k), l.encode)
	}
	w.write([]byte{0})
	writeSection(w, tBrokers, v.brokers)
	writeSection(w, tTopics, v.topics)
	writeSection(w, tPartitions, v.partitions)
	writeSection(w, tConfigs, v.configs)
	writeSection(w, tSessions, v.sessions)
	writeSection(w, tZnodes, v.znodes)
	writeSection(w, tGroups, v.groups)
	writeSection(w, tOffsets, v.offsets)
	writeSection(w, tLegacies, v.legacies)
	writeSection(w, tFences, v.fences)
	w.write([]byte{0})
	sum := w.sum.Sum(nil)
	w.write(sum)
	if w.err == nil {
		w.err = w.w.Flush()
	}
	return w.n, w.err
}

type snapReader struct {
	r   *bufio.Reader
	sum hash.Hash
}

func (r *snapReader) full(n uint64) ([]byte, error) {
	var buf bytes.Buffer // grows as bytes arrive: a wrong length costs no memory
	if _, err := io.CopyN(&buf, r.r, int64(n)); err != nil {
		return nil, fmt.Errorf("%w: cut short: %w", ErrSnapshot, err)
	}
	r.sum.Write(buf.Bytes())
	return buf.Bytes(), nil
}

// message reads one length-prefixed message; nil at the end of a section.
func (r *snapReader) message() ([]byte, error) {
	n, err := binary.ReadUvarint(r.r)
	if err != nil {
		return nil, fmt.Errorf("%w: cut short: %w", ErrSnapshot, err)
	}
	if n > maxRowBytes {
		return nil, fmt.Errorf("%w: a row of %d bytes", ErrSnapshot, n)
	}
	r.sum.Write(protowire.AppendVarint(nil, n))
	if n == 0 {
		return nil, nil
	}
	return r.full(n)
}

func (r *snapReader) rows(fn func(key string, row *dec) error) error {
	for {
		b, err := r.message()
		if err != nil || b == nil {
			return err
		}
		d, key, body := dec{b: b}, "", []byte(nil)
		for d.next() {
			switch d.num {
			case 1:
				key = d.str()
			case 2:
				body = d.raw()
			default:
				d.unknown()
			}
		}
		if d.err != nil {
			return fmt.Errorf("%w: %w", ErrSnapshot, d.err)
		}
		in := dec{b: body}
		if err := fn(key, &in); err != nil {
			return err
		}
		if in.err != nil {
			return fmt.Errorf("%w: %w", ErrSnapshot, in.err)
		}
	}
}

func readSection[T any, R row[T]](r *snapReader, t *table[T, R], then func(R)) error {
	return r.rows(func(key string, d *dec) error {
		x := R(new(T))
		x.decode(d)
		t.put(key, x)
		if then != nil {
			then(x)
		}
		return nil
	})
}

// Restore reads a snapshot into a new State. track turns the state hash on. Every fault of the bytes is an error that
// wraps ErrSnapshot; nothing is half restored.
func Restore(in io.Reader, track bool) (*State, error) {
	r := &snapReader{r: bufio.NewReaderSize(in, 1<<16), sum: sha256.New()}
	s := New()
	if track {
		s.TrackHash()
	}
	if err := r.header(s); err != nil {
		return nil, err
	}
	for {
		kind, err := r.full(1)
		if err != nil {
			return nil, err
		}
		if kind[0] == 0 {
			break
		}
		if err := s.restoreSection(r, kind[0]); err != nil {
			return nil, err
		}
	}
	want := r.sum.Sum(nil)
	got := make([]byte, len(want))
	if _, err := io.ReadFull(r.r, got); err != nil {
		return nil, fmt.Errorf("%w: its checksum is missing", ErrSnapshot)
	}
	if !bytes.Equal(got, want) {
		return nil, fmt.Errorf("%w: checksum mismatch: the file is damaged", ErrSnapshot)
	}
	s.view = s.freeze()
	return s, nil
}

func (r *snapReader) header(s *State) error {
	magic, err := r.full(uint64(len(snapshotMagic)))
	if err != nil {
		return err
	}
	if string(magic) != snapshotMagic {
		return fmt.Errorf("%w: not a barnabas state snapshot", ErrSnapshot)
	}
	b, err := r.message()
	if err != nil {
		return err
	}
	var format, level uint64
	d := dec{b: b}
	for d.next() {
		switch d.num {
		case 1:
			format = d.u64()
		case 2:
			level = d.u64()
		case 3:
			d.str()
		case 4:
			s.index = id.Index(d.u64())
		case 5:
			s.term = id.Term(d.u64())
		default:
			d.unknown()
		}
	}
	switch {
	case d.err != nil:
		return fmt.Errorf("%w: %w", ErrSnapshot, d.err)
	case format != snapshotFormat:
		return fmt.Errorf("%w: format %d, this build reads %d", ErrSnapshot, format, snapshotFormat)
	case level > MaxLevel:
		return fmt.Errorf("%w: feature level %d, this build serves up to %d: run a newer build of barnabas", ErrSnapshot, level, MaxLevel)
	}
	return nil
}

func (s *State) restoreSection(r *snapReader, table byte) error {
	switch table {
	case tMeta:
		return r.rows(func(_ string, d *dec) error {
			s.meta = meta{}
			s.meta.decode(d)
			s.wallMs = s.meta.WallMs
			return nil
		})
	case tLanes:
		return r.rows(func(key string, d *dec) error {
			if len(key) != 8 {
				return fmt.Errorf("%w: a lane's key of %d bytes", ErrSnapshot, len(key))
			}
			l := new(lane)
			l.decode(d)
			s.lanes[binary.BigEndian.Uint64([]byte(key))] = l
			return nil
		})
	case tBrokers:
		return readSection(r, s.brokers, nil)
	case tTopics:
		return readSection(r, s.topics, func(t *Topic) { s.names.put(string(t.ID[:]), t) })
	case tPartitions:
		return readSection(r, s.partitions, nil)
	case tConfigs:
		return readSection(r, s.configs, nil)
	case tSessions:
		return readSection(r, s.sessions, nil)
	case tZnodes:
		return r.rows(s.restoreZnode)
	case tGroups:
		return readSection(r, s.groups, nil)
	case tOffsets:
		return readSection(r, s.offsets, nil)
	case tLegacies:
		return readSection(r, s.legacies, nil)
	case tFences:
		return readSection(r, s.fences, nil)
	}
	return fmt.Errorf("%w: unknown section %d (written by a newer build)", ErrSnapshot, table)
}

func (s *State) restoreZnode(key string, d *dec) error {
	z := new(Znode)
	z.decode(d)
	path, ok := znodePath(key)
	if !ok {
		return fmt.Errorf("%w: a znode's key without a parent", ErrSnapshot)
	}
	s.znodes.put(key, z)
	if o := z.Stat.EphemeralOwner; o >= firstSession && o < brokerOwner {
		s.ephemerals.put(ephemeralKey(o, path), &marker{})
	}
	return nil
}
