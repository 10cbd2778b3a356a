package clock

import "time"

// Beat is a ticker whose ticks fall on the multiples of its period since boot, so that all that a machine does at
// intervals happens in the same moment: waking up is most of what an idle node costs. One goroutine uses it.
type Beat struct {
	C     <-chan time.Time
	timer *time.Timer
	clock Clock
	every time.Duration
}

// NewBeat begins with the next multiple of every, which must be above 0; without a clock, after every. Stop it when it is not needed any more.
func NewBeat(c Clock, every time.Duration) *Beat {
	t := time.NewTimer(UntilBeat(c, every))
	return &Beat{C: t.C, timer: t, clock: c, every: every}
}

// Next arms the beat again after a tick was received. A timer that was a little early is not taken for a new tick.
func (b *Beat) Next() {
	d := UntilBeat(b.clock, b.every)
	if d < b.every/8 {
		d += b.every
	}
	b.timer.Reset(d)
}

// Stop ends the ticks.
func (b *Beat) Stop() { b.timer.Stop() }

// UntilBeat is the time until the next multiple of every since boot; every without a clock.
func UntilBeat(c Clock, every time.Duration) time.Duration {
	if c == nil {
		return every
	}
	return every - c.Boot()%every
}
