package controller

import (
	"cmp"
	"slices"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// sessions is when each ZooKeeper session was last heard of.
type sessions struct {
	rows map[id.SessionID]*session
	next time.Duration // no session expires before; 0: unknown
}

type session struct {
	id       id.SessionID
	touched  time.Duration
	timeout  time.Duration
	attach   uint64
	expiring bool // a command is on its way
}

func newSessions() sessions { return sessions{rows: map[id.SessionID]*session{}} }

// put takes in a session that was created, attached or found at the begin of a term: it counts as touched.
func (s *sessions) put(row *state.Session, now time.Duration) {
	r := s.rows[row.ID]
	if r == nil {
		r = &session{id: row.ID}
		s.rows[row.ID] = r
	}
	r.touched, r.timeout, r.attach = max(r.touched, now), time.Duration(row.TimeoutMs)*time.Millisecond, row.AttachEpoch
	s.next = 0
}

func (s *sessions) remove(i id.SessionID) { delete(s.rows, i) }

func (s *sessions) touch(i id.SessionID, now time.Duration) {
	if r := s.rows[i]; r != nil {
		r.touched = max(r.touched, now)
	}
}

// silence is for how long nothing has been heard of a session; 0 for one that is not there.
func (s *sessions) silence(i id.SessionID, now time.Duration) time.Duration {
	if r := s.rows[i]; r != nil {
		return max(now-r.touched, 0)
	}
	return 0
}

// restart gives every session its whole timeout again.
func (s *sessions) restart(now time.Duration) {
	for _, r := range s.rows {
		r.touched = max(r.touched, now)
	}
	s.next = 0
}

// again takes in that an expiry is not on its way any more. One that was decided and did not end the session met a client
// that came back.
func (s *sessions) again(i id.SessionID, decided bool, now time.Duration) {
	if r := s.rows[i]; r != nil {
		r.expiring = false
		if decided {
			r.touched = max(r.touched, now)
		}
		s.next = 0
	}
}

// expired returns the sessions whose time is up, in the order of their ids, and when to look again; 0 if there are none.
// Touches only move deadlines later, so nothing is looked at before the earliest one known.
func (s *sessions) expired(now time.Duration) (due []*session, next time.Duration) {
	if len(s.rows) == 0 {
		return nil, 0
	}
	if s.next > now {
		return nil, s.next
	}
	for _, r := range s.rows {
		switch end := r.touched + r.timeout; {
		case r.expiring:
		case now >= end:
			r.expiring = true
			due = append(due, r)
		case next == 0 || end < next:
			next = end
		}
	}
	slices.SortFunc(due, func(a, b *session) int { return cmp.Compare(a.id, b.id) })
	s.next = next
	return due, next
}
