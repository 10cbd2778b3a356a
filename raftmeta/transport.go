package raftmeta

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barnabas-mq/barnabas/internal/clock"
)

var (
	errReopening      = errors.New("raftmeta: raft is being opened again after an installed snapshot")
	errTransportEnded = errors.New("raftmeta: the raft instance has ended")
)

const (
	rpcTimeout      = time.Second
	connPool        = 5
	appendRetry     = 50 * time.Millisecond
	snapStallLimit  = 5 * time.Second // a received snapshot that makes no progress for so long is given up
	snapPipeReadLen = 64 << 10
)

// trackedLayer closes every connection with the layer, so that no goroutine of raft's transport outlives it.
type trackedLayer struct {
	raft.StreamLayer
	mu     sync.Mutex
	conns  map[*trackedConn]struct{}
	closed bool
}

type trackedConn struct {
	net.Conn
	l *trackedLayer
}

func (c *trackedConn) Close() error {
	c.l.mu.Lock()
	delete(c.l.conns, c)
	c.l.mu.Unlock()
	return c.Conn.Close()
}

func (l *trackedLayer) track(c net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	t := &trackedConn{c, l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errors.Join(net.ErrClosed, c.Close())
	}
	l.conns[t] = struct{}{}
	return t, nil
}

func (l *trackedLayer) ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// Accept implements net.Listener.
func (l *trackedLayer) Accept() (net.Conn, error) { return l.track(l.StreamLayer.Accept()) }

// Dial implements raft.StreamLayer.
func (l *trackedLayer) Dial(a raft.ServerAddress, d time.Duration) (net.Conn, error) {
	return l.track(l.StreamLayer.Dial(a, d))
}

// Close implements net.Listener.
func (l *trackedLayer) Close() error {
	l.mu.Lock()
	again := l.closed
	l.closed = true
	conns := l.conns
	l.conns = map[*trackedConn]struct{}{}
	l.mu.Unlock()
	for c := range conns {
		_ = c.Conn.Close() // the peer may have closed it first
	}
	if again {
		return nil
	}
	return l.StreamLayer.Close()
}

// transport is raft's network, alive from Start to Stop. Each raft instance sees a port of it: raft closes the port with
// itself, and an instance opened later goes on with the same connections.
type transport struct {
	net   *raft.NetworkTransport
	layer *trackedLayer
	log   *slog.Logger
	id    raft.ServerID
	pace  pace // of heartbeats; set before the first port is opened

	// installing is the last index of the InstallSnapshot that raft is handling, 0 if none.
	installing atomic.Uint64

	wg sync.WaitGroup // handlers of received snapshots
}

func newTransport(id raft.ServerID, layer raft.StreamLayer, addrs raft.ServerAddressProvider, log *slog.Logger) *transport {
	t := &transport{id: id, log: log, layer: &trackedLayer{StreamLayer: layer, conns: map[*trackedConn]struct{}{}}}
	t.net = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: t.layer, ServerAddressProvider: addrs, MaxPool: connPool, Timeout: rpcTimeout,
		Logger: newHclog(log, "raft-net"),
	})
	return t
}

// header is the header that raft itself gives its messages. In another one a follower would see another leader (raft tells it by
// the address): at each of our messages, and at raft's next one again.
func (t *transport) header() raft.RPCHeader {
	return raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(t.id), Addr: t.net.EncodePeer(t.id, t.net.LocalAddr())}
}

// close ends the transport and waits for its handlers; no port may be open.
func (t *transport) close() error {
	err := t.net.Close() // closes layer
	t.wg.Wait()
	return err
}

// port is the raft.Transport of one raft instance. It keeps pre-vote (raft silently drops pre-vote otherwise) and Close,
// ignores SetHeartbeatHandler (hashicorp/raft #695: asynchronous heartbeats can raise the term under an appending
// leader), buffers the pipeline's answers, and keeps InstallSnapshot requests that would lead back away from raft.
type port struct {
	*raft.NetworkTransport
	t     *transport
	rpc   chan raft.RPC
	facts atomic.Pointer[raftFacts] // set by run

	fedMu sync.Mutex
	fed   map[raft.ServerID]uint64    // how far AppendEntries outside of a pipeline has brought each follower
	pipes map[raft.ServerID]*pipeline // the newest to each

	held     chan struct{} // closed by hold
	holdOnce sync.Once
	quit     chan struct{} // closed by leave
	quitOnce sync.Once
	done     chan struct{}
	doneOnce sync.Once
	wg       sync.WaitGroup
}

var (
	_ raft.Transport   = (*port)(nil)
	_ raft.WithPreVote = (*port)(nil)
	_ raft.WithClose   = (*port)(nil)
)

// raftFacts is what a port has to know of its raft instance.
type raftFacts struct {
	applied, term func() uint64
	last          func() uint64                            // index of the log's end
	feeds         func(id raft.ServerID, term uint64) bool // leads that term, and the server is a member
}

func factsOf(r *raft.Raft) raftFacts {
	return raftFacts{applied: r.AppliedIndex, term: r.CurrentTerm, last: r.LastIndex, feeds: func(id raft.ServerID, term uint64) bool {
		if r.State() != raft.Leader || r.CurrentTerm() != term {
			return false
		}
		conf := r.GetConfiguration()
		if conf.Error() != nil {
			return false
		}
		return slices.ContainsFunc(conf.Configuration().Servers, func(s raft.Server) bool { return s.ID == id })
	}}
}

func (p *port) feeds(id raft.ServerID, term uint64) bool {
	f := p.facts.Load()
	return f != nil && f.feeds(id, term)
}

// open makes a port; run starts it once raft exists.
func (t *transport) open() *port {
	return &port{NetworkTransport: t.net, t: t, rpc: make(chan raft.RPC), fed: map[raft.ServerID]uint64{}, pipes: map[raft.ServerID]*pipeline{},
		held: make(chan struct{}), quit: make(chan struct{}), done: make(chan struct{})}
}

func (p *port) run(f raftFacts) {
	p.facts.Store(&f)
	p.wg.Add(1)
	go p.pump()
}

// hold keeps every further request away from raft until the port is closed. It does not wait.
func (p *port) hold() { p.holdOnce.Do(func() { close(p.held) }) }

// leave ends repeated sending; to be called before raft's Shutdown, which waits for the senders.
func (p *port) leave() { p.quitOnce.Do(func() { close(p.quit) }) }

// Close implements raft.WithClose: it ends this port, not the connections.
func (p *port) Close() error {
	p.doneOnce.Do(func() { close(p.done) })
	p.wg.Wait()
	return nil
}

// Consumer implements raft.Transport.
func (p *port) Consumer() <-chan raft.RPC { return p.rpc }

// SetHeartbeatHandler implements raft.Transport: heartbeats go through the main loop like every other request.
func (p *port) SetHeartbeatHandler(func(raft.RPC)) {}

// pump hands requests to raft's main goroutine, which takes one when it has synced what the one before brought. Of each connection
// at most one waits, so their order among each other is nobody's but ours (turn).
func (p *port) pump() {
	defer p.wg.Done()
	var waiting []raft.RPC
	refuse := func(err error) {
		for _, r := range waiting {
			r.Respond(nil, err)
		}
		waiting = nil
	}
	held := p.held
	for {
		select {
		case <-held:
			refuse(errReopening)
			held = nil
		default:
		}
		var out chan raft.RPC
		var next raft.RPC
		at := turn(waiting)
		if at >= 0 {
			next, out = waiting[at], p.rpc
		}
		select {
		case r := <-p.t.net.Consumer():
			ok := true
			if q, install := r.Command.(*raft.InstallSnapshotRequest); install {
				r, ok = p.install(r, q)
			}
			if ok {
				waiting = append(waiting, r)
			}
			if held == nil {
				refuse(errReopening)
			}
		case out <- next:
			waiting = slices.Delete(waiting, at, at+1)
		case <-held:
		case <-p.done:
			refuse(errTransportEnded)
			return
		}
	}
}

// turn says whose turn it is, -1 if nobody waits: the first's, but for a commit push (or heartbeat) about what comes before the entries
// of those ahead of it. It costs nothing, and who waits for that commit need not wait for the sync of later entries.
func turn(waiting []raft.RPC) int {
	lowest := uint64(math.MaxUint64) // entry before those of the requests passed over
	for i, r := range waiting {
		q, ok := r.Command.(*raft.AppendEntriesRequest)
		switch {
		case !ok:
			return 0
		case len(q.Entries) > 0:
			lowest = min(lowest, q.PrevLogEntry)
		case q.PrevLogEntry <= lowest:
			return i
		}
	}
	return min(len(waiting), 1) - 1
}

// install passes an InstallSnapshot on, unless this node has applied all of it: then it is not installed, since the state
// would go back, and the leader is told what is true, that this node holds everything up to there.
func (p *port) install(r raft.RPC, q *raft.InstallSnapshotRequest) (_ raft.RPC, pass bool) {
	source, respond := r.Reader, r.RespChan
	in, out := net.Pipe()
	fed := make(chan struct{})
	p.t.wg.Add(1)
	go func() { // reads the snapshot off the connection, whatever becomes of it
		defer p.t.wg.Done()
		defer close(fed)
		_, err := io.CopyBuffer(in, source, make([]byte, snapPipeReadLen))
		_ = in.Close()
		if err != nil {
			_, _ = io.Copy(io.Discard, source)
		}
	}()
	answer := make(chan raft.RPCResponse, 1)
	p.t.wg.Add(1)
	go func() { // the connection is used again once the answer is written, so the snapshot must be off it
		defer p.t.wg.Done()
		a := <-answer
		p.t.installing.CompareAndSwap(q.LastLogIndex, 0)
		_ = out.Close()
		<-fed
		respond <- a
	}()
	if applied := p.facts.Load().applied(); q.LastLogIndex <= applied {
		term := p.facts.Load().term()
		p.t.log.Info("received snapshot is not newer than the applied state, kept away", "snapshot", q.LastLogIndex,
			"applied", applied, "from", string(q.ID))
		answer <- raft.RPCResponse{Response: &raft.InstallSnapshotResponse{
			RPCHeader: p.t.header(), Term: term, Success: q.Term >= term,
		}}
		return r, false
	}
	p.t.installing.Store(q.LastLogIndex)
	r.Reader, r.RespChan = &stallReader{c: out, limit: snapStallLimit}, answer
	return r, true
}

// stallReader gives up when its source makes no progress, so that a leader frozen in the middle of a snapshot does not
// keep this node's main loop, and with it every election, for ever.
type stallReader struct {
	c     net.Conn
	limit time.Duration
	err   error
}

func (s *stallReader) Read(b []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	_ = s.c.SetReadDeadline(time.Now().Add(s.limit)) // fails only when the source has ended; then Read tells
	n, err := s.c.Read(b)
	if err != nil && err != io.EOF {
		err = fmt.Errorf("raftmeta: received snapshot stopped: %w", err)
	}
	s.err = err
	return n, err
}

// AppendEntries implements raft.Transport. raft backs off for up to 10 s from a peer that fails, and nothing wakes it when
// the peer is back: a restarted follower would follow that much later. So what carries the log (a heartbeat does not) is
// repeated here while this node leads that term and the peer is a member; sending it twice is harmless.
func (p *port) AppendEntries(id raft.ServerID, a raft.ServerAddress, q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) error {
	if q.PrevLogEntry == 0 && len(q.Entries) == 0 {
		p.t.pace.wait(id, q.Term, p.quit)
	}
	for {
		err := p.NetworkTransport.AppendEntries(id, a, q, r)
		if err == nil && r.Success && q.PrevLogEntry+uint64(len(q.Entries)) > 0 {
			p.fedMu.Lock()
			p.fed[id] = q.PrevLogEntry + uint64(len(q.Entries))
			p.fedMu.Unlock()
		}
		if err == nil || q.PrevLogEntry == 0 && len(q.Entries) == 0 || !p.feeds(id, q.Term) || p.t.layer.ended() {
			return err
		}
		pause := time.NewTimer(appendRetry)
		select {
		case <-pause.C:
		case <-p.quit:
			pause.Stop()
			return err
		}
	}
}

// pace holds heartbeats, which raft sends at random moments every 0.1 to 0.2 of its HeartbeatTimeout, until the beat that all
// of this node's timers share. The first of a term to a follower is not held; the zero value holds none.
type pace struct {
	clock clock.Clock
	every time.Duration

	mu   sync.Mutex
	last map[raft.ServerID]heartbeat
}

type heartbeat struct {
	term uint64
	at   time.Duration
}

func (p *pace) wait(to raft.ServerID, term uint64, quit <-chan struct{}) {
	if p.every == 0 {
		return
	}
	p.mu.Lock()
	last, now := p.last[to], p.clock.Boot()
	p.mu.Unlock()
	if last.term == term && now-last.at < p.every {
		hold := time.NewTimer(clock.UntilBeat(p.clock, p.every))
		defer hold.Stop()
		select {
		case <-hold.C:
		case <-quit:
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == nil {
		p.last = map[raft.ServerID]heartbeat{}
	}
	p.last[to] = heartbeat{term, p.clock.Boot()}
}
