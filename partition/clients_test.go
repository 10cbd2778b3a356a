package partition

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/barnabas-mq/barnabas/internal/id"
)

// Whoever fetched a partition and has gone is told: by its client id and host, or as one of the others, with a time that is no earlier.
// What is remembered of a partition is bounded.
func TestClosedConnectionsAreRemembered(t *testing.T) {
	tp := id.TopicPartition{Topic: "t"}
	m := &Manager{replicas: map[id.TopicPartition]*replica{tp: {}}}
	rapid.Check(t, func(rt *rapid.T) {
		m.clients = clients{}
		open := map[uint64]FetchInfo{}
		gone := map[[2]string]time.Duration{} // last fetch by client id and host
		for i := range rapid.IntRange(1, 120).Draw(rt, "steps") {
			now, conn := time.Duration(i), uint64(rapid.IntRange(1, 200).Draw(rt, "conn"))
			if f, ok := open[conn]; ok && rapid.Bool().Draw(rt, "closes") {
				m.ConnectionClosed(conn)
				delete(open, conn)
				k := [2]string{f.ClientID, f.Host}
				gone[k] = max(gone[k], f.Last)
				continue
			}
			f := FetchInfo{Client: Client{Conn: conn, ClientID: fmt.Sprint("c", conn%3), Host: fmt.Sprint("h", conn%7)}, TopicPartition: tp, Last: now}
			open[conn] = f
			m.clients.fetched(&FetchRequest{Client: f.Client, Items: []FetchItem{{Topic: "t"}, {Topic: "unknown"}}}, now)
		}
		told, others, closed := map[[2]string]time.Duration{}, time.Duration(-1), 0
		for _, f := range m.Fetches() {
			switch {
			case f.TopicPartition != tp:
				rt.Fatalf("%+v", f)
			case !f.Closed && open[f.Conn] != f:
				rt.Fatalf("open %+v, was %+v", f, open[f.Conn])
			case f.Closed && f.Host == "":
				others, closed = f.Last, closed+1
			case f.Closed:
				told[[2]string{f.ClientID, f.Host}] = f.Last
				closed++
			}
			delete(open, f.Conn)
		}
		for k, last := range gone {
			if told[k] != last && others < last {
				rt.Fatalf("%v fetched at %v: told %v, others at %v", k, last, told, others)
			}
		}
		if len(open) > 0 || closed > maxClosed+1 || len(gone) <= maxClosed && others >= 0 {
			rt.Fatalf("not told: %v; %d closed of %d, others %v", open, closed, len(gone), others)
		}
	})
	m.replicas = nil
	if got := m.Fetches(); len(got)+len(m.clients.closed) > 0 {
		t.Errorf("of a partition that is gone: %v, %v", got, m.clients.closed)
	}
}
