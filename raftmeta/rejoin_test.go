package raftmeta

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// deafLayer refuses every dial and counts them.
type deafLayer struct {
	net.Listener
	dials atomic.Int64
}

func (l *deafLayer) Dial(raft.ServerAddress, time.Duration) (net.Conn, error) {
	l.dials.Add(1)
	return nil, errors.New("refused")
}

// What carries the log is repeated while a peer is away: raft itself would back off, up to 10 s, and wake for nobody. A
// heartbeat fails at once; the rest ends with the term, and with the node.
func TestAppendWaitsForItsPeer(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*transport, *port, *atomic.Uint64){
		"the term ends":        func(_ *transport, _ *port, term *atomic.Uint64) { term.Store(4) },
		"the node ends":        func(tr *transport, _ *port, _ *atomic.Uint64) { _ = tr.layer.Close() },
		"raft is opened again": func(_ *transport, p *port, _ *atomic.Uint64) { p.leave() },
	} {
		t.Run(name, func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			must(t, err)
			l := &deafLayer{Listener: ln}
			tr := newTransport("A", l, nil, quiet())
			p := tr.open()
			var term atomic.Uint64
			term.Store(3)
			p.run(raftFacts{term: term.Load, feeds: func(_ raft.ServerID, of uint64) bool { return term.Load() == of }})
			defer func() { must(t, errors.Join(p.Close(), tr.close())) }()
			if err := p.AppendEntries("B", "b", &raft.AppendEntriesRequest{Term: 3}, &raft.AppendEntriesResponse{}); err == nil || l.dials.Load() != 1 {
				t.Fatalf("a heartbeat: %v after %d dials", err, l.dials.Load())
			}
			done := make(chan error, 1)
			go func() {
				done <- p.AppendEntries("B", "b", &raft.AppendEntriesRequest{Term: 3, PrevLogEntry: 7}, &raft.AppendEntriesResponse{})
			}()
			eventually(t, "repeated dials", func() bool { return l.dials.Load() >= 4 })
			select {
			case err := <-done:
				t.Fatalf("gave up: %v", err)
			default:
			}
			end(tr, p, &term)
			if err := <-done; err == nil {
				t.Fatal("an append to nobody succeeded")
			}
		})
	}
}

// A follower that was away while much was written has all of it soon after it is back, though nothing is written any more: raft's
// pipeline would bring it a message each second or two.
func TestReturnedFollowerCatchesUp(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	c.bootstrapState()
	l, away := c.leader(), c.follower()
	c.register(l)
	c.stop(away.id)
	const entries = 30 * maxAppendEntries
	for i := range entries {
		r, err := l.Propose(c.ctx(), createZnode(fmt.Sprintf("/n%d", i), false))
		must(t, err)
		if r.Code != statepb.Code_OK {
			t.Fatal(r)
		}
	}
	last := l.View().Index()
	begun := time.Now()
	back := c.start(away.id, nil)
	must(t, back.WaitIndex(c.ctx(), last))
	// The pipeline alone would need at least a commitTimeout for each of the 30 messages; as it is, all is there within two.
	if took := time.Since(begun); took > 25*commitTimeout {
		t.Errorf("%d entries took a follower %v", entries, took)
	}
}
