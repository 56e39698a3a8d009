package bridge

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// Header names of the Streamable HTTP transport.
const (
	headerSession = "Mcp-Session-Id"
	headerVersion = "Mcp-Protocol-Version"
	headerMethod  = "Mcp-Method"
	headerName    = "Mcp-Name"
	headerParam   = "Mcp-Param-"
	headerLast    = "Last-Event-Id"
)

// metaVersion is the member of a request's _meta that only the era without
// sessions has (MCP 2026-07-28, basic).
const metaVersion = "io.modelcontextprotocol/protocolVersion"

// era is how one message wants to be sent. Sessions and requests that name
// their own revision may alternate: clients probe with the one and go on with
// the other.
type era struct {
	modern  bool   // it has no session and says its revision itself
	version string // that revision
}

func eraOf(m *jsonrpc.Message) era {
	if m.Method == "" || m.Method == "initialize" {
		return era{}
	}
	meta, _ := jsonrpc.Get(m.Params, "_meta")
	raw, _ := jsonrpc.Get(meta, metaVersion)
	version, ok := jsonrpc.Text(raw)
	return era{modern: ok, version: version}
}

// nameOf is where Mcp-Name comes from (MCP 2026-07-28, basic/transports, and
// the tasks extension, "Routing Headers").
var nameOf = map[string]string{
	"tools/call": "name", "prompts/get": "name", "resources/read": "uri",
	"tasks/get": "taskId", "tasks/update": "taskId", "tasks/cancel": "taskId",
}

// headers are those of m's own; s is what it is sent in.
func (t *talk) headers(m *jsonrpc.Message, e era, s session) http.Header {
	h := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	if !e.modern {
		s.show(h)
		return h
	}
	setPlain(h, headerVersion, e.version)
	setPlain(h, headerMethod, m.Method)
	raw, _ := jsonrpc.Get(m.Params, nameOf[m.Method])
	if name, ok := jsonrpc.Text(raw); ok {
		h.Set(headerName, headerValue(name))
		if m.Method == "tools/call" {
			args, _ := jsonrpc.Get(m.Params, "arguments")
			t.mirror(h, name, args)
		}
	}
	return h
}

// show puts the session into h.
func (s session) show(h http.Header) {
	if s.id != "" {
		h.Set(headerSession, s.id)
	}
	if s.version != "" {
		h.Set(headerVersion, s.version)
	}
}

// setPlain sets a header that knows no encoding. What it cannot carry stays
// away, and the endpoint refuses the message for that.
func setPlain(h http.Header, name, value string) {
	if value != "" && headerValue(value) == value {
		h.Set(name, value)
	}
}

const sentinelHead, sentinelTail = "=?base64?", "?="

// headerValue is text as a header carries it (MCP 2026-07-28, "Value
// Encoding"): as it is when that is safe, else in base64 between sentinels.
func headerValue(text string) string {
	safe := strings.Trim(text, " ") == text && (!strings.HasPrefix(text, sentinelHead) || !strings.HasSuffix(text, sentinelTail))
	for _, c := range []byte(text) {
		safe = safe && ' ' <= c && c <= '~'
	}
	if safe {
		return text
	}
	return sentinelHead + base64.StdEncoding.EncodeToString([]byte(text)) + sentinelTail
}

// binding is one argument of a tool that its schema wants in a header.
type binding struct {
	path []string // names of properties, from the arguments down
	name string   // the header
}

const (
	// maxTools bounds for how many tools bindings are kept, maxNesting how deep
	// a schema is searched.
	maxTools   = 10_000
	maxNesting = 32
)

// learn keeps what the tools of a list want mirrored. A client on stdio knows
// nothing of headers, so the bridge does it in its place.
func (t *talk) learn(result json.RawMessage) {
	tools, _ := jsonrpc.Get(result, "tools")
	t.mu.Lock()
	defer t.mu.Unlock()
	for tool := range jsonrpc.Elements(tools) {
		raw, _ := jsonrpc.Get(tool, "name")
		name, ok := jsonrpc.Text(raw)
		schema, _ := jsonrpc.Get(tool, "inputSchema")
		found := bindings(schema, nil, nil)
		if delete(t.params, name); ok && len(found) > 0 && len(t.params) < maxTools {
			t.params[name] = found
		}
	}
}

// bindings adds to found what the properties of schema want mirrored. An
// annotation that the specification does not allow is passed over: the tool
// stays in the client's list, and its server says what it misses.
func bindings(schema json.RawMessage, above []string, found []binding) []binding {
	if len(above) == maxNesting {
		return found
	}
	properties, _ := jsonrpc.Get(schema, "properties")
	for name, property := range jsonrpc.Members(properties) {
		path := append(above[:len(above):len(above)], name)
		raw, _ := jsonrpc.Get(property, "x-mcp-header")
		header, _ := jsonrpc.Text(raw)
		kind, _ := jsonrpc.Get(property, "type")
		if isToken(header) && mirrored[string(kind)] {
			found = append(found, binding{path: path, name: headerParam + header})
		}
		found = bindings(property, path, found)
	}
	return found
}

// mirrored are the types that a header may carry.
var mirrored = map[string]bool{`"string"`: true, `"integer"`: true, `"boolean"`: true}

// isToken reports a field name (RFC 9110 §5.1).
func isToken(s string) bool {
	for _, c := range []byte(s) {
		alnum := '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
		if !alnum && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}

// mirror puts the arguments that tool wants in headers there. One that is
// absent or null has no header.
func (t *talk) mirror(h http.Header, tool string, args json.RawMessage) {
	t.mu.Lock()
	wanted := t.params[tool]
	t.mu.Unlock()
	for _, w := range wanted {
		value := args
		for _, name := range w.path {
			value, _ = jsonrpc.Get(value, name)
		}
		if text, ok := primitive(value); ok {
			h.Set(w.name, headerValue(text))
		}
	}
}

// primitive is a string, a boolean or a safe integer as text.
func primitive(raw json.RawMessage) (string, bool) {
	if text, ok := jsonrpc.Text(raw); ok || string(raw) == "true" || string(raw) == "false" {
		if !ok {
			text = string(raw)
		}
		return text, true
	}
	const safe = 1<<53 - 1
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > safe {
		return "", false
	}
	return strconv.FormatInt(int64(f), 10), true
}
