package log

import (
	"errors"
	"fmt"

	"github.com/barnabas-mq/barnabas/internal/id"
	"github.com/barnabas-mq/barnabas/partition/record"
)

// What an operation may be refused with, for errors.Is. Errors of the disk come wrapped as they are.
var (
	// ErrClosed: the log was closed or deleted.
	ErrClosed = errors.New("log is closed")
	// ErrFailed: a sync or a repair of this log failed, so nobody knows what the disk holds. It takes no more writes until it
	// is opened again; reads go on.
	ErrFailed = errors.New("log failed and must be reopened")
	// ErrOffsetOutOfRange: below the log start or above the log end (Kafka error 1).
	ErrOffsetOutOfRange = errors.New("offset out of range")
	// ErrOutOfOrderSequence: a gap in a producer's sequence numbers (Kafka error 45).
	ErrOutOfOrderSequence = errors.New("out of order sequence number")
	// ErrDuplicateSequence: a batch that was appended before, so long ago that its offset is forgotten (Kafka error 46). Producers
	// take it for success.
	ErrDuplicateSequence = errors.New("duplicate sequence number")
	// ErrProducerFenced: a newer instance of the producer has written (Kafka error 47, INVALID_PRODUCER_EPOCH).
	ErrProducerFenced = errors.New("producer epoch is fenced")
	// ErrStaleEpoch: a leader epoch older than one in the log.
	ErrStaleEpoch = errors.New("stale leader epoch")
	// ErrNotContiguous: replicated batches do not begin at the log end.
	ErrNotContiguous = errors.New("batches do not continue the log")
	// ErrTopicMismatch: the directory belongs to another topic id.
	ErrTopicMismatch = errors.New("directory belongs to another topic")
)

// CorruptError says that stored bytes are not what was written: bit rot, or a cut file. It never comes with bytes. It is a
// record.ErrCorrupt for errors.Is. The replica should be fenced, cut to Offset (TruncateTo) and refetched.
type CorruptError struct {
	Dir      string
	Segment  id.Offset // base offset of the segment
	Position int64     // byte position in its .log file
	Offset   id.Offset // first offset that cannot be read
	Cause    error
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("%s: segment %d is damaged at byte %d (offset %d): %v", e.Dir, e.Segment, e.Position, e.Offset, e.Cause)
}

// Unwrap returns the cause.
func (e *CorruptError) Unwrap() error { return e.Cause }

// Is makes every CorruptError a record.ErrCorrupt.
func (e *CorruptError) Is(target error) bool { return target == record.ErrCorrupt }
