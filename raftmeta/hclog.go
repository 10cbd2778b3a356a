package raftmeta

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// hclogAdapter lets raft and its stores log to slog. hclog goes no further than this package.
//
// raft reports every failed attempt of every retry: a warning or error with the same text is passed on at most once in
// hclogPause, with the number left out. None of its messages is fatal (what is comes back as an error), so the highest
// level is Warn. What belongs to a healthy cluster is Debug: see harmless.
type hclogAdapter struct {
	log  *slog.Logger
	name string
	args []any
	lim  *hclogLimit
}

const hclogPause = 5 * time.Second

type hclogLimit struct {
	mu   sync.Mutex
	last map[string]*hclogSeen
}

type hclogSeen struct {
	at   time.Time
	left int
}

// pass says whether a message may go now, and how many like it were left out since the last.
func (l *hclogLimit) pass(msg string, now time.Time) (left int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.last[msg]
	if s == nil {
		l.last[msg] = &hclogSeen{at: now} // raft's texts are constants: there are few
		return 0, true
	}
	if now.Sub(s.at) < hclogPause {
		s.left++
		return 0, false
	}
	left, s.left, s.at = s.left, 0, now
	return left, true
}

var _ hclog.Logger = (*hclogAdapter)(nil)

func newHclog(l *slog.Logger, name string) hclog.Logger {
	return &hclogAdapter{log: l.With("from", name), name: name, lim: &hclogLimit{last: map[string]*hclogSeen{}}}
}

func slogLevel(l hclog.Level) slog.Level {
	switch l {
	case hclog.Trace:
		return slog.LevelDebug - 4
	case hclog.Debug:
		return slog.LevelDebug
	case hclog.Warn, hclog.Error:
		return slog.LevelWarn
	default:
		return slog.LevelInfo
	}
}

func (a *hclogAdapter) Log(l hclog.Level, msg string, args ...any) {
	ctx, level := context.Background(), slogLevel(l)
	if !a.log.Enabled(ctx, level) {
		return
	}
	args = plain(args)
	if level == slog.LevelWarn && harmless(msg, args) {
		if level = slog.LevelDebug; !a.log.Enabled(ctx, level) {
			return
		}
	}
	if level == slog.LevelWarn {
		left, ok := a.lim.pass(msg, time.Now())
		if !ok {
			return
		}
		if left > 0 {
			args = append(args, "left_out", left)
		}
	}
	a.log.Log(ctx, level, msg, args...)
}

// harmless says whether a warning of raft's tells of nothing but our own ways: a commit push that overtook its entry (it
// is repeated, and left to raft after that), an address that the address book does not have yet (raft then takes the one
// of its configuration), and connections that this node closed itself when it stopped or when raft opened again.
func harmless(msg string, args []any) bool {
	switch msg {
	case "failed to get previous log", "unable to get address for server, using fallback address":
		return true
	}
	return slices.ContainsFunc(args, func(a any) bool {
		err, ok := a.(error)
		return ok && errors.Is(err, net.ErrClosed)
	})
}

// plain renders hclog's own value types, which slog does not know.
func plain(args []any) []any {
	args = slices.Clone(args)
	for i, v := range args {
		if f, ok := v.(hclog.Format); ok && len(f) > 0 {
			if format, ok := f[0].(string); ok {
				args[i] = fmt.Sprintf(format, f[1:]...)
			}
		}
	}
	return args
}

func (a *hclogAdapter) Trace(msg string, args ...any) { a.Log(hclog.Trace, msg, args...) }
func (a *hclogAdapter) Debug(msg string, args ...any) { a.Log(hclog.Debug, msg, args...) }
func (a *hclogAdapter) Info(msg string, args ...any)  { a.Log(hclog.Info, msg, args...) }
func (a *hclogAdapter) Warn(msg string, args ...any)  { a.Log(hclog.Warn, msg, args...) }
func (a *hclogAdapter) Error(msg string, args ...any) { a.Log(hclog.Error, msg, args...) }

func (a *hclogAdapter) enabled(l hclog.Level) bool {
	return a.log.Enabled(context.Background(), slogLevel(l))
}
func (a *hclogAdapter) IsTrace() bool      { return a.enabled(hclog.Trace) }
func (a *hclogAdapter) IsDebug() bool      { return a.enabled(hclog.Debug) }
func (a *hclogAdapter) IsInfo() bool       { return a.enabled(hclog.Info) }
func (a *hclogAdapter) IsWarn() bool       { return a.enabled(hclog.Warn) }
func (a *hclogAdapter) IsError() bool      { return a.enabled(hclog.Error) }
func (a *hclogAdapter) ImpliedArgs() []any { return a.args }
func (a *hclogAdapter) Name() string       { return a.name }
func (a *hclogAdapter) SetLevel(hclog.Level) {
	// the slog handler decides
}
func (a *hclogAdapter) GetLevel() hclog.Level { return hclog.NoLevel }

func (a *hclogAdapter) With(args ...any) hclog.Logger {
	return &hclogAdapter{log: a.log.With(plain(args)...), name: a.name, lim: a.lim, args: append(a.args[:len(a.args):len(a.args)], args...)}
}
func (a *hclogAdapter) Named(n string) hclog.Logger {
	return &hclogAdapter{log: a.log.With("part", n), name: a.name + "." + n, args: a.args, lim: a.lim}
}
func (a *hclogAdapter) ResetNamed(n string) hclog.Logger { return newHclog(a.log, n) }
func (a *hclogAdapter) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return slog.NewLogLogger(a.log.Handler(), slog.LevelInfo)
}
func (a *hclogAdapter) StandardWriter(o *hclog.StandardLoggerOptions) io.Writer {
	return a.StandardLogger(o).Writer()
}
