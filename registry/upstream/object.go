package upstream

import (
	"encoding/json"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// member is one member of an object.
type member struct {
	name  string
	value json.RawMessage // nil = the object does not have it
}

// object writes the members that are there.
func object(members ...member) json.RawMessage {
	size := 2
	for _, m := range members {
		size += len(m.name) + len(m.value) + 4
	}
	out := append(make([]byte, 0, size), '{')
	for _, m := range members {
		if m.value == nil {
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(append(out, '"'), m.name...), `":`...), m.value...)
	}
	return append(out, '}')
}

// isEmpty reports whether obj has no members, as an empty object or another value.
func isEmpty(obj json.RawMessage) bool {
	for range jsonrpc.Members(obj) {
		return false
	}
	return true
}
