package member

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// franz is a member by franz-go. It commits what it has read every 100 ms.
func franz(ctx context.Context, o Options, out *lines) error {
	opts := []kgo.Opt{kgo.SeedBrokers(o.Brokers...), kgo.ClientID(o.Name), kgo.ConsumerGroup(o.Group), kgo.ConsumeTopics(o.Topic), kgo.DisableAutoCommit(),
		kgo.MetadataMinAge(50 * time.Millisecond), kgo.SessionTimeout(o.Session), kgo.HeartbeatInterval(300 * time.Millisecond),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())}
	switch o.Balancer {
	case "consumer":
		opts = append(opts, kgo.ServerSideBalancer(), kgo.Balancers(kgo.RangeBalancer()))
	case "sticky":
		opts = append(opts, kgo.Balancers(kgo.StickyBalancer()))
	case "cooperative":
		opts = append(opts, kgo.Balancers(kgo.CooperativeStickyBalancer()))
	default:
		opts = append(opts, kgo.Balancers(kgo.RangeBalancer()))
	}
	if o.Careful {
		opts = append(opts, kgo.BlockRebalanceOnPoll())
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return err
	}
	defer client.CloseAllowingRebalance()
	z := zombie{client: client, o: o, out: out, thawed: make(chan os.Signal, 1)}
	signal.Notify(z.thawed, syscall.SIGCONT)
	defer signal.Stop(z.thawed)
	for ctx.Err() == nil {
		z.look(ctx)
		polled, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		fetches := client.PollFetches(polled)
		cancel()
		fetches.EachRecord(func(r *kgo.Record) { out.record(r.Partition, r.Offset) })
		z.look(ctx)
		whole := ctx
		if o.Careful {
			whole = context.WithoutCancel(ctx)
		}
		commit, cancel := context.WithTimeout(whole, 5*time.Second)
		err := client.CommitUncommittedOffsets(commit)
		cancel()
		if err != nil && ctx.Err() == nil {
			out.event("commit", err)
		}
		client.AllowRebalance()
	}
	return nil
}

// zombie notices that the process stood still, and then has it do what a worker does that knows nothing of it: commit by
// the member and generation from before. It commits offset 0, which a broker that took it would show.
type zombie struct {
	client     *kgo.Client
	o          Options
	out        *lines
	thawed     chan os.Signal
	looked     time.Time
	member     string
	generation int32
	owned      []int32
}

func (z *zombie) look(ctx context.Context) {
	if !z.o.Zombie {
		return
	}
	stood := time.Since(z.looked) > 2*time.Second // then the signal is on its way, and what is known by now may be new
	z.looked = time.Now()
	select {
	case <-z.thawed:
		z.commit(ctx)
	default:
		if committed := z.client.CommittedOffsets()[z.o.Topic]; len(committed) > 0 && !stood {
			z.member, z.generation = z.client.GroupMetadata()
			z.owned = slices.Collect(maps.Keys(committed))
		}
	}
}

func (z *zombie) commit(ctx context.Context) {
	if len(z.owned) == 0 {
		z.out.event("zombie", "owned nothing")
		return
	}
	request := kmsg.NewPtrOffsetCommitRequest()
	request.Group, request.MemberID, request.Generation = z.o.Group, z.member, z.generation
	topic := kmsg.NewOffsetCommitRequestTopic()
	topic.Topic = z.o.Topic
	for _, p := range z.owned {
		partition := kmsg.NewOffsetCommitRequestTopicPartition()
		partition.Partition, partition.Offset = p, 0
		topic.Partitions = append(topic.Partitions, partition)
	}
	request.Topics = append(request.Topics, topic)
	response, err := request.RequestWith(ctx, z.client)
	if err != nil {
		z.out.event("zombie", err)
		return
	}
	for _, t := range response.Topics {
		for _, p := range t.Partitions {
			z.out.event("zombie", fmt.Sprintf("%d %v", p.ErrorCode, kerr.TypedErrorForCode(p.ErrorCode)))
		}
	}
}
