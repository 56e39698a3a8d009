package jsonrpc

import (
	"bytes"
	"encoding/json"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// The builders below write the bytes they are given without looking at them:
// ids, params, results and error objects must be well-formed JSON on one line,
// as Decode, CheckValue and Set give them.

const versionHead = `{"jsonrpc":"2.0"`

// NewRequest builds a request (JSON-RPC 2.0 §4). A nil id or nil params are left
// out.
func NewRequest(id json.RawMessage, method string, params json.RawMessage) []byte {
	out := make([]byte, 0, len(versionHead)+len(id)+len(method)+len(params)+48)
	out = appendMember(append(out, versionHead...), "id", id)
	out, _ = jsontext.AppendQuote(append(out, `,"method":`...), method)
	return append(appendMember(out, "params", params), '}')
}

// NewNotification builds a notification (JSON-RPC 2.0 §4.1); nil params are
// left out.
func NewNotification(method string, params json.RawMessage) []byte {
	return NewRequest(nil, method, params)
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
	object, _ = jsontext.AppendQuote(append(object, `,"message":`...), message)
	return NewFailureObject(id, append(appendMember(object, "data", data), '}'))
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

// appendMember appends a comma and one member, nothing for a nil value.
func appendMember(out []byte, key string, value []byte) []byte {
	if value == nil {
		return out
	}
	out = append(append(append(out, ',', '"'), key...), '"', ':')
	return append(out, value...)
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
	out := bytes.Clone(message)
	joinLines(out)
	return out
}

// joinLines replaces line ends by spaces.
func joinLines(text []byte) {
	for _, end := range []byte("\r\n") {
		for rest := text; ; {
			i := bytes.IndexByte(rest, end)
			if i < 0 {
				break
			}
			rest[i], rest = ' ', rest[i+1:]
		}
	}
}
