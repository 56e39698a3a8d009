package jsonrpc

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// build decodes the value that begins here.
func (l *lexer) build() any {
	switch l.peek() {
	case '{':
		out := map[string]any{}
		l.each(func(name []byte) bool {
			out[string(name)] = l.build()
			return true
		})
		return out
	case '[':
		out := []any{}
		l.each(func([]byte) bool {
			out = append(out, l.build())
			return true
		})
		return out
	case '"':
		text, _ := Text(l.element())
		return text
	case 't', 'f':
		return string(l.element()) == "true"
	case 'n', 0:
		l.element()
		return nil
	}
	return json.Number(l.element())
}

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
	if !jsontext.Value(value).IsValid(lenient, jsontext.AllowInvalidUTF8(true)) {
		return json.RawMessage("null")
	}
	return (&lexer{data: value, accepted: true}).rewrite(make([]byte, 0, len(value)), nil, f)
}

// rewrite appends the value that begins here to out, with f applied to its strings.
func (l *lexer) rewrite(out []byte, path []string, f func(path []string, isName bool, text string) string) []byte {
	open := l.peek()
	switch open {
	case '{', '[':
	case '"':
		text, _ := jsontext.AppendUnquote(nil, l.element())
		out, _ = jsontext.AppendQuote(out, f(path, false, string(text)))
		return out
	default:
		return append(out, l.element()...)
	}
	out = append(out, open)
	l.each(func(name []byte) bool {
		if out[len(out)-1] != open {
			out = append(out, ',')
		}
		at := append(path, string(name))
		if open == '{' {
			out, _ = jsontext.AppendQuote(out, f(at, true, string(name)))
			out = append(out, ':')
		}
		out = l.rewrite(out, at, f)
		return true
	})
	return append(out, open+2) // the closing bracket
}

// Plain returns the bytes of a JSON text with the escapes in its strings resolved,
// for a search that does not care where a string begins. It returns text itself where
// there are none.
func Plain(text []byte) []byte {
	if bytes.IndexByte(text, '\\') < 0 {
		return text
	}
	out := make([]byte, 0, len(text))
	for {
		before, after, escaped := bytes.Cut(text, []byte{'\\'})
		if out = append(out, before...); !escaped {
			return out
		}
		n := min(max(escape(text[len(before):]), 2), 1+len(after))
		out, _ = jsontext.AppendUnquote(out, slices.Concat([]byte{'"'}, text[len(before):len(before)+n], []byte{'"'}))
		text = after[n-1:]
	}
}
