package mcpclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// ErrorKind classifies why a call has no result.
type ErrorKind uint8

// The kinds. New ones are appended, never reordered.
const (
	// Failed: the server answered with an error or an invalid message, or ended
	// while it had the call.
	Failed ErrorKind = iota + 1
	// Timeout: the deadline passed before an answer came.
	Timeout
	// Unavailable: there is no connection that could carry the call.
	Unavailable
	// Cancelled: the caller gave up.
	Cancelled
	// TooLarge: the answer exceeds the size limit and was not read to its end;
	// or, with Sent false, the call is larger than the server accepts.
	TooLarge
	// Quarantined: the server offers the tool with another definition than the
	// one that was judged. Sent is always false. Package registry/upstream
	// reports it.
	Quarantined
	// Unconnected: the caller has no credential at the server, or none that still counts. The
	// request was not sent, or was refused by the server. Package registry reports it.
	Unconnected
)

var kindNames = [...]string{"unknown", "failed", "timeout", "unavailable", "cancelled", "too large", "quarantined", "not connected"}

// String returns the kind in lower case.
func (k ErrorKind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return kindNames[0]
}

// Error is why a call has no result.
type Error struct {
	Kind ErrorKind
	// Sent is false only when it is certain that no byte of the call reached the
	// server.
	Sent bool
	// RPC is the JSON-RPC error object as the server sent it, byte for byte; for
	// an NDJSON server {"code":-32000,"message":error,"data":{"issues":…}}. It is
	// set for Failed only, and nil when no error object came.
	RPC json.RawMessage
	// Err is the cause.
	Err error
	// Lost marks a call that the server refused because it has forgotten the
	// session: the call was certainly not executed.
	Lost bool
}

// Error describes the failure in one line.
func (e *Error) Error() string {
	switch {
	case e.Err != nil:
		return fmt.Sprintf("%s: %v", e.Kind, e.Err)
	case e.RPC != nil:
		return fmt.Sprintf("%s: upstream error %s", e.Kind, Clip(e.RPC))
	}
	return e.Kind.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Clip shortens raw for a message to people.
func Clip(raw []byte) string {
	const most = 200
	if len(raw) <= most {
		return string(raw)
	}
	return string(raw[:most]) + "…"
}

// AsError returns err as *Error; any other error is a call that may have reached
// the server.
func AsError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return failed(err)
}

// failed is the error of a call that the server had.
func failed(err error) *Error { return &Error{Kind: Failed, Sent: true, Err: err} }

// tooLarge is the error of an answer beyond the limit.
func (c *Conn) tooLarge() *Error {
	return &Error{Kind: TooLarge, Sent: true, Err: &AnswerError{"an answer of more than " + sizeText(c.limits.Bytes)}}
}

// sizeText returns a size for people: "12 MiB".
func sizeText(bytes int) string {
	if bytes%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
	return fmt.Sprintf("%d bytes", bytes)
}

// ErrEnded reports that the process of a server has ended.
var ErrEnded = errors.New("the server ended")

// ErrMalformed reports an answer that cannot be trusted.
var ErrMalformed = errors.New("the upstream's answer is malformed")

// AnswerError is an answer that no message can be read from. Reason is for callers: of
// what the server sent it holds the content type at most.
type AnswerError struct{ Reason string }

// Error returns the reason.
func (e *AnswerError) Error() string { return e.Reason }

// unreadable returns the AnswerError of an answer, which is ErrMalformed too.
func unreadable(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrMalformed, &AnswerError{fmt.Sprintf(format, args...)})
}

// errWithdrawn reports to a transport that the call was given up before it was
// sent.
var errWithdrawn = errors.New("the request was given up before it was sent")

// ContextError is the error of a call whose context ended. Sent is as given.
func ContextError(ctx context.Context, sent bool) *Error {
	if cause := context.Cause(ctx); errors.Is(cause, context.DeadlineExceeded) {
		return &Error{Kind: Timeout, Sent: sent, Err: cause}
	}
	return &Error{Kind: Cancelled, Sent: sent, Err: ctx.Err()}
}
