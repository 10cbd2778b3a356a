package main

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// show is the progress line: overwritten on a terminal, one line every five seconds otherwise.
type show struct {
	total    int64
	begin    time.Time
	last     time.Time
	terminal bool
	drawn    bool
}

func newShow(total int64) *show {
	_, err := unix.IoctlGetTermios(int(os.Stdout.Fd()), unix.TCGETS)
	return &show{total: total, begin: time.Now(), terminal: err == nil}
}

func (s *show) update(sent, acked, received int64) {
	every := 5 * time.Second
	if s.terminal {
		every = 200 * time.Millisecond
	}
	if time.Since(s.last) < every {
		return
	}
	s.last = time.Now()
	line := fmt.Sprintf("%5.1f s  %3d %%  sent %s  acked %s  received %s", time.Since(s.begin).Seconds(), received*100/max(s.total, 1),
		comma(sent), comma(acked), comma(received))
	if s.terminal {
		fmt.Printf("\r\x1b[K%s", line)
		s.drawn = true
		return
	}
	fmt.Println(line)
}

// event is a line that stays.
func (s *show) event(format string, args ...any) {
	s.end()
	fmt.Printf("%5.1f s  %s\n", time.Since(s.begin).Seconds(), fmt.Sprintf(format, args...))
}

func (s *show) end() {
	if s.drawn {
		fmt.Print("\r\x1b[K")
		s.drawn = false
	}
}

// comma writes 1234567 as 1,234,567.
func comma(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
