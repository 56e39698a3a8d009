package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math"
	"strconv"
	"time"
	"unicode/utf8"
)

const (
	formVersion = 1
	hexDigits   = "0123456789abcdef"
)

// hashMember is what stands between the hashed bytes of a line and its hash.
const hashMember = `,"hash":"`

// tailLen is the length of the end of a line: hashMember, hash, `"}`.
const tailLen = len(hashMember) + 2*sha256.Size + len(`"}`)

// appendBody appends the members that a caller of the log knows, without
// braces and without a comma at either end. It writes no line break, whatever
// the record holds. now stands in for a missing time.
func appendBody(b []byte, r *Record, kind Kind, now time.Time) []byte {
	if !r.Time.IsZero() {
		now = r.Time
	}
	b = append(b, `"time":"`...)
	b = now.UTC().AppendFormat(b, time.RFC3339Nano)
	b = append(b, `","kind":"`...)
	b = append(b, kind...)
	b = append(b, '"')
	switch kind {
	case KindOpen:
		b = appendMember(b, "version", r.Version)
		b = append(b, `,"pid":`...)
		return strconv.AppendInt(b, int64(r.PID), 10)
	case KindClose:
		return b
	}
	b = appendCaller(b, r)
	b = appendTool(b, r)
	b = appendVerdict(b, r)
	switch {
	case kind == KindOutcome:
		b = appendOutcome(b, r)
	case kind == KindTicket && r.Change != nil:
		b = appendChange(b, r.Change)
	}
	return b
}

func appendCaller(b []byte, r *Record) []byte {
	b = appendMember(b, "call_id", r.CallID)
	b = appendMember(b, "decision_id", r.DecisionID)
	b = appendMember(b, "trace_id", r.TraceID)
	b = appendOptional(b, "parent_id", r.ParentID)
	b = append(b, `,"principal":{"subject":`...)
	b = appendString(b, r.Principal.Subject)
	b = append(b, `,"roles":[`...)
	for i, role := range r.Principal.Roles {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, role)
	}
	b = append(b, ']')
	b = appendOptional(b, "client", r.Principal.Client)
	b = appendOptional(b, "tenant", r.Principal.Tenant)
	b = append(b, '}')
	b = appendMember(b, "transport", r.Transport)
	b = appendMember(b, "era", r.Era)
	b = appendMember(b, "route", r.Route)
	b = appendOptional(b, "session", r.Session)
	return appendMember(b, "request_id", r.RequestID)
}

func appendTool(b []byte, r *Record) []byte {
	b = appendOptional(b, "method", r.Method)
	b = appendMember(b, "server", r.Server)
	b = appendMember(b, "tool", r.Tool)
	b = appendMember(b, "exposed", r.Exposed)
	b = appendMember(b, "fingerprint", r.Fingerprint)
	if len(r.Arguments) > 0 {
		b = append(b, `,"arguments":`...)
		b = appendArguments(b, r.Arguments)
	}
	switch {
	case r.ArgumentsSHA256 != "":
		b = appendMember(b, "arguments_sha256", r.ArgumentsSHA256)
	case len(r.Arguments) > 0:
		sum := sha256.Sum256(r.Arguments)
		b = append(b, `,"arguments_sha256":"`...)
		b = hex.AppendEncode(b, sum[:])
		b = append(b, '"')
	}
	return b
}

// appendArguments keeps judged bytes as they are. What would break the line or
// its JSON becomes a string: judged arguments are objects, so the two cannot be
// taken for each other, and no record is lost because of what a caller sent.
func appendArguments(b []byte, raw []byte) []byte {
	if bytes.ContainsAny(raw, "\r\n") || !utf8.Valid(raw) || !json.Valid(raw) {
		return appendString(b, string(raw))
	}
	return append(b, raw...)
}

func appendVerdict(b []byte, r *Record) []byte {
	if p := &r.Policy; p.Effect != "" || p.Revision != "" {
		b = append(b, `,"policy":{"effect":`...)
		b = appendString(b, p.Effect)
		b = appendOptional(b, "rule", p.Rule)
		b = appendOptional(b, "reason", p.Reason)
		b = appendOptional(b, "remedy", p.Remedy)
		b = appendOptional(b, "revision", p.Revision)
		b = appendJSON(b, "obligations", p.Obligations)
		b = append(b, '}')
	}
	b = appendJSON(b, "input", r.Input)
	b = appendOptional(b, "ticket", r.Ticket)
	return appendJSON(b, "task", r.Task)
}

// appendJSON appends a member that is JSON already, or nothing for none.
func appendJSON(b []byte, name string, raw []byte) []byte {
	if len(raw) == 0 {
		return b
	}
	b = append(b, ',', '"')
	b = append(b, name...)
	b = append(b, '"', ':')
	return appendArguments(b, raw)
}

func appendOutcome(b []byte, r *Record) []byte {
	b = appendMember(b, "outcome", string(r.Outcome))
	b = appendMember(b, "stage", r.Stage)
	b = appendOptional(b, "code", r.Code)
	b = append(b, `,"duration_ms":`...)
	b = appendMillis(b, r.DurationMS)
	b = appendOptional(b, "result_sha256", r.ResultSHA256)
	if r.ResultBytes != 0 {
		b = append(b, `,"result_bytes":`...)
		b = strconv.AppendInt(b, int64(r.ResultBytes), 10)
	}
	b = appendOptional(b, "error", r.Error)
	if r.Replayed {
		b = append(b, `,"replayed":true`...)
	}
	return b
}

func appendChange(b []byte, c *Change) []byte {
	b = append(b, `,"change":{"seq":`...)
	b = strconv.AppendInt(b, c.Seq, 10)
	b = appendMember(b, "from", c.From)
	b = appendMember(b, "to", c.To)
	b = appendMember(b, "who", c.Who)
	b = appendMember(b, "reason", c.Reason)
	b = appendMember(b, "digest", c.Digest)
	return append(b, '}')
}

// appendMillis keeps three decimals; what is no finite number is 0, for JSON
// has no word for it.
func appendMillis(b []byte, ms float64) []byte {
	if math.IsNaN(ms) || math.IsInf(ms, 0) {
		ms = 0
	}
	return strconv.AppendFloat(b, math.Round(ms*1000)/1000, 'f', -1, 64)
}

func appendOptional(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	return appendMember(b, name, value)
}

func appendMember(b []byte, name, value string) []byte {
	b = append(b, ',', '"')
	b = append(b, name...)
	b = append(b, '"', ':')
	return appendString(b, value)
}

// appendString writes s as a JSON string. Control characters and the two line
// separators that are line ends to some readers are escaped, bytes that are no
// UTF-8 become U+FFFD.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if esc := runeEscape(r, size); esc != "" {
				b = append(append(b, s[start:i]...), esc...)
				start = i + size
			}
			i += size
			continue
		}
		if c < ' ' || c == '"' || c == '\\' || c == 0x7f {
			b = appendEscape(append(b, s[start:i]...), c)
			start = i + 1
		}
		i++
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}

func runeEscape(r rune, size int) string {
	switch {
	case r == utf8.RuneError && size == 1:
		return `\ufffd`
	case r == '\u2028':
		return `\u2028`
	case r == '\u2029':
		return `\u2029`
	}
	return ""
}

func appendEscape(b []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(b, '\\', c)
	case '\n':
		return append(b, `\n`...)
	case '\r':
		return append(b, `\r`...)
	case '\t':
		return append(b, `\t`...)
	}
	return append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
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
	b = append(b, ',')
	b = append(b, body...)
	b = append(b, `,"instance":"`...)
	b = append(b, instance...)
	b = append(b, `","prev":"`...)
	b = hex.AppendEncode(b, at.hash[:])
	b = append(b, '"', '}')
	next := link{seq: at.seq + 1, hash: sha256.Sum256(b[start:])}
	b = append(b[:len(b)-1], hashMember...)
	b = hex.AppendEncode(b, next.hash[:])
	return append(b, '"', '}', '\n'), next
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
