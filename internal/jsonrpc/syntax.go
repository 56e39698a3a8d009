package jsonrpc

import (
	"errors"
	"io"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

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

// syntax returns the fault of an error of the decoder. The token that it was
// reading starts at start.
func (s *scanner) syntax(err error, start int) *Fault {
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
	if start < len(s.data) && s.data[start] == '"' {
		return "unfinished string"
	}
	if start < len(s.data) || len(s.frames) == 0 {
		return "unexpected end"
	}
	opened := strings.IndexByte("{[,", s.data[len(s.data)-1]) >= 0
	switch object := s.frames[len(s.frames)-1].object; {
	case s.wantsName() && opened:
		return "expected a member name"
	case s.wantsName():
		return "expected a comma or the end of an object"
	case !object && !opened:
		return "expected a comma or the end of an array"
	}
	return "unexpected end"
}
