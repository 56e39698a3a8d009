package jsonrpc

import (
	"encoding/json"
	"slices"
)

// Fields is the plain form of Unpack: the strict decoder finds the members.
func Fields(obj json.RawMessage, names ...string) (values []json.RawMessage, ok bool) {
	values, repeated := make([]json.RawMessage, len(names)), false
	whole := walk(obj, func(name []byte, start, end int) bool {
		if i := slices.Index(names, string(name)); i >= 0 {
			repeated = repeated || values[i] != nil
			values[i] = obj[start:end:end]
		}
		return !repeated
	})
	return values, whole
}
