package upstream

import (
	"encoding/json"
	"errors"
	"fmt"
)

// ErrorKind says how a call to an upstream came to nothing.
type ErrorKind uint8

// The kinds. New ones are appended, never reordered.
const (
	// Failed: the upstream answered with an error, answered nonsense, or died
	// while it had the call.
	Failed ErrorKind = iota + 1
	// Timeout: the deadline passed before an answer came.
	Timeout
	// Unavailable: there is no connection that could carry the call.
	Unavailable
	// Cancelled: the caller gave up.
	Cancelled
	// TooLarge: the answer was beyond the size cap and was not read to its end;
	// or, with Sent false, the call is larger than the server can take.
	TooLarge
	// Quarantined: the upstream offers the tool with another definition than
	// the one that was judged. Sent is always false.
	Quarantined
)

var kindNames = [...]string{"unknown", "failed", "timeout", "unavailable", "cancelled", "too large", "quarantined"}

// String names the kind in lower case.
func (k ErrorKind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return kindNames[0]
}

// Error is why a call has no result.
type Error struct {
	Kind ErrorKind
	// Sent is false only when it is certain that no byte of the call reached
	// the upstream. Whatever is less certain than that is true.
	Sent bool
	// RPC is the JSON-RPC error object as the upstream sent it, byte for byte;
	// from an NDJSON server {"code":-32000,"message":error,"data":{"issues":…}}.
	// Set for Failed only, and nil when no error object came.
	RPC json.RawMessage
	// Err is the cause.
	Err error

	// lost marks a call that the upstream refused because it no longer knows
	// the session: it was certainly not executed.
	lost bool
}

// Error describes the failure in one line.
func (e *Error) Error() string {
	switch {
	case e.Err != nil:
		return fmt.Sprintf("%s: %v", e.Kind, e.Err)
	case e.RPC != nil:
		return fmt.Sprintf("%s: upstream error %s", e.Kind, clip(e.RPC))
	}
	return e.Kind.String()
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// clip shortens raw for a message to people.
func clip(raw []byte) string {
	const most = 200
	if len(raw) <= most {
		return string(raw)
	}
	return string(raw[:most]) + "…"
}

// asError gives err as *Error; any other error is a call that may have
// reached the upstream.
func asError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Kind: Failed, Sent: true, Err: err}
}
