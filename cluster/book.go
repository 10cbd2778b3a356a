package cluster

import (
	"fmt"
	"strconv"

	"github.com/barnabas-mq/barnabas/internal/id"
)

// Target names the node a call goes to: exactly one of its fields is used, in this order.
type Target struct {
	Directory id.DirectoryID
	Broker    id.BrokerID // only when >= 0; made by ToBroker
	Addr      string
	byBroker  bool
}

// ToDirectory targets the node with that directory, wherever the address book says it is; another node that answers
// there is refused.
func ToDirectory(d id.DirectoryID) Target { return Target{Directory: d} }

// ToBroker targets the directory that holds that broker id (SetBroker).
func ToBroker(b id.BrokerID) Target { return Target{Broker: b, byBroker: true} }

// ToAddr targets whoever answers at "host:port" (a seed).
func ToAddr(addr string) Target { return Target{Addr: addr} }

func (t Target) String() string {
	switch {
	case t.Directory != "":
		return "directory " + string(t.Directory)
	case t.byBroker:
		return "broker " + strconv.Itoa(int(t.Broker))
	default:
		return t.Addr
	}
}

// SetAddress tells where a directory's node listens. Connections to its former address are closed.
func (c *Cluster) SetAddress(d id.DirectoryID, addr string) {
	c.mu.Lock()
	old := c.addrs[d]
	c.addrs[d] = addr
	c.mu.Unlock()
	if old != "" && old != addr {
		c.dropPeers(fmt.Errorf("%w: address of %s changed to %s", ErrLost, d, addr), func(k peerKey) bool { return k.dir == d })
	}
}

// SetBroker tells which directory holds a broker id.
func (c *Cluster) SetBroker(b id.BrokerID, d id.DirectoryID) {
	c.mu.Lock()
	c.brokers[b] = d
	c.mu.Unlock()
}

// Forget removes a directory from the address book and closes the connections to it.
func (c *Cluster) Forget(d id.DirectoryID) {
	c.mu.Lock()
	delete(c.addrs, d)
	for b, dir := range c.brokers {
		if dir == d {
			delete(c.brokers, b)
		}
	}
	c.mu.Unlock()
	c.dropPeers(fmt.Errorf("%w: %s was removed", ErrLost, d), func(k peerKey) bool { return k.dir == d })
}

// Address returns where a directory's node listens, as SetAddress told.
func (c *Cluster) Address(d id.DirectoryID) (addr string, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	addr, known = c.addrs[d]
	return addr, known
}

// resolve returns the address to dial and the directory that must answer ("" for any).
func (c *Cluster) resolve(t Target) (addr string, dir id.DirectoryID, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	dir = t.Directory
	if dir == "" && t.byBroker {
		if dir = c.brokers[t.Broker]; dir == "" {
			return "", "", fmt.Errorf("cluster: %s: %w: not in the address book", t, ErrUnreachable)
		}
	}
	if dir == "" {
		return t.Addr, "", nil
	}
	if dir == c.cfg.Directory {
		return "", dir, nil
	}
	addr, ok := c.addrs[dir]
	if !ok {
		return "", "", fmt.Errorf("cluster: %s: %w: not in the address book", t, ErrUnreachable)
	}
	return addr, dir, nil
}
