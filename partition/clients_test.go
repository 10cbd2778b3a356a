package partition

import (
	"fmt"
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
			now, conn := time.Duration(i), uint64(rapid.IntRange(1, 200).Draw(rt, "conn"))
			switch rapid.IntRange(0, 20).Draw(rt, "what") {
			case 0:
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
			m.clients.fetched(&FetchRequest{Client: f.Client, Items: []FetchItem{{Topic: "t"}, {Topic: "unknown"}}}, now)
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
