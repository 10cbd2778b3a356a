package partition

import (
	"slices"
	"sync"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
)

// Client is who fetches.
type Client struct {
	Conn     uint64 // of the listener; unique for the life of the process. 0: not registered
	ClientID string
	Host     string // remote address without the port
}

// FetchInfo says who fetches what, for broker reports and for the fencing of dead legacy members (decisions.md 16).
type FetchInfo struct {
	Client
	id.TopicPartition
	Offset id.Offset     // of the last request
	Last   time.Duration // Boot time of the last request
	// Closed: the connection is no more, and got no record from End on. Only the one that got most of each client id and host is told;
	// without a host it stands for everybody else that ever got a record. Told by the leader only.
	Closed bool
	End    id.Offset
}

// clients is the registry of Fetches.
type clients struct {
	mu     sync.Mutex
	conns  map[uint64]*clientConn
	closed map[id.TopicPartition]*closedConns
}

// closedConns are connections that fetched a partition while this broker led it.
type closedConns struct {
	known []FetchInfo // at most maxClosed
	end   id.Offset   // of those that are not known any more
}

// maxClosed is how many client ids and hosts whose connections have closed are told apart of a partition.
const maxClosed = 8

type clientConn struct {
	client  Client
	fetches map[id.TopicPartition]fetchMark
}

type fetchMark struct {
	offset id.Offset
	last   time.Duration
}

func (c *clients) fetched(req *FetchRequest, now time.Duration) {
	if req.Client.Conn == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conns == nil {
		c.conns, c.closed = map[uint64]*clientConn{}, map[id.TopicPartition]*closedConns{}
	}
	conn := c.conns[req.Client.Conn]
	if conn == nil {
		conn = &clientConn{fetches: map[id.TopicPartition]fetchMark{}}
		c.conns[req.Client.Conn] = conn
	}
	conn.client = req.Client
	for i := range req.Items {
		it := &req.Items[i]
		conn.fetches[id.TopicPartition{Topic: it.Topic, Partition: it.Partition}] = fetchMark{it.Offset, now}
	}
}

// Fetches lists who fetched what, in no order. Only partitions that exist are listed.
func (m *Manager) Fetches() []FetchInfo {
	var all, out []FetchInfo
	led := map[id.TopicPartition]id.Offset{} // where the leadership began
	m.clients.mu.Lock()
	for _, conn := range m.clients.conns {
		for tp, f := range conn.fetches {
			all = append(all, FetchInfo{Client: conn.client, TopicPartition: tp, Offset: f.offset, Last: f.last})
			led[tp] = 0
		}
	}
	for tp := range m.clients.closed {
		led[tp] = 0
	}
	m.clients.mu.Unlock()
	for tp := range led {
		if start, _, ok := m.leads(tp); ok {
			led[tp] = start
		} else {
			delete(led, tp)
		}
	}
	for _, f := range all {
		if _, ok := led[f.TopicPartition]; ok || m.find(f.TopicPartition) != nil {
			out = append(out, f)
		}
	}
	m.clients.mu.Lock()
	defer m.clients.mu.Unlock()
	for tp := range m.clients.closed {
		if _, ok := led[tp]; !ok {
			delete(m.clients.closed, tp)
		}
	}
	for tp, start := range led {
		others := FetchInfo{TopicPartition: tp, Closed: true, End: start}
		if closed := m.clients.closed[tp]; closed != nil {
			others.End = max(start, closed.end)
			out = append(out, closed.known...)
		}
		out = append(out, others)
	}
	return out
}

// leads tells, while this broker leads a partition, where that began and the high watermark.
func (m *Manager) leads(tp id.TopicPartition) (start, hw id.Offset, ok bool) {
	r := m.find(tp)
	if r == nil {
		return 0, 0, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.s.lead.epochStart, r.s.hw, r.s.role == leading
}

// ConnectionClosed remembers what a client fetched as that of a closed connection.
func (m *Manager) ConnectionClosed(conn uint64) {
	m.clients.mu.Lock()
	c := m.clients.conns[conn]
	delete(m.clients.conns, conn)
	m.clients.mu.Unlock()
	if c == nil {
		return
	}
	for tp, f := range c.fetches {
		if _, hw, ok := m.leads(tp); ok {
			m.clients.remember(FetchInfo{Client: c.client, TopicPartition: tp, Offset: f.offset, Last: f.last, Closed: true, End: hw})
		}
	}
}

// remember keeps the newest closed connection of each client id and host, and of the oldest only how far it may have got.
func (c *clients) remember(f FetchInfo) {
	c.mu.Lock()
	defer c.mu.Unlock()
	closed := c.closed[f.TopicPartition]
	if closed == nil {
		closed = new(closedConns)
		c.closed[f.TopicPartition] = closed
	}
	closed.known = append(slices.DeleteFunc(closed.known, func(x FetchInfo) bool { return x.ClientID == f.ClientID && x.Host == f.Host }), f)
	if len(closed.known) > maxClosed {
		closed.end = max(closed.end, closed.known[0].End)
		closed.known = slices.Delete(closed.known, 0, 1)
	}
}
