package zkcompat_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
	"github.com/barnabas-mq/barnabas/zkcompat"
)

// fold is the metadata state without Raft: commands are applied in the order in which they are proposed, one entry
// each, and every node sees them in that order, each when it pleases.
type fold struct {
	mu    sync.Mutex
	s     *state.State
	index id.Index
	nodes []*foldNode
}

// foldNode is one node's view of it: Proposer, Views and the feed of a backend.
type foldNode struct {
	f *fold
	b *zkcompat.StateBackend
	// applied is told of each entry before it can be read.
	applied func(*state.View, []state.Change)
	// faulty is the share of proposals whose outcome stays unknown: half of them are applied all the same.
	faulty float64

	mu   sync.Mutex
	cond sync.Cond
	view *state.View
	feed []state.Applied
	done bool
}

// newFold bootstraps a state with brokers 1, 2, ...
func newFold(t testing.TB, brokers int) *fold {
	t.Helper()
	f := &fold{s: state.New()}
	must := func(c *statepb.Command) {
		t.Helper()
		if r := f.apply(c); r.Code != statepb.Code_OK {
			t.Fatal(r)
		}
	}
	must(&statepb.Command{Body: &statepb.Command_Bootstrap{Bootstrap: &statepb.Bootstrap{ClusterId: "abcdefghijklmnopqrstuv", Level: 1}}})
	for n := range brokers {
		must(&statepb.Command{Body: &statepb.Command_RegisterBroker{RegisterBroker: &statepb.RegisterBroker{
			DirectoryId: fmt.Sprintf("dir%d", n+1), Nonce: "n", WantedId: int32(n + 1), MinLevel: 1, MaxLevel: 1,
			Endpoints: []*statepb.Endpoint{{Listener: "PLAINTEXT", Host: "127.0.0.1", Port: int32(1 + n)}}}}})
	}
	must(&statepb.Command{Body: &statepb.Command_TermStarted{TermStarted: &statepb.TermStarted{Broker: 1}}})
	return f
}

func (f *fold) apply(c *statepb.Command) *statepb.Result {
	c.Version = state.CommandVersion
	data, err := proto.Marshal(&statepb.Entry{ClockStepMs: 1, WallMs: time.Now().UnixMilli(), Commands: []*statepb.Command{c}})
	if err != nil {
		panic(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index++
	a := f.s.Apply(f.index, 1, data)
	for _, n := range f.nodes {
		n.mu.Lock()
		n.feed = append(n.feed, a)
		n.cond.Broadcast()
		n.mu.Unlock()
	}
	return a.Settled[0].Result
}

// node adds a node that lags behind by up to lag per batch of entries.
func (f *fold) node(t testing.TB, lag time.Duration) *foldNode {
	t.Helper()
	n := &foldNode{f: f}
	n.cond.L = &n.mu
	b, err := zkcompat.NewStateBackend(zkcompat.StateConfig{Proposer: n, Views: n, Broker: func() id.BrokerID { return 1 },
		Log: slog.New(slog.NewTextHandler(testLog{t}, nil))})
	if err != nil {
		t.Fatal(err)
	}
	n.b = b
	f.join(t, n, lag)
	return n
}

// join has a node follow the log from now on.
func (f *fold) join(t testing.TB, n *foldNode, lag time.Duration) {
	if n.applied == nil {
		n.applied = func(v *state.View, changes []state.Change) { n.b.Applied(v, changes) }
	}
	f.mu.Lock()
	n.view = f.s.View()
	f.nodes = append(f.nodes, n)
	f.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() { n.run(lag) })
	t.Cleanup(func() {
		n.mu.Lock()
		n.done = true
		n.cond.Broadcast()
		n.mu.Unlock()
		wg.Wait()
	})
}

// backend is a node that does not lag.
func (f *fold) backend(t testing.TB) *zkcompat.StateBackend { return f.node(t, 0).b }

func (n *foldNode) run(lag time.Duration) {
	for {
		n.mu.Lock()
		for len(n.feed) == 0 && !n.done {
			n.cond.Wait()
		}
		if n.done {
			n.mu.Unlock()
			return
		}
		n.mu.Unlock()
		if lag > 0 {
			time.Sleep(rand.N(lag))
		}
		n.mu.Lock()
		feed := n.feed
		n.feed = nil
		n.mu.Unlock()
		for _, a := range feed {
			n.applied(a.View, a.Changes)
			n.mu.Lock()
			n.view = a.View
			n.cond.Broadcast()
			n.mu.Unlock()
		}
	}
}

func (n *foldNode) View() *state.View {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.view
}

var errUnknown = errors.New("leadership lost while applying")

func (n *foldNode) Propose(_ context.Context, c *statepb.Command) (*statepb.Result, error) {
	fault := n.faulty > 0 && rand.Float64() < n.faulty
	if fault && rand.IntN(2) == 0 {
		return nil, errUnknown
	}
	r := n.f.apply(c)
	if fault {
		return nil, errUnknown
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for n.view.Index() < id.Index(r.Index) && !n.done {
		n.cond.Wait()
	}
	return r, nil
}
