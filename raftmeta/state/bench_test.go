package state

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/barnabas-mq/barnabas/internal/id"
	pb "github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// One op is one command; batch is how many share an entry, as proposers that wait together do.
func BenchmarkApplyCreate(b *testing.B) {
	for _, batch := range []int{1, 32, 256} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			f := newFold(b)
			f.s = roundTrip(b, f.s)
			s, err := Restore(snapshotBytes(b, f.s), false)
			if err != nil {
				b.Fatal(err)
			}
			s.Apply(2, 1, encode(b, create("/bench", ""), register(1, "d", "n")))
			seq, index := uint64(0), f.index+2
			data := make([]byte, 100)
			b.ReportAllocs()
			b.ResetTimer()
			for n := 0; n < b.N; n += batch {
				var cmds []*pb.Command
				for range batch {
					seq++
					cmds = append(cmds, &pb.Command{Version: CommandVersion, Lane: 2, Seq: seq, Seen: max(seq, 512) - 512,
						Body: &pb.Command_CreateZnode{CreateZnode: &pb.CreateZnode{Path: fmt.Sprintf("/bench/c%d", seq), Data: data}}})
				}
				e, err := proto.Marshal(&pb.Entry{Commands: cmds})
				if err != nil {
					b.Fatal(err)
				}
				index++
				if r := s.Apply(index, 1, e).Settled[0].Result; r.Code != pb.Code_OK {
					b.Fatal(r)
				}
			}
		})
	}
}

// BenchmarkCommits applies entries of 64 commits, one of each of 64 groups that have committed before.
func BenchmarkCommits(b *testing.B) {
	s := New()
	index := uint64(0)
	apply := func(cmds ...*pb.Command) {
		index++
		data, err := proto.Marshal(&pb.Entry{Commands: cmds})
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		s.Apply(id.Index(index), 1, data)
		b.StopTimer()
	}
	b.StopTimer()
	apply(&pb.Command{Version: 1, Body: &pb.Command_Bootstrap{Bootstrap: &pb.Bootstrap{ClusterId: "c", Level: 1}}})
	b.ReportAllocs()
	b.ResetTimer()
	for n := range b.N {
		cmds := make([]*pb.Command, 64)
		for g := range cmds {
			cmds[g] = &pb.Command{Version: 1, Term: 1, Body: &pb.Command_CommitOffsets{CommitOffsets: &pb.CommitOffsets{Group: fmt.Sprint("group-", g), Generation: -1,
				By: "client@127.0.0.1", From: pb.OffsetOrigin_ORIGIN_KAFKA, Items: []*pb.OffsetItem{{Topic: "orders", Offset: int64(n), LeaderEpoch: -1, RetentionMs: -1}}}}}
		}
		apply(cmds...)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/commit")
}
