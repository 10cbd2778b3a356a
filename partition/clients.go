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
	ClientID string // a state.ClientKey
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

// fetched notes a request. Only partitions that exist are: a client may name any.
func (m *Manager) fetched(req *FetchRequest, now time.Duration) {
	if req.Client.Conn == 0 {
		return
	}
	client, c := req.Client, &m.clients
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conns == nil {
		c.conns, c.closed = map[uint64]*clientConn{}, map[id.TopicPartition]*closedConns{}
	}
	conn := c.conns[client.Conn]
	if conn == nil {
		conn = &clientConn{fetches: map[id.TopicPartition]fetchMark{}}
		c.conns[client.Conn] = conn
	}
	conn.client = client
	for i := range req.Items {
		it := &req.Items[i]
		if tp := (id.TopicPartition{Topic: it.Topic, Partition: it.Partition}); m.find(tp) != nil {
			conn.fetches[tp] = fetchMark{it.Offset, now}
		}
	}
}

// Fetches lists who fetched what: who still may, in no order, then who has gone, and last who is not known any more. Only partitions
// that exist are listed.
func (m *Manager) Fetches() []FetchInfo {
	c := &m.clients
	c.mu.Lock()
	lines := 0
	for _, conn := range c.conns {
		lines += len(conn.fetches)
	}
	all, seen := make([]FetchInfo, 0, lines), map[id.TopicPartition]struct{}{}
	for _, conn := range c.conns {
		for tp, f := range conn.fetches {
			all = append(all, FetchInfo{Client: conn.client, TopicPartition: tp, Offset: f.offset, Last: f.last})
			seen[tp] = struct{}{}
		}
	}
	for tp := range c.closed {
		seen[tp] = struct{}{}
	}
	c.mu.Unlock()
	starts, lost, gone := make(map[id.TopicPartition]id.Offset, len(seen)), []id.TopicPartition(nil), map[id.TopicPartition]struct{}{}
	for tp := range seen {
		if start, _, ok := m.leads(tp); ok {
			starts[tp] = start
			continue
		}
		lost = append(lost, tp)
		if m.find(tp) == nil {
			gone[tp] = struct{}{}
		}
	}
	if len(gone) > 0 {
		all = slices.DeleteFunc(all, func(f FetchInfo) bool { _, ok := gone[f.TopicPartition]; return ok })
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, tp := range lost { // and nothing that was closed meanwhile
		delete(c.closed, tp)
	}
	for tp := range starts {
		if closed := c.closed[tp]; closed != nil {
			all = append(all, closed.known...)
		}
	}
	for tp, start := range starts {
		if closed := c.closed[tp]; closed != nil {
			start = max(start, closed.end)
		}
		all = append(all, FetchInfo{TopicPartition: tp, Closed: true, End: start})
	}
	return all
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

// ConnectionClosed remembers what a client fetched as that of a closed connection. Its last fetch has ended.
func (m *Manager) ConnectionClosed(conn uint64) {
	c := &m.clients
	c.mu.Lock()
	was := c.conns[conn]
	c.mu.Unlock()
	if was == nil {
		return
	}
	var closed []FetchInfo
	for tp, f := range was.fetches {
		if _, hw, ok := m.leads(tp); ok {
			closed = append(closed, FetchInfo{Client: was.client, TopicPartition: tp, Offset: f.offset, Last: f.last, Closed: true, End: hw})
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.conns, conn) // together: there is no moment at which it is neither open nor closed
	for _, f := range closed {
		c.rememberLocked(f)
	}
}

// rememberLocked keeps the newest closed connection of each client id and host, and of the oldest only how far it may have got.
func (c *clients) rememberLocked(f FetchInfo) {
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
