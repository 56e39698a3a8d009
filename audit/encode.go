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
)

const formVersion = 1

// hashMember separates the hashed bytes of a line from their hash.
const hashMember = `,"hash":"`

// tailLen is the length of a line's end: hashMember, the hash, `"}`.
const tailLen = len(hashMember) + 2*sha256.Size + len(`"}`)

// appendRecord appends the members of r that a caller of the log knows, without
// braces. now replaces a missing time. jsontext's encoder is not used because
// it rewrites the white space of values that are JSON already.
func appendRecord(b []byte, r *Record, kind Kind, now time.Time) []byte {
	if !r.Time.IsZero() {
		now = r.Time
	}
	b = now.UTC().AppendFormat(b, `"time":"`+time.RFC3339Nano+`"`)
	b = appendTexts(b, "kind", string(kind))
	switch kind {
	case KindOpen:
		return strconv.AppendInt(append(appendTexts(b, "version", r.Version), `,"pid":`...), int64(r.PID), 10)
	case KindClose:
		return b
	}
	b = appendTexts(b, "call_id", r.CallID, "decision_id", r.DecisionID, "trace_id", r.TraceID, "parent_id?", r.ParentID)
	b = appendTexts(append(b, `,"principal":{`...), "subject", r.Principal.Subject)
	b = append(b, `,"roles":[`...)
	for _, role := range r.Principal.Roles {
		b = appendTexts(b, "", role)
	}
	b = appendTexts(append(b, ']'), "client?", r.Principal.Client, "tenant?", r.Principal.Tenant)
	b = appendTexts(append(b, '}'), "transport", r.Transport, "era", r.Era, "route", r.Route, "session?", r.Session, "request_id", r.RequestID,
		"method?", r.Method, "server", r.Server, "tool", r.Tool, "exposed", r.Exposed, "fingerprint", r.Fingerprint)
	b = appendJSON(b, "arguments", r.Arguments)
	digest := r.ArgumentsSHA256
	if digest == "" && len(r.Arguments) > 0 {
		sum := sha256.Sum256(r.Arguments)
		digest = hex.EncodeToString(sum[:])
	}
	b = appendTexts(b, "arguments_sha256?", digest)
	if p := &r.Policy; p.Effect != "" || p.Revision != "" {
		b = appendTexts(append(b, `,"policy":{`...), "effect", p.Effect, "rule?", p.Rule, "reason?", p.Reason, "remedy?", p.Remedy, "revision?", p.Revision)
		b = append(appendJSON(b, "obligations", p.Obligations), '}')
	}
	b = appendTexts(appendJSON(b, "input", r.Input), "ticket?", r.Ticket)
	b = appendJSON(b, "task", r.Task)
	switch {
	case kind == KindOutcome:
		b = appendTexts(b, "outcome", string(r.Outcome), "stage", r.Stage, "code?", r.Code)
		ms := math.Round(r.DurationMS*1000) / 1000
		if math.IsNaN(ms) || math.IsInf(ms, 0) {
			ms = 0 // JSON cannot express it
		}
		b = strconv.AppendFloat(append(b, `,"duration_ms":`...), ms, 'f', -1, 64)
		b = appendTexts(b, "result_sha256?", r.ResultSHA256)
		if r.ResultBytes != 0 {
			b = strconv.AppendInt(append(b, `,"result_bytes":`...), int64(r.ResultBytes), 10)
		}
		b = appendTexts(b, "error?", r.Error)
		if r.Replayed {
			b = append(b, `,"replayed":true`...)
		}
	case kind == KindTicket && r.Change != nil:
		change, _ := json.Marshal(r.Change) // texts and numbers always marshal
		b = appendJSON(b, "change", []byte(escapes.Replace(string(change))))
	}
	return b
}

// appendTexts appends members with text values, given as pairs of name and value.
// A member whose name ends in "?" is left out when its value is empty; a value
// whose name is empty is an element of an array. The result has no line break.
func appendTexts(b []byte, pairs ...string) []byte {
	for i := 0; i < len(pairs); i += 2 {
		name, optional := strings.CutSuffix(pairs[i], "?")
		text := pairs[i+1]
		if optional && text == "" {
			continue
		}
		if last := b[len(b)-1]; last != '{' && last != '[' {
			b = append(b, ',')
		}
		if name != "" {
			b = append(append(append(b, '"'), name...), `":`...)
		}
		if isPlain(text) {
			b = append(append(append(b, '"'), text...), '"')
			continue
		}
		start := len(b)
		var notUTF8 error
		if b, notUTF8 = jsontext.AppendQuote(b, text); notUTF8 != nil || strings.Contains(text, "\u2028"[:2]) || strings.IndexByte(text, 0x7f) >= 0 {
			b = append(b[:start], escapes.Replace(string(b[start:]))...)
		}
	}
	return b
}

// isPlain reports whether text is a JSON string as it stands, between quotes.
func isPlain(text string) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// escapes replaces characters that jsontext leaves as they are and that end a line,
// or cannot be seen, for some readers; and the one that replaces invalid UTF-8.
var escapes = strings.NewReplacer("\u2028", `\u2028`, "\u2029", `\u2029`, "\x7f", `\u007f`, "\ufffd", `\ufffd`)

// appendJSON appends a member whose value is JSON already, byte for byte; nothing
// for an empty value. A value that is not one line of JSON in UTF-8 is appended as a
// string of its text: values that were judged are objects, so readers can tell
// the two apart, and no record is lost because of what a caller sent.
func appendJSON(b []byte, name string, value []byte) []byte {
	switch {
	case len(value) == 0:
		return b
	case !isLine(value):
		return appendTexts(b, name, string(value))
	}
	return append(append(append(append(b, `,"`...), name...), `":`...), value...)
}

// isLine reports whether value is JSON in UTF-8 without a line break.
func isLine(value []byte) bool {
	return !bytes.ContainsAny(value, "\r\n") && jsontext.Value(value).IsValid(jsontext.AllowDuplicateNames(true))
}

// link identifies a record of a chain.
type link struct {
	seq  uint64
	hash [sha256.Size]byte // of the record with number seq
}

// appendLine appends the whole line, with its line feed, of the record that
// follows at, and returns the link of that record.
func appendLine(b []byte, at link, instance string, body []byte) ([]byte, link) {
	start := len(b)
	b = append(b, `{"v":1,"seq":`...)
	b = strconv.AppendUint(b, at.seq+1, 10)
	b = append(append(b, ','), body...)
	b = append(append(b, `,"instance":"`...), instance...)
	b = append(b, `","prev":"`...)
	b = append(hex.AppendEncode(b, at.hash[:]), `"}`...)
	next := link{seq: at.seq + 1, hash: sha256.Sum256(b[start:])}
	b = append(b[:len(b)-1], hashMember...)
	b = hex.AppendEncode(b, next.hash[:])
	return append(b, "\"}\n"...), next
}

// splitHash returns the hash computed over a line and the hash that the line
// states. The line has no line feed. ok is false when the line does not end with a
// hash member in the form of appendLine; the hashes are then a best effort.
func splitHash(line []byte) (computed, stated [sha256.Size]byte, ok bool) {
	cut := len(line) - tailLen
	if cut < 0 {
		return computed, stated, false
	}
	h := sha256.New()
	h.Write(line[:cut])
	h.Write([]byte{'}'})
	h.Sum(computed[:0])
	text := line[cut+len(hashMember) : len(line)-2]
	_, err := hex.Decode(stated[:], text)
	ok = err == nil && !bytes.ContainsAny(text, "ABCDEF") &&
		bytes.HasPrefix(line[cut:], []byte(hashMember)) && bytes.HasSuffix(line, []byte(`"}`))
	return computed, stated, ok
}
