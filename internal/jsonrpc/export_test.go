package jsonrpc

import (
	"encoding/json"
	"slices"
)

// Fields is the plain form of Unpack: each member is read with the strict lexer.
func Fields(obj json.RawMessage, names ...string) (values []json.RawMessage, ok bool) {
	values = make([]json.RawMessage, len(names))
	if !whole(obj, '{') {
		return values, false
	}
	for name, value := range Members(obj) {
		if i := slices.Index(names, name); i >= 0 {
			if values[i] != nil {
				return values, false
			}
			values[i] = value
		}
	}
	return values, true
}
