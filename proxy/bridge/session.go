package bridge

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/mcpclient"
	"github.com/toolgate/toolgate/internal/paramheader"
)

const lostReason = "the endpoint has forgotten the session: send initialize to begin a new one"

// currentSession returns the session in which messages are sent.
func (t *talk) currentSession() session {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.session
}

// establishSession begins the session that the answer to initialize names,
// and ends the one before it.
func (t *talk) establishSession(f *flight, result json.RawMessage) {
	version, _ := jsonrpc.TextAt(result, "protocolVersion")
	if !paramheader.Plain(version) {
		version = ""
	}
	t.endSession(t.currentSession())
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sessions++
	t.session = session{Session: mcpclient.Session{ID: f.granted, Revision: version}, n: t.sessions}
}

// endSession ends the session s, if it is the current one, at the endpoint too.
func (t *talk) endSession(s session) {
	if !t.dropSession(s) || s.ID == "" {
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), farewell)
	defer stop()
	t.endpoint.End(ctx, s.Session)
}

// dropSession drops the session s, if it is the current one, and reports
// whether it was.
func (t *talk) dropSession(s session) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.session.n != s.n || s.n == 0 {
		return false
	}
	if t.session.listening != nil {
		t.session.listening()
	}
	t.session = session{}
	return true
}

// sessionLost reports whether res means that the endpoint has forgotten the
// session s, and drops it. That is a 404 (MCP 2025-11-25, basic/transports,
// "Session Management") unless it carries the server's own answer to the
// request id; SDKs use -32000 and -32001 for their transport.
func (t *talk) sessionLost(res *http.Response, rpc *message, s session, id json.RawMessage) bool {
	if res.StatusCode != http.StatusNotFound || s.ID == "" {
		return false
	}
	if rpc != nil && id != nil && jsonrpc.Key(rpc.id) == jsonrpc.Key(id) {
		if code, _ := jsonrpc.Get(rpc.failure, "code"); !slices.Contains([]string{"-32000", "-32001"}, string(code)) {
			return false
		}
	}
	if t.dropSession(s) {
		t.log.Warn("the endpoint has forgotten the session", "hint", "the client has to initialize again")
	}
	return true
}

// openSessionStream opens the stream of the server's own messages in session s.
func (t *talk) openSessionStream(s session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.session.n != s.n || s.n == 0 || t.session.listening != nil {
		return
	}
	ctx, stop := context.WithCancel(t.life)
	t.session.listening = stop
	t.streams.Go(func() {
		defer stop()
		_, status := t.endpoint.Listen(ctx, s.Session, func(event mcpclient.Event) { t.relayEvent(nil, event) }, nil)
		if status == http.StatusUnauthorized || status == http.StatusForbidden {
			t.log.Warn("the endpoint refuses the stream of its own messages", "status", status)
		}
	})
}

// cancelAll cancels the requests in flight at the endpoint: before 2026-07-28
// the end of a connection does not cancel them.
func (t *talk) cancelAll() {
	ctx, stop := context.WithTimeout(context.Background(), farewell)
	defer stop()
	s := t.currentSession()
	for _, id := range t.waiting() {
		params := append(append([]byte(`{"requestId":`), id...), `,"reason":"the client has gone"}`...)
		if res, err := t.endpoint.Post(ctx, t.endpoint.Headers(s.Session), jsonrpc.NewNotification("notifications/cancelled", params), nil); err == nil {
			res.Body.Close()
		}
	}
}

// waiting returns the ids of the requests in flight that a message must cancel.
func (t *talk) waiting() []json.RawMessage {
	t.mu.Lock()
	defer t.mu.Unlock()
	var ids []json.RawMessage
	for _, f := range t.flights {
		if !f.era.stateless && !f.cancelled && f.begun.Load() && f.method != "initialize" {
			ids = append(ids, f.id)
		}
	}
	return ids
}

// metaVersion is the member of _meta that only stateless requests have (MCP
// 2026-07-28, basic).
const metaVersion = "io.modelcontextprotocol/protocolVersion"

// An era is how one message is sent: in a session, or stateless. Both may
// alternate, because clients probe one and continue with the other.
type era struct {
	stateless bool   // it has no session and names its revision
	version   string // that revision
}

func eraOf(m *jsonrpc.Message) era {
	if m.Method == "" || m.Method == "initialize" {
		return era{}
	}
	version, ok := m.TextParam("_meta", metaVersion)
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

// learnParameters records which parameters of the listed tools are repeated in
// headers. Clients on stdio have no headers, so the bridge sets them. Invalid
// annotations are ignored: the tool stays in the client's list, and its server
// reports missing headers.
func (t *talk) learnParameters(result json.RawMessage) {
	tools, _ := jsonrpc.Get(result, "tools")
	t.mu.Lock()
	defer t.mu.Unlock()
	for tool := range jsonrpc.Elements(tools) {
		name, ok := jsonrpc.TextAt(tool, "name")
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
	name, _ := m.TextParam("name")
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.params[name]
}
