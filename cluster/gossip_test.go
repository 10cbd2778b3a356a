package cluster

import (
	"bytes"
	"fmt"
	"log/slog"
	"testing"
	"time"
)

func startGossip(t *testing.T, c *Cluster, seeds ...string) *Gossip {
	t.Helper()
	g, err := c.StartGossip(GossipConfig{Seeds: seeds, Gossip: 20 * time.Millisecond, Probe: 200 * time.Millisecond, PushPull: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// until waits for a state of the peers.
func until(t *testing.T, g *Gossip, what string, ok func([]Identity) bool) {
	t.Helper()
	deadline := time.After(patience)
	for {
		peers, changed := g.Peers()
		if ok(peers) {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("%s: peers are %v", what, peers)
		}
	}
}

func TestGossipFindsEverybodyFromOneSeed(t *testing.T) {
	var nodes []*Cluster
	var gs []*Gossip
	for i := range 4 {
		c := start(t, fmt.Sprint("n", i), func(c *Config) {
			if i == 3 {
				c.ClusterID = "" // about to join
			}
		})
		var seeds []string
		if i > 0 {
			seeds = []string{"127.0.0.1:1", nodes[0].Addr().String(), c.Addr().String()}
		}
		nodes, gs = append(nodes, c), append(gs, startGossip(t, c, seeds...))
	}
	for i, g := range gs {
		until(t, g, fmt.Sprint("node ", i), func(ps []Identity) bool { return len(ps) == 3 })
	}
	peers, _ := gs[1].Peers()
	if p := peers[0]; p.Directory != "n0" || p.Addr != nodes[0].Addr().String() || p.ClusterID != testCluster || p.Version != "test" {
		t.Fatalf("%+v", p)
	}
	nodes[0].SetRegistration(7, 70)
	until(t, gs[3], "news of n0", func(ps []Identity) bool { return ps[0].Broker == 7 && ps[0].Epoch == 70 })
	if err := gs[2].Stop(); err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{0, 1, 3} {
		until(t, gs[i], "n2 has left", func(ps []Identity) bool { return len(ps) == 2 })
	}
	for _, i := range []int{0, 1, 3} {
		if err := gs[i].Stop(); err != nil {
			t.Error(err)
		}
	}
}

func TestGossipKeepsOtherClustersOut(t *testing.T) {
	a, o := start(t, "a", nil), start(t, "o", func(c *Config) { c.ClusterID = "c2" })
	s := start(t, "s", func(c *Config) { c.ClusterID = "" }) // talks to both
	ga, gs := startGossip(t, a), startGossip(t, s)
	gOther := startGossip(t, o, s.Addr().String())
	until(t, gOther, "stranger", func(ps []Identity) bool { return len(ps) == 1 })
	b := start(t, "b", nil)
	gb := startGossip(t, b, s.Addr().String(), a.Addr().String())
	until(t, gb, "own cluster and stranger", func(ps []Identity) bool { return len(ps) == 2 })
	until(t, ga, "own cluster", func(ps []Identity) bool { return len(ps) >= 1 })
	for _, g := range []*Gossip{ga, gb} {
		if peers, _ := g.Peers(); len(peers) > 0 && peers[len(peers)-1].Directory == "o" {
			t.Errorf("a member of another cluster: %v", peers)
		}
	}
	for _, g := range []*Gossip{ga, gb, gs, gOther} {
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
	}
}

func TestGossipFindsARestartedNodeAtItsNewAddress(t *testing.T) {
	a, b := start(t, "a", nil), start(t, "b", nil)
	ga := startGossip(t, a)
	gb := startGossip(t, b, a.Addr().String())
	until(t, ga, "b", func(ps []Identity) bool { return len(ps) == 1 })
	if err := gb.Stop(); err != nil {
		t.Fatal(err)
	}
	b.Stop()
	b2 := start(t, "b", func(c *Config) { c.Incarnation = 2 })
	gb2 := startGossip(t, b2, a.Addr().String())
	until(t, ga, "b again", func(ps []Identity) bool {
		return len(ps) == 1 && ps[0].Incarnation == 2 && ps[0].Addr == b2.Addr().String()
	})
	for _, g := range []*Gossip{ga, gb2} {
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
	}
}

func TestGossipWriteToNeverBlocks(t *testing.T) {
	a := start(t, "a", nil)
	g := startGossip(t, a)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 10 * packetQueue {
			if _, err := g.t.WriteTo(make([]byte, 1000), "127.0.0.1:1"); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Error("blocked")
	}
	if _, err := g.t.WriteTo(make([]byte, maxPacket+1), "127.0.0.1:1"); err == nil {
		t.Error("a packet above the limit")
	}
	if err := g.Stop(); err != nil {
		t.Error(err)
	}
	if _, err := g.t.WriteTo(nil, "127.0.0.1:1"); err == nil {
		t.Error("written after the stop")
	}
}

func TestGossipLogSpeaksOfTroubleOnly(t *testing.T) {
	var out bytes.Buffer
	l := gossipLog{slog.New(slog.NewTextHandler(&out, nil))} // Info and above
	for line, shown := range map[string]bool{
		"[DEBUG] memberlist: Initiating push/pull sync with: b\n":                      false,
		"[WARN] memberlist: Refuting an alive message for 'a' meta:([1 2] VS [1 2])\n": false,
		"[WARN] memberlist: Refuting a dead message (from: b)\n":                       false,
		"[WARN] memberlist: Was able to connect to b over TCP but UDP probes failed\n": true,
		"[ERR] memberlist: Failed to send gossip to b: connection refused\n":           true,
	} {
		out.Reset()
		if n, err := l.Write([]byte(line)); n != len(line) || err != nil || out.Len() > 0 != shown {
			t.Errorf("%q: %d %v, logged %q", line, n, err, out.String())
		}
	}
}
