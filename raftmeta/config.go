package raftmeta

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barnabas-mq/barnabas/internal/clock"
	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/vfs"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// Methods of the RPC between nodes; the answers are those of Node.Handlers.
const (
	MethodForward = "raft.forward" // a batch of a lane; the answer says only whether the leader took it
	MethodRaw     = "raft.raw"     // one command without a lane; the answer is its Result
	MethodProve   = "raft.prove"   // is your term still mine
	MethodPromise = "raft.promise" // let me follow a dead leader
	MethodJoin    = "raft.join"    // take me in; also for nodes that know no cluster id yet
)

// Peers calls a method of another node by its directory id; for example cluster.Cluster with cluster.ToDirectory. An
// error says nothing about whether the other side has acted.
type Peers interface {
	Call(ctx context.Context, to id.DirectoryID, method string, payload []byte) ([]byte, error)
}

// Handler answers one method; from is the directory id of the caller as its connection proved it.
type Handler func(ctx context.Context, from id.DirectoryID, payload []byte) ([]byte, error)

// Server is a member of the Raft configuration.
type Server struct {
	ID   id.DirectoryID
	Addr string // cluster address, host:port
}

// MaxVoters is how many voters Join makes; further nodes follow without a vote.
const MaxVoters = 3

// Config is what a Node needs.
type Config struct {
	Dir string         // directory of this node's Raft state; made if missing
	ID  id.DirectoryID // of this data directory

	// Bootstrap are the first voters. Used only by a node without any Raft state; every node named must be given the same
	// list. Empty: the node waits for Bootstrap or for being taken in by Join.
	Bootstrap []Server

	Stream raft.StreamLayer           // of the cluster port; closed by Stop
	Addrs  raft.ServerAddressProvider // current addresses by id; nil: those of the configuration
	Peers  Peers

	FS     vfs.FS      // of snapshots; default the machine's
	Clock  clock.Clock // default the machine's
	Logger *slog.Logger

	// TrackHash keeps the state hash (View is unaffected); for tests.
	TrackHash bool

	// HeartbeatTimeout is also the election timeout. Default 800 ms; Lease 500 ms (hashicorp/raft's leader lease).
	HeartbeatTimeout, Lease time.Duration
	// ResendAfter is when a lane repeats commands that nothing was heard of. Default 1 s.
	ResendAfter time.Duration
	// TickEvery is how often an idle leader moves the cluster clock; at most 10 s. Default 5 s.
	TickEvery time.Duration
	// SnapshotBytes is the least size of the log since the last snapshot that makes a new one; it also grows with the state:
	// max(SnapshotBytes, 2 x the last snapshot). Default 64 MiB. TrailingBytes of log stay behind. Default 32 MiB.
	SnapshotBytes, TrailingBytes int64
	// SegmentBytes is the size of a file of the log. Default 64 MiB.
	SegmentBytes int
}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.HeartbeatTimeout, 800*time.Millisecond)
	def(&c.Lease, c.HeartbeatTimeout*5/8)
	def(&c.ResendAfter, time.Second)
	def(&c.TickEvery, 5*time.Second)
	if c.SnapshotBytes == 0 {
		c.SnapshotBytes = 64 << 20
	}
	if c.TrailingBytes == 0 {
		c.TrailingBytes = 32 << 20
	}
	if c.SegmentBytes == 0 {
		c.SegmentBytes = walSegmentBytes
	}
	if c.FS == nil {
		c.FS = vfs.OS()
	}
	if c.Clock == nil {
		c.Clock = clock.System{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	bad := func(cond bool, format string, args ...any) {
		if cond {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(c.Dir == "", "Dir is empty: give the directory of the Raft state")
	bad(c.ID == "", "ID is empty: give the data directory's id")
	bad(c.Stream == nil, "Stream is missing")
	bad(c.Peers == nil, "Peers is missing")
	bad(c.HeartbeatTimeout < 5*time.Millisecond, "HeartbeatTimeout %v is below 5 ms", c.HeartbeatTimeout)
	bad(c.Lease > c.HeartbeatTimeout, "Lease %v is above HeartbeatTimeout %v", c.Lease, c.HeartbeatTimeout)
	bad(c.TickEvery > 10*time.Second, "TickEvery %v is above 10 s", c.TickEvery)
	bad(c.SnapshotBytes < 0 || c.TrailingBytes < 0 || c.SegmentBytes < 0, "a size is negative")
	for i, s := range c.Bootstrap {
		bad(s.ID == "" || s.Addr == "", "Bootstrap[%d] lacks an id or an address: %+v", i, s)
	}
	if len(errs) > 0 {
		return fmt.Errorf("raftmeta: %w", errors.Join(errs...))
	}
	return nil
}

// Errors for callers, for errors.Is.
var (
	// ErrUnknown says that a command may or may not have been applied, now or later.
	ErrUnknown = errors.New("raftmeta: the outcome is unknown")
	// ErrNotLeader says that this node is not the leader (of that term); nothing was proposed.
	ErrNotLeader = errors.New("raftmeta: not the leader of that term")
	// ErrLaneEnded says that this incarnation was fenced: register again and start a new lane. The command was not and will
	// not be applied, unless the error is ErrUnknown too.
	ErrLaneEnded = errors.New("raftmeta: this incarnation's lane has ended")
	// ErrNoLane says that the lane was not started before the context ended; nothing was proposed.
	ErrNoLane = errors.New("raftmeta: no lane yet: the broker is not registered")
	// ErrTooLarge refuses a command that fits into no entry.
	ErrTooLarge = state.ErrTooLarge
	// ErrStopped says that the node is stopping; nothing was proposed.
	ErrStopped = errors.New("raftmeta: node is stopped")
	// ErrNoProof says that no quorum of voters confirmed the term in time.
	ErrNoProof = errors.New("raftmeta: no quorum confirmed the leadership")
)
