package raftmeta

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// hclogAdapter lets raft and its stores log to slog. hclog goes no further than this package.
type hclogAdapter struct {
	log  *slog.Logger
	name string
	args []any
}

var _ hclog.Logger = (*hclogAdapter)(nil)

func newHclog(l *slog.Logger, name string) hclog.Logger {
	return &hclogAdapter{log: l.With("from", name), name: name}
}

func slogLevel(l hclog.Level) slog.Level {
	switch l {
	case hclog.Trace:
		return slog.LevelDebug - 4
	case hclog.Debug:
		return slog.LevelDebug
	case hclog.Warn:
		return slog.LevelWarn
	case hclog.Error:
		return slog.LevelError
	default:
		return slog.LevelInfo
	}
}

func (a *hclogAdapter) Log(l hclog.Level, msg string, args ...any) {
	if ctx := context.Background(); a.log.Enabled(ctx, slogLevel(l)) {
		a.log.Log(ctx, slogLevel(l), msg, plain(args)...)
	}
}

// plain renders hclog's own value types, which slog does not know.
func plain(args []any) []any {
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
	return &hclogAdapter{log: a.log.With(plain(args)...), name: a.name, args: append(a.args[:len(a.args):len(a.args)], args...)}
}
func (a *hclogAdapter) Named(n string) hclog.Logger {
	return &hclogAdapter{log: a.log.With("part", n), name: a.name + "." + n, args: a.args}
}
func (a *hclogAdapter) ResetNamed(n string) hclog.Logger { return newHclog(a.log, n) }
func (a *hclogAdapter) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return slog.NewLogLogger(a.log.Handler(), slog.LevelInfo)
}
func (a *hclogAdapter) StandardWriter(o *hclog.StandardLoggerOptions) io.Writer {
	return a.StandardLogger(o).Writer()
}
