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
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
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
		"--topic", legacyTopic, "--output", h.output)
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
	o.ownedAfterKill = w.allOwnedWithout(b, gone).Sub(began[1])
	settle(1, members-killed)

	began[2] = time.Now()
	for i, h := range again {
		h.join(b, "again"+memberName(i))
		time.Sleep(joinEvery)
	}
	settle(2, members)

	acked := <-sending
	o.sent = len(acked)
	o.count(b, hosts, began, acked)
	w.close()
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

// count waits until every record was received, or nothing more comes, and counts what the members wrote, by the phase in which
// it came.
func (o *outcome) count(b *testing.B, hosts []*host, began [3]time.Time, acked []place) {
	var all []line
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
	seen := map[place]line{}
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
			if first, twice := seen[p]; twice {
				if o.duplicates[phase]++; o.duplicates[phase] <= 3 {
					b.Logf("+%.1fs %s received %v, %s did so %.1f s before", time.UnixMilli(l.At).Sub(began[0]).Seconds(), l.Member, p, first.Member, float64(l.At-first.At)/1000)
				}
				continue
			}
			seen[p] = l
		}
	}
}

// watcher looks at the owner znodes and the members' ids all the time. One goroutine, ended by close.
type watcher struct {
	conn *zk.Conn
	stop chan struct{}
	done chan struct{}

	mu      sync.Mutex
	owner   map[int32]string // partition to member
	members int
	changed time.Time // when any of it last changed
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

func watch(b *testing.B, s system) *watcher {
	b.Helper()
	conn, _, err := zk.Connect(strings.Split(s.zookeeper, ","), 20*time.Second, zk.WithLogger(quiet{}))
	if err != nil {
		b.Fatal(err)
	}
	w := &watcher{conn: conn, stop: make(chan struct{}), done: make(chan struct{}), owner: map[int32]string{}}
	go w.run()
	return w
}

func (w *watcher) close() {
	close(w.stop)
	<-w.done
}

func (w *watcher) run() {
	defer close(w.done)
	defer w.conn.Close()
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-tick.C:
			w.look()
		}
	}
}

func (w *watcher) look() {
	root := "/consumers/" + legacyGroup
	ids, _, err := w.conn.Children(root + "/ids")
	if err != nil {
		return // not there yet
	}
	owner := map[int32]string{}
	names, _, err := w.conn.Children(root + "/owners/" + legacyTopic)
	if err != nil && err != zk.ErrNoNode {
		return
	}
	for _, name := range names {
		p, err := strconv.Atoi(name)
		data, _, getErr := w.conn.Get(root + "/owners/" + legacyTopic + "/" + name)
		if err == nil && getErr == nil {
			owner[int32(p)] = strings.TrimPrefix(string(data[:max(0, bytes.LastIndexByte(data, '-'))]), legacyGroup+"_")
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	same := len(owner) == len(w.owner) && len(ids) == w.members
	for p, o := range owner {
		same = same && w.owner[p] == o
	}
	if !same {
		w.owner, w.members, w.changed = owner, len(ids), time.Now()
	}
}

func (w *watcher) lastChange() time.Time { w.mu.Lock(); defer w.mu.Unlock(); return w.changed }

// settle returns when the group has had so many members, and all partitions an owner, without a change for a while.
func (w *watcher) settle(b *testing.B, want int) {
	b.Helper()
	begun := time.Now()
	for time.Since(begun) < phaseLimit {
		w.mu.Lock()
		quiet := time.Since(w.changed) > calm && w.members == want && len(w.owner) == partitions
		w.mu.Unlock()
		if quiet {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.members != want || len(w.owner) != partitions {
		b.Logf("not settled after %v: %d members of %d, %d owned partitions of %d", phaseLimit, w.members, want, len(w.owner), partitions)
	}
}

// allOwnedWithout returns the moment at which every partition is owned by a member that is not gone.
func (w *watcher) allOwnedWithout(b *testing.B, gone []string) time.Time {
	b.Helper()
	for begun := time.Now(); time.Since(begun) < phaseLimit; time.Sleep(5 * time.Millisecond) {
		w.mu.Lock()
		whole := len(w.owner) == partitions
		for _, o := range w.owner {
			whole = whole && !slices.Contains(gone, o)
		}
		w.mu.Unlock()
		if whole {
			return time.Now()
		}
	}
	b.Logf("not every partition had a living owner within %v", phaseLimit)
	return time.Now()
}
