package zkconsumer

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// refreshLeader is how soon the reader looks for a moved leader (refresh.leader.backoff.ms).
const refreshLeader = 200 * time.Millisecond

// position is the offset to read next; -1 while nothing was read and none was committed. Written by the reader.
type position struct{ consumed atomic.Int64 }

// reader reads the claimed partitions between two rebalances, over connections of its own, as the Java fetchers do: when it
// has stopped, nothing of this member fetches any more.
type reader struct {
	client *kgo.Client
	cancel context.CancelFunc
	done   chan struct{}
}

// startReading begins at the committed offsets. It refuses when the session has ended meanwhile.
func (c *Consumer) startReading(ctx context.Context, gen int, brokers []string, claims []Claim) error {
	if len(claims) == 0 {
		return nil
	}
	reset := kgo.NewOffset().AtEnd()
	if c.cfg.FromStart {
		reset = kgo.NewOffset().AtStart()
	}
	base := []kgo.Opt{kgo.SeedBrokers(brokers...), kgo.ClientID(c.cfg.Group), kgo.MetadataMinAge(refreshLeader)}
	starts, err := c.missingOffsets(ctx, base, claims)
	if err != nil {
		return err
	}
	from := map[string]map[int32]kgo.Offset{}
	positions := map[Claim]*position{}
	streams := map[string]map[int32]int{}
	for _, cl := range claims {
		h := c.claims[cl]
		at := h.position.consumed.Load()
		if start, ok := starts[cl]; ok && at < 0 {
			at = start
			h.position.consumed.Store(at)
		}
		if from[cl.Topic] == nil {
			from[cl.Topic], streams[cl.Topic] = map[int32]kgo.Offset{}, map[int32]int{}
		}
		from[cl.Topic][cl.Partition] = reset
		if at >= 0 {
			from[cl.Topic][cl.Partition] = kgo.NewOffset().At(at)
		}
		streams[cl.Topic][cl.Partition] = cl.Stream
		positions[cl] = &h.position
	}
	client, err := kgo.NewClient(append(base, kgo.ConsumePartitions(from), kgo.ConsumeResetOffset(reset),
		kgo.FetchMaxPartitionBytes(c.cfg.FetchMaxBytes), kgo.FetchMaxBytes(max(c.cfg.FetchMaxBytes, 50<<20)),
		kgo.FetchMaxWait(c.cfg.FetchWait), kgo.DisableFetchSessions())...)
	if err != nil {
		return fmt.Errorf("read from the brokers: %w", err)
	}
	rctx, cancel := context.WithCancel(ctx)
	if !c.state.reading(gen, cancel) {
		cancel()
		client.Close()
		return errSessionLost
	}
	r := &reader{client: client, cancel: cancel, done: make(chan struct{})}
	c.reader = r
	c.wg.Go(func() {
		defer close(r.done)
		c.read(rctx, r, streams, positions)
	})
	return nil
}

// stopReading returns when no record is being handled and no fetch is under way.
func (c *Consumer) stopReading() {
	if c.reader == nil {
		return
	}
	c.reader.cancel()
	<-c.reader.done
	c.reader.client.Close()
	c.reader = nil
}

// missingOffsets asks where partitions without a committed offset begin, so that the place is committed even when nothing is
// read there before the next rebalance. Partitions without a leader are left to the reader.
func (c *Consumer) missingOffsets(ctx context.Context, base []kgo.Opt, claims []Claim) (map[Claim]int64, error) {
	topics := map[string]bool{}
	for _, cl := range claims {
		if c.claims[cl].position.consumed.Load() < 0 {
			topics[cl.Topic] = true
		}
	}
	if len(topics) == 0 {
		return nil, nil
	}
	client, err := kgo.NewClient(base...)
	if err != nil {
		return nil, fmt.Errorf("ask the brokers for offsets: %w", err)
	}
	adm := kadm.NewClient(client)
	defer adm.Close()
	ctx, cancel := context.WithTimeout(ctx, c.cfg.RebalanceBackoff)
	defer cancel()
	var names []string
	for t := range topics {
		names = append(names, t)
	}
	list := adm.ListEndOffsets
	if c.cfg.FromStart {
		list = adm.ListStartOffsets
	}
	listed, err := list(ctx, names...)
	if err != nil {
		c.cfg.Log.Info("offsets to begin at are not known yet", "error", err)
	}
	out := map[Claim]int64{}
	for _, cl := range claims {
		if o, ok := listed.Lookup(cl.Topic, cl.Partition); ok && o.Err == nil && o.Offset >= 0 {
			out[cl] = o.Offset
		}
	}
	return out, nil
}

// read hands records to Handle until ctx ends or Handle fails.
func (c *Consumer) read(ctx context.Context, r *reader, streams map[string]map[int32]int, positions map[Claim]*position) {
	for {
		fetches := r.client.PollFetches(ctx)
		if ctx.Err() != nil || fetches.IsClientClosed() {
			return
		}
		fetches.EachError(func(topic string, p int32, err error) {
			c.cfg.Log.Warn("fetch failed; it is tried again", "topic", topic, "partition", p, "error", err)
		})
		byStream := map[int][]kgo.FetchTopicPartition{}
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			if len(p.Records) > 0 {
				n := streams[p.Topic][p.Partition]
				byStream[n] = append(byStream[n], p)
			}
		})
		var wg sync.WaitGroup
		for n, parts := range byStream {
			wg.Go(func() {
				if err := c.handle(ctx, n, parts, positions); err != nil {
					select {
					case c.failed <- err:
					default: // another stream failed first
					}
					r.cancel()
				}
			})
		}
		wg.Wait()
	}
}

// handle passes one stream's records on, in order, and moves the positions behind them.
func (c *Consumer) handle(ctx context.Context, stream int, parts []kgo.FetchTopicPartition, positions map[Claim]*position) error {
	for _, p := range parts {
		pos := positions[Claim{Topic: p.Topic, Partition: p.Partition, Stream: stream}]
		for _, r := range p.Records {
			if ctx.Err() != nil {
				return nil
			}
			if err := c.cfg.Handle(ctx, stream, r); err != nil {
				if ctx.Err() != nil {
					return nil // it was interrupted; the record will be read again
				}
				return err
			}
			pos.consumed.Store(r.Offset + 1)
		}
	}
	return nil
}
