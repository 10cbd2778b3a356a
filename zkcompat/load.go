package zkcompat

import "time"

// bucket is how many reads a connection has left: it fills at a rate up to a burst.
type bucket struct {
	left float64
	at   time.Duration // when left was true; 0: never, it is full
}

// take takes one read and tells how long that read has to wait.
func (b *bucket) take(now time.Duration, rate, burst int) time.Duration {
	if b.at == 0 {
		b.left = float64(burst)
	} else {
		b.left = min(b.left+float64(rate)*(now-b.at).Seconds(), float64(burst))
	}
	b.at = now
	b.left--
	if b.left >= 0 {
		return 0
	}
	return time.Duration(-b.left / float64(rate) * float64(time.Second))
}

// slow holds a read of a connection that reads without pause: some old clients do, for as long as a partition has no leader or no broker
// answers them (zk-paths.md 6.9). Pings go on. False when the connection ended meanwhile.
func (c *conn) slow() bool {
	wait := c.reads.take(c.s.cfg.Clock.Boot(), c.s.cfg.ReadRate, c.s.cfg.ReadBurst)
	if wait <= 0 {
		return true
	}
	c.s.gate.RLock()
	free := c.s.tree.Unlimited(c.observer())
	c.s.gate.RUnlock()
	if free {
		c.reads.left = 0
		return true
	}
	if c.s.stats.slowed.Add(1)%1000 == 1 {
		c.warn("a client reads without a pause: it is slowed down", "rate", c.s.cfg.ReadRate)
	}
	c.s.stats.slowedFor.Add(int64(wait))
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-c.ctx.Done():
		return false
	}
}
