package mcpclient

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// Revisions are the MCP revisions with a handshake that a Conn speaks, newest
// first; StatelessRevisions those without one, whose every request says what the
// server has to know of its client.
var (
	Revisions          = []string{"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}
	StatelessRevisions = []string{"2026-07-28"}
)

// Speak sets the revision in which messages are sent from now on, "" for none
// yet. No call may be under way.
func (c *Conn) Speak(revision string) {
	c.revision.Store(&spoken{revision, slices.Contains(StatelessRevisions, revision)})
}

// Revision returns the revision agreed on, "" for none.
func (c *Conn) Revision() string { return c.revision.Load().revision }

// Stateless reports whether the connection speaks a revision without a
// handshake.
func (c *Conn) Stateless() bool { return c.revision.Load().stateless }

// Initialize opens a session (MCP basic/lifecycle) and returns the result of the
// server. Over Streamable HTTP it also opens the stream of the server's own
// messages, which a goroutine reads that Close waits for: what a server asks
// during a call may come on that stream, and is lost before it is open.
func (c *Conn) Initialize(ctx context.Context, capabilities, clientInfo json.RawMessage) (json.RawMessage, error) {
	params := fmt.Appendf(nil, `{"protocolVersion":%q,"capabilities":%s,"clientInfo":%s}`, Revisions[0], capabilities, clientInfo)
	result, e := c.Do(ctx, &Call{ID: c.NextID(), Method: "initialize", Params: params})
	if e != nil {
		return nil, fmt.Errorf("initializing: %w", e)
	}
	raw, _ := jsonrpc.Get(result, "protocolVersion")
	revision, _ := jsonrpc.Text(raw)
	if !slices.Contains(Revisions, revision) {
		return nil, fmt.Errorf("initializing: the server speaks MCP revision %q, which is not one of %v", revision, Revisions)
	}
	c.Speak(revision)
	if err := c.Post(ctx, jsonrpc.NewNotification("notifications/initialized", nil)); err != nil {
		return nil, fmt.Errorf("initializing: %w", err)
	}
	if w, ok := c.wire.(*httpWire); ok {
		w.awaitStream(ctx)
	}
	return result, nil
}

// Ping asks whether the server still knows the session, and fails the connection
// if not.
func (c *Conn) Ping(ctx context.Context) {
	if c.Stateless() {
		return // there is nothing that a server could have forgotten
	}
	if _, e := c.Do(ctx, &Call{ID: c.NextID(), Method: "ping"}); e != nil && e.Lost {
		c.Fail(e)
	}
}
