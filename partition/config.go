package partition

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/barnabas-mq/barnabas/internal/clock"
	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/lease"
	"github.com/barnabas-mq/barnabas/internal/vfs"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// Config holds the broker's defaults; a topic's own configuration goes before those with a topic's name in brackets. The zero
// value of each field means its default.
type Config struct {
	// Dir holds one directory per replica, <topic>-<partition>. Required; made if missing.
	Dir string
	// UnsyncedAcks counts bytes in the page cache as written, as Apache Kafka does (flush.on.ack=false).
	UnsyncedAcks bool
	// MaxMessageBytes is message.max.bytes [max.message.bytes], the largest stored batch. Default 1048588.
	MaxMessageBytes int
	// MinISR is min.insync.replicas [same]; 0: (replicas+1)/2. A value above the replica count counts as that.
	MinISR int
	// SegmentBytes, SegmentMs and IndexIntervalBytes are log.segment.bytes [segment.bytes], log.roll.ms [segment.ms] and
	// log.index.interval.bytes [index.interval.bytes]; 0: partition/log's defaults.
	SegmentBytes, SegmentMs, IndexIntervalBytes int64
	// ReplicaLagMax is replica.lag.time.max.ms: a follower that was not caught up for longer leaves the ISR. Default 10 s. Time in
	// which the leader itself did not run, or parked the follower's fetch, does not count.
	ReplicaLagMax time.Duration
	// ReplicaFetchBytes is replica.fetch.max.bytes, per partition and reply. Default 1 MiB. The first batch always comes.
	ReplicaFetchBytes int
	// ReplicaReplyBytes bounds a reply to a replica over all partitions. Default 10 MiB.
	ReplicaReplyBytes int
	// ReplicaFetchWait is how long a follower asks its leader to park a fetch for which there is nothing. Default 1 s, and at most
	// that: two thirds of lease.Duration, since fetches keep the leader's right to serve.
	ReplicaFetchWait time.Duration
	// FetchBytes bounds a reply to a consumer over all partitions, whatever it asks. Default 55 MiB, as Apache Kafka.
	FetchBytes int
	// ProducerExpiry is producer.id.expiration.ms, in cluster time: the state of a producer that wrote nothing for longer is
	// forgotten. Default 24 h.
	ProducerExpiry time.Duration
	// RetryFailed is the pause before a replica whose disk failed is opened again. Default 10 s.
	RetryFailed time.Duration
	// Workers bounds the disk operations that run at once: opens, role changes, syncs. Default 16.
	Workers int
}

func (c Config) withDefaults() Config {
	def := func(p *int, d int) {
		if *p == 0 {
			*p = d
		}
	}
	dur := func(p *time.Duration, d time.Duration) {
		if *p == 0 {
			*p = d
		}
	}
	def(&c.MaxMessageBytes, 1048588)
	def(&c.ReplicaFetchBytes, 1<<20)
	def(&c.ReplicaReplyBytes, 10<<20)
	def(&c.FetchBytes, 55<<20)
	def(&c.Workers, 16)
	dur(&c.ReplicaLagMax, 10*time.Second)
	dur(&c.ReplicaFetchWait, maxReplicaWait)
	dur(&c.RetryFailed, 10*time.Second)
	dur(&c.ProducerExpiry, 24*time.Hour)
	return c
}

func (c Config) validate() error {
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("the data directory is not named"))
	}
	for name, v := range map[string]int{
		"MaxMessageBytes": c.MaxMessageBytes, "ReplicaFetchBytes": c.ReplicaFetchBytes, "ReplicaReplyBytes": c.ReplicaReplyBytes,
		"FetchBytes": c.FetchBytes, "Workers": c.Workers,
	} {
		if v < 1 {
			errs = append(errs, fmt.Errorf("%s is %d, allowed is 1 and more", name, v))
		}
	}
	if c.MinISR < 0 {
		errs = append(errs, fmt.Errorf("MinISR is %d, allowed is 0 and more", c.MinISR))
	}
	if c.ReplicaLagMax < 0 || c.RetryFailed < 0 || c.ProducerExpiry < 0 {
		errs = append(errs, fmt.Errorf("ReplicaLagMax %v, RetryFailed %v and ProducerExpiry %v must be positive", c.ReplicaLagMax, c.RetryFailed, c.ProducerExpiry))
	}
	if c.ReplicaFetchWait < 0 || c.ReplicaFetchWait > maxReplicaWait {
		errs = append(errs, fmt.Errorf("ReplicaFetchWait is %v, allowed is up to %v", c.ReplicaFetchWait, maxReplicaWait))
	}
	return errors.Join(errs...)
}

// checkEvery is how often ISRs and failed replicas are looked at.
func (c Config) checkEvery() time.Duration {
	return min(max(c.ReplicaLagMax/4, 20*time.Millisecond), time.Second, max(c.RetryFailed/2, 20*time.Millisecond))
}

// Views gives the newest applied metadata.
type Views interface {
	View() *state.View
}

// Proposer commits AlterPartition. It returns after the result is applied here; an error means unknown.
type Proposer interface {
	Propose(ctx context.Context, c *statepb.Command) (*statepb.Result, error)
}

// Peers carries replica fetches to another broker's HandleReplicaFetch over the cluster port. A call may be parked there.
type Peers interface {
	Call(ctx context.Context, to id.BrokerID, method string, payload []byte) ([]byte, error)
}

// MethodFetch is the name of the replica fetch on the cluster port.
const MethodFetch = "replica.fetch"

// Deps is what a Manager needs from the node. All are required but Logger, Clock, FS and Synced.
type Deps struct {
	FS       vfs.FS       // default: the machine's
	Clock    clock.Clock  // default: the machine's
	Logger   *slog.Logger // default: none
	Views    Views
	Proposer Proposer
	Peers    Peers
	// Lease returns the broker's lease as it is now.
	Lease func() lease.Lease
	// Synced, unless nil, is told how long each sync of a log took (barnabas_log_flush_seconds). Called from many goroutines.
	Synced func(time.Duration)
	// Self returns this broker and its incarnation; epoch 0 before it has registered. SelfChanged tells of a change.
	Self func() (id.BrokerID, id.BrokerEpoch)
}

func (d Deps) withDefaults() Deps {
	if d.FS == nil {
		d.FS = vfs.OS()
	}
	if d.Clock == nil {
		d.Clock = clock.System{}
	}
	if d.Synced == nil {
		d.Synced = func(time.Duration) {}
	}
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	return d
}

func (d Deps) validate() error {
	if d.Views == nil || d.Proposer == nil || d.Peers == nil || d.Lease == nil || d.Self == nil {
		return errors.New("partition: Views, Proposer, Peers, Lease and Self are required")
	}
	return nil
}
