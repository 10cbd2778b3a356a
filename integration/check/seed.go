package check

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Rand returns the test's source of random choices. Its seed is printed when the test fails, and BARNABAS_SEED replays it: the
// choices are the same, though what races with them is not.
func Rand(t testing.TB) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	if s := os.Getenv("BARNABAS_SEED"); s != "" {
		given, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("BARNABAS_SEED=%q is no number: %v", s, err)
		}
		seed = given
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("replay with BARNABAS_SEED=%d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}
