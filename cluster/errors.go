package cluster

import (
	"context"
	"errors"
	"fmt"
	"syscall"
)

// Errors of calls and dials. Whether the call may have run on the peer decides what a caller may do next.
var (
	// ErrUnreachable: no connection could be made; the call was not sent.
	ErrUnreachable = errors.New("peer unreachable")
	// ErrRefused: the peer's port refuses connections, which proves that the process which listened there is dead
	// (metadata.md "Who may answer"). It also is an ErrUnreachable.
	ErrRefused = errors.New("peer's port refuses connections")
	// ErrLost: the connection broke after the call was queued; whether it ran is unknown.
	ErrLost = errors.New("connection lost, outcome unknown")
	// ErrTimeout: the caller's deadline passed; whether the call ran is unknown. It also is a context.DeadlineExceeded.
	ErrTimeout = errors.New("call timed out, outcome unknown")
	// ErrStopped: this Cluster is stopping or was never started.
	ErrStopped = errors.New("cluster port is stopped")
	// ErrWrongPeer: another directory answers at the address; the call was not sent. It also is an ErrUnreachable.
	ErrWrongPeer = errors.New("another node answers at this address")
	// ErrHandshake: the peer refused the handshake (cluster id, protocol version, not a member); the call was not sent.
	// It also is an ErrUnreachable.
	ErrHandshake = errors.New("handshake refused")
	// ErrTooLarge: a payload above MaxPayload.
	ErrTooLarge = errors.New("payload too large")
)

// Code says over the wire what kind of error a handler returned. Rooms number their own codes from CodeFirstOfRooms.
type Code uint16

// Codes of the cluster port itself.
const (
	// CodeInternal is any error of a handler that is not an *Error.
	CodeInternal Code = 1
	// CodeNoMethod: the peer has no handler of that name (older build, or not started yet); not run.
	CodeNoMethod Code = 2
	// CodeBusy: the connection already carries as many calls or bytes as the peer allows; not run.
	CodeBusy Code = 3
	// CodeStranger: the method serves members of the cluster only, and one side has no cluster id yet; not run.
	CodeStranger Code = 4
	// CodeCanceled: the handler gave up because its context ended.
	CodeCanceled Code = 5
	// CodeNotLeader: the peer is not (or not surely any more) the Raft leader; ask the leader.
	CodeNotLeader Code = 6
	// CodeFirstOfRooms is the first code that rooms may define.
	CodeFirstOfRooms Code = 100
)

// Error is an error that crosses the wire: a handler returns it, and Call returns an equal one to the caller.
type Error struct {
	Code    Code
	Message string
}

var _ error = (*Error)(nil)

func (e *Error) Error() string { return fmt.Sprintf("%s (code %d)", e.Message, e.Code) }

// Is matches another *Error of the same code, so that `errors.Is(err, &cluster.Error{Code: c})` works.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// CodeOf returns the wire code in err, or 0 when it has none.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

// NotSent reports that the call that returned err surely never reached a handler, so that repeating it is safe.
func NotSent(err error) bool {
	if errors.Is(err, ErrUnreachable) || errors.Is(err, ErrTooLarge) {
		return true
	}
	switch CodeOf(err) {
	case CodeNoMethod, CodeBusy, CodeStranger:
		return true
	}
	return false
}

// unreachable wraps the cause of a failed dial or handshake in the sentinel(s) that describe it.
func unreachable(addr string, cause error) error {
	switch {
	case errors.Is(cause, syscall.ECONNREFUSED):
		return fmt.Errorf("cluster: %s: %w: %w", addr, ErrUnreachable, ErrRefused)
	default:
		return fmt.Errorf("cluster: %s: %w: %w", addr, ErrUnreachable, cause)
	}
}

// ctxError turns the end of a caller's context into the package's error.
func ctxError(ctx context.Context, what string) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("cluster: %s: %w: %w", what, ErrTimeout, context.DeadlineExceeded)
	}
	return fmt.Errorf("cluster: %s: %w", what, ctx.Err())
}

// toWire turns a handler's error into what is sent.
func toWire(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return &Error{Code: CodeCanceled, Message: err.Error()}
	}
	return &Error{Code: CodeInternal, Message: err.Error()}
}
