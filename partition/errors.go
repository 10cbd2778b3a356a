package partition

import (
	"errors"
	"fmt"

	"github.com/barnabas-mq/barnabas/partition/log"
	"github.com/barnabas-mq/barnabas/partition/record"
)

// Error is a kind of refusal with the Kafka error code that a client of the newest version is to see.
type Error struct {
	Code int16
	msg  string
}

func (e *Error) Error() string { return e.msg }

// The refusals of this package, by Kafka's names. Errors of Append, Fetch and the other calls wrap one of these or of package
// record; Code finds the number in either.
var (
	ErrOffsetOutOfRange             = &Error{1, "offset out of range"}
	ErrUnknownTopicOrPartition      = &Error{3, "unknown topic or partition"}
	ErrNotLeader                    = &Error{6, "this broker does not lead the partition"}
	ErrRequestTimedOut              = &Error{7, "request timed out"}
	ErrNotEnoughReplicas            = &Error{19, "fewer in-sync replicas than min.insync.replicas"}
	ErrNotEnoughReplicasAfterAppend = &Error{20, "appended, but fewer in-sync replicas than min.insync.replicas"}
	ErrInvalidRequest               = &Error{42, "invalid request"}
	ErrOutOfOrderSequence           = &Error{45, "out of order sequence number"}
	ErrDuplicateSequence            = &Error{46, "duplicate sequence number"}
	ErrInvalidProducerEpoch         = &Error{47, "producer epoch is fenced"}
	// ErrStorage: the partition's disk failed or is full (KAFKA_STORAGE_ERROR).
	ErrStorage             = &Error{56, "disk error"}
	ErrFencedLeaderEpoch   = &Error{74, "leader epoch is older than the leader's"}
	ErrUnknownLeaderEpoch  = &Error{75, "leader epoch is newer than the leader's"}
	ErrStaleBrokerEpoch    = &Error{77, "stale broker epoch"}
	ErrOffsetNotAvailable  = &Error{78, "a new leader cannot show its marks yet"}
	ErrUnsupportedForFetch = &Error{76, "zstd needs Fetch v10"}
	// ErrStopped: the Manager is not running any more.
	ErrStopped = errors.New("partition manager is stopped")
)

const (
	codeNone    int16 = 0
	codeUnknown int16 = -1
)

// Code returns the Kafka error code of an error of this package, package record or package log, wherever it is wrapped: 0 for
// nil, -1 (UNKNOWN_SERVER_ERROR) for anything else.
func Code(err error) int16 {
	if err == nil {
		return codeNone
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	if c, ok := record.Code(err); ok {
		return c
	}
	return codeUnknown
}

// translate gives an error of the log the sentinel of this package.
func translate(err error) error {
	var corrupt *log.CorruptError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &corrupt):
		return fmt.Errorf("%w: %w", ErrStorage, err) // our disk, not the client's batch
	case errors.Is(err, log.ErrOffsetOutOfRange):
		return fmt.Errorf("%w: %w", ErrOffsetOutOfRange, err)
	case errors.Is(err, log.ErrOutOfOrderSequence):
		return fmt.Errorf("%w: %w", ErrOutOfOrderSequence, err)
	case errors.Is(err, log.ErrDuplicateSequence):
		return fmt.Errorf("%w: %w", ErrDuplicateSequence, err)
	case errors.Is(err, log.ErrProducerFenced):
		return fmt.Errorf("%w: %w", ErrInvalidProducerEpoch, err)
	case errors.Is(err, log.ErrClosed), errors.Is(err, log.ErrStaleEpoch):
		return fmt.Errorf("%w: %w", ErrNotLeader, err)
	}
	if _, ok := record.Code(err); ok {
		return err
	}
	return fmt.Errorf("%w: %w", ErrStorage, err)
}
