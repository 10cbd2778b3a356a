package broker

import (
	"sync"
	"time"
)

// Lines that one kind of fault may write at once, and how often one more is allowed: a client that reconnects for ever must not
// fill the log.
const (
	lineBurst = 10
	lineEvery = time.Second
	// lineKinds bounds what is remembered.
	lineKinds = 4096
)

// lineLimit decides which lines are written. The zero value is ready.
type lineLimit struct {
	mu    sync.Mutex
	kinds map[lineKind]*lineState
}

// lineKind is one host's one fault.
type lineKind struct {
	host, why    string
	key, version int16
}

type lineState struct {
	full    time.Time // when all of lineBurst is allowed again
	skipped int
}

// allow says whether to write a line now, and how many of its kind were left out since the last.
func (l *lineLimit) allow(k lineKind, now time.Time) (skipped int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kinds == nil || len(l.kinds) >= lineKinds {
		l.kinds = map[lineKind]*lineState{}
	}
	s := l.kinds[k]
	if s == nil {
		s = &lineState{full: now}
		l.kinds[k] = s
	}
	if s.full.Before(now) {
		s.full = now
	}
	if s.full.Sub(now) > (lineBurst-1)*lineEvery {
		s.skipped++
		return 0, false
	}
	s.full = s.full.Add(lineEvery)
	skipped, s.skipped = s.skipped, 0
	return skipped, true
}
