// Package lease holds the rules that decide who may answer for whom (metadata.md "Who may answer", decisions.md 1), as
// values without clocks, locks or goroutines: cluster and the minds feed the broker's and the Raft leader's side, partition
// the partition leader's side, and a model drives exactly this code through pauses, cuts and restarts.
//
// Every time here is a reading of its own machine's CLOCK_BOOTTIME (clock.Clock.Boot), which counts suspend; times of
// two machines are never compared. Clocks may differ in rate by a percent: who acts after another's lease waits longer than
// the lease lasts.
package lease

import (
	"slices"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
)

const (
	// Duration is how long a broker lease lasts, counted from the sending of an answered report; and how long a follower's
	// fetch allows its partition leader to answer, counted from the sending of the reply that the fetch acknowledges.
	Duration = 1500 * time.Millisecond
	// ReportEvery is the pause between a broker's reports.
	ReportEvery = 200 * time.Millisecond
	// FenceAfter is how long the Raft leader hears nothing from a broker before it takes the broker's lease as ended.
	FenceAfter = 2 * time.Second
	// Settle is how long a new Raft leader listens before it calls a broker silent: two reports, with room for a slow one.
	Settle = 500 * time.Millisecond
	// TakeOver is how long a new partition leader waits after the last reply from an older one.
	TakeOver = Duration + 50*time.Millisecond
)

// Lease is a broker's own lease. The zero value holds nothing.
type Lease struct {
	granted bool
	sent    time.Duration
}

// Answered notes that the report sent at that time was answered and the lease granted. Answers may come out of order.
func (l *Lease) Answered(sent time.Duration) {
	if !l.granted || sent > l.sent {
		l.granted, l.sent = true, sent
	}
}

// Held reports whether the lease lasts at now, and until when.
func (l Lease) Held(now time.Duration) (until time.Duration, held bool) {
	until = l.sent + Duration
	return until, l.granted && now < until
}

// Votes says whether a report may carry a vote (Carried): only if the last one, sent at that time, was answered. A voter that
// went on voting for a frozen leader would make the next one wait for leases that were never given.
func (l Lease) Votes(last time.Duration) bool { return l.granted && l.sent == last }

// LastSent returns when the youngest answered report was sent; false before the first.
func (l Lease) LastSent() (time.Duration, bool) { return l.sent, l.granted }

// Proofs is a voter's memory of the terms that it confirmed, for proof rounds and in reports (Carried). It lives as long as the
// process: one that starts takes it that it confirmed an older term just before.
type Proofs struct {
	since time.Duration // start of the process
	term  id.Term       // last confirmed
	at    time.Duration // when
	older time.Duration // when a term before that was last confirmed; 0: not since the start
}

// NewProofs is the memory of a voter process that starts at now.
func NewProofs(now time.Duration) Proofs { return Proofs{since: now} }

// Confirm notes that the voter confirmed a term at now, and returns how long ago it last confirmed an older one. The caller
// has found the voter in that term before the call and looks again after it: a confirmation that is overtaken by another
// term does not count, but is in the memory before anybody can confirm the later term.
func (p *Proofs) Confirm(term id.Term, now time.Duration) (sinceOlder time.Duration) {
	if term > p.term {
		if p.term != 0 {
			p.older = p.at
		}
		p.term = term
	}
	p.at = max(p.at, now)
	return max(now-max(p.older, p.since), 0)
}

// Carried says whether the vote that came with a report is, together with the leader's own confirmation of its term, the
// proof of leadership that the answer needs, so that no voter need be asked. voted is the term that the sender confirmed
// after the moment from which its lease counts, 0 for none; leads is the leader's term, and voters are the members of the Raft
// configuration that vote. With up to three the sender and the leader are a quorum; both were in the term when the sender
// voted, so no later one had a leader then, and every later leader asks one of the two how long ago that was.
func Carried[T comparable](voted, leads id.Term, sender, leader T, voters []T) bool {
	return voted != 0 && voted == leads && sender != leader && len(voters) <= 3 &&
		slices.Contains(voters, sender) && slices.Contains(voters, leader)
}

// Book is what the Raft leader of one term knows about the brokers' leases. It begins with the term and ends with it.
type Book struct {
	started time.Duration // when this leader could hear reports
	floor   time.Duration // no lease of an earlier leader comes from a report sent after this
	barrier id.Index      // a broker that has not applied this may not know elections of earlier terms
	entries map[id.BrokerID]*entry
}

type entry struct {
	heard   time.Duration // 0: not heard in this term
	applied id.Index
	need    id.Index // no lease before the broker has applied this
	holds   int      // commands under way that take leadership from the broker
}

// NewBook begins a term's book. now is when the leader began to listen, youngest the age of the youngest proof that a
// quorum of voters (this one included) answered in earlier terms, each taken at the moment its reply came; barrier is the
// index of the first entry of the term.
func NewBook(now, youngest time.Duration, barrier id.Index) *Book {
	return &Book{started: now, floor: now - youngest, barrier: barrier, entries: map[id.BrokerID]*entry{}}
}

func (b *Book) entry(broker id.BrokerID) *entry {
	e := b.entries[broker]
	if e == nil {
		e = &entry{need: b.barrier}
		b.entries[broker] = e
	}
	return e
}

// Heard notes a report that arrived at now from the current incarnation of a broker. applied is the index up to which the
// broker's partitions follow the state.
func (b *Book) Heard(broker id.BrokerID, applied id.Index, now time.Duration) {
	e := b.entry(broker)
	e.heard, e.applied = max(e.heard, now), max(e.applied, applied)
}

// MayGrant says whether the answer to a report may carry a lease: only to a broker that knows every election that took
// a partition from it, and while no such command is under way. The caller has proved its leadership since the report came.
func (b *Book) MayGrant(broker id.BrokerID, applied id.Index) bool {
	e := b.entry(broker)
	return e.holds == 0 && applied >= e.need
}

// Hold stops leases of a broker before a command that takes leadership from it (or fences it) is proposed. The returned
// function ends the hold: with the index at which the command was applied, or 0 when it surely never will be.
func (b *Book) Hold(broker id.BrokerID) (done func(applied id.Index)) {
	e := b.entry(broker)
	e.holds++
	ended := false
	return func(applied id.Index) {
		if ended {
			return
		}
		ended = true
		e.holds--
		e.need = max(e.need, applied)
	}
}

// Need stops leases of a broker until it has applied an index: an entry there took leadership from it.
func (b *Book) Need(broker id.BrokerID, index id.Index) {
	e := b.entry(broker)
	e.need = max(e.need, index)
}

// SilentAt returns when a broker's lease has surely ended if nothing more is heard from it: the time to fence it.
func (b *Book) SilentAt(broker id.BrokerID) time.Duration {
	heard := b.floor
	if e := b.entries[broker]; e != nil && e.heard > 0 {
		heard = e.heard
	}
	return max(heard+FenceAfter, b.started+Settle)
}

// Silent reports whether the time of SilentAt has come.
func (b *Book) Silent(broker id.BrokerID, now time.Duration) bool { return now >= b.SilentAt(broker) }

// Applied returns the highest index that a broker reported in this term; false when it has not reported.
func (b *Book) Applied(broker id.BrokerID) (id.Index, bool) {
	e := b.entries[broker]
	if e == nil || e.heard == 0 {
		return 0, false
	}
	return e.applied, true
}

// Registered notes that a registration of the broker was applied at now: it is as good as a report, from an incarnation that
// has reported no index yet.
func (b *Book) Registered(broker id.BrokerID, now time.Duration) {
	e := b.entry(broker)
	e.heard, e.applied = max(e.heard, now), 0
}

// HeardFrom returns when a broker was last heard in this term; the earliest possible time before the first.
func (b *Book) HeardFrom(broker id.BrokerID) time.Duration {
	if e := b.entries[broker]; e != nil && e.heard > 0 {
		return e.heard
	}
	return b.floor
}

// Restart notes that this leader was stopped until now: it could hear nobody, and gives everybody time to report.
func (b *Book) Restart(now time.Duration) { b.started = max(b.started, now) }
