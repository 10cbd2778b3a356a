package broker

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// groupWait bounds how long a member's request that nobody parks waits through a fail-over: then its client looks for the
// coordinator again.
const groupWait = 5 * time.Second

// ask passes a group request to the coordinator and returns its answer, or ok false: then the client is to look for its
// coordinator. wait 0 waits as long as the client does, for a JoinGroup or SyncGroup is parked there.
func (s *Server) ask(ctx context.Context, c *call, req kmsg.Request, wait time.Duration) (resp kmsg.Response, ok bool) {
	if ctl, _ := s.deps.Views.View().Controller(); ctl != s.cfg.ID {
		return nil, false
	}
	if wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, wait)
		defer cancel()
	}
	resp, err := s.deps.Groups.Ask(ctx, c.clientID, c.host, req)
	return resp, err == nil
}
