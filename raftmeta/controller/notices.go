package controller

import (
	"slices"
	"strings"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// KeepNotices is how long a tool's notice of a changed configuration is kept. By then every broker of Kafka's would have read it;
// here nobody does, since the change itself is the command (ZkNodeChangeNotificationListener.changeExpirationMs).
const KeepNotices = 15 * time.Minute

const (
	noticeDir    = "/config/changes"
	noticePrefix = noticeDir + "/config_change_"

	maxNotices = 64 // deleted in one turn
)

// notices is when each notice was first seen in this term, by path.
type notices struct {
	seen map[string]time.Duration
	next time.Duration // nothing is due before
}

func newNotices(v *state.View, now time.Duration) notices {
	n := notices{seen: map[string]time.Duration{}}
	v.ZnodeChildren(noticeDir, func(name string, _ *state.Znode) bool {
		n.put(noticeDir+"/"+name, now)
		return true
	})
	return n
}

func (n *notices) put(path string, now time.Duration) {
	if strings.HasPrefix(path, noticePrefix) {
		n.seen[path] = now
		n.next = min(n.next, now+KeepNotices)
	}
}

// due takes out the oldest notices that have been there long enough, at most maxNotices of them.
func (n *notices) due(now time.Duration) (paths []string) {
	if now < n.next || len(n.seen) == 0 {
		return nil
	}
	for path, since := range n.seen {
		if now >= since+KeepNotices {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths) // their numbers have ten digits: this is their age
	paths = paths[:min(len(paths), maxNotices)]
	for _, path := range paths {
		delete(n.seen, path)
	}
	n.next = now + KeepNotices
	for _, since := range n.seen {
		n.next = min(n.next, since+KeepNotices)
	}
	return paths
}

// decideNotices deletes old notices. One whose outcome is unknown is tried again when it would be due again.
func (c *Controller) decideNotices(out []Decision, now time.Duration, at func(time.Duration)) []Decision {
	for _, path := range c.notices.due(now) {
		out = append(out, c.take(&statepb.Command{Body: &statepb.Command_DeleteZnode{DeleteZnode: &statepb.DeleteZnode{Path: path, Version: -1}}},
			flight{broker: id.NoBroker, notice: path}))
	}
	if len(c.notices.seen) > 0 {
		at(c.notices.next)
	}
	return out
}
