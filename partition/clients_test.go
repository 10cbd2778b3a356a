package partition

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/barnabas-mq/barnabas/internal/id"
)

// Whoever fetched a partition from its leader and has gone is told: by its client id and host, or as one of the others, with an end above
// all that it may have got. What is remembered of a partition is bounded, and a new leadership begins anew.
func TestClosedConnectionsAreRemembered(t *testing.T) {
	tp := id.TopicPartition{Topic: "t"}
	rapid.Check(t, func(rt *rapid.T) {
		r := &replica{}
		r.s.role = leading
		m := &Manager{replicas: map[id.TopicPartition]*replica{tp: r}}
		open := map[uint64]FetchInfo{}
		gone := map[[2]string]id.Offset{} // high watermark at the last close, by client id and host
		for i := range rapid.IntRange(1, 150).Draw(rt, "steps") {
			now, conn := time.Duration(i), uint64(rapid.IntRange(1, 40).Draw(rt, "conn"))
			switch rapid.IntRange(0, 100).Draw(rt, "what") / 5 {
			case 20: // one time in a hundred: between two leaderships more close than are told apart
				r.s.role = following
				if rapid.Bool().Draw(rt, "is seen") {
					m.Fetches()
				}
				r.s.role, r.s.lead.epochStart = leading, r.s.hw
				clear(gone)
				continue
			case 1, 2, 3:
				r.s.hw += 3
				continue
			}
			if f, ok := open[conn]; ok && rapid.Bool().Draw(rt, "closes") {
				m.ConnectionClosed(conn)
				delete(open, conn)
				gone[[2]string{f.ClientID, f.Host}] = r.s.hw
				continue
			}
			f := FetchInfo{Client: Client{Conn: conn, ClientID: fmt.Sprint("c", conn%3), Host: fmt.Sprint("h", conn%7)}, TopicPartition: tp, Last: now}
			open[conn] = f
			m.fetched(&FetchRequest{Client: f.Client, Items: []FetchItem{{Topic: "t"}, {Topic: "unknown"}}}, now)
		}
		told, others, closed, any := map[[2]string]id.Offset{}, id.Offset(-1), 0, len(open)+len(gone) > 0
		for _, f := range m.Fetches() {
			switch {
			case f.TopicPartition != tp:
				rt.Fatalf("%+v", f)
			case !f.Closed && open[f.Conn] != f:
				rt.Fatalf("open %+v, was %+v", f, open[f.Conn])
			case f.Closed && f.Host == "":
				others = f.End
			case f.Closed:
				told[[2]string{f.ClientID, f.Host}] = f.End
				closed++
			}
			delete(open, f.Conn)
		}
		for k, end := range gone {
			if told[k] < end && others < end {
				rt.Fatalf("%v got what is below %d: told %v, others below %d", k, end, told, others)
			}
		}
		if len(open) > 0 || closed > maxClosed || any && others < r.s.lead.epochStart {
			rt.Fatalf("not told: %v; %d closed of %d, others %v", open, closed, len(gone), others)
		}
		m.replicas = nil
		if got := m.Fetches(); len(got)+len(m.clients.closed) > 0 {
			t.Errorf("of a partition that is gone: %v, %v", got, m.clients.closed)
		}
	})
}

// Whatever is told while connections come and go, one that has fetched is told as open or as closed at every moment.
func TestConnectionIsOpenOrClosed(t *testing.T) {
	const conns = 500
	m := &Manager{replicas: map[id.TopicPartition]*replica{}}
	for i := range conns {
		r := &replica{}
		r.s.role, r.s.hw = leading, 100
		m.replicas[id.TopicPartition{Topic: "t", Partition: int32(i)}] = r
	}
	var fetched atomic.Int32
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for i := range int32(conns) {
			c := Client{Conn: uint64(i + 1), ClientID: "c", Host: "h"}
			m.fetched(&FetchRequest{Client: c, Items: []FetchItem{{Topic: "t", Partition: i}}}, 1)
			fetched.Add(1)
			m.ConnectionClosed(c.Conn)
		}
	})
	for last := false; !last; {
		n := fetched.Load()
		last = n == conns
		told := map[int32]bool{}
		for _, f := range m.Fetches() {
			told[f.Partition] = told[f.Partition] || f.Host != ""
		}
		for i := range n {
			if !told[i] {
				t.Fatalf("of %d connections the one of partition %d is told neither as open nor as closed", n, i)
			}
		}
	}
}

// A client that names partitions that do not exist leaves nothing behind.
func TestInventedPartitionsAreNotRegistered(t *testing.T) {
	m := &Manager{replicas: map[id.TopicPartition]*replica{}}
	req := &FetchRequest{Client: Client{Conn: 1}}
	for i := range int32(100) {
		req.Items = append(req.Items, FetchItem{Topic: "invented", Partition: i})
	}
	m.fetched(req, 1)
	if n := len(m.clients.conns[1].fetches); n > 0 {
		t.Errorf("%d partitions are remembered", n)
	}
}
