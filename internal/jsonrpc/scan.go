package jsonrpc

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// zone says what names that differ only by case mean where the scanner is.
type zone uint8

const (
	zoneTop    zone = iota // the message: refused, and known names must be spelled exactly
	zoneParams             // directly in params: the same
	zoneResult             // directly in result: refused
	zoneStrict             // anything that the protocol defines: refused
	zoneFree               // data of a tool: recorded
)

// frame is one step of the path to the value being read.
type frame struct {
	key   []byte // nil in arrays, and between members
	index int    // -1 in objects
}

// scanner makes the one pass. Faults that stop the pass (no JSON, too deep)
// are returned as errors; those that do not are kept in soft, the first only,
// so that the id can still be read.
type scanner struct {
	data     []byte
	pos      int
	lead     int // bytes cut off before data
	lim      Limits
	open     bool // unknown members of the message are passed over
	path     []frame
	names    []name // of the objects that are open
	soft     *Fault
	variants *Variants
	env      envelope
}

// maxKept bounds the memory that an idle scanner holds on to, in elements.
const maxKept = 1024

var scanners = sync.Pool{New: func() any { return new(scanner) }}

// newScanner copies the one value in data; nothing returned later aliases the
// caller's bytes.
func newScanner(data []byte, lim Limits) *scanner {
	s := scanners.Get().(*scanner)
	lead := 0
	for lead < len(data) && space(data[lead]) {
		lead++
	}
	end := len(data)
	for end > lead && space(data[end-1]) {
		end--
	}
	s.data, s.lead, s.lim = slices.Clip(bytes.Clone(data[lead:end])), lead, lim
	return s
}

// release gives the scanner back without a reference to the message.
func (s *scanner) release() {
	path, names := s.path[:0], s.names[:0]
	if cap(names) > maxKept || cap(path) > maxKept {
		path, names = nil, nil
	}
	clear(path[:cap(path)])
	clear(names[:cap(names)])
	*s = scanner{path: path, names: names}
	scanners.Put(s)
}

// space reports the white space of JSON (RFC 8259 §2).
func space(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }

// whole reads exactly one value.
func (s *scanner) whole(z zone) *Fault {
	if strings.HasPrefix(string(s.data[:min(3, len(s.data))]), "\xef\xbb\xbf") {
		return s.hard(Parse, "byte order mark before the message")
	}
	if len(s.data) == 0 {
		return s.hard(Parse, "empty message")
	}
	if f := s.value(z, 0); f != nil {
		return f
	}
	s.skip()
	if s.pos < len(s.data) {
		return s.hard(Parse, "more bytes after the message")
	}
	return nil
}

// hard makes the fault that ends the pass here.
func (s *scanner) hard(kind FaultKind, reason string) *Fault {
	return &Fault{Kind: kind, Reason: reason, Pointer: s.pointer(), Offset: int64(s.lead + s.pos)}
}

// refuse notes a fault that does not end the pass.
func (s *scanner) refuse(at int, reason string) {
	if s.soft == nil {
		s.soft = &Fault{Kind: Invalid, Reason: reason, Pointer: s.pointer(), Offset: int64(s.lead + at)}
	}
}

// skip passes white space and makes line ends spaces: what is raw between tokens
// may change without changing any reading, and one line is safe on every
// transport.
func (s *scanner) skip() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\t':
		case '\n', '\r':
			s.data[s.pos] = ' '
		default:
			return
		}
		s.pos++
	}
}

// next passes white space and gives the byte after it, 0 at the end.
func (s *scanner) next() byte {
	s.skip()
	if s.pos < len(s.data) {
		return s.data[s.pos]
	}
	return 0
}

// value reads one value; depth counts the containers that are open around it.
func (s *scanner) value(z zone, depth int) *Fault {
	switch c := s.next(); {
	case c == '"':
		_, f := s.str(false)
		return f
	case c == '{':
		return s.nested(z, depth, (*scanner).object)
	case c == '[':
		return s.nested(z, depth, (*scanner).array)
	case c == '-' || '0' <= c && c <= '9':
		return s.number()
	case c == 't':
		return s.word("true")
	case c == 'f':
		return s.word("false")
	case c == 'n':
		return s.word("null")
	case s.pos >= len(s.data):
		return s.hard(Parse, "unexpected end")
	}
	return s.hard(Parse, "unexpected character")
}

// nested counts a container and reads it.
func (s *scanner) nested(z zone, depth int, read func(*scanner, zone, int) *Fault) *Fault {
	if depth >= s.lim.Depth {
		return s.hard(Invalid, fmt.Sprintf("nested deeper than %d levels", s.lim.Depth))
	}
	s.pos++
	s.path = append(s.path, frame{index: -1})
	f := read(s, z, depth+1)
	s.path = s.path[:len(s.path)-1]
	return f
}

// word reads a literal.
func (s *scanner) word(w string) *Fault {
	if len(s.data)-s.pos < len(w) || string(s.data[s.pos:s.pos+len(w)]) != w {
		return s.hard(Parse, "unexpected character")
	}
	s.pos += len(w)
	return nil
}

// str reads a string. It gives the bytes inside, decoded when a name is read;
// they alias the message unless something had to be decoded.
func (s *scanner) str(decode bool) ([]byte, *Fault) {
	start := s.pos
	end, escaped, reason := endOfString(s.data, start)
	s.pos = end
	if reason != "" {
		return nil, s.hard(Parse, reason)
	}
	if escaped && decode {
		return unescape(s.data[start+1 : end-1]), nil
	}
	return s.data[start+1 : end-1], nil
}

// array reads what follows an opening bracket.
func (s *scanner) array(z zone, depth int) *Fault {
	if z < zoneStrict {
		z = zoneStrict
	}
	top := len(s.path) - 1
	if s.next() == ']' {
		s.pos++
		return nil
	}
	for i := 0; ; i++ {
		s.path[top] = frame{index: i}
		if f := s.value(z, depth); f != nil {
			return f
		}
		switch s.next() {
		case ',':
			s.pos++
		case ']':
			s.pos++
			return nil
		default:
			return s.hard(Parse, "expected a comma or the end of an array")
		}
	}
}

// object reads what follows an opening brace.
func (s *scanner) object(z zone, depth int) *Fault {
	base := len(s.names)
	if s.next() == '}' {
		s.pos++
		return nil
	}
	for {
		if f := s.member(z, depth); f != nil {
			return f
		}
		switch s.next() {
		case ',':
			s.pos++
		case '}':
			s.pos++
			s.path[len(s.path)-1] = frame{index: -1}
			s.settle(z, s.names[base:])
			s.names = s.names[:base]
			return nil
		default:
			return s.hard(Parse, "expected a comma or the end of an object")
		}
	}
}

// member reads one name and its value.
func (s *scanner) member(z zone, depth int) *Fault {
	if s.next() != '"' {
		return s.hard(Parse, "expected a member name")
	}
	at, top := s.pos, len(s.path)-1
	s.path[top] = frame{index: -1}
	text, f := s.str(true)
	if f != nil {
		return f
	}
	s.path[top] = frame{key: text, index: -1}
	n, control := newName(text, at)
	if control {
		s.refuse(at, "control character in a member name")
	}
	s.names = append(s.names, n)
	if s.next() != ':' {
		return s.hard(Parse, "expected a colon")
	}
	s.pos++
	s.skip()
	start := s.pos
	if f := s.value(inside(z, text), depth); f != nil {
		return f
	}
	if z == zoneTop {
		s.envelope(n, s.data[start:s.pos:s.pos])
	} else if z == zoneParams {
		s.misspelled(n, paramNames)
	}
	return nil
}

// inside is the zone of the member called key of an object in z.
func inside(z zone, key []byte) zone {
	switch {
	case z == zoneFree,
		z == zoneParams && string(key) == "arguments",
		z == zoneResult && (string(key) == "structuredContent" || string(key) == "tools"):
		return zoneFree
	case z == zoneTop && string(key) == "params":
		return zoneParams
	case z == zoneTop && string(key) == "result":
		return zoneResult
	}
	return zoneStrict
}

// settle judges the names of one object when it is complete.
func (s *scanner) settle(z zone, names []name) {
	same, variant := clashes(names)
	switch {
	case same != nil:
		s.refuse(same.second.at, fmt.Sprintf("member %s appears twice", brief(same.second.text)))
	case variant == nil:
	case z != zoneFree:
		s.refuse(variant.second.at, fmt.Sprintf("members %s and %s differ only by case",
			brief(variant.first.text), brief(variant.second.text)))
	case s.variants == nil:
		s.variants = &Variants{s.pointer(), string(variant.first.text), string(variant.second.text)}
	}
}

// brief quotes a name for a message to people.
func brief(text []byte) string {
	const most = 64
	if len(text) <= most {
		return strconv.QuoteToGraphic(string(text))
	}
	return strconv.QuoteToGraphic(string(text[:most])) + "..."
}

// pointer is the JSON Pointer (RFC 6901) of the path, with long names cut.
func (s *scanner) pointer() string {
	const most = 256
	var b strings.Builder
	for _, f := range s.path {
		switch {
		case f.key != nil:
			b.WriteByte('/')
			key := strings.ToValidUTF8(string(f.key[:min(len(f.key), most)]), "")
			b.WriteString(pointerEscape.Replace(key))
		case f.index >= 0:
			b.WriteByte('/')
			b.WriteString(strconv.Itoa(f.index))
		}
	}
	return b.String()
}

var pointerEscape = strings.NewReplacer("~", "~0", "/", "~1")
