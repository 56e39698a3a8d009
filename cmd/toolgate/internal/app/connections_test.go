package app

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/registry/config"
)

const connectableServers = `{"mcpServers": {
	"zeta": {"url": "https://zeta.example/mcp?key=secret"}, "alpha": {"url": "https://alpha.example/mcp"},
	"off": {"url": "https://off.example/mcp", "disabled": true}, "keyed": {"url": "https://keyed.example/mcp"}, "local": {"command": "toolgate", "args": ["tools"]}
}, "toolgate": {"public_url": "https://gate.example", "console": {"url": "https://console.example"}, "servers": {
	"zeta": {"credential": {"type": "oauth"}}, "alpha": {"credential": {"type": "oauth", "shared": true}}, "off": {"credential": {"type": "oauth"}},
	"keyed": {"credential": {"type": "static", "headers": {"X-Key": "secret"}}}
}}}`

func configured(t *testing.T, text string) *config.Config {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "mcp.json"), text)
	cfg, err := read(dir)()
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// People connect accounts at the servers that serve and have a credential of the type oauth.
func TestServices(t *testing.T) {
	cfg := configured(t, connectableServers)
	want := []console.Service{{Name: "alpha", Address: "https://alpha.example/mcp", Shared: true}, {Name: "zeta", Address: "https://zeta.example/mcp"}}
	if diff := cmp.Diff(want, connections{config: func() *config.Config { return cfg }}.Services()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Authorization servers get the client metadata document at toolgate's public address, and there is
// none where no server needs it or nobody can get it.
func TestClientMetadata(t *testing.T) {
	const path, oauth = "/.well-known/oauth-client/toolgate.json", connectableServers
	for name, tc := range map[string]struct {
		config, method, host string
		want                 int
	}{
		"as an authorization server":   {oauth, http.MethodGet, "gate.example", 200},
		"a method that changes":        {oauth, http.MethodPost, "gate.example", 405},
		"no public address":            {`{"mcpServers": {"zeta": {"url": "https://zeta.example/mcp"}}, "toolgate": {"servers": {"zeta": {"credential": {"type": "oauth"}}}}}`, http.MethodGet, "127.0.0.1:8787", 404},
		"a public address without TLS": {`{"mcpServers": {"zeta": {"url": "https://zeta.example/mcp"}}, "toolgate": {"public_url": "http://127.0.0.1:8787", "servers": {"zeta": {"credential": {"type": "oauth"}}}}}`, http.MethodGet, "127.0.0.1:8787", 404},
		"no such server":               {`{"mcpServers": {}, "toolgate": {"public_url": "https://gate.example"}}`, http.MethodGet, "gate.example", 404},
	} {
		t.Run(name, func(t *testing.T) {
			a := &App{serving: serving{cfg: configured(t, tc.config)}}
			a.connections.config = a.Config
			r := httptest.NewRequest(tc.method, path, nil)
			r.Host = tc.host
			w := httptest.NewRecorder()
			a.route(guard.NewHosts(agentHosts(a.cfg)), nil, nil).ServeHTTP(w, r)
			if w.Code != tc.want {
				t.Fatalf("%d %s, want %d", w.Code, w.Body, tc.want)
			}
			if tc.want != 200 {
				return
			}
			var got map[string]any
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			want := map[string]any{
				"client_id": "https://gate.example" + path, "client_name": "toolgate", "redirect_uris": []any{"https://console.example/connections/callback"},
				"grant_types": []any{"authorization_code", "refresh_token"}, "response_types": []any{"code"}, "token_endpoint_auth_method": "none",
			}
			if diff := cmp.Diff(want, got); diff != "" || w.Header().Get("Content-Type") != "application/json" || w.Header().Get("Cache-Control") != "max-age=3600" {
				t.Errorf("%v (-want +got):\n%s", w.Header(), diff)
			}
		})
	}
}
