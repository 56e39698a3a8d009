package jsonrpc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// The builders below write the bytes they are given without looking at them:
// ids, params, results and error objects must be well-formed JSON on one line,
// as Decode, CheckValue and Set give them.

// NewRequest builds a request (JSON-RPC 2.0 §4). A nil id or nil params are left
// out.
func NewRequest(id json.RawMessage, method string, params json.RawMessage) []byte {
	out := append(make([]byte, 0, len(id)+len(method)+len(params)+64), `{"jsonrpc":"2.0"`...)
	if id != nil {
		out = append(append(out, `,"id":`...), id...)
	}
	out, _ = jsontext.AppendQuote(append(out, `,"method":`...), method)
	if params != nil {
		out = append(append(out, `,"params":`...), params...)
	}
	return append(out, '}')
}

// NewNotification builds a notification (JSON-RPC 2.0 §4.1); nil params are
// left out.
func NewNotification(method string, params json.RawMessage) []byte {
	return NewRequest(nil, method, params)
}

// NewSuccess builds an answer with a result (JSON-RPC 2.0 §5).
func NewSuccess(id, result json.RawMessage) []byte {
	return slices.Concat([]byte(`{"jsonrpc":"2.0","id":`), id, []byte(`,"result":`), result, []byte{'}'})
}

// NewFailure builds an answer with an error object of code, message and data
// (JSON-RPC 2.0 §5.1). A nil id becomes null, for what had no readable id; nil
// data is left out.
func NewFailure(id json.RawMessage, code int, message string, data json.RawMessage) []byte {
	object := fmt.Appendf(nil, `{"code":%d,"message":%s`, code, Quote(message))
	if data != nil {
		object = append(append(object, `,"data":`...), data...)
	}
	return NewFailureObject(id, append(object, '}'))
}

// NewFailureObject builds an answer with an error object that is passed on. A
// nil id becomes null.
func NewFailureObject(id, errorObject json.RawMessage) []byte {
	if id == nil {
		id = json.RawMessage("null")
	}
	return slices.Concat([]byte(`{"jsonrpc":"2.0","id":`), id, []byte(`,"error":`), errorObject, []byte{'}'})
}

// Text decodes raw as one JSON string. It reports false for anything else:
// other values, white space around it, invalid UTF-8, lone surrogates.
func Text(raw json.RawMessage) (string, bool) {
	if len(raw) < 2 || raw[0] != '"' {
		return "", false
	}
	var room [64]byte
	text, err := jsontext.AppendUnquote(room[:0], raw)
	if err != nil {
		return "", false
	}
	return string(text), true
}

// Quote returns s as a JSON string. Only what JSON demands is escaped, so `<`
// and U+2028 stay as they are; invalid UTF-8 becomes U+FFFD.
func Quote(s string) json.RawMessage {
	out, _ := jsontext.AppendQuote(make([]byte, 0, len(s)+2), s) // the error reports what it has replaced
	return out
}

// IDText returns a request id as records, policies and events show it: a
// string's text, a number as it is written.
func IDText(id json.RawMessage) string {
	if s, ok := Text(id); ok {
		return s
	}
	return string(id)
}

// OneLine returns message without raw line ends, which JSON allows between
// tokens only: a line or an event must hold exactly one message. A message
// without line ends is returned as it is, any other as a copy.
func OneLine(message []byte) []byte {
	if bytes.IndexByte(message, '\n') < 0 && bytes.IndexByte(message, '\r') < 0 {
		return message
	}
	return bytes.ReplaceAll(bytes.ReplaceAll(message, []byte{'\r'}, []byte{' '}), []byte{'\n'}, []byte{' '})
}
