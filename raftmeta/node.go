package raftmeta

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/lease"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

const (
	maxAppendEntries = 16
	// commitTimeout is how often (to twice as often) an idle leader tells followers of commits that were not pushed: raft's
	// own entries, and what outlasted the pusher's tries.
	commitTimeout = time.Second
	snapshotRetry = 500 * time.Millisecond
	never         = 1 << 40 // seconds' worth of nanoseconds are enough: raft's own snapshot timer must not fire
)

// Node is this node's part in the metadata log. New, then RunMind and Subscribe, then Start; Stop ends it.
// All methods may be called from any goroutine.
type Node struct {
	cfg    Config
	stores *stores
	tr     *transport
	pusher *pusher
	comb   *combiner
	fsm    *fsm
	inst   atomic.Pointer[instance]

	ctx     context.Context // ends with Stop
	cancel  context.CancelFunc
	stopped <-chan struct{}
	wg      sync.WaitGroup
	reopenC chan struct{} // 1
	full    chan struct{} // 1: time for a snapshot
	limit   atomic.Int64  // bytes of log that make a snapshot

	mu      sync.Mutex
	started bool
	ended   bool
	lane    *lane
	laneSet chan struct{} // closed when lane is set, replaced by every new lane
	lead    Leader
	change  chan struct{} // closed and replaced when lead changes
	minds   []mind
	err     error
	failed  chan struct{}

	prover   prover
	voter    voterMemory
	promises promises

	succeeding bool // guarded by mu: succeed runs
}

// instance is one raft.Raft; an installed snapshot may make a second one necessary.
type instance struct {
	r      *raft.Raft
	p      *port
	notify chan bool
	events chan raft.Observation
	quit   chan struct{} // after the shutdown of r
	wg     sync.WaitGroup
}

// New checks the configuration. It starts nothing and opens nothing.
func New(cfg Config) (*Node, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	n := &Node{
		cfg: cfg, fsm: newFSM(cfg.TrackHash), comb: newCombiner(),
		reopenC: make(chan struct{}, 1), full: make(chan struct{}, 1), laneSet: make(chan struct{}),
		change: make(chan struct{}), failed: make(chan struct{}),
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.stopped = n.ctx.Done()
	n.limit.Store(cfg.SnapshotBytes)
	n.fsm.onSettled, n.fsm.onRestore, n.fsm.onBroken, n.fsm.onNewer = n.onSettled, n.onRestore, n.requestReopen, n.fail
	n.comb.apply, n.comb.pushed, n.comb.term = n.applyEntry, n.pushCommit, n.leaderTerm
	n.comb.clock = func() (time.Duration, time.Time) { return cfg.Clock.Boot(), cfg.Clock.Now() }
	n.voter.proofs = lease.NewProofs(cfg.Clock.Boot())
	return n, nil
}

// Start opens the stores, restores the newest snapshot and joins the log. When it returns, View is what is on this disk;
// entries after the snapshot follow as they are known to be committed.
func (n *Node) Start() (err error) {
	n.mu.Lock()
	if n.started || n.ended {
		n.mu.Unlock()
		return errors.New("raftmeta: Start was called before")
	}
	n.started = true
	n.mu.Unlock()
	if n.stores, err = openStores(n.cfg.Dir, n.cfg.FS, n.cfg.SegmentBytes, n.cfg.Logger, n.requestReopen); err != nil {
		return err
	}
	n.stores.snaps.describe = describeState
	n.tr = newTransport(raft.ServerID(n.cfg.ID), n.cfg.Stream, n.cfg.Addrs, n.cfg.Logger)
	n.tr.pace = pace{clock: n.cfg.Clock, every: min(n.cfg.HeartbeatTimeout/4, n.cfg.Lease*2/5)}
	n.stores.snaps.receiving, n.stores.snaps.stopped = n.tr.installing.Load, n.stopped
	n.stores.snaps.applied = func() uint64 {
		if i := n.inst.Load(); i != nil {
			return i.r.AppliedIndex()
		}
		return 0
	}
	n.pusher = newPusher(n.tr.sendPush, n.told)
	n.stores.log.ahead = n.aheadOf
	if err := n.bootstrapStores(); err != nil {
		return errors.Join(err, n.tr.close(), n.stores.close())
	}
	if err := n.open(); err != nil {
		return errors.Join(err, n.tr.close(), n.stores.close())
	}
	n.wg.Go(func() { n.comb.run(n.stopped, n.cfg.TickEvery) })
	n.wg.Go(n.superviseRaft)
	n.wg.Go(n.runTerms)
	n.wg.Go(n.runSnapshots)
	n.wg.Go(func() { n.prover.run(n) })
	return nil
}

func (n *Node) raftConfig(notify chan bool) *raft.Config {
	k := raft.DefaultConfig()
	k.LocalID = raft.ServerID(n.cfg.ID)
	k.HeartbeatTimeout, k.ElectionTimeout, k.LeaderLeaseTimeout = n.cfg.HeartbeatTimeout, n.cfg.HeartbeatTimeout, n.cfg.Lease
	k.CommitTimeout = commitTimeout
	k.MaxAppendEntries = maxAppendEntries
	k.SnapshotThreshold, k.SnapshotInterval = math.MaxUint64, never*time.Microsecond
	k.TrailingLogs = 10240 // set by bytes before each snapshot
	k.NotifyCh = notify
	k.NoLegacyTelemetry = true
	k.Logger = newHclog(n.cfg.Logger, "raft")
	return k
}

// open makes a raft instance on the stores.
func (n *Node) open() error {
	i := &instance{p: n.tr.open(), notify: make(chan bool, 16), events: make(chan raft.Observation, 64), quit: make(chan struct{})}
	n.fsm.broken = nil // no FSM goroutine runs now
	r, err := raft.NewRaft(n.raftConfig(i.notify), n.fsm, n.stores.log, n.stores.stable, n.stores.snaps, i.p)
	if err != nil {
		return fmt.Errorf("raftmeta: open raft in %s: %w", n.cfg.Dir, errors.Join(n.fsm.broken, err))
	}
	i.r = r
	// Blocking: raft waits for the observer, which never waits for anything itself.
	r.RegisterObserver(raft.NewObserver(i.events, true, func(o *raft.Observation) bool {
		switch o.Data.(type) {
		case raft.LeaderObservation, raft.RaftState:
			return true
		}
		return false
	}))
	n.inst.Store(i)
	i.p.run(factsOf(r))
	i.wg.Go(func() {
		for {
			select {
			case <-i.events:
			case <-i.notify:
			case <-i.quit:
				return
			}
			n.refreshLeader()
		}
	})
	n.refreshLeader()
	return nil
}

// shutdown ends the instance; nothing of it runs any more when it returns.
func (i *instance) shutdown() error {
	i.p.leave()
	err := i.r.Shutdown().Error()
	close(i.quit)
	i.wg.Wait()
	return err
}

// requestReopen is called from raft's main or FSM goroutine when a received snapshot made its memory wrong.
func (n *Node) requestReopen() {
	i := n.inst.Load()
	if i == nil {
		return // Start fails
	}
	i.p.hold()
	select {
	case n.reopenC <- struct{}{}:
	default:
	}
}

// superviseRaft opens raft again in-process when asked to.
func (n *Node) superviseRaft() {
	for {
		select {
		case <-n.stopped:
			return
		case <-n.reopenC:
		}
		n.cfg.Logger.Info("opening raft again: the received snapshot conflicted with the end of the log")
		if err := n.inst.Load().shutdown(); err != nil {
			n.cfg.Logger.Warn("raft shutdown before reopening", "err", err)
		}
		if n.ctx.Err() != nil {
			return
		}
		if err := n.open(); err != nil {
			n.fail(err)
			return
		}
	}
}

// fail records why the node can not go on. The process should stop.
func (n *Node) fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.err == nil {
		n.err = err
		close(n.failed)
		n.cfg.Logger.Error("metadata log has failed", "err", err)
	}
}

// Failed is closed when the node can not go on; Err says why.
func (n *Node) Failed() <-chan struct{} { return n.failed }

// Err is the reason of Failed, nil before.
func (n *Node) Err() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err
}

// Stop ends everything and waits for it. Proposals still waiting return ErrUnknown. A node that leads and wants a quick
// successor calls TransferLeadership before.
func (n *Node) Stop() error {
	n.mu.Lock()
	started, again := n.started, n.ended
	n.ended = true
	n.mu.Unlock()
	n.cancel()
	if !started || again || n.stores == nil || n.inst.Load() == nil {
		return nil
	}
	err := n.tr.layer.Close() // first: what waits for a peer fails at once
	n.pusher.close()
	n.inst.Load().p.leave()
	err = errors.Join(err, n.inst.Load().r.Shutdown().Error())
	n.wg.Wait()
	i := n.inst.Load() // superviseRaft may just have opened another
	i.p.leave()
	err = errors.Join(err, i.r.Shutdown().Error())
	select {
	case <-i.quit:
	default:
		close(i.quit)
	}
	i.wg.Wait()
	_ = n.tr.close() // closes the layer once more
	return errors.Join(err, n.stores.close())
}

// bootstrapStores writes the first configuration into empty stores.
func (n *Node) bootstrapStores() error {
	if len(n.cfg.Bootstrap) == 0 {
		return nil
	}
	last, err := n.stores.log.LastIndex()
	if err != nil || last > 0 || n.stores.log.snapshot().index > 0 {
		return err
	}
	term, err := n.stores.stable.GetUint64([]byte("CurrentTerm"))
	if err != nil && err.Error() != "not found" {
		return fmt.Errorf("raftmeta: read term: %w", err)
	}
	if term > 1 {
		return nil // it has voted in a cluster already
	}
	// The same two writes as raft.BootstrapCluster, which refuses to go on where a kill has left it between them.
	if err := n.stores.stable.SetUint64([]byte("CurrentTerm"), 1); err != nil {
		return fmt.Errorf("raftmeta: bootstrap: %w", err)
	}
	if err := n.stores.log.StoreLog(&raft.Log{
		Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(configuration(n.cfg.Bootstrap)),
	}); err != nil {
		return fmt.Errorf("raftmeta: bootstrap: %w", err)
	}
	return nil
}

func configuration(servers []Server) (c raft.Configuration) {
	for _, s := range servers {
		c.Servers = append(c.Servers, raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(s.ID), Address: raft.ServerAddress(s.Addr)})
	}
	return c
}

// Bootstrap makes this node, which must have no Raft state, the first of a cluster (`cluster init`). Every server named
// must be bootstrapped with the same list, or be empty.
func (n *Node) Bootstrap(servers []Server) error {
	if err := n.inst.Load().r.BootstrapCluster(configuration(servers)).Error(); err != nil {
		return fmt.Errorf("raftmeta: bootstrap: %w", err)
	}
	return nil
}

// HasState says whether this directory belongs to a Raft cluster already.
func (n *Node) HasState() (bool, error) {
	has, err := raft.HasExistingState(n.stores.log, n.stores.stable, n.stores.snaps)
	if err != nil {
		return false, fmt.Errorf("raftmeta: look for state: %w", err)
	}
	return has, nil
}

// View is the newest applied state. It never changes.
func (n *Node) View() *state.View { return n.fsm.view.Load() }

// Hash is the state hash and its index; needs Config.TrackHash.
func (n *Node) Hash() (id.Index, uint64) {
	h := n.fsm.hash.Load()
	if h == nil {
		return 0, 0
	}
	return h.index, h.hash
}

// Subscribe calls fn for every entry applied from the returned view on, in order, before the new view can be read and
// before any proposer of that entry goes on. fn runs in the goroutine that applies: it must not block, and must not call
// Subscribe, its cancel function or WaitIndex. When cancel returns, fn is not running and will not be called again.
func (n *Node) Subscribe(fn func(Update)) (view *state.View, cancel func()) {
	return n.fsm.subscribe(fn)
}

// WaitIndex waits until View has reached a command's entry, for example Result.Index.
func (n *Node) WaitIndex(ctx context.Context, index id.Index) error {
	return n.fsm.waitIndex(ctx, n.stopped, index)
}

func (n *Node) onSettled(st *state.State, settled []state.Settled) {
	if n.fsm.bytes.Load() >= n.limit.Load() {
		select {
		case n.full <- struct{}{}:
		default:
		}
	}
	n.mu.Lock()
	l := n.lane
	n.mu.Unlock()
	if l == nil {
		return
	}
	if l.settle(settled) {
		l.gap()
	}
	if _, ok := st.LaneLast(l.id); !ok {
		l.finish(ErrLaneEnded)
	}
}

func (n *Node) onRestore(st *state.State) {
	n.mu.Lock()
	l := n.lane
	n.mu.Unlock()
	if l != nil {
		l.restored(st)
	}
}

// runSnapshots takes a snapshot when the log since the last one has outgrown it, and leaves TrailingBytes of log behind.
func (n *Node) runSnapshots() {
	var again <-chan time.Time
	for {
		select {
		case <-n.stopped:
			return
		case <-n.full:
		case <-again:
		}
		again = nil
		// Nodes have the same log: each voter takes its snapshot a fifth later than the one before, so that they do not all do it
		// at the same time.
		if n.fsm.bytes.Load() < n.limit.Load()+n.limit.Load()/5*int64(n.rank("")) {
			continue
		}
		if err := n.snapshot(); err != nil {
			n.cfg.Logger.Warn("snapshot not taken, trying again", "err", err)
			again = time.After(snapshotRetry)
		}
	}
}

func (n *Node) snapshot() error {
	r := n.inst.Load().r
	bytes, entries := n.fsm.bytes.Load(), n.fsm.entries.Load()
	k := r.ReloadableConfig()
	k.TrailingLogs = uint64(max(n.cfg.TrailingBytes/max(bytes/max(entries, 1), 1), 1))
	if err := r.ReloadConfig(k); err != nil {
		return fmt.Errorf("raftmeta: trailing logs: %w", err)
	}
	if err := r.Snapshot().Error(); err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return fmt.Errorf("raftmeta: snapshot: %w", err)
	}
	metas, err := n.stores.snaps.List()
	if err != nil {
		return err
	}
	if len(metas) > 0 {
		n.limit.Store(max(n.cfg.SnapshotBytes, 2*metas[0].Size))
	}
	return nil
}
