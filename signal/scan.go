package signal

import (
	"bytes"
	"regexp"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// A scanner reads JSON text in one pass without building values. It checks the
// syntax only: UTF-8 and duplicate names are checked where they matter. After a
// fault bad is set, and every method returns nothing.
type scanner struct {
	s   string
	b   bytes.Buffer
	d   jsontext.Decoder
	bad bool
}

// syntaxOnly accepts duplicate names and strings that are not UTF-8.
var syntaxOnly = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

// maxDepth bounds nesting. The codec at the edge refuses less already.
const maxDepth = 256

// newScanner returns a scanner of text, which has failed where text is nested
// too deeply.
func newScanner[T string | []byte](text T) *scanner {
	p := &scanner{s: string(text), b: *bytes.NewBuffer([]byte(text))}
	p.d.Reset(&p.b, syntaxOnly...)
	p.bad = strings.Count(p.s, "[")+strings.Count(p.s, "{") > maxDepth && tooDeep(p.s)
	return p
}

func tooDeep(s string) bool {
	for d := jsontext.NewDecoder(strings.NewReader(s), syntaxOnly...); ; {
		if _, err := d.ReadToken(); err != nil || d.StackDepth() > maxDepth {
			return err == nil
		}
	}
}

// value reads one value and returns its bytes without space around them.
func (p *scanner) value() string {
	if p.bad {
		return ""
	}
	v, err := p.d.ReadValue()
	if p.bad = err != nil; p.bad {
		return ""
	}
	end := int(p.d.InputOffset())
	return p.s[end-len(v) : end]
}

// each reads an object or an array and returns its bytes. visit is called for
// each value, with its decoded name in an object, and must read the value.
func (p *scanner) each(visit func(name string)) string {
	if p.bad {
		return ""
	}
	token, err := p.d.ReadToken()
	open, start := token.Kind(), int(p.d.InputOffset())-1
	for p.bad = err != nil || open != '{' && open != '['; !p.bad; {
		if next := p.d.PeekKind(); next == '}' || next == ']' {
			_, err = p.d.ReadToken()
			p.bad = err != nil
			break
		}
		name := ""
		if open == '{' {
			name, _ = unquote(p.value())
		}
		visit(name)
	}
	if p.bad {
		return ""
	}
	return p.s[start:int(p.d.InputOffset())]
}

// escapes are the escape sequences of a JSON string; a surrogate pair is one.
var escapes = regexp.MustCompile(`\\(?:u[dD][89abAB][[:xdigit:]]{2}\\u[dD][c-fC-F][[:xdigit:]]{2}|u[[:xdigit:]]{4}|.)`)

// wellFormed replaces the escapes of lone surrogates by that of U+FFFD. Some
// tools cut their text in the middle of a pair, which strict readers refuse.
func wellFormed(raw string) string {
	if !strings.Contains(raw, `\ud`) && !strings.Contains(raw, `\uD`) {
		return raw
	}
	return escapes.ReplaceAllStringFunc(raw, func(escape string) string {
		if len(escape) == len(`\ud800`) && (escape[2] == 'd' || escape[2] == 'D') && escape[3] >= '8' {
			return `\ufffd`
		}
		return escape
	})
}

// member returns a member of an object by its decoded name.
func member(object, name string) (found string, ok bool) {
	p := newScanner(object)
	p.each(func(key string) {
		if v := p.value(); key == name && !ok && !p.bad {
			found, ok = v, true
		}
	})
	return found, ok
}

// countElements returns the length of an array, -1 for any other value.
func countElements(raw string) int {
	if raw == "" || raw[0] != '[' {
		return -1
	}
	n := 0
	p := newScanner(raw)
	p.each(func(string) { p.value(); n++ })
	return n
}
