package groups

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
)

// moment is one change of what the watcher watches.
type moment struct {
	at        time.Time
	what      string // owner, offset or ids
	partition int32
	value     string // the owner's member, the offset, the members; empty: gone
}

// watcher follows the owner znodes, the offsets and the members' ids by watches: it costs the servers little, and knows each change
// when it is told of it. One goroutine for each znode, ended by close.
type watcher struct {
	conn *zk.Conn
	stop chan struct{}
	work sync.WaitGroup

	mu      sync.Mutex
	owner   map[int32]string // partition to member
	members int
	changed time.Time // when any of it last changed
	history []moment  // nobody adds any more after close
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

func watch(b *testing.B, s system) *watcher {
	b.Helper()
	conn, _, err := zk.Connect(strings.Split(s.zookeeper, ","), 20*time.Second, zk.WithLogger(quiet{}))
	if err != nil {
		b.Fatal(err)
	}
	w := &watcher{conn: conn, stop: make(chan struct{}), owner: map[int32]string{}}
	root := "/consumers/" + legacyGroup
	w.work.Go(func() {
		w.follow(root+"/ids", func() (string, <-chan zk.Event, error) {
			ids, _, events, err := conn.ChildrenW(root + "/ids")
			for i := range ids {
				ids[i] = memberOf(ids[i])
			}
			slices.Sort(ids)
			return strings.Join(ids, " "), events, err
		}, w.sawIDs)
	})
	for p := range int32(partitions) {
		name := legacyTopic + "/" + strconv.Itoa(int(p))
		w.work.Go(func() { w.followData(root+"/owners/"+name, func(data string) { w.sawOwner(p, data) }) })
		w.work.Go(func() { w.followData(root+"/offsets/"+name, func(data string) { w.note("offset", p, data) }) })
	}
	return w
}

// memberOf is the name that a member was told to join by, of its consumer or thread id.
func memberOf(id string) string { return strings.TrimPrefix(id, legacyGroup+"_") }

func (w *watcher) close() {
	close(w.stop)
	w.conn.Close()
	w.work.Wait()
}

// save writes what was seen to a file, for a run that is looked at later (BARNABAS_KEEP).
func (w *watcher) save(b *testing.B, file string) {
	var text strings.Builder
	for _, m := range w.history {
		fmt.Fprintf(&text, "%s %s %d %q\n", m.at.UTC().Format("15:04:05.000"), m.what, m.partition, m.value)
	}
	if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
		b.Error(err)
	}
}

func (w *watcher) followData(path string, saw func(string)) {
	w.follow(path, func() (string, <-chan zk.Event, error) {
		data, _, events, err := w.conn.GetW(path)
		return string(data), events, err
	}, saw)
}

// follow reads a znode, and again whenever it has changed.
func (w *watcher) follow(path string, read func() (string, <-chan zk.Event, error), saw func(string)) {
	for {
		value, events, err := read()
		if err == zk.ErrNoNode {
			value = ""
			_, _, events, err = w.conn.ExistsW(path) // one that came in between is an event, or is there and read again
			if err == nil {
				if there, _, _ := w.conn.Exists(path); there {
					continue
				}
			}
		}
		if err == nil {
			saw(value)
		} else { // the connection is lost
			events = nil
		}
		retry := time.NewTimer(time.Hour)
		if err != nil {
			retry.Reset(20 * time.Millisecond)
		}
		select {
		case <-w.stop:
			retry.Stop()
			return
		case <-events:
		case <-retry.C:
		}
		retry.Stop()
	}
}

func (w *watcher) sawIDs(ids string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.members = len(strings.Fields(ids))
	w.add("ids", 0, ids)
	w.changed = time.Now()
}

func (w *watcher) sawOwner(p int32, data string) {
	member := memberOf(data[:max(0, strings.LastIndexByte(data, '-'))])
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.owner[p] == member {
		return
	}
	if w.owner[p] = member; member == "" {
		delete(w.owner, p)
	}
	w.add("owner", p, member)
	w.changed = time.Now()
}

func (w *watcher) note(what string, p int32, value string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.add(what, p, value)
}

func (w *watcher) add(what string, p int32, value string) {
	w.history = append(w.history, moment{time.Now(), what, p, value})
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

// serverLines are the lines of the nodes' logs about groups and sessions in a span of time, by time.
func (s system) serverLines(read func(string) ([]byte, error), from, to time.Time) []told {
	var out []told
	for _, file := range s.logs {
		data, err := read(file)
		if err != nil {
			continue
		}
		for text := range bytes.Lines(data) {
			stamp, rest, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(string(text)), "time="), " ")
			at, err := time.Parse(time.RFC3339Nano, stamp)
			if err != nil || at.Before(from) || at.After(to) || !strings.Contains(rest, "msg=\"group: ") && !strings.Contains(rest, "expiring sessions") {
				continue
			}
			out = append(out, told{at, rest})
		}
	}
	return out
}
