// Package span says what is traced of a request, in the terms of no library. The
// road fills in Start and End, and internal/telemetry makes spans of OpenTelemetry of
// them. A request of an agent has these spans, each below the one above it:
//
//	Server   the request, from receiving it to its outcome record
//	Stage    a stage of the road
//	Client   what the stage forward sends to an upstream
//
// A [Carrier] is the context in which a span continues in another process.
package span

import (
	"net/http"
	"time"
)

// Kind is the kind of a span.
type Kind int

// The kinds of spans.
const (
	Server Kind = iota // a request that toolgate receives
	Client             // a request that toolgate sends
	Stage              // a part of a request inside toolgate
)

// Fields are the members of a Carrier, as params._meta (MCP 2026-07-28 basic, "_meta")
// and the headers of HTTP have them (W3C Trace Context). Baggage is not one of
// them: it belongs to the caller.
var Fields = [...]string{"traceparent", "tracestate"}

// Carrier is the context of a span by Fields. It is nil where there is none. It must
// not be changed once it is shared.
type Carrier map[string]string

// From returns the context that get finds by Fields, nil without a traceparent.
func From(get func(name string) string) Carrier {
	if get(Fields[0]) == "" {
		return nil
	}
	c := Carrier{}
	for _, name := range Fields {
		if value := get(name); value != "" {
			c[name] = value
		}
	}
	return c
}

// FromHeader returns the context of an HTTP request, nil without a traceparent.
func FromHeader(h http.Header) Carrier {
	if len(h["Traceparent"]) == 0 {
		return nil
	}
	return From(h.Get)
}

// TraceID returns the trace of a Carrier that Tracer.Carry returned, 32 hexadecimal
// digits.
func (c Carrier) TraceID() string { return c["traceparent"][3:35] }

// Sampled reports whether the span of such a Carrier is recorded.
func (c Carrier) Sampled() bool { return c["traceparent"][53:] == "01" }

// Start is what is known of a span when it starts.
type Start struct {
	Kind Kind
	Name string // the method, or the stage
	// Parent is the context in params._meta, and Transport that of the transport's
	// own request. Of a Server span, the first that is valid is the parent, and the
	// other a link. All others continue the span that is in the context.
	Parent, Transport Carrier
	TraceID           string // of a span without a parent; a new one unless it is 32 hexadecimal digits
}

// End is what is known of a span when it ends. What is "" or 0 is not said.
type End struct {
	Kind       Kind
	Method     string        // one that toolgate knows: no other name comes from outside
	Tool       string        // as exposed on a Server span, the upstream's own on a Client span
	Prompt     string        //
	Known      bool          // Tool or Prompt is one of the catalogue: it may be a label
	Error      string        // error.type; "" = success
	Status     string        // code of the JSON-RPC error that an upstream answered with
	Code       string        // kernel code of a refusal or failure
	RequestID  string        // as the client wrote it
	Protocol   string        // MCP revision
	Transport  string        // http, stdio, ndjson or rest
	Server     string        // the upstream
	Subject    string        // the principal
	Agent      string        // name/version of the client, as claimed
	Effect     string        // of the decision
	DecisionID string        //
	Revision   string        // of the policy
	Rule       string        // that decided
	Ticket     string        // of a held call
	Duration   time.Duration // of the request
	Events     []Event       // in the course of the span
}

// Session is what is known of a session of MCP when it has ended. What is "" is not said.
type Session struct {
	Server    string        // the upstream, "" = a client's session with toolgate
	Protocol  string        // MCP revision
	Transport string        // http, sse or stdio; of a client's session
	Duration  time.Duration // since it was initialized
}

// Event is something that happened in the course of a span.
type Event struct {
	Name   string
	At     time.Time
	Detail string
}

// The names of events.
const (
	EventHeld    = "held"    // the call waits for people; Detail is "" or the state of the ticket
	EventDecided = "decided" // the wait is over; Detail is the state of the ticket
)
