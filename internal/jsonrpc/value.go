package jsonrpc

import (
	"encoding/json"
)

// Value decodes one bare JSON value under the rules of CheckValue: objects as
// map[string]any, arrays as []any, numbers as json.Number with their spelling.
// Where encoding/json would choose between two readings, it gives a *Fault.
func Value(data []byte, lim Limits) (any, error) {
	raw, _, err := CheckValue(data, lim)
	if err != nil {
		return nil, err
	}
	v, _ := build(raw, 0)
	return v, nil
}

// build decodes the value at data[i], which CheckValue has accepted, and gives
// the offset after it.
func build(data []byte, i int) (any, int) {
	switch data[i] {
	case '{':
		return buildObject(data, skipSpace(data, i+1))
	case '[':
		return buildArray(data, skipSpace(data, i+1))
	case '"':
		return buildString(data, i)
	case 't':
		return true, i + 4
	case 'f':
		return false, i + 5
	case 'n':
		return nil, i + 4
	}
	end, _, _, _ := endOfNumber(data, i)
	return json.Number(data[i:end]), end
}

// buildString decodes a string.
func buildString(data []byte, i int) (string, int) {
	end, escaped, _ := endOfString(data, i)
	inner := data[i+1 : end-1]
	if escaped {
		inner = unescape(inner)
	}
	return string(inner), end
}

// buildObject decodes what follows an opening brace.
func buildObject(data []byte, i int) (map[string]any, int) {
	out := map[string]any{}
	for data[i] != '}' {
		name, end := buildString(data, i)
		i = skipSpace(data, skipSpace(data, end)+1)
		out[name], i = build(data, i)
		i = nextPart(data, i)
	}
	return out, i + 1
}

// buildArray decodes what follows an opening bracket.
func buildArray(data []byte, i int) ([]any, int) {
	out := []any{}
	for data[i] != ']' {
		var v any
		v, i = build(data, i)
		out = append(out, v)
		i = nextPart(data, i)
	}
	return out, i + 1
}

// nextPart passes the comma after a part, if there is one.
func nextPart(data []byte, i int) int {
	if i = skipSpace(data, i); data[i] == ',' {
		return skipSpace(data, i+1)
	}
	return i
}
