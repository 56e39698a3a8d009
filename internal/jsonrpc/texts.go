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
	return rewrite(value, func(_ bool, text string) string { return f(text) })
}

// MapTexts is MapStrings for the texts in a message of an MCP server that are made to be
// read: the values of title, description, text, message, systemPrompt and $comment, in
// JSON Schemas too. Names, addresses, and what a schema validates or proposes are left.
func MapTexts(value json.RawMessage, f func(string) string) json.RawMessage {
	return rewrite(value, func(isText bool, text string) string {
		if !isText {
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

// A place is where a value is, as far as that says which strings are texts to read.
type place struct {
	isText    bool // the value is one, if it is a string
	isData    bool // the value is, or is in, what a schema validates or proposes
	inSchemas bool // the names of its members are not keywords: they have schemas
}

// below returns the place of a member called name of the value at p, "" for an element.
func (p place) below(name string) place {
	keyword := !p.inSchemas && !p.isData
	return place{
		isText:    keyword && slices.Contains(textNames, name),
		isData:    p.isData || keyword && slices.Contains(valueNames, name),
		inSchemas: keyword && slices.Contains(schemaNames, name),
	}
}

// rewrite returns value with f applied to every string, names of members included.
func rewrite(value json.RawMessage, f func(isText bool, text string) string) json.RawMessage {
	if !jsontext.Value(value).IsValid(lenient, jsontext.AllowInvalidUTF8(true)) {
		return json.RawMessage("null")
	}
	return (&lexer{data: value, accepted: true}).rewrite(make([]byte, 0, len(value)), place{}, f)
}

// rewrite appends the value at p, which begins here, to out, with f applied to its
// strings.
func (l *lexer) rewrite(out []byte, p place, f func(isText bool, text string) string) []byte {
	open := l.peek()
	switch open {
	case '{', '[':
	case '"':
		text, _ := jsontext.AppendUnquote(nil, l.element())
		out, _ = jsontext.AppendQuote(out, f(p.isText, string(text)))
		return out
	default:
		return append(out, l.element()...)
	}
	out = append(out, open)
	l.each(func(name []byte) bool {
		if out[len(out)-1] != open {
			out = append(out, ',')
		}
		if open == '{' {
			out, _ = jsontext.AppendQuote(out, f(false, string(name)))
			out = append(out, ':')
		}
		out = l.rewrite(out, p.below(string(name)), f)
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
