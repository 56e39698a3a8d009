package jsonrpc

import (
	"bytes"
	"encoding/json"

	"github.com/go-json-experiment/json/jsontext"
)

// MapStrings returns value with f applied to every string, the names of members
// included. Other values keep their spelling; white space between tokens is removed.
// It returns null for bytes that are not one JSON value.
func MapStrings(value json.RawMessage, f func(string) string) json.RawMessage {
	var out bytes.Buffer
	lax := []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}
	from, to := jsontext.NewDecoder(bytes.NewReader(value), lax...), jsontext.NewEncoder(&out, lax...)
	for {
		var err error
		switch from.PeekKind() {
		case '"':
			var t jsontext.Token
			if t, err = from.ReadToken(); err == nil {
				err = to.WriteToken(jsontext.String(f(t.String())))
			}
		case '{', '}', '[', ']':
			var t jsontext.Token
			if t, err = from.ReadToken(); err == nil {
				err = to.WriteToken(t)
			}
		default:
			var v jsontext.Value
			if v, err = from.ReadValue(); err == nil {
				err = to.WriteValue(v)
			}
		}
		switch {
		case err != nil:
			return json.RawMessage("null")
		case from.StackDepth() == 0:
			return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
		}
	}
}

// Plain returns the bytes of a JSON text with the escapes in its strings resolved,
// for a search that does not care where a string begins. It returns text itself where
// there are none.
func Plain(text []byte) []byte {
	at := bytes.IndexByte(text, '\\')
	if at < 0 {
		return text
	}
	out := append(make([]byte, 0, len(text)), text[:at]...)
	for at < len(text) {
		end := at
		for end < len(text) && text[end] == '\\' {
			end++ // the first of an escape
			if end < len(text) && text[end] == 'u' {
				end += 4
			}
			end = min(end+1, len(text))
		}
		if decoded, err := jsontext.AppendUnquote(nil, append(append([]byte{'"'}, text[at:end]...), '"')); err == nil || decoded != nil {
			out = append(out, decoded...)
		}
		next := bytes.IndexByte(text[end:], '\\')
		if next < 0 {
			return append(out, text[end:]...)
		}
		out = append(out, text[end:end+next]...)
		at = end + next
	}
	return out
}
