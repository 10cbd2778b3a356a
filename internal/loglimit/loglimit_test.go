package loglimit

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestLinesAreLimitedPerFault(t *testing.T) {
	type fault struct {
		host, why string
		n         int
	}
	var l Limit[fault]
	now := time.Unix(1000, 0)
	k := fault{host: "h", why: "truncated"}
	written := 0
	for range 1000 {
		if _, ok := l.Allow(k, now); ok {
			written++
		}
	}
	if written != Burst {
		t.Errorf("%d lines at once", written)
	}
	if _, ok := l.Allow(fault{host: "other", why: "truncated"}, now); !ok {
		t.Error("another host is silenced")
	}
	if skipped, ok := l.Allow(k, now.Add(Every)); !ok || skipped != 1000-Burst {
		t.Errorf("a second later: %v, %d left out", ok, skipped)
	}
	if _, ok := l.Allow(k, now.Add(Every)); ok {
		t.Error("two lines in a second")
	}
	for i := range 3 * maxKinds {
		l.Allow(fault{n: i}, now)
	}
	if len(l.kinds) > maxKinds {
		t.Errorf("%d kinds are remembered", len(l.kinds))
	}
}

func TestALineTellsWhatWasLeftOut(t *testing.T) {
	var out bytes.Buffer
	var l Limit[string]
	log, now := slog.New(slog.NewTextHandler(&out, nil)), time.Unix(1000, 0)
	for range Burst + 7 {
		l.Log(log, slog.LevelWarn, "k", now, "closed", "from", "h")
	}
	if n := strings.Count(out.String(), "level=WARN msg=closed from=h\n"); n != Burst {
		t.Errorf("%d lines at once:\n%s", n, out.String())
	}
	out.Reset()
	l.Log(log, slog.LevelWarn, "k", now.Add(Every), "closed", "from", "h")
	if !strings.HasSuffix(out.String(), "msg=closed from=h left_out=7\n") {
		t.Errorf("a second later: %q", out.String())
	}
}
