package proxy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/signal"
)

// receive reads the parts of a tools/call. The arguments are the bytes that
// were decoded: nothing marshals them again.
func (t *toolCall) receive(context.Context) *Failure {
	m := t.in.Message
	if m == nil {
		return t.undecoded(t.in.Fault)
	}
	t.id = jsonrpc.IDText(m.ID)
	if m.Kind != jsonrpc.Request {
		return t.fail(signal.CodeEnvelopeInvalid, "tools/call needs an id")
	}
	name, ok := m.Param("name")
	if !ok {
		return t.fail(signal.CodeEnvelopeInvalid, "params.name is missing")
	}
	if t.name, ok = jsonrpc.Text(name); !ok || t.name == "" {
		return t.fail(signal.CodeEnvelopeInvalid, "params.name must be a string that is not empty")
	}
	t.body = json.RawMessage("{}")
	if args, ok := m.Param("arguments"); ok {
		if args[0] != '{' {
			return t.fail(signal.CodeEnvelopeInvalid, "params.arguments must be an object")
		}
		t.body = args
	}
	t.digest = digest(t.body)
	task, ok := m.Param("task") // MCP 2025-11-25, tasks
	switch {
	case ok && task[0] != '{':
		return t.fail(signal.CodeEnvelopeInvalid, "params.task must be an object")
	case ok && t.in.Session == "":
		return t.fail(signal.CodeEnvelopeInvalid, "a task belongs to a session, and this call has none")
	}
	t.task = task
	if meta, ok := m.Param("_meta"); ok {
		return t.receiveMeta(meta)
	}
	return nil
}

// isObject reports whether raw, a JSON value or nothing, is an object.
func isObject(raw json.RawMessage) bool { return len(raw) > 0 && raw[0] == '{' }

// textMember returns a string member of an object, "" when there is none.
func textMember(object json.RawMessage, key string) string {
	raw, _ := jsonrpc.Get(object, key)
	text, _ := jsonrpc.Text(raw)
	return text
}

// digest names judged bytes.
func digest(judged []byte) string {
	sum := sha256.Sum256(judged)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// receiveMeta stores the caller's _meta without the members of this hop.
func (c *call) receiveMeta(meta json.RawMessage) *Failure {
	if !isObject(meta) {
		return c.fail(signal.CodeEnvelopeInvalid, "params._meta must be an object")
	}
	for key := range jsonrpc.Members(meta) {
		if !ofThisHop(key) {
			continue
		}
		kept, err := jsonrpc.Delete(meta, key)
		if err != nil {
			return c.fail(signal.CodeEnvelopeInvalid, "params._meta cannot be read")
		}
		meta = kept
	}
	c.meta = meta
	return nil
}

// ofThisHop reports whether a member of _meta concerns only the two ends of
// this connection. The related task concerns the ends beyond them too.
func ofThisHop(key string) bool {
	if key == "io.modelcontextprotocol/related-task" {
		return false
	}
	return key == "progressToken" || strings.HasPrefix(key, "io.modelcontextprotocol/") || strings.HasPrefix(key, "io.toolgate/")
}

// undecoded refuses bytes that are no request.
func (c *call) undecoded(f *jsonrpc.Fault) *Failure {
	if f == nil {
		return c.fail(signal.CodeEnvelopeInvalid, "there is no message")
	}
	c.id = jsonrpc.IDText(f.ID)
	code := signal.CodeEnvelopeInvalid
	switch f.Kind {
	case jsonrpc.Parse:
		code = signal.CodeEnvelopeParse
	case jsonrpc.TooLarge:
		code = signal.CodeEnvelopeTooLarge
	}
	return c.fail(code, f.Reason).with("pointer", f.Pointer).with("want", f.Want).with("got", f.Got)
}

// traceOf continues the caller's trace (the door's, else the W3C traceparent in
// params._meta) or starts one.
func traceOf(in *Call) string {
	if in.TraceID != "" {
		return in.TraceID
	}
	if in.Message != nil {
		if raw, ok := in.Message.Meta("traceparent"); ok {
			if id, ok := traceID(raw); ok {
				return id
			}
		}
	}
	return signal.NewID("trc_")
}

// traceID reads version-trace-parent-flags of the W3C Trace Context.
func traceID(raw json.RawMessage) (string, bool) {
	traceparent, _ := jsonrpc.Text(raw)
	parts := strings.Split(traceparent, "-")
	if len(parts) != 4 || len(parts[1]) != 32 {
		return "", false
	}
	id := parts[1]
	return id, strings.Trim(id, "0123456789abcdef") == "" && strings.Trim(id, "0") != ""
}
