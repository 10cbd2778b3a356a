package groupcoord

import (
	"context"
	"errors"
	"time"

	"github.com/barnabas-mq/barnabas/groupcoord/core"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// ErrNotCoordinator says that a commit was not taken by this node's coordinator, or that its term ended before the outcome was known:
// the client is to look for the coordinator and to commit again.
var ErrNotCoordinator = errors.New("this node is not the group coordinator")

// Committer takes commits in this process (Driver).
type Committer interface {
	Commit(ctx context.Context, limit time.Duration, c *statepb.CommitOffsets) (*statepb.Result, error)
}

// Commit has this node's coordinator carry a commit out, once. Unlike Do it is never repeated at the next coordinator: a client that
// gave up waiting may have committed a later offset there, and the repeat would lower it. What was proposed in a term stands, if
// at all, before everything of the next term. It takes no longer than limit; a context for that would cost a tenth of what a commit
// costs the coordinator. Errors: ErrNotCoordinator; ctx's, and context.DeadlineExceeded (outcome unknown).
func (c *Client) Commit(ctx context.Context, limit time.Duration, cmd *statepb.CommitOffsets) (*statepb.Result, error) {
	if c.cfg.Local == nil {
		return nil, ErrNotCoordinator
	}
	return c.cfg.Local.Commit(ctx, limit, cmd)
}

// Commit carries a commit out in the present term. The local view shows it when it returns, since the entry was applied here.
func (d *Driver) Commit(ctx context.Context, limit time.Duration, cmd *statepb.CommitOffsets) (*statepb.Result, error) {
	late := time.NewTimer(limit)
	defer late.Stop()
	re, err := d.do(ctx, late.C, core.Request{Command: &statepb.Command{Body: &statepb.Command_CommitOffsets{CommitOffsets: cmd}}})
	switch {
	case err == errNotCoordinator:
		return nil, ErrNotCoordinator
	case err != nil:
		return nil, err
	}
	return re.res, nil
}
