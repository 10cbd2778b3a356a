// Package loglimit limits what the log is told about a fault that comes again and again: a client that reconnects for ever must not
// fill the disk.
package loglimit

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Lines that one kind of fault may write at once, and how often one more is allowed.
const (
	Burst = 10
	Every = time.Second
	// maxKinds bounds what is remembered.
	maxKinds = 4096
)

// Limit decides which lines are written. K is the kind of a fault: who causes it and what it is, without what changes from one
// time to the next. The zero value is ready; all may call it.
type Limit[K comparable] struct {
	mu    sync.Mutex
	kinds map[K]*kind
}

type kind struct {
	full    time.Time // when all of Burst is allowed again
	skipped int
}

// Allow says whether to write a line now, and how many of its kind were left out since the last.
func (l *Limit[K]) Allow(k K, now time.Time) (skipped int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.kinds[k]
	if s == nil {
		if l.kinds == nil || len(l.kinds) >= maxKinds {
			l.kinds = map[K]*kind{}
		}
		s = &kind{full: now}
		l.kinds[k] = s
	}
	if s.full.Before(now) {
		s.full = now
	}
	if s.full.Sub(now) > (Burst-1)*Every {
		s.skipped++
		return 0, false
	}
	s.full = s.full.Add(Every)
	skipped, s.skipped = s.skipped, 0
	return skipped, true
}

// Log writes a line of the kind, if one is allowed now, with the number of those left out since the last as "left_out".
func (l *Limit[K]) Log(log *slog.Logger, level slog.Level, k K, now time.Time, msg string, args ...any) {
	skipped, ok := l.Allow(k, now)
	if !ok {
		return
	}
	if skipped > 0 {
		args = append(args, "left_out", skipped)
	}
	log.Log(context.Background(), level, msg, args...)
}
