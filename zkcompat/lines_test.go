package zkcompat_test

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/internal/loglimit"
	"github.com/barnabas-mq/barnabas/zkcompat"
	"github.com/barnabas-mq/barnabas/zkcompat/jute"
)

// lineCount counts what is logged.
type lineCount struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lineCount) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lineCount) lines(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Count(l.text.Bytes(), []byte(what))
}

// A client that sends garbage for ever must not fill the log, nor must one that is closed for it in a session.
func TestBadConnectionsDoNotFillTheLog(t *testing.T) {
	var log lineCount
	_, addr := serve(t, newMemBackend(), func(c *zkcompat.Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	const many = 20 * loglimit.Burst
	begin := time.Now()
	for i := range many {
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		// Another length each time: what is said about it is no kind of its own.
		if _, err := nc.Write([]byte{'G', 'E', byte(i >> 8), byte(i), 0}); err != nil {
			t.Fatal(err)
		}
		_, _ = io.ReadAll(nc) // until it is closed
		_ = nc.Close()
	}
	most := loglimit.Burst + 1 + int(time.Since(begin)/loglimit.Every)
	if n := log.lines("connection ended"); n < 1 || n > most {
		t.Errorf("%d bad connections wrote %d lines, %d are the most", many, n, most)
	}
	c := dialRaw(t, addr)
	if err := c.handshake(jute.ConnectRequest{TimeoutMs: 10_000, Password: make([]byte, 16)}); err != nil {
		t.Fatal(err)
	}
	before := log.lines("connection ended")
	if _, err := c.nc.Write([]byte{0x7f, 0, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
	_, _ = io.ReadAll(c.nc)
	for deadline := time.Now().Add(time.Minute); log.lines("connection ended") == before; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a client in a session is silenced by those without one")
		}
	}
}
