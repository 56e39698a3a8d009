package wire

import "github.com/toolgate/toolgate/audit"

// The statuses of an Event.
const (
	StatusOK        = "ok"        // answered with a result
	StatusError     = "error"     // answered with an error, or a result that stands for one
	StatusAccepted  = "accepted"  // a notification or an answer: nothing to say
	StatusCancelled = "cancelled" // the sender gave up, so nothing may be said
)

// Event is what a door reports about one envelope that it received, once, when
// its answer is known (seed 004, structured logs).
type Event = audit.EnvelopeEvent
