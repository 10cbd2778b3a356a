package main

import (
	"strings"
	"testing"
)

const events = `{"Action":"run","Package":"p","Test":"TestGood"}
{"Action":"output","Package":"p","Test":"TestGood","Output":"chatter\n"}
{"Action":"pass","Package":"p","Test":"TestGood"}
{"Action":"output","Package":"p","Test":"TestBad","Output":"bad.go:1: broken\n"}
{"Action":"fail","Package":"p","Test":"TestBad"}
{"Action":"output","Package":"p","Test":"TestLacking","Output":"=== RUN   TestLacking\n"}
{"Action":"output","Package":"p","Test":"TestLacking","Output":"    x.go:1: needs kcat\n"}
{"Action":"output","Package":"p","Test":"TestLacking","Output":"--- SKIP: TestLacking (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestLacking"}
{"Action":"output","Package":"p","Test":"TestHung","Output":"waiting\n"}
not an event
{"Action":"output","Package":"p","Output":"PASS\n"}
{"Action":"output","Package":"p","Output":"ok  \tp\t0.1s\n"}
{"Action":"output","Package":"q","Output":"?   \tq\t[no test files]\n"}
{"Action":"skip","Package":"q"}
`

func TestReportKeepsWhatMatters(t *testing.T) {
	var out strings.Builder
	r := newReport(&out)
	if err := r.read(strings.NewReader(events)); err != nil {
		t.Fatal(err)
	}
	if !r.close(false) {
		t.Error("a skip fails a run that is not strict")
	}
	got := out.String()
	for _, want := range []string{"bad.go:1: broken", "ok  \tp\t0.1s", "not an event", "not ended: p TestHung\nwaiting",
		"skipped: p TestLacking: x.go:1: needs kcat", "tests: 1 passed, 1 failed, 1 skipped"} {
		if !strings.Contains(got, want) {
			t.Errorf("output lacks %q:\n%s", want, got)
		}
	}
	for _, noise := range []string{"chatter", "no test files", "PASS\n"} {
		if strings.Contains(got, noise) {
			t.Errorf("output has %q:\n%s", noise, got)
		}
	}
}

func TestStrictRunFailsOnASkip(t *testing.T) {
	var out strings.Builder
	r := newReport(&out)
	if err := r.read(strings.NewReader(events)); err != nil {
		t.Fatal(err)
	}
	if r.close(true) {
		t.Error("a skipped test passes under CI")
	}
	if clean := newReport(&out); !clean.close(true) {
		t.Error("a run without a skip fails under CI")
	}
}
