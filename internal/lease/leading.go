package lease

import (
	"math"
	"slices"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
)

// never is a wait that only proof ends.
const never = time.Duration(math.MaxInt64)

// Member is a member of a partition's ISR: a broker and the incarnation that the leader's metadata names for it.
type Member struct {
	Broker id.BrokerID
	Epoch  id.BrokerEpoch
}

// Following is what one replica of a partition remembers, for as long as its process lives, about the leaders that it has
// followed. The zero value has followed nobody.
type Following struct {
	followed bool
	replied  map[id.BrokerID]time.Duration
}

// Follow notes that the replica learned of a row in which another broker leads.
func (f *Following) Follow() { f.followed = true }

// Sent notes, before it leaves, a fetch to that leader that repeats a stamp; received is when the reply with that stamp came
// to this process. (A fetch without a stamp proves nothing to the leader and need not be noted.)
func (f *Following) Sent(leader id.BrokerID, received time.Duration) {
	if f.replied == nil {
		f.replied = map[id.BrokerID]time.Duration{}
	}
	f.followed, f.replied[leader] = true, max(f.replied[leader], received)
}

// TakeoverFrom says what a replica that has just become leader knows about those before it.
type TakeoverFrom struct {
	// Grace: the row says that an earlier leader may still be answering (state.Partition.GraceNeeded).
	Grace bool
	// Others are the partition's other replicas.
	Others []id.BrokerID
	// Live are those of them that are not fenced at the index of this election: if one of them led until now (a planned move),
	// its broker lease may have been granted until now.
	Live []id.BrokerID
}

// Leading is the serving right of one partition leader at one leader epoch. It covers answers to consumers, the advance
// of the high watermark, and proposals of a larger ISR. An answer's data is read first and the right asked afterwards,
// immediately before the answer is sent: then the data was valid at a moment within the request.
type Leading struct {
	waits    map[id.BrokerID]time.Duration // until when an earlier leader may be answering
	fetchers map[id.BrokerID]*fetcher
}

type fetcher struct {
	epoch   id.BrokerEpoch
	stamped bool
	stamp   time.Duration
	dead    bool // it died while its last fetch still counted
}

// NewLeading begins a leadership at now.
//
// An earlier leader that is not gone may answer until Duration after the last stamp that this replica repeated to it. The
// replica had that stamp from a reply, so TakeOver after the last reply is enough, whatever it sent after that; one that
// was not fenced may besides hold a broker lease granted until now. A
// replica that has followed nobody in this process (its former incarnation was the last of the ISR) cannot know: the
// earlier leader may have counted that incarnation out as dead, and answers as long as it likes.
func NewLeading(past *Following, from TakeoverFrom, now time.Duration) *Leading {
	l := &Leading{waits: map[id.BrokerID]time.Duration{}, fetchers: map[id.BrokerID]*fetcher{}}
	if !from.Grace {
		return l
	}
	for _, b := range from.Others {
		if replied, ok := past.replied[b]; ok {
			l.waits[b] = replied + TakeOver
		} else if !past.followed {
			l.waits[b] = never
		}
	}
	for _, b := range from.Live {
		l.waits[b] = max(l.waits[b], now+TakeOver)
	}
	return l
}

// Gone notes that a broker surely does not lead by an older row: its process is provably dead (its port refuses connections,
// it said goodbye, a new incarnation has registered), or it has resigned (it fetches from here at this leader epoch).
func (l *Leading) Gone(b id.BrokerID) { delete(l.waits, b) }

// ServesFrom returns the time until which the leader must not answer for the sake of earlier ones; 0 if there are none to
// wait for, the largest time if only Gone ends the wait.
func (l *Leading) ServesFrom() time.Duration {
	var from time.Duration
	for _, t := range l.waits {
		from = max(from, t)
	}
	return from
}

// Waits returns the brokers that ServesFrom waits for: whether they are dead is worth a probe.
func (l *Leading) Waits() []id.BrokerID {
	var bs []id.BrokerID
	for b := range l.waits {
		bs = append(bs, b)
	}
	slices.Sort(bs)
	return bs
}

// Fetched notes a follower's fetch at this leader epoch. stamp is the leader's Boot time at which it sent the last reply
// of this leadership that the follower received (the reply carries it, the follower repeats it in its next fetch); stamped is
// false in its first fetch, which proves nothing.
//
// The stamp is what makes the count safe: the follower sent the fetch after it received that reply, hence after the
// stamp, however long the fetch lay in a socket while one of the two was stopped. The arrival proves no such thing.
func (l *Leading) Fetched(m Member, stamp time.Duration, stamped bool, now time.Duration) {
	l.Gone(m.Broker)
	f := l.fetchers[m.Broker]
	switch {
	case f == nil || f.epoch < m.Epoch:
		f = &fetcher{epoch: m.Epoch}
		l.fetchers[m.Broker] = f
	case f.epoch > m.Epoch:
		return // from a dead incarnation
	}
	if stamped && stamp <= now && (!f.stamped || stamp > f.stamp) {
		f.stamped, f.stamp, f.dead = true, stamp, false
	}
}

// Dead notes proof, obtained at now, that an incarnation of a follower is dead. It counts only while the follower's last
// fetch still did: one that had stopped before may have learned of a newer epoch, led, and handed it on.
func (l *Leading) Dead(m Member, now time.Duration) {
	f := l.fetchers[m.Broker]
	if f != nil && f.epoch == m.Epoch && f.stamped && now < f.stamp+Duration {
		f.dead = true
	}
}

// MayServe says whether the leader may answer at now, and until when this holds if nothing more happens. broker is its
// broker's lease; others are the other members of the ISR as the leader must count it: a replica that it asked to add
// from the moment of asking, one that it asked to remove until the answer.
func (l *Leading) MayServe(now time.Duration, broker Lease, others []Member) (until time.Duration, may bool) {
	if len(l.waits) > 0 && now < l.ServesFrom() {
		return 0, false
	}
	until = now + Duration
	for _, m := range others {
		f := l.fetchers[m.Broker]
		switch {
		case f != nil && f.dead && f.epoch >= m.Epoch:
		case f == nil || !f.stamped || f.epoch < m.Epoch || now >= f.stamp+Duration:
			return broker.Held(now)
		default:
			until = min(until, f.stamp+Duration)
		}
	}
	if held, ok := broker.Held(now); ok {
		until = max(until, held)
	}
	return until, true
}
