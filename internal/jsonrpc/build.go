package jsonrpc

import (
	"encoding/json"
	"strconv"
)

// The builders below write the bytes they are given without looking at them:
// ids, params, results and error objects must be well-formed JSON on one line,
// as Decode, CheckValue and Set give them.

const versionHead = `{"jsonrpc":"2.0"`

// NewRequest builds a request (JSON-RPC 2.0 §4); nil params are left out.
func NewRequest(id json.RawMessage, method string, params json.RawMessage) []byte {
	out := make([]byte, 0, len(versionHead)+len(id)+len(method)+len(params)+32)
	out = appendMember(append(out, versionHead...), "id", id)
	return finishCall(out, method, params)
}

// NewNotification builds a notification (JSON-RPC 2.0 §4.1); nil params are
// left out.
func NewNotification(method string, params json.RawMessage) []byte {
	out := make([]byte, 0, len(versionHead)+len(method)+len(params)+32)
	return finishCall(append(out, versionHead...), method, params)
}

// finishCall appends method, params and the closing brace.
func finishCall(out []byte, method string, params json.RawMessage) []byte {
	out = appendQuoted(append(out, `,"method":`...), method)
	if params != nil {
		out = appendMember(out, "params", params)
	}
	return append(out, '}')
}

// NewSuccess builds an answer with a result (JSON-RPC 2.0 §5).
func NewSuccess(id, result json.RawMessage) []byte {
	out := make([]byte, 0, len(versionHead)+len(id)+len(result)+24)
	out = appendMember(append(out, versionHead...), "id", id)
	return append(appendMember(out, "result", result), '}')
}

// NewFailure builds an answer with an error object of code, message and data
// (JSON-RPC 2.0 §5.1). A nil id becomes null, for what had no readable id; nil
// data is left out.
func NewFailure(id json.RawMessage, code int, message string, data json.RawMessage) []byte {
	object := make([]byte, 0, len(message)+len(data)+48)
	object = strconv.AppendInt(append(object, `{"code":`...), int64(code), 10)
	object = appendQuoted(append(object, `,"message":`...), message)
	if data != nil {
		object = appendMember(object, "data", data)
	}
	return NewFailureObject(id, append(object, '}'))
}

// NewFailureObject builds an answer with an error object that is passed on. A
// nil id becomes null.
func NewFailureObject(id, errorObject json.RawMessage) []byte {
	if id == nil {
		id = json.RawMessage("null")
	}
	out := make([]byte, 0, len(versionHead)+len(id)+len(errorObject)+24)
	out = appendMember(append(out, versionHead...), "id", id)
	return append(appendMember(out, "error", errorObject), '}')
}

// appendMember appends a comma and one member.
func appendMember(out []byte, key string, value []byte) []byte {
	out = append(append(append(out, ',', '"'), key...), '"', ':')
	return append(out, value...)
}
