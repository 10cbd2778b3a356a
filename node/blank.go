package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/barnabas-mq/barnabas/cluster"
	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/internal/vfs"
)

// A voter of barnabas.voters with an empty directory is new, or it has lost what it voted for and what it acknowledged. The
// second may neither vote (it could undo what a majority has committed) nor be taken for the broker that it was (its log
// would count as in sync). So it asks the other voters before it takes part. Every committed registration is known to one of
// them; it waits until all have answered.

// methodKnows asks a voter whether the caller's directory was registered before; the answer is one of the bytes below.
const methodKnows = "node.knows"

const (
	knowsNot = 'n' // it was not, or there is no cluster yet
	knows    = 'y'
	notYet   = 'l' // this node has not caught up
)

const (
	knowsPause = 50 * time.Millisecond
	knowsLimit = 2 * time.Second // for one answer
	sayAfter   = 5 * time.Second // of waiting, a line in the log
)

// isBlank says whether Raft has never run in this directory.
func (d *dataDir) isBlank() (bool, error) {
	names, err := d.fs.ReadDir(d.raft())
	if err != nil && !errors.Is(err, vfs.ErrNotExist) {
		return false, fmt.Errorf("data directory: %w", err)
	}
	return len(names) == 0, nil
}

// handleKnows answers methodKnows.
func (n *node) handleKnows(_ context.Context, p cluster.Peer, _ []byte) ([]byte, error) {
	if _, known := n.raft.View().BrokerByDirectory(p.Directory); known {
		return []byte{knows}, nil
	}
	select {
	case <-n.registered: // the view holds all that was committed before this node's start
		return []byte{knowsNot}, nil
	default:
	}
	if n.blank {
		return []byte{knowsNot}, nil
	}
	return []byte{notYet}, nil
}

// mayVote returns when this node may take part in Raft; its error says why it never may.
func (n *node) mayVote(ctx context.Context) error {
	if !n.blank {
		return nil
	}
	var ask []id.DirectoryID
	for _, v := range n.cfg.Voters {
		if v.Directory != n.dir.Directory {
			ask = append(ask, v.Directory)
		}
	}
	say := time.Now().Add(sayAfter)
	for {
		var left []id.DirectoryID
		var waits []string
		for _, d := range ask {
			answer, why := n.askKnows(ctx, d)
			switch answer {
			case knowsNot:
			case knows:
				return fmt.Errorf("the data directory %s is empty, but this node (%s) has been a part of the cluster: what it stored and voted for is gone, "+
					"so it may not come back as the same node, and the others go on without it: put its old directory back", n.dir.path, n.dir.Directory)
			default:
				left, waits = append(left, d), append(waits, fmt.Sprintf("%s: %s", d, why))
			}
		}
		if ask = left; len(ask) == 0 {
			return nil
		}
		if !say.IsZero() && time.Now().After(say) {
			say = time.Time{}
			n.log.Warn("the data directory is empty: this node takes part once all other voters have said that it is new", "waits for", strings.Join(waits, "; "))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(knowsPause):
		}
	}
}

func (n *node) askKnows(ctx context.Context, d id.DirectoryID) (answer byte, why string) {
	ctx, cancel := context.WithTimeout(ctx, knowsLimit)
	defer cancel()
	b, err := n.cluster.Call(ctx, cluster.ToDirectory(d), methodKnows, nil)
	switch {
	case err != nil:
		return 0, err.Error()
	case len(b) != 1 || b[0] == notYet:
		return notYet, "it has not caught up yet"
	}
	return b[0], ""
}
