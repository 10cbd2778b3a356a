package main

import (
	"hash/crc32"
	"reflect"
	"strings"
	"testing"
)

func dig(s string) digest { return digest{int32(len(s)), crc32.ChecksumIEEE([]byte(s))} }

// filled is a ledger in which three lines were sent, acked and received.
func filled() *ledger {
	l := newLedger(2, 2, 3)
	for _, s := range []string{"a", "", "c"} {
		l.send([]byte(s))
	}
	l.ack(0, 0, 1)
	l.ack(1, 0, 2)
	l.ack(1, 1, 3)
	l.receive(0, 0, 0, 1, dig("a"))
	l.receive(1, 1, 0, 2, dig(""))
	l.receive(1, 1, 1, 3, dig("c"))
	return l
}

func TestCleanAccount(t *testing.T) {
	a := filled().total()
	want := account{sent: 3, acked: 3, received: 3, members: []int64{1, 2}}
	if !reflect.DeepEqual(a, want) || a.bad() {
		t.Errorf("%+v", a)
	}
}

// Each planted fault is found, and by its own name.
func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		plant func(*ledger)
		check func(account) bool
	}{
		"lost":            {func(l *ledger) { l.send([]byte("d")); l.ack(0, 1, 4) }, func(a account) bool { return a.lost == 1 && strings.Contains(a.firstFault, "never received") }},
		"not acked":       {func(l *ledger) { l.send([]byte("d")) }, func(a account) bool { return a.acked != a.sent && a.lost == 0 }},
		"written twice":   {func(l *ledger) { l.receive(0, 0, 1, 1, dig("a")) }, func(a account) bool { return a.keysTwice == 1 && a.unacked == 1 }},
		"corrupt":         {func(l *ledger) { l.receive(0, 0, 0, 1, dig("b")) }, func(a account) bool { return a.corrupt == 1 }},
		"null, not empty": {func(l *ledger) { l.receive(0, 1, 0, 2, digest{-1, 0}) }, func(a account) bool { return a.corrupt == 1 }},
		"never sent":      {func(l *ledger) { l.receive(0, 0, 5, 99, dig("")) }, func(a account) bool { return a.strangers == 1 }},
		"two keys":        {func(l *ledger) { l.receive(0, 0, 0, 3, dig("c")) }, func(a account) bool { return a.contradictory >= 1 }},
		"wrong place":     {func(l *ledger) { l.send([]byte("d")); l.ack(0, 1, 4); l.receive(0, 0, 1, 3, dig("c")) }, func(a account) bool { return a.contradictory >= 1 }},
	} {
		l := filled()
		c.plant(l)
		if a := l.total(); !c.check(a) || !a.bad() || name != "not acked" && a.firstFault == "" {
			t.Errorf("%s: %+v", name, a)
		}
	}
}

func TestRedeliveryIsNoFault(t *testing.T) {
	l := filled()
	l.receive(1, 0, 0, 1, dig("a"))
	if a := l.total(); a.redelivered != 1 || a.bad() {
		t.Errorf("%+v", a)
	}
}

func TestParseRecord(t *testing.T) {
	r, ok := parseRecord([]byte(`{"partition":3,"offset":123456,"key":"42","len":7,"crc":4294967295}`))
	if !ok || r != (record{3, 123456, 42, digest{7, 4294967295}}) {
		t.Errorf("%+v %v", r, ok)
	}
	if r, ok := parseRecord([]byte(`{"partition":0,"offset":0,"key":null,"len":-1,"crc":0}`)); !ok || r.key != 0 || r.digest.length != -1 {
		t.Errorf("%+v %v", r, ok)
	}
	for _, s := range []string{"", "{", `{"event":"start","topic":"t"}`, `{"partition":x}`, `{"partition":1,"offset":2,"key":"a","len":1,"crc":1}`,
		`{"partition":1,"offset":2,"key":"1","len":1,"crc":99999999999}`} {
		if r, ok := parseRecord([]byte(s)); ok {
			t.Errorf("%s: %+v", s, r)
		}
	}
}
