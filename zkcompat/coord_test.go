package zkcompat_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/barnabas-mq/barnabas/cluster"
	"github.com/barnabas-mq/barnabas/groupcoord"
	"github.com/barnabas-mq/barnabas/groupcoord/core"
	"github.com/barnabas-mq/barnabas/internal/clock"
	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
	"github.com/barnabas-mq/barnabas/zkcompat"
)

// coordinator runs the group coordinator over a fold: one term after the other.
type coordinator struct {
	f      *fold
	driver *groupcoord.Driver
	feed   *foldNode // what the coordinator has applied

	mu     sync.Mutex
	end    context.CancelFunc
	done   chan struct{}
	change chan struct{} // closed at the next term
}

func (f *fold) coordinate(t testing.TB) *coordinator {
	c := &coordinator{f: f, change: make(chan struct{})}
	c.feed = &foldNode{f: f}
	c.feed.cond.L = &c.feed.mu
	c.driver = groupcoord.NewDriver(groupcoord.DriverConfig{Proposer: c.feed, Views: c.feed, Clock: clock.System{},
		NewMind: func() core.Mind { return core.NewCoordinator(core.Config{}) }, Log: slog.New(slog.NewTextHandler(testLog{t}, nil))})
	c.feed.applied = c.driver.Applied
	f.join(t, c.feed, 0)
	c.next()
	t.Cleanup(c.stop)
	return c
}

// next ends the term and begins another: everything in the coordinator's memory is gone.
func (c *coordinator) next() {
	c.stop()
	ctx, cancel := context.WithCancel(context.Background())
	c.mu.Lock()
	c.end, c.done = cancel, make(chan struct{})
	done := c.done
	close(c.change)
	c.change = make(chan struct{})
	c.mu.Unlock()
	go func() { defer close(done); c.driver.Run(ctx, 1) }()
}

func (c *coordinator) stop() {
	c.mu.Lock()
	end, done := c.end, c.done
	c.mu.Unlock()
	if end != nil {
		end()
		<-done
	}
}

// Call is the cluster port of a node.
func (c *coordinator) Call(ctx context.Context, _ cluster.Target, _ string, payload []byte) ([]byte, error) {
	return c.driver.Handle(ctx, cluster.Peer{}, payload)
}

// Leader never changes its name here: what is asked again goes to the next term.
func (c *coordinator) Leader() (id.DirectoryID, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return "d", c.change
}

// coordinated adds a node whose clients' requests go to a coordinator.
func (f *fold) coordinated(t testing.TB, c *coordinator, lag time.Duration) *foldNode {
	n := &foldNode{f: f}
	n.cond.L = &n.mu
	client := groupcoord.NewClient(groupcoord.ClientConfig{Caller: c, Leaders: c, Views: n})
	b, err := zkcompat.NewStateBackend(zkcompat.StateConfig{Proposer: n, Views: n, Coordinator: client, Broker: func() id.BrokerID { return 1 },
		Log: slog.New(slog.NewTextHandler(testLog{t}, nil))})
	if err != nil {
		t.Fatal(err)
	}
	n.b = b
	f.join(t, n, lag)
	return n
}

// ProposeAllInTerm is groupcoord's.
func (n *foldNode) ProposeAllInTerm(_ id.Term, cs []*statepb.Command, done func(from, to int, rs []state.Settled, err error)) {
	go func() {
		for i, c := range cs {
			res, err := n.Propose(context.Background(), proto.Clone(c).(*statepb.Command))
			done(i, i+1, []state.Settled{{Result: res}}, err)
		}
	}()
}

// WaitIndex is groupcoord's.
func (n *foldNode) WaitIndex(ctx context.Context, i id.Index) error {
	stop := context.AfterFunc(ctx, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.cond.Broadcast()
	})
	defer stop()
	n.mu.Lock()
	defer n.mu.Unlock()
	for n.view.Index() < i {
		if n.done || ctx.Err() != nil {
			return errors.New("the node ends")
		}
		n.cond.Wait()
	}
	return nil
}
