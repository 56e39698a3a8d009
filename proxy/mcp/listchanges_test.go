package mcp_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/proxy/mcp"
)

// What is news to one principal is none to others, over HTTP with a session and
// on a pipe without. The news that goes to all shows that nothing came before it.
func TestNewsForOnePrincipal(t *testing.T) {
	g := newGate()
	srv, d := newServer(t, g, func(o *mcp.Options) {
		library{g}.serve(o)
		o.Offers = func(context.Context, string) json.RawMessage {
			return json.RawMessage(`{"tools":{"listChanged":true},"prompts":{"listChanged":true}}`)
		}
	})
	h := open(t, srv, "alice")
	stream := h.flow(h.request(http.MethodGet, ""))
	stream.next()
	pipe := dial(t, d)
	pipe.Ask(modernLine(`7`, "subscriptions/listen", `"notifications":{"toolsListChanged":true,"promptsListChanged":true}`))
	next := map[string]func() string{
		"http":  func() string { e, _ := stream.next(); return e.data },
		"stdio": pipe.Receive,
	}
	heard := func(what string) {
		t.Helper()
		for way, next := range next {
			if got := next(); !strings.Contains(got, "notifications/"+what+"/list_changed") {
				t.Errorf("%s: got %s, want that %s changed", way, got, what)
			}
		}
	}
	d.ToolsChangedFor(policy.Principal{Subject: "bob"})
	d.ToolsChangedFor(policy.Principal{Subject: "alice", Tenant: "other"})
	d.ListChanged("demo", "notifications/prompts/list_changed")
	heard("prompts")
	d.ToolsChangedFor(policy.Principal{Subject: "alice"})
	heard("tools")
}
