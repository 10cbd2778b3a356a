// Package zkcompat is a ZooKeeper server for ZooKeeper's clients, over state that lives elsewhere: sessions, watches,
// ordered replies and the gates for group paths are here; what a node holds is ztree's, and what a write becomes is
// the Backend's.
//
// # Promises (P4) and how each is kept
//
//   - Replies in request order: each connection has one queue and one goroutine that drains it. A request that must
//     wait (a write, a held create) parks the head; what is behind it waits. Pings and events do not pass through
//     the queue.
//   - A watch event before any reply that shows the change: Server.gate. An update appends its events to the
//     connections and publishes its tree under the write lock; a reply is made from a tree and appended under the
//     read lock.
//   - zxids never fall: every reply carries the zxid of the published tree at the moment it is appended.
//   - Reads after an own write: the write's reply waits until the published tree has its index.
//   - Ephemerals end with their session: that is one command of the state; here the connection is closed after the
//     events of that command.
//
// A client is read only as fast as it is answered: the queue and the unsent output are bounded, and the reader stops
// when either is full.
package zkcompat
