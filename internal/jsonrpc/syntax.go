package jsonrpc

import (
	"bytes"
	"errors"
	"io"
	"strconv"
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

// skipBlanks returns the offset of the first byte at or after i that is not
// white space.
func skipBlanks(data []byte, i int) int {
	return len(data) - len(bytes.TrimLeft(data[i:], blanks))
}
