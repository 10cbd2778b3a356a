package broker

import (
	"fmt"
	"testing"
	"time"
)

func TestLinesAreLimitedPerFault(t *testing.T) {
	var l lineLimit
	now := time.Unix(1000, 0)
	k := lineKind{host: "h", why: "truncated"}
	written := 0
	for range 1000 {
		if _, ok := l.allow(k, now); ok {
			written++
		}
	}
	if written != lineBurst {
		t.Errorf("%d lines at once", written)
	}
	if _, ok := l.allow(lineKind{host: "other", why: "truncated"}, now); !ok {
		t.Error("another host is silenced")
	}
	if skipped, ok := l.allow(k, now.Add(lineEvery)); !ok || skipped != 1000-lineBurst {
		t.Errorf("a second later: %v, %d left out", ok, skipped)
	}
	if _, ok := l.allow(k, now.Add(lineEvery)); ok {
		t.Error("two lines in a second")
	}
	for i := range 3 * lineKinds {
		l.allow(lineKind{host: fmt.Sprint(i)}, now)
	}
	if len(l.kinds) > lineKinds {
		t.Errorf("%d kinds are remembered", len(l.kinds))
	}
}
