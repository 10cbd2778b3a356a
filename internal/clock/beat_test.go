package clock

import (
	"testing"
	"testing/synctest"
	"time"
)

type since struct{ start time.Time }

func (s since) Now() time.Time      { return time.Now() }
func (s since) Boot() time.Duration { return time.Since(s.start) + 130*time.Millisecond }

func TestBeatFallsOnMultiples(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := since{time.Now()}
		b := NewBeat(c, 200*time.Millisecond)
		defer b.Stop()
		for want := 200 * time.Millisecond; want <= 2*time.Second; want += 200 * time.Millisecond {
			<-b.C
			if got := c.Boot(); got != want {
				t.Fatalf("tick at %v, not %v", got, want)
			}
			time.Sleep(70 * time.Millisecond) // what the receiver does between ticks
			b.Next()
		}
		<-b.C
		time.Sleep(190 * time.Millisecond) // slow, and the next multiple is too near to be a tick of its own
		b.Next()
		if <-b.C; c.Boot() != 2600*time.Millisecond {
			t.Fatalf("tick at %v", c.Boot())
		}
	})
}
