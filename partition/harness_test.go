package partition

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/lease"
	"github.com/barnabas-mq/barnabas/internal/vfs"
	"github.com/barnabas-mq/barnabas/partition/record"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// cluster is some brokers' partitions over one real metadata state, in one process: every applied command is handed to every
// broker that is up and not held back, in order.
type cluster struct {
	t     testing.TB
	cfg   Config
	clock *testClock

	mu      sync.Mutex
	st      *state.State
	index   id.Index
	brokers map[id.BrokerID]*broker
	flaky   atomic.Bool // the outcome of some proposals is unknown
}

// broker is one node: its disk outlives its incarnations.
type broker struct {
	c    *cluster
	id   id.BrokerID
	disk *vfs.Mem

	m       *Manager
	epoch   atomic.Uint64
	nonce   int
	keeps   bool // it stays in the ISRs over a restart: its acks were on disk
	cancel  context.CancelFunc
	done    chan error
	up      atomic.Bool
	inc     atomic.Pointer[incarnation] // as m, for other brokers' goroutines
	leased  atomic.Bool                 // the broker lease is held
	lost    atomic.Int64                // Boot time at which it was last granted, while applied entries are held back; 0: now
	fault   atomic.Pointer[func(vfs.Op) error]
	cut     sync.Map // id.BrokerID -> struct{}: calls from here to there fail
	calls   atomic.Int64
	lagging bool // applied entries are held back, guarded by c.mu
	held    []state.Applied
	view    atomic.Pointer[state.View]
}

// testClock is package time's clock, a synctest bubble's in one. It can jump, as a machine's does that was frozen.
type testClock struct {
	began time.Time
	jump  atomic.Int64
}

func newTestClock() *testClock { return &testClock{began: time.Now()} }

func (c *testClock) Now() time.Time { return time.Now().Add(time.Duration(c.jump.Load())) }
func (c *testClock) Boot() time.Duration {
	return time.Hour + time.Since(c.began) + time.Duration(c.jump.Load())
}

type incarnation struct {
	m    *Manager
	dead context.Context // ends with it
}

func newCluster(t testing.TB, n int, cfg Config) *cluster {
	t.Helper()
	c := &cluster{t: t, cfg: cfg, clock: newTestClock(), st: state.New(), brokers: map[id.BrokerID]*broker{}}
	c.do(&statepb.Command{Body: &statepb.Command_Bootstrap{Bootstrap: &statepb.Bootstrap{ClusterId: "AAAAAAAAAAAAAAAAAAAAAA", Level: state.MinLevel}}})
	for i := 1; i <= n; i++ {
		b := &broker{c: c, id: id.BrokerID(i), disk: vfs.NewMem(nil)}
		b.leased.Store(true)
		c.brokers[b.id] = b
	}
	for i := 1; i <= n; i++ {
		c.brokers[id.BrokerID(i)].start()
	}
	t.Cleanup(func() {
		for _, b := range c.brokers {
			b.stop()
		}
	})
	return c
}

// do applies one command everywhere and returns its result.
func (c *cluster) do(cmd *statepb.Command) *statepb.Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	cmd.Version, cmd.Level = state.CommandVersion, state.MinLevel
	data, err := proto.Marshal(&statepb.Entry{WallMs: time.Now().UnixMilli(), Commands: []*statepb.Command{cmd}})
	if err != nil {
		c.t.Fatal(err)
	}
	c.index++
	a := c.st.Apply(c.index, 1, data)
	for _, b := range c.brokers {
		if !b.up.Load() {
			continue
		}
		if b.lagging {
			b.held = append(b.held, a)
			continue
		}
		b.apply(a)
	}
	return a.Settled[0].Result
}

func (b *broker) apply(a state.Applied) {
	b.view.Store(a.View)
	b.m.ApplyChanges(a.View, a.Changes)
}

// lag holds back applied entries, or lets them through.
func (b *broker) lag(on bool) {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	b.lagging = on
	if on {
		b.lost.Store(int64(b.c.clock.Boot()))
	} else {
		b.lost.Store(0)
		for _, a := range b.held {
			b.apply(a)
		}
		b.held = nil
	}
}

// View, Propose and Call make a broker its own Views, Proposer and Peers.
func (b *broker) View() *state.View { return b.view.Load() }

func (b *broker) Propose(ctx context.Context, cmd *statepb.Command) (*statepb.Result, error) {
	if !b.up.Load() || b.isLagging() {
		return nil, errors.New("no quorum")
	}
	flaky := b.c.flaky.Load()
	if flaky && rand.IntN(10) == 0 {
		return nil, errors.New("not proposed, and the proposer cannot know")
	}
	res := b.c.do(proto.Clone(cmd).(*statepb.Command))
	if flaky && rand.IntN(10) == 0 {
		return nil, errors.New("applied, and the proposer cannot know")
	}
	return res, nil
}

func (b *broker) isLagging() bool {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	return b.lagging
}

var errCut = errors.New("cut")

func (b *broker) Call(ctx context.Context, to id.BrokerID, method string, payload []byte) ([]byte, error) {
	b.calls.Add(1)
	peer := b.c.brokers[to]
	self := b.inc.Load()
	if _, cut := b.cut.Load(to); cut || method != MethodFetch || peer == nil || !peer.up.Load() {
		return nil, errCut
	}
	at := peer.inc.Load()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(at.dead, cancel)()
	defer context.AfterFunc(self.dead, cancel)()
	epoch := id.BrokerEpoch(b.epoch.Load())
	res, err := at.m.HandleReplicaFetch(ctx, b.id, epoch, payload)
	if _, cut := b.cut.Load(to); cut || !peer.up.Load() || !b.up.Load() || peer.inc.Load() != at {
		return nil, errCut
	}
	return res, err
}

// start begins an incarnation on the broker's disk and registers it.
func (b *broker) start() {
	c := b.c
	c.t.Helper()
	b.nonce++
	cfg := c.cfg
	cfg.Dir = "data"
	fsys := vfs.WithFaults(b.disk, func(op vfs.Op) error {
		if f := b.fault.Load(); f != nil {
			return (*f)(op)
		}
		return nil
	})
	b.epoch.Store(0)
	m, err := New(cfg, Deps{
		FS: fsys, Clock: c.clock, Logger: slog.New(testLog{c.t, b.id}), Views: b, Proposer: b, Peers: b,
		Lease: func() lease.Lease {
			var l lease.Lease
			if lost := b.lost.Load(); lost != 0 {
				l.Answered(time.Duration(lost))
			} else if b.leased.Load() {
				l.Answered(c.clock.Boot())
			}
			return l
		},
		Self: func() (id.BrokerID, id.BrokerEpoch) { return b.id, id.BrokerEpoch(b.epoch.Load()) },
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	b.m, b.lagging, b.held = m, false, nil
	b.lost.Store(0)
	b.view.Store(c.st.View())
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel, b.done = cancel, make(chan error, 1)
	b.inc.Store(&incarnation{m: m, dead: ctx})
	b.up.Store(true)
	c.mu.Unlock()
	go func() { b.done <- m.Run(ctx) }()
	res := c.do(&statepb.Command{Body: &statepb.Command_RegisterBroker{RegisterBroker: &statepb.RegisterBroker{
		DirectoryId: fmt.Sprintf("dir-%d", b.id), Nonce: fmt.Sprint(b.nonce), WantedId: int32(b.id), MinLevel: state.MinLevel, MaxLevel: state.MinLevel,
		KeepsLog: b.keeps,
	}}})
	if res.Code != statepb.Code_OK {
		c.t.Fatalf("register broker %d: %v", b.id, res)
	}
	b.epoch.Store(res.Epoch)
	m.SelfChanged()
}

// stop ends the incarnation in order.
func (b *broker) stop() {
	if b.up.Swap(false) {
		b.end()
	}
}

func (b *broker) end() {
	b.cancel()
	if err := <-b.done; err != nil {
		b.c.t.Errorf("broker %d: %v", b.id, err)
	}
}

// crash ends the incarnation as a power loss does: what was not synced may be gone. Nothing that it does after the loss reaches
// anybody.
func (b *broker) crash(rng *rand.Rand, keep float64) {
	if !b.up.Swap(false) {
		return
	}
	clone := b.disk.CrashClone(rng, vfs.Crash{Keep: keep, Torn: true})
	b.end()
	b.disk = clone
}

// fence is what the controller does with a broker that is gone.
func (c *cluster) fence(b id.BrokerID, proven bool) {
	row, _ := c.view().Broker(b)
	if row.Liveness == state.Live {
		c.do(&statepb.Command{Body: &statepb.Command_FenceBroker{FenceBroker: &statepb.FenceBroker{Broker: int32(b), Epoch: uint64(row.Epoch), Proven: proven}}})
	}
}

func (c *cluster) view() *state.View {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.st.View()
}

func (c *cluster) createTopic(name string, tid byte, assignments ...[]int32) id.TopicID {
	c.t.Helper()
	t := id.TopicID{tid, 1}
	cmd := &statepb.CreateTopic{Name: name, TopicId: t[:]}
	for _, a := range assignments {
		cmd.Assignments = append(cmd.Assignments, &statepb.Assignment{Replicas: a})
	}
	if res := c.do(&statepb.Command{Body: &statepb.Command_CreateTopic{CreateTopic: cmd}}); res.Code != statepb.Code_OK {
		c.t.Fatalf("create %s: %v", name, res)
	}
	return t
}

func (c *cluster) deleteTopic(name string) {
	c.do(&statepb.Command{Body: &statepb.Command_DeleteTopic{DeleteTopic: &statepb.DeleteTopic{Name: name}}})
}

// elect moves a partition to a member of its ISR.
func (c *cluster) elect(topic string, p int32, to id.BrokerID) bool {
	v := c.view()
	t, _ := v.Topic(topic)
	row, _ := v.Partition(topic, p)
	res := c.do(&statepb.Command{Body: &statepb.Command_ElectLeaders{ElectLeaders: &statepb.ElectLeaders{Elections: []*statepb.Election{
		{TopicId: t.ID[:], Partition: p, PartitionEpoch: int32(row.Epoch), Leader: int32(to)},
	}}}})
	return res.Parts[0].Code == statepb.Code_OK
}

func (c *cluster) row(topic string, p int32) *state.Partition {
	row, _ := c.view().Partition(topic, p)
	return row
}

// leader waits until a partition is led and answers.
func (c *cluster) leader(topic string, p int32) *broker {
	c.t.Helper()
	var b *broker
	eventually(c.t, "a leader that answers", func() bool {
		row := c.row(topic, p)
		if row == nil || row.Leader == id.NoBroker || !c.brokers[row.Leader].up.Load() {
			return false
		}
		b = c.brokers[row.Leader]
		_, err := b.m.Marks(topic, p)
		return err == nil
	})
	return b
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	const patience = 2 * time.Minute
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s", patience, what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// batchOf makes a produce payload of one batch.
func batchOf(t testing.TB, values ...string) []byte {
	t.Helper()
	return batchWith(t, record.PlainHeader(), values...)
}

func batchWith(t testing.TB, h record.BatchHeader, values ...string) []byte {
	t.Helper()
	records := make([]record.Record, len(values))
	for i, v := range values {
		records[i] = record.Record{Offset: id.Offset(i), Timestamp: 1000 + int64(i), Value: []byte(v)}
	}
	out, err := record.NewCodecs(0).Build(nil, h, records)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func idempotent(pid int64, epoch int16, seq int32) record.BatchHeader {
	h := record.PlainHeader()
	h.ProducerID, h.ProducerEpoch, h.BaseSequence = pid, epoch, seq
	return h
}

// produce appends one batch.
func (b *broker) produce(topic string, p int32, acks int16, timeout time.Duration, payload []byte) AppendResult {
	return b.m.Append(context.Background(), []AppendItem{{Topic: topic, Partition: p, Records: payload, Version: 9}}, acks, timeout)[0]
}

// fetch reads once, without a wait.
func (b *broker) fetch(topic string, p int32, from id.Offset) FetchResult {
	return b.m.Fetch(context.Background(), &FetchRequest{Version: 12, MaxBytes: 1 << 20, Items: []FetchItem{{Topic: topic, Partition: p, Offset: from, LeaderEpoch: -1, MaxBytes: 1 << 20}}})[0]
}

// read returns the values from an offset to the high watermark, by offset.
func (b *broker) read(topic string, p int32, from id.Offset) (map[id.Offset]string, error) {
	out := map[id.Offset]string{}
	for {
		res := b.fetch(topic, p, from)
		if res.Err != nil || len(res.Records) == 0 {
			return out, res.Err
		}
		for rest := res.Records; len(rest) > 0; {
			var batch record.Batch
			var err error
			if batch, rest, err = record.Next(rest); err != nil {
				return nil, err
			}
			records, err := record.NewCodecs(0).Records(batch)
			if err != nil {
				return nil, err
			}
			var rec record.Record
			for {
				more, err := records.Next(&rec)
				if err != nil {
					return nil, err
				}
				if !more {
					break
				}
				if rec.Offset >= from {
					out[rec.Offset] = string(rec.Value)
				}
			}
			from = batch.LastOffset() + 1
		}
	}
}

// testLog writes log lines to the test; lines after its end are dropped.
type testLog struct {
	t  testing.TB
	id id.BrokerID
}

func (l testLog) Enabled(_ context.Context, level slog.Level) bool {
	return testing.Verbose() && level >= slog.LevelInfo
}

func (l testLog) Handle(_ context.Context, r slog.Record) error {
	line := fmt.Sprintf("[%d] %v %s", l.id, r.Level, r.Message)
	r.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	l.t.Log(line)
	return nil
}

func (l testLog) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l testLog) WithGroup(string) slog.Handler      { return l }
