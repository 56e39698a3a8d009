package jsonrpc

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
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

// A scanner makes the one strict pass. Its lexer holds the text to the grammar and to
// UTF-8; the scanner adds the limits, the rules for names, and the list of the members
// that callers ask for. What it refuses, a jsontext.Decoder reads again to say why.
type scanner struct {
	lexer
	findings
	lead  int // length of the white space cut off before the text
	lim   Limits
	depth int    // how many arrays and objects are open
	names []name // of the objects that are open
}

// findings are what a pass has found. A fault that ends the pass (no JSON, nested too
// deep) is returned. Any other is kept in soft, the first only, so that the id can
// still be read.
type findings struct {
	raw      []byte
	members  []member // in the order in which they end
	soft     *Fault
	variants *Variants
	plain    bool // as in Message
}

var scanners = sync.Pool{New: func() any { return new(scanner) }}

// lenient turns off jsontext's own search for repeated names: the scanner
// compares names once, for repetition and for case, and continues after a
// match.
var lenient = jsontext.AllowDuplicateNames(true)

const blanks = " \t\r\n"

// newScanner returns a scanner that holds to lim. Its owner frees it.
func newScanner(lim Limits) *scanner {
	s := scanners.Get().(*scanner)
	s.lim, s.mend = Limits{
		Bytes: cmp.Or(max(lim.Bytes, 0), defaults.Bytes), Depth: cmp.Or(max(lim.Depth, 0), defaults.Depth),
		Digits: cmp.Or(max(lim.Digits, 0), defaults.Digits), Exponent: cmp.Or(max(lim.Exponent, 0), defaults.Exponent), Open: lim.Open, Owned: lim.Owned,
	}, lim.Mend
	return s
}

// reset forgets all but the memory for names and members.
func (s *scanner) reset() {
	clear(s.names[:cap(s.names)])
	clear(s.members[:cap(s.members)])
	*s = scanner{names: s.names[:0], findings: findings{members: s.members[:0]}}
}

// free returns s to the pool, without what it has found.
func (s *scanner) free() {
	const most = 64
	if cap(s.names) <= most && cap(s.members) <= most {
		s.reset()
		scanners.Put(s)
	}
}

// scan makes the pass over exactly one value in zone z.
func scan(data []byte, lim Limits, z zone) (found findings, fault *Fault) {
	s := newScanner(lim)
	defer s.free()
	if fault = s.scan(data, z); fault == nil {
		found = s.findings
		found.members = slices.Clone(s.members)
	}
	return found, fault
}

// scan makes the pass over exactly one value in zone z. It reads a copy, so that
// nothing returned later aliases data, unless data is owned, and replaces the line
// ends between tokens by spaces: no reading changes, and one line is safe on every
// transport.
func (s *scanner) scan(data []byte, z zone) *Fault {
	if len(data) > s.lim.Bytes {
		return (&Outline{}).TooLarge(s.lim.Bytes)
	}
	text := bytes.TrimLeft(data, blanks)
	s.lead = len(data) - len(text)
	if text = bytes.TrimRight(text, blanks); !s.lim.Owned {
		text = bytes.Clone(text)
	}
	s.data, s.raw = text, slices.Clip(text)
	if bytes.HasPrefix(s.data, []byte("\xef\xbb\xbf")) {
		return s.hard(Parse, 0, "byte order mark before the message")
	}
	if len(s.data) == 0 {
		return s.hard(Parse, 0, "empty message")
	}
	if _, fault := s.read(z); fault != nil {
		if !s.mend || fault.Kind != Parse || utf8.Valid(data) {
			return fault
		}
		lim := s.lim // outside of strings U+FFFD is a fault like what it stands for
		s.reset()
		s.lim, s.mend, s.lim.Owned = lim, true, true
		return s.scan(bytes.ToValidUTF8(data, []byte("\ufffd")), z)
	}
	if s.peek(); s.at < len(s.data) {
		return s.hard(Parse, s.at, "more bytes after the message")
	}
	if s.lines {
		copy(s.data, OneLine(s.data)) // strings hold no raw line end
	}
	s.plain = !s.odd
	return nil
}

// read reads one value in zone z. It calls itself no deeper than lim.Depth.
func (s *scanner) read(z zone) ([]byte, *Fault) {
	open := s.peek()
	start, base, inner, fault := s.at, len(s.names), max(z, zoneStrict), (*Fault)(nil)
	if open != '{' && open != '[' {
		if !s.value(0) {
			return nil, s.syntax()
		}
		raw := s.data[start:s.at:s.at]
		if open <= '9' && open != '"' && (len(raw) > s.lim.Digits || bytes.IndexByte(raw, 'e') >= 0 || bytes.IndexByte(raw, 'E') >= 0) {
			s.limit(raw)
		}
		return raw, nil
	}
	if s.depth++; s.depth > s.lim.Depth {
		s.at++
		return nil, s.hard(Invalid, start, fmt.Sprintf("nested deeper than %d levels", s.lim.Depth))
	}
	ok := s.each(func(name []byte) bool {
		if open == '{' {
			inner = s.name(name, z)
		}
		raw, f := s.read(inner)
		if fault = f; f == nil && open == '{' && z <= zoneMeta {
			s.members = append(s.members, member{})
			m := &s.members[len(s.members)-1] // filled in place, for a copy takes longer
			m.zone, m.name, m.value = z, name, raw
		}
		return f == nil
	})
	switch {
	case fault != nil:
		return nil, fault
	case !ok:
		return nil, s.syntax()
	}
	s.depth--
	if names := s.names[base:]; agree(names) {
		s.judgeNames(z, names)
	}
	s.names = s.names[:base]
	if z == zoneResult && s.lim.Owned { // it may grow over what follows
		return s.data[start:s.at], nil
	}
	return s.data[start:s.at:s.at], nil
}

// hashPrime is that of FNV-1a, 64 bit.
const hashPrime = 1099511628211

// hashName returns a hash that is equal for names which differ only by the case of ASCII
// letters. Rare says that a name has control characters, or other than ASCII.
func hashName(text []byte) (hash uint64, rare bool) {
	n, odd := len(text), uint64(0)
	add := func(w uint64) {
		odd |= w | (w + each) | (w - 0x20*each)
		lower := (w + (0x80-'a')*each) ^ (w + (0x7f-'z')*each)
		hash = (hash ^ w ^ lower&tops>>2) * hashPrime
		hash ^= hash >> 32
	}
	hash = uint64(n)
	switch {
	case n >= 8:
		for i := 0; i+8 < n; i += 8 {
			add(binary.LittleEndian.Uint64(text[i:]))
		}
		add(binary.LittleEndian.Uint64(text[n-8:]))
	case n >= 4:
		add(uint64(binary.LittleEndian.Uint32(text)) | uint64(binary.LittleEndian.Uint32(text[n-4:]))<<32)
	case n > 0:
		add(uint64(text[0]) | uint64(text[n/2])<<8 | uint64(text[n-1])<<16 | 0x4040404040<<24)
	}
	return hash, odd&tops != 0
}

// name takes the name of a member, which was read last, of an object in zone z. It
// returns the zone of its value.
func (s *scanner) name(text []byte, z zone) zone {
	hash, rare := hashName(text)
	s.names = append(s.names, name{})
	n := &s.names[len(s.names)-1]
	if n.at, n.text, n.hash = s.named, text, hash; rare {
		s.rareName(n)
	}
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
			if !s.misspelled(n, topNames...) && !s.lim.Open {
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
	return inner
}

// rareName sets the hash of a name with control characters, or other than ASCII: that of
// its folded form. It refuses control characters, which some decoders drop or stop at.
func (s *scanner) rareName(n *name) {
	text := string(n.text)
	if strings.IndexFunc(text, unicode.IsControl) >= 0 {
		s.refuse(n.at, "control character in a member name")
	}
	n.hash, _ = hashName([]byte(strings.Map(folded, text)))
}

// misspelled refuses a name that is not in known and differs only by case from
// one of them. It reports whether it does.
func (s *scanner) misspelled(n *name, known ...string) bool {
	for _, k := range known {
		if len(n.text) >= len(k) && bytes.EqualFold(n.text, []byte(k)) {
			s.refuse(n.at, fmt.Sprintf("member %s differs only by case from %q", brief(n.text), k))
			return true
		}
	}
	return false
}

// limit holds a number that ends here to the limits: exact arithmetic on a number with a
// huge exponent costs time without bound.
func (s *scanner) limit(raw []byte) {
	at := s.at - len(raw)
	mantissa, exponent, powered := bytes.Cut(bytes.ToLower(raw), []byte{'e'})
	if len(mantissa)-bytes.Count(mantissa, []byte{'.'})-bytes.Count(mantissa, []byte{'-'}) > s.lim.Digits {
		s.refuse(at, fmt.Sprintf("number with more than %d digits", s.lim.Digits))
	}
	if n, err := strconv.Atoi(string(exponent)); powered && (err != nil || max(n, -n) > s.lim.Exponent) {
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
		d, _ := s.reread(s.at)
		s.variants = &Variants{pointer(d), string(first.text), string(second.text)}
	}
}

// agree reports whether two of names have one hash.
func agree(names []name) bool {
	if len(names) <= 8 { // comparing all takes less than sorting
		for i := range names {
			for j := range i {
				if names[i].hash == names[j].hash {
					return true
				}
			}
		}
		return false
	}
	var few [16]uint64
	hashes := few[:0]
	for i := range names {
		hashes = append(hashes, names[i].hash)
	}
	slices.Sort(hashes)
	return len(slices.Compact(hashes)) < len(names)
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

// reread returns a decoder that has read all tokens that end at offset to or before, and
// why it has read no further.
func (s *scanner) reread(to int) (d *jsontext.Decoder, err error) {
	d = jsontext.NewDecoder(bytes.NewBuffer(s.data), lenient)
	for err == nil && int(d.InputOffset()) < to {
		_, err = d.ReadToken()
	}
	return d, err
}

// syntax returns the fault of a text that the lexer does not accept: what jsontext finds.
func (s *scanner) syntax() *Fault {
	d, err := s.reread(len(s.data))
	return s.explain(d, err)
}

// explain says in our words why d has failed with err.
func (s *scanner) explain(d *jsontext.Decoder, err error) *Fault {
	start := len(s.data) - len(bytes.TrimLeft(s.data[d.InputOffset():], blanks+",:")) // of the token that it was reading
	var found *jsontext.SyntacticError
	if errors.Is(err, io.ErrUnexpectedEOF) || !errors.As(err, &found) {
		return s.fault(d, Parse, len(s.data), s.missing(d, start))
	}
	at, text := int(found.ByteOffset), found.Err.Error()
	if at > 0 && at < len(s.data) && s.data[at-1] == '0' && '0' <= s.data[at] && s.data[at] <= '9' {
		return s.fault(d, Parse, at, "malformed number")
	}
	for _, w := range syntaxWords {
		if strings.HasPrefix(text, w.prefix) && strings.HasSuffix(text, w.suffix) {
			return s.fault(d, Parse, at, w.reason)
		}
	}
	if wantsName(d) {
		return s.fault(d, Parse, start, "expected a member name")
	}
	return s.fault(d, Parse, start, "unexpected character")
}

// missing says what a text that ends too early lacks. Its last token, at which d has
// failed, starts at start.
func (s *scanner) missing(d *jsontext.Decoder, start int) string {
	switch {
	case start < len(s.data) && s.data[start] == '"':
		return "unfinished string"
	case start < len(s.data) || !wantsName(d):
		return "unexpected end"
	case strings.IndexByte("{,", s.data[len(s.data)-1]) >= 0:
		return "expected a member name"
	}
	return "expected a comma or the end of an object"
}

// wantsName reports whether the next token has to be the name of a member.
func wantsName(d *jsontext.Decoder) bool {
	kind, length := d.StackIndex(d.StackDepth())
	return kind == '{' && length%2 == 0
}

// hard returns the fault that ends the pass here.
func (s *scanner) hard(kind FaultKind, at int, reason string) *Fault {
	d, _ := s.reread(s.at)
	return s.fault(d, kind, at, reason)
}

// fault returns a fault of what d has read last.
func (s *scanner) fault(d *jsontext.Decoder, kind FaultKind, at int, reason string) *Fault {
	return &Fault{Kind: kind, Reason: reason, Pointer: pointer(d), Offset: int64(s.lead + at)}
}

// refuse notes a fault that does not end the pass.
func (s *scanner) refuse(at int, reason string) {
	if s.soft == nil {
		s.soft = s.hard(Invalid, at, reason)
	}
}

// pointer is the JSON Pointer (RFC 6901) of what d has read last, or of what that is in
// where it would be long, with long names cut.
func pointer(d *jsontext.Decoder) string {
	const most = 256
	var p jsontext.Pointer
	for name := range d.StackPointer().Tokens() {
		if len(p) > most {
			break
		}
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
