package mcp_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/proxy/mcp"
	"github.com/toolgate/toolgate/registry"
)

// introducing makes a door whose servers introduce themselves as all. The gate
// hides the one tool of vault from bob.
func introducing(all ...registry.Introduction) (*fakeGate, func(*mcp.Options)) {
	gate := newGate()
	secret := tool("denied")
	secret.Server, secret.Exposed = "vault", "vault__denied"
	gate.tools = append(gate.tools, secret)
	return gate, func(o *mcp.Options) {
		o.HasServer = func(name string) bool { return name == "demo" || name == "vault" }
		o.Introductions = func(route string) []registry.Introduction {
			return slices.DeleteFunc(slices.Clone(all), func(s registry.Introduction) bool { return route != "" && s.Server != route })
		}
	}
}

func TestIntroductions(t *testing.T) {
	gate, change := introducing(
		registry.Introduction{Server: "demo", Name: "demo-server", Version: "1.0", WebsiteURL: "https://demo.example", Title: "The \"demo\"", Icons: json.RawMessage(`[{"src":"https://demo.example/i.png"}]`), Instructions: "Echo first.\r\nThen wait."},
		registry.Introduction{Server: "quiet", Title: "No tools", Instructions: "Nobody reads this."},
		registry.Introduction{Server: "vault", Title: "Vault", Instructions: "The combination is secret."},
	)
	srv, _ := newServer(t, gate, change)
	c := httpClient{t: t, url: srv.URL, parts: make(map[string]*part)}
	eventLog(t, "testdata/introduction/routes.txtar", c.ask)
}

// The instructions of all servers together are cut between two characters.
func TestIntroductionsAreBounded(t *testing.T) {
	var all []registry.Introduction
	for range 5 {
		all = append(all, registry.Introduction{Server: "demo", Instructions: strings.Repeat("€", 8<<10/3)})
	}
	gate, change := introducing(all...)
	srv, _ := newServer(t, gate, change)
	_, body := (&far{t: t, url: srv.URL + "/mcp", who: "alice"}).post(initialize)
	result, _ := jsonrpc.Get(json.RawMessage(body), "result")
	text, _ := jsonrpc.TextAt(result, "instructions")
	if len(text) < 32<<10 || len(text) > 33<<10 || !utf8.ValidString(text) || strings.ContainsRune(text, utf8.RuneError) {
		t.Errorf("%d bytes", len(text))
	}
	if !strings.HasSuffix(text, "€\n[toolgate cut the instructions of the servers here; /mcp/{server} has those of one]") {
		t.Errorf("it ends in %q", text[len(text)-100:])
	}
}
