// Package raftmeta runs the metadata log: one hashicorp/raft node, what feeds it and what follows from it.
//
// A command goes Propose -> lane -> leader -> one Raft entry shared by all waiting commands -> fsm on every node ->
// subscribers -> the waiter on the node that proposed it. So a reply always stands on the local state.
//
// Invariants:
//   - State changes only in fsm.Apply and fsm.Restore, both called by raft's one FSM goroutine.
//   - A command of a lane is applied once, in order; its result is known only from the local state.
//   - A mind (RunMind) runs only in a term whose barrier has been applied here, and its commands only enter that term.
//   - What a node once acknowledged it keeps: the log is deleted only where a final snapshot of a committed prefix
//     shows that it conflicts.
//
// Stores: raft-boltdb keeps term and vote, raft-wal the log, and snapshots are files of our own (snapStore) on
// internal/vfs. raft-wal was chosen over bolt as the log: an append costs one sync in place of bolt's two, and every fault
// of it that was met is healed around it and tested. Two layers do that: walLog (walfix.go) for what raft-wal 0.4.0 does
// wrong by itself, healStore (healstore.go) for what it and raft do wrong together around an InstallSnapshot, with a
// kill at every step of one.
//
// Fail-over: by raft's timers in about 2 s; with a proof of the leader's death (LeaderIsDead) by promises in tens of
// milliseconds (promise.go).
//
// Goroutines: Node.Start starts them, Node.Stop waits for all of them. raft's own end with the instance.
package raftmeta
