package proxy

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
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
	if t.name, _ = jsonrpc.Text(name); t.name == "" {
		return t.fail(signal.CodeEnvelopeInvalid, "params.name must be a string that is not empty")
	}
	args, ok := m.Param("arguments")
	wrong := ok && args[0] != '{'
	if t.body = args; !ok || wrong {
		t.body = noMembers
	}
	if wrong {
		return t.fail(signal.CodeEnvelopeInvalid, "params.arguments must be an object")
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

// noMembers is an object that nobody changes.
var noMembers = json.RawMessage("{}")

// isObject reports whether raw, a JSON value or nothing, is an object.
func isObject(raw json.RawMessage) bool { return len(raw) > 0 && raw[0] == '{' }

// textMember returns a string member of an object, "" when there is none.
func textMember(object json.RawMessage, key string) string {
	text, _ := jsonrpc.TextAt(object, key)
	return text
}

// digest returns the name of bytes, "sha256:" and lower-case hex.
func digest(judged []byte) string {
	sum := sha256.Sum256(judged)
	text := [len("sha256:") + 2*sha256.Size]byte{}
	hex.Encode(text[copy(text[:], "sha256:"):], sum[:])
	return string(text[:])
}

// receiveMeta stores the caller's _meta without the members of this hop.
func (c *call) receiveMeta(meta json.RawMessage) *Failure {
	if !isObject(meta) {
		return c.fail(signal.CodeEnvelopeInvalid, "params._meta must be an object")
	}
	others := false
	jsonrpc.Each(meta, func(name []byte, _ json.RawMessage) bool {
		others = !ofThisHop(name)
		return !others
	})
	if !others { // most clients
		c.meta = noMembers
		return nil
	}
	var changes []jsonrpc.Change
	jsonrpc.Each(meta, func(name []byte, value json.RawMessage) bool {
		if ofThisHop(name) {
			changes = append(changes, jsonrpc.Change{Name: string(name)})
		} else if string(name) == "baggage" {
			changes = append(changes, jsonrpc.Change{Name: "baggage", Value: c.gate.passBaggage(value)})
		}
		return true
	})
	var err error
	if c.meta, err = jsonrpc.Extend(meta, changes...); err != nil {
		return c.fail(signal.CodeEnvelopeInvalid, "params._meta cannot be read")
	}
	return nil
}

// ofThisHop reports whether a member of _meta concerns this connection alone. The related
// task concerns the ends beyond it too.
func ofThisHop(name []byte) bool {
	mcp := bytes.HasPrefix(name, []byte("io.modelcontextprotocol/")) && string(name) != "io.modelcontextprotocol/related-task"
	return mcp || string(name) == "progressToken" || bytes.HasPrefix(name, []byte("io.toolgate/"))
}

// passBaggage returns the members of a W3C Baggage (section 3.3.1) that servers receive, nil for
// none: what a caller says of itself to one service may not be meant for another.
func (g *Gate) passBaggage(value json.RawMessage) json.RawMessage {
	text, _ := jsonrpc.Text(value)
	members := slices.DeleteFunc(strings.Split(text, ","), func(member string) bool {
		key, _, _ := strings.Cut(member, "=")
		return !slices.Contains(g.opts.Baggage, strings.Trim(key, " \t"))
	})
	if len(members) == 0 {
		return nil
	}
	return jsonrpc.Quote(strings.Join(members, ","))
}

// undecoded refuses bytes that are no request.
func (c *call) undecoded(f *jsonrpc.Fault) *Failure {
	if f == nil {
		return c.fail(signal.CodeEnvelopeInvalid, "there is no message")
	}
	c.id = jsonrpc.IDText(f.ID)
	codes := map[jsonrpc.FaultKind]string{jsonrpc.Parse: signal.CodeEnvelopeParse, jsonrpc.TooLarge: signal.CodeEnvelopeTooLarge}
	return c.fail(cmp.Or(codes[f.Kind], signal.CodeEnvelopeInvalid), f.Reason).with("pointer", f.Pointer).with("want", f.Want).with("got", f.Got)
}

// traceID reads version-trace-parent-flags of the W3C Trace Context, "" for what is
// none.
func traceID(raw json.RawMessage) string {
	traceparent, _ := jsonrpc.Text(raw)
	parts := strings.Split(traceparent, "-")
	if len(parts) != 4 || len(parts[1]) != 32 || strings.Trim(parts[1], "0123456789abcdef") != "" || strings.Trim(parts[1], "0") == "" {
		return ""
	}
	return parts[1]
}
