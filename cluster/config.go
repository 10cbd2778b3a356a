package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
)

// MaxPayload is the largest payload of a request or a reply, in bytes (a replica fetch of large batches).
const MaxPayload = 64 << 20

// Config describes one node's cluster port.
type Config struct {
	// Listen is the address to bind, "host:port"; port 0 takes a free one (see Cluster.Addr). Default "0.0.0.0:7946".
	Listen string
	// Advertise is the "host:port" that peers dial; empty means the bound address.
	Advertise string
	// Directory is this data directory's id. Required.
	Directory id.DirectoryID
	// ClusterID is empty until this node belongs to a cluster (SetClusterID tells it later).
	ClusterID string
	// Incarnation names this run of the process among runs of the same directory; random, never 0.
	Incarnation uint64
	// Version is the build's version, MinLevel and MaxLevel the feature levels it can serve.
	Version            string
	MinLevel, MaxLevel uint32

	// DialTimeout bounds connecting and the handshake. Default 1 s.
	DialTimeout time.Duration
	// WriteTimeout closes a connection whose peer takes nothing for so long. Default 10 s.
	WriteTimeout time.Duration
	// MaxCalls is how many calls one peer may have running or parked on one connection here. Default 16384.
	MaxCalls int
	// MaxQueuedBytes is when a sender on one connection has to wait for the socket. Default 4 MiB.
	MaxQueuedBytes int

	// Dial and NewListener open connections; they are where TLS goes and where tests cut. Defaults: TCP.
	Dial        func(ctx context.Context, addr string) (net.Conn, error)
	NewListener func(addr string) (net.Listener, error)

	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.Listen == "" {
		c.Listen = "0.0.0.0:7946"
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = time.Second
	}
	if c.WriteTimeout == 0 {
		c.WriteTimeout = 10 * time.Second
	}
	if c.MaxCalls == 0 {
		c.MaxCalls = 16384
	}
	if c.MaxQueuedBytes == 0 {
		c.MaxQueuedBytes = 4 << 20
	}
	keepAlive := net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: time.Second, Count: 5}
	if c.Dial == nil {
		d := &net.Dialer{KeepAliveConfig: keepAlive}
		c.Dial = func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }
	}
	if c.NewListener == nil {
		lc := net.ListenConfig{KeepAliveConfig: keepAlive}
		c.NewListener = func(addr string) (net.Listener, error) { return lc.Listen(context.Background(), "tcp", addr) }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if c.Directory == "" {
		errs = append(errs, errors.New("Directory is empty: give the data directory's id"))
	}
	if c.Incarnation == 0 {
		errs = append(errs, errors.New("Incarnation is 0: give a random number"))
	}
	if c.MinLevel > c.MaxLevel {
		errs = append(errs, fmt.Errorf("MinLevel %d is above MaxLevel %d", c.MinLevel, c.MaxLevel))
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		errs = append(errs, fmt.Errorf("Listen %q: want host:port: %w", c.Listen, err))
	}
	if c.Advertise != "" {
		if _, _, err := net.SplitHostPort(c.Advertise); err != nil {
			errs = append(errs, fmt.Errorf("Advertise %q: want host:port: %w", c.Advertise, err))
		}
	}
	for name, v := range map[string]int{"MaxCalls": c.MaxCalls, "MaxQueuedBytes": c.MaxQueuedBytes,
		"DialTimeout": int(c.DialTimeout), "WriteTimeout": int(c.WriteTimeout)} {
		if v < 0 {
			errs = append(errs, fmt.Errorf("%s is negative", name))
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("cluster: %w", errors.Join(errs...))
	}
	return nil
}
