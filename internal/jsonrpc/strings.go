package jsonrpc

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// MapStrings returns value with f applied to every string, the names of members
// included. Other values keep their spelling; white space between tokens is removed.
// It returns null for bytes that are not one JSON value.
func MapStrings(value json.RawMessage, f func(string) string) json.RawMessage {
	return rewrite(value, func(_ []string, _ bool, text string) string { return f(text) })
}

// MapTexts is MapStrings for the texts in a message of an MCP server that are made to be
// read: the values of title, description, text, message, systemPrompt and $comment, in
// JSON Schemas too. Names, addresses, and what a schema validates or proposes are left.
func MapTexts(value json.RawMessage, f func(string) string) json.RawMessage {
	return rewrite(value, func(path []string, isName bool, text string) string {
		if isName || !isText(path) {
			return text
		}
		return f(text)
	})
}

var (
	textNames   = []string{"title", "description", "text", "message", "systemPrompt", "$comment"}
	valueNames  = []string{"const", "enum", "default", "examples"}
	schemaNames = []string{"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)

// isText reports whether a value is a text to read, by the names of the members in which
// it is, "" for elements of arrays. The names in an object of schemas are not keywords.
func isText(path []string) bool {
	inSchemas := false
	for i, name := range path {
		switch {
		case i == len(path)-1:
			return !inSchemas && slices.Contains(textNames, name)
		case !inSchemas && slices.Contains(valueNames, name):
			return false
		}
		inSchemas = !inSchemas && slices.Contains(schemaNames, name)
	}
	return false
}

// rewrite returns value with f applied to every string. The path is only valid during
// the call of f.
func rewrite(value json.RawMessage, f func(path []string, isName bool, text string) string) json.RawMessage {
	var out bytes.Buffer
	lax := []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}
	from, to := jsontext.NewDecoder(bytes.NewReader(value), lax...), jsontext.NewEncoder(&out, lax...)
	var path []string // the member in each open object, "" in each open array
	for {
		depth := from.StackDepth()
		container, tokens := from.StackIndex(depth)
		isName := container == '{' && tokens%2 == 0
		if container == '[' {
			path = append(path[:depth-1], "")
		}
		var err error
		switch from.PeekKind() {
		case '"':
			var t jsontext.Token
			if t, err = from.ReadToken(); err == nil {
				text := t.String()
				if isName {
					path = append(path[:depth-1], text)
				}
				err = to.WriteToken(jsontext.String(f(path, isName, text)))
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
