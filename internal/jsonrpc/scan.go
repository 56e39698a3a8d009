package jsonrpc

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// A zone says which rules hold for the members of an object.
type zone uint8

const (
	zoneTop    zone = iota // the message: known names must be spelled exactly
	zoneParams             // params: the same, and members are indexed
	zoneMeta               // params._meta: members are indexed
	zoneResult             // result: members are indexed
	zoneStrict             // anything else that the protocol defines
	zoneFree               // data of a tool: names that differ only by case are recorded, not refused
)

// inside returns the zone of the member called name of an object in z.
func (z zone) inside(name []byte) zone {
	switch {
	case z == zoneFree,
		z == zoneParams && string(name) == "arguments",
		z == zoneResult && (string(name) == "structuredContent" || string(name) == "tools"):
		return zoneFree
	case z == zoneTop && string(name) == "params":
		return zoneParams
	case z == zoneTop && string(name) == "result":
		return zoneResult
	case z == zoneParams && string(name) == "_meta":
		return zoneMeta
	}
	return zoneStrict
}

// A frame is an object or an array that is open.
type frame struct {
	object bool
	zone   zone
	inner  zone // of the value that is read
	named  bool // the name of a member is read, its value is not
	name   span // of that member, with the quotes
	start  int  // of the member's or the element's value
	base   int  // index of the object's first name in scanner.names
}

// A scanner makes the one strict pass. jsontext.Decoder holds the text to the
// grammar and to UTF-8; the scanner adds the limits, the rules for names, and
// the index of the members that callers ask for.
//
// A fault that ends the pass (no JSON, nested too deep) is returned. Any other
// is kept in soft, the first only, so that the id can still be read.
type scanner struct {
	data     []byte
	lead     int // length of the white space cut off before data
	lim      Limits
	open     bool // members of the message that JSON-RPC does not know are skipped
	buffer   bytes.Buffer
	decoder  jsontext.Decoder
	frames   []frame
	names    []name // of the objects that are open
	decoded  []byte // the texts of names with escapes
	hashes   []uint64
	soft     *Fault
	variants *Variants
	env      envelope
}

// maxKept bounds the memory that an idle scanner holds, in elements of a slice.
const maxKept = 1024

var scanners = sync.Pool{New: func() any { return new(scanner) }}

// lenient turns off jsontext's own search for repeated names: the scanner
// compares names once, for repetition and for case, and continues after a
// match.
var lenient = jsontext.AllowDuplicateNames(true)

const blanks = " \t\r\n"

// newScanner copies the one value in data, so that nothing returned later
// aliases the caller's bytes.
func newScanner(data []byte, lim Limits) *scanner {
	s := scanners.Get().(*scanner)
	text := bytes.TrimLeft(data, blanks)
	s.lead, s.lim = len(data)-len(text), lim
	s.data = slices.Clip(bytes.Clone(bytes.TrimRight(text, blanks)))
	s.buffer = *bytes.NewBuffer(s.data)
	s.decoder.Reset(&s.buffer, lenient)
	return s
}

// release returns the scanner to the pool without a reference to the message.
func (s *scanner) release() {
	s.buffer = bytes.Buffer{}
	s.decoder.Reset(&s.buffer)
	s.frames, s.names, s.decoded = emptied(s.frames), emptied(s.names), emptied(s.decoded)
	s.env = envelope{params: emptied(s.env.params), meta: emptied(s.env.meta), result: emptied(s.env.result)}
	s.data, s.open, s.soft, s.variants = nil, false, nil, nil
	scanners.Put(s)
}

// emptied returns the memory of list, nil when that is much.
func emptied[T any](list []T) []T {
	if cap(list) > maxKept {
		return nil
	}
	return list[:0]
}

// whole reads exactly one value, and replaces the line ends between its tokens
// by spaces: no reading changes, and one line is safe on every transport.
func (s *scanner) whole(z zone) *Fault {
	if bytes.HasPrefix(s.data, []byte("\xef\xbb\xbf")) {
		return s.hard(Parse, 0, "byte order mark before the message")
	}
	if len(s.data) == 0 {
		return s.hard(Parse, 0, "empty message")
	}
	end, f := s.value(z)
	if f != nil {
		return f
	}
	if end < len(s.data) {
		return s.hard(Parse, skipBlanks(s.data, end), "more bytes after the message")
	}
	unbreak(s.data) // strings hold no raw line end
	return nil
}

// value reads tokens until one value is complete, and returns its end.
func (s *scanner) value(z zone) (end int, f *Fault) {
	for {
		start := skipSeparator(s.data, end)
		token, err := s.decoder.ReadToken()
		if err != nil {
			return 0, s.syntax(err, start)
		}
		end = int(s.decoder.InputOffset())
		switch kind := token.Kind(); kind {
		case '{', '[':
			if len(s.frames) >= s.lim.Depth {
				return 0, s.hard(Invalid, start, fmt.Sprintf("nested deeper than %d levels", s.lim.Depth))
			}
			s.push(kind == '{', start, z)
			continue
		case '}', ']':
			s.pop()
		default:
			if kind == '"' && s.wantsName() {
				s.member(start, end)
				continue
			}
			if kind == '0' {
				s.number(start, end)
			}
			s.begin(start)
		}
		if len(s.frames) == 0 {
			return end, nil
		}
		s.complete(end)
	}
}

// wantsName reports whether a string that comes next is the name of a member.
func (s *scanner) wantsName() bool {
	n := len(s.frames)
	return n > 0 && s.frames[n-1].object && !s.frames[n-1].named
}

// begin notes where a value starts.
func (s *scanner) begin(start int) {
	if n := len(s.frames); n > 0 {
		s.frames[n-1].start = start
	}
}

// push opens an object or an array; z is the zone of the outermost value.
func (s *scanner) push(object bool, start int, z zone) {
	if n := len(s.frames); n > 0 {
		s.frames[n-1].start, z = start, s.frames[n-1].inner
	}
	s.frames = append(s.frames, frame{object: object, zone: z, inner: max(z, zoneStrict), base: len(s.names)})
}

// pop closes the innermost object or array, and judges an object's names.
func (s *scanner) pop() {
	top := &s.frames[len(s.frames)-1]
	if top.object {
		s.judgeNames(top.zone, s.names[top.base:])
		s.names = s.names[:top.base]
	}
	s.frames = s.frames[:len(s.frames)-1]
}

// member reads the name of a member.
func (s *scanner) member(start, end int) {
	n, control := s.newName(start, end)
	if control {
		s.refuse(start, "control character in a member name")
	}
	s.names = append(s.names, n)
	top := &s.frames[len(s.frames)-1]
	if top.named = true; top.zone == zoneFree {
		return
	}
	text := s.text(n)
	switch top.inner = top.zone.inside(text); top.zone {
	case zoneTop:
		s.envelopeName(text, start)
	case zoneParams:
		s.misspelled(text, start, paramNames)
	}
	top.name = span{start, end}
}

// complete takes the value that ends at end.
func (s *scanner) complete(end int) {
	top := &s.frames[len(s.frames)-1]
	if top.named = false; top.object && top.zone < zoneStrict {
		n := s.names[len(s.names)-1]
		s.env.take(top.zone, s.text(n), member{top.name, span{top.start, end}}, s.data[top.start:end:end])
	}
}

// number holds a number to the limits: exact arithmetic on a number with a huge
// exponent costs time without bound.
func (s *scanner) number(start, end int) {
	digits, exponent := 0, 0
	for i := start; i < end; i++ {
		switch c := s.data[i]; c {
		case '-', '.':
		case 'e', 'E':
			n, err := strconv.Atoi(string(s.data[i+1 : end]))
			if exponent = max(n, -n); err != nil {
				exponent = math.MaxInt
			}
			i = end
		default:
			digits++
		}
	}
	if digits > s.lim.Digits {
		s.refuse(start, fmt.Sprintf("number with more than %d digits", s.lim.Digits))
	}
	if exponent > s.lim.Exponent {
		s.refuse(start, fmt.Sprintf("number with an exponent beyond %d", s.lim.Exponent))
	}
}

// judgeNames compares the names of one object when it is complete.
func (s *scanner) judgeNames(z zone, names []name) {
	if !s.agree(names) {
		return
	}
	same, variant := s.clashes(names)
	if same != nil {
		s.refuse(same.second.at, fmt.Sprintf("member %s appears twice", brief(s.text(same.second))))
	}
	if variant == nil || z == zoneFree && s.variants != nil {
		return
	}
	first, second := s.text(variant.first), s.text(variant.second)
	if z == zoneFree {
		s.variants = &Variants{s.pointer(), string(first), string(second)}
		return
	}
	s.refuse(variant.second.at, fmt.Sprintf("members %s and %s differ only by case", brief(first), brief(second)))
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

// skipBlanks returns the offset of the first byte at or after i that is not
// white space.
func skipBlanks(data []byte, i int) int {
	return len(data) - len(bytes.TrimLeft(data[i:], blanks))
}

// skipSeparator returns the start of the token of a well-formed text that
// follows the one which ends at i.
func skipSeparator(data []byte, i int) int {
	for ; i < len(data); i++ {
		switch data[i] {
		case ' ', '\t', '\r', '\n', ',', ':':
		default:
			return i
		}
	}
	return i
}
