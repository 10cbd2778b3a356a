package zkcompat

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/barnabas-mq/barnabas/internal/clock"
	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/loglimit"
)

// Config is what a Server needs and its bounds. Zero values take the defaults named.
type Config struct {
	Backend Backend      // required
	Clock   clock.Clock  // default: the system's
	Log     *slog.Logger // default: slog.Default

	MinTimeout       time.Duration // 4 s: sessions may not ask for less (2 ticks of 2 s)
	MaxTimeout       time.Duration // 40 s: nor for more (20 ticks)
	AheadWait        time.Duration // 1 s: how long a client that saw more than this node may wait for it
	HandshakeTimeout time.Duration // 10 s: from accept to a whole connect request
	ConnectTimeout   time.Duration // 2.5 s: from then until the session is attached; then it must try another node
	MaxConnections   int           // 10,000; more are closed at once
	MaxQueued        int           // 1,000 requests of one connection that wait; then its socket is not read
	MaxQueuedBytes   int           // 4 MiB, likewise
	MaxOutput        int           // 1 MiB of unsent replies of one connection; then its next request waits
	MaxWatches       int           // 200,000 of one connection; then it is closed
	ReadRate         int           // 5,000 reads a second of one connection, once it has used up ReadBurst: old clients spin without a pause
	ReadBurst        int           // 20,000

	// Chroots are other names of the root, such as /kafka: zookeeper.connect=host:2181/kafka of old clients.
	Chroots []string

	// UngatedPings answers pings without a leader that hears of them. Only for tests: a cut-off node would keep
	// sessions alive that the leader expires.
	UngatedPings bool
}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	num := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	def(&c.MinTimeout, 4*time.Second)
	def(&c.MaxTimeout, 40*time.Second)
	def(&c.AheadWait, time.Second)
	def(&c.HandshakeTimeout, 10*time.Second)
	def(&c.ConnectTimeout, 2500*time.Millisecond)
	num(&c.MaxConnections, 10_000)
	num(&c.MaxQueued, 1000)
	num(&c.MaxQueuedBytes, 4<<20)
	num(&c.MaxOutput, 1<<20)
	num(&c.MaxWatches, 200_000)
	num(&c.ReadRate, 5000)
	num(&c.ReadBurst, 20_000)
	if c.Clock == nil {
		c.Clock = clock.System{}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.Backend == nil:
		return errors.New("zkcompat: Config.Backend is missing")
	case c.MinTimeout <= 0 || c.MaxTimeout < c.MinTimeout:
		return fmt.Errorf("zkcompat: session timeouts from %v to %v are no range", c.MinTimeout, c.MaxTimeout)
	case c.MaxQueued < 1 || c.MaxQueuedBytes < 1 || c.MaxOutput < 1 || c.MaxConnections < 1 || c.MaxWatches < 1 || c.ReadRate < 1 || c.ReadBurst < 1:
		return errors.New("zkcompat: every bound must be at least 1")
	}
	for _, root := range c.Chroots {
		if root == "/" || !validPath(root) {
			return fmt.Errorf("zkcompat: chroot %q is no path below the root", root)
		}
	}
	return nil
}

// Server answers ZooKeeper clients. Make it with New, run it with Serve.
type Server struct {
	cfg     Config
	watches *watches

	// gate orders events and replies: see the package comment. It guards tree and bySession.
	gate      sync.RWMutex
	tree      Tree
	bySession map[id.SessionID]*conn
	waiters   map[*waiter]struct{}

	conns struct {
		sync.Mutex
		all  map[*conn]struct{}
		done bool
	}
	wg sync.WaitGroup // one per connection

	lines loglimit.Limit[fault]
	acked atomic.Int64 // boot time, ns: when the newest answered touch report was sent
	stats counters
}

type counters struct {
	received, sent, started, refused atomic.Int64
	slowed, slowedFor                atomic.Int64 // reads, and for how many ns in all
}

type waiter struct {
	ok func(Tree) bool
	ch chan struct{}
}

// New makes a server; it does nothing before Serve.
func New(cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, watches: newWatches(), bySession: make(map[id.SessionID]*conn),
		waiters: make(map[*waiter]struct{})}
	s.conns.all = make(map[*conn]struct{})
	s.acked.Store(int64(cfg.Clock.Boot()))
	return s, nil
}

// Serve accepts connections until ctx ends or the listener fails, then closes all of them, waits for everything it
// started and returns nil, or the listener's error. It closes the listener.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	unsubscribe := s.cfg.Backend.Subscribe(s.apply)
	defer unsubscribe()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	var helpers sync.WaitGroup
	helpers.Go(func() { s.sweep(ctx) })

	err := s.accept(ctx, l)
	cancel()
	_ = l.Close()
	s.closeAll()
	s.wg.Wait()
	helpers.Wait()
	return err
}

func (s *Server) accept(ctx context.Context, l net.Listener) error {
	var delay time.Duration
	for {
		nc, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = nc.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("zkcompat: the listener %v was closed: %w", l.Addr(), err)
		case err != nil: // out of descriptors, a connection reset in the backlog: not the listener's end
			delay = min(max(2*delay, 5*time.Millisecond), time.Second)
			s.cfg.Log.Warn("zookeeper: accept failed, trying again", "err", err, "delay", delay)
			select {
			case <-time.After(delay):
			case <-ctx.Done():
			}
			continue
		}
		delay = 0
		s.start(ctx, nc)
	}
}

// fault is the kind of a line about connections: one host's one fault. In a session it is another than before one.
type fault struct {
	host, why string
	session   bool
}

// say writes a line about a connection, as often as loglimit.Limit allows: clients reconnect for ever.
func (s *Server) say(level slog.Level, k fault, what string, args ...any) {
	s.lines.Log(s.cfg.Log, level, k, s.cfg.Clock.Now(), "zookeeper: "+what, args...)
}

func (s *Server) start(ctx context.Context, nc net.Conn) {
	s.conns.Lock()
	defer s.conns.Unlock()
	if s.conns.done || len(s.conns.all) >= s.cfg.MaxConnections {
		s.stats.refused.Add(1)
		s.say(slog.LevelWarn, fault{why: "too many"}, "connection refused, too many", "remote", nc.RemoteAddr(), "max", s.cfg.MaxConnections)
		_ = nc.Close()
		return
	}
	c := newConn(ctx, s, nc)
	s.conns.all[c] = struct{}{}
	s.wg.Go(func() {
		c.run()
		s.conns.Lock()
		delete(s.conns.all, c)
		s.conns.Unlock()
	})
}

func (s *Server) closeAll() {
	s.conns.Lock()
	s.conns.done = true
	for c := range s.conns.all {
		c.end(&ending{why: "the server stops", quiet: true})
	}
	s.conns.Unlock()
}

// apply is the Backend's subscriber: events first, then the tree, in one step as seen by every reply.
func (s *Server) apply(u Update) {
	s.gate.Lock()
	defer s.gate.Unlock()
	s.tree = u.Tree
	if u.Reset {
		s.reset()
		for _, c := range s.bySession {
			s.checkSession(c)
		}
	} else {
		for _, e := range u.Events {
			s.fire(e)
		}
		for _, id := range u.Sessions {
			if c := s.bySession[id]; c != nil {
				s.checkSession(c)
			}
		}
	}
	for w := range s.waiters {
		if w.ok(s.tree) {
			delete(s.waiters, w)
			close(w.ch)
		}
	}
}

// checkSession ends a connection whose session ended or moved to another connection. Gate held for writing.
func (s *Server) checkSession(c *conn) {
	epoch, ok := s.tree.Session(c.caller.Session)
	switch {
	case !ok:
		c.sessionEnded()
	case epoch > c.caller.AttachEpoch:
		c.kill("its session was taken over by another connection")
	default:
		return
	}
	delete(s.bySession, c.caller.Session)
}

// await returns when ok is true of the published tree.
func (s *Server) await(ctx context.Context, ok func(Tree) bool) error {
	s.gate.RLock()
	now := s.tree != nil && ok(s.tree)
	s.gate.RUnlock()
	if now {
		return nil
	}
	w := &waiter{ok: ok, ch: make(chan struct{})}
	s.gate.Lock()
	if s.tree != nil && ok(s.tree) {
		s.gate.Unlock()
		return nil
	}
	s.waiters[w] = struct{}{}
	s.gate.Unlock()
	select {
	case <-w.ch:
		return nil
	case <-ctx.Done():
		s.gate.Lock()
		delete(s.waiters, w)
		s.gate.Unlock()
		return context.Cause(ctx)
	}
}

func (s *Server) awaitIndex(ctx context.Context, i id.Index) error {
	return s.await(ctx, func(t Tree) bool { return t.Index() >= i })
}

// bind makes c the connection of its session, unless the session ended or moved on since it was attached.
func (s *Server) bind(c *conn, answer func()) bool {
	s.gate.Lock()
	defer s.gate.Unlock()
	if epoch, ok := s.tree.Session(c.caller.Session); !ok || epoch != c.caller.AttachEpoch {
		return false
	}
	if old := s.bySession[c.caller.Session]; old != nil && old != c {
		old.kill("its session was taken over by another connection")
	}
	s.bySession[c.caller.Session] = c
	answer()
	return true
}

func (s *Server) unbind(c *conn) {
	s.gate.Lock()
	if s.bySession[c.caller.Session] == c {
		delete(s.bySession, c.caller.Session)
	}
	s.gate.Unlock()
	s.watches.drop(c)
}

// TouchReport names the sessions that this node heard from since the last report that was answered. The caller sends
// it to the leader and, when the leader has answered, passes it to AckTouches.
type TouchReport struct {
	At       time.Duration // CLOCK_BOOTTIME before the sessions were read: send after this
	Sessions []id.SessionID
}

// Touches makes a report. Every 200 ms is enough for the shortest session timeout.
func (s *Server) Touches() TouchReport {
	r := TouchReport{At: s.cfg.Clock.Boot()}
	since := s.acked.Load()
	s.gate.RLock()
	defer s.gate.RUnlock()
	for session, c := range s.bySession {
		if c.heard.Load() >= since {
			r.Sessions = append(r.Sessions, session)
		}
	}
	return r
}

// AckTouches tells that the leader has taken a report. Pings are answered only in the light of it.
func (s *Server) AckTouches(r TouchReport) {
	for {
		old := s.acked.Load()
		if int64(r.At) <= old || s.acked.CompareAndSwap(old, int64(r.At)) {
			return
		}
	}
}

// leaderHears tells whether the leader acknowledged a report sent within a third of the session's timeout, or took the
// session itself within it.
func (s *Server) leaderHears(c *conn) bool {
	last := max(time.Duration(s.acked.Load()), c.attached)
	return s.cfg.UngatedPings || s.cfg.Clock.Boot()-last <= c.timeout/3
}

// sweep closes connections whose sessions the leader may be about to expire without this node knowing, so that their
// clients move to a node that the leader hears.
func (s *Server) sweep(ctx context.Context) {
	if s.cfg.UngatedPings {
		return
	}
	beat := clock.NewBeat(s.cfg.Clock, s.cfg.MinTimeout/20)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
			beat.Next()
		}
		if s.cfg.Clock.Boot()-time.Duration(s.acked.Load()) <= s.cfg.MinTimeout/3 {
			continue
		}
		s.gate.RLock()
		for _, c := range s.bySession {
			if !s.leaderHears(c) {
				c.kill("the leader has not answered a touch report for a third of the session timeout")
			}
		}
		s.gate.RUnlock()
	}
}

// Stats is what the monitoring words and metrics show.
type Stats struct {
	Connections, Sessions, Watches    int
	Received, Sent, Connects, Refused int64
	Slowed                            int64         // reads that the load gate held
	SlowedFor                         time.Duration // in all
	Zxid                              int64
	MinTimeout, MaxTimeout            time.Duration
}

// Stats counts what the server has and has done.
func (s *Server) Stats() Stats {
	st := Stats{Received: s.stats.received.Load(), Sent: s.stats.sent.Load(), Connects: s.stats.started.Load(),
		Refused: s.stats.refused.Load(), Slowed: s.stats.slowed.Load(), SlowedFor: time.Duration(s.stats.slowedFor.Load()), MinTimeout: s.cfg.MinTimeout, MaxTimeout: s.cfg.MaxTimeout}
	s.conns.Lock()
	st.Connections = len(s.conns.all)
	s.conns.Unlock()
	s.gate.RLock()
	st.Sessions = len(s.bySession)
	if s.tree != nil {
		st.Zxid = int64(s.tree.Zxid())
	}
	s.gate.RUnlock()
	s.watches.mu.Lock()
	st.Watches = s.watches.count
	s.watches.mu.Unlock()
	return st
}

// clamp bounds a session timeout that a client asks for.
func (s *Server) clamp(ms int32) time.Duration {
	return min(max(time.Duration(ms)*time.Millisecond, s.cfg.MinTimeout), s.cfg.MaxTimeout)
}
