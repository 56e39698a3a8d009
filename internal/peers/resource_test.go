package peers_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// asked is an answer over HTTP.
type asked struct {
	code int
	http.Header
	body string
}

// ask sends a request with header lines, name and value by turns.
func ask(t *testing.T, method, address, body string, lines ...string) asked {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, address, bytes.NewBufferString(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i < len(lines); i += 2 {
		if r.Header.Set(lines[i], lines[i+1]); lines[i] == "Host" {
			r.Host = lines[i+1]
		}
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return asked{res.StatusCode, res.Header, string(text)}
}

// statelessCall is a call of revision 2026-07-28.
func statelessCall(tool string) (body string, lines []string) {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q,"arguments":{},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",`+
			`"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`, tool),
		[]string{"MCP-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", tool}
}

// TestProtectedResource is the table of what a client without a token learns, and of where a
// token of an audience is good, at every route of the built program.
func TestProtectedResource(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	issuer := openIssuer(t, map[string]map[string]any{"ann": {"roles": []string{"agent"}, "scp": []string{"media"}}})
	rec, other := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "pay"}}}), recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "pay"}}})
	dir := guarded(t, issuer.url, scopedPay, httpOf("rec", rec, shared()), httpOf("other", other, shared()))
	path := filepath.Join(dir, "mcp.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const public = "https://gate.example"
	write(t, path, strings.Replace(strings.Replace(string(text), `"toolgate": {`, `"toolgate": {"public_url": "https://gate.example/",`, 1),
		`"servers": {"rec": {`, `"servers": {"rec": {"audience": ["urn:toolgate"], `, 1))
	g := serveReady(t, dir)

	for route, resource := range map[string]string{
		"/mcp": "/mcp", "/mcp/rec": "/mcp/rec", "/mcp/none": "/mcp/none", "/sse": "/sse", "/sse/rec": "/sse/rec", "/messages": "/sse", "/v1/tools": "/mcp",
	} {
		method := map[bool]string{true: http.MethodPost, false: http.MethodGet}[strings.HasPrefix(route, "/m")]
		at := `resource_metadata="` + public + `/.well-known/oauth-protected-resource` + resource + `", scope="media"`
		if got := ask(t, method, g.Agents+route, `{"jsonrpc":"2.0","id":1,"method":"ping"}`); got.code != http.StatusUnauthorized || got.Get("WWW-Authenticate") != "Bearer "+at {
			t.Errorf("%s: %d %s", route, got.code, got.Get("WWW-Authenticate"))
		}
		shown := ask(t, method, g.Agents+route, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, "Authorization", "Bearer nobody")
		if shown.code != http.StatusUnauthorized || shown.Get("WWW-Authenticate") != "Bearer "+at+`, error="invalid_token"` {
			t.Errorf("%s with a token: %d %s", route, shown.code, shown.Get("WWW-Authenticate"))
		}
	}
	document := func(lines ...string) asked {
		t.Helper()
		return ask(t, http.MethodGet, g.Agents+"/.well-known/oauth-protected-resource/mcp/rec", "", lines...)
	}
	plain := document()
	for name, got := range map[string]asked{
		"plain": plain, "of a page": document("Origin", "https://page.example"), "at its public name": document("Host", "gate.example"),
		"with forwarded headers": document("Forwarded", "host=evil.example", "X-Forwarded-Host", "evil.example", "X-Forwarded-Proto", "http"),
	} {
		if got.code != http.StatusOK || got.body != plain.body || got.Get("Access-Control-Allow-Origin") != "*" || !strings.Contains(got.body, `"resource":"`+public+`/mcp/rec"`) {
			t.Errorf("%s: %d %v %s", name, got.code, got.Header, got.body)
		}
	}
	if got := document("Host", "evil.example"); got.code != http.StatusForbidden || got.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("at another name: %d %v", got.code, got.Header)
	}
	if got := ask(t, http.MethodGet, g.Agents+"/", ""); got.code != http.StatusOK || !strings.Contains(got.body, public+"/mcp") {
		t.Errorf("what the metadata names as its documentation: %d %s", got.code, got.body)
	}
	if got := ask(t, http.MethodGet, g.Admin+"/.well-known/oauth-protected-resource/mcp", ""); got.code != http.StatusNotFound {
		t.Errorf("the people's listener: %d", got.code)
	}

	// The one audience of the issuer's tokens is that of rec alone.
	token := issuer.token(t, "ann")
	for tool, routes := range map[string]map[string]int{"pay": {"/mcp/rec": http.StatusForbidden, "/mcp/other": http.StatusUnauthorized}, "rec__pay": {"/mcp": http.StatusUnauthorized}} {
		for route, code := range routes {
			body, lines := statelessCall(tool)
			got := ask(t, http.MethodPost, g.Agents+route, body, append(lines, "Authorization", "Bearer "+token)...)
			if got.code != code {
				t.Errorf("%s: %d %s", route, got.code, got.body)
			}
			want := `Bearer error="insufficient_scope", scope="media payments", resource_metadata="` + public + `/.well-known/oauth-protected-resource/mcp/rec"`
			if code == http.StatusForbidden && (got.Get("WWW-Authenticate") != want || !strings.Contains(got.body, "POLICY_DENIED")) {
				t.Errorf("%s: %s\n%s", route, got.Get("WWW-Authenticate"), got.body)
			}
		}
	}
	if got := ask(t, http.MethodGet, g.Admin+"/v1/approvals", "", "Authorization", "Bearer "+token); got.code != http.StatusUnauthorized {
		t.Errorf("people's interface with a token for rec: %d", got.code)
	}
	body, lines := statelessCall("pay")
	static := ask(t, http.MethodPost, g.Agents+"/mcp/rec", body, append(lines, "Authorization", "Bearer "+agentToken)...)
	if static.code != http.StatusOK || static.Get("WWW-Authenticate") != "" || !strings.Contains(static.body, "POLICY_DENIED") {
		t.Errorf("a configured token cannot get a scope: %d %v %s", static.code, static.Header, static.body)
	}
	if !strings.Contains(g.Log.String(), "a token is meant for another audience") {
		t.Errorf("the log does not say why:\n%s", g.Log)
	}
	wantRuns(t, rec, `{}`, 0)
	wantRuns(t, other, `{}`, 0)
}
