package broker

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/partition"
)

// Partitions are this node's replicas, as *partition.Manager has them (FromManager); there the contracts are. Any goroutine may call it.
type Partitions interface {
	// BeginAppend settles the order of the records, which belong to the callee from the call on.
	BeginAppend(items []partition.AppendItem, acks int16) Appending
	Fetch(ctx context.Context, req *partition.FetchRequest) []partition.FetchResult
	ListOffset(topic string, n int32, ts int64, epoch id.LeaderEpoch, level partition.Isolation) (partition.TimedOffset, error)
	ListOffsetsV0(topic string, n int32, ts int64, max int) ([]id.Offset, error)
	EndOffsetForEpoch(topic string, n int32, current, asked id.LeaderEpoch) (id.LeaderEpoch, id.Offset, error)
	// ConnectionClosed ends the fetches of a connection.
	ConnectionClosed(conn uint64)
}

// Appending is a set of appends that wait for their acks.
type Appending interface {
	// Wait returns the results by item when all are settled, at the latest after timeout. It is called once.
	Wait(ctx context.Context, timeout time.Duration) []partition.AppendResult
	// Settled says that Wait will return at once.
	Settled() bool
}

type fromManager struct{ *partition.Manager }

func (m fromManager) BeginAppend(items []partition.AppendItem, acks int16) Appending {
	return m.Manager.BeginAppend(items, acks)
}

// FromManager makes a Manager the Partitions of a Server.
func FromManager(m *partition.Manager) Partitions { return fromManager{m} }

// codeOf is the error code of an error of Partitions for a client of the newest version. A node that stops sends its clients
// elsewhere.
func codeOf(err error) int16 {
	if errors.Is(err, partition.ErrStopped) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return kerr.NotLeaderForPartition.Code
	}
	return partition.Code(err)
}

// oldCode replaces codes that came later than a request's version by what Kafka answered before. since are the first versions of
// the API that know each.
func oldCode(code, version int16, since codeVersions) int16 {
	switch code {
	case kerr.KafkaStorageError.Code:
		if version < since.storage {
			return kerr.NotLeaderForPartition.Code
		}
	case kerr.OffsetNotAvailable.Code:
		if version < since.notAvailable {
			return kerr.NotLeaderForPartition.Code
		}
	case kerr.InvalidRecord.Code:
		if version < since.invalidRecord {
			return kerr.CorruptMessage.Code
		}
	}
	return code
}

// codeVersions are the first versions of an API whose clients know KAFKA_STORAGE_ERROR (KIP-112), OFFSET_NOT_AVAILABLE (KIP-207)
// and INVALID_RECORD (KIP-467).
type codeVersions struct{ storage, notAvailable, invalidRecord int16 }

var (
	produceCodes     = codeVersions{storage: 5, notAvailable: 100, invalidRecord: 8}
	fetchCodes       = codeVersions{storage: 6, notAvailable: 11, invalidRecord: 100}
	listOffsetsCodes = codeVersions{storage: 3, notAvailable: 5, invalidRecord: 100}
	epochCodes       = codeVersions{storage: 1, notAvailable: 3, invalidRecord: 100}
)
