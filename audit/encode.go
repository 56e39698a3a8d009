package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

const formVersion = 1

// hashMember is what stands between the hashed bytes of a line and its hash.
const hashMember = `,"hash":"`

// tailLen is the length of the end of a line: hashMember, hash, `"}`.
const tailLen = len(hashMember) + 2*sha256.Size + len(`"}`)

// object is JSON that is being written, member by member. It never holds a line
// break. jsontext's encoder is not used because it rewrites the white space of
// values that are JSON already.
type object []byte

// name begins a member.
func (o *object) name(name string) {
	if n := len(*o); n > 0 && (*o)[n-1] != '{' {
		*o = append(*o, ',')
	}
	*o = append(append(append(*o, '"'), name...), `":`...)
}

// texts writes members with text values, given as pairs of name and value. A
// member whose name ends in "?" is left out when its value is empty.
func (o *object) texts(pairs ...string) {
	for i := 0; i < len(pairs); i += 2 {
		name, optional := strings.CutSuffix(pairs[i], "?")
		if !optional || pairs[i+1] != "" {
			o.name(name)
			*o = appendString(*o, pairs[i+1])
		}
	}
}

// time writes a time in UTC.
func (o *object) time(name string, at time.Time) {
	o.name(name)
	*o = at.UTC().AppendFormat(*o, `"`+time.RFC3339Nano+`"`)
}

// number writes an integer.
func (o *object) number(name string, value int64) {
	o.name(name)
	*o = strconv.AppendInt(*o, value, 10)
}

// millis keeps three decimals. A value that is no finite number is 0: JSON has no
// word for it.
func (o *object) millis(name string, ms float64) {
	if math.IsNaN(ms) || math.IsInf(ms, 0) {
		ms = 0
	}
	o.name(name)
	*o = strconv.AppendFloat(*o, math.Round(ms*1000)/1000, 'f', -1, 64)
}

// raw writes a value that is JSON already as it is, or nothing for none. What is
// not one line of JSON becomes a string of its text: values that were judged are
// objects, so the two cannot be taken for each other, and no record is lost
// because of what a caller sent.
func (o *object) raw(name string, value []byte) {
	if len(value) == 0 {
		return
	}
	o.name(name)
	if isLine(value) {
		*o = append(*o, value...)
	} else {
		*o = appendString(*o, string(value))
	}
}

// isLine reports whether value is JSON in UTF-8 without a line break.
func isLine(value []byte) bool {
	return !bytes.ContainsAny(value, "\r\n") && jsontext.Value(value).IsValid(jsontext.AllowDuplicateNames(true))
}

// escapes are of characters that jsontext leaves and that end a line, or cannot
// be seen, for some readers; and of what stands for bytes that are not UTF-8.
var escapes = strings.NewReplacer("\u2028", `\u2028`, "\u2029", `\u2029`, "\x7f", `\u007f`, "\ufffd", `\ufffd`)

// appendString writes s as a JSON string.
func appendString(b []byte, s string) []byte {
	start := len(b)
	b, notUTF8 := jsontext.AppendQuote(b, s)
	if notUTF8 != nil || strings.Contains(s, "\u2028"[:2]) || strings.IndexByte(s, 0x7f) >= 0 {
		b = append(b[:start], escapes.Replace(string(b[start:]))...)
	}
	return b
}

// appendBody appends the members that a caller of the log knows, without braces.
// now stands in for a missing time.
func appendBody(b []byte, r *Record, kind Kind, now time.Time) []byte {
	o := object(b)
	if !r.Time.IsZero() {
		now = r.Time
	}
	o.time("time", now)
	o.texts("kind", string(kind))
	switch kind {
	case KindOpen:
		o.texts("version", r.Version)
		o.number("pid", int64(r.PID))
		return o
	case KindClose:
		return o
	}
	o.call(r)
	switch {
	case kind == KindOutcome:
		o.outcome(r)
	case kind == KindTicket && r.Change != nil:
		o.name("change")
		o = append(o, '{')
		o.number("seq", r.Change.Seq)
		o.texts("from", r.Change.From, "to", r.Change.To, "who", r.Change.Who, "reason", r.Change.Reason, "digest", r.Change.Digest)
		o = append(o, '}')
	}
	return o
}

// call writes who called what, and what the policy said.
func (o *object) call(r *Record) {
	o.texts("call_id", r.CallID, "decision_id", r.DecisionID, "trace_id", r.TraceID, "parent_id?", r.ParentID)
	o.name("principal")
	*o = append(*o, '{')
	o.texts("subject", r.Principal.Subject)
	o.name("roles")
	*o = append(*o, '[')
	for i, role := range r.Principal.Roles {
		if i > 0 {
			*o = append(*o, ',')
		}
		*o = appendString(*o, role)
	}
	*o = append(*o, ']')
	o.texts("client?", r.Principal.Client, "tenant?", r.Principal.Tenant)
	*o = append(*o, '}')
	o.texts("transport", r.Transport, "era", r.Era, "route", r.Route, "session?", r.Session, "request_id", r.RequestID,
		"method?", r.Method, "server", r.Server, "tool", r.Tool, "exposed", r.Exposed, "fingerprint", r.Fingerprint)
	o.raw("arguments", r.Arguments)
	digest := r.ArgumentsSHA256
	if digest == "" && len(r.Arguments) > 0 {
		sum := sha256.Sum256(r.Arguments)
		digest = hex.EncodeToString(sum[:])
	}
	o.texts("arguments_sha256?", digest)
	if p := &r.Policy; p.Effect != "" || p.Revision != "" {
		o.name("policy")
		*o = append(*o, '{')
		o.texts("effect", p.Effect, "rule?", p.Rule, "reason?", p.Reason, "remedy?", p.Remedy, "revision?", p.Revision)
		o.raw("obligations", p.Obligations)
		*o = append(*o, '}')
	}
	o.raw("input", r.Input)
	o.texts("ticket?", r.Ticket)
	o.raw("task", r.Task)
}

// outcome writes how the call ended.
func (o *object) outcome(r *Record) {
	o.texts("outcome", string(r.Outcome), "stage", r.Stage, "code?", r.Code)
	o.millis("duration_ms", r.DurationMS)
	o.texts("result_sha256?", r.ResultSHA256)
	if r.ResultBytes != 0 {
		o.number("result_bytes", int64(r.ResultBytes))
	}
	o.texts("error?", r.Error)
	if r.Replayed {
		o.raw("replayed", []byte("true"))
	}
}

// link is the place of a record in its chain.
type link struct {
	seq  uint64
	hash [sha256.Size]byte // of the record with number seq
}

// appendLine appends the whole line of the record that follows at, line feed
// included, and returns its link.
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

// splitHash takes the hash off a line without its line feed: the sum over the
// rest, and what the line claims it to be. ok is false when the line does not
// end in a hash member as it is written here; the sums are then what can be
// made of it.
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
