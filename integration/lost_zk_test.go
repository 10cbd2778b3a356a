package integration

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/barnabas-mq/barnabas/zkcompat/jute"
)

// zsession is a ZooKeeper client without back-off: what is under way when its connection breaks has failed (errLost), and it is with the next
// node at once, where it sets its watches again. (go-zookeeper waits, and its setWatches race with its reader.) Two goroutines, until
// close.
type zsession struct {
	hosts   []string // in the order in which they are tried
	dial    func(addr string) (net.Conn, error)
	timeout time.Duration // of the session

	mu       sync.Mutex
	conn     net.Conn // nil: none now
	xid      int32
	id, zxid int64
	password []byte
	waiting  map[int32]chan zreply
	watches  map[string]chan struct{} // of children, closed by the event
	expired  bool
	ended    bool
	quit     chan struct{}
	wg       sync.WaitGroup
}

type zreply struct {
	err  error
	body []byte
}

// zfault is an error that the server answered.
type zfault jute.Code

func (f zfault) Error() string { return jute.Code(f).String() }

const (
	errNoNode     = zfault(jute.NoNode)
	errNodeExists = zfault(jute.NodeExists)
)

var (
	errLost    = errors.New("the connection was lost")
	errExpired = errors.New("the session has expired")
)

func newZSession(hosts []string, timeout time.Duration, dial func(addr string) (net.Conn, error)) *zsession {
	z := &zsession{hosts: hosts, dial: dial, timeout: timeout, password: make([]byte, 16), waiting: map[int32]chan zreply{}, watches: map[string]chan struct{}{},
		quit: make(chan struct{})}
	z.wg.Go(z.run)
	z.wg.Go(z.ping)
	return z
}

// close ends the session.
func (z *zsession) close() {
	_, _ = z.ask(jute.OpClose, nil)
	z.vanish()
	z.wg.Wait()
}

// vanish ends the client without a word: its session lasts until it is missed.
func (z *zsession) vanish() {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.ended {
		return
	}
	z.ended = true
	close(z.quit)
	if z.conn != nil {
		z.conn.Close()
	}
}

func (z *zsession) session() int64 {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.id
}

func (z *zsession) run() {
	for turn := 0; ; turn++ {
		conn, err := z.dial(z.hosts[turn%len(z.hosts)])
		if err == nil {
			if err = z.attach(conn); err == nil {
				z.read(conn)
			}
			conn.Close()
			z.lose()
		}
		select {
		case <-z.quit:
			return
		case <-time.After(10 * time.Millisecond):
		}
		z.mu.Lock()
		expired := z.expired
		z.mu.Unlock()
		if expired {
			return
		}
	}
}

// attach opens the session, or resumes it with its watches.
func (z *zsession) attach(conn net.Conn) error {
	z.mu.Lock()
	req := jute.ConnectRequest{LastZxidSeen: z.zxid, TimeoutMs: int32(z.timeout.Milliseconds()), SessionID: z.id, Password: z.password}
	z.mu.Unlock()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Write(zframe(req.Append(nil))); err != nil {
		return err
	}
	b, err := zread(conn)
	if err != nil {
		return err
	}
	var resp jute.ConnectResponse
	if err := resp.Decode(b); err != nil {
		return err
	}
	_ = conn.SetDeadline(time.Time{})
	z.mu.Lock()
	defer z.mu.Unlock()
	if resp.TimeoutMs == 0 || z.ended {
		z.expired = !z.ended
		return errExpired
	}
	z.id, z.password, z.conn = resp.SessionID, append([]byte(nil), resp.Password...), conn
	set := jute.SetWatches{RelativeZxid: z.zxid}
	for path := range z.watches {
		set.Child = append(set.Child, path)
	}
	if len(set.Child) == 0 {
		return nil
	}
	_, err = conn.Write(zframe(set.Append(jute.RequestHeader{Xid: -8, Op: jute.OpSetWatches}.Append(nil))))
	return err
}

// read hands out replies and events until the connection ends.
func (z *zsession) read(conn net.Conn) {
	for {
		b, err := zread(conn)
		if err != nil {
			return
		}
		h, rest, err := jute.DecodeReply(b)
		if err != nil {
			return
		}
		z.mu.Lock()
		if h.Zxid > 0 {
			z.zxid = h.Zxid
		}
		var e jute.Event
		if h.Xid == jute.XidEvent && e.Decode(rest) == nil {
			if c := z.watches[e.Path]; c != nil {
				close(c)
				delete(z.watches, e.Path)
			}
		}
		if c := z.waiting[h.Xid]; c != nil {
			delete(z.waiting, h.Xid)
			r := zreply{body: rest}
			if h.Err != jute.OK {
				r.err = zfault(h.Err)
			}
			c <- r
		}
		z.mu.Unlock()
	}
}

func (z *zsession) lose() {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.conn = nil
	for xid, c := range z.waiting {
		c <- zreply{err: errLost}
		delete(z.waiting, xid)
	}
}

func (z *zsession) ping() {
	for {
		select {
		case <-z.quit:
			return
		case <-time.After(2 * time.Second):
		}
		z.mu.Lock()
		if z.conn != nil {
			_, _ = z.conn.Write(zframe(jute.RequestHeader{Xid: jute.XidPing, Op: jute.OpPing}.Append(nil)))
		}
		z.mu.Unlock()
	}
}

// ask sends one request and waits for its reply, or the end of the connection.
func (z *zsession) ask(op jute.Op, body []byte) ([]byte, error) {
	c := make(chan zreply, 1)
	z.mu.Lock()
	switch {
	case z.expired:
		z.mu.Unlock()
		return nil, errExpired
	case z.conn == nil:
		z.mu.Unlock()
		return nil, errLost
	}
	z.xid++
	z.waiting[z.xid] = c
	_, err := z.conn.Write(zframe(append(jute.RequestHeader{Xid: z.xid, Op: op}.Append(nil), body...)))
	z.mu.Unlock()
	if err != nil {
		return nil, errLost
	}
	select {
	case r := <-c:
		return r.body, r.err
	case <-z.quit:
		return nil, errLost
	}
}

func (z *zsession) create(path string, data []byte, flags int32) error {
	req := jute.CreateRequest{Path: path, Data: data, ACL: []jute.ACL{{Perms: 31, Scheme: "world", ID: "anyone"}}, Flags: flags}
	_, err := z.ask(jute.OpCreate, req.Append(nil))
	return err
}

func (z *zsession) delete(path string) error {
	_, err := z.ask(jute.OpDelete, (&jute.PathVersion{Path: path, Version: -1}).Append(nil))
	return err
}

func (z *zsession) set(path string, data []byte) error {
	_, err := z.ask(jute.OpSetData, (&jute.SetDataRequest{Path: path, Data: data, Version: -1}).Append(nil))
	return err
}

func (z *zsession) get(path string) ([]byte, jute.Stat, error) {
	body, err := z.ask(jute.OpGetData, (&jute.PathWatch{Path: path}).Append(nil))
	if err != nil {
		return nil, jute.Stat{}, err
	}
	d := jute.NewDecoder(body)
	data := d.Bytes()
	stat := d.Stat()
	return data, stat, d.Err()
}

// children lists a node's children and, if it is there, watches them until they change.
func (z *zsession) children(path string, watch bool) (names []string, changed <-chan struct{}, err error) {
	c := make(chan struct{})
	if watch { // an event may come with the reply
		z.mu.Lock()
		z.watches[path] = c
		z.mu.Unlock()
	}
	body, err := z.ask(jute.OpGetChildren, (&jute.PathWatch{Path: path, Watch: watch}).Append(nil))
	if err != nil {
		return nil, nil, err
	}
	d := jute.NewDecoder(body)
	names = d.Strings()
	return names, c, d.Err()
}

func zframe(body []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

func zread(r io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint32(size[:])&0xffffff)
	_, err := io.ReadFull(r, b)
	return b, err
}
