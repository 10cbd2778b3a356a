package zkcompat_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
	"github.com/barnabas-mq/barnabas/zkcompat"
)

// fold is the metadata state without Raft: commands are applied where they are proposed, one entry each.
type fold struct {
	mu    sync.Mutex
	s     *state.State
	index id.Index
	feed  []*zkcompat.StateBackend
}

// newFold bootstraps a state with brokers 1, 2, ...
func newFold(t testing.TB, brokers int) *fold {
	t.Helper()
	f := &fold{s: state.New()}
	must := func(c *statepb.Command) *statepb.Result {
		t.Helper()
		r, err := f.Propose(context.Background(), c)
		if err != nil || r.Code != statepb.Code_OK {
			t.Fatal(r, err)
		}
		return r
	}
	must(&statepb.Command{Body: &statepb.Command_Bootstrap{Bootstrap: &statepb.Bootstrap{ClusterId: "abcdefghijklmnopqrstuv", Level: 1}}})
	for n := range brokers {
		must(&statepb.Command{Body: &statepb.Command_RegisterBroker{RegisterBroker: &statepb.RegisterBroker{
			DirectoryId: fmt.Sprintf("dir%d", n+1), Nonce: "n", WantedId: int32(n + 1), MinLevel: 1, MaxLevel: 1,
			Endpoints: []*statepb.Endpoint{{Listener: "PLAINTEXT", Host: "127.0.0.1", Port: int32(9092 + n)}}}}})
	}
	must(&statepb.Command{Body: &statepb.Command_TermStarted{TermStarted: &statepb.TermStarted{Broker: 1}}})
	return f
}

func (f *fold) View() *state.View {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.s.View()
}

func (f *fold) Propose(_ context.Context, c *statepb.Command) (*statepb.Result, error) {
	c.Version = state.CommandVersion
	data, err := proto.Marshal(&statepb.Entry{ClockStepMs: 1, WallMs: time.Now().UnixMilli(), Commands: []*statepb.Command{c}})
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index++
	a := f.s.Apply(f.index, 1, data)
	for _, b := range f.feed {
		b.Applied(a.View, a.Changes)
	}
	return a.Settled[0].Result, nil
}

// backend adds a node's backend.
func (f *fold) backend(t testing.TB) *zkcompat.StateBackend {
	t.Helper()
	b, err := zkcompat.NewStateBackend(zkcompat.StateConfig{Proposer: f, Views: f, Broker: func() id.BrokerID { return 1 }})
	if err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	f.feed = append(f.feed, b)
	f.mu.Unlock()
	return b
}
