// Package controller holds the decisions of the Raft leader about brokers, leaderships and sessions: PURE. A Controller is
// one term's memory; its driver (node/minds) feeds it reports, proofs of death, requests, applied entries and the time, and
// proposes what Decide returns. Nothing but Apply changes the state: each command names the row version that it was decided
// on, and is decided again when Apply finds another.
//
// Rules (metadata.md "Who may answer"):
//   - A live broker is fenced with proof of its death at once, otherwise when its lease has surely ended (internal/lease: Book).
//     FenceBroker takes its leaderships and its places in ISRs in the same entry.
//   - Its znode in /brokers/ids goes after HideAfter of absence, or with a goodbye; the last one stays.
//   - A partition without a leader gets the first live replica of its ISR; an unclean leader never.
//   - A session expires when no broker has reported a touch for its timeout, by this leader's clock, which counts from the
//     term's begin at the earliest. A wall clock is never read.
//   - A tool's notice of a changed configuration (/config/changes) goes after KeepNotices.
//   - A leader that was stopped itself has heard nobody and blames nobody: all clocks start again.
//
// Not safe for concurrent use. Every now is this machine's CLOCK_BOOTTIME.
package controller

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/lease"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

const (
	// HideAfter is how long a fenced broker keeps its znode: old clients rebalance on every change of /brokers/ids.
	HideAfter = 6 * time.Second
	// Quiet is how long a live broker may be silent before it is worth asking whether its port refuses connections: two reports,
	// less what they come after the beat on which Decide is called.
	Quiet = 2*lease.ReportEvery - lease.ReportEvery/10
	// DecideEvery is the longest time between two calls of Decide; after a longer gap than lease.Settle the controller
	// takes it that it was stopped.
	DecideEvery = lease.ReportEvery

	maxExpire = 256 // sessions in one command
	maxElect  = 1024
)

// Errors of requests.
var (
	ErrUnknown  = errors.New("no such partition or broker")
	ErrNotReady = errors.New("the broker cannot lead the partition now")
)

// Decision is a command to propose in this term. The driver calls Settled with its ID when the outcome is known.
type Decision struct {
	ID      uint64
	Command *statepb.Command
}

// Controller is the memory of one term.
type Controller struct {
	view    *state.View
	book    *lease.Book
	lastRun time.Duration

	brokers  map[id.BrokerID]*broker
	headless map[id.TopicPartition]bool // without a leader when last seen
	moves    []move                     // requested
	sessions sessions
	notices  notices

	nextID uint64
	flying map[uint64]flight
	held   map[id.BrokerID][]func(id.Index) // holds whose commands' outcome is unknown
}

// broker is what a row does not say.
type broker struct {
	epoch       id.BrokerEpoch
	dead        bool // proof that this incarnation runs no more
	left        bool // it said goodbye
	absentSince time.Duration
	flying      bool // a command about it is on its way
}

type move struct {
	tp id.TopicPartition
	to id.BrokerID
}

// flight is a command on its way.
type flight struct {
	broker   id.BrokerID // NoBroker: none
	holds    map[id.BrokerID]func(id.Index)
	parts    []id.TopicPartition
	sessions []id.SessionID
	notice   string
}

// New begins a term's memory after the barrier of the term has been applied. youngest is the age of the youngest proof of
// an earlier term, from a proof round of this term whose last answer came at now; barrier is an index of this term.
func New(v *state.View, now, youngest time.Duration, barrier id.Index) *Controller {
	c := &Controller{
		view: v, book: lease.NewBook(now, youngest, barrier), lastRun: now,
		brokers: map[id.BrokerID]*broker{}, headless: map[id.TopicPartition]bool{}, sessions: newSessions(),
		notices: newNotices(v, now),
		flying:  map[uint64]flight{}, held: map[id.BrokerID][]func(id.Index){},
	}
	v.Brokers(func(b *state.Broker) bool {
		c.brokers[b.ID] = &broker{epoch: b.Epoch, absentSince: now}
		return true
	})
	v.Topics(func(t *state.Topic) bool {
		v.Partitions(t.Name, func(n int32, p *state.Partition) bool {
			c.seen(id.TopicPartition{Topic: t.Name, Partition: n}, p)
			return true
		})
		return true
	})
	v.Sessions(func(s *state.Session) bool {
		c.sessions.put(s, now)
		return true
	})
	return c
}

func (c *Controller) seen(tp id.TopicPartition, p *state.Partition) {
	if p.Leader == id.NoBroker {
		c.headless[tp] = true
	}
}

// listen notices that this process was stopped.
func (c *Controller) listen(now time.Duration) {
	if now-c.lastRun > lease.Settle {
		c.book.Restart(now)
		c.sessions.restart(now)
	}
	c.lastRun = max(c.lastRun, now)
}

// Heard takes in a report that came at now. It is false when the incarnation is not the live one: then the report counts
// for nothing, and the broker registers again once it has learned why.
func (c *Controller) Heard(b id.BrokerID, epoch id.BrokerEpoch, applied id.Index, touched []id.SessionID, now time.Duration) bool {
	c.listen(now)
	if row, ok := c.view.Broker(b); !ok || row.Epoch != epoch || row.Liveness != state.Live {
		return false
	}
	c.book.Heard(b, applied, now)
	for _, s := range touched {
		c.sessions.touch(s, now)
	}
	return true
}

// Silence is for how long, at now, no broker has reported a touch of a session; 0 for one that does not live.
func (c *Controller) Silence(s id.SessionID, now time.Duration) time.Duration {
	return c.sessions.silence(s, now)
}

// MayGrant says whether the answer to a report may carry a lease. The driver has proved its leadership since Heard.
func (c *Controller) MayGrant(b id.BrokerID, epoch id.BrokerEpoch, applied id.Index) bool {
	row, ok := c.view.Broker(b)
	if !ok || row.Epoch != epoch || row.Liveness != state.Live {
		return false
	}
	m := c.brokers[b]
	return m != nil && m.epoch == epoch && !m.dead && !m.left && c.book.MayGrant(b, applied)
}

// Dead takes in proof that an incarnation is dead (its port refuses connections); false when that is no news. Older
// incarnations are dead anyway.
func (c *Controller) Dead(b id.BrokerID, epoch id.BrokerEpoch) bool {
	m := c.brokers[b]
	if m == nil || m.epoch != epoch || m.dead {
		return false
	}
	m.dead = true
	return true
}

// Goodbye takes in that an incarnation serves nothing any more. It is false when that incarnation is not live: then there is
// nothing to wait for.
func (c *Controller) Goodbye(b id.BrokerID, epoch id.BrokerEpoch) bool {
	row, ok := c.view.Broker(b)
	m := c.brokers[b]
	if !ok || m == nil || row.Epoch != epoch || row.Liveness != state.Live {
		return false
	}
	m.left = true
	return true
}

// Move asks that a partition be led by a replica of its ISR, or by the first of its replicas (the preferred leader) when
// to is id.NoBroker. Nil when it is accepted, or has that leader already. Errors: ErrUnknown, ErrNotReady.
func (c *Controller) Move(tp id.TopicPartition, to id.BrokerID) error {
	p, ok := c.view.Partition(tp.Topic, tp.Partition)
	if !ok {
		return fmt.Errorf("%w: %s-%d", ErrUnknown, tp.Topic, tp.Partition)
	}
	if to == id.NoBroker {
		to = p.Replicas[0]
	}
	switch {
	case p.Leader == to:
		return nil
	case !slices.Contains(p.Replicas, to):
		return fmt.Errorf("%w: broker %d has no replica of %s-%d", ErrUnknown, to, tp.Topic, tp.Partition)
	case !c.electable(p, to):
		return fmt.Errorf("%w: broker %d is not live in the ISR of %s-%d", ErrNotReady, to, tp.Topic, tp.Partition)
	}
	c.moves = append(c.moves, move{tp, to})
	return nil
}

func (c *Controller) electable(p *state.Partition, b id.BrokerID) bool {
	m := c.brokers[b]
	return slices.Contains(p.ISR, b) && c.live(b) && m != nil && !m.dead && !m.left
}

func (c *Controller) live(b id.BrokerID) bool {
	row, ok := c.view.Broker(b)
	return ok && row.Liveness == state.Live
}

// Applied takes in an entry: each, in order, but for those that New's view already held.
func (c *Controller) Applied(v *state.View, changes []state.Change, now time.Duration) {
	if v.Index() <= c.view.Index() {
		return
	}
	before := c.view
	c.view = v
	for i := range changes {
		ch := &changes[i]
		switch ch.Kind {
		case state.BrokerRegistered:
			if row, ok := v.Broker(ch.Broker); ok {
				c.brokers[ch.Broker] = &broker{epoch: row.Epoch, absentSince: now}
				c.book.Registered(ch.Broker, now)
			}
		case state.BrokerFenced:
			if m := c.brokers[ch.Broker]; m != nil {
				m.absentSince = now
			}
		case state.PartitionChanged:
			tp := id.TopicPartition{Topic: ch.Topic, Partition: ch.Partition}
			p, ok := v.Partition(tp.Topic, tp.Partition)
			if !ok {
				continue
			}
			c.seen(tp, p)
			// Not all elections are decided here: tools write them too.
			if old, ok := before.Partition(tp.Topic, tp.Partition); ok && old.Leader != id.NoBroker && old.Leader != p.Leader {
				c.book.Need(old.Leader, v.Index())
			}
		case state.SessionCreated, state.SessionAttached:
			if s, ok := v.Session(ch.Session); ok {
				c.sessions.put(s, now)
			}
		case state.SessionEnded:
			c.sessions.remove(ch.Session)
		case state.ZnodeCreated:
			c.notices.put(ch.Path, now)
		}
	}
}

// Quiet returns the live brokers that are worth a probe: silent for a while, in ascending order.
func (c *Controller) Quiet(now time.Duration) []id.BrokerID {
	var quiet []id.BrokerID
	c.view.Brokers(func(b *state.Broker) bool {
		m := c.brokers[b.ID]
		if b.Liveness == state.Live && m != nil && !m.dead && c.book.HeardFrom(b.ID) <= now-Quiet {
			quiet = append(quiet, b.ID)
		}
		return true
	})
	return quiet
}

// Decide returns the commands that are due at now and when to ask again at the latest.
func (c *Controller) Decide(now time.Duration) (out []Decision, next time.Duration) {
	c.listen(now)
	next = now + DecideEvery
	at := func(t time.Duration) { next = min(next, max(t, now)) }
	out = c.decideBrokers(out, now, at)
	out = c.decideLeaders(out)
	out = c.decideSessions(out, now, at)
	return c.decideNotices(out, now, at), next
}

func (c *Controller) decideBrokers(out []Decision, now time.Duration, at func(time.Duration)) []Decision {
	shown := 0
	c.view.Brokers(func(b *state.Broker) bool {
		if b.Visible {
			shown++
		}
		return true
	})
	c.view.Brokers(func(b *state.Broker) bool {
		m := c.brokers[b.ID]
		if m == nil || m.epoch != b.Epoch || m.flying {
			return true
		}
		switch {
		case b.Liveness == state.Live:
			if f := fence(b, m, c.book, now); f != nil {
				m.flying = true
				out = append(out, c.take(&statepb.Command{Body: &statepb.Command_FenceBroker{FenceBroker: f}},
					flight{broker: b.ID, holds: c.hold(b.ID)}))
			} else {
				at(c.book.SilentAt(b.ID))
			}
		case b.Visible && shown > 1:
			if b.Liveness != state.Left && now < m.absentSince+HideAfter {
				at(m.absentSince + HideAfter)
				return true
			}
			shown--
			m.flying = true
			out = append(out, c.take(&statepb.Command{Body: &statepb.Command_SetBrokerVisible{SetBrokerVisible: &statepb.SetBrokerVisible{
				Broker: int32(b.ID), Epoch: uint64(b.Epoch)}}}, flight{broker: b.ID}))
		}
		return true
	})
	return out
}

// fence says whether and why a live broker is to be fenced.
func fence(b *state.Broker, m *broker, book *lease.Book, now time.Duration) *statepb.FenceBroker {
	f := &statepb.FenceBroker{Broker: int32(b.ID), Epoch: uint64(b.Epoch)}
	switch {
	case m.left:
		f.Left, f.Proven, f.Reason = true, true, "it said goodbye"
	case m.dead:
		f.Proven, f.Reason = true, "its port refuses connections"
	case book.Silent(b.ID, now):
		f.Reason = "its lease ended without a report"
	default:
		return nil
	}
	return f
}

func (c *Controller) hold(bs ...id.BrokerID) map[id.BrokerID]func(id.Index) {
	holds := map[id.BrokerID]func(id.Index){}
	for _, b := range bs {
		if b != id.NoBroker && holds[b] == nil {
			holds[b] = c.book.Hold(b)
		}
	}
	return holds
}

// decideLeaders elects for partitions without a leader, and carries out moves.
func (c *Controller) decideLeaders(out []Decision) []Decision {
	var all []*statepb.Election
	f := flight{broker: id.NoBroker}
	var losers []id.BrokerID
	elect := func(tp id.TopicPartition, p *state.Partition, to id.BrokerID) {
		t, ok := c.view.Topic(tp.Topic)
		if !ok {
			return
		}
		all = append(all, &statepb.Election{TopicId: slices.Clone(t.ID[:]), Partition: tp.Partition, PartitionEpoch: int32(p.Epoch), Leader: int32(to)})
		f.parts = append(f.parts, tp)
		losers = append(losers, p.Leader)
	}
	for _, tp := range c.headlessInOrder() {
		p, ok := c.view.Partition(tp.Topic, tp.Partition)
		if !ok || p.Leader != id.NoBroker {
			delete(c.headless, tp)
			continue
		}
		if i := slices.IndexFunc(p.Replicas, func(b id.BrokerID) bool { return c.electable(p, b) }); i >= 0 && len(all) < maxElect {
			delete(c.headless, tp) // Settled brings it back if it has to
			elect(tp, p, p.Replicas[i])
		}
	}
	n := min(len(c.moves), maxElect-len(all))
	for _, m := range c.moves[:n] {
		if p, ok := c.view.Partition(m.tp.Topic, m.tp.Partition); ok && p.Leader != m.to && c.electable(p, m.to) {
			elect(m.tp, p, m.to)
		}
	}
	c.moves = slices.Clone(c.moves[n:])
	if len(all) == 0 {
		return out
	}
	f.holds = c.hold(losers...)
	return append(out, c.take(&statepb.Command{Body: &statepb.Command_ElectLeaders{ElectLeaders: &statepb.ElectLeaders{Elections: all}}}, f))
}

func (c *Controller) headlessInOrder() []id.TopicPartition {
	tps := make([]id.TopicPartition, 0, len(c.headless))
	for tp := range c.headless {
		tps = append(tps, tp)
	}
	slices.SortFunc(tps, func(a, b id.TopicPartition) int {
		if n := strings.Compare(a.Topic, b.Topic); n != 0 {
			return n
		}
		return int(a.Partition) - int(b.Partition)
	})
	return tps
}

func (c *Controller) decideSessions(out []Decision, now time.Duration, at func(time.Duration)) []Decision {
	due, next := c.sessions.expired(now)
	if next > 0 {
		at(next)
	}
	for len(due) > 0 {
		n := min(len(due), maxExpire)
		e := &statepb.ExpireSessions{}
		f := flight{broker: id.NoBroker}
		for _, s := range due[:n] {
			e.Sessions = append(e.Sessions, &statepb.CloseSession{Session: int64(s.id), AttachEpoch: s.attach})
			f.sessions = append(f.sessions, s.id)
		}
		due = due[n:]
		out = append(out, c.take(&statepb.Command{Body: &statepb.Command_ExpireSessions{ExpireSessions: e}}, f))
	}
	return out
}

func (c *Controller) take(cmd *statepb.Command, f flight) Decision {
	c.nextID++
	cmd.Version, cmd.Level = state.CommandVersion, state.MinLevel
	c.flying[c.nextID] = f
	return Decision{c.nextID, cmd}
}

// Settled takes in what a decision came to; res is nil when that is unknown. Applied has seen the entry before, when there
// is one.
func (c *Controller) Settled(decision uint64, res *statepb.Result, now time.Duration) {
	f, ok := c.flying[decision]
	if !ok {
		return
	}
	delete(c.flying, decision)
	for b, done := range f.holds {
		// Entries of one term are in the order of their proposals: once a later command about the broker is in, an
		// earlier one is in as well, or never will be.
		c.held[b] = append(c.held[b], done)
		if res != nil {
			for _, end := range c.held[b] {
				end(id.Index(res.Index))
			}
			delete(c.held, b)
		}
	}
	if m := c.brokers[f.broker]; m != nil {
		m.flying = false
	}
	for _, tp := range f.parts {
		if p, ok := c.view.Partition(tp.Topic, tp.Partition); ok {
			c.seen(tp, p)
		}
	}
	for _, s := range f.sessions {
		c.sessions.again(s, res != nil, now)
	}
	if _, there := c.view.Znode(f.notice); f.notice != "" && there {
		c.notices.put(f.notice, now)
	}
}
