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

// current gives the session that messages are sent in.
func (t *talk) current() session {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.session
}

// establish makes what the answer to initialize said the session of all that
// follows, in the place of one before it.
func (t *talk) establish(f *flight, result json.RawMessage) {
	raw, _ := jsonrpc.Get(result, "protocolVersion")
	version, _ := jsonrpc.Text(raw)
	if !paramheader.Plain(version) {
		version = ""
	}
	t.forget(t.current())
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sessions++
	t.session = session{Session: mcpclient.Session{ID: f.granted, Revision: version}, n: t.sessions}
}

// forget ends the session s, if it is still the one, and tells the endpoint.
func (t *talk) forget(s session) {
	if !t.leave(s) || s.ID == "" {
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), farewell)
	defer stop()
	t.endpoint.End(ctx, s.Session)
}

// leave drops the session s, if it is still the one, and reports whether it
// was.
func (t *talk) leave(s session) bool {
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

// lost reports whether res means that the endpoint has forgotten the session s,
// and drops it. That is a 404 (MCP 2025-11-25, basic/transports, "Session
// Management") unless it carries an answer of the server's own to the request
// id; SDKs use -32000 and -32001 for their transport.
func (t *talk) lost(res *http.Response, rpc *message, s session, id json.RawMessage) bool {
	if res.StatusCode != http.StatusNotFound || s.ID == "" {
		return false
	}
	if rpc != nil && id != nil && jsonrpc.Key(rpc.id) == jsonrpc.Key(id) {
		if code, _ := jsonrpc.Get(rpc.failure, "code"); !slices.Contains([]string{"-32000", "-32001"}, string(code)) {
			return false
		}
	}
	if t.leave(s) {
		t.log.Warn("the endpoint has forgotten the session", "hint", "the client has to initialize again")
	}
	return true
}

// listen opens the stream of what the server says by itself in session s.
func (t *talk) listen(s session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.session.n != s.n || s.n == 0 || t.session.listening != nil {
		return
	}
	ctx, stop := context.WithCancel(t.life)
	t.session.listening = stop
	t.streams.Go(func() {
		defer stop()
		t.hear(ctx, s)
	})
}

// hear keeps a GET stream open until ctx is done or the endpoint has none.
func (t *talk) hear(ctx context.Context, s session) {
	_, status := t.endpoint.Listen(ctx, s.Session, func(data []byte) { t.relay(nil, data) })
	if status == http.StatusUnauthorized || status == http.StatusForbidden {
		t.log.Warn("the endpoint refuses the stream of its own messages", "status", status)
	}
}

// withdraw tells the endpoint that nobody waits for the requests in flight any
// more: before 2026-07-28 a connection that ends does not say so.
func (t *talk) withdraw() {
	ctx, stop := context.WithTimeout(context.Background(), farewell)
	defer stop()
	s := t.current()
	for _, id := range t.waiting() {
		params := append(append([]byte(`{"requestId":`), id...), `,"reason":"the client has gone"}`...)
		note := &jsonrpc.Message{Kind: jsonrpc.Notification, Method: "notifications/cancelled", Params: params}
		note.Raw = jsonrpc.NewNotification(note.Method, params)
		if res, err := t.endpoint.Post(ctx, t.headers(note, era{}, s), note.Raw, nil); err == nil {
			res.Body.Close()
		}
	}
}

// waiting gives the ids of the requests in flight that a message must cancel.
func (t *talk) waiting() []json.RawMessage {
	t.mu.Lock()
	defer t.mu.Unlock()
	var ids []json.RawMessage
	for _, f := range t.flights {
		if !f.era.modern && !f.cancelled && f.method != "initialize" {
			ids = append(ids, f.id)
		}
	}
	return ids
}
