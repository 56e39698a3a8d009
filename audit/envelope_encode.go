package audit

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// envelopeDropped is the status of the line that tells how many events are
// missing before it.
const envelopeDropped = "dropped"

const (
	// maxEnvelopeText cuts one text of an event, in bytes: a method may be as
	// long as a message.
	maxEnvelopeText = 512
	// maxEnvelopeError is how long an error may be to be kept, in bytes: an
	// upstream's may be as long as a message.
	maxEnvelopeError = 16 << 10
)

// appendEnvelope appends the line of e, which has every member whatever e
// lacks. dropped is told when it is not 0.
func appendEnvelope(b []byte, e *EnvelopeEvent, opts *EnvelopeOptions, dropped int64) []byte {
	b = append(b, `{"timestamp":"`...)
	b = e.Time.UTC().AppendFormat(b, time.RFC3339Nano)
	b = append(b, `","ids":{"request_id":`...)
	b = appendString(b, brief(e.RequestID))
	b = appendMember(b, "trace_id", brief(e.TraceID))
	b = appendMember(b, "decision_id", brief(e.DecisionID))
	b = appendMember(b, "session", brief(e.Session))
	b = append(b, '}')
	b = appendMember(b, "transport", brief(e.Transport))
	b = appendMember(b, "route", brief(e.Route))
	b = appendMember(b, "method", brief(e.Method))
	b = appendMember(b, "status", brief(e.Status))
	b = append(b, `,"duration_ms":`...)
	b = appendMillis(b, float64(max(e.Duration, 0))/float64(time.Millisecond))
	b = append(b, `,"error":`...)
	b = appendEnvelopeError(b, e.Error)
	b = append(b, `,"metadata":{"schemaVersion":"`+EnvelopeSchemaVersion+`","deterministic":`...)
	b = strconv.AppendBool(b, opts.Deterministic)
	b = appendMember(b, "run", opts.Instance)
	if dropped != 0 {
		b = append(b, `,"dropped":`...)
		b = strconv.AppendInt(b, dropped, 10)
	}
	return append(b, "}}\n"...)
}

// appendEnvelopeError keeps an error object as it was answered. One that is too
// long is told by its code and size; what is no object is no error of ours and
// is told as text.
func appendEnvelopeError(b, raw []byte) []byte {
	switch {
	case len(raw) == 0:
		return append(b, "null"...)
	case len(raw) > maxEnvelopeError:
		b = append(b, '{')
		if code, ok := jsonrpc.Get(raw, "code"); ok && len(code) <= 64 && json.Valid(code) {
			b = append(append(append(b, `"code":`...), code...), ',')
		}
		b = append(b, `"omitted_bytes":`...)
		return append(strconv.AppendInt(b, int64(len(raw)), 10), '}')
	case raw[0] != '{' || bytes.ContainsAny(raw, "\r\n") || !utf8.Valid(raw) || !json.Valid(raw):
		b = append(b, `{"text":`...)
		return append(appendString(b, string(raw)), '}')
	}
	return append(b, raw...)
}

// brief cuts a text that a stranger may have chosen.
func brief(s string) string {
	if len(s) <= maxEnvelopeText {
		return s
	}
	cut := maxEnvelopeText
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}
