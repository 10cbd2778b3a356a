package groupcoord

import (
	"context"
	"errors"
	"time"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
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
// costs the coordinator. Errors: ErrNotCoordinator; state.ErrTooLarge; ctx's, and context.DeadlineExceeded (outcome unknown).
func (c *Client) Commit(ctx context.Context, limit time.Duration, cmd *statepb.CommitOffsets) (*statepb.Result, error) {
	if c.cfg.Local == nil {
		return nil, ErrNotCoordinator
	}
	return c.cfg.Local.Commit(ctx, limit, cmd)
}

// Commit carries a commit out in the present term. It does not ask the mind, which has no say in it, but tells it. The local view
// shows the commit when it returns, since the entry was applied here.
func (d *Driver) Commit(ctx context.Context, limit time.Duration, cmd *statepb.CommitOffsets) (*statepb.Result, error) {
	d.mu.Lock()
	t := d.term
	d.mu.Unlock()
	if t == nil {
		return nil, ErrNotCoordinator
	}
	type outcome struct {
		res *statepb.Result
		err error
	}
	done := make(chan outcome, 1)          // nobody may be there any more
	group, member := cmd.Group, cmd.Member // cmd is the caller's again when this returns
	d.cfg.Proposer.ProposeAllInTerm(t.n, []*statepb.Command{{Body: &statepb.Command_CommitOffsets{CommitOffsets: cmd}}},
		func(_, _ int, rs []state.Settled, err error) {
			if err != nil {
				d.cfg.Log.Debug("a commit's outcome is unknown, or it was not taken", "term", t.n, "group", group, "err", err)
				done <- outcome{err: err}
				return
			}
			t.committed(group, member, rs[0].Result) // before the answer: what the client does next comes after it
			done <- outcome{res: rs[0].Result}
		})
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case o := <-done:
		switch {
		case errors.Is(o.err, state.ErrTooLarge):
			return nil, o.err
		case o.err != nil, o.res.Code == statepb.Code_STALE_TERM:
			return nil, ErrNotCoordinator
		}
		return o.res, nil
	case <-late.C:
		return nil, context.DeadlineExceeded
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// committed tells the mind, if there is something in it for it; the entry is in the inbox already.
func (t *term) committed(group, member string, res *statepb.Result) {
	if member == "" && len(res.Parts) == 0 || res.Code == statepb.Code_STALE_TERM {
		return
	}
	t.in.Lock()
	if !t.in.closed {
		t.in.committed = append(t.in.committed, committed{group, member, res})
	}
	t.in.Unlock()
	t.poke()
}
