package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestDoctorClient is the table of the steps at which a client stops.
func TestDoctorClient(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(gate, metadata, server map[string]any)
		step   string // "" = a client gets to the page where a person signs in
		code   int
	}{
		"the whole way": {func(_, _, _ map[string]any) {}, "", 0},
		"a document for a name": {func(_, _, s map[string]any) {
			delete(s, "registration_endpoint")
			s["client_id_metadata_document_supported"] = true
		}, "", 0},
		"nothing is asked for":   {func(g, _, _ map[string]any) { g["status"] = 200 }, "", 0},
		"another host":           {func(g, _, _ map[string]any) { g["status"] = 403 }, "challenge", 4},
		"static tokens alone":    {func(g, _, _ map[string]any) { g["challenge"] = `Bearer realm="toolgate"` }, "challenge", 4},
		"no metadata":            {func(g, _, _ map[string]any) { g["path"] = "/nowhere" }, "metadata", 4},
		"no issuer":              {func(_, m, _ map[string]any) { delete(m, "authorization_servers") }, "metadata", 4},
		"an issuer that is away": {func(_, m, _ map[string]any) { m["authorization_servers"] = []string{"http://127.0.0.1:1"} }, "issuer", 4},
		"another issuer":         {func(_, _, s map[string]any) { s["issuer"] = "https://idp.example" }, "issuer", 4},
		"no page to sign in at":  {func(_, _, s map[string]any) { delete(s, "authorization_endpoint") }, "issuer", 4},
		"no registration":        {func(_, _, s map[string]any) { delete(s, "registration_endpoint") }, "registration", 4},
		"no PKCE":                {func(_, _, s map[string]any) { delete(s, "code_challenge_methods_supported") }, "pkce", 4},
		"plain PKCE":             {func(_, _, s map[string]any) { s["code_challenge_methods_supported"] = []string{"plain"} }, "pkce", 4},
		"another resource":       {func(_, m, _ map[string]any) { m["resource"] = "https://gate.example/mcp" }, "resource", 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gate, metadata, server := map[string]any{"status": 401, "path": "/metadata"}, map[string]any{}, map[string]any{}
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/mcp":
					w.Header().Set("WWW-Authenticate", gate["challenge"].(string))
					w.WriteHeader(gate["status"].(int))
				case "/metadata":
					_ = json.NewEncoder(w).Encode(metadata)
				case "/.well-known/openid-configuration":
					_ = json.NewEncoder(w).Encode(server)
				default:
					http.NotFound(w, r)
				}
			}))
			t.Cleanup(srv.Close)
			metadata["resource"], metadata["authorization_servers"] = srv.URL+"/mcp", []string{srv.URL}
			for member, value := range map[string]any{
				"issuer": srv.URL, "authorization_endpoint": srv.URL + "/auth", "token_endpoint": srv.URL + "/token", "registration_endpoint": srv.URL + "/register",
				"code_challenge_methods_supported": []string{"S256"},
			} {
				server[member] = value
			}
			tt.change(gate, metadata, server)
			if gate["challenge"] == nil {
				gate["challenge"] = `Bearer resource_metadata="` + srv.URL + gate["path"].(string) + `", scope="a b"`
			}
			code, out := toolgate(t, t.TempDir(), "doctor", "--client", srv.URL+"/mcp", "-o", "json")
			var got struct {
				Findings []struct{ Level, Where, Message, Hint string }
				OK       bool
			}
			if err := json.Unmarshal([]byte(out), &got); err != nil || code != tt.code || got.OK != (tt.code == 0) {
				t.Fatalf("exit %d, want %d: %s", code, tt.code, out)
			}
			if last := got.Findings[len(got.Findings)-1]; tt.step != "" && (last.Where != tt.step || last.Level != "fault" || last.Hint == "") {
				t.Errorf("stopped at %+v, want %s", last, tt.step)
			}
		})
	}
	if code, out := toolgate(t, t.TempDir(), "doctor", "https://gate.example/mcp"); code != 2 || !strings.Contains(out, "hint: toolgate doctor --client URL") {
		t.Errorf("an address alone: %d %s", code, out)
	}
}
