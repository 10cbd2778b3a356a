package partition

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/partition/record"
)

// BenchmarkAppend: acks=all on three replicas in one process and in memory, by concurrent producers of one batch of 10 x 100 bytes.
func BenchmarkAppend(b *testing.B) {
	for _, brokers := range []int{1, 3} {
		for _, producers := range []int{1, 32} {
			b.Run(fmt.Sprintf("brokers=%d/producers=%d", brokers, producers), func(b *testing.B) { benchAppend(b, brokers, producers) })
		}
	}
}

func benchAppend(b *testing.B, brokers, producers int) {
	c := newCluster(b, brokers, Config{SegmentBytes: 16 << 20})
	replicas := []int32{1, 2, 3}[:brokers]
	const partitions = 12
	var assignments [][]int32
	for range partitions {
		assignments = append(assignments, replicas)
	}
	c.createTopic("t", 1, assignments...)
	leader := c.leader("t", partitions-1)
	values := make([]string, 10)
	for i := range values {
		values[i] = string(make([]byte, 100))
	}
	payload := batchOf(b, values...)
	b.SetBytes(int64(len(payload)))
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for p := range producers {
		n := b.N / producers
		if p == 0 {
			n += b.N % producers
		}
		wg.Go(func() {
			for range n {
				mine := append([]byte(nil), payload...)
				res := leader.m.Append(context.Background(), []AppendItem{{Topic: "t", Partition: int32(p % partitions), Records: mine, Version: 9}}, -1, time.Minute)
				if res[0].Err != nil {
					b.Error(res[0].Err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// BenchmarkFetch: one consumer reads a partition from the start, 1 MiB at a time.
func BenchmarkFetch(b *testing.B) {
	c := newCluster(b, 1, Config{})
	c.createTopic("t", 1, []int32{1})
	leader := c.leader("t", 0)
	values := make([]string, 10)
	for i := range values {
		values[i] = string(make([]byte, 100))
	}
	payload := batchOf(b, values...)
	for range 2000 {
		if res := leader.produce("t", 0, 1, 0, append([]byte(nil), payload...)); res.Err != nil {
			b.Fatal(res.Err)
		}
	}
	eventually(b, "all to be shown", func() bool { return leader.fetch("t", 0, 0).HighWatermark == 20_000 })
	b.ReportAllocs()
	b.ResetTimer()
	from := id.Offset(0)
	for range b.N {
		res := leader.fetch("t", 0, from)
		if res.Err != nil {
			b.Fatal(res.Err)
		}
		b.SetBytes(int64(len(res.Records)))
		from = 0
		if len(res.Records) > 0 {
			first, _, _ := record.Next(res.Records)
			from = first.LastOffset() + 1
		}
	}
}
