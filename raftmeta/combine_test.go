package raftmeta

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// A small entry does not keep the next one waiting; a well-filled one does, and what comes meanwhile goes together.
func TestFullEntryIsAloneUnderWay(t *testing.T) {
	c := newCombiner()
	begun, end := make(chan int), make(chan struct{})
	c.apply = func(data []byte) func() (outcome, error) {
		var e statepb.Entry
		if err := proto.Unmarshal(data, &e); err != nil {
			t.Error(err)
		}
		begun <- len(e.Commands)
		return func() (outcome, error) { <-end; return outcome{index: 1}, nil }
	}
	c.pushed = func(outcome, bool) {}
	c.clock = func() (time.Duration, time.Time) { return 0, time.Time{} }
	c.term = func() uint64 { return 1 }
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { c.run(stop, time.Hour) })
	submit := func(n int) {
		var data []byte
		for range n {
			data = append(data, tickChunk...)
		}
		must(t, c.submit(t.Context(), nil, chunk{data: data, count: n}))
	}
	submit(1)
	if n := <-begun; n != 1 {
		t.Fatalf("entry of %d commands", n)
	}
	submit(entryShared)
	if n := <-begun; n != entryShared { // the first is still under way
		t.Fatalf("entry of %d commands", n)
	}
	for range 3 {
		submit(1)
	}
	end <- struct{}{}
	end <- struct{}{}
	if n := <-begun; n != 3 {
		t.Fatalf("of 3 commands that waited for a full entry %d went together", n)
	}
	close(stop)
	end <- struct{}{}
	wg.Wait()
}

// After a well-filled entry the next one waits for most of those that are under way, but not for ever, and not for more than fill one.
func TestEntryGathersProposers(t *testing.T) {
	for _, tc := range []struct {
		name               string
		first, during, now int           // commands of the first entry, that come while it is under way, and 1 ms after its end
		after              time.Duration // of its end
		want               int           // commands of the next
	}{
		{"all but a few are back", 40, 10, 33, time.Millisecond, 43},
		{"too few come back", 40, 10, 32, 4 * time.Millisecond, 42},
		{"enough wait already", 16, 112, 0, 0, 112},
		{"more than fill an entry", 100, 63, 1, time.Millisecond, 64},
		{"an entry that is shared by few", entryShared - 1, 1, 0, 0, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCombiner()
				var sizes []int
				var begun []time.Time
				c.apply = func(data []byte) func() (outcome, error) {
					sizes = append(sizes, bytes.Count(data, tickChunk))
					begun = append(begun, time.Now())
					return func() (outcome, error) { time.Sleep(2 * time.Millisecond); return outcome{index: 1}, nil }
				}
				c.pushed = func(outcome, bool) {}
				c.clock = func() (time.Duration, time.Time) { return 0, time.Time{} }
				c.term = func() uint64 { return 1 }
				stop := make(chan struct{})
				var wg sync.WaitGroup
				wg.Go(func() { c.run(stop, time.Hour) })
				defer wg.Wait()
				defer close(stop)
				start := time.Now()
				must(t, c.submit(t.Context(), nil, chunk{data: bytes.Repeat(tickChunk, tc.first), count: tc.first}))
				synctest.Wait()
				for range tc.during {
					must(t, c.submit(t.Context(), nil, chunk{data: tickChunk, count: 1}))
				}
				if tc.first >= entryShared {
					time.Sleep(3 * time.Millisecond)
				}
				for range tc.now {
					must(t, c.submit(t.Context(), nil, chunk{data: tickChunk, count: 1}))
				}
				time.Sleep(time.Second)
				synctest.Wait()
				if len(sizes) < 2 || sizes[1] != tc.want {
					t.Fatalf("entries of %v commands, want %d in the second", sizes, tc.want)
				}
				end := start.Add(2 * time.Millisecond)
				if tc.first < entryShared {
					end = start
				}
				if after := begun[1].Sub(end); after != tc.after {
					t.Errorf("the next entry was begun %v after the end of the first, want %v", after, tc.after)
				}
			})
		})
	}
}

// Commands proposed together come to their results in order; one that is too large fails alone; another term's do not begin.
func TestProposeAllInTerm(t *testing.T) {
	c := newCluster(t, 1, nil) // which does not lose its leader
	c.bootstrapState()
	l := c.leader()
	var cs []*statepb.Command
	for i := range 100 {
		cs = append(cs, createZnode(fmt.Sprintf("/all%d", i), false))
		if i%3 == 0 { // several entries
			cs[i].GetCreateZnode().Data = make([]byte, 10_000)
		}
	}
	cs[40].GetCreateZnode().Data = make([]byte, entryMax)
	type answer struct {
		from, to int
		rs       []state.Settled
		err      error
	}
	answers := make(chan answer, len(cs)) // never full
	ask := func(term id.Term) {
		l.ProposeAllInTerm(term, cs, func(from, to int, rs []state.Settled, err error) { answers <- answer{from, to, rs, err} })
	}
	term := id.Term(l.leaderTerm())
	ask(term - 1)
	if a := <-answers; a.from != 0 || a.to != len(cs) || !errors.Is(a.err, ErrNotLeader) {
		t.Fatalf("in another term: %+v", a)
	}
	ask(term)
	seen := make([]int, len(cs))
	last := uint64(0)
	for n := 0; n < len(cs); {
		a := <-answers
		for i := a.from; i < a.to; i++ {
			seen[i]++
			n++
			switch {
			case i == 40 && errors.Is(a.err, ErrTooLarge):
			case a.err != nil || len(a.rs) != a.to-a.from:
				t.Fatalf("command %d of %d..%d: %d results, %v", i, a.from, a.to, len(a.rs), a.err)
			case a.rs[i-a.from].Result.Code != statepb.Code_OK || a.rs[i-a.from].Result.Index < last:
				t.Fatalf("command %d after entry %d: %v", i, last, a.rs[i-a.from].Result)
			default:
				last = a.rs[i-a.from].Result.Index
			}
		}
	}
	for i, n := range seen {
		if n != 1 {
			t.Errorf("command %d was answered %d times", i, n)
		}
	}
}

// Followers are told of an entry before its chunks are answered, for an answer may name it; and later only if all of it is quiet.
func TestPushedBeforeAnswered(t *testing.T) {
	for _, quiet := range [][]bool{{true, true}, {true, false}, {false, true}} {
		c := newCombiner()
		order := ""
		c.pushed = func(_ outcome, quiet bool) {
			order = fmt.Sprint("quiet ", quiet)
		}
		var chunks []chunk
		for _, q := range quiet {
			chunks = append(chunks, chunk{count: 1, quiet: q})
		}
		chunks[0].done = func([]state.Settled, error) { order += ", answered" }
		c.finish(entry{chunks: chunks, wait: func() (outcome, error) { return outcome{index: 1, settled: make([]state.Settled, 2)}, nil }})
		if want := fmt.Sprintf("quiet %t, answered", quiet[0] && quiet[1]); order != want {
			t.Errorf("%v: %s, want %s", quiet, order, want)
		}
	}
}
