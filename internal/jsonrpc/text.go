package jsonrpc

import (
	"bytes"
	"encoding/json"

	"github.com/go-json-experiment/json/jsontext"
)

// Text decodes raw as one JSON string. It reports false for anything else:
// other values, white space around it, invalid UTF-8, lone surrogates.
func Text(raw json.RawMessage) (string, bool) {
	if len(raw) < 2 || raw[0] != '"' {
		return "", false
	}
	var room [64]byte
	text, err := jsontext.AppendUnquote(room[:0], raw)
	if err != nil {
		return "", false
	}
	return string(text), true
}

// Quote returns s as a JSON string. Only what JSON demands is escaped, so `<`
// and U+2028 stay as they are; invalid UTF-8 becomes U+FFFD.
func Quote(s string) json.RawMessage {
	return appendQuoted(make([]byte, 0, len(s)+2), s)
}

// appendQuoted appends s as a JSON string.
func appendQuoted(out []byte, s string) []byte {
	out, _ = jsontext.AppendQuote(out, s) // the error reports what it has replaced
	return out
}

// IDText returns a request id as records, policies and events show it: a
// string's text, a number as it is written.
func IDText(id json.RawMessage) string {
	if s, ok := Text(id); ok {
		return s
	}
	return string(id)
}

// OneLine returns message without raw line ends, which JSON allows between
// tokens only: a line or an event must hold exactly one message. A message
// without line ends is returned as it is, any other as a copy.
func OneLine(message []byte) []byte {
	if !broken(message) {
		return message
	}
	out := bytes.Clone(message)
	unbreak(out)
	return out
}

// broken reports raw line ends.
func broken(text []byte) bool {
	return bytes.IndexByte(text, '\n') >= 0 || bytes.IndexByte(text, '\r') >= 0
}

// unbreak replaces line ends by spaces.
func unbreak(text []byte) {
	if !broken(text) {
		return
	}
	for i, c := range text {
		if c == '\n' || c == '\r' {
			text[i] = ' '
		}
	}
}
