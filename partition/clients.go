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
	Last time.Duration // Boot time of the last request; 0 when Closed
	// Closed: the connection is no more, and got no record from End on. Only the one that got most of each client id and host is told;
	// without a host it stands for everybody else that ever got a record. Told by the leader only.
	Closed bool
	End    id.Offset
}

// clients is the registry of Fetches.
type clients struct {
	mu     sync.Mutex // taken before a replica's, never after it
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
	fetches map[id.TopicPartition]time.Duration // Boot time of the last request
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
		conn = &clientConn{fetches: map[id.TopicPartition]time.Duration{}}
		c.conns[client.Conn] = conn
	}
	conn.client = client
	for i := range req.Items {
		it := &req.Items[i]
		if tp := (id.TopicPartition{Topic: it.Topic, Partition: it.Partition}); m.find(tp) != nil {
			conn.fetches[tp] = now
		}
	}
}

// Fetches lists who fetched what: who still may, in no order, then who has gone, and last who is not known any more. Only partitions
// that exist are listed.
func (m *Manager) Fetches() []FetchInfo {
	c := &m.clients
	c.mu.Lock()
	defer c.mu.Unlock()
	lines := 0
	for _, conn := range c.conns {
		lines += len(conn.fetches)
	}
	all, ends := make([]FetchInfo, 0, lines), map[id.TopicPartition]id.Offset{} // of the others, where this broker leads
	for _, conn := range c.conns {
		for tp, last := range conn.fetches {
			if _, known := ends[tp]; !known {
				start, _, ok := m.leads(tp)
				if ok {
					ends[tp] = start
				} else if m.find(tp) == nil {
					continue
				}
			}
			all = append(all, FetchInfo{Client: conn.client, TopicPartition: tp, Last: last})
		}
	}
	for tp, closed := range c.closed {
		start, _, ok := m.leads(tp)
		if !ok {
			delete(c.closed, tp)
			continue
		}
		all, ends[tp] = append(all, closed.known...), max(start, closed.end)
	}
	for tp, end := range ends {
		all = append(all, FetchInfo{TopicPartition: tp, Closed: true, End: end})
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
	defer c.mu.Unlock()
	was := c.conns[conn]
	if was == nil {
		return
	}
	delete(c.conns, conn)
	for tp := range was.fetches {
		if _, hw, ok := m.leads(tp); ok {
			c.rememberLocked(FetchInfo{Client: was.client, TopicPartition: tp, Closed: true, End: hw})
		}
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
