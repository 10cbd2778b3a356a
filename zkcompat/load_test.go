package zkcompat_test

import (
	"testing"

	"github.com/barnabas-mq/barnabas/zkcompat"
	"github.com/barnabas-mq/barnabas/zkcompat/jute"
)

// A client that reads without a pause is slowed down, one that does not is not.
func TestSpinningReads(t *testing.T) {
	t.Parallel()
	s, addr := serve(t, newMemBackend(), func(c *zkcompat.Config) { c.ReadRate, c.ReadBurst = 1, 97 })
	calm, spins := session(t, addr), session(t, addr)
	for range 100 {
		spins.must(jute.OpExists, &jute.PathWatch{Path: "/"})
	}
	calm.must(jute.OpExists, &jute.PathWatch{Path: "/"})
	// 97 at once, three at one a second: they waited, unless the machine was as slow by itself.
	st := s.Stats()
	t.Logf("%d reads were held for %s", st.Slowed, st.SlowedFor)
	if st.Slowed == 0 || st.Slowed > 3 {
		t.Errorf("%d of 100 reads were held", st.Slowed)
	}
}
