package minds

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/barnabas-mq/barnabas/cluster"
	"github.com/barnabas-mq/barnabas/internal/clock"
	"github.com/barnabas-mq/barnabas/internal/id"
)

const (
	waitsEvery   = 200 * time.Millisecond
	probeTimeout = 500 * time.Millisecond
	suspectEvery = 50 * time.Millisecond // at most so often is one broker probed anew
)

// probePauses are between probes of one suspect: a process that is dying may still accept for a moment.
var probePauses = []time.Duration{0, 5 * time.Millisecond, 20 * time.Millisecond, 80 * time.Millisecond, 200 * time.Millisecond}

// DeathsConfig is what a Deaths needs; Clock, Waits and Log may be nil.
type DeathsConfig struct {
	Views Views
	Clock clock.Clock // with it, Waits is asked on the beat of the broker's reports
	// Probe asks whether a directory's port refuses connections: cluster.ErrRefused is proof of death.
	Probe func(ctx context.Context, d id.DirectoryID) error
	// Dead takes each proof. It must not block.
	Dead func(id.BrokerID, id.BrokerEpoch)
	// Waits names the brokers that somebody here waits for until they are proven dead.
	Waits func() []id.BrokerID
	Log   *slog.Logger
}

// Deaths finds proof that brokers are dead.
type Deaths struct {
	cfg  DeathsConfig
	wake chan struct{} // buffered 1

	mu       sync.Mutex
	suspects []id.BrokerID
	probing  map[id.BrokerID]bool
}

// NewDeaths starts nothing.
func NewDeaths(cfg DeathsConfig) *Deaths {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Deaths{cfg: cfg, wake: make(chan struct{}, 1), probing: map[id.BrokerID]bool{}}
}

// PeerLost is told of ended connections (cluster.OnPeerLost). It does not block.
func (d *Deaths) PeerLost(p cluster.Peer) {
	if p.Member && p.Broker >= 0 {
		d.Suspect(p.Broker)
	}
}

// Suspect has a broker probed, unless that is under way. It does not block.
func (d *Deaths) Suspect(b id.BrokerID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.probing[b] {
		return
	}
	d.probing[b] = true
	d.suspects = append(d.suspects, b)
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Run probes until ctx ends.
func (d *Deaths) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	beat := clock.NewBeat(d.cfg.Clock, waitsEvery)
	defer beat.Stop()
	for {
		d.mu.Lock()
		suspects := d.suspects
		d.suspects = nil
		d.mu.Unlock()
		for _, b := range suspects {
			wg.Go(func() {
				d.probe(ctx, b)
				sleep(ctx, suspectEvery)
				d.mu.Lock()
				delete(d.probing, b)
				d.mu.Unlock()
			})
		}
		select {
		case <-ctx.Done():
			return nil
		case <-d.wake:
		case <-beat.C:
			beat.Next()
			if d.cfg.Waits != nil {
				for _, b := range d.cfg.Waits() {
					d.Suspect(b)
				}
			}
		}
	}
}

// probe asks until there is proof, an answer, or no more sense in asking.
func (d *Deaths) probe(ctx context.Context, b id.BrokerID) {
	for _, pause := range probePauses {
		if !sleep(ctx, pause) {
			return
		}
		// The epoch is read before the probe: the process that had it, or an earlier one, listened at the address.
		row, ok := d.cfg.Views.View().Broker(b)
		if !ok {
			return
		}
		probe, cancel := context.WithTimeout(ctx, probeTimeout)
		err := d.cfg.Probe(probe, row.Directory)
		cancel()
		switch {
		case err == nil:
			return
		case errors.Is(err, cluster.ErrRefused):
			d.cfg.Log.Info("a broker's port refuses connections: it is dead", "broker", b, "epoch", row.Epoch)
			d.cfg.Dead(b, row.Epoch)
			return
		}
	}
}

// sleep waits; false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
