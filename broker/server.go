package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/barnabas-mq/barnabas/internal/loglimit"
)

// Server answers Kafka clients on any number of listeners. New starts nothing; Serve runs one listener; Stop ends all.
type Server struct {
	cfg    Config
	deps   Deps
	apis   map[int16]*api
	sorted []api // by key, as ApiVersions lists them
	log    *slog.Logger
	budget *budget
	pids   producerIDs
	lines  loglimit.Limit[lineKind]

	ctx    context.Context // of all connections; ends with Stop
	cancel context.CancelCauseFunc
	nextID atomic.Uint64
	paused atomic.Int64 // fetches of partitions, see Paused

	mu        sync.Mutex
	stopped   bool
	listeners map[net.Listener]struct{}
	conns     map[*conn]struct{}
	running   sync.WaitGroup // Serve calls and connections
}

// ErrStopped is the cause of contexts that end with the server.
var ErrStopped = errors.New("the broker is stopping")

// New checks the configuration and returns a Server that does not run yet.
func New(cfg Config, deps Deps) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := errors.Join(cfg.validate(), deps.validate()); err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, deps: deps, apis: map[int16]*api{}, sorted: served(), log: cfg.Logger, budget: newBudget(cfg.QueuedMaxBytes),
		listeners: map[net.Listener]struct{}{}, conns: map[*conn]struct{}{}, pids: newProducerIDs(),
	}
	for i := range s.sorted {
		s.apis[s.sorted[i].key] = &s.sorted[i]
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	return s, nil
}

// Serve accepts connections until Stop, which makes it return nil, or until the listener fails for good. name is the listener's
// name (as in listeners=): it decides which address of each broker its clients are told. Serve closes ln.
func (s *Server) Serve(ln net.Listener, name string) error {
	s.mu.Lock()
	if s.stopped {
		s.mu.Unlock()
		_ = ln.Close()
		return nil
	}
	s.listeners[ln] = struct{}{}
	s.running.Add(1)
	s.mu.Unlock()
	defer s.running.Done()
	defer func() {
		s.mu.Lock()
		delete(s.listeners, ln)
		s.mu.Unlock()
		_ = ln.Close()
	}()
	backoff := time.Millisecond
	for {
		nc, err := ln.Accept()
		switch {
		case s.ctx.Err() != nil:
			if err == nil {
				_ = nc.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("broker: listener %s at %s: %w", name, ln.Addr(), err)
		case err != nil: // out of file descriptors, a client that is gone already: it passes
			s.log.Warn("broker: accept failed; trying again", "listener", name, "err", err, "in", backoff)
			select {
			case <-time.After(backoff):
			case <-s.ctx.Done():
			}
			backoff = min(2*backoff, time.Second)
			continue
		}
		backoff = time.Millisecond
		s.admit(nc, name)
	}
}

func (s *Server) admit(nc net.Conn, listener string) {
	c := newConn(s, nc, listener)
	s.mu.Lock()
	if s.stopped {
		s.mu.Unlock()
		_ = nc.Close()
		return
	}
	s.conns[c] = struct{}{}
	s.running.Add(1)
	s.mu.Unlock()
	s.cfg.Metrics.Connections(1)
	go func() {
		defer s.running.Done()
		c.serve(s.ctx)
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		s.cfg.Metrics.Connections(-1)
	}()
}

// Stop closes the listeners and every connection, frees parked requests, and returns when all goroutines of this Server have
// ended. What was being answered is unknown to its client, as with any broken connection. It may be called repeatedly.
func (s *Server) Stop() {
	s.mu.Lock()
	s.stopped = true
	s.cancel(ErrStopped)
	for ln := range s.listeners {
		_ = ln.Close()
	}
	for c := range s.conns {
		_ = c.net.Close()
	}
	s.mu.Unlock()
	s.running.Wait()
}

// Connections is how many clients are connected.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}
