package groupcoord

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"google.golang.org/protobuf/proto"

	"github.com/barnabas-mq/barnabas/cluster"
	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// Caller is the cluster port.
type Caller interface {
	Call(ctx context.Context, t cluster.Target, method string, payload []byte) ([]byte, error)
}

// Leaders tells where the coordinator is.
type Leaders interface {
	// Leader returns the Raft leader's directory, "" when none is known, and a channel that is closed at the next change.
	Leader() (id.DirectoryID, <-chan struct{})
}

// Applied reads the local state and waits for it.
type Applied interface {
	View() *state.View
	// WaitIndex returns when the local view has reached an index, or with ctx's error.
	WaitIndex(ctx context.Context, i id.Index) error
}

// ClientConfig is what a Client needs; all fields but Local and Log are required.
type ClientConfig struct {
	Caller  Caller
	Leaders Leaders
	Views   Applied
	Local   Committer // this node's own coordinator, for Commit; nil: there is none
	Log     *slog.Logger
}

// Client asks the coordinator for this node's clients.
type Client struct{ cfg ClientConfig }

// NewClient starts nothing.
func NewClient(cfg ClientConfig) *Client {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Client{cfg: cfg}
}

// retryPause bounds how often a node asks while no coordinator answers; a change of the leader ends it at once.
const retryPause = 50 * time.Millisecond

// Do asks the coordinator and waits for its answer for as long as ctx lives: over fail-overs, and until the local view
// shows what the answer says. An error means that the outcome is unknown.
func (c *Client) Do(ctx context.Context, cmd *statepb.Command) (*statepb.Result, error) {
	body, err := proto.Marshal(cmd)
	if err != nil {
		return nil, fmt.Errorf("group request: %w", err)
	}
	res := new(statepb.Result)
	return res, c.do(ctx, 0, body, func(b []byte) (id.Index, error) {
		proto.Reset(res)
		err := proto.Unmarshal(b, res)
		return id.Index(res.Index), err
	})
}

// Ask passes a client's JoinGroup, SyncGroup, Heartbeat, LeaveGroup, ConsumerGroupHeartbeat, DescribeGroups, ConsumerGroupDescribe or
// ListGroups of any version to the
// coordinator and waits as Do does, but not for a coordinator that cannot be found. An error means that the outcome is unknown; the
// client is to look for its coordinator again.
func (c *Client) Ask(ctx context.Context, clientID, host string, req kmsg.Request) (kmsg.Response, error) {
	resp := req.ResponseKind()
	return resp, c.do(ctx, flagKafka, encodeKafka(clientID, host, nonce(req), req), func(b []byte) (id.Index, error) {
		if len(b) < 8 {
			return 0, errors.New("cut short")
		}
		i := id.Index(binary.BigEndian.Uint64(b))
		if req.Key() == heartbeatKey {
			i = 0 // it says nothing of the view
		}
		return i, resp.ReadFrom(b[8:])
	})
}

// patience is how long Ask looks for a coordinator: a node that is cut off sends its clients to the others.
const patience = 3 * time.Second

// do asks until there is an answer; take reads it and tells which index the local view must have.
func (c *Client) do(ctx context.Context, flags byte, body []byte, take func([]byte) (id.Index, error)) error {
	begun := time.Now()
	var lost time.Time
	for {
		leader, changed := c.cfg.Leaders.Leader()
		if leader != "" {
			asked := time.Now()
			err := c.ask(ctx, leader, append(head(flags, asked.Sub(begun)), body...), take)
			if err == nil {
				return nil
			}
			if cluster.CodeOf(err) == codeMalformed {
				return err
			}
			if waited := time.Since(asked); waited > patience { // it was parked there, not lost
				lost = time.Time{}
			}
			if !cluster.NotSent(err) {
				flags |= flagRepeat
			}
			c.cfg.Log.Debug("group request is repeated", "coordinator", leader, "err", err)
		}
		if lost.IsZero() {
			lost = time.Now()
		}
		if flags&flagKafka != 0 && time.Since(lost) > patience {
			return fmt.Errorf("group request: no coordinator answered for %s", patience)
		}
		pause := time.NewTimer(retryPause)
		select {
		case <-ctx.Done():
			pause.Stop()
			return fmt.Errorf("group request: outcome unknown: %w", ctx.Err())
		case <-changed:
		case <-pause.C:
		}
		pause.Stop()
	}
}

// ask calls one coordinator; the call ends when another node becomes the leader, so that nobody waits for a frozen one.
func (c *Client) ask(ctx context.Context, leader id.DirectoryID, payload []byte, take func([]byte) (id.Index, error)) error {
	call, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	defer func() { cancel(); <-ended }()
	go func() { defer close(ended); c.abandon(call, cancel, leader) }()
	b, err := c.cfg.Caller.Call(call, cluster.ToDirectory(leader), Method, payload)
	if err != nil {
		return err
	}
	index, err := take(b)
	if err != nil {
		return fmt.Errorf("group answer: %w", err)
	}
	return c.cfg.Views.WaitIndex(ctx, index)
}

// abandon cancels a call once its coordinator is no longer the leader. It ends with the call.
func (c *Client) abandon(call context.Context, cancel context.CancelFunc, asked id.DirectoryID) {
	for {
		leader, changed := c.cfg.Leaders.Leader()
		if leader != asked && leader != "" {
			cancel()
			return
		}
		select {
		case <-changed:
		case <-call.Done():
			return
		}
	}
}
