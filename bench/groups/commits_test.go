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

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

// What the commits part does.
const (
	commitTopic  = "commits"
	commitLength = 10 * time.Second
)

// BenchmarkCommits has groups commit one partition's offset in each request, one after the other, as fast as they are answered: 64
// groups, then one alone.
func BenchmarkCommits(b *testing.B) {
	type result struct {
		rate     float64
		p50, p99 time.Duration
	}
	var names []string
	results := map[string]map[int]result{}
	for _, start := range []func(*testing.B) system{kafka44, barnabas} {
		b.Run("", func(b *testing.B) {
			s := start(b)
			s.topic(b, commitTopic, 1)
			names, results[s.name] = append(names, s.name), map[int]result{}
			s.commits(b, 64, commitLength/2) // the JVM gets warm
			for _, groups := range []int{64, 1} {
				took := s.commits(b, groups, commitLength)
				slices.Sort(took)
				results[s.name][groups] = result{float64(len(took)) / commitLength.Seconds(), took[len(took)/2], took[len(took)*99/100]}
			}
		})
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer out.Flush()
	fmt.Fprintf(out, "\none commit a request\tgroups\tcommits/s\tp50\tp99\t\n")
	for _, groups := range []int{64, 1} {
		for _, n := range names {
			r := results[n][groups]
			fmt.Fprintf(out, "%s\t%d\t%.0f\t%v\t%v\t\n", n, groups, r.rate, r.p50.Round(10*time.Microsecond), r.p99.Round(10*time.Microsecond))
		}
	}
}

// commits returns how long each commit took.
func (s system) commits(b *testing.B, groups int, length time.Duration) []time.Duration {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), length+startLimit)
	defer cancel()
	took := make([][]time.Duration, groups)
	errs := make([]error, groups)
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(int16(kmsg.OffsetCommit), 8) // later ones name topics by their ids
	begun := time.Now()
	var wg sync.WaitGroup
	for g := range groups {
		client := s.client(b, kgo.MaxVersions(versions))
		wg.Go(func() {
			defer client.Close()
			request := kmsg.NewPtrOffsetCommitRequest()
			request.Group = fmt.Sprint("committer-", g)
			topic, partition := kmsg.NewOffsetCommitRequestTopic(), kmsg.NewOffsetCommitRequestTopicPartition()
			topic.Topic = commitTopic
			topic.Partitions = append(topic.Partitions, partition)
			request.Topics = append(request.Topics, topic)
			for n := int64(0); time.Since(begun) < length; n++ {
				request.Topics[0].Partitions[0].Offset = n
				at := time.Now()
				response, err := request.RequestWith(ctx, client)
				if err == nil {
					err = kerr.ErrorForCode(response.Topics[0].Partitions[0].ErrorCode)
				}
				if err != nil {
					errs[g] = err
					return
				}
				took[g] = append(took[g], time.Since(at))
			}
		})
	}
	wg.Wait()
	for g, err := range errs {
		if err != nil {
			b.Fatalf("group %d: %v", g, err)
		}
	}
	return slices.Concat(took...)
}
