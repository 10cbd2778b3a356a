package cluster

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"github.com/barnabas-mq/barnabas/internal/clock"
	"github.com/barnabas-mq/barnabas/internal/id"
)

// Ledger is the mind of one term that reports are for. Its methods may be called from any goroutine.
type Ledger interface {
	// Heard takes a report in; false when it is not from the current incarnation of a live broker.
	Heard(r *Report) bool
	// MayGrant says whether the answer to the report may carry a lease; asked after leadership was proved.
	MayGrant(r *Report) bool
	// Goodbye takes a broker out of service and returns when that is committed.
	Goodbye(ctx context.Context, b id.BrokerID, epoch id.BrokerEpoch) error
}

// CollectorConfig is what a Collector needs.
type CollectorConfig struct {
	Clock clock.Clock
	// Prove returns the term that a quorum of voters confirmed after the report was made, which carried voter's vote for voted
	// (0: none).
	Prove func(ctx context.Context, voter id.DirectoryID, voted id.Term) (id.Term, error)
	// ClockMs is the cluster clock.
	ClockMs func() int64
}

// Collector answers reports while this node leads. HandleReport and HandleGoodbye are registered at the port for
// MethodReport and MethodGoodbye.
type Collector struct {
	cfg CollectorConfig

	mu       sync.Mutex
	term     id.Term
	ledger   Ledger // nil: this node does not lead
	registry map[id.BrokerID]*brokerFetches
}

type brokerFetches struct {
	epoch id.BrokerEpoch
	seq   uint64
	lines map[id.TopicPartition]map[uint64]Fetching // by connection
}

// Fetching is a line of the leader's registry of who fetches what.
type Fetching struct {
	Broker id.BrokerID
	Epoch  id.BrokerEpoch
	Fetch
	Last time.Duration // this node's Boot time of the last known fetch; Age is not kept
}

// NewCollector makes a Collector that refuses every report until Begin.
func NewCollector(cfg CollectorConfig) *Collector { return &Collector{cfg: cfg} }

// Begin has reports go to the mind of a term; End stops that.
func (c *Collector) Begin(term id.Term, l Ledger) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.term, c.ledger, c.registry = term, l, map[id.BrokerID]*brokerFetches{}
}

// End has reports refused again, unless a later term has begun.
func (c *Collector) End(term id.Term) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.term == term {
		c.ledger, c.registry = nil, nil
	}
}

func (c *Collector) current() (id.Term, Ledger, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ledger == nil {
		return 0, nil, &Error{Code: CodeNotLeader, Message: "this node does not lead the metadata log"}
	}
	return c.term, c.ledger, nil
}

// HandleReport is a HandlerFunc.
func (c *Collector) HandleReport(ctx context.Context, peer Peer, payload []byte) ([]byte, error) {
	r, err := decodeReport(payload)
	if err != nil {
		return nil, err
	}
	term, ledger, err := c.current()
	if err != nil {
		return nil, err
	}
	if !ledger.Heard(r) {
		return nil, &Error{Code: CodeRefusedReport, Message: fmt.Sprintf("broker %d is not live at epoch %d: register again", r.Broker, r.Epoch)}
	}
	proven, err := c.cfg.Prove(ctx, peer.Directory, r.Voted)
	if err != nil || proven != term {
		return nil, &Error{Code: CodeNotLeader, Message: fmt.Sprintf("no proof of leadership in term %d: %v", term, err)}
	}
	reply := ReportReply{Term: term, ClockMs: c.cfg.ClockMs(), Granted: ledger.MayGrant(r), RegistrySeq: c.register(term, r)}
	return reply.encode(), nil
}

// CodeRefusedReport: the report came from an incarnation that is fenced.
const CodeRefusedReport Code = 7

// HandleGoodbye is a HandlerFunc.
func (c *Collector) HandleGoodbye(ctx context.Context, _ Peer, payload []byte) ([]byte, error) {
	if len(payload) != 12 {
		return nil, fmt.Errorf("goodbye of %d bytes", len(payload))
	}
	_, ledger, err := c.current()
	if err != nil {
		return nil, err
	}
	b := id.BrokerID(int32(binary.BigEndian.Uint32(payload)))
	return nil, ledger.Goodbye(ctx, b, id.BrokerEpoch(binary.BigEndian.Uint64(payload[4:])))
}

// register takes a change of a broker's registry and returns the last one that the leader has.
func (c *Collector) register(term id.Term, r *Report) uint64 {
	now := c.cfg.Clock.Boot()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.term != term || c.registry == nil {
		return 0
	}
	b := c.registry[r.Broker]
	if b == nil || b.epoch != r.Epoch || r.RegistrySeq == 1 {
		b = &brokerFetches{epoch: r.Epoch, lines: map[id.TopicPartition]map[uint64]Fetching{}}
		c.registry[r.Broker] = b
	}
	if r.RegistrySeq == 0 || r.RegistrySeq != b.seq+1 {
		return b.seq
	}
	for _, f := range r.Fetches {
		of := b.lines[f.TopicPartition]
		if of == nil {
			of = map[uint64]Fetching{}
			b.lines[f.TopicPartition] = of
		}
		of[f.Conn] = Fetching{Broker: r.Broker, Epoch: r.Epoch, Fetch: f, Last: now - f.Age}
	}
	for _, k := range r.Gone {
		if of := b.lines[k.TopicPartition]; of != nil {
			if delete(of, k.Conn); len(of) == 0 {
				delete(b.lines, k.TopicPartition)
			}
		}
	}
	b.seq = r.RegistrySeq
	return b.seq
}

// Fetching lists who fetches a partition or did, in no order; empty on a node that does not lead. A broker's lines stay until its next
// incarnation tells its own.
func (c *Collector) Fetching(tp id.TopicPartition) []Fetching {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Fetching
	for _, b := range c.registry {
		for _, f := range b.lines[tp] {
			out = append(out, f)
		}
	}
	return out
}
