package jsonrpc

import (
	"bytes"
	"encoding/json"

	"github.com/go-json-experiment/json/jsontext"
)

// Value decodes one bare JSON value under the rules of CheckValue: objects as
// map[string]any, arrays as []any, numbers as json.Number with their spelling.
// A value for which encoding/json would choose between two readings is a
// *Fault.
func Value(data []byte, lim Limits) (any, error) {
	raw, _, err := CheckValue(data, lim)
	if err != nil {
		return nil, err
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(raw), lenient)
	return build(d, read(d)), nil
}

// read returns the next token of a text that CheckValue has accepted.
func read(d *jsontext.Decoder) jsontext.Token {
	token, _ := d.ReadToken()
	return token
}

// build decodes the value that starts with token.
func build(d *jsontext.Decoder, token jsontext.Token) any {
	switch token.Kind() {
	case '{':
		out := map[string]any{}
		for name := read(d); name.Kind() == '"'; name = read(d) {
			key := name.String()
			out[key] = build(d, read(d))
		}
		return out
	case '[':
		out := []any{}
		for element := read(d); element.Kind() != ']'; element = read(d) {
			out = append(out, build(d, element))
		}
		return out
	case '"':
		return token.String()
	case '0':
		return json.Number(token.String())
	case 't', 'f':
		return token.Bool()
	}
	return nil
}
