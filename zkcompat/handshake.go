package zkcompat

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/zkcompat/jute"
)

// handshake answers the connect request. ok means that a session is attached; an error or !ok ends the connection.
//
// A session that is not there is answered with timeout 0, id 0 and a zero password, then closed: only that tells a
// client that its session is over (ZooKeeperServer.finishSessionInit). Everything that is only *unknown* (no leader,
// a node behind its client) closes without a word, so that the client tries another node with the same session.
func (c *conn) handshake(body []byte) (ok bool, err error) {
	var req jute.ConnectRequest
	if err := req.Decode(body); err != nil {
		return false, fmt.Errorf("a connect request of %d bytes: %w", len(body), err)
	}
	if err := c.catchUp(req.LastZxidSeen); err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(c.ctx, c.s.cfg.ConnectTimeout)
	defer cancel()
	c.attached = c.s.cfg.Clock.Boot()
	session, err := c.attach(ctx, &req)
	if err == nil {
		err = c.s.awaitIndex(ctx, session.Index)
	}
	switch {
	case errors.Is(err, ErrSessionGone):
		c.s.say(slog.LevelInfo, fault{host: hostOf(c.nc), why: "gone"}, "a client's session is gone", "remote", c.nc.RemoteAddr(),
			"session", fmt.Sprintf("0x%x", uint64(req.SessionID)))
		c.refuse(&req)
		return false, nil
	case err != nil:
		return false, fmt.Errorf("no session could be attached: %w", err)
	}
	c.caller, c.timeout = session.Caller, session.Timeout
	c.heard.Store(int64(c.s.cfg.Clock.Boot()))
	resp := jute.ConnectResponse{TimeoutMs: int32(session.Timeout.Milliseconds()), SessionID: int64(session.Session),
		Password: session.Password, HasReadOnly: req.HasReadOnly}
	if !c.s.bind(c, func() { c.event(frame(resp.Append)) }) {
		return false, errors.New("its session ended or moved on while it was attached")
	}
	c.s.stats.started.Add(1)
	return true, nil
}

// catchUp waits a moment for this node to see what the client has seen on another one.
func (c *conn) catchUp(zxid int64) error {
	ctx, cancel := context.WithTimeout(c.ctx, c.s.cfg.AheadWait)
	defer cancel()
	if err := c.s.await(ctx, func(t Tree) bool { return int64(t.Zxid()) >= zxid }); err != nil {
		return fmt.Errorf("the client has seen zxid 0x%x, this node not yet; it must try another one", zxid)
	}
	return nil
}

func (c *conn) attach(ctx context.Context, req *jute.ConnectRequest) (Session, error) {
	host := hostOf(c.nc)
	timeout := c.s.clamp(req.TimeoutMs)
	if req.SessionID == 0 {
		return c.s.cfg.Backend.OpenSession(ctx, timeout, host)
	}
	return c.s.cfg.Backend.AttachSession(ctx, id.SessionID(req.SessionID), req.Password, timeout, host)
}

// refuse says that the session is over, and closes.
func (c *conn) refuse(req *jute.ConnectRequest) {
	resp := jute.ConnectResponse{Password: make([]byte, 16), HasReadOnly: req.HasReadOnly}
	c.lastWord(frame(resp.Append))
}

func frame(body func([]byte) []byte) []byte {
	b, start := jute.BeginFrame(nil)
	return jute.EndFrame(body(b), start)
}
