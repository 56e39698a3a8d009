package wire

import (
	"encoding/json"
	"time"
)

// The statuses of an Event.
const (
	StatusOK        = "ok"        // answered with a result
	StatusError     = "error"     // answered with an error, or a result that stands for one
	StatusAccepted  = "accepted"  // a notification or an answer: nothing to say
	StatusCancelled = "cancelled" // the sender gave up, so nothing may be said
)

// Event is what a door tells of one envelope that it received, once, when its
// answer is known (seed 004, structured logs). audit.EnvelopeEvent has the same
// fields in the same order, so that one converts to the other.
type Event struct {
	Time      time.Time // when it was received
	RequestID string    // the JSON-RPC id as text, "" when there is none
	TraceID   string    // "" for what takes no road
	// DecisionID names the record in the audit trail, "" when there is none.
	DecisionID string
	Session    string // the key that records use, never what the client shows
	Transport  string // as in proxy.Call
	Route      string // the one server that it came in for, "" for all
	Method     string // "" when it could not be read
	Status     string // one of the statuses
	Duration   time.Duration
	// Error is the JSON-RPC error object that was answered, or what stood for
	// one in a result; nil when there is none.
	Error json.RawMessage
}
