package lease

import (
	"slices"

	"github.com/barnabas-mq/barnabas/internal/id"
)

// The state that the model's log folds to: the broker and partition rows of raftmeta/state, and what its Apply does with
// them.

type command struct {
	kind          string // barrier, register, fence, alter, elect
	broker        int
	nonce         int
	inc           id.BrokerEpoch
	proven        bool
	part          int
	epoch, pepoch int
	isr           []int
	isrInc        []id.BrokerEpoch
	term          int // of a mind's command
	leader        int
}

type brokerRow struct {
	inc   id.BrokerEpoch
	nonce int
	live  bool
}

type partRow struct {
	replicas, isr         []int
	leader, epoch, pepoch int
	grace                 bool
}

// machine is immutable; apply returns the next one.
type machine struct {
	brokers [brokers]brokerRow
	parts   []partRow
}

func newMachine(w *world) *machine {
	m := &machine{}
	for p := range w.nparts {
		r := partRow{leader: -1}
		for k := range replicas {
			r.replicas = append(r.replicas, (p+k)%brokers)
		}
		r.isr = slices.Clone(r.replicas)
		m.parts = append(m.parts, r)
	}
	return m
}

func (m *machine) apply(c command, index int, plant plants) *machine {
	n := &machine{brokers: m.brokers, parts: slices.Clone(m.parts)}
	switch c.kind {
	case "register":
		old := m.brokers[c.broker]
		if old.nonce == c.nonce && old.live || old.nonce > c.nonce {
			return m
		}
		n.brokers[c.broker] = brokerRow{inc: id.BrokerEpoch(index), nonce: c.nonce, live: true}
		if old.live {
			n.handOver(c.broker, true, plant)
		}
		for p := range n.parts {
			if r := &n.parts[p]; r.leader < 0 && slices.Contains(r.isr, c.broker) {
				n.lead(r, c.broker, true, plant)
				r.pepoch++
			}
		}
	case "fence":
		if old := m.brokers[c.broker]; old.inc != c.inc || !old.live {
			return m
		}
		n.brokers[c.broker].live = false
		n.handOver(c.broker, c.proven, plant)
	case "alter":
		r, b := &n.parts[c.part], m.brokers[c.broker]
		if b.inc != c.inc || !b.live || r.leader != c.broker || r.epoch != c.epoch || r.pepoch != c.pepoch {
			return m
		}
		for i, x := range c.isr {
			if m.brokers[x].inc != c.isrInc[i] || !m.brokers[x].live {
				return m
			}
		}
		r.isr, r.grace = c.isr, false
		r.pepoch++
	case "elect":
		r := &n.parts[c.part]
		if r.pepoch != c.pepoch || !slices.Contains(r.isr, c.leader) || !m.brokers[c.leader].live {
			return m
		}
		n.lead(r, c.leader, false, plant)
		r.pepoch++
	}
	return n
}

func (m *machine) lead(r *partRow, to int, resigned bool, plant plants) {
	if r.leader >= 0 {
		if plant.graceForgotten {
			r.grace = !resigned
		} else {
			r.grace = r.grace || !resigned
		}
	}
	r.leader = to
	r.epoch++
}

func (m *machine) handOver(gone int, proven bool, plant plants) {
	for p := range m.parts {
		r := &m.parts[p]
		in := slices.Contains(r.isr, gone)
		if !in && r.leader != gone {
			continue
		}
		if in && len(r.isr) > 1 {
			r.isr = slices.DeleteFunc(slices.Clone(r.isr), func(x int) bool { return x == gone })
		}
		if r.leader == gone {
			to := -1
			for _, x := range r.replicas {
				if x != gone && slices.Contains(r.isr, x) && m.brokers[x].live {
					to = x
					break
				}
			}
			m.lead(r, to, proven, plant)
		}
		r.pepoch++
	}
}
