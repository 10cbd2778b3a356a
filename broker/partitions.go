package broker

import (
	"context"
	"time"

	"github.com/barnabas-mq/barnabas/internal/id"
)

// Partitions are this node's replicas. Any goroutine may call it. Codes are Kafka's, for the newest version of the request; this
// package turns those that an older version does not know into the ones that it does.
type Partitions interface {
	// BeginAppend puts records into the logs: when it returns, their order is settled. Records belong to the callee from
	// the call on. acks is 0, 1 or -1 (all).
	BeginAppend(items []AppendItem, acks int16) Appending
	// Fetch reads for consumers, up to the high watermark (or the last stable offset). It waits until MinBytes are there, an item
	// fails, MaxWait passed, or ctx ended. Results are by item.
	Fetch(ctx context.Context, req *FetchRequest) []FetchResult
	// ListOffsets finds one offset by time (ListOffsets v1 and later): Timestamp is -1 latest, -2 earliest, -3 that of the largest
	// timestamp, else milliseconds.
	ListOffsets(ctx context.Context, item ListOffsetsItem) ListOffsetsResult
	// ListOffsetsV0 lists at most max offsets at or before a time, newest first (ListOffsets v0): segment starts and the end.
	ListOffsetsV0(ctx context.Context, item ListOffsetsItem, max int32) (offsets []id.Offset, code int16)
	// EndOffsetForEpoch is OffsetForLeaderEpoch for one partition: the largest epoch at or below the asked one, and where it ends; -1
	// and -1 for an epoch newer than all. current is the leader epoch that the client knows, -1 none.
	EndOffsetForEpoch(ctx context.Context, topic string, partition int32, current, epoch id.LeaderEpoch) (id.LeaderEpoch, id.Offset, int16)
	// Disconnected says that a connection has ended, so that it fetches no more.
	Disconnected(conn uint64)
}

// AppendItem is one partition's part of a Produce request.
type AppendItem struct {
	Topic     string
	Partition int32
	Records   []byte
	Version   int16 // of the request
}

// AppendResult answers an AppendItem.
type AppendResult struct {
	Code       int16
	Text       string    // why, for people
	BaseOffset id.Offset // -1 with an error
	AppendTime int64     // milliseconds with LogAppendTime, else -1
	LogStart   id.Offset // -1 with an error
}

// Appending is a set of appends that wait for their acks.
type Appending interface {
	// Wait returns the results by item, when all are settled, at the latest after timeout. It is called once.
	Wait(ctx context.Context, timeout time.Duration) []AppendResult
	// Settled says that Wait will return at once.
	Settled() bool
}

// Fetcher is who fetches: what the registry of fetches keeps.
type Fetcher struct {
	Conn     uint64 // unique in this process
	ClientID string
	Address  string // host:port
}

// FetchRequest is a Fetch of any version.
type FetchRequest struct {
	// Version is the request's: it decides the format of the records, which codecs they may have (zstd from 10 on), and whether a
	// first batch over the limits comes whole (from 3 on, KIP-74).
	Version       int16
	From          Fetcher
	MaxWait       time.Duration
	MinBytes      int
	MaxBytes      int // over all items
	ReadCommitted bool
	Items         []FetchItem
}

// FetchItem is one partition of a Fetch.
type FetchItem struct {
	Topic     string
	Partition int32
	Offset    id.Offset
	Epoch     id.LeaderEpoch // that the client knows; -1 none
	MaxBytes  int
}

// FetchResult answers a FetchItem.
type FetchResult struct {
	Code          int16
	HighWatermark id.Offset // the marks are -1 with an error
	LastStable    id.Offset
	LogStart      id.Offset
	Records       []byte // as the version wants them
	Aborted       []AbortedTxn
}

// AbortedTxn is a transaction whose records a read_committed consumer leaves out.
type AbortedTxn struct {
	ProducerID int64
	First      id.Offset
}

// ListOffsetsItem asks for an offset by time.
type ListOffsetsItem struct {
	Topic         string
	Partition     int32
	Epoch         id.LeaderEpoch // that the client knows; -1 none
	Timestamp     int64
	ReadCommitted bool
}

// ListOffsetsResult answers; offset, timestamp and epoch are -1 when there is none.
type ListOffsetsResult struct {
	Code      int16
	Offset    id.Offset
	Timestamp int64
	Epoch     id.LeaderEpoch
}
