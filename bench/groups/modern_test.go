package groups

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// What the modern part does.
const (
	modernTopic      = "many"
	modernPartitions = 60
	modernMembers    = 30
	modernRounds     = 3
)

// BenchmarkModern starts 30 members at once, three times by each protocol on each side.
func BenchmarkModern(b *testing.B) {
	took := map[string]map[string][]time.Duration{}
	var names []string
	for _, start := range []func(*testing.B) system{kafka44, barnabas} {
		b.Run("", func(b *testing.B) {
			s := start(b)
			names = append(names, s.name)
			took[s.name] = map[string][]time.Duration{}
			s.topic(b, modernTopic, modernPartitions)
			s.settle(b, "warm", false)
			for round := range modernRounds {
				took[s.name]["classic"] = append(took[s.name]["classic"], s.settle(b, fmt.Sprint("classic-", round), false))
				if s.serves848(b) {
					took[s.name]["KIP-848"] = append(took[s.name]["KIP-848"], s.settle(b, fmt.Sprint("consumer-", round), true))
				}
			}
		})
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer out.Flush()
	fmt.Fprintf(out, "\n%d members at once, %d partitions: time until settled\t", modernMembers, modernPartitions)
	for _, n := range names {
		fmt.Fprintf(out, "%s\t", n)
	}
	fmt.Fprintln(out)
	for _, protocol := range []string{"classic", "KIP-848"} {
		fmt.Fprintf(out, "%s\t", protocol)
		for _, n := range names {
			all := took[n][protocol]
			slices.Sort(all)
			text := "not served"
			if len(all) > 0 {
				text = fmt.Sprintf("%.1f s (%.1f to %.1f)", all[len(all)/2].Seconds(), all[0].Seconds(), all[len(all)-1].Seconds())
			}
			fmt.Fprintf(out, "%s\t", text)
		}
		fmt.Fprintln(out)
	}
}

// serves848 tells whether the brokers know ConsumerGroupHeartbeat in the version that the client wants; without it the client
// would fall back to the classic protocol and say nothing.
func (s system) serves848(b *testing.B) bool {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	versions, err := kadm.NewClient(s.client(b)).ApiVersions(ctx)
	if err != nil {
		b.Fatal(err)
	}
	for _, v := range versions {
		if most, ok := v.KeyMaxVersion(68); !ok || most < 1 {
			return false
		}
	}
	return true
}

// settle starts the members of a new group together and returns after how long the last change was made to what they hold.
func (s system) settle(b *testing.B, group string, consumer bool) time.Duration {
	b.Helper()
	var mu sync.Mutex
	owner := map[int32]map[int]bool{}
	var changed time.Time
	note := func(member int, has bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, ps map[string][]int32) {
			mu.Lock()
			defer mu.Unlock()
			for _, p := range ps[modernTopic] {
				if owner[p] == nil {
					owner[p] = map[int]bool{}
				}
				if has {
					owner[p][member] = true
				} else {
					delete(owner[p], member)
				}
				changed = time.Now()
			}
		}
	}
	whole := func() (bool, time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		holders := map[int]bool{}
		for _, o := range owner {
			if len(o) != 1 {
				return false, time.Since(changed)
			}
			for m := range o {
				holders[m] = true
			}
		}
		return len(owner) == modernPartitions && len(holders) == modernMembers, time.Since(changed)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var polls sync.WaitGroup
	begun := time.Now()
	for m := range modernMembers {
		opts := []kgo.Opt{kgo.SeedBrokers(s.brokers...), kgo.ConsumerGroup(group), kgo.ConsumeTopics(modernTopic),
			kgo.OnPartitionsAssigned(note(m, true)), kgo.OnPartitionsRevoked(note(m, false)), kgo.OnPartitionsLost(note(m, false))}
		if consumer {
			opts = append(opts, kgo.ServerSideBalancer(), kgo.Balancers(kgo.RangeBalancer()))
		}
		c, err := kgo.NewClient(opts...)
		if err != nil {
			b.Fatal(err)
		}
		polls.Go(func() {
			defer c.Close()
			for ctx.Err() == nil {
				c.PollFetches(ctx)
			}
		})
	}
	for {
		ok, calmFor := whole()
		if ok && calmFor > calm {
			break
		}
		if time.Since(begun) > phaseLimit {
			b.Errorf("%s: not settled after %v", group, phaseLimit)
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	mu.Lock()
	took := changed.Sub(begun)
	mu.Unlock()
	cancel()
	polls.Wait()
	return took
}
