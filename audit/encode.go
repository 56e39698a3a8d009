package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// appendRecord appends the members of r that a caller of the log knows, without
// braces. now replaces a missing time. jsontext's encoder is not used because
// it rewrites the white space of values that are JSON already.
func appendRecord(b []byte, r *Record, kind Kind, now time.Time) []byte {
	if !r.Time.IsZero() {
		now = r.Time
	}
	b = now.UTC().AppendFormat(append(b, `"time":"`...), time.RFC3339Nano) // quicker than a layout with more around it
	b = appendTexts(b, `","kind":"`, string(kind))
	switch kind {
	case KindOpen:
		b = strconv.AppendInt(append(appendTexts(b, `,"version":"`, r.Version), `,"pid":`...), int64(r.PID), 10)
		if len(r.Before) > 0 {
			b = appendDocument(b, "before", r.Before)
		}
		return b
	case KindClose:
		return b
	}
	b = appendTexts(b, `,"call_id":"`, r.CallID, `,"decision_id":"`, r.DecisionID, `,"trace_id":"`, r.TraceID)
	b = appendPresent(b, `,"parent_id":"`, r.ParentID)
	b = appendPresent(appendTexts(b, `,"principal":{"subject":"`, r.Principal.Subject), `,"person":"`, r.Principal.Person)
	b = appendList(b, `,"roles":[`, r.Principal.Roles)
	b = appendPresent(b, `,"client":"`, r.Principal.Client, `,"tenant":"`, r.Principal.Tenant)
	b = appendTexts(b, `},"transport":"`, r.Transport, `,"era":"`, r.Era, `,"route":"`, r.Route)
	b = appendTexts(appendPresent(b, `,"session":"`, r.Session), `,"request_id":"`, r.RequestID)
	if len(r.Tags) > 0 {
		b = appendDocument(b, "tags", r.Tags)
	}
	b = appendPresent(b, `,"method":"`, r.Method)
	b = appendTexts(b, `,"server":"`, r.Server, `,"tool":"`, r.Tool, `,"exposed":"`, r.Exposed, `,"fingerprint":"`, r.Fingerprint)
	b = appendArguments(b, r)
	if r.Credential != nil {
		b = appendDocument(b, "credential", r.Credential)
	}
	if p := &r.Policy; p.Effect != "" || p.Revision != "" {
		b = appendTexts(b, `,"policy":{"effect":"`, p.Effect)
		b = appendPresent(b, `,"rule":"`, p.Rule, `,"reason":"`, p.Reason, `,"remedy":"`, p.Remedy, `,"revision":"`, p.Revision)
		b = append(appendJSON(b, "obligations", p.Obligations, r.Accepted), '}')
	}
	b = appendPresent(appendJSON(b, "input", r.Input, r.Accepted), `,"ticket":"`, r.Ticket)
	b = appendJSON(b, "task", r.Task, r.Accepted)
	switch {
	case kind == KindOutcome:
		return appendOutcome(b, r)
	case kind == KindTicket && r.Change != nil:
		b = appendDocument(b, "change", r.Change)
	case kind == KindEvent && r.Event != nil:
		b = appendDocument(b, "event", r.Event)
	}
	return b
}

// appendOutcome appends the members that only outcomes have.
func appendOutcome(b []byte, r *Record) []byte {
	b = appendTexts(b, `,"outcome":"`, string(r.Outcome), `,"stage":"`, r.Stage)
	b = appendPresent(b, `,"code":"`, r.Code)
	b = appendMS(append(b, `,"duration_ms":`...), r.DurationMS)
	if r.UpstreamMS != 0 {
		b = appendMS(append(b, `,"upstream_ms":`...), r.UpstreamMS)
	}
	b = appendPresent(b, `,"result_sha256":"`, r.ResultSHA256)
	if r.ResultBytes != 0 {
		b = strconv.AppendInt(append(b, `,"result_bytes":`...), int64(r.ResultBytes), 10)
	}
	if r.ResultTokens != 0 {
		b = strconv.AppendInt(append(b, `,"result_tokens_estimated":`...), int64(r.ResultTokens), 10)
	}
	if len(r.Signals) > 0 {
		b = appendList(b, `,"signals":[`, r.Signals)
	}
	if r.Hidden != nil {
		b = appendDocument(b, "hidden", r.Hidden)
	}
	if r.Warnings != nil {
		b = appendDocument(b, "warnings", r.Warnings)
	}
	b = appendPresent(b, `,"error":"`, r.Error)
	if r.Replayed {
		b = append(b, `,"replayed":true`...)
	}
	return b
}

// appendMS appends milliseconds, to the microsecond.
func appendMS(b []byte, ms float64) []byte {
	ms = math.Round(ms*1000) / 1000
	if math.IsNaN(ms) || math.IsInf(ms, 0) {
		ms = 0 // JSON cannot express it
	}
	return strconv.AppendFloat(b, ms, 'f', -1, 64)
}

// appendArguments appends the arguments of r, or what is recorded in their place.
func appendArguments(b []byte, r *Record) []byte {
	b = appendJSON(b, "arguments", r.Arguments, r.Accepted)
	digest := r.ArgumentsSHA256
	if digest == "" && len(r.Arguments) > 0 && r.ArgumentsHMAC == "" {
		sum := sha256.Sum256(r.Arguments)
		digest = hex.EncodeToString(sum[:])
	}
	b = appendPresent(b, `,"arguments_sha256":"`, digest)
	if r.ArgumentsBytes != 0 {
		b = strconv.AppendInt(append(b, `,"arguments_bytes":`...), int64(r.ArgumentsBytes), 10)
		b = appendPresent(b, `,"arguments_excerpt":"`, r.ArgumentsExcerpt)
	}
	if r.ArgumentsHMAC != "" {
		b = appendPresent(b, `,"arguments_kept":"`, r.ArgumentsKept)
		b = appendTexts(b, `,"arguments_hmac":"`, r.ArgumentsHMAC, `,"arguments_key":"`, r.ArgumentsKey)
	}
	return b
}

// appendDocument appends a member whose value consists of texts and numbers.
func appendDocument(b []byte, name string, v any) []byte {
	text, _ := json.Marshal(v) // texts and numbers always marshal
	return appendJSON(b, name, []byte(escapes.Replace(string(text))), false)
}

// appendTexts appends members with text values, given as pairs: what is between the value before and
// the value's first letter, and the value. The result has no line break.
func appendTexts(b []byte, pairs ...string) []byte {
	for i := 0; i < len(pairs); i += 2 {
		b = append(b, pairs[i]...)
		text, start := pairs[i+1], len(b)
		if b = append(b, text...); jsonrpc.IsVisible(b[start:]) {
			b = append(b, '"')
			continue
		}
		b, _ = jsontext.AppendQuote(b[:start-1], text) // invalid UTF-8 becomes U+FFFD
		b = append(b[:start], escapes.Replace(string(b[start:]))...)
	}
	return b
}

// appendPresent is appendTexts without the members whose value is empty.
func appendPresent(b []byte, pairs ...string) []byte {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			b = appendTexts(b, pairs[i], pairs[i+1])
		}
	}
	return b
}

// appendList appends an array of texts behind head, which ends with its bracket.
func appendList(b []byte, head string, texts []string) []byte {
	b = append(b, head...)
	before := `"`
	for _, text := range texts {
		b = appendTexts(b, before, text)
		before = `,"`
	}
	return append(b, ']')
}

// escapes replaces characters that jsontext leaves as they are and that end a line,
// or cannot be seen, for some readers; and the one that replaces invalid UTF-8.
var escapes = strings.NewReplacer("\u2028", `\u2028`, "\u2029", `\u2029`, "\x7f", `\u007f`, "\ufffd", `\ufffd`)

// appendJSON appends a member whose value is JSON already, byte for byte; nothing
// for an empty value. A value that is not one line of JSON in UTF-8 is appended as a
// string of its text: values that were judged are objects, so readers can tell
// the two apart, and no record is lost because of what a caller sent. accepted says that the
// value is JSON in UTF-8.
func appendJSON(b []byte, name string, value []byte, accepted bool) []byte {
	if len(value) == 0 {
		return b
	}
	b = append(append(append(b, `,"`...), name...), `":`...)
	if isLine(value, accepted) {
		return append(b, value...)
	}
	return appendTexts(b, `"`, string(value))
}

// isLine reports whether value is JSON in UTF-8 without a line break. accepted says that it is
// JSON in UTF-8.
func isLine(value []byte, accepted bool) bool {
	return bytes.IndexByte(value, '\n') < 0 && bytes.IndexByte(value, '\r') < 0 && (accepted || jsontext.Value(value).IsValid(jsontext.AllowDuplicateNames(true)))
}
