package broker

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/partition"
	"github.com/barnabas-mq/barnabas/partition/record"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// fakeMeta is a metadata log without Raft: one state, applied at once.
type fakeMeta struct {
	mu     sync.Mutex
	st     *state.State
	index  id.Index
	view   atomic.Pointer[state.View]
	err    error                  // what Propose returns in place of applying
	asked  int                    // commands that came
	before func(*statepb.Command) // runs before a command of Do; may be nil
	tell   func(state.Applied)    // hears every applied entry, in order; may be nil

	groups fakeGroups
}

func (m *fakeMeta) View() *state.View { return m.view.Load() }

func (m *fakeMeta) Propose(ctx context.Context, cmd *statepb.Command) (*statepb.Result, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	if m.err != nil {
		return nil, m.err
	}
	cmd = proto.CloneOf(cmd)
	cmd.Version, cmd.Level = state.CommandVersion, 1
	data, err := proto.Marshal(&statepb.Entry{ClockStepMs: 1, WallMs: 1_600_000_000_000, Commands: []*statepb.Command{cmd}})
	if err != nil {
		return nil, err
	}
	m.index++
	a := m.st.Apply(m.index, id.Term(max(cmd.Term, 1)), data)
	m.view.Store(a.View)
	if m.tell != nil {
		m.tell(a)
	}
	return a.Settled[0].Result, nil
}

func (m *fakeMeta) Do(ctx context.Context, cmd *statepb.Command) (*statepb.Result, error) {
	if m.before != nil {
		m.before(cmd)
	}
	return m.Propose(ctx, cmd)
}

func (m *fakeMeta) Commit(ctx context.Context, _ time.Duration, c *statepb.CommitOffsets) (*statepb.Result, error) {
	return m.Propose(ctx, &statepb.Command{Body: &statepb.Command_CommitOffsets{CommitOffsets: c}})
}

func (m *fakeMeta) must(t testing.TB, body *statepb.Command) *statepb.Result {
	t.Helper()
	r, err := m.Propose(context.Background(), body)
	if err != nil || r.Code != statepb.Code_OK {
		t.Fatalf("%v: %v, %v", body, r, err)
	}
	return r
}

// newMeta makes a cluster "abcdefghijklmnopqrstuv" whose broker 1 is the controller.
func newMeta(t testing.TB) *fakeMeta {
	m := &fakeMeta{st: state.New()}
	m.view.Store(m.st.View())
	m.must(t, &statepb.Command{Body: &statepb.Command_Bootstrap{Bootstrap: &statepb.Bootstrap{ClusterId: "abcdefghijklmnopqrstuv", Level: 1}}})
	return m
}

func (m *fakeMeta) register(t testing.TB, b id.BrokerID, addr string) {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	var n int32
	_, _ = fmt.Sscan(port, &n)
	dir := fmt.Sprintf("dir-%d", b)
	m.must(t, &statepb.Command{Body: &statepb.Command_RegisterBroker{RegisterBroker: &statepb.RegisterBroker{
		DirectoryId: dir, Nonce: dir, WantedId: int32(b), MinLevel: 1, MaxLevel: 1,
		Endpoints: []*statepb.Endpoint{{Listener: "PLAINTEXT", Host: host, Port: n}},
	}}})
}

// fakePartitions keeps every partition of the view in memory; what is appended is visible at once.
type fakePartitions struct {
	meta  *fakeMeta
	mu    sync.Mutex
	logs  map[id.TopicPartition]*fakeLog
	news  chan struct{}          // closed at each append
	hold  chan struct{}          // when set, acks wait until it is closed
	gone  []uint64               // connections that ended
	acks  int16                  // of the last append
	looks atomic.Int64           // calls of ListOffset
	last  partition.FetchRequest // the last long poll
}

type fakeLog struct {
	data    []byte
	end     id.Offset
	bases   []id.Offset
	starts  []int
	stamped []int64
}

func newPartitions(m *fakeMeta) *fakePartitions {
	return &fakePartitions{meta: m, logs: map[id.TopicPartition]*fakeLog{}, news: make(chan struct{})}
}

func (f *fakePartitions) log(topic string, p int32) (*fakeLog, error) {
	if _, ok := f.meta.View().Partition(topic, p); !ok {
		return nil, partition.ErrUnknownTopicOrPartition
	}
	tp := id.TopicPartition{Topic: topic, Partition: p}
	if f.logs[tp] == nil {
		f.logs[tp] = &fakeLog{}
	}
	return f.logs[tp], nil
}

func (f *fakePartitions) BeginAppend(items []partition.AppendItem, acks int16) Appending {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := &fakeAppending{hold: f.hold}
	f.acks = acks
	if acks != -1 {
		a.hold = nil
	}
	for i := range items {
		a.results = append(a.results, f.append(&items[i]))
	}
	close(f.news)
	f.news = make(chan struct{})
	return a
}

func (f *fakePartitions) append(item *partition.AppendItem) partition.AppendResult {
	bad := partition.AppendResult{BaseOffset: -1, AppendTime: -1, LogStart: -1}
	l, err := f.log(item.Topic, item.Partition)
	if err != nil {
		bad.Err = err
		return bad
	}
	prepared, err := record.NewCodecs(0).PrepareProduce(item.Records, record.ProduceRules{Version: item.Version, MaxBatchBytes: 1 << 20, Now: 1})
	if err != nil {
		bad.Err = err
		return bad
	}
	first := l.end
	for rest := prepared.Batches; len(rest) > 0; {
		var b record.Batch
		b, rest, err = record.Next(rest)
		if err != nil {
			panic(err)
		}
		b.Assign(l.end, 0)
		l.bases, l.starts, l.stamped = append(l.bases, l.end), append(l.starts, len(l.data)), append(l.stamped, b.MaxTimestamp())
		l.data = append(l.data, b...)
		l.end = b.LastOffset() + 1
	}
	return partition.AppendResult{BaseOffset: first, AppendTime: -1}
}

type fakeAppending struct {
	results []partition.AppendResult
	hold    chan struct{}
}

func (a *fakeAppending) Settled() bool { return a.hold == nil }

func (a *fakeAppending) Wait(ctx context.Context, timeout time.Duration) []partition.AppendResult {
	if a.hold == nil {
		return a.results
	}
	select {
	case <-a.hold:
	case <-time.After(timeout):
		for i := range a.results {
			a.results[i] = partition.AppendResult{Err: partition.ErrRequestTimedOut, BaseOffset: -1, AppendTime: -1, LogStart: -1}
		}
	case <-ctx.Done():
	}
	return a.results
}

func (f *fakePartitions) Fetch(ctx context.Context, req *partition.FetchRequest) []partition.FetchResult {
	deadline := time.NewTimer(req.MaxWait)
	defer deadline.Stop()
	for {
		f.mu.Lock()
		if req.MaxWait > 0 {
			f.last = *req
		}
		out, size, failed := make([]partition.FetchResult, len(req.Items)), 0, false
		for i := range req.Items {
			out[i] = f.read(&req.Items[i], req.MaxBytes-size, size == 0)
			if req.Version < 4 && out[i].Err == nil {
				down, err := record.NewCodecs(0).DownConvert(nil, out[i].Records, record.DownRules{
					Magic: int8(req.Version / 2), From: req.Items[i].Offset, MaxBytes: req.Items[i].MaxBytes, AtLeastOne: req.Version == 3,
				})
				if err != nil {
					panic(err)
				}
				out[i].Records = down.Set
			}
			size += len(out[i].Records)
			failed = failed || out[i].Err != nil
		}
		news := f.news
		f.mu.Unlock()
		if size >= req.MinBytes || failed {
			return out
		}
		select {
		case <-news:
		case <-deadline.C:
			return out
		case <-ctx.Done():
			return out
		}
	}
}

func (f *fakePartitions) read(item *partition.FetchItem, left int, whole bool) partition.FetchResult {
	l, err := f.log(item.Topic, item.Partition)
	if err == nil && (item.Offset < 0 || item.Offset > l.end) {
		err = partition.ErrOffsetOutOfRange
	}
	if err != nil {
		return partition.FetchResult{Err: err, HighWatermark: -1, LastStable: -1, LogStart: -1}
	}
	r := partition.FetchResult{HighWatermark: l.end, LastStable: l.end}
	i, found := slices.BinarySearch(l.bases, item.Offset)
	if !found {
		i--
	}
	for ; i >= 0 && i < len(l.starts); i++ {
		to := len(l.data)
		if i+1 < len(l.starts) {
			to = l.starts[i+1]
		}
		b := l.data[l.starts[i]:to]
		if len(r.Records)+len(b) > min(left, item.MaxBytes) && !(whole && len(r.Records) == 0) {
			break
		}
		if record.Batch(b).LastOffset() >= item.Offset {
			r.Records = append(r.Records, b...)
		}
	}
	return r
}

func (f *fakePartitions) ListOffset(topic string, p int32, ts int64, _ id.LeaderEpoch, _ partition.Isolation) (partition.TimedOffset, error) {
	f.looks.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	l, err := f.log(topic, p)
	none := partition.TimedOffset{Offset: -1, Timestamp: -1, LeaderEpoch: -1}
	switch {
	case err != nil:
		return none, err
	case ts == partition.TimestampLatest:
		return partition.TimedOffset{Offset: l.end, Timestamp: -1}, nil
	case ts == partition.TimestampEarliest:
		return partition.TimedOffset{Timestamp: -1}, nil
	}
	for i, at := range l.stamped {
		if at >= ts {
			return partition.TimedOffset{Offset: l.bases[i], Timestamp: at}, nil
		}
	}
	return none, nil
}

func (f *fakePartitions) ListOffsetsV0(topic string, p int32, ts int64, n int) ([]id.Offset, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l, err := f.log(topic, p)
	if err != nil {
		return nil, err
	}
	all := []id.Offset{l.end, 0}
	if ts == partition.TimestampEarliest {
		all = all[1:]
	}
	return all[:min(len(all), n)], nil
}

func (f *fakePartitions) EndOffsetForEpoch(topic string, p int32, _, epoch id.LeaderEpoch) (id.LeaderEpoch, id.Offset, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l, err := f.log(topic, p)
	if err != nil || epoch > 0 {
		return -1, -1, err
	}
	return 0, l.end, nil
}

func (f *fakePartitions) ConnectionClosed(conn uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone = append(f.gone, conn)
}

// lines collects log lines.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, strings.TrimSpace(string(p)))
	return len(p), nil
}

func (l *lines) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.all
	l.all = nil
	return out
}

// fixture is one broker over fakes on a loopback port.
type fixture struct {
	*Server
	meta  *fakeMeta
	parts *fakePartitions
	addr  string
	lines *lines
}

func start(t testing.TB, change func(*Config)) *fixture {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{meta: newMeta(t), addr: ln.Addr().String(), lines: &lines{}}
	f.parts = newPartitions(f.meta)
	f.meta.register(t, 1, f.addr)
	f.meta.must(t, &statepb.Command{Term: 1, Body: &statepb.Command_TermStarted{TermStarted: &statepb.TermStarted{Broker: 1}}})
	cfg := Config{ID: 1, Logger: slog.New(slog.NewTextHandler(io.MultiWriter(f.lines), nil))}
	if change != nil {
		change(&cfg)
	}
	f.Server, err = New(cfg, Deps{Views: f.meta, Proposer: f.meta, Partitions: f.parts, Groups: f.meta})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- f.Serve(ln, "PLAINTEXT") }()
	t.Cleanup(func() {
		f.Stop()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return f
}

// command makes broker b the controller of the next term.
func command(b int32) *statepb.Command {
	return &statepb.Command{Term: 2, Body: &statepb.Command_TermStarted{TermStarted: &statepb.TermStarted{Broker: b}}}
}

func fence(v *state.View, b id.BrokerID) *statepb.Command {
	row, _ := v.Broker(b)
	return &statepb.Command{Term: 1, Body: &statepb.Command_FenceBroker{FenceBroker: &statepb.FenceBroker{Broker: int32(b), Epoch: uint64(row.Epoch), Reason: "test"}}}
}

// createT makes the topic t with one partition on broker 1.
func createT() *statepb.Command {
	return &statepb.Command{Body: &statepb.Command_CreateTopic{CreateTopic: &statepb.CreateTopic{
		Name: "t", TopicId: []byte("0123456789abcdef"), Assignments: []*statepb.Assignment{{Replicas: []int32{1}}},
	}}}
}
