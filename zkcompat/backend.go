package zkcompat

import (
	"context"
	"errors"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
	"github.com/barnabas-mq/barnabas/zkcompat/jute"
	"github.com/barnabas-mq/barnabas/zkcompat/ztree"
)

// Tree is an immutable view of all nodes and sessions at one index. All methods may be called from any goroutine.
type Tree interface {
	// Index is the last applied log entry, Zxid the last change.
	Index() id.Index
	Zxid() id.ZXID
	// Node returns the node at path as o sees it. Path "" is the root, as in ZooKeeper.
	Node(path string, o ztree.Observer) (ztree.Node, bool)
	// Children appends the names below path to names, in any order, and returns the node's stat too.
	Children(path string, o ztree.Observer, names []string) ([]string, ztree.Stat, bool)
	// Gated tells whether o is shown the node at path as a generation published it (group barriers), and by which change. What
	// happens to the node itself is then no event for o: an Event of type Shown says when o is shown something else.
	Gated(path string, o ztree.Observer) (since id.ZXID, gated bool)
	// Unlimited tells whether o may read as fast as it likes: the load gate of its group is off.
	Unlimited(o ztree.Observer) bool
	// Listing returns the generation that o is shown when path is the list of a group's members; else nil.
	Listing(path string, o ztree.Observer) *state.Legacy
	// Session tells whether a session lives and which attachment is its newest.
	Session(s id.SessionID) (attachEpoch uint64, ok bool)
}

// Update is one applied log entry, or several.
type Update struct {
	Tree   Tree
	Events []ztree.Event
	// Sessions that ended or were attached anew; what became of each is in Tree.
	Sessions []id.SessionID
	// Reset: the tree does not follow from the one before (a received snapshot); Events and Sessions are unknown.
	Reset bool
}

// Caller is the session that asks, at the attachment that this connection is.
type Caller struct {
	Session     id.SessionID
	AttachEpoch uint64
}

// Session is what opening or attaching one gave.
type Session struct {
	Caller
	Password []byte
	Timeout  time.Duration
	Index    id.Index // the view must have reached it before the client is answered
}

// Write is a client's create, delete, setData or setACL. Path, ACL and flags have been checked for form.
type Write struct {
	Op                    jute.Op
	Path                  string
	Data                  []byte // nil is null
	ACL                   []jute.ACL
	Version               int32
	Ephemeral, Sequential bool
}

// Result is what became of a write. With a Code the other fields but Index mean nothing.
type Result struct {
	Code   jute.Code
	Path   string      // of a created node
	Stat   *ztree.Stat // of the node written; nil: as the tree shows it
	Index  id.Index
	Reason string // of a refusal that is worth a log line
}

// ErrSessionGone means that a session does not exist, or its password differs.
var ErrSessionGone = errors.New("zkcompat: no such session, or another password")

// Backend is what a Server serves. Calls that wait end with their context; an error other than ErrSessionGone means
// that the outcome is not known, and the client is told so by closing its connection.
type Backend interface {
	// Subscribe calls f once with the current tree (Reset) and then for every applied entry, in order, before the
	// proposer of any of its commands is answered. f must not block. cancel returns when f will not run again.
	Subscribe(f func(Update)) (cancel func())
	// OpenSession makes a session; AttachSession takes over a living one from wherever it is attached, with the timeout that its
	// new connection negotiated. host is the client's address.
	OpenSession(ctx context.Context, timeout time.Duration, host string) (Session, error)
	AttachSession(ctx context.Context, s id.SessionID, password []byte, timeout time.Duration, host string) (Session, error)
	// CloseSession ends a session and its ephemerals.
	CloseSession(ctx context.Context, c Caller) (Result, error)
	// Write changes a node. It may be held for long: the queue's head is parked until it returns.
	Write(ctx context.Context, c Caller, w Write) (Result, error)
	// AwaitRead is called before a client reads the data of a node below /consumers. It may be held for long, as Write; the read is
	// answered from a tree that has the index. An error means only that there is nothing to wait for.
	AwaitRead(ctx context.Context, c Caller, path string) (id.Index, error)
	// Sync returns an index that covers every write answered anywhere before the call.
	Sync(ctx context.Context) (id.Index, error)
}
