package groups

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/barnabas-mq/barnabas/internal/testtool"
)

// What the legacy part does.
const (
	partitions     = 24
	records        = 200_000
	perSecond      = 4_000
	members        = 20
	killed         = 5
	joinEvery      = 500 * time.Millisecond
	sessionTimeout = 6 * time.Second
	calm           = 3 * time.Second // without any change: a phase has settled
	phaseLimit     = 90 * time.Second
	legacyTopic    = "work"
	legacyGroup    = "old"
)

// host is one JVM with high-level consumers of 0.8.2.2 (integration/java/Members).
type host struct {
	*testtool.Process
	commands io.WriteCloser
	output   string
}

func startHost(b *testing.B, s system, dir, name string) *host {
	b.Helper()
	h := &host{output: filepath.Join(dir, name+".json")}
	cmd := testtool.ProgramCommand(context.Background(), b, testtool.Kafka082, "Members", "--zookeeper", s.zookeeper, "--group", legacyGroup,
		"--topic", legacyTopic, "--output", h.output, "--trace", "true")
	var err error
	if h.commands, err = cmd.StdinPipe(); err != nil {
		b.Fatal(err)
	}
	h.Process = testtool.Start(b, name, cmd)
	return h
}

func (h *host) join(b *testing.B, member string) {
	if _, err := fmt.Fprintf(h.commands, "join %s\n", member); err != nil {
		b.Fatalf("%s: %v", h.Name, err)
	}
}

// line is a line of a host's output.
type line struct {
	Event, Member, Message string
	Partition              int32
	Offset, At             int64
}

// lines reads what the host wrote: whole lines alone.
func (h *host) lines(b *testing.B) []line {
	b.Helper()
	data, err := os.ReadFile(h.output)
	if err != nil && !os.IsNotExist(err) {
		b.Fatal(err)
	}
	var all []line
	for text := range bytes.Lines(data[:bytes.LastIndexByte(data, '\n')+1]) {
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			b.Fatalf("%s: %q: %v", h.output, text, err)
		}
		all = append(all, l)
	}
	return all
}

// outcome is one column of the table.
type outcome struct {
	rounds, failed, gaveUp, duplicates [3]int // by phase: joins, kills, restarts
	own                                [3]int // of the duplicates, those that the client handed out after its own last commit

	ownedAfterKill time.Duration
	settled        [3]time.Duration
	sent, lost     int
}

// legacy runs the story on one side.
func legacy(b *testing.B, s system) outcome {
	s.topic(b, legacyTopic, partitions)
	dir := testtool.Folder(b)
	var hosts []*host
	rest := startHost(b, s, dir, "rest")
	hosts = append(hosts, rest)
	var doomed, again []*host
	for i := range killed {
		doomed = append(doomed, startHost(b, s, dir, fmt.Sprint("doomed", i)))
		again = append(again, startHost(b, s, dir, fmt.Sprint("again", i)))
	}
	hosts = append(append(hosts, doomed...), again...)
	for _, h := range hosts {
		testtool.Eventually(b, startLimit, func() error {
			if len(h.lines(b)) == 0 {
				return fmt.Errorf("%s is not ready:\n%s", h.Name, h.Tail(5))
			}
			return nil
		})
	}
	o := outcome{}
	w := watch(b, s)
	sending := produce(b, s)
	var began [3]time.Time
	settle := func(phase, want int) {
		w.settle(b, want)
		o.settled[phase] = w.lastChange().Sub(began[phase])
	}

	began[0] = time.Now()
	for i := range members { // the doomed are spread over the order of joins
		if i%4 == 3 {
			doomed[i/4].join(b, memberName(i))
		} else {
			rest.join(b, memberName(i))
		}
		time.Sleep(joinEvery)
	}
	settle(0, members)

	var gone []string
	for i, h := range doomed {
		gone = append(gone, memberName(4*i+3))
		if err := h.Signal(syscall.SIGKILL); err != nil {
			b.Fatal(err)
		}
	}
	began[1] = time.Now()
	ownedAgain := w.allOwnedWithout(b, gone)
	o.ownedAfterKill = ownedAgain.Sub(began[1])
	settle(1, members-killed)

	began[2] = time.Now()
	for i, h := range again {
		h.join(b, "again"+memberName(i))
		time.Sleep(joinEvery)
	}
	settle(2, members)

	acked := <-sending
	o.sent = len(acked)
	all := o.receive(b, hosts, acked)
	w.close()
	w.save(b, filepath.Join(dir, "znodes"))
	o.count(b, all, began, w.history)
	tellKill(b, s, all, w.history, began[1], ownedAgain)
	for _, h := range hosts {
		h.Kill()
	}
	return o
}

func memberName(i int) string { return fmt.Sprintf("m%02d", i) }

// place is where a record lies.
type place struct {
	partition int32
	offset    int64
}

// produce sends the records at their pace; the channel gives where they lie when all are acknowledged.
func produce(b *testing.B, s system) <-chan []place {
	client := s.client(b, kgo.DefaultProduceTopic(legacyTopic), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()), kgo.ProducerLinger(5*time.Millisecond))
	done := make(chan []place, 1)
	go func() {
		defer close(done)
		var mu sync.Mutex
		var all []place
		ctx := context.Background()
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for n := 0; n < records; {
			<-tick.C
			for range perSecond / 100 {
				n++
				client.Produce(ctx, kgo.StringRecord(strings.Repeat("x", 100)), func(r *kgo.Record, err error) {
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						b.Errorf("a record was not sent: %v", err)
						return
					}
					all = append(all, place{r.Partition, r.Offset})
				})
			}
		}
		if err := client.Flush(ctx); err != nil {
			b.Errorf("flush: %v", err)
		}
		done <- all
	}()
	return done
}

// receive waits until every record was received, or nothing more comes, and returns all that the members wrote, by time.
func (o *outcome) receive(b *testing.B, hosts []*host, acked []place) (all []line) {
	read := func() (missing int) {
		all = nil
		seen := map[place]bool{}
		for _, h := range hosts {
			all = append(all, h.lines(b)...)
		}
		for _, l := range all {
			if l.Event == "" {
				seen[place{l.Partition, l.Offset}] = true
			}
		}
		for _, p := range acked {
			if !seen[p] {
				missing++
			}
		}
		return missing
	}
	for last, since := -1, time.Now(); ; time.Sleep(time.Second) {
		o.lost = read()
		if o.lost == 0 || time.Since(since) > 20*time.Second {
			break
		}
		if o.lost != last {
			last, since = o.lost, time.Now()
		}
	}
	slices.SortStableFunc(all, func(a, b line) int { return int(a.At - b.At) })
	return all
}

// count counts what the members wrote, by the phase in which it came.
func (o *outcome) count(b *testing.B, all []line, began [3]time.Time, history []moment) {
	seen := map[place]line{}
	var twice []again
	for _, l := range all {
		phase := 0
		for phase < 2 && l.At >= began[phase+1].UnixMilli() {
			phase++
		}
		switch l.Event {
		case "attempt":
			o.rounds[phase]++
		case "failed":
			o.failed[phase]++
			b.Logf("+%.1fs %s", time.UnixMilli(l.At).Sub(began[0]).Seconds(), l.Message)
		case "gaveup", "broken":
			o.gaveUp[phase]++
			b.Logf("+%.1fs %s: %s", time.UnixMilli(l.At).Sub(began[0]).Seconds(), l.Event, l.Message)
		case "":
			p := place{l.Partition, l.Offset}
			if first, has := seen[p]; has {
				o.duplicates[phase]++
				twice = append(twice, again{phase, first, l})
				continue
			}
			seen[p] = l
		}
	}
	for i, own := range tellDuplicates(b, twice, all, history, began[0]) {
		if own {
			o.own[twice[i].phase]++
		}
	}
}
