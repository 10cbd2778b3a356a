package cluster

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"time"
)

// maxInflight bounds the request bytes that one connection's unfinished handlers may hold.
const maxInflight = 2 * MaxPayload

// serverConn is the answering side of one RPC connection.
type serverConn struct {
	c    *Cluster
	conn *conn
	wg   sync.WaitGroup // handlers

	mu       sync.Mutex
	peer     Peer
	running  map[uint64]context.CancelFunc
	inflight int
}

// serve runs an accepted RPC connection until it ends and its handlers have returned.
func (c *Cluster) serve(nc net.Conn, peer Peer) {
	s := &serverConn{c: c, conn: newConn(c.ctx, nc, &c.cfg), peer: peer, running: map[uint64]context.CancelFunc{}}
	c.mu.Lock()
	if c.stopped {
		c.mu.Unlock()
		s.conn.fail(ErrStopped)
		return
	}
	c.served[s] = struct{}{}
	s.conn.push(frameIdentity, 0, c.self.append(nil)) // what the handshake said may have changed since
	c.mu.Unlock()
	s.wg.Go(s.conn.runWriter)
	err := s.readRequests(nc)
	s.conn.fail(fmt.Errorf("%w: %w", ErrLost, err)) // cancels the handlers
	s.wg.Wait()
	c.mu.Lock()
	delete(c.served, s)
	c.mu.Unlock()
	c.peerLost(s.currentPeer())
}

func (s *serverConn) currentPeer() Peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peer
}

func (s *serverConn) readRequests(nc net.Conn) error {
	br := bufio.NewReaderSize(nc, 64<<10)
	for {
		limit := maxFrame
		if !s.currentPeer().Member {
			limit = strangerFrame
		}
		f, err := readFrame(br, limit)
		if err != nil {
			return err
		}
		switch f.typ {
		case frameRequest:
			if err := s.request(f); err != nil {
				return err
			}
		case frameCancel:
			s.mu.Lock()
			if cancel := s.running[f.call]; cancel != nil {
				cancel()
			}
			s.mu.Unlock()
		case frameIdentity:
			if err := s.identify(f.body); err != nil {
				return err
			}
		default:
			return fmt.Errorf("unexpected frame type %d", f.typ)
		}
	}
}

// identify takes a peer's news about itself: a stranger that has joined becomes a member.
func (s *serverConn) identify(body []byte) error {
	r := &reader{b: body}
	identity := readIdentity(r)
	self := s.c.Self()
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.bad || identity.Directory != s.peer.Directory {
		return fmt.Errorf("malformed identity from %s", s.peer.Directory)
	}
	if status, why := judge(self, kindRPC, "", identity); status != statusOK {
		return fmt.Errorf("%w: %s", ErrHandshake, why)
	}
	s.peer = Peer{Identity: identity, Member: isMember(self, identity)}
	return nil
}

// request starts the handler of one call, or refuses it.
func (s *serverConn) request(f frame) error {
	r := &reader{b: f.body}
	timeout := time.Duration(r.uint32()) * time.Millisecond
	method := string(r.take(int(r.uint8())))
	if r.bad {
		return fmt.Errorf("malformed request")
	}
	s.c.mu.Lock()
	h, ok := s.c.handlers[method]
	clusterID := s.c.self.ClusterID
	s.c.mu.Unlock()

	s.mu.Lock()
	peer := s.peer
	if !peer.Member && clusterID != "" && clusterID == peer.ClusterID { // this node has joined since the handshake
		peer.Member, s.peer.Member = true, true
	}
	var refusal *Error
	switch {
	case !ok:
		refusal = &Error{Code: CodeNoMethod, Message: "no method " + method + " here"}
	case !h.open && !peer.Member:
		refusal = &Error{Code: CodeStranger, Message: method + " serves members of the cluster only"}
	case len(s.running) >= s.c.cfg.MaxCalls || s.inflight+len(f.body) > maxInflight && s.inflight > 0:
		refusal = &Error{Code: CodeBusy, Message: fmt.Sprintf("%d calls with %d bytes are running for this peer", len(s.running), s.inflight)}
	case s.running[f.call] != nil:
		s.mu.Unlock()
		return fmt.Errorf("call number %d used twice", f.call)
	}
	if refusal != nil {
		s.mu.Unlock()
		return s.reply(f.call, nil, refusal)
	}
	var ctx context.Context
	var cancel context.CancelFunc
	if timeout > 0 {
		// The caller's cancel normally comes first; this is for one that is cut off.
		ctx, cancel = context.WithTimeout(s.conn.ctx, timeout+time.Second)
	} else {
		ctx, cancel = context.WithCancel(s.conn.ctx)
	}
	s.running[f.call] = cancel
	s.inflight += len(f.body)
	s.mu.Unlock()
	s.wg.Go(func() { s.run(ctx, cancel, h, peer, f, r.b) })
	return nil
}

func (s *serverConn) run(ctx context.Context, cancel context.CancelFunc, h handler, peer Peer, f frame, payload []byte) {
	defer cancel()
	b, err := h.f(ctx, peer, payload)
	s.mu.Lock()
	delete(s.running, f.call)
	s.inflight -= len(f.body)
	s.mu.Unlock()
	if err := s.reply(f.call, b, err); err != nil {
		s.conn.fail(err)
	}
}

// reply queues a handler's answer, waiting for room for as long as the connection lives.
func (s *serverConn) reply(call uint64, b net.Buffers, err error) error {
	if err == nil {
		n := 0
		for _, p := range b {
			n += len(p)
		}
		if n <= MaxPayload {
			return s.conn.enqueue(s.conn.ctx, frameReply, call, nil, b...)
		}
		err = &Error{Code: CodeInternal, Message: fmt.Sprintf("reply of %d bytes, at most %d", n, MaxPayload)}
	}
	e := toWire(err)
	msg := e.Message[:min(len(e.Message), frameSlack/2)]
	return s.conn.enqueue(s.conn.ctx, frameError, call, append(binary.BigEndian.AppendUint16(nil, uint16(e.Code)), msg...))
}
