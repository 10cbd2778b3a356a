package raftmeta

import (
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// byName is a stream layer and address provider whose addresses are ids, as the cluster port's are: not what it listens at.
type byName struct {
	raft.StreamLayer
	addrs map[raft.ServerAddress]raft.ServerAddress
}

func (b byName) Dial(a raft.ServerAddress, d time.Duration) (net.Conn, error) {
	return b.StreamLayer.Dial(b.addrs[a], d)
}

func (b byName) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	return raft.ServerAddress(id), nil
}

// TestOneLeader: pushes and entries sent ahead name the leader as raft does. When they did not, each was a change of leaders to a
// follower, whose lane then sent again all that it waited for.
func TestOneLeader(t *testing.T) {
	c := newCluster(t, 3, func(cfg *Config) {
		b := byName{cfg.Stream, map[raft.ServerAddress]raft.ServerAddress{}}
		for _, s := range cfg.Bootstrap {
			b.addrs[raft.ServerAddress(s.ID)] = raft.ServerAddress(s.Addr)
		}
		cfg.Stream, cfg.Addrs = b, b
	})
	c.bootstrapState()
	f := c.follower()
	c.register(f)
	var changes atomic.Int64 // of leaders, in raft's eyes
	f.inst.Load().r.RegisterObserver(raft.NewObserver(nil, false, func(o *raft.Observation) bool {
		if _, ok := o.Data.(raft.LeaderObservation); ok {
			changes.Add(1)
		}
		return false
	}))
	for try := 0; ; try++ {
		leader, before := f.Leader(), changes.Load()
		for i := range 20 {
			r, err := f.Propose(c.ctx(), createZnode(fmt.Sprintf("/of-%d-%d", try, i), false))
			must(t, err)
			if r.Code != statepb.Code_OK {
				t.Fatal(r)
			}
		}
		switch after := changes.Load(); {
		case leader.ID == "" || f.Leader() != leader: // a real change: once more
		case after != before:
			t.Fatalf("the leader %+v was taken for another %d times during 20 commands", leader, after-before)
		default:
			return
		}
	}
}
