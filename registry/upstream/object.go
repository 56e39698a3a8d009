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
	out := []byte{'{'}
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

// setAll sets the members of an object, and deletes those that are nil.
func setAll(obj json.RawMessage, members ...member) (json.RawMessage, error) {
	var err error
	for _, m := range members {
		if m.value == nil {
			obj, err = jsonrpc.Delete(obj, m.name)
		} else {
			obj, err = jsonrpc.Set(obj, m.name, m.value)
		}
		if err != nil {
			return nil, err
		}
	}
	return obj, nil
}

// isEmpty reports whether obj is no object with a member.
func isEmpty(obj json.RawMessage) bool {
	for range jsonrpc.Members(obj) {
		return false
	}
	return true
}
