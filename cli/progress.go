package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// progress draws one line that is overwritten, on a person's terminal only, once the work has taken two seconds.
type progress struct {
	w     io.Writer
	draw  func(elapsed time.Duration) string
	stop  chan struct{}
	done  sync.WaitGroup
	shown bool
}

// newProgress starts to draw when w is a terminal. draw is called from another goroutine. Close it.
func newProgress(w io.Writer, draw func(elapsed time.Duration) string) *progress {
	p := &progress{w: w, draw: draw, stop: make(chan struct{})}
	if isTerminal(w) {
		p.done.Go(p.run)
	}
	return p
}

func (p *progress) run() {
	begin := time.Now()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-tick.C:
			if elapsed := time.Since(begin); elapsed > 2*time.Second {
				fmt.Fprintf(p.w, "\r\x1b[K%s", p.draw(elapsed))
				p.shown = true
			}
		}
	}
}

// close removes the line.
func (p *progress) close() {
	close(p.stop)
	p.done.Wait()
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// bar draws a share between 0 and 1.
func bar(share float64) string {
	const width = 30
	n := min(max(int(share*width), 0), width)
	return "[" + strings.Repeat("=", n) + strings.Repeat(" ", width-n) + "]"
}

// thousands writes 1234567 as 1,234,567.
func thousands(n int64) string {
	s := fmt.Sprint(n)
	neg := strings.HasPrefix(s, "-")
	s = strings.TrimPrefix(s, "-")
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	if neg {
		return "-" + s
	}
	return s
}
