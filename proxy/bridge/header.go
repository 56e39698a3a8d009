package bridge

import (
	"encoding/json"
	"net/http"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/mcpclient"
	"github.com/toolgate/toolgate/internal/paramheader"
)

// metaVersion is the member of _meta that only stateless requests have (MCP
// 2026-07-28, basic).
const metaVersion = "io.modelcontextprotocol/protocolVersion"

// An era is how one message is sent: in a session, or stateless. Both may
// alternate, because clients probe one and continue with the other.
type era struct {
	stateless bool   // it has no session and says its revision itself
	version   string // that revision
}

func eraOf(m *jsonrpc.Message) era {
	if m.Method == "" || m.Method == "initialize" {
		return era{}
	}
	raw, _ := m.Meta(metaVersion)
	version, ok := jsonrpc.Text(raw)
	return era{stateless: ok, version: version}
}

// headers returns the headers of m itself; s is the session it is sent in.
func (t *talk) headers(m *jsonrpc.Message, e era, s session) http.Header {
	if !e.stateless {
		return t.endpoint.Headers(s.Session)
	}
	stateless := mcpclient.Session{}
	if paramheader.Plain(e.version) {
		stateless.Revision = e.version
	}
	h := t.endpoint.Headers(stateless)
	paramheader.Set(h, m.Method, m.Params, t.parametersOf(m))
	return h
}

// maxTools bounds for how many tools the bridge keeps parameters.
const maxTools = 10_000

// learnParameters records which parameters of the listed tools headers repeat.
// A client on stdio knows nothing of headers, so the bridge sets them. Invalid
// annotations are ignored: the tool stays in the client's list, and its server
// reports what is missing.
func (t *talk) learnParameters(result json.RawMessage) {
	tools, _ := jsonrpc.Get(result, "tools")
	t.mu.Lock()
	defer t.mu.Unlock()
	for tool := range jsonrpc.Elements(tools) {
		raw, _ := jsonrpc.Get(tool, "name")
		name, ok := jsonrpc.Text(raw)
		found, _ := paramheader.Parameters(tool)
		if delete(t.params, name); ok && len(found) > 0 && len(t.params) < maxTools {
			t.params[name] = found
		}
	}
}

// parametersOf returns the parameters that headers repeat of the tool that m
// calls, nil for other messages.
func (t *talk) parametersOf(m *jsonrpc.Message) []paramheader.Parameter {
	if m.Method != "tools/call" {
		return nil
	}
	raw, _ := m.Param("name")
	name, _ := jsonrpc.Text(raw)
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.params[name]
}
