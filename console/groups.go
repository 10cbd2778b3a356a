package console

import (
	"net/http"
	"time"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// rebalance is one explained rebalance, oldest first in the answer.
type rebalance struct {
	Time       time.Time `json:"time"`
	Generation int32     `json:"generation"`
	Cause      string    `json:"cause"`
	Why        string    `json:"why"`
	Before     int32     `json:"membersBefore"`
	After      int32     `json:"membersAfter"`
	Joined     []string  `json:"joined,omitempty"`
	Left       []string  `json:"left,omitempty"`
	WaitedMs   int64     `json:"waitedMs"`
	WaitedFor  string    `json:"waitedFor,omitempty"`
	Kind       string    `json:"kind,omitempty"`  // legacy: of znode consumers
	Holds      []string  `json:"holds,omitempty"` // requests that were held for it
}

// rebalances answers how a group's last generations came about, from this node's state.
func (c *Console) rebalances(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("group")
	var row *state.Group
	if c.cfg.View != nil {
		row, _ = c.cfg.View().Group(name)
	}
	if row == nil {
		reply(w, http.StatusNotFound, map[string]string{"error": "there is no group " + name})
		return
	}
	out := struct {
		Group      string      `json:"group"`
		Generation int32       `json:"generation"`
		Rebalances []rebalance `json:"rebalances"`
	}{name, row.Generation, []rebalance{}}
	for _, r := range row.Rebalances {
		out.Rebalances = append(out.Rebalances, rebalance{time.UnixMilli(r.WallMs).UTC(), r.Generation, r.Cause, r.Text, r.Before, r.After,
			r.Joined, r.Left, r.WaitedMs, r.WaitedFor, r.Kind, r.Holds})
	}
	reply(w, http.StatusOK, out)
}
