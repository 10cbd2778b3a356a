// Package ztree shows the metadata state as znodes: what a path holds, what its children are, and which watch events
// a change means. It is pure. Source: zk-paths of Kafka 0.8 to 1.1, org.apache.zookeeper.server.DataTree 3.9.5.
package ztree

import (
	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// Stat is a node's metadata as clients see it (zookeeper.data.Stat).
type Stat struct {
	Czxid, Mzxid   int64
	Ctime, Mtime   int64 // milliseconds since 1970; only ever shown
	Version        int32
	Cversion       int32 // 2 x creates - children
	Aversion       int32
	EphemeralOwner int64 // session; of /brokers/ids/* and /controller from a reserved range
	DataLength     int32
	NumChildren    int32
	Pzxid          int64
}

// ACL is one entry of a node's access list. Lists are stored and shown, never enforced.
type ACL struct {
	Perms  int32
	Scheme string
	ID     string
}

// Node is one znode.
type Node struct {
	Data []byte // nil is null, which is not empty
	Stat Stat
	ACL  []ACL // empty: world:anyone may do all
}

// Observer is who looks. A member of a group may be shown an older view of its group than everybody else; the zero
// Observer is nobody in particular.
type Observer struct {
	Session id.SessionID
	// Listed is the generation whose members the session was last given a list of (View.Listing), nil if none. What it was told of
	// it can still read: old consumers ask for each registration by itself, and fail when one has gone meanwhile.
	Listed *state.Legacy
}

// EventType is what happened to a node.
type EventType uint8

// What can happen to a node; what it means for the parent follows from it.
const (
	Created EventType = iota + 1
	Deleted
	Changed // data set; a new ACL is no event
	Shown   // members of Group are shown something else than before: one event for all that happened since they looked
	Left    // Session is no member of a group any more: from now on it is shown the raw tree
)

// Event is one change of one node, as watches see it.
type Event struct {
	Path    string
	Type    EventType
	Group   string       // of Shown
	Session id.SessionID // of Left
}

// Parent is the path of the node above; of "/" it is "".
func Parent(path string) string {
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == '/' {
			if i == 0 && len(path) > 1 {
				return "/"
			}
			return path[:i]
		}
	}
	return ""
}
