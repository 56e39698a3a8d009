package jsonrpc

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// A zone says which rules hold for the members of an object.
type zone uint8

const (
	zoneTop    zone = iota // the message: known names must be spelled exactly
	zoneParams             // params: the same, and members are indexed
	zoneMeta               // params._meta: members are indexed
	zoneResult             // result
	zoneStrict             // anything else that the protocol defines
	zoneFree               // data of a tool: names that differ only by case are recorded, not refused
)

// A member is one member of an object in a zone up to zoneMeta.
type member struct {
	zone  zone
	name  []byte // decoded
	value []byte
}

// A name is the name of a member of an object that is read.
type name struct {
	at   int    // offset of the opening quote
	text []byte // decoded
	hash uint64 // of the folded text: equal for names that differ only by case
}

// A scanner makes the one strict pass. jsontext.Decoder holds the text to the
// grammar and to UTF-8; the scanner adds the limits, the rules for names, and
// the list of the members that callers ask for.
type scanner struct {
	findings
	lead    int // length of the white space cut off before data
	lim     Limits
	buffer  bytes.Buffer
	decoder jsontext.Decoder
	names   []name // of the objects that are open
}

// findings are what a pass has found. A fault that ends the pass (no JSON, nested too
// deep) is returned. Any other is kept in soft, the first only, so that the id can
// still be read.
type findings struct {
	data     []byte
	members  []member // in the order in which they end
	soft     *Fault
	variants *Variants
}

var scanners = sync.Pool{New: func() any { return new(scanner) }}

// maxKept bounds the names and members for which a scanner has room between two
// passes.
const maxKept = 1024

// reset begins a pass over data. With nil it drops every reference to the data of
// the pass before.
func (s *scanner) reset(data []byte) {
	clear(s.names)
	clear(s.members)
	s.findings = findings{data: data, members: s.members[:0]}
	if s.names = s.names[:0]; max(cap(s.names), cap(s.members)) > maxKept {
		s.names, s.members = nil, nil
	}
	s.buffer = *bytes.NewBuffer(data)
	s.decoder.Reset(&s.buffer, lenient)
}

// lenient turns off jsontext's own search for repeated names: the scanner
// compares names once, for repetition and for case, and continues after a
// match.
var lenient = jsontext.AllowDuplicateNames(true)

const blanks = " \t\r\n"

// scan makes the pass over exactly one value in zone z. It reads a copy, so that
// nothing returned later aliases data, unless data is owned, and replaces the line
// ends between tokens by spaces: no reading changes, and one line is safe on every
// transport.
func scan(data []byte, lim Limits, z zone) (found findings, fault *Fault) {
	s := scanners.Get().(*scanner)
	defer func() {
		s.reset(nil)
		scanners.Put(s)
	}()
	s.lim = Limits{
		Bytes: cmp.Or(max(lim.Bytes, 0), defaults.Bytes), Depth: cmp.Or(max(lim.Depth, 0), defaults.Depth),
		Digits: cmp.Or(max(lim.Digits, 0), defaults.Digits), Exponent: cmp.Or(max(lim.Exponent, 0), defaults.Exponent), Open: lim.Open,
	}
	if len(data) > s.lim.Bytes {
		reason := fmt.Sprintf("more than %d bytes", s.lim.Bytes)
		return found, &Fault{Kind: TooLarge, Reason: reason, Offset: int64(s.lim.Bytes)}
	}
	text := bytes.TrimLeft(data, blanks)
	s.lead = len(data) - len(text)
	if text = slices.Clip(bytes.TrimRight(text, blanks)); !lim.Owned {
		text = bytes.Clone(text)
	}
	s.reset(text)
	if bytes.HasPrefix(s.data, []byte("\xef\xbb\xbf")) {
		return found, s.hard(Parse, 0, "byte order mark before the message")
	}
	if len(s.data) == 0 {
		return found, s.hard(Parse, 0, "empty message")
	}
	if _, fault = s.value(z); fault != nil {
		return found, fault
	}
	if end := int(s.decoder.InputOffset()); end < len(s.data) {
		return found, s.hard(Parse, len(s.data)-len(bytes.TrimLeft(s.data[end:], blanks)), "more bytes after the message")
	}
	copy(s.data, OneLine(s.data)) // strings hold no raw line end
	found = s.findings
	found.members = slices.Clone(s.members)
	return found, nil
}

// value reads one value in zone z. It calls itself no deeper than lim.Depth.
func (s *scanner) value(z zone) ([]byte, *Fault) {
	kind, end := s.decoder.PeekKind(), jsontext.Kind('}')
	switch kind {
	case '{':
	case '[':
		end = ']'
	default:
		raw, err := s.decoder.ReadValue()
		if err != nil {
			return nil, s.syntax(err)
		}
		if kind == '0' && (len(raw) > s.lim.Digits || bytes.IndexByte(raw, 'e') >= 0 || bytes.IndexByte(raw, 'E') >= 0) {
			s.number(raw)
		}
		end := int(s.decoder.InputOffset())
		return s.data[end-len(raw) : end : end], nil
	}
	if _, err := s.decoder.ReadToken(); err != nil {
		return nil, s.syntax(err)
	}
	start, base, inner := int(s.decoder.InputOffset())-1, len(s.names), max(z, zoneStrict)
	if s.decoder.StackDepth() > s.lim.Depth {
		return nil, s.hard(Invalid, start, fmt.Sprintf("nested deeper than %d levels", s.lim.Depth))
	}
	for s.decoder.PeekKind() != end {
		var key []byte
		if kind == '{' {
			var f *Fault
			if key, inner, f = s.name(z); f != nil {
				return nil, f
			}
		}
		raw, f := s.value(inner)
		if f != nil {
			return nil, f
		}
		if kind == '{' && z <= zoneMeta {
			s.members = append(s.members, member{z, key, raw})
		}
	}
	if _, err := s.decoder.ReadToken(); err != nil {
		return nil, s.syntax(err)
	}
	if names := s.names[base:]; len(names) > 0 {
		if agree(names) {
			s.judgeNames(z, names)
		}
		clear(names)
		s.names = s.names[:base]
	}
	stop := int(s.decoder.InputOffset())
	return s.data[start:stop:stop], nil
}

// folds is the folded form of the bytes that stand for themselves in a name, 0
// for any other.
var folds = func() (t [256]byte) {
	for c := byte(' '); c < 0x7f; c++ {
		if c != '"' && c != '\\' {
			t[c] = byte(folded(rune(c)))
		}
	}
	return t
}()

// The parameters of FNV-1a, 64 bit.
const (
	hashBasis = 14695981039346656037
	hashPrime = 1099511628211
)

// name reads the name of a member of an object in zone z and returns it with the
// zone of its value. It refuses control characters, which some decoders drop or stop
// at.
func (s *scanner) name(z zone) ([]byte, zone, *Fault) {
	raw, err := s.decoder.ReadValue()
	if err != nil {
		return nil, z, s.syntax(err)
	}
	end := int(s.decoder.InputOffset())
	n := name{end - len(raw), s.data[end-len(raw)+1 : end-1], hashBasis}
	for _, c := range n.text {
		fold := folds[c]
		if fold == 0 {
			s.rareName(&n, raw)
			break
		}
		n.hash = (n.hash ^ uint64(fold)) * hashPrime
	}
	s.names = append(s.names, n)
	inner := zoneStrict
	switch z {
	case zoneFree:
		inner = zoneFree
	case zoneTop:
		switch string(n.text) {
		case "params":
			inner = zoneParams
		case "result":
			inner = zoneResult
		case "jsonrpc", "id", "method", "error":
		default:
			if !s.misspelled(n, "jsonrpc", "id", "method", "params", "result", "error") && !s.lim.Open {
				s.refuse(n.at, "unknown member "+brief(n.text))
			}
		}
	case zoneParams: // a peer that folds case would take "Arguments" for what the call does
		switch string(n.text) {
		case "arguments":
			inner = zoneFree
		case "_meta":
			inner = zoneMeta
		case "name":
		default:
			s.misspelled(n, "name", "arguments", "_meta")
		}
	case zoneResult:
		if string(n.text) == "structuredContent" || string(n.text) == "tools" {
			inner = zoneFree
		}
	}
	return n.text, inner, nil
}

// rareName sets the text and the hash of a name with escapes, control
// characters, or other than ASCII. The decoder has accepted raw.
func (s *scanner) rareName(n *name, raw []byte) {
	n.text, _ = jsontext.AppendUnquote(nil, raw)
	n.hash = hashBasis
	for _, r := range string(n.text) {
		if unicode.IsControl(r) {
			s.refuse(n.at, "control character in a member name")
		}
		n.hash = (n.hash ^ uint64(folded(r))) * hashPrime
	}
}

// misspelled refuses a name that is not in known and differs only by case from
// one of them. It reports whether it does.
func (s *scanner) misspelled(n name, known ...string) bool {
	for _, k := range known {
		if len(n.text) >= len(k) && bytes.EqualFold(n.text, []byte(k)) {
			s.refuse(n.at, fmt.Sprintf("member %s differs only by case from %q", brief(n.text), k))
			return true
		}
	}
	return false
}

// number holds a number to the limits: exact arithmetic on a number with a huge
// exponent costs time without bound.
func (s *scanner) number(raw []byte) {
	digits, exponent := len(raw), 0
	if e := bytes.IndexAny(raw, "eE"); e >= 0 {
		n, err := strconv.Atoi(string(raw[e+1:]))
		if exponent = max(n, -n); err != nil {
			exponent = math.MaxInt
		}
		digits = e
	}
	if digits > s.lim.Digits {
		digits -= bytes.Count(raw, []byte{'.'})
		if raw[0] == '-' {
			digits--
		}
	}
	at := int(s.decoder.InputOffset()) - len(raw)
	if digits > s.lim.Digits {
		s.refuse(at, fmt.Sprintf("number with more than %d digits", s.lim.Digits))
	}
	if exponent > s.lim.Exponent {
		s.refuse(at, fmt.Sprintf("number with an exponent beyond %d", s.lim.Exponent))
	}
}

// judgeNames compares the names of one object in zone z when it is complete: it
// refuses the first repeated name and, except in zoneFree, the first pair that
// differs only by case. It takes n log n time for n names.
func (s *scanner) judgeNames(z zone, names []name) {
	exact, alike := make(map[string]bool, len(names)), make(map[string][]byte, len(names))
	var first, second *name
	for _, n := range names {
		text := string(n.text)
		if exact[text] {
			s.refuse(n.at, "duplicate key "+brief(n.text))
			continue
		}
		exact[text] = true
		key := strings.Map(folded, text)
		if other, ok := alike[key]; !ok {
			alike[key] = n.text
		} else if second == nil {
			first, second = &name{text: other}, &n
		}
	}
	switch {
	case second == nil:
	case z != zoneFree:
		s.refuse(second.at, fmt.Sprintf("members %s and %s differ only by case", brief(first.text), brief(second.text)))
	case s.variants == nil:
		s.variants = &Variants{s.pointer(), string(first.text), string(second.text)}
	}
}

// few is how many hashes are compared each with each; more are sorted.
const few = 24

// agree reports whether two of names have one hash.
func agree(names []name) bool {
	if len(names) > few {
		hashes := make([]uint64, len(names))
		for i, n := range names {
			hashes[i] = n.hash
		}
		slices.Sort(hashes)
		return len(slices.Compact(hashes)) < len(names)
	}
	for j := 1; j < len(names); j++ {
		for i := range j {
			if names[i].hash == names[j].hash {
				return true
			}
		}
	}
	return false
}

// folded returns the smallest rune of r's simple case folding orbit, so that
// "s", "S" and U+017F agree, as do "k", "K" and the Kelvin sign.
func folded(r rune) rune {
	if 'a' <= r && r <= 'z' {
		return r - ('a' - 'A')
	}
	if r < utf8.RuneSelf {
		return r
	}
	least := r
	for n := unicode.SimpleFold(r); n != r; n = unicode.SimpleFold(n) {
		least = min(least, n)
	}
	return least
}

// syntaxWords says in our words what jsontext finds. A part of the input, which
// jsontext quotes, never reaches a Fault.
var syntaxWords = []struct{ prefix, suffix, reason string }{
	{"invalid UTF-8", "", "invalid UTF-8"},
	{"invalid surrogate pair ", "", "lone surrogate in a string"},
	{"invalid escape sequence ", "", "invalid escape in a string"},
	{"", " in string (expecting non-control character)", "raw control character in a string"},
	{"", " in number (expecting digit)", "malformed number"},
	{"", " after object name (expecting ':')", "expected a colon"},
	{"", " after object value (expecting ',' or '}')", "expected a comma or the end of an object"},
	{"", " after array element (expecting ',' or ']')", "expected a comma or the end of an array"},
}

// syntax returns the fault of an error of the decoder.
func (s *scanner) syntax(err error) *Fault {
	start := int(s.decoder.InputOffset()) // of the token that it was reading
	for start < len(s.data) && strings.IndexByte(blanks+",:", s.data[start]) >= 0 {
		start++
	}
	var found *jsontext.SyntacticError
	if errors.Is(err, io.ErrUnexpectedEOF) || !errors.As(err, &found) {
		return s.hard(Parse, len(s.data), s.missing(start))
	}
	at, text := int(found.ByteOffset), found.Err.Error()
	if at > 0 && at < len(s.data) && s.data[at-1] == '0' && '0' <= s.data[at] && s.data[at] <= '9' {
		return s.hard(Parse, at, "malformed number")
	}
	for _, w := range syntaxWords {
		if strings.HasPrefix(text, w.prefix) && strings.HasSuffix(text, w.suffix) {
			return s.hard(Parse, at, w.reason)
		}
	}
	if s.wantsName() {
		return s.hard(Parse, start, "expected a member name")
	}
	return s.hard(Parse, start, "unexpected character")
}

// missing says what a text that ends too early lacks. Its last token starts at
// start.
func (s *scanner) missing(start int) string {
	switch {
	case start < len(s.data) && s.data[start] == '"':
		return "unfinished string"
	case start < len(s.data) || !s.wantsName():
		return "unexpected end"
	case strings.IndexByte("{,", s.data[len(s.data)-1]) >= 0:
		return "expected a member name"
	}
	return "expected a comma or the end of an object"
}

// wantsName reports whether the next token has to be the name of a member.
func (s *scanner) wantsName() bool {
	kind, length := s.decoder.StackIndex(s.decoder.StackDepth())
	return kind == '{' && length%2 == 0
}

// hard returns the fault that ends the pass.
func (s *scanner) hard(kind FaultKind, at int, reason string) *Fault {
	return &Fault{Kind: kind, Reason: reason, Pointer: s.pointer(), Offset: int64(s.lead + at)}
}

// refuse notes a fault that does not end the pass.
func (s *scanner) refuse(at int, reason string) {
	if s.soft == nil {
		s.soft = s.hard(Invalid, at, reason)
	}
}

// pointer is the JSON Pointer (RFC 6901) of what was read last, with long names
// cut.
func (s *scanner) pointer() string {
	const most = 256
	var p jsontext.Pointer
	for name := range s.decoder.StackPointer().Tokens() {
		p = p.AppendToken(strings.ToValidUTF8(name[:min(len(name), most)], ""))
	}
	return string(p)
}

// brief quotes a name for a message to people.
func brief(text []byte) string {
	const most = 64
	if len(text) <= most {
		return strconv.QuoteToGraphic(string(text))
	}
	return strconv.QuoteToGraphic(string(text[:most])) + "..."
}
