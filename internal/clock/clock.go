// Package clock is the time seam. Timers use package time (testing/synctest moves it); what must not is read here.
package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// Clock reads time for one process.
type Clock interface {
	// Now is wall time; only ever shown or stored as a record's timestamp, never compared for expiry.
	Now() time.Time
	// Boot is time since boot, suspend included (CLOCK_BOOTTIME): leases and ages are measured by it.
	Boot() time.Duration
}

// System is the machine's clock.
type System struct{}

var _ Clock = System{}

// Now returns time.Now.
func (System) Now() time.Time { return time.Now() }

// Boot reads CLOCK_BOOTTIME.
func (System) Boot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("clock: CLOCK_BOOTTIME: " + err.Error())
	}
	return time.Duration(ts.Nano())
}
