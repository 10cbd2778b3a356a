package zkcompat_test

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/internal/clock"
	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/testtool"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
	"github.com/barnabas-mq/barnabas/zkcompat"
)

// lead does what the Raft leader does for sessions: takes every node's touch reports, and ends a session that no node
// has heard from for its timeout.
func (f *fold) lead(t testing.TB, servers ...*zkcompat.Server) {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		type heard struct {
			epoch uint64
			at    time.Duration
		}
		last := map[id.SessionID]heard{}
		clk := clock.System{}
		for {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
			f.mu.Lock()
			v := f.s.View()
			f.mu.Unlock()
			for _, s := range servers {
				r := s.Touches()
				for _, sid := range r.Sessions {
					if h, ok := last[sid]; ok {
						last[sid] = heard{h.epoch, clk.Boot()}
					}
				}
				s.AckTouches(r)
			}
			var over []*statepb.CloseSession
			v.Sessions(func(s *state.Session) bool {
				h, ok := last[s.ID]
				if !ok || h.epoch != s.AttachEpoch {
					last[s.ID] = heard{s.AttachEpoch, clk.Boot()}
				} else if clk.Boot()-h.at > time.Duration(s.TimeoutMs)*time.Millisecond {
					over = append(over, &statepb.CloseSession{Session: int64(s.ID), AttachEpoch: s.AttachEpoch})
				}
				return true
			})
			if len(over) > 0 {
				f.apply(&statepb.Command{Body: &statepb.Command_ExpireSessions{ExpireSessions: &statepb.ExpireSessions{Sessions: over}}})
			}
		}
	})
	t.Cleanup(func() { close(stop); wg.Wait() })
}

// Two members of Kafka 0.8.2.2's high-level consumer on two nodes share a topic by the znodes alone (no broker answers
// them); one is killed, its session expires, and the other takes over; a clean end frees everything at once.
func TestHighLevelConsumer(t *testing.T) {
	testtool.Need(t, testtool.Programs)
	f := newFold(t, 2)
	c := f.coordinate(t)
	nodes := []*foldNode{f.coordinated(t, c, time.Millisecond), f.coordinated(t, c, time.Millisecond)}
	var servers []*zkcompat.Server
	var addrs []string
	for _, n := range nodes {
		s, addr := serve(t, n.b, func(c *zkcompat.Config) { c.UngatedPings = false })
		servers, addrs = append(servers, s), append(addrs, addr)
	}
	f.lead(t, servers...)
	session(t, addrs[0]).create("/brokers/topics/t", `{"version":1,"partitions":{"0":[1,2],"1":[2,1],"2":[1,2],"3":[2,1]}}`, 0)
	member := func(name, addr string) *testtool.Process {
		return testtool.Start(t, name, testtool.JavaCommand(t.Context(), t, testtool.Programs, "HighLevelConsumer082",
			"--zookeeper", addr, "--group", "g", "--topic", "t", "--id", name, "--property", "zookeeper.sync.time.ms=200",
			"--property", "auto.commit.enable=false"))
	}
	owners := func() map[string]int {
		got := map[string]int{}
		nodes[0].View().Owners("g", "t", func(_ string, z *state.Znode) bool {
			got[string(z.Data)]++
			return true
		})
		return got
	}
	until := func(what string, ok func(map[string]int) bool) {
		t.Helper()
		for end := time.Now().Add(3 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
			if ok(owners()) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: owners %v", what, owners())
			}
		}
	}
	a := member("a", addrs[0])
	until("the first member owns all", func(o map[string]int) bool { return o["g_a-0"] == 4 })
	b := member("b", addrs[1])
	until("two members share", func(o map[string]int) bool { return o["g_a-0"] == 2 && o["g_b-0"] == 2 })
	start := time.Now()
	a.Kill()
	until("the other takes over", func(o map[string]int) bool { return o["g_b-0"] == 4 && len(o) == 1 })
	if took := time.Since(start); took < 5*time.Second {
		t.Errorf("a killed member's session of 6 s ended after %v", took)
	}
	a = member("a", addrs[1])
	until("a new member joins", func(o map[string]int) bool { return o["g_a-0"] == 2 && o["g_b-0"] == 2 })
	_ = a.Signal(syscall.SIGTERM)
	start = time.Now()
	until("a clean end", func(o map[string]int) bool { return o["g_b-0"] == 4 })
	t.Logf("after a clean end the rest took over in %v", time.Since(start))
	_ = b.Signal(syscall.SIGTERM)
	until("nobody is left", func(o map[string]int) bool { return len(o) == 0 })
	for _, p := range []*testtool.Process{a, b} {
		if err := p.WaitFor(30 * time.Second); err != nil {
			t.Log(fmt.Errorf("a member ended with: %w", err))
		}
	}
	row, _ := nodes[0].View().Group("g")
	for _, r := range row.Rebalances {
		t.Logf("generation %d: %s: %s, %d -> %d, waited %d ms for %s, holds %v", r.Generation, r.Cause, r.Text, r.Before, r.After, r.WaitedMs, r.WaitedFor, r.Holds)
	}
	n := 0
	nodes[0].View().Members("g", func(string, *state.Znode) bool { n++; return true })
	if n != 0 {
		t.Errorf("%d members are left", n)
	}
}
