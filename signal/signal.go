// Package signal holds the words that all parts share: Signal, the atomic and
// immutable unit of data, Result, what a function returns, and KernelError, a
// failure as data. It has their factories, validators, JSON forms and the
// bridges to MCP and HTTP as pure mappings; it knows no transport.
package signal

import (
	"bytes"
	"errors"
	"fmt"
	"time"
)

// What the factories and decoders of this package refuse with; match with
// errors.Is.
var (
	// ErrInvalidKind is returned for a kind that is not one of the five.
	ErrInvalidKind = errors.New("invalid signal kind")
	// ErrInvalidBody is returned for a body that JSON cannot hold or that is no
	// object.
	ErrInvalidBody = errors.New("invalid signal body")
	// ErrInvalidTag is returned for a tag key that is empty or no UTF-8 and for
	// a standard tag with a value that its row does not have.
	ErrInvalidTag = errors.New("invalid signal tag")
	// ErrInvalidOrigin is returned for a ModuleRef outside tiers 0 to 7 or
	// without module or function.
	ErrInvalidOrigin = errors.New("invalid module reference")
	// ErrInvalidSignal is returned when a JSON text is not a valid Signal.
	ErrInvalidSignal = errors.New("invalid signal")
	// ErrInvalidResult is returned when a JSON text is not a valid Result.
	ErrInvalidResult = errors.New("invalid result")
	// ErrInvalidError is returned when a KernelError, or its JSON text, has an
	// unknown category or severity, no message or a malformed code.
	ErrInvalidError = errors.New("invalid kernel error")
	// ErrInvalidCode is returned for an error code that breaks the convention
	// T{tier}_{MODULE}_{REASON}.
	ErrInvalidCode = errors.New("invalid error code")
	// ErrInvalidToolResult is returned when bytes are not an MCP tool result.
	ErrInvalidToolResult = errors.New("invalid tool result")
	// ErrInvalidView is returned when bytes are not a compact view of a Result,
	// or point at something that the tool result does not hold.
	ErrInvalidView = errors.New("invalid result view")
	// ErrInvalidRequest is returned for a JobRequest that is malformed; the
	// message names the member.
	ErrInvalidRequest = errors.New("invalid job request")
	// ErrInvalidResponse is returned when a JSON text is not a valid
	// SuccessResponse or ProblemDetails.
	ErrInvalidResponse = errors.New("invalid response")
	// ErrInvalidNotification is returned when a JSONRPCNotification, or its
	// JSON text, is no notification.
	ErrInvalidNotification = errors.New("invalid notification")
)

// Kind says what a Signal carries.
type Kind string

// The kinds, with the body keys that each requires.
const (
	Text    Kind = "text"    // text: string
	Data    Kind = "data"    // data: any, schema: string
	File    Kind = "file"    // file_id, file_type: string, path: string or null
	Command Kind = "command" // action: string, target: ModuleRef
	Stream  Kind = "stream"  // chunk: string, sequence: integer, final: boolean
)

// Valid reports whether k is one of the five kinds.
func (k Kind) Valid() bool {
	switch k {
	case Text, Data, File, Command, Stream:
		return true
	}
	return false
}

// ModuleRef points at one function of the kernel.
type ModuleRef struct {
	Tier     int    `json:"tier"` // 0 to 7
	Module   string `json:"module"`
	Function string `json:"function"`
}

// Validate returns ErrInvalidOrigin with the reason when r points nowhere.
func (r ModuleRef) Validate() error {
	switch {
	case r.Tier < 0 || r.Tier > 7:
		return fmt.Errorf("%w: tier %d is not 0 to 7", ErrInvalidOrigin, r.Tier)
	case r.Module == "":
		return fmt.Errorf("%w: no module", ErrInvalidOrigin)
	case r.Function == "":
		return fmt.Errorf("%w: no function", ErrInvalidOrigin)
	}
	return nil
}

// Signal is the atomic unit of data. It never changes after creation: a value
// may be copied, shared and read from several goroutines. The zero Signal is
// not valid. See Create for the only way to make one.
type Signal struct{ form signalForm }

// ID is "sig_" and a ULID: unique, sortable by time.
func (s Signal) ID() string { return s.form.ID }

// Kind says what the signal carries.
func (s Signal) Kind() Kind { return s.form.Kind }

// Body returns a fresh copy of the payload; numbers are json.Number, exact.
func (s Signal) Body() map[string]any {
	m, err := decodeObject(s.form.Body.object())
	if err != nil {
		return map[string]any{}
	}
	return m
}

// Origin is who created the signal.
func (s Signal) Origin() ModuleRef { return s.form.Origin }

// TraceID correlates the signals of one pipeline.
func (s Signal) TraceID() string { return s.form.TraceID }

// CreatedAt is when the signal was made, in UTC.
func (s Signal) CreatedAt() time.Time { return s.form.CreatedAt }

// ParentID is the id of the signal or call that caused this one, or "".
func (s Signal) ParentID() string {
	if s.form.ParentID == nil {
		return ""
	}
	return *s.form.ParentID
}

// Tags returns a copy of the tags.
func (s Signal) Tags() map[string]string {
	copied := make(map[string]string, len(s.form.Tags))
	for _, t := range s.form.Tags {
		copied[t.key] = t.value
	}
	return copied
}

// Tag returns one tag, "" when it is absent.
func (s Signal) Tag(key string) string { return s.form.Tags.value(key) }

// Equal reports whether both signals have the same JSON form.
func (s Signal) Equal(other Signal) bool {
	return bytes.Equal(encode(&s.form), encode(&other.form))
}

// Create makes a Signal: it generates the id, stamps the time and copies content
// and tags deeply. Tags are merged over the defaults tier and module of the
// origin and source_type "system"; a given tag wins over a default. An empty
// parentID means that nothing caused it.
//
// It refuses an unknown kind, a body that JSON cannot hold, a bad origin and a
// bad tag with the sentinel of each. Whether the body keeps the conventions of
// its kind is asked of ValidateSignal, at the boundaries (seed 002,
// create_signal).
func Create(kind Kind, content map[string]any, origin ModuleRef, traceID string, tags map[string]string, parentID string) (Signal, error) {
	if !kind.Valid() {
		return Signal{}, fmt.Errorf("%w: %q", ErrInvalidKind, string(kind))
	}
	if content == nil {
		content = map[string]any{}
	}
	raw, err := encodeValue(content)
	if err != nil {
		return Signal{}, err
	}
	return create(kind, body{raw: raw}, origin, traceID, tags, parentID)
}

func create(kind Kind, b body, origin ModuleRef, traceID string, given map[string]string, parentID string) (Signal, error) {
	if err := origin.Validate(); err != nil {
		return Signal{}, err
	}
	merged, err := mergeTags(origin, given)
	if err != nil {
		return Signal{}, err
	}
	return stamp(kind, b, origin, traceID, merged, parentID, Now()), nil
}

// stamp trusts its arguments: create and FromToolResult have checked them.
func stamp(kind Kind, b body, origin ModuleRef, traceID string, merged tags, parentID string, now time.Time) Signal {
	f := signalForm{
		ID: NewID("sig_"), Kind: kind, Body: b, Origin: origin, TraceID: traceID,
		Tags: merged, CreatedAt: now.UTC().Round(0),
	}
	if parentID != "" {
		f.ParentID = &parentID
	}
	return Signal{f}
}
