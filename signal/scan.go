package signal

import "strings"

// maxDepth bounds the nesting that the scanner follows. The codec at the edge
// refuses less already.
const maxDepth = 256

// scanner walks JSON text in one pass without building values. After a fault
// bad is set and every method answers with nothing. It checks syntax; UTF-8
// and duplicate names are checked where they matter.
type scanner struct {
	s   string
	i   int
	bad bool
}

func (p *scanner) space() byte {
	for p.i < len(p.s) {
		c := p.s[p.i]
		if c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c
		}
		p.i++
	}
	return 0
}

func (p *scanner) fail() string {
	p.bad = true
	return ""
}

// open enters an object ('{') or array ('[').
func (p *scanner) open(c byte) bool {
	if p.bad || p.space() != c {
		p.fail()
		return false
	}
	p.i++
	return true
}

// more reports whether another element or member follows, and steps over the
// comma or the closing byte. n is the number of those already read. A comma
// before the closing byte is refused by whoever reads the next value.
func (p *scanner) more(n int, closing byte) bool {
	c := p.space()
	switch {
	case p.bad:
		return false
	case c == closing:
		p.i++
		return false
	case n == 0:
		return true
	case c != ',':
		p.fail()
		return false
	}
	p.i++
	return true
}

// key reads a member's name, decoded, and the colon.
func (p *scanner) key() string {
	if p.space() != '"' {
		return p.fail()
	}
	name, _ := unquote(p.str())
	if p.space() != ':' {
		return p.fail()
	}
	p.i++
	return name
}

// value steps over one value and gives its bytes without space around them.
func (p *scanner) value(depth int) string {
	c := p.space()
	start := p.i
	switch {
	case p.bad || depth > maxDepth:
		return p.fail()
	case c == '"':
		return p.str()
	case c == '{':
		p.i++
		for n := 0; p.more(n, '}'); n++ {
			p.key()
			p.value(depth + 1)
		}
	case c == '[':
		p.i++
		for n := 0; p.more(n, ']'); n++ {
			p.value(depth + 1)
		}
	case c == 't':
		p.word("true")
	case c == 'f':
		p.word("false")
	case c == 'n':
		p.word("null")
	default:
		p.number()
	}
	if p.bad {
		return ""
	}
	return p.s[start:p.i]
}

func (p *scanner) word(w string) {
	if !strings.HasPrefix(p.s[p.i:], w) {
		p.fail()
		return
	}
	p.i += len(w)
}

func (p *scanner) number() {
	p.skip('-')
	if !p.skip('0') && p.digits() == 0 {
		p.fail()
		return
	}
	if p.skip('.') && p.digits() == 0 {
		p.fail()
		return
	}
	if p.skip('e') || p.skip('E') {
		if !p.skip('+') {
			p.skip('-')
		}
		if p.digits() == 0 {
			p.fail()
		}
	}
}

func (p *scanner) skip(c byte) bool {
	if p.i < len(p.s) && p.s[p.i] == c {
		p.i++
		return true
	}
	return false
}

func (p *scanner) digits() int {
	start := p.i
	for p.i < len(p.s) && p.s[p.i] >= '0' && p.s[p.i] <= '9' {
		p.i++
	}
	return p.i - start
}

// str steps over a string and gives it with its quotes.
func (p *scanner) str() string {
	s, i := p.s, p.i+1
	for {
		for i < len(s) && !special[s[i]] {
			i++
		}
		if i == len(s) {
			return p.fail()
		}
		switch s[i] {
		case '"':
			start := p.i
			p.i = i + 1
			return s[start:p.i]
		case '\\':
			n := escape(s[i:])
			if n == 0 {
				return p.fail()
			}
			i += n
		default:
			return p.fail()
		}
	}
}

// special marks the bytes that end or break the plain run of a string.
var special = func() (t [256]bool) {
	for c := range 0x20 {
		t[c] = true
	}
	t['"'], t['\\'] = true, true
	return t
}()

// escape gives the length of the escape that s starts with, 0 for none.
func escape(s string) int {
	if len(s) < 2 {
		return 0
	}
	if strings.IndexByte(`"\/bfnrt`, s[1]) >= 0 {
		return 2
	}
	if _, ok := unit(s); ok {
		return 6
	}
	return 0
}

// unit reads the escape of one UTF-16 unit that s starts with.
func unit(s string) (rune, bool) {
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range []byte(s[2:6]) {
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			r = r<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	return r, true
}

// wellFormed replaces the escapes of lone surrogates by that of U+FFFD. Some
// tools cut their text in the middle of a pair, which strict readers refuse.
func wellFormed(raw string) string {
	if !strings.Contains(raw, `\ud`) && !strings.Contains(raw, `\uD`) {
		return raw
	}
	var out strings.Builder
	out.Grow(len(raw))
	for i := 0; i < len(raw); {
		n := chunk(raw[i:])
		if r, ok := unit(raw[i:]); ok && n == 6 && r >= 0xD800 && r <= 0xDFFF {
			out.WriteString(`\ufffd`)
		} else {
			out.WriteString(raw[i : i+n])
		}
		i += n
	}
	return out.String()
}

// chunk gives the length of the run up to the next escape, or of the escape
// that s starts with: 12 for a surrogate pair.
func chunk(s string) int {
	if s[0] != '\\' {
		if n := strings.IndexByte(s, '\\'); n > 0 {
			return n
		}
		return len(s)
	}
	n := max(escape(s), 1)
	high, _ := unit(s)
	low, ok := unit(s[n:])
	if ok && n == 6 && high >= 0xD800 && high < 0xDC00 && low >= 0xDC00 && low < 0xE000 {
		return 12
	}
	return n
}

// member gives a member of an object by its decoded name.
func member(object, name string) (string, bool) {
	p := scanner{s: object}
	if !p.open('{') {
		return "", false
	}
	for n := 0; p.more(n, '}'); n++ {
		k := p.key()
		if v := p.value(1); k == name && !p.bad {
			return v, true
		}
	}
	return "", false
}

// countElements gives the length of an array, -1 for any other value.
func countElements(raw string) int {
	if raw == "" || raw[0] != '[' {
		return -1
	}
	p := scanner{s: raw}
	p.open('[')
	n := 0
	for ; p.more(n, ']'); n++ {
		p.value(1)
	}
	return n
}
