package jsonrpc

import (
	"bytes"
	"encoding/json"
	"unicode/utf16"
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// plain marks the bytes that stand for themselves inside a JSON string and
// need no further look.
var plain = func() (t [256]bool) {
	for c := 0x20; c < utf8.RuneSelf; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

// endOfString reads the string whose opening quote is at data[i]. It returns
// the index after the closing quote and whether there are escapes. With a
// reason that is not empty, the index is where the fault is.
func endOfString(data []byte, i int) (end int, escaped bool, reason string) {
	for i++; i < len(data); {
		c := data[i]
		if plain[c] {
			i++
			continue
		}
		var n int
		switch {
		case c == '"':
			return i + 1, escaped, ""
		case c == '\\':
			escaped = true
			if n, reason = escape(data[i:]); reason != "" {
				return i, escaped, reason
			}
		case c < 0x20:
			return i, escaped, "raw control character in a string"
		default:
			r, size := utf8.DecodeRune(data[i:])
			if r == utf8.RuneError && size <= 1 {
				return i, escaped, "invalid UTF-8"
			}
			n = size
		}
		i += n
	}
	return i, escaped, "unfinished string"
}

// escape measures the escape sequence at the start of b; a surrogate pair is
// one sequence.
func escape(b []byte) (int, string) {
	if len(b) < 2 {
		return 0, "unfinished string"
	}
	if bytes.IndexByte([]byte(`"\/bfnrt`), b[1]) >= 0 {
		return 2, ""
	}
	r, ok := hex4(b)
	if !ok {
		return 0, "invalid escape in a string"
	}
	if !utf16.IsSurrogate(r) {
		return 6, ""
	}
	low, ok := hex4(b[6:])
	if !ok || utf16.DecodeRune(r, low) == utf8.RuneError {
		return 0, "lone surrogate in a string"
	}
	return 12, ""
}

// hex4 reads \u and four hexadecimal digits at the start of b.
func hex4(b []byte) (rune, bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range b[2:6] {
		switch {
		case '0' <= c && c <= '9':
			r = r<<4 | rune(c-'0')
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			r = r<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	return r, true
}

// unescape decodes the inside of a string that endOfString has accepted.
func unescape(b []byte) []byte {
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); {
		if b[i] != '\\' {
			out = append(out, b[i])
			i++
			continue
		}
		if b[i+1] != 'u' {
			out = append(out, short(b[i+1]))
			i += 2
			continue
		}
		r, _ := hex4(b[i:])
		i += 6
		if utf16.IsSurrogate(r) {
			low, _ := hex4(b[i:])
			r = utf16.DecodeRune(r, low)
			i += 6
		}
		out = utf8.AppendRune(out, r)
	}
	return out
}

// short is the byte that a two-character escape stands for.
func short(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}

// Text decodes raw as one JSON string. It reports false for anything else:
// other values, white space around it, invalid UTF-8, lone surrogates.
func Text(raw json.RawMessage) (string, bool) {
	if len(raw) < 2 || raw[0] != '"' {
		return "", false
	}
	end, escaped, reason := endOfString(raw, 0)
	if reason != "" || end != len(raw) {
		return "", false
	}
	inner := raw[1 : end-1]
	if escaped {
		inner = unescape(inner)
	}
	return string(inner), true
}

// Quote is s as a JSON string. Only what JSON demands is escaped, so `<` and
// U+2028 stay as they are; invalid UTF-8 becomes U+FFFD.
func Quote(s string) json.RawMessage {
	return appendQuoted(make([]byte, 0, len(s)+2), s)
}

// appendQuoted appends s as a JSON string.
func appendQuoted(out []byte, s string) []byte {
	out = append(out, '"')
	for i := 0; i < len(s); {
		c := s[i]
		if plain[c] {
			out = append(out, c)
			i++
			continue
		}
		if c < utf8.RuneSelf {
			out = appendEscape(out, c)
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		out = utf8.AppendRune(out, r)
		i += size
	}
	return append(out, '"')
}

// appendEscape appends the shortest escape of an ASCII byte.
func appendEscape(out []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(out, '\\', c)
	case '\b':
		return append(out, '\\', 'b')
	case '\f':
		return append(out, '\\', 'f')
	case '\n':
		return append(out, '\\', 'n')
	case '\r':
		return append(out, '\\', 'r')
	case '\t':
		return append(out, '\\', 't')
	}
	return append(out, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
}

// IDText is a request id as records, policies and events show it: a string's
// text, a number as it is written.
func IDText(id json.RawMessage) string {
	if s, ok := Text(id); ok {
		return s
	}
	return string(id)
}

// OneLine gives message without raw line ends, which JSON allows between tokens
// only: a line or an event must hold exactly one message. What has none is given
// as it is, anything else as a copy.
func OneLine(message []byte) []byte {
	if bytes.IndexByte(message, '\n') < 0 && bytes.IndexByte(message, '\r') < 0 {
		return message
	}
	out := bytes.Clone(message)
	for i, c := range out {
		if c == '\n' || c == '\r' {
			out[i] = ' '
		}
	}
	return out
}
