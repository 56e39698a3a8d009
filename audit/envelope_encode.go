package audit

import (
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

const (
	// envelopeDropped is the status of the line that says how many events are
	// missing before it.
	envelopeDropped = "dropped"
	// maxEnvelopeText cuts one text of an event, in bytes: a method may be as
	// long as a message.
	maxEnvelopeText = 512
	// maxEnvelopeError is how long an error may be to be kept, in bytes: an
	// upstream's may be as long as a message.
	maxEnvelopeError = 16 << 10
)

// appendEnvelope appends the line of e, which has every member whatever e
// lacks. dropped is written when it is not 0.
func appendEnvelope(b []byte, e *EnvelopeEvent, opts *EnvelopeOptions, dropped int64) []byte {
	o := object(append(b, '{'))
	o.time("timestamp", e.Time)
	o.name("ids")
	o = append(o, '{')
	o.texts("request_id", brief(e.RequestID), "trace_id", brief(e.TraceID), "decision_id", brief(e.DecisionID), "session", brief(e.Session))
	o = append(o, '}')
	o.texts("transport", brief(e.Transport), "route", brief(e.Route), "method", brief(e.Method), "status", brief(e.Status))
	o.millis("duration_ms", float64(max(e.Duration, 0))/float64(time.Millisecond))
	o.fault(e.Error)
	o.name("metadata")
	o = append(o, '{')
	o.texts("schemaVersion", EnvelopeSchemaVersion)
	o.raw("deterministic", strconv.AppendBool(nil, opts.Deterministic))
	o.texts("run", opts.Instance)
	if dropped != 0 {
		o.number("dropped", dropped)
	}
	return append(o, "}}\n"...)
}

// fault records an error object as it was answered. An object that is too long is
// recorded by its code and size, and a value that is not an object as text.
func (o *object) fault(raw []byte) {
	switch {
	case len(raw) == 0:
		o.raw("error", []byte("null"))
	case len(raw) > maxEnvelopeError:
		o.name("error")
		*o = append(*o, '{')
		if code, ok := jsonrpc.Get(raw, "code"); ok && len(code) <= 64 && jsontext.Value(code).IsValid() {
			o.raw("code", code)
		}
		o.number("omitted_bytes", int64(len(raw)))
		*o = append(*o, '}')
	case raw[0] != '{' || !isLine(raw):
		o.name("error")
		*o = append(*o, '{')
		o.texts("text", string(raw))
		*o = append(*o, '}')
	default:
		o.raw("error", raw)
	}
}

// brief cuts a text that an unauthenticated sender may have chosen.
func brief(s string) string {
	if len(s) <= maxEnvelopeText {
		return s
	}
	return strings.ToValidUTF8(s[:maxEnvelopeText], "") + "…"
}
