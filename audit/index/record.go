package index

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// A Call is one call as lists show it. It is no evidence: the records that it names are.
type Call struct {
	ID          string    `json:"id"`                     // of the decision
	Time        time.Time `json:"time"`                   // of the decision record, or else of the outcome record
	Instance    string    `json:"instance"`               // chain of the records
	DecisionSeq uint64    `json:"decision_seq,omitempty"` // number of the decision record; 0 = there is none
	OutcomeSeq  uint64    `json:"outcome_seq,omitempty"`  // of the outcome record; 0 = the call has not ended, or its process has died
	Principal   string    `json:"principal"`              // subject
	Person      string    `json:"person,omitempty"`
	Roles       []string  `json:"roles,omitempty"`
	Method      string    `json:"method,omitempty"` // "" = tools/call
	Tool        string    `json:"tool"`             // as agents call it
	Server      string    `json:"server"`
	Effect      string    `json:"effect"` // of the policy: allow, hold or deny; "" = it was not asked
	Rule        string    `json:"rule,omitempty"`
	Outcome     string    `json:"outcome,omitempty"` // an audit.Outcome
	Code        string    `json:"code,omitempty"`    // kernel code of a refusal
	Stage       string    `json:"stage,omitempty"`   // at which it ended
	Ticket      string    `json:"ticket,omitempty"`
	Account     string    `json:"account,omitempty"` // of the person at the server
	DurationMS  float64   `json:"duration_ms"`
}

// Bounds of what is found by arguments.
const (
	maxLeaves = 64  // values of a call, by pointer
	maxWords  = 256 // words of a call
	maxWord   = 64  // bytes of a word that count
	maxValue  = 1024
)

// The kinds of terms.
const (
	termPrincipal = 'p'
	termPerson    = 'n'
	termServer    = 's'
	termTool      = 't'
	termOutcome   = 'o'
	termRule      = 'r'
	termCode      = 'c'
	termTicket    = 'k' // of ""; of every call with a ticket
	termID        = 'i'
	termLeaf      = 'a' // pointer=value
	termWord      = 'w'
	termChange    = 'K' // ticket that a change is of
)

// A hasher makes the hash of a term, FNV-1a.
type hasher uint64

func newHasher(kind byte) hasher { return hasher(14695981039346656037).add(kind) }

func (h hasher) add(b byte) hasher { return (h ^ hasher(b)) * 1099511628211 }

func (h hasher) sum() uint64 { // whose last bits change the first ones too
	h ^= h >> 32
	return uint64(h*0x9e3779b97f4a7c15) >> (64 - hashBits)
}

func add[T string | []byte](h hasher, text T) hasher {
	for i := range len(text) {
		h = h.add(text[i])
	}
	return h
}

func termHash[T string | []byte](kind byte, text T) uint64 { return add(newHasher(kind), text).sum() }

// asciiWord has the lower case of ASCII letters and digits, 0 for what stands between words.
var asciiWord = func() (table [utf8.RuneSelf]byte) {
	for c := range byte(utf8.RuneSelf) {
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
			table[c] = c
		case 'A' <= c && c <= 'Z':
			table[c] = c - 'A' + 'a'
		}
	}
	return table
}()

// eachWord calls visit with the hashes of the words of a text, which are runs of letters and digits,
// whatever their case, until it returns false.
func eachWord(text []byte, visit func(hash uint64) bool) {
	h, length := newHasher(termWord), 0
	for i := 0; i < len(text); {
		n := 1
		if text[i] < utf8.RuneSelf {
			if c := asciiWord[text[i]]; c == 0 {
				n = 0
			} else if length < maxWord {
				h = h.add(c)
			}
			i++
		} else {
			var c rune
			c, n = utf8.DecodeRune(text[i:])
			i += n
			if !unicode.IsLetter(c) && !unicode.IsDigit(c) {
				n = 0
			} else if length < maxWord {
				for c = unicode.ToLower(c); c >= utf8.RuneSelf; c >>= 6 { // any unambiguous bytes do
					h = h.add(byte(c) | 0x80)
				}
				h = h.add(byte(c))
			}
		}
		if length += n; n > 0 {
			continue
		}
		if length > 0 && !visit(h.sum()) {
			return
		}
		h, length = newHasher(termWord), 0
	}
	if length > 0 {
		visit(h.sum())
	}
}

// record is what the index takes from a line of the trail. Its texts and bytes are valid as long as
// the line.
type record struct {
	Call

	kind      audit.Kind
	seq       uint64
	ids       [5][]byte // of the decision, the call, its trace, the trace's parent and the request
	arguments json.RawMessage
	excerpt   json.RawMessage
}

// reader reads lines. It keeps texts that come again, so that they take memory once.
type reader struct{ known map[string]string }

const maxKnown = 4096

// textOf returns the text of a JSON string, nothing of anything else.
func textOf(value []byte) []byte {
	text := plainText(value)
	if text == nil {
		s, _ := jsonrpc.Text(value)
		text = []byte(s)
	}
	return text
}

// plainText returns the text of a JSON string without escapes, nil of anything else.
func plainText(value []byte) []byte {
	if len(value) < 2 || value[0] != '"' || bytes.IndexByte(value, '\\') >= 0 {
		return nil
	}
	return value[1 : len(value)-1]
}

// keep is text of a value that is likely to come again.
func (r *reader) keep(value []byte) string {
	if s, ok := r.known[string(value)]; ok {
		return s
	}
	s := string(textOf(value))
	if r.known == nil || len(r.known) >= maxKnown {
		r.known = map[string]string{}
	}
	if len(value) < 256 {
		r.known[string(value)] = s
	}
	return s
}

// read reads a line into rec, and reports whether it is a record. Of a decision it reads no more
// than seq, time, kind and ID, unless it is to be whole.
func (r *reader) read(line []byte, rec *record, whole bool) bool {
	return eachMember(line, func(name, v []byte) bool {
		switch string(name) {
		case "seq":
			rec.seq, _ = strconv.ParseUint(string(v), 10, 64)
		case "time":
			rec.Time, _ = time.Parse(time.RFC3339Nano, string(textOf(v)))
		case "kind":
			rec.kind = audit.Kind(r.keep(v))
		case "decision_id":
			rec.ids[0] = textOf(v)
			rec.ID = string(rec.ids[0])
			return whole || rec.kind != audit.KindDecision
		case "call_id":
			rec.ids[1] = textOf(v)
		case "trace_id":
			rec.ids[2] = textOf(v)
		case "parent_id":
			rec.ids[3] = textOf(v)
		case "request_id":
			rec.ids[4] = textOf(v)
		case "principal":
			eachMember(v, func(name, v []byte) bool { return r.principal(name, v, rec) })
		case "policy":
			eachMember(v, func(name, v []byte) bool { return r.policy(name, v, rec) })
		case "duration_ms":
			rec.DurationMS, _ = strconv.ParseFloat(string(v), 64)
			return false // no more is wanted
		default:
			r.member(name, v, rec)
		}
		return true
	})
}

func (r *reader) principal(name, v []byte, rec *record) bool {
	switch string(name) {
	case "subject":
		rec.Principal = r.keep(v)
	case "person":
		rec.Person = r.keep(v)
	case "roles":
		jsonrpc.Each(v, func(_ []byte, v json.RawMessage) bool {
			rec.Roles = append(rec.Roles, r.keep(v))
			return v != nil
		})
	}
	return true
}

func (r *reader) policy(name, v []byte, rec *record) bool {
	switch string(name) {
	case "effect":
		rec.Effect = r.keep(v)
	case "rule":
		rec.Rule = r.keep(v)
		return false // no more is wanted
	}
	return true
}

func (r *reader) member(name, v []byte, rec *record) {
	switch string(name) {
	case "arguments":
		rec.arguments = v
	case "arguments_excerpt":
		rec.excerpt = v
	case "credential":
		account, _ := jsonrpc.Get(v, "account")
		rec.Account = r.keep(account)
	case "method":
		rec.Method = r.keep(v)
	case "server":
		rec.Server = r.keep(v)
	case "exposed":
		rec.Tool = r.keep(v)
	case "ticket":
		rec.Ticket = string(textOf(v))
	case "outcome":
		rec.Outcome = r.keep(v)
	case "code":
		rec.Code = r.keep(v)
	case "stage":
		rec.Stage = r.keep(v)
	}
}

// eachMember calls visit for the members of an object as the log writes it, without space around
// names and values, until it returns false. It returns false for anything else. jsonrpc.Each does
// the same for all JSON, and costs a tenth more of the time that it takes to index a call.
func eachMember(object []byte, visit func(name, value []byte) bool) bool {
	if len(object) < 2 || object[0] != '{' {
		return false
	}
	if object[1] == '}' {
		return len(object) == 2
	}
	for rest := object; ; {
		rest = rest[1:] // a bracket or a comma
		n := stringLen(rest)
		if n == 0 || n == len(rest) || rest[n] != ':' {
			return false
		}
		name := rest[1 : n-1]
		rest = rest[n+1:]
		if n = stringLen(rest); n == 0 {
			n = valueLen(rest)
		}
		if n == 0 || n == len(rest) {
			return false
		}
		if !visit(name, rest[:n:n]) {
			return true
		}
		if rest = rest[n:]; rest[0] != ',' {
			return rest[0] == '}' && len(rest) == 1
		}
	}
}

// valueLen returns the length of the JSON value that text begins with, 0 for none. Of an array or
// an object it looks at strings and brackets alone.
func valueLen(text []byte) int {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			n := stringLen(text[i:])
			if n == 0 {
				return 0
			}
			if i += n - 1; depth == 0 {
				return i + 1
			}
		case '{', '[':
			depth++
		case '}', ']':
			switch depth--; {
			case depth < 0:
				return i // behind a number or a word
			case depth == 0:
				return i + 1
			}
		case ',':
			if depth == 0 {
				return i
			}
		}
	}
	return 0
}

// stringLen returns the length of the JSON string that text begins with, 0 for none.
func stringLen(text []byte) int {
	if len(text) == 0 || text[0] != '"' {
		return 0
	}
	for at := 1; ; {
		n := bytes.IndexByte(text[at:], '"')
		if n < 0 {
			return 0
		}
		at += n + 1
		escapes := 0
		for text[at-2-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return at
		}
	}
}

// argumentsOf returns the arguments in the line of a decision.
func argumentsOf(line []byte) (found json.RawMessage) {
	eachMember(line, func(name, v []byte) bool {
		if string(name) == "arguments" {
			found = v
		}
		return found == nil
	})
	return found
}

// terms appends the terms of a call to terms; one may come twice.
func (rec *record) terms(terms []uint64) []uint64 {
	for _, t := range []struct {
		kind byte
		text string
	}{
		{termPrincipal, rec.Principal}, {termPerson, rec.Person}, {termServer, rec.Server}, {termTool, rec.Tool}, {termTool, rec.Method}, {termOutcome, rec.Outcome},
		{termRule, rec.Rule}, {termCode, rec.Code}, {termTicket, rec.Ticket},
	} {
		if t.text != "" {
			terms = append(terms, termHash(t.kind, t.text))
		}
	}
	if rec.Ticket != "" {
		terms = append(terms, termHash(termTicket, ""))
	}
	for _, id := range rec.ids {
		if len(id) > 0 {
			terms = append(terms, termHash(termID, id))
		}
	}
	f := finder{terms: terms, leaves: maxLeaves, words: maxWords}
	var pointer [256]byte
	f.value(pointer[:0], rec.arguments)
	f.text(rec.excerpt)
	return f.terms
}

// finder makes the terms of arguments.
type finder struct {
	terms         []uint64
	leaves, words int // that may still be added
}

// value adds the terms of a value at a pointer (RFC 6901).
func (f *finder) value(pointer []byte, value json.RawMessage) {
	if len(value) == 0 {
		return
	}
	if value[0] != '{' && value[0] != '[' {
		text := f.text(value)
		if f.leaves > 0 && len(text) <= maxValue {
			f.leaves--
			f.terms = append(f.terms, leafHash(pointer, text))
		}
		return
	}
	element := 0
	jsonrpc.Each(value, func(name []byte, value json.RawMessage) bool {
		at := append(pointer, '/')
		if name == nil && len(value) > 0 {
			at = strconv.AppendInt(at, int64(element), 10)
			element++
		}
		for _, c := range name {
			switch c {
			case '~':
				at = append(at, "~0"...)
			case '/':
				at = append(at, "~1"...)
			default:
				at = append(at, c)
			}
		}
		f.wordsOf(name)
		f.value(at, value)
		return value != nil && f.leaves+f.words > 0
	})
}

// text adds the words of a value, and returns it as a text.
func (f *finder) text(value json.RawMessage) []byte {
	text := plainText(value)
	if text == nil {
		text = value
		if s, ok := jsonrpc.Text(value); ok {
			text = []byte(s)
		}
	}
	f.wordsOf(text)
	return text
}

func (f *finder) wordsOf(text []byte) {
	if f.words == 0 {
		return
	}
	eachWord(text, func(hash uint64) bool {
		f.words--
		f.terms = append(f.terms, hash)
		return f.words > 0
	})
}

func leafHash(pointer, text []byte) uint64 {
	return add(add(newHasher(termLeaf), pointer).add('='), text).sum()
}
