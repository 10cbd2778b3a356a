package node

import (
	"context"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/lease"
)

func (n *node) lease() lease.Lease {
	var l lease.Lease
	l.Answered(n.clock.Boot())
	return l
}

func (n *node) report(ctx context.Context) error {
	for ctx.Err() == nil {
		r := n.zk.Touches()
		n.zk.AckTouches(r)
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
	return nil
}

func (n *node) leave() {}

func (n *node) control(ctx context.Context, term id.Term) { <-ctx.Done() }
