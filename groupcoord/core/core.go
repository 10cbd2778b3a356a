// Package core holds the coordinator's decisions: PURE. A Mind is fed requests, results, changes of the view and the time,
// and answers with Actions; the driver (package groupcoord) carries them out. Nothing but Apply changes the state: a Mind
// keeps only what dies with its term (parked requests, deadlines).
package core

import (
	"cmp"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// RequestID names one request at the coordinator: the driver numbers them, below ownIDs.
type RequestID uint64

// ownIDs is where the numbers begin that a mind gives to proposals of its own.
const ownIDs RequestID = 1 << 63

// Request is what a node asks for one of its clients: Command or Kafka is set.
type Request struct {
	ID RequestID
	// Repeat: an earlier coordinator may have carried it out already, its answer was lost.
	Repeat bool
	// Waited is for how long its client's node has asked already: coordinators before this one, or while there was none.
	Waited time.Duration
	// Command is what the client wants, in the form of the command that grants it. The mind may propose it as it is,
	// propose another, hold it, or refuse.
	Command *statepb.Command
	// Kafka is a request of the group protocols.
	Kafka *KafkaRequest
}

// KafkaRequest is a request of Kafka's group protocols and who sent it.
type KafkaRequest struct {
	Body           kmsg.Request
	ClientID, Host string
	// Nonce is random, made by the client's node, and the same when the request is repeated: a new member's id is made of it.
	Nonce string
}

// Action is one thing for the driver to do. A request without a Reply or Answer stays parked.
type Action struct {
	Request RequestID
	Propose *statepb.Command // propose it in this term; Settled follows
	Reply   *statepb.Result  // answer a Command; it is over
	Answer  kmsg.Response    // answer a KafkaRequest; it is over
	Note    *Note            // write it to the log
	Count   *Count           // count it
}

// Count is one thing for the metrics: a request that a gate held, or a rebalance.
type Count struct {
	Gate         string        // which held a request; "": a rebalance
	Held         time.Duration // for how long; 0: the gate did something else than hold
	Kind, Reason string        // of the rebalance: of whose members, and its cause in one of few words
}

// Note is a line for the log: a message and slog's alternating keys and values.
type Note struct {
	Message string
	Args    []any
}

// Mind is one term of the coordinator. The driver calls it from one goroutine. now is monotonic; views never go back.
//
//	Request   a new request: Propose, Reply, or nothing (parked)
//	Settled   what a proposed command came to; STALE_TERM also when that is unknown
//	Committed what offsets that the mind did not propose came to: they are judged as they are applied, and need no mind
//	Changed   the view moved on; changes are in order
//	Cancel    the request's client, session or node is gone: forget it, no Reply
//	Deadline  when Expire wants to be called next
//	Expire    that moment has come
type Mind interface {
	Request(v *state.View, r Request, now time.Duration) []Action
	Settled(v *state.View, r RequestID, res *statepb.Result, now time.Duration) []Action
	Committed(v *state.View, group, member string, res *statepb.Result, now time.Duration) []Action
	Changed(v *state.View, changes []state.Change, now time.Duration) []Action
	Cancel(v *state.View, r RequestID, now time.Duration) []Action
	Deadline() (at time.Duration, ok bool)
	Expire(v *state.View, now time.Duration) []Action
}

// Config is how groups behave, under Kafka's names; zero values mean the defaults.
type Config struct {
	InitialDelay time.Duration // group.initial.rebalance.delay.ms, begun anew as long as members come; default 1 s (Kafka: 3 s), below 0 none
	MinSession   time.Duration // group.min.session.timeout.ms; default 6 s
	MaxSession   time.Duration // group.max.session.timeout.ms; default 30 min
	MaxSize      int           // group.max.size; default no limit

	// Of groups that the coordinator assigns (KIP-848).
	ConsumerHeartbeat time.Duration // group.consumer.heartbeat.interval.ms; default 1 s (Kafka: 5 s), so that a change reaches all in about that
	ConsumerSession   time.Duration // group.consumer.session.timeout.ms; default 45 s
	ConsumerMaxSize   int           // group.consumer.max.size; default no limit
	Migration         Migration     // group.consumer.migration.policy; default bidirectional
	// Settle is how long a new member waits for others to come, so that they are assigned together; at most maxSettle in all. Default
	// 200 ms, below 0 none.
	Settle time.Duration
	Hooks  Hooks

	// Fetching lists the client connections that fetch a partition or did, as the brokers report them; nil: nobody knows.
	Fetching func(id.TopicPartition) []Fetcher

	// Silence is for how long nothing has been heard of a ZooKeeper session, as the brokers report; nil: nobody knows.
	Silence func(id.SessionID) time.Duration

	OffsetsRetention time.Duration // offsets.retention.minutes; default 7 days
	OffsetsCheck     time.Duration // offsets.retention.check.interval.ms; default 10 min
}

func (c Config) withDefaults() Config {
	c.InitialDelay = cmp.Or(c.InitialDelay, time.Second)
	c.MinSession = cmp.Or(c.MinSession, 6*time.Second)
	c.MaxSession = cmp.Or(c.MaxSession, 30*time.Minute)
	c.MaxSize = cmp.Or(c.MaxSize, 1<<31-1)
	c.ConsumerHeartbeat = cmp.Or(c.ConsumerHeartbeat, time.Second)
	c.ConsumerSession = cmp.Or(c.ConsumerSession, 45*time.Second)
	c.ConsumerMaxSize = cmp.Or(c.ConsumerMaxSize, 1<<31-1)
	c.Settle = cmp.Or(c.Settle, 200*time.Millisecond)
	c.OffsetsRetention = cmp.Or(c.OffsetsRetention, 7*24*time.Hour)
	c.OffsetsCheck = cmp.Or(c.OffsetsCheck, 10*time.Minute)
	return c
}

// Coordinator is the mind of groups. Owners of znode consumers and offsets it grants one by one, by conditional commands.
// Classic members (JoinGroup) it keeps by Kafka's rules: see group. Groups with consumer members (ConsumerGroupHeartbeat) it assigns: see
// Hooks.
type Coordinator struct {
	cfg    Config
	hooks  Hooks
	open   map[RequestID]bool   // commands that are being proposed
	groups map[string]*group    // with classic members, joining members, or an end to come
	puts   map[RequestID]*group // proposals of our own
	last   RequestID            // of our own
	loaded bool
	next   time.Duration // the earliest deadline, or earlier
	expiry expiry
	legacy legacies // of znode consumers
	plans  mixes

	// Of the call that runs.
	v    *state.View
	now  time.Duration
	acts []Action
}

var _ Mind = (*Coordinator)(nil)

// NewCoordinator starts a term without memory of earlier ones.
func NewCoordinator(cfg Config) *Coordinator {
	c := &Coordinator{cfg: cfg.withDefaults(), hooks: cfg.Hooks, open: map[RequestID]bool{}, groups: map[string]*group{}, puts: map[RequestID]*group{},
		last: ownIDs, expiry: expiry{busy: map[RequestID]string{}}, legacy: newLegacies(), plans: newMixes()}
	c.mixHooks()
	return c
}

// begin starts a call; the first one of the term takes over the members that the state has.
func (c *Coordinator) begin(v *state.View, now time.Duration) {
	c.v, c.now, c.acts = v, now, nil
	if c.loaded {
		return
	}
	c.loaded, c.next = true, never
	c.expiry.at = c.mark(now + c.cfg.OffsetsCheck)
	v.Groups(func(row *state.Group) bool {
		if row.Classic() {
			c.load(row)
		}
		return true
	})
	c.loadMixes() // the barrier looks at the pools
	c.loadLegacy()
}

func (c *Coordinator) do(a Action) { c.acts = append(c.acts, a) }

// Request proposes what the coordinator owns, hands Kafka's requests to their group, and refuses everything else.
func (c *Coordinator) Request(v *state.View, r Request, now time.Duration) []Action {
	c.begin(v, now)
	if r.Kafka != nil {
		c.kafka(r)
		return c.acts
	}
	if c.legacyRequest(r) {
		return c.acts
	}
	switch b := r.Command.GetBody().(type) {
	case *statepb.Command_DeleteGroup:
		if g := c.groups[b.DeleteGroup.Group]; g != nil && g.joining() {
			return []Action{{Request: r.ID, Reply: &statepb.Result{Code: statepb.Code_NOT_EMPTY, Text: "members are joining the group"}}}
		}
	case *statepb.Command_CommitOffsets:
		if !r.Repeat {
			b.CommitOffsets.NotSince = 0
		}
	case *statepb.Command_DeleteOffsets:
	default:
		return []Action{{Request: r.ID, Reply: &statepb.Result{Code: statepb.Code_INVALID, Text: "not a request of groups"}}}
	}
	c.open[r.ID] = true
	return []Action{{Request: r.ID, Propose: r.Command}}
}

// Settled answers with the command's result.
func (c *Coordinator) Settled(v *state.View, id RequestID, res *statepb.Result, now time.Duration) []Action {
	c.begin(v, now)
	if g, ok := c.puts[id]; ok {
		delete(c.puts, id)
		c.settled(g, res)
		return c.acts
	}
	if c.settledExpiry(id, res) || c.legacySettled(id, res) {
		return c.acts
	}
	if !c.open[id] {
		return nil
	}
	delete(c.open, id)
	c.countLate(res)
	c.do(Action{Request: id, Reply: res})
	return c.acts
}

// Committed takes a member's commit as a sign of life.
func (c *Coordinator) Committed(v *state.View, group, member string, res *statepb.Result, now time.Duration) []Action {
	c.begin(v, now)
	c.countLate(res)
	if g := c.groups[group]; g != nil && res.Code == statepb.Code_OK {
		c.alive(g, member)
	}
	return c.acts
}

// Changed has consumer groups follow their topics. What else a group waits for comes as a request, a result or the time.
func (c *Coordinator) Changed(v *state.View, changes []state.Change, now time.Duration) []Action {
	c.begin(v, now)
	c.topicsChanged(changes)
	c.legacyChanged(changes)
	c.mixChanged(changes)
	return c.acts
}

// Cancel forgets a request; its command, once proposed, stands.
func (c *Coordinator) Cancel(v *state.View, r RequestID, now time.Duration) []Action {
	c.begin(v, now)
	if c.open[r] {
		delete(c.open, r)
		return nil
	}
	if c.legacyCancel(r) {
		return c.acts
	}
	c.cancel(r)
	return c.acts
}

// Deadline is the earliest moment at which something may be due; at the start of the term at once, so that the sessions of
// members begin to run.
func (c *Coordinator) Deadline() (time.Duration, bool) {
	if !c.loaded {
		return 0, true
	}
	return c.next, c.next != never
}

// Expire ends sessions, waits and empty groups whose time has come.
func (c *Coordinator) Expire(v *state.View, now time.Duration) []Action {
	c.begin(v, now)
	c.expire()
	c.expireOffsets()
	c.expireLegacy()
	c.expireMixes()
	return c.acts
}
