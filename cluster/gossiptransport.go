package cluster

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	maxPacket    = 1<<16 - 1
	packetQueue  = 128 // packets waiting for one address; more are dropped, as a network would
	maxSenders   = 1024
	senderIdle   = time.Minute
	inboundQueue = 256
)

// gossipTransport is memberlist's Transport on the cluster port: packets are frames (u16 length) on one pooled connection
// per address, streams are connections of their own. WriteTo never blocks.
type gossipTransport struct {
	c       *Cluster
	ip      net.IP
	port    int
	packets *streams
	streams *streams
	in      chan *memberlist.Packet
	inConn  chan net.Conn

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	senders map[string]chan []byte
}

var _ memberlist.Transport = (*gossipTransport)(nil)

func newGossipTransport(c *Cluster, ip net.IP, port int) *gossipTransport {
	t := &gossipTransport{c: c, ip: ip, port: port, packets: newStreams(c, kindPacket), streams: newStreams(c, kindStream),
		in: make(chan *memberlist.Packet, inboundQueue), inConn: make(chan net.Conn), senders: map[string]chan []byte{}}
	t.ctx, t.cancel = context.WithCancel(c.ctx)
	t.wg.Go(t.acceptPackets)
	t.wg.Go(t.acceptStreams)
	return t
}

// FinalAdvertiseAddr implements memberlist.Transport.
func (t *gossipTransport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.ip, t.port, nil
}

// WriteTo implements memberlist.Transport: it queues or drops.
func (t *gossipTransport) WriteTo(b []byte, addr string) (time.Time, error) {
	if len(b) > maxPacket {
		return time.Time{}, fmt.Errorf("cluster: gossip packet of %d bytes", len(b))
	}
	frame := append(binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(b)), uint16(len(b))), b...)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return time.Time{}, ErrStopped
	}
	q := t.senders[addr]
	if q == nil {
		if len(t.senders) >= maxSenders {
			return time.Time{}, fmt.Errorf("cluster: gossip with %d addresses already", maxSenders)
		}
		q = make(chan []byte, packetQueue)
		t.senders[addr] = q
		t.wg.Go(func() { t.send(addr, q) })
	}
	select {
	case q <- frame:
	default:
	}
	return time.Now(), nil
}

// send writes one address's packets until nothing comes for a while or the connection fails; what waits then is lost.
func (t *gossipTransport) send(addr string, q chan []byte) {
	defer func() {
		t.mu.Lock()
		delete(t.senders, addr)
		t.mu.Unlock()
	}()
	nc, err := t.packets.dial(ToAddr(addr), t.c.cfg.DialTimeout)
	if err != nil {
		return
	}
	defer nc.Close()
	idle := time.NewTimer(senderIdle)
	defer idle.Stop()
	for {
		select {
		case b := <-q:
			if nc.SetWriteDeadline(time.Now().Add(t.c.cfg.WriteTimeout)) != nil {
				return
			}
			if _, err := nc.Write(b); err != nil {
				return
			}
			idle.Reset(senderIdle)
		case <-idle.C:
			return
		case <-t.ctx.Done():
			return
		}
	}
}

// PacketCh implements memberlist.Transport.
func (t *gossipTransport) PacketCh() <-chan *memberlist.Packet { return t.in }

// DialTimeout implements memberlist.Transport.
func (t *gossipTransport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return t.streams.dial(ToAddr(addr), timeout)
}

// StreamCh implements memberlist.Transport.
func (t *gossipTransport) StreamCh() <-chan net.Conn { return t.inConn }

// Shutdown implements memberlist.Transport. wait waits for what it ends.
func (t *gossipTransport) Shutdown() error {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.cancel()
	_ = t.packets.Close()
	return t.streams.Close()
}

func (t *gossipTransport) wait() { t.wg.Wait() }

func (t *gossipTransport) acceptPackets() {
	for {
		nc, err := t.packets.Accept()
		if err != nil {
			return
		}
		t.wg.Go(func() { t.readPackets(nc.(*streamConn)) })
	}
}

func (t *gossipTransport) readPackets(nc *streamConn) {
	defer nc.Close()
	br := bufio.NewReader(nc)
	from := addrString(nc.peer.Addr)
	for {
		var head [2]byte
		if _, err := io.ReadFull(br, head[:]); err != nil {
			return
		}
		b := make([]byte, binary.BigEndian.Uint16(head[:]))
		if _, err := io.ReadFull(br, b); err != nil {
			return
		}
		select {
		case t.in <- &memberlist.Packet{Buf: b, From: from, Timestamp: time.Now()}:
		case <-t.ctx.Done():
			return
		}
	}
}

func (t *gossipTransport) acceptStreams() {
	for {
		nc, err := t.streams.Accept()
		if err != nil {
			return
		}
		select {
		case t.inConn <- nc:
		case <-t.ctx.Done():
			nc.Close()
			return
		}
	}
}
