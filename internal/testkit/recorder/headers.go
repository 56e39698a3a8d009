package recorder

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"strings"
	"sync"
)

// serveStateless receives one message of MCP 2026-07-28 over HTTP.
func (h *httpServer) serveStateless(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	h.rec.note("in", string(body))
	var msg message
	if req.Method != http.MethodPost || json.Unmarshal(body, &msg) != nil || msg.ID == nil {
		h.stateless.violation("%s %s", req.Method, body)
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	if wrong := h.stateless.headers(req.Header, msg); wrong != "" {
		h.stateless.violation("%s: %s", msg.Method, wrong)
		text, _ := json.Marshal(wrong)
		respond(w, http.StatusBadRequest, failure(msg.ID, `{"code":-32020,"message":`+string(text)+`}`))
		return
	}
	reply := &statelessReply{w: w, id: string(msg.ID)}
	h.stateless.serve(req.Context(), body, reply.send)
}

// statelessReply is the response to one request: an event stream if a message precedes
// the answer.
type statelessReply struct {
	w  http.ResponseWriter
	id string

	mu     sync.Mutex // held while writing
	stream bool
}

// send writes one message.
func (r *statelessReply) send(m string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.stream && strings.HasPrefix(m, `{"jsonrpc":"2.0","id":`+r.id+`,`) {
		respond(r.w, statusOf(m), m)
		return
	}
	if !r.stream {
		r.w.Header().Set("Content-Type", "text/event-stream")
		r.stream = true
	}
	fmt.Fprintf(r.w, ": alive\n\ndata: %s\n\n", m)
	_ = http.NewResponseController(r.w).Flush() // the client may have disconnected
}

// statusOf returns the HTTP status of an answer.
func statusOf(answer string) int {
	switch {
	case strings.Contains(answer, `"code":-32601`):
		return http.StatusNotFound
	case strings.Contains(answer, `"code":-3202`):
		return http.StatusBadRequest
	}
	return http.StatusOK
}

func respond(w http.ResponseWriter, status int, answer string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, answer) // the client may have disconnected
}

// headers describes how the headers of a request differ from its body, "" for not.
func (m *statelessServer) headers(got http.Header, msg message) string {
	var params struct {
		Name, URI string
		Arguments map[string]any
	}
	exact := json.NewDecoder(bytes.NewReader(msg.Params))
	exact.UseNumber()
	_ = exact.Decode(&params) // only an object has members
	want := map[string]string{"Mcp-Protocol-Version": revision, "Mcp-Method": msg.Method}
	switch msg.Method {
	case "tools/call":
		m.parameterHeaders(params.Name, params.Arguments, want)
		want["Mcp-Name"] = params.Name
	case "prompts/get":
		want["Mcp-Name"] = params.Name
	case "resources/read":
		want["Mcp-Name"] = params.URI
	}
	for name := range got {
		if _, ok := want[name]; !ok && strings.HasPrefix(name, "Mcp-") {
			return fmt.Sprintf("header %s was not expected", name)
		}
	}
	for name, value := range want {
		if text, ok := decodeHeader(got.Get(name)); !ok || text != value || len(got.Values(name)) != 1 {
			return fmt.Sprintf("header %s is %q, want %q", name, got.Values(name), value)
		}
	}
	return ""
}

// parameterHeaders adds the headers that repeat arguments of a call.
func (m *statelessServer) parameterHeaders(tool string, arguments map[string]any, want map[string]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range m.tools {
		var definition struct{ InputSchema map[string]any }
		if t.Name == tool && json.Unmarshal(t.Definition, &definition) == nil {
			mirror(definition.InputSchema, arguments, want)
		}
	}
}

// mirror walks a schema and the arguments in parallel.
func mirror(schema map[string]any, value any, want map[string]string) {
	if name, ok := schema["x-mcp-header"].(string); ok && value != nil {
		text := fmt.Sprint(value)
		if n, ok := value.(json.Number); ok {
			exact, _ := new(big.Rat).SetString(n.String())
			text = exact.FloatString(0)
		}
		want[http.CanonicalHeaderKey("Mcp-Param-"+name)] = text
	}
	properties, _ := schema["properties"].(map[string]any)
	members, _ := value.(map[string]any)
	for name, property := range properties {
		if sub, ok := property.(map[string]any); ok {
			mirror(sub, members[name], want)
		}
	}
}

// decodeHeader decodes the base64 form of values that are not safe in a header.
func decodeHeader(value string) (string, bool) {
	inner, marked := strings.CutPrefix(value, "=?base64?")
	if !marked || !strings.HasSuffix(inner, "?=") {
		return value, true
	}
	text, err := base64.StdEncoding.DecodeString(strings.TrimSuffix(inner, "?="))
	return string(text), err == nil
}
