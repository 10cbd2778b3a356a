// Package record knows Kafka's batch formats: it checks, numbers, reads and converts them, and does no I/O.
//
// Stored format is magic 2 (KIP-98). Produce payloads of older formats are converted up when they are appended (PrepareProduce),
// and stored batches are converted down for old fetchers (DownConvert). A Batch is a view of bytes that somebody else owns.
//
// The room is pure: no goroutine, lock or clock. Codecs holds buffers and is for one goroutine at a time; callers pool it.
// Sources: org.apache.kafka.common.record (DefaultRecordBatch, LegacyRecord, MemoryRecordsBuilder), kafka.log.LogValidator.
package record

import (
	"errors"
	"fmt"
)

// Error is a kind of refusal. Code is the Kafka error code a client is to see; errors of this package wrap one of the
// sentinels below, each with what was found.
type Error struct {
	Code int16
	msg  string
}

func (e *Error) Error() string { return e.msg }

// The refusals, by Kafka's names of their codes.
var (
	ErrCorrupt                = &Error{2, "corrupt message"}
	ErrTooLarge               = &Error{10, "message too large"}
	ErrInvalidTimestamp       = &Error{32, "invalid timestamp"}
	ErrUnsupportedFormat      = &Error{43, "message format not supported here"}
	ErrUnsupportedCompression = &Error{76, "compression type not supported"}
	ErrInvalidRecord          = &Error{87, "invalid record"}
)

// Code returns the Kafka error code of an error of this package, wherever it is wrapped; ok is false for any other error.
func Code(err error) (code int16, ok bool) {
	var e *Error
	if errors.As(err, &e) {
		return e.Code, true
	}
	return 0, false
}

func corruptf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}

func invalidf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalidRecord, fmt.Sprintf(format, args...))
}
