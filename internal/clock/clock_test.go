package clock

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// Leases are measured by a clock that goes on while the machine is suspended. A time namespace stands for a suspend of a day: it
// moves CLOCK_BOOTTIME and leaves CLOCK_MONOTONIC alone. Where the kernel gives none, only the clock's order is looked at.
func TestBootCountsSuspend(t *testing.T) {
	const tell = "BARNABAS_TEST_TELL_BOOT"
	if os.Getenv(tell) != "" {
		fmt.Printf("boot=%d\n", System{}.Boot())
		return
	}
	before := System{}.Boot()
	if before <= 0 {
		t.Fatalf("%v since boot", before)
	}
	cmd := exec.Command("unshare", "--user", "--map-root-user", "--time", "--boottime", "86400", "--fork", os.Args[0], "-test.run=^TestBootCountsSuspend$")
	cmd.Env = append(os.Environ(), tell+"=1")
	out, err := cmd.CombinedOutput()
	var later time.Duration
	if _, rest, ok := strings.Cut(string(out), "boot="); !ok {
		t.Logf("no time namespace here: %v %s", err, out)
		later = System{}.Boot()
	} else if _, err := fmt.Sscan(rest, (*int64)(&later)); err != nil {
		t.Fatal(err, string(out))
	} else {
		later -= 24 * time.Hour
	}
	if later < before || later > (System{}).Boot() {
		t.Errorf("%v since boot, then %v", before, later)
	}
}
