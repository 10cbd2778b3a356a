package raftmeta

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/barnabas-mq/barnabas/internal/vfs"
)

// ErrSnapshotCorrupt marks a snapshot file whose bytes are not those that were written.
var ErrSnapshotCorrupt = errors.New("raftmeta: snapshot file is corrupt")

// errSnapshotStale refuses a received snapshot that ends at or below what this node has applied.
var errSnapshotStale = errors.New("raftmeta: received snapshot is not newer than the applied state")

const (
	snapFormat  = 1
	snapMagic   = "BNBSNAP1"
	snapSuffix  = ".snap"
	snapTmp     = ".tmp"
	snapFixed   = 16 // magic, length of the JSON, its checksum
	snapBlock   = 4096
	snapMaxHead = 1 << 20
	snapKeep    = 2

	snapSyncEvery = 4 << 20
	snapRest      = 2                    // times as long as the work before
	snapMaxRest   = 5 * time.Millisecond // a piece of 64 KiB takes a fraction of it
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// snapHeader is the JSON at the front of a snapshot file. It carries the checksum of the body, and its own checksum
// stands before it, so the whole file is covered. An unknown field is an error: a newer format than this build's.
type snapHeader struct {
	Format        int    `json:"format"`
	Level         uint32 `json:"level"`
	Cluster       string `json:"cluster"`
	Index         uint64 `json:"index"`
	Term          uint64 `json:"term"`
	Version       int    `json:"version"` // raft.SnapshotVersion
	Configuration []byte `json:"configuration"`
	ConfigIndex   uint64 `json:"configurationIndex"`
	BodySize      int64  `json:"bodySize"`
	BodyCRC       uint32 `json:"bodyCRC"`
}

// describeFunc reads level and cluster id from the front of a body.
type describeFunc func(body io.Reader) (level uint32, cluster string, err error)

// describeState reads level and cluster id from the header of a state snapshot (see state.Snapshot: magic line, then a
// length-prefixed message with 2 level, 3 cluster id).
func describeState(body io.Reader) (level uint32, cluster string, err error) {
	r := bufio.NewReader(body)
	if _, err := r.ReadSlice('\n'); err != nil {
		return 0, "", fmt.Errorf("raftmeta: snapshot body has no header: %w", err)
	}
	n, err := binary.ReadUvarint(r)
	if err != nil || n > snapBlock {
		return 0, "", fmt.Errorf("raftmeta: snapshot body has a header of %d bytes: %w", n, err)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return 0, "", fmt.Errorf("raftmeta: snapshot body's header is cut short: %w", err)
	}
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeField(b)
		if n < 0 {
			return 0, "", fmt.Errorf("raftmeta: snapshot body's header: %w", protowire.ParseError(n))
		}
		_, _, tag := protowire.ConsumeTag(b)
		switch {
		case num == 2 && typ == protowire.VarintType:
			v, _ := protowire.ConsumeVarint(b[tag:])
			level = uint32(v)
		case num == 3 && typ == protowire.BytesType:
			v, _ := protowire.ConsumeBytes(b[tag:])
			cluster = string(v)
		}
		b = b[n:]
	}
	return level, cluster, nil
}

// snapStore keeps raft's snapshots as files <index>-<term>.snap, the newest two of them. A file appears under its name
// only whole and synced; a crash leaves at most a .tmp, which the next open removes.
//
// File: magic, u32 length of the JSON header, u32 CRC32C of it, JSON padded with spaces to whole 4 KiB blocks, body.
type snapStore struct {
	fs       vfs.FS
	dir      string
	log      *slog.Logger
	describe describeFunc // nil in tests that have no state

	// receiving is the index of the InstallSnapshot being handled, 0 if none; applied is raft's applied index. raft
	// creates received and own snapshots alike; an own one never ends above applied, a received one always does.
	receiving func() uint64
	applied   func() uint64
	final     func(s snapRef, received bool) error // after the file is durable; must not block
	step      func(string)                         // test hook
	stopped   <-chan struct{}                      // own snapshots hurry from then on; nil: never

	seq atomic.Uint64
}

var _ raft.SnapshotStore = (*snapStore)(nil)

// openSnapStore makes the directory if need be and removes what an unfinished sink left.
func openSnapStore(fs vfs.FS, dir string, log *slog.Logger) (*snapStore, error) {
	if err := vfs.EnsureDir(fs, dir); err != nil {
		return nil, fmt.Errorf("raftmeta: snapshot directory: %w", err)
	}
	names, err := fs.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("raftmeta: list snapshots: %w", err)
	}
	for _, n := range names {
		if strings.HasSuffix(n, snapSuffix+snapTmp) {
			if err := fs.Remove(filepath.Join(dir, n)); err != nil {
				return nil, fmt.Errorf("raftmeta: remove unfinished snapshot: %w", err)
			}
		}
	}
	return &snapStore{
		fs: fs, dir: dir, log: log,
		receiving: func() uint64 { return 0 },
		applied:   func() uint64 { return 0 },
		final:     func(snapRef, bool) error { return nil },
	}, nil
}

func (s *snapStore) at(step string) {
	if s.step != nil {
		s.step(step)
	}
}

func snapName(index, term uint64) string { return fmt.Sprintf("%020d-%d%s", index, term, snapSuffix) }

// newest is the newest snapshot whose every byte is right; corrupt names newer ones that are not.
func (s *snapStore) newest() (ref snapRef, corrupt []string, err error) {
	names, err := s.names()
	if err != nil {
		return snapRef{}, nil, err
	}
	for _, n := range names {
		h, err := s.verify(n)
		if err == nil {
			return snapRef{h.Index, h.Term}, corrupt, nil
		}
		if !errors.Is(err, ErrSnapshotCorrupt) {
			return snapRef{}, nil, err
		}
		s.log.Error("snapshot skipped", "file", n, "err", err)
		corrupt = append(corrupt, n)
	}
	return snapRef{}, corrupt, nil
}

// names lists the snapshot files, newest first.
func (s *snapStore) names() ([]string, error) {
	all, err := s.fs.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("raftmeta: list snapshots: %w", err)
	}
	type named struct {
		index, term uint64
		name        string
	}
	var found []named
	for _, n := range all {
		var f named
		if _, err := fmt.Sscanf(n, "%d-%d"+snapSuffix, &f.index, &f.term); err == nil && snapName(f.index, f.term) == n {
			f.name = n
			found = append(found, f)
		}
	}
	slices.SortFunc(found, func(a, b named) int {
		return cmp.Or(cmp.Compare(b.index, a.index), cmp.Compare(b.term, a.term))
	})
	names := make([]string, len(found))
	for i, f := range found {
		names[i] = f.name
	}
	return names, nil
}

// readHeader reads and checks the header; body is the body's offset in the file.
func readSnapHeader(f vfs.File) (h snapHeader, body int64, err error) {
	var fixed [snapFixed]byte
	if _, err := f.ReadAt(fixed[:], 0); err != nil && err != io.EOF {
		return h, 0, err
	}
	n := binary.BigEndian.Uint32(fixed[8:])
	if string(fixed[:8]) != snapMagic || n > snapMaxHead {
		return h, 0, fmt.Errorf("%w: %s: no header", ErrSnapshotCorrupt, f.Name())
	}
	js := make([]byte, n)
	if _, err := f.ReadAt(js, snapFixed); err != nil && err != io.EOF {
		return h, 0, err
	}
	if crc32.Checksum(js, castagnoli) != binary.BigEndian.Uint32(fixed[12:]) {
		return h, 0, fmt.Errorf("%w: %s: header checksum", ErrSnapshotCorrupt, f.Name())
	}
	d := json.NewDecoder(bytes.NewReader(js))
	d.DisallowUnknownFields()
	if err := d.Decode(&h); err != nil {
		return h, 0, fmt.Errorf("raftmeta: snapshot %s has a header this build does not know: %w", f.Name(), err)
	}
	if h.Format != snapFormat {
		return h, 0, fmt.Errorf("raftmeta: snapshot %s has format %d, this build knows %d", f.Name(), h.Format, snapFormat)
	}
	size, err := f.Size()
	if err != nil {
		return h, 0, err
	}
	body = snapFixed + int64(n)
	if size != body+h.BodySize {
		return h, 0, fmt.Errorf("%w: %s: %d bytes, header says %d", ErrSnapshotCorrupt, f.Name(), size, body+h.BodySize)
	}
	return h, body, nil
}

// openVerified opens a snapshot and reads it whole once, so that no reader ever starts on bytes that turn out bad.
func (s *snapStore) openVerified(name string) (vfs.File, snapHeader, int64, error) {
	f, err := s.fs.Open(filepath.Join(s.dir, name))
	if err != nil {
		return nil, snapHeader{}, 0, fmt.Errorf("raftmeta: open snapshot: %w", err)
	}
	h, body, err := readSnapHeader(f)
	if err == nil {
		sum := crc32.New(castagnoli)
		if _, err = io.CopyBuffer(sum, io.NewSectionReader(f, body, h.BodySize), make([]byte, 256<<10)); err == nil && sum.Sum32() != h.BodyCRC {
			err = fmt.Errorf("%w: %s: body checksum", ErrSnapshotCorrupt, f.Name())
		}
	}
	if err != nil {
		return nil, h, 0, errors.Join(err, f.Close())
	}
	return f, h, body, nil
}

func (s *snapStore) verify(name string) (snapHeader, error) {
	f, h, _, err := s.openVerified(name)
	if err != nil {
		return h, err
	}
	return h, f.Close()
}

func (h snapHeader) meta(id string) *raft.SnapshotMeta {
	return &raft.SnapshotMeta{
		Version: raft.SnapshotVersion(h.Version), ID: id, Index: h.Index, Term: h.Term,
		Configuration: raft.DecodeConfiguration(h.Configuration), ConfigurationIndex: h.ConfigIndex, Size: h.BodySize,
	}
}

// List implements raft.SnapshotStore: the snapshots with a sound header, newest first.
func (s *snapStore) List() ([]*raft.SnapshotMeta, error) {
	names, err := s.names()
	if err != nil {
		return nil, err
	}
	var metas []*raft.SnapshotMeta
	for _, n := range names {
		f, err := s.fs.Open(filepath.Join(s.dir, n))
		if errors.Is(err, vfs.ErrNotExist) {
			continue // removed by a newer sink since names
		}
		if err != nil {
			return nil, fmt.Errorf("raftmeta: open snapshot: %w", err)
		}
		h, _, err := readSnapHeader(f)
		if err = errors.Join(err, f.Close()); errors.Is(err, ErrSnapshotCorrupt) {
			s.log.Error("snapshot skipped", "file", n, "err", err)
			continue
		} else if err != nil {
			return nil, err
		}
		metas = append(metas, h.meta(n))
	}
	return metas, nil
}

type snapReader struct {
	*io.SectionReader
	f vfs.File
}

func (r snapReader) Close() error { return r.f.Close() }

// Open implements raft.SnapshotStore; the body is verified before the first byte is given out.
func (s *snapStore) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	f, h, body, err := s.openVerified(id)
	if err != nil {
		return nil, nil, err
	}
	return h.meta(id), snapReader{io.NewSectionReader(f, body, h.BodySize), f}, nil
}

// Create implements raft.SnapshotStore, for own and received snapshots. A received one at or below the applied index is
// refused: the state would go back. (The transport answers those before raft sees them; this closes the race.)
func (s *snapStore) Create(version raft.SnapshotVersion, index, term uint64, conf raft.Configuration,
	confIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	received := s.receiving() == index
	if received && index <= s.applied() {
		return nil, fmt.Errorf("%w: it ends at %d, applied %d", errSnapshotStale, index, s.applied())
	}
	k := &snapSink{s: s, received: received, name: snapName(index, term), sum: crc32.New(castagnoli), head: snapHeader{
		Format: snapFormat, Index: index, Term: term, Version: int(version),
		Configuration: raft.EncodeConfiguration(conf), ConfigIndex: confIndex,
	}}
	js, err := json.Marshal(k.head)
	if err != nil {
		return nil, fmt.Errorf("raftmeta: snapshot header: %w", err)
	}
	// Room for level, cluster, size and checksum, which are known at the end.
	k.room = (snapFixed + len(js) + 256 + snapBlock - 1) / snapBlock * snapBlock
	k.path = filepath.Join(s.dir, k.name)
	k.tmp = fmt.Sprintf("%s.%d%s%s", strings.TrimSuffix(k.path, snapSuffix), s.seq.Add(1), snapSuffix, snapTmp)
	s.at("snap-create")
	if k.f, err = s.fs.Create(k.tmp); err != nil {
		return nil, fmt.Errorf("raftmeta: create snapshot: %w", err)
	}
	k.w = vfs.NewWriter(k.f, int64(k.room))
	return k, nil
}

// snapSink writes one snapshot. It is used by one goroutine.
type snapSink struct {
	s               *snapStore
	received        bool
	name, path, tmp string
	room            int
	head            snapHeader
	f               vfs.File
	w               *vfs.Writer
	sum             hash.Hash32
	done            bool
	unsynced        int       // bytes
	last            time.Time // end of the last rest
}

var _ raft.SnapshotSink = (*snapSink)(nil)

// ID implements raft.SnapshotSink.
func (k *snapSink) ID() string { return k.name }

// Write implements raft.SnapshotSink.
func (k *snapSink) Write(p []byte) (int, error) {
	k.s.at("snap-write")
	n, err := k.w.Write(p)
	_, _ = k.sum.Write(p[:n]) // a hash never fails
	k.head.BodySize += int64(n)
	if err != nil || k.received {
		return n, err
	}
	if k.unsynced += n; k.unsynced >= snapSyncEvery {
		k.unsynced = 0
		err = k.f.Sync()
	}
	k.rest()
	return n, err
}

// rest sleeps for as long as the last piece took, twice: nobody waits for an own snapshot, and commands that are ordered meanwhile
// pass through a dozen goroutines, each of which would queue behind a writer that never pauses. The syncs in between are for
// them too: one of the whole file at the end would keep the log's syncs waiting for the disk.
func (k *snapSink) rest() {
	worked := snapMaxRest / snapRest
	if !k.last.IsZero() {
		worked = min(worked, time.Since(k.last))
	}
	pause := time.NewTimer(snapRest * worked)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-k.s.stopped:
	}
	k.last = time.Now()
}

// Cancel implements raft.SnapshotSink: the unfinished file goes. A second call, or one after Close, does nothing.
func (k *snapSink) Cancel() error {
	if k.done {
		return nil
	}
	k.done = true
	return errors.Join(k.f.Close(), k.s.fs.Remove(k.tmp))
}

// Close implements raft.SnapshotSink: it makes the file durable under its name, then has the log agree with it.
func (k *snapSink) Close() error {
	if k.done {
		return nil
	}
	if err := k.finish(); err != nil {
		return errors.Join(fmt.Errorf("raftmeta: finish snapshot %s: %w", k.name, err), k.Cancel())
	}
	k.done = true
	err := k.f.Close()
	k.s.at("snap-synced")
	if err == nil {
		err = k.s.fs.Rename(k.tmp, k.path)
	}
	if err != nil {
		return fmt.Errorf("raftmeta: finish snapshot %s: %w", k.name, errors.Join(err, k.s.fs.Remove(k.tmp)))
	}
	k.s.at("snap-renamed")
	if err := k.s.fs.SyncDir(k.s.dir); err != nil {
		return fmt.Errorf("raftmeta: finish snapshot %s: %w", k.name, err)
	}
	k.s.at("snap-final")
	if err := k.s.final(snapRef{k.head.Index, k.head.Term}, k.received); err != nil {
		return err
	}
	k.s.reap()
	return nil
}

func (k *snapSink) finish() error {
	if k.s.describe != nil {
		var err error
		if k.head.Level, k.head.Cluster, err = k.s.describe(io.NewSectionReader(k.f, int64(k.room), k.head.BodySize)); err != nil {
			return err
		}
	}
	k.head.BodyCRC = k.sum.Sum32()
	js, err := json.Marshal(k.head)
	if err != nil {
		return err
	}
	if snapFixed+len(js) > k.room {
		return fmt.Errorf("header of %d bytes does not fit into %d", len(js), k.room)
	}
	js = append(js, bytes.Repeat([]byte{' '}, k.room-snapFixed-len(js))...)
	b := append(make([]byte, 0, k.room), snapMagic...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(js)))
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(js, castagnoli))
	if _, err := k.f.WriteAt(append(b, js...), 0); err != nil {
		return err
	}
	return k.f.Sync()
}

// reap removes all but the newest snapshots; what it can not remove is only logged, since the next one tries again.
func (s *snapStore) reap() {
	names, err := s.names()
	if err != nil || len(names) <= snapKeep {
		return
	}
	for _, n := range names[snapKeep:] {
		if err := s.fs.Remove(filepath.Join(s.dir, n)); err != nil {
			s.log.Warn("old snapshot not removed", "file", n, "err", err)
		}
	}
}
