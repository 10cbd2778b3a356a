// Package partition holds this broker's replicas: who leads, what is in sync, what consumers may see, who waits.
//
// A Manager keeps one replica per partition that the metadata gives to this broker, and follows the applied Raft entries
// (ApplyChanges, Reset). Replication is Kafka's: followers pull with Fetch (KIP-595's diverging epoch in place of a separate
// OffsetForLeaderEpoch), ISR changes are AlterPartition commands on the partition epoch (KIP-497), truncation is by leader epoch
// only (KIP-101, KIP-279), never by a high watermark.
//
// Invariants.
//   - With flush on ack (the default) only synced bytes count: a follower's fetch offset is its synced end, and the leader's own
//     share of the high watermark is its synced end. So whatever is below the high watermark is on disk on every ISR member and
//     on at least min.insync.replicas (KIP-966).
//   - The high watermark is internal: it moves without a lease, because it only says what every member that may be elected has.
//     Showing it (fetch, ListOffsets) needs the right to serve (metadata.md "Who may answer", internal/lease), asked after the
//     data was read; proposing a larger ISR needs it too. A new leader shows nothing until its high watermark has reached the
//     log end that it took over (KIP-207), so that no observer sees one fall.
//   - A replica leads only at an epoch that began under this incarnation of the broker and that is not yet in its log, and
//     appends only after the epoch is in its epoch checkpoint.
//   - Only a committed delete deletes: a directory that the metadata does not know stays, and is reported.
//
// Goroutines. Run owns all: the reconciler (roles, directories), the commit tick (leaders' syncs), the housekeeper (ISR shrinks,
// retries), one fetcher per leader broker, one goroutine per proposal in flight. Calls run on their caller's goroutine.
//
// Locks of a replica, in this order: appendMu (whoever writes the log or changes the role), then mu (fields, held shortly, never
// over I/O). Sources: kafka.cluster.Partition, kafka.server.ReplicaManager, AbstractFetcherThread.
package partition
