package raftmeta

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkPropose is creates per second and their latency, answered after local apply, with three nodes in this process
// on the real disk: go test -run - -bench Propose -benchtime 3s ./raftmeta
func BenchmarkPropose(b *testing.B) {
	for _, where := range []string{"leader", "follower"} {
		for _, proposers := range []int{1, 32, 256} {
			b.Run(fmt.Sprintf("%s/%d", where, proposers), func(b *testing.B) {
				c := newCluster(b, 3, func(k *Config) {
					k.TrackHash, k.HeartbeatTimeout, k.SegmentBytes = false, 0, 0
				})
				c.bootstrapState()
				n := c.leader()
				if where == "follower" {
					n = c.follower()
				}
				c.register(n)
				if _, err := n.Propose(c.ctx(), createZnode("/bench", false)); err != nil {
					b.Fatal(err)
				}
				run := func(total int) []time.Duration {
					var next atomic.Int64
					lat := make([][]time.Duration, proposers)
					var wg sync.WaitGroup
					for p := range proposers {
						wg.Go(func() {
							for next.Add(1) <= int64(total) {
								t := time.Now()
								if _, err := n.Propose(b.Context(), createZnode("/bench/n", true)); err != nil {
									b.Error(err)
									return
								}
								lat[p] = append(lat[p], time.Since(t))
							}
						})
					}
					wg.Wait()
					return slices.Concat(lat...)
				}
				run(200) // connections, pools
				before := n.fsm.entries.Load()
				cpu := cpuTime(b)
				b.ResetTimer()
				all := run(b.N)
				b.StopTimer()
				b.ReportMetric(float64((cpuTime(b)-cpu).Microseconds())/float64(len(all)), "cpu-us/cmd")
				slices.Sort(all)
				b.ReportMetric(float64(len(all))/float64(max(n.fsm.entries.Load()-before, 1)), "cmds/entry")
				b.ReportMetric(float64(len(all))/b.Elapsed().Seconds(), "cmds/s")
				b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-us")
				b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-us")
			})
		}
	}
}

// cpuTime is what this process has used; of all figures it suffers least from a busy machine.
func cpuTime(b *testing.B) time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
