package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// Config is how a Server behaves. The zero value of a field with a default means the default.
type Config struct {
	// ID is this node's broker id.
	ID id.BrokerID
	// NumPartitions is num.partitions, for topics made without a count. Default 1.
	NumPartitions int32
	// ReplicationFactor is default.replication.factor; 0 means min(3, live brokers).
	ReplicationFactor int16
	// MinISR is min.insync.replicas; 0 means (replicas+1)/2. Only shown here; package partition enforces it.
	MinISR int16
	// NoAutoCreate switches auto.create.topics.enable off, NoDelete delete.topic.enable.
	NoAutoCreate, NoDelete bool
	// Static are the broker's own settings under Kafka's names, as DescribeConfigs shows them; topic settings that a topic does
	// not have come from here, then from Kafka's defaults.
	Static map[string]string

	// OffsetsTopic is how __consumer_offsets is made when a client asks for it.
	OffsetsTopic OffsetsTopic

	// RequestMaxBytes is socket.request.max.bytes: the largest frame, and the largest Produce. Default 100 MiB.
	RequestMaxBytes int
	// QueuedMaxBytes bounds the frames above 64 KiB that all connections hold together. Default 4 * RequestMaxBytes.
	QueuedMaxBytes int64
	// FetchMaxBytes bounds the records of one Fetch response (Kafka's fetch.max.bytes). Default 55 MiB.
	FetchMaxBytes int
	// MaxInFlight is how many requests of one connection may be read ahead of the oldest unanswered one. Default 16.
	MaxInFlight int
	// IdleTimeout is connections.max.idle.ms: a connection without a request for so long is closed, and so is one that takes so
	// long to accept a response. Default 10 min.
	IdleTimeout time.Duration
	// FrameTimeout is how long a frame that has begun may take, plus a second per MiB. Default 30 s.
	FrameTimeout time.Duration
	// SendBuffer and ReceiveBuffer are socket.*.buffer.bytes; 0 or less leaves the system's.
	SendBuffer, ReceiveBuffer int

	// Logger gets one line per refused connection. Default: nothing.
	Logger *slog.Logger
	// Metrics observes; default: nobody.
	Metrics Metrics
}

// OffsetsTopic is how __consumer_offsets is made. It is a copy for those who read it (groupcoord/export), so it is made when somebody
// asks for it by name, and costs nothing before. Zero values mean Kafka's defaults.
type OffsetsTopic struct {
	Off          bool
	Partitions   int32 // offsets.topic.num.partitions; default 50
	Replication  int16 // offsets.topic.replication.factor; default 3, and fewer while there are fewer brokers
	SegmentBytes int   // offsets.topic.segment.bytes; default 100 MiB
}

func (c Config) withDefaults() Config {
	def(&c.NumPartitions, 1)
	def(&c.OffsetsTopic.Partitions, 50)
	def(&c.OffsetsTopic.Replication, 3)
	def(&c.OffsetsTopic.SegmentBytes, 100<<20)
	def(&c.RequestMaxBytes, 100<<20)
	def(&c.QueuedMaxBytes, 4*int64(c.RequestMaxBytes))
	def(&c.FetchMaxBytes, 55<<20)
	def(&c.MaxInFlight, 16)
	def(&c.IdleTimeout, 10*time.Minute)
	def(&c.FrameTimeout, 30*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = noMetrics{}
	}
	return c
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

func (c Config) validate() error {
	var errs []error
	bad := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("broker: "+format, args...))
		}
	}
	bad(c.ID >= 0, "broker id %d is negative", c.ID)
	bad(c.NumPartitions > 0 && c.NumPartitions <= state.MaxPartitions, "NumPartitions %d is not within 1 to %d", c.NumPartitions, state.MaxPartitions)
	bad(c.OffsetsTopic.Partitions > 0 && c.OffsetsTopic.Replication > 0 && c.OffsetsTopic.SegmentBytes >= 14, "OffsetsTopic %+v is not possible", c.OffsetsTopic)
	bad(c.ReplicationFactor >= 0, "ReplicationFactor %d is negative", c.ReplicationFactor)
	bad(c.MinISR >= 0, "MinISR %d is negative", c.MinISR)
	bad(c.RequestMaxBytes >= smallFrame, "RequestMaxBytes %d is below %d", c.RequestMaxBytes, smallFrame)
	bad(c.QueuedMaxBytes >= int64(c.RequestMaxBytes), "QueuedMaxBytes %d is below RequestMaxBytes %d", c.QueuedMaxBytes, c.RequestMaxBytes)
	bad(c.FetchMaxBytes > 0, "FetchMaxBytes %d is not positive", c.FetchMaxBytes)
	bad(c.MaxInFlight > 0, "MaxInFlight %d is not positive", c.MaxInFlight)
	bad(c.IdleTimeout > 0 && c.FrameTimeout > 0, "a timeout is not positive")
	return errors.Join(errs...)
}

// Deps are the rooms that a Server asks. All but ProveLeading are required.
type Deps struct {
	Views      Views
	Proposer   Proposer
	Partitions Partitions
	Groups     Groups
	// ProveLeading returns nil when a quorum of voters has confirmed, in a round that began after the call, that this node is the
	// Raft leader. nil: answers that must be fresh are not proved (tests).
	ProveLeading func(ctx context.Context) error
}

func (d Deps) validate() error {
	if d.Views == nil || d.Proposer == nil || d.Partitions == nil || d.Groups == nil {
		return errors.New("broker: Views, Proposer, Partitions and Groups are all required")
	}
	return nil
}

// Views gives the newest state that this node has applied. Any goroutine may call it.
type Views interface{ View() *state.View }

// Proposer puts a command into the metadata log through this node's lane. It returns once the command has been applied here; a
// refusal is in the Result. An error means that the outcome is unknown. Any goroutine may call it.
type Proposer interface {
	Propose(ctx context.Context, cmd *statepb.Command) (*statepb.Result, error)
}

// Groups asks the coordinator of groups (groupcoord.Client), wherever it is: it waits out fail-overs for as long as ctx lives, and
// returns once this node's view shows what the answer says. A refusal is in the Result; an error means that the outcome is
// unknown. Any goroutine may call it.
type Groups interface {
	Do(ctx context.Context, cmd *statepb.Command) (*statepb.Result, error)
	// Commit has this node's own coordinator carry a commit out, once, within limit; groupcoord.ErrNotCoordinator: the client is to
	// look for it.
	Commit(ctx context.Context, limit time.Duration, c *statepb.CommitOffsets) (*statepb.Result, error)
	// Ask passes JoinGroup, SyncGroup, Heartbeat, LeaveGroup, ConsumerGroupHeartbeat, DescribeGroups, ConsumerGroupDescribe or ListGroups on, for a client with an id and a host.
	// The answer has the request's version. An error says that no coordinator was found.
	Ask(ctx context.Context, clientID, host string, req kmsg.Request) (kmsg.Response, error)
}

// Metrics observes a Server. Calls come from many goroutines and must not block.
type Metrics interface {
	// Request was answered: took is from its last byte read to its response encoded. client is the client id.
	Request(api string, version int16, client string, took time.Duration)
	// Connections changed by delta.
	Connections(delta int)
	// Refused says that a connection was closed for what it sent. why is one of few constants.
	Refused(why string)
}

type noMetrics struct{}

func (noMetrics) Request(string, int16, string, time.Duration) {}
func (noMetrics) Connections(int)                              {}
func (noMetrics) Refused(string)                               {}
