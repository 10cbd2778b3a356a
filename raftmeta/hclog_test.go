package raftmeta

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
)

// What a healthy cluster's raft says is Debug; a fault stays a warning, and none is an error.
func TestHclogLevels(t *testing.T) {
	for _, c := range []struct {
		msg   string
		args  []any
		level slog.Level
	}{
		{"failed to get previous log", []any{"previous-index", 12, "error", errors.New("log not found")}, slog.LevelDebug},
		{"unable to get address for server, using fallback address", []any{"id", "x"}, slog.LevelDebug},
		{"failed to accept connection", []any{"error", fmt.Errorf("stopped: %w", net.ErrClosed)}, slog.LevelDebug},
		{"failed to decode incoming command", []any{"error", &net.OpError{Op: "read", Err: net.ErrClosed}}, slog.LevelDebug},
		{"failed to decode incoming command", []any{"error", errors.New("connection reset by peer")}, slog.LevelWarn},
		{"failed to commit logs", []any{"error", errors.New("disk full")}, slog.LevelWarn},
	} {
		var out bytes.Buffer
		l := newHclog(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})), "raft")
		l.Error(c.msg, c.args...)
		if want := "level=" + c.level.String(); !strings.Contains(out.String(), want) {
			t.Errorf("%q %v: want %s, got %q", c.msg, c.args, want, out.String())
		}
		out.Reset()
		l = newHclog(slog.New(slog.NewTextHandler(&out, nil)), "raft")
		l.Error(c.msg, c.args...)
		if shown := out.Len() > 0; shown != (c.level >= slog.LevelInfo) {
			t.Errorf("%q at level Info: %q", c.msg, out.String())
		}
	}
}
