package partition

import (
	"sync"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
)

// Client is who fetches.
type Client struct {
	Conn     uint64 // of the listener; unique for the life of the process. 0: not registered
	ClientID string
	Address  string // remote host and port
}

// FetchInfo says who fetches what, for broker reports and for the fencing of dead legacy members (decisions.md 16).
type FetchInfo struct {
	Client
	id.TopicPartition
	Offset id.Offset     // of the last request
	Last   time.Duration // Boot time of the last request
}

// clients is the registry of Fetches.
type clients struct {
	mu    sync.Mutex
	conns map[uint64]*clientConn
}

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
		c.conns = map[uint64]*clientConn{}
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

// Fetches lists who fetched what and is still connected, in no order. Only partitions that exist are listed.
func (m *Manager) Fetches() []FetchInfo {
	m.clients.mu.Lock()
	var out []FetchInfo
	for _, conn := range m.clients.conns {
		for tp, f := range conn.fetches {
			out = append(out, FetchInfo{Client: conn.client, TopicPartition: tp, Offset: f.offset, Last: f.last})
		}
	}
	m.clients.mu.Unlock()
	known := out[:0]
	for _, f := range out {
		if m.find(f.TopicPartition) != nil {
			known = append(known, f)
		}
	}
	return known
}

// ConnectionClosed forgets a client's fetches.
func (m *Manager) ConnectionClosed(conn uint64) {
	m.clients.mu.Lock()
	defer m.clients.mu.Unlock()
	delete(m.clients.conns, conn)
}
