package partition

import (
	"cmp"
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
	// Closed: the connection is no more. Only the one that fetched last of each client id and host is told; without a host it stands for
	// everybody else that ever fetched the partition from this process.
	Closed bool
}

// clients is the registry of Fetches.
type clients struct {
	mu     sync.Mutex
	conns  map[uint64]*clientConn
	closed map[id.TopicPartition]*closedConns
}

// closedConns are connections that fetched a partition.
type closedConns struct {
	known  []FetchInfo // at most maxClosed
	others []FetchInfo // one that stands for them, when there are
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
	m.clients.mu.Lock()
	defer m.clients.mu.Unlock()
	var out []FetchInfo
	for _, conn := range m.clients.conns {
		for tp, f := range conn.fetches {
			if m.find(tp) != nil {
				out = append(out, FetchInfo{Client: conn.client, TopicPartition: tp, Offset: f.offset, Last: f.last})
			}
		}
	}
	for tp, closed := range m.clients.closed {
		if m.find(tp) == nil {
			delete(m.clients.closed, tp)
			continue
		}
		out = slices.Concat(out, closed.known, closed.others)
	}
	return out
}

// ConnectionClosed remembers what a client fetched as that of a closed connection.
func (m *Manager) ConnectionClosed(conn uint64) {
	m.clients.mu.Lock()
	defer m.clients.mu.Unlock()
	c := m.clients.conns[conn]
	if c == nil {
		return
	}
	delete(m.clients.conns, conn)
	for tp, f := range c.fetches {
		if m.find(tp) == nil {
			continue
		}
		closed := m.clients.closed[tp]
		if closed == nil {
			closed = new(closedConns)
			m.clients.closed[tp] = closed
		}
		closed.remember(FetchInfo{Client: c.client, TopicPartition: tp, Offset: f.offset, Last: f.last, Closed: true})
	}
}

// remember keeps the newest closed connection of each client id and host; the oldest of too many stands for all others.
func (c *closedConns) remember(f FetchInfo) {
	i := slices.IndexFunc(c.known, func(x FetchInfo) bool { return x.ClientID == f.ClientID && x.Host == f.Host })
	if i < 0 {
		i = len(c.known)
		c.known = append(c.known, f)
	}
	if c.known[i].Last <= f.Last {
		c.known[i] = f
	}
	if len(c.known) <= maxClosed {
		return
	}
	old := slices.MinFunc(c.known, func(a, b FetchInfo) int { return cmp.Compare(a.Last, b.Last) })
	c.known = slices.DeleteFunc(c.known, func(x FetchInfo) bool { return x.Conn == old.Conn })
	old.ClientID, old.Host = "", ""
	if len(c.others) == 0 || c.others[0].Last <= old.Last {
		c.others = []FetchInfo{old}
	}
}
