package zkcompat_test

import (
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/barnabas-mq/barnabas/internal/loglimit"
	"github.com/barnabas-mq/barnabas/internal/testtool"
	"github.com/barnabas-mq/barnabas/zkcompat"
	"github.com/barnabas-mq/barnabas/zkcompat/jute"
)

// A client that sends garbage for ever must not fill the log, nor must one that is closed for it in a session.
func TestBadConnectionsDoNotFillTheLog(t *testing.T) {
	var log testtool.Log
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
	if n := strings.Count(log.String(), "connection ended"); n < 1 || n > most {
		t.Errorf("%d bad connections wrote %d lines, %d are the most", many, n, most)
	}
	c := dialRaw(t, addr)
	if err := c.handshake(jute.ConnectRequest{TimeoutMs: 10_000, Password: make([]byte, 16)}); err != nil {
		t.Fatal(err)
	}
	before := strings.Count(log.String(), "connection ended")
	if _, err := c.nc.Write([]byte{0x7f, 0, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
	_, _ = io.ReadAll(c.nc)
	for deadline := time.Now().Add(time.Minute); strings.Count(log.String(), "connection ended") == before; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a client in a session is silenced by those without one")
		}
	}
}
