package core

import (
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// Offsets expire as in Kafka since 2.1 (KIP-211; OffsetExpirationConditionImpl):
//
//   - of a group without members of any kind, offsets.retention.minutes after the last member left or the offset was committed,
//     whichever was later (Kafka takes the former alone, so that an offset that was reset into a group empty for long goes at once)
//   - of a stable group of consumers, the same time after the commit, if no member subscribes to the topic
//   - never while live znode consumers are in the group, nor when a znode or OffsetCommit v0 wrote the offset last: ZooKeeper
//     forgets nothing, and those who use it count on that
//   - a commit of v2 to v4 that named a retention has that in place of the broker's, from the commit on
//
// Time is the cluster clock: a wall clock that jumps expires nothing.

const (
	maxExpiring  = 64   // commands of one look
	maxExpired   = 1000 // offsets of one command
	lookAgain    = time.Second
	consumerType = "consumer"
)

// expiry is when the coordinator looks for offsets to expire, and what it has proposed.
type expiry struct {
	at   time.Duration
	busy map[RequestID]string // group by proposal
}

// expireOffsets looks at every group when that is due.
func (c *Coordinator) expireOffsets() {
	if c.now >= c.expiry.at {
		next := c.cfg.OffsetsCheck
		if c.expireSome() {
			next = min(next, lookAgain)
		}
		c.expiry.at = c.now + next
	}
	c.mark(c.expiry.at)
}

// expireSome proposes what has expired; more says that there is more of it.
func (c *Coordinator) expireSome() (more bool) {
	c.v.Groups(func(row *state.Group) bool {
		items, rest := c.expired(row)
		if len(items) == 0 {
			return true
		}
		if more = more || rest; len(c.expiry.busy) >= maxExpiring {
			more = true
			return false
		}
		c.last++
		c.expiry.busy[c.last] = row.Name
		c.do(Action{Request: c.last, Propose: &statepb.Command{Body: &statepb.Command_ExpireOffsets{ExpireOffsets: &statepb.ExpireOffsets{
			Group: row.Name, GroupVersion: row.Version, Items: items}}}})
		return true
	})
	return more
}

// expired lists what of a group is past its time; more says that the list was cut.
func (c *Coordinator) expired(row *state.Group) (items []*statepb.ExpiredOffset, more bool) {
	reads := func(string) bool { return false }
	if row.EmptySinceMs == 0 || c.groups[row.Name] != nil && c.groups[row.Name].joining() {
		topics, ok := subscriptions(row)
		if !ok || legacy(c.v, row.Name) {
			return nil, false
		}
		reads = func(topic string) bool { return topics[topic] }
	}
	now, retention := c.v.ClockMs(), c.cfg.OffsetsRetention.Milliseconds()
	c.v.Offsets(row.Name, func(topic string, o *state.Offset) bool {
		due := max(o.CommittedMs, row.EmptySinceMs) + retention
		if o.RetentionMs > 0 {
			due = o.CommittedMs + o.RetentionMs
		}
		if o.Origin != state.FromZnode && now >= due && !reads(topic) {
			items = append(items, &statepb.ExpiredOffset{Topic: topic, Partition: o.Partition, Mzxid: int64(o.Mzxid)})
		}
		more = len(items) == maxExpired
		return !more
	})
	return items, more
}

// subscriptions are the topics that the members of a stable group of consumers read; ok is false when that cannot be told.
func subscriptions(row *state.Group) (topics map[string]bool, ok bool) {
	if row.ProtocolType != consumerType || row.State != state.GroupStable {
		return nil, false
	}
	topics = map[string]bool{}
	for _, m := range row.Members {
		if row.Consumer && m.Consumer != nil {
			if m.Consumer.Regex != "" { // it may read any topic
				return nil, false
			}
			for _, t := range m.Consumer.Topics {
				topics[t] = true
			}
			continue
		}
		var sub kmsg.ConsumerMemberMetadata
		if sub.ReadFrom(metadata(m, row.Protocol)) != nil {
			return nil, false
		}
		for _, t := range sub.Topics {
			topics[t] = true
		}
	}
	return topics, true
}

// settledExpiry takes the result of a proposal of expireSome; false: it is none.
func (c *Coordinator) settledExpiry(id RequestID, res *statepb.Result) bool {
	group, ok := c.expiry.busy[id]
	if !ok {
		return false
	}
	delete(c.expiry.busy, id)
	if res.Code == statepb.Code_OK && res.Value > 0 {
		c.do(Action{Note: &Note{"offsets have expired", []any{"group", group, "offsets", res.Value}}})
	}
	return true
}
