package jsonrpc

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math/bits"
	"slices"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// A lexer goes through JSON. What it accepts, jsontext accepts with the same end: the
// grammar of RFC 8259, UTF-8, and no lone surrogates. It does not say why it refuses.
type lexer struct {
	data     []byte
	at       int
	named    int  // where the last name begins
	lines    bool // there are line ends between tokens
	odd      bool // a string is not plain, see Message.Plain; the strings of accepted data are not looked at
	accepted bool // a strict pass has accepted data: strings are only searched for their ends
	mend     bool // lone surrogates in strings are replaced in data; as to UTF-8, see scan
}

// maxDepth is how many arrays and objects may be open at once where no Limits say so,
// as in jsontext.
const maxDepth = 10_000

// value goes over a value with at most so many arrays and objects in each other.
func (l *lexer) value(depth int) bool {
	switch l.peek() {
	case '{', '[':
		if l.accepted {
			return l.skip()
		}
		return depth > 0 && l.each(func([]byte) bool { return l.value(depth - 1) })
	case '"':
		return l.string()
	case 't':
		return l.word("true")
	case 'f':
		return l.word("false")
	case 'n':
		return l.word("null")
	}
	return l.number()
}

// word goes over a literal.
func (l *lexer) word(literal string) bool {
	from := l.at
	l.at += len(literal)
	return l.at <= len(l.data) && string(l.data[from:l.at]) == literal
}

// number moves past a number (RFC 8259 §6). It reports false when the number is not complete.
func (l *lexer) number() bool {
	data, at := l.data, l.at
	if at < len(data) && data[at] == '-' {
		at++
	}
	from := at
	if at < len(data) && data[at] == '0' {
		at++
	} else {
		at = digits(data, at)
	}
	ok := at > from
	if at < len(data) && data[at] == '.' {
		from = at + 1
		at = digits(data, from)
		ok = ok && at > from
	}
	if at < len(data) && (data[at] == 'e' || data[at] == 'E') {
		at++
		if at < len(data) && (data[at] == '+' || data[at] == '-') {
			at++
		}
		from = at
		at = digits(data, from)
		ok = ok && at > from
	}
	l.at = at
	return ok
}

// digits returns where the digits end that begin at offset at.
func digits(data []byte, at int) int {
	for at < len(data) && '0' <= data[at] && data[at] <= '9' {
		at++
	}
	return at
}

// skip goes over the object or array that begins here, in accepted data: only its strings
// and brackets are looked at.
func (l *lexer) skip() bool {
	for depth := 0; l.at < len(l.data); {
		switch l.data[l.at] {
		case '"':
			if !l.string() {
				return false
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		if l.at++; depth == 0 {
			return true
		}
	}
	return false
}

// element goes over a value and returns it, nil for none.
func (l *lexer) element() json.RawMessage {
	l.peek()
	start := l.at
	if !l.value(maxDepth) {
		return nil
	}
	return l.data[start:l.at:l.at]
}

// peek goes over white space and returns the next byte, 0 at the end.
func (l *lexer) peek() byte {
	for ; l.at < len(l.data); l.at++ {
		switch c := l.data[l.at]; c {
		case ' ', '\t':
		case '\r', '\n':
			l.lines = true
		default:
			return c
		}
	}
	return 0
}

// each goes through the object or array that begins here. It calls visit, which goes over
// the value, with each member's decoded name or with nil for each element. It reports
// false when visit does, and for malformed text.
func (l *lexer) each(visit func(name []byte) bool) bool {
	open := l.peek()
	l.at++
	for first := true; ; first = false {
		switch c := l.peek(); {
		case c == open+2: // the closing bracket
			l.at++
			return true
		case c == ',' && !first:
			l.at++
		case !first:
			return false
		}
		var name []byte
		if open == '{' {
			l.peek()
			if l.named = l.at; !l.string() {
				return false
			}
			if name = l.data[l.named+1 : l.at-1]; bytes.IndexByte(name, '\\') >= 0 {
				name, _ = jsontext.AppendUnquote(nil, l.data[l.named:l.at]) // it is valid
			}
			if l.peek() != ':' {
				return false
			}
			l.at++
		}
		if !visit(name) {
			return false
		}
	}
}

// fields goes over the object that begins here and puts the values of the members called
// names into values. It reports false when one of them is there more than once. Value goes
// over the value of the name with index i, -1 for any other name.
func (l *lexer) fields(names []string, values []json.RawMessage, value func(i int) json.RawMessage) bool {
	once := true
	return l.each(func(name []byte) bool {
		i := slices.Index(names, string(name))
		v := value(i)
		if i >= 0 {
			once, values[i] = once && values[i] == nil, v
		}
		return len(v) > 0
	}) && once
}

// Unpack returns the values of the named members of obj, nil for each that is absent. With
// inner it also returns the elements of the first of them, where that is an array: of each
// its bytes, followed by the values of its members called inner, so that 1+len(inner) slices
// are one element. It reports false when obj is not one well-formed object, or when obj or
// an element has one of the members more than once. With accepted it takes the caller's
// word that a strict pass has accepted obj; a large string then costs one search for
// its end.
func Unpack(obj json.RawMessage, accepted bool, inner []string, names ...string) (values, elements []json.RawMessage, ok bool) {
	l, sound := &lexer{data: obj, accepted: accepted}, true
	if l.peek() != '{' {
		return nil, nil, false
	}
	size := 0
	if inner != nil {
		size = 1 + len(inner)
	}
	room := make([]json.RawMessage, len(names)+size) // for one element, which most results have
	values, room = room[:len(names):len(names)], room[len(names):]
	ok = l.fields(names, values, func(i int) json.RawMessage {
		if i != 0 || inner == nil || l.peek() != '[' {
			return l.element()
		}
		start := l.at
		sound = l.each(func([]byte) bool {
			if elements == nil {
				elements = room
			} else {
				elements = append(elements, make([]json.RawMessage, size)...)
			}
			e, once := elements[len(elements)-size:], true
			if l.peek() == '{' {
				from := l.at
				once = l.fields(inner, e[1:], func(int) json.RawMessage { return l.element() })
				e[0] = l.data[from:l.at:l.at]
			} else {
				e[0] = l.element()
			}
			return once && e[0] != nil
		})
		return l.data[start:l.at:l.at]
	})
	if l.peek(); !ok || !sound || l.at < len(obj) {
		return nil, nil, false
	}
	return values, elements, true
}

// Each calls visit for the parts of an object or an array that a strict pass has
// accepted: each member's decoded name and value, or a nil name and each element. It
// ends when visit returns false, and returns what visit returned last, true for none.
func Each(accepted json.RawMessage, visit func(name []byte, value json.RawMessage) bool) bool {
	l := lexer{data: accepted, accepted: true}
	if open := l.peek(); open != '{' && open != '[' {
		return true
	}
	return l.each(func(name []byte) bool { return visit(name, l.element()) })
}

// Eight bytes in a word, for string.
const (
	each = 0x0101010101010101
	tops = 0x80 * each
)

// string goes over a string (RFC 8259 §7), eight bytes at a time where they are plain.
func (l *lexer) string() bool {
	if l.at >= len(l.data) || l.data[l.at] != '"' {
		return false
	}
	data, at, last, seen := l.data, l.at+1, l.at, uint64(0) // last is where the last word was that is not plain
	for l.accepted {
		i := bytes.IndexByte(data[at:], '"')
		if i < 0 {
			return false
		}
		escapes := at + i // where the backslashes begin that are before the quote
		for escapes > at && data[escapes-1] == '\\' {
			escapes--
		}
		whole := (at+i-escapes)%2 == 0
		if at += i + 1; whole {
			l.at = at
			return true
		}
	}
	for at < len(data) {
		p := at
		if at+8 <= len(data) {
			w := binary.LittleEndian.Uint64(data[at:])
			if oddIn(w)&tops == 0 {
				if at += 8; at-last > 128 { // no line feed is near: most lines are shorter
					at = plainEnd(data, at)
				}
				continue
			}
			last = at
			seen |= w | (w + each) // DEL becomes 0x80
			v, x := w^2*each, w^'\\'*each
			hit := ^(((v &^ tops) + 0x5f*each | v) & ((x &^ tops) + 0x7f*each | x)) & tops
			if hit == 0 {
				at += 8
				continue
			}
			p += bits.TrailingZeros64(hit) / 8
		}
		switch c := data[p]; {
		case c == '\\' && p+1 < len(data) && plainEscapes[data[p+1]]:
			at = p + 2
		case c == '\\':
			n := escape(data[p:])
			l.odd = true
			if n == 0 && l.mend && utf16.IsSurrogate(unit(data[p:])) {
				n = copy(data[p:], `\ufffd`)
			}
			if n == 0 {
				return false
			}
			at = p + n
		case c == '"':
			start := l.at
			l.at = p + 1
			l.odd = l.odd || seen&tops != 0
			return seen&tops == 0 || utf8.Valid(data[start:p])
		case c < ' ':
			return false
		default: // one of the last bytes
			seen |= uint64(c | (c + 1))
			at++
		}
	}
	return false
}

// plainEnd returns an offset to which data has only plain bytes from at on: it looks at 32
// bytes at a time.
func plainEnd(data []byte, at int) int {
	for ; at+32 <= len(data); at += 32 {
		part := data[at : at+32]
		odd := oddIn(binary.LittleEndian.Uint64(part)) | oddIn(binary.LittleEndian.Uint64(part[8:])) |
			oddIn(binary.LittleEndian.Uint64(part[16:])) | oddIn(binary.LittleEndian.Uint64(part[24:]))
		if odd&tops != 0 {
			break
		}
	}
	return at
}

// oddIn returns a word with top bits where w has a byte that is not a visible ASCII character or
// a space, or is a quote or a backslash.
func oddIn(w uint64) uint64 {
	return w | (w + each) | ((w ^ 2*each) - 0x21*each) | ((w ^ '\\'*each) - each) // a quote becomes 0x20, a backslash 0
}

// plainEscapes are what may follow a backslash and stands for a character that is seen or
// for white space.
var plainEscapes = [256]bool{'"': true, '\\': true, '/': true, 'n': true, 'r': true, 't': true}

// escape returns the length of the escape \b, \f, \uXXXX or of the pair of surrogates at
// the beginning of text, 0 for none.
func escape(text []byte) int {
	switch r := unit(text); {
	case bytes.HasPrefix(text, []byte(`\b`)), bytes.HasPrefix(text, []byte(`\f`)):
		return 2
	case r < 0:
		return 0
	case !utf16.IsSurrogate(r):
		return 6
	case utf16.DecodeRune(r, unit(text[6:])) != utf8.RuneError:
		return 12
	}
	return 0
}

// unit returns the code unit of the escape \uXXXX at the beginning of text, -1 for none.
func unit(text []byte) rune {
	if len(text) >= 6 && text[0] == '\\' && text[1] == 'u' {
		if n, err := strconv.ParseUint(string(text[2:6]), 16, 16); err == nil {
			return rune(n)
		}
	}
	return -1
}
