package app

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/trail"
)

const canary = "canary-of-a-token"

// guarded is an MCP server that is its own authorization server: it registers every client, and grants
// what anybody asks for.
func guarded(t *testing.T) (address string) {
	t.Helper()
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	say := func(status int, v any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_ = json.NewEncoder(w).Encode(v)
		}
	}
	mux.HandleFunc("/mcp", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", `Bearer scope="files:read"`)
		w.WriteHeader(http.StatusUnauthorized)
	})
	mux.HandleFunc("/.well-known/oauth-authorization-server", say(200, map[string]any{
		"issuer": server.URL, "authorization_endpoint": server.URL + "/authorize", "token_endpoint": server.URL + "/token", "registration_endpoint": server.URL + "/register",
		"response_types_supported": []string{"code"}, "code_challenge_methods_supported": []string{"S256"}, "token_endpoint_auth_methods_supported": []string{"none"},
	}))
	mux.HandleFunc("/register", func(w http.ResponseWriter, r *http.Request) {
		client := map[string]any{}
		_ = json.NewDecoder(r.Body).Decode(&client)
		client["client_id"] = "c1"
		say(201, client)(w, r)
	})
	mux.HandleFunc("/token", say(200, map[string]any{"access_token": canary, "refresh_token": canary, "token_type": "Bearer", "expires_in": 3600, "scope": "files:read"}))
	return server.URL
}

// visit is a browser on this machine, which sends Secure cookies over HTTP there.
type visit struct {
	t       *testing.T
	client  *http.Client
	cookies map[string]string
}

func (v *visit) do(method, address string, form url.Values) (*http.Response, string) {
	v.t.Helper()
	req, err := http.NewRequestWithContext(v.t.Context(), method, address, strings.NewReader(form.Encode()))
	if err != nil {
		v.t.Fatal(err)
	}
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for name, value := range v.cookies {
		req.AddCookie(&http.Cookie{Name: name, Value: value})
	}
	res, err := v.client.Do(req)
	if err != nil {
		v.t.Fatal(err)
	}
	defer res.Body.Close()
	for _, c := range res.Cookies() {
		v.cookies[c.Name] = c.Value
	}
	text, err := io.ReadAll(res.Body)
	if err != nil {
		v.t.Fatal(err)
	}
	if strings.Contains(fmt.Sprint(res.Header)+string(text), canary) {
		v.t.Errorf("%s shows a token: %v %s", address, res.Header, text)
	}
	return res, string(text)
}

// The local principal connects an account through the pages, sees it over REST and revokes it; the trail
// has each step, and no page a token.
func TestAccountsThroughTheConsole(t *testing.T) {
	server := guarded(t)
	people := httptest.NewUnstartedServer(nil)
	dir, base := t.TempDir(), "http://"+people.Listener.Addr().String()
	write(t, filepath.Join(dir, "mcp.json"), fmt.Sprintf(`{"mcpServers": {"drive": {"url": "%s/mcp"}}, "toolgate": {"admin": %q, "keys": %q, "servers": {"drive": {"credential": {"type": "oauth"}}}}}`,
		server, people.Listener.Addr(), t.TempDir()))
	a, cfg := opened(t, dir)
	pages, err := a.newConsole(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	people.Config.Handler = pages
	people.Start()
	t.Cleanup(func() {
		pages.Close()
		people.Close()
	})
	v := &visit{t: t, cookies: map[string]string{}, client: &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	v.client.Transport = new(http.Transport)
	defer v.client.CloseIdleConnections()

	res, text := v.do("GET", base+"/connections/drive", nil)
	csrf := regexp.MustCompile(`name="csrf" value="([^"]*)"`).FindStringSubmatch(text)
	if res.StatusCode != http.StatusOK || csrf == nil || !strings.Contains(text, "<code>"+server+"</code>") || !strings.Contains(text, "<code>files:read</code>") {
		t.Fatalf("%d %s", res.StatusCode, text)
	}
	res, text = v.do("POST", base+"/connections/drive", url.Values{"csrf": {csrf[1]}})
	away, err := url.Parse(res.Header.Get("Location"))
	if err != nil || res.StatusCode != http.StatusSeeOther || !strings.HasPrefix(away.String(), server+"/authorize?") || away.Query().Get("redirect_uri") != base+"/connections/callback" {
		t.Fatalf("%d %v %s", res.StatusCode, res.Header, text)
	}
	res, text = v.do("GET", base+"/connections/callback?"+url.Values{"code": {"c"}, "state": {away.Query().Get("state")}}.Encode(), nil)
	if res.StatusCode != http.StatusSeeOther || res.Header.Get("Location") != "/connections/drive" {
		t.Fatalf("%d %s", res.StatusCode, text)
	}
	if _, text = v.do("GET", base+"/connections", nil); !strings.Contains(text, ">connected</span>") {
		t.Errorf("the page: %s", text)
	}
	var list struct {
		Connections []struct{ ID, Server, State string }
	}
	if _, text = v.do("GET", base+"/v1/connections", nil); json.Unmarshal([]byte(text), &list) != nil || len(list.Connections) != 1 || list.Connections[0].State != "live" {
		t.Fatalf("the list: %s", text)
	}
	if _, text = v.do("DELETE", base+"/v1/connections/"+list.Connections[0].ID, nil); !strings.Contains(text, `"state":"ended"`) {
		t.Errorf("revoking: %s", text)
	}
	if _, text = v.do("GET", base+"/connections", nil); !strings.Contains(text, "not connected") {
		t.Errorf("the page after revoking: %s", text)
	}
	var acts []string
	for line, err := range audit.Tail(t.Context(), trail.Dir(cfg.State), audit.TailOptions{Records: 1000}) {
		if err != nil {
			t.Fatal(err)
		}
		var r audit.Record
		if json.Unmarshal(line, &r) == nil && r.Event != nil && strings.HasPrefix(r.Event.Name, "connection_") {
			acts = append(acts, r.Event.Name+" "+r.Server+" "+r.Principal.Subject)
		}
	}
	if got := strings.Join(acts, ", "); got != "connection_begun drive local, connection_made drive local, connection_revoked drive local" {
		t.Errorf("the trail has %s", got)
	}
}
