// Package id holds the typed identities and epochs that rooms pass to each other. It has no logic.
package id

import "encoding/hex"

// BrokerID names a broker: 0 to 2^31-1; -1 means none (as in Kafka).
type BrokerID int32

// NoBroker is the absence of a broker, for example of a partition leader.
const NoBroker BrokerID = -1

// BrokerEpoch names one incarnation of a broker: the Raft index of its registration (KIP-380, KIP-903).
type BrokerEpoch uint64

// LeaderEpoch counts the leaders of one partition, from 0 (KIP-101).
type LeaderEpoch int32

// PartitionEpoch counts the changes of one partition's row, from 0 (KIP-497).
type PartitionEpoch int32

// Offset is a record's place in its partition, from 0.
type Offset int64

// Index is a Raft log index, from 1; Term a Raft term, from 1.
type (
	Index uint64
	Term  uint64
)

// ZXID orders changes for ZooKeeper's clients.
type ZXID int64

// SessionID names a ZooKeeper session; never 0 or -1.
type SessionID int64

// TopicID is a topic's UUID: a deleted topic's name may return, its id never does.
type TopicID [16]byte

func (t TopicID) String() string { return hex.EncodeToString(t[:]) }

// GroupID and MemberID name a consumer group and one of its members.
type (
	GroupID  string
	MemberID string
)

// DirectoryID is the random id made with a data directory; it is the Raft server id.
type DirectoryID string

// TopicPartition names one partition.
type TopicPartition struct {
	Topic     string
	Partition int32
}
