package partition

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/lease"
	"github.com/barnabas-mq/barnabas/partition/log"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A replica fetch on the cluster port is two bytes with the version of Fetch, and then the request's or response's body in Kafka's
// own encoding at that version, with tags of ours. Version 13: topics by id, last fetched epoch, diverging epoch.
const replicaFetchVersion = 13

// tagStamp is a tag at the top of both bodies: 8 bytes of the leader's broker epoch, 8 of its Boot time in nanoseconds when it
// sent a reply. A follower repeats the stamp of the last reply in its next fetch (internal/lease: Leading.Fetched).
const tagStamp = 10000

// tagSent is a tag at the top of the request: 8 bytes of the follower's own Boot time in nanoseconds. Fetches that were given up may
// be handled after later ones; what they say is old.
const tagSent = 10002

func putSent(tags *kmsg.Tags, at time.Duration) {
	tags.Set(tagSent, binary.BigEndian.AppendUint64(nil, uint64(at)))
}

func readSent(tags *kmsg.Tags) (at time.Duration) {
	tags.Each(func(tag uint32, b []byte) {
		if tag == tagSent && len(b) == 8 {
			at = time.Duration(binary.BigEndian.Uint64(b))
		}
	})
	return at
}

// tagLeave is a tag of a partition in the request: the follower has damaged bytes and wants to leave the ISR, so that it can cut
// them off and fetch them again.
const tagLeave = 10001

func hasTag(tags *kmsg.Tags, tag uint32) (found bool) {
	tags.Each(func(t uint32, _ []byte) { found = found || t == tag })
	return found
}

// maxReplicaWait bounds how long a follower's fetch is parked, whatever it asks: its fetches keep the right to serve, and its place
// in the ISR. The next fetch, which acknowledges the reply, has the rest of lease.Duration to arrive.
func (c Config) maxReplicaWait() time.Duration { return min(maxReplicaWait, c.ReplicaLagMax/2) }

const maxReplicaWait = lease.Duration * 2 / 3

// replicaWait is how long to park a fetch that asks for so long. A long wait ends on the beat of the broker's reports, so that an
// idle machine wakes up once for both.
func (c Config) replicaWait(asked, now time.Duration) time.Duration {
	wait := min(asked, c.maxReplicaWait())
	if wait >= 2*lease.ReportEvery {
		wait -= (now + wait) % lease.ReportEvery
	}
	return wait
}

type stamp struct {
	epoch id.BrokerEpoch
	at    time.Duration
}

func (s stamp) put(tags *kmsg.Tags) {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], uint64(s.epoch))
	binary.BigEndian.PutUint64(b[8:], uint64(s.at))
	tags.Set(tagStamp, b[:])
}

func readStamp(tags *kmsg.Tags) (s stamp, ok bool) {
	tags.Each(func(tag uint32, b []byte) {
		if tag == tagStamp && len(b) == 16 {
			s.epoch = id.BrokerEpoch(binary.BigEndian.Uint64(b[:8]))
			s.at, ok = time.Duration(binary.BigEndian.Uint64(b[8:])), true
		}
	})
	return s, ok
}

// replicaFetch is one follower's fetch at its leader.
type replicaFetch struct {
	m       *Manager
	from    lease.Member
	req     *kmsg.FetchRequest
	stamp   time.Duration
	stamped bool
	sent    time.Duration // by the follower's clock
	items   []replicaItem
}

// replicaItem is one partition of it, in the order of the request.
type replicaItem struct {
	topic int // in req.Topics
	ask   *kmsg.FetchRequestTopicPartition
	r     *replica // nil: err
	err   error
}

// HandleReplicaFetch answers MethodFetch: a follower's fetch, parked until there is something new for it. from and fromEpoch are
// the peer's broker and incarnation. Errors: ErrStaleBrokerEpoch (a newer incarnation has registered), ErrInvalidRequest for
// bytes that are no such fetch; those of a partition are in the reply, as Kafka's codes.
func (m *Manager) HandleReplicaFetch(ctx context.Context, from id.BrokerID, fromEpoch id.BrokerEpoch, payload []byte) ([]byte, error) {
	if newest := m.brokerEpoch(from); fromEpoch < newest {
		return nil, fmt.Errorf("%w: broker %d fetches at epoch %d, it registered again at %d", ErrStaleBrokerEpoch, from, fromEpoch, newest)
	}
	f := &replicaFetch{m: m, from: lease.Member{Broker: from, Epoch: fromEpoch}}
	if err := f.decode(payload); err != nil {
		return nil, err
	}
	f.arrive()
	p := parked{wait: m.cfg.replicaWait(time.Duration(f.req.MaxWaitMillis)*time.Millisecond, m.deps.Clock.Boot())}
	defer func() {
		if p.watching() {
			f.leave()
		}
		p.end()
	}()
	for {
		res, news := f.read()
		if news || p.over || p.wait <= 0 {
			return f.encode(res), nil
		}
		if !p.watching() {
			for i := range f.items {
				p.watch(f.items[i].r, &f.items[i].r.s.endWatch)
			}
			if len(f.items) > 0 {
				continue
			}
		}
		if !p.sleep(ctx, parkedForEvent) {
			return nil, context.Cause(ctx)
		}
	}
}

func (f *replicaFetch) decode(payload []byte) error {
	if len(payload) < 2 || int16(binary.BigEndian.Uint16(payload)) != replicaFetchVersion {
		return fmt.Errorf("%w: a replica fetch of %d bytes that is not of version %d", ErrInvalidRequest, len(payload), replicaFetchVersion)
	}
	f.req = kmsg.NewPtrFetchRequest()
	f.req.Version = replicaFetchVersion
	if err := f.req.ReadFrom(payload[2:]); err != nil {
		return fmt.Errorf("%w: replica fetch: %w", ErrInvalidRequest, err)
	}
	_, self := f.m.deps.Self()
	if s, ok := readStamp(&f.req.UnknownTags); ok && s.epoch == self {
		f.stamp, f.stamped = s.at, true
	}
	f.sent = readSent(&f.req.UnknownTags)
	v := f.m.view()
	for t := range f.req.Topics {
		topic, known := v.TopicByID(f.req.Topics[t].TopicID)
		for p := range f.req.Topics[t].Partitions {
			it := replicaItem{topic: t, ask: &f.req.Topics[t].Partitions[p]}
			if !known {
				it.err = fmt.Errorf("%w: topic id %s", ErrUnknownTopicOrPartition, id.TopicID(f.req.Topics[t].TopicID))
			} else if it.r, it.err = f.m.replica(topic.Name, it.ask.Partition); it.err == nil && it.r.topicID != topic.ID {
				it.r, it.err = nil, fmt.Errorf("%w: %s is of another topic id", ErrUnknownTopicOrPartition, it.r)
			}
			f.items = append(f.items, it)
		}
	}
	return nil
}

// arrive notes what the fetch says about its sender, once, at its receipt.
func (f *replicaFetch) arrive() {
	now := f.m.deps.Clock.Boot()
	for i := range f.items {
		it := &f.items[i]
		if it.err != nil {
			continue
		}
		r := it.r
		r.mu.Lock()
		it.err = r.leadsLocked(id.LeaderEpoch(it.ask.CurrentLeaderEpoch))
		if it.err == nil && r.s.lead.remotes[f.from.Broker] == nil {
			it.err = fmt.Errorf("%w: broker %d is %w %s", ErrUnknownTopicOrPartition, f.from.Broker, errNoReplica, r)
		}
		if it.err == nil && r.s.lead.remotes[f.from.Broker].newer(f.from.Epoch, f.sent) {
			offset := id.Offset(it.ask.FetchOffset)
			r.s.lead.remotes[f.from.Broker].leaving = hasTag(&it.ask.UnknownTags, tagLeave)
			if _, diverged := divergence(r.s.log, id.LeaderEpoch(it.ask.LastFetchedEpoch), offset); !diverged && offset <= r.s.log.LogEnd() {
				r.noteFetchLocked(f.from, offset, f.stamp, f.stamped, now)
			} else {
				r.s.lead.right.Fetched(f.from, f.stamp, f.stamped, now)
			}
		}
		r.mu.Unlock()
	}
}

// leave notes the end of the fetch's being parked.
func (f *replicaFetch) leave() {
	now := f.m.deps.Clock.Boot()
	for i := range f.items {
		it := &f.items[i]
		if it.err != nil {
			continue
		}
		it.r.mu.Lock()
		if it.r.leadsLocked(id.LeaderEpoch(it.ask.CurrentLeaderEpoch)) == nil {
			it.r.noteParkedLocked(f.from, f.sent, now)
		}
		it.r.mu.Unlock()
	}
}

// divergence says where a follower's log, which ends at offset with epoch last, leaves the leader's (KIP-595).
func divergence(l *log.Log, last id.LeaderEpoch, offset id.Offset) (log.EpochEnd, bool) {
	if last < 0 {
		return log.EpochEnd{}, false
	}
	end := l.EndOffsetForEpoch(last)
	return end, end.Epoch < last || end.End < offset
}

// read builds the reply as it is now; news says that there is something in it worth sending.
func (f *replicaFetch) read() (res []kmsg.FetchResponseTopicPartition, news bool) {
	left := f.m.cfg.ReplicaReplyBytes
	if f.req.MaxBytes > 0 {
		left = min(left, int(f.req.MaxBytes))
	}
	first := true
	res = make([]kmsg.FetchResponseTopicPartition, len(f.items))
	for i := range f.items {
		out := &res[i]
		*out = kmsg.NewFetchResponseTopicPartition()
		out.Partition, out.HighWatermark = f.items[i].ask.Partition, -1
		// Once one partition has filled the reply, the rest is left out of it: the follower asks in another order next time.
		if err := f.readItem(&f.items[i], out, left, first); err != nil {
			out.ErrorCode = Code(err)
			news = true
		}
		news = news || len(out.RecordBatches) > 0 || out.DivergingEpoch.Epoch >= 0
		first = first && len(out.RecordBatches) == 0
		left -= len(out.RecordBatches)
	}
	return res, news || len(f.items) == 0
}

func (f *replicaFetch) readItem(it *replicaItem, out *kmsg.FetchResponseTopicPartition, left int, first bool) error {
	if it.err != nil {
		return it.err
	}
	r := it.r
	l, err := r.leaderAt(id.LeaderEpoch(it.ask.CurrentLeaderEpoch))
	if err != nil {
		return err
	}
	offset := id.Offset(it.ask.FetchOffset)
	out.LogStartOffset = int64(l.LogStart())
	if end, diverged := divergence(l, id.LeaderEpoch(it.ask.LastFetchedEpoch), offset); diverged {
		if end.Epoch < 0 { // an epoch newer than ours, and we lead: the follower cuts it all off
			end = log.EpochEnd{Epoch: l.LatestEpoch(), End: l.LogEnd()}
		}
		out.DivergingEpoch.Epoch, out.DivergingEpoch.EndOffset = int32(end.Epoch), int64(end.End)
		return nil
	}
	if offset < l.LogStart() || offset > l.LogEnd() {
		return fmt.Errorf("%w: %s has %d to %d, asked for %d", ErrOffsetOutOfRange, r, l.LogStart(), l.LogEnd(), offset)
	}
	if offset < l.LogEnd() && (left > 0 || first) {
		limit := min(left, int(it.ask.PartitionMaxBytes))
		if out.RecordBatches, err = l.Read(log.Fetch{Offset: offset, MaxBytes: limit, UpTo: log.All, MinOneBatch: first}); err != nil {
			return r.checkDisk("replica fetch", l, err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.leadsLocked(id.LeaderEpoch(it.ask.CurrentLeaderEpoch)); err != nil {
		out.RecordBatches = nil
		return err
	}
	out.HighWatermark, out.LastStableOffset = int64(r.s.hw), int64(r.s.hw)
	return nil
}

// encode stamps and encodes the reply.
func (f *replicaFetch) encode(parts []kmsg.FetchResponseTopicPartition) []byte {
	res := kmsg.NewPtrFetchResponse()
	res.Version = replicaFetchVersion
	size := 64
	for i := range f.items {
		t := f.items[i].topic
		if len(res.Topics) == 0 || res.Topics[len(res.Topics)-1].TopicID != f.req.Topics[t].TopicID {
			topic := kmsg.NewFetchResponseTopic()
			topic.TopicID = f.req.Topics[t].TopicID
			res.Topics = append(res.Topics, topic)
		}
		topic := &res.Topics[len(res.Topics)-1]
		topic.Partitions = append(topic.Partitions, parts[i])
		size += 96 + len(parts[i].RecordBatches)
	}
	_, self := f.m.deps.Self()
	stamp{epoch: self, at: f.m.deps.Clock.Boot()}.put(&res.UnknownTags)
	out := binary.BigEndian.AppendUint16(make([]byte, 0, size), replicaFetchVersion)
	return res.AppendTo(out)
}
