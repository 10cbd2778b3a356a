// Package core holds the coordinator's decisions: PURE. A Mind is fed requests, results, changes of the view and the time,
// and answers with Actions; the driver (package groupcoord) carries them out. Nothing but Apply changes the state: a Mind
// keeps only what dies with its term (parked requests, deadlines).
package core

import (
	"bytes"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/raftmeta/state/statepb"
)

// RequestID names one request at the coordinator: the driver numbers them.
type RequestID uint64

// Request is what a node asks for one of its clients.
type Request struct {
	ID RequestID
	// Repeat: an earlier coordinator may have carried it out already, its answer was lost.
	Repeat bool
	// Command is what the client wants, in the form of the command that grants it. The mind may propose it as it is,
	// propose another, hold it, or refuse.
	Command *statepb.Command
}

// Action is one thing for the driver to do. A request without a Reply stays parked.
type Action struct {
	Request RequestID
	Propose *statepb.Command // propose it in this term; Settled follows
	Reply   *statepb.Result  // answer the request; it is over
}

// Mind is one term of the coordinator. The driver calls it from one goroutine. now is monotonic; views never go back.
//
//	Request   a new request: Propose, Reply, or nothing (parked)
//	Settled   what a proposed command came to
//	Changed   the view moved on; changes are in order
//	Cancel    the request's client, session or node is gone: forget it, no Reply
//	Deadline  when Expire wants to be called next
//	Expire    that moment has come
type Mind interface {
	Request(v *state.View, r Request, now time.Duration) []Action
	Settled(v *state.View, r RequestID, res *statepb.Result, now time.Duration) []Action
	Changed(v *state.View, changes []state.Change, now time.Duration) []Action
	Cancel(v *state.View, r RequestID, now time.Duration) []Action
	Deadline() (at time.Duration, ok bool)
	Expire(v *state.View, now time.Duration) []Action
}

// Coordinator is the mind of groups: today it grants owners and offsets one by one, by conditional commands, and holds
// nothing.
type Coordinator struct {
	open map[RequestID]Request
}

var _ Mind = (*Coordinator)(nil)

// NewCoordinator starts a term without memory of earlier ones.
func NewCoordinator() *Coordinator { return &Coordinator{open: map[RequestID]Request{}} }

// Request proposes what the coordinator owns and refuses everything else.
func (c *Coordinator) Request(_ *state.View, r Request, _ time.Duration) []Action {
	switch r.Command.GetBody().(type) {
	case *statepb.Command_ClaimOwner, *statepb.Command_CommitOffsets, *statepb.Command_DeleteOffsets:
		c.open[r.ID] = r
		return []Action{{Request: r.ID, Propose: r.Command}}
	}
	return []Action{{Request: r.ID, Reply: &statepb.Result{Code: statepb.Code_INVALID, Text: "not a request of groups"}}}
}

// Settled answers with the command's result. A repeated claim that finds its own owner has succeeded the first time.
func (c *Coordinator) Settled(v *state.View, id RequestID, res *statepb.Result, _ time.Duration) []Action {
	r, ok := c.open[id]
	if !ok {
		return nil
	}
	delete(c.open, id)
	if claim := r.Command.GetClaimOwner(); claim != nil && r.Repeat && res.Code == statepb.Code_NODE_EXISTS {
		if path, own := ownClaim(v, r.Command); own {
			res = &statepb.Result{Index: res.Index, Zxid: int64(v.ZXID()), Path: path}
		}
	}
	return []Action{{Request: id, Reply: res}}
}

// ownClaim reports whether the owner that a claim met is the claim itself.
func ownClaim(v *state.View, cmd *statepb.Command) (path string, own bool) {
	c := cmd.GetClaimOwner()
	z, ok := v.Owner(c.Group, c.Topic, c.Name)
	session := cmd.GetOrigin().GetSession()
	own = ok && session != 0 && id.SessionID(z.Stat.EphemeralOwner) == id.SessionID(session) && bytes.Equal(z.Data, c.Data)
	return "/consumers/" + c.Group + "/owners/" + c.Topic + "/" + c.Name, own
}

// Changed needs nothing: nothing is held.
func (c *Coordinator) Changed(*state.View, []state.Change, time.Duration) []Action { return nil }

// Cancel forgets a request; its command, once proposed, stands.
func (c *Coordinator) Cancel(_ *state.View, r RequestID, _ time.Duration) []Action {
	delete(c.open, r)
	return nil
}

// Deadline is never: nothing is held.
func (c *Coordinator) Deadline() (time.Duration, bool) { return 0, false }

// Expire has nothing to do.
func (c *Coordinator) Expire(*state.View, time.Duration) []Action { return nil }
