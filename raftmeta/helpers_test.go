package raftmeta

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	boltdb "github.com/hashicorp/raft-boltdb/v2"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"

	"github.com/barnabas-mq/barnabas/internal/vfs"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits for a condition that no event announces; the deadline is far above what a loaded machine needs.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !f(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// eventuallyOr gives an event that may not come some time.
func eventuallyOr(f func() bool) {
	for end := time.Now().Add(200 * time.Millisecond); !f() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

// tcpLayer is a raft.StreamLayer on loopback.
type tcpLayer struct{ net.Listener }

func (tcpLayer) Dial(a raft.ServerAddress, d time.Duration) (net.Conn, error) {
	return net.DialTimeout("tcp", string(a), d)
}

func newLayer(t testing.TB) tcpLayer {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	return tcpLayer{ln}
}

// recFSM remembers what was applied at each index.
type recFSM struct {
	mu sync.Mutex
	m  map[uint64]string
	// every entry applied, also those that a restore has wiped out since
	ever []string
}

func (f *recFSM) Apply(l *raft.Log) any {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.m[l.Index] = string(l.Data)
	f.ever = append(f.ever, string(l.Data))
	return nil
}

type recSnap []byte

func (s recSnap) Persist(k raft.SnapshotSink) error {
	if _, err := k.Write(s); err != nil {
		return errors.Join(err, k.Cancel())
	}
	return k.Close()
}
func (recSnap) Release() {}

func (f *recFSM) Snapshot() (raft.FSMSnapshot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b, err := json.Marshal(f.m)
	return recSnap(b), err
}

func (f *recFSM) Restore(r io.ReadCloser) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.m = map[uint64]string{}
	return json.NewDecoder(r).Decode(&f.m)
}

func (f *recFSM) copy() map[uint64]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.m)
}

// span is a run of entries of one term.
type span struct{ from, to, term uint64 }

func data(index, term uint64) string { return fmt.Sprintf("t%d-%d", term, index) }

func entries(conf raft.Configuration, spans ...span) (ls []*raft.Log) {
	ls = append(ls, &raft.Log{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(conf)})
	for _, s := range spans {
		for i := s.from; i <= s.to; i++ {
			ls = append(ls, &raft.Log{Index: i, Term: s.term, Type: raft.LogCommand, Data: []byte(data(i, s.term))})
		}
	}
	return ls
}

// body is the snapshot of a state that has applied these spans.
func body(spans ...span) []byte {
	m := map[uint64]string{}
	for _, s := range spans {
		for i := s.from; i <= s.to; i++ {
			m[i] = data(i, s.term)
		}
	}
	b, _ := json.Marshal(m)
	return b
}

// ghost speaks to nodes as any leader it likes.
type ghost struct {
	*raft.NetworkTransport
	t    testing.TB
	id   string
	conf raft.Configuration
}

func newGhost(t testing.TB, id string, conf raft.Configuration) *ghost {
	g := &ghost{raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: newLayer(t), MaxPool: 3, Timeout: 5 * time.Second, Logger: hclog.NewNullLogger(),
	}), t, id, conf}
	t.Cleanup(func() { g.CloseStreams(); _ = g.Close() })
	return g
}

func (g *ghost) header() raft.RPCHeader {
	return raft.RPCHeader{ProtocolVersion: 3, ID: []byte(g.id), Addr: []byte(g.LocalAddr())}
}

func (g *ghost) install(to raft.ServerAddress, leaderTerm, index, term uint64, body []byte) (bool, error) {
	var r raft.InstallSnapshotResponse
	pr, pw := io.Pipe()
	go func() {
		_, err := pw.Write(body)
		_ = pw.CloseWithError(err)
	}()
	err := g.InstallSnapshot("x", to, &raft.InstallSnapshotRequest{
		RPCHeader: g.header(), SnapshotVersion: 1, Term: leaderTerm, Leader: []byte(g.LocalAddr()), LastLogIndex: index,
		LastLogTerm: term, Configuration: raft.EncodeConfiguration(g.conf), ConfigurationIndex: 1, Size: int64(len(body)),
	}, &r, pr)
	_ = pr.Close()
	return r.Success, err
}

func (g *ghost) append(to raft.ServerAddress, term, prev, prevTerm, commit uint64, spans ...span) raft.AppendEntriesResponse {
	g.t.Helper()
	q := &raft.AppendEntriesRequest{RPCHeader: g.header(), Term: term,
		PrevLogEntry: prev, PrevLogTerm: prevTerm, LeaderCommitIndex: commit}
	for _, s := range spans {
		for i := s.from; i <= s.to; i++ {
			q.Entries = append(q.Entries, &raft.Log{Index: i, Term: s.term, Type: raft.LogCommand, Data: []byte(data(i, s.term))})
		}
	}
	var r raft.AppendEntriesResponse
	must(g.t, g.AppendEntries("x", to, q, &r))
	return r
}

// lone is one raft node of a cluster whose other members are ghosts. Its log is "bolt", "wal" (both bare) or "heal".
type lone struct {
	t      testing.TB
	r      *raft.Raft
	f      *recFSM
	addr   raft.ServerAddress
	log    raft.LogStore
	healed *stores
	port   *port
	reopen atomic.Bool
	close  func()
	once   sync.Once
}

type loneOpts struct {
	kind    string
	dir     string
	id      string
	layer   raft.StreamLayer
	timeout time.Duration
	seed    []*raft.Log // written to a fresh log
	term    uint64
	step    func(string)
}

func openLone(t testing.TB, o loneOpts) (*lone, error) {
	t.Helper()
	if o.timeout == 0 {
		o.timeout = time.Hour // no elections
	}
	l := &lone{t: t, f: &recFSM{m: map[uint64]string{}}}
	var stable *boltdb.BoltStore
	var snaps raft.SnapshotStore
	var closers []func() error
	var err error
	if o.kind == "heal" {
		if l.healed, err = openStores(o.dir, vfs.OS(), 64<<10, quiet(), func() { l.reopen.Store(true); l.port.hold() }); err != nil {
			return nil, err
		}
		stable, l.log, snaps = l.healed.stable, l.healed.log, l.healed.snaps
		closers = append(closers, l.healed.close)
	} else {
		must(t, vfs.EnsureDir(vfs.OS(), o.dir))
		stable, err = boltdb.New(boltdb.Options{Path: filepath.Join(o.dir, "raft.db")})
		must(t, err)
		l.log = stable
		closers = append(closers, stable.Close)
		if o.kind == "wal" {
			must(t, vfs.EnsureDir(vfs.OS(), filepath.Join(o.dir, "wal")))
			meta := &metadb.BoltMetaDB{}
			w, err := wal.Open(filepath.Join(o.dir, "wal"), wal.WithMetaStore(meta), wal.WithSegmentSize(64<<10), wal.WithLogger(hclog.NewNullLogger()))
			must(t, err)
			l.log = w
			closers = append([]func() error{w.Close, meta.Close}, closers...)
		}
		s, err := openSnapStore(vfs.OS(), filepath.Join(o.dir, "snapshots"), quiet())
		must(t, err)
		s.step = o.step
		snaps = s
	}
	if len(o.seed) > 0 {
		must(t, l.log.StoreLogs(o.seed))
		must(t, stable.SetUint64([]byte("CurrentTerm"), o.term))
	}
	if l.healed != nil {
		l.healed.log.step, l.healed.snaps.step = o.step, o.step
	}
	if o.layer == nil {
		o.layer = newLayer(t)
	}
	l.addr = raft.ServerAddress(o.layer.Addr().String())
	tr := newTransport(raft.ServerID(o.id), o.layer, nil, quiet())
	l.port = tr.open()
	k := raft.DefaultConfig()
	k.LocalID = raft.ServerID(o.id)
	k.HeartbeatTimeout, k.ElectionTimeout, k.LeaderLeaseTimeout = o.timeout, o.timeout, o.timeout/2
	k.MaxAppendEntries, k.Logger, k.SnapshotInterval = 16, hclog.NewNullLogger(), time.Hour
	if l.healed != nil {
		l.healed.snaps.receiving = tr.installing.Load
		l.healed.snaps.applied = func() uint64 { return l.r.AppliedIndex() }
	}
	l.r, err = raft.NewRaft(k, l.f, l.log, stable, snaps, l.port)
	if err != nil {
		_ = tr.close()
		for _, c := range closers {
			_ = c()
		}
		return nil, err
	}
	l.port.run(factsOf(l.r))
	l.close = func() {
		l.port.leave()
		must(t, l.r.Shutdown().Error())
		must(t, tr.close())
		for _, c := range closers {
			must(t, c())
		}
	}
	t.Cleanup(l.stop)
	return l, nil
}

func mustLone(t testing.TB, o loneOpts) *lone {
	t.Helper()
	l, err := openLone(t, o)
	must(t, err)
	return l
}

func (l *lone) stop() { l.once.Do(l.close) }

func (l *lone) entry(i uint64) string {
	var e raft.Log
	if err := l.log.GetLog(i, &e); err != nil {
		return err.Error()
	}
	return string(e.Data)
}

func servers(ids ...string) (c raft.Configuration) {
	for _, id := range ids {
		c.Servers = append(c.Servers, raft.Server{ID: raft.ServerID(id), Address: raft.ServerAddress(id)})
	}
	return c
}
