package peers_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/authority"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
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

// TestCertificateNamesTheCaller: at the built program, a client with a certificate needs no token,
// and one whose certificate names nobody gets in as nobody.
func TestCertificateNamesTheCaller(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	a, err := authority.New("tests")
	if err != nil {
		t.Fatal(err)
	}
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "look"}}})
	dir := configure(t, setup{servers: []server{httpOf("rec", rec, shared())}, policy: `visible if input.tool
allow contains {"rule": "agents"} if input.principal.subject == "agent-c"`})
	for name, of := range map[string]string{"gate": "127.0.0.1", "agent": "agent.example", "stranger": "stranger.example"} {
		if err := a.Write(filepath.Join(dir, name), time.Hour, of); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dir, "ca.pem"), string(a.PEM()))
	path := filepath.Join(dir, "mcp.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, strings.Replace(strings.Replace(string(text), `"toolgate": {`, `"toolgate": {"tls": {"cert": "gate.crt", "key": "gate.key", "client_ca": "ca.pem"},`, 1),
		`"identity": {`, `"identity": {"mtls": [{"dns": "agent.example", "as": "agent-c", "roles": ["agent"]}], `, 1))
	agents := program.FreeAddress(t)
	g := program.Launch(t, exec.Command(program.Toolgate(t), "serve", "--config", path, "--listen", agents, "--admin", program.FreeAddress(t)))
	if !g.Await(t, "the gate serves the tool", func() bool { return strings.Contains(g.Log.String(), "1 tool") }) {
		t.Fatalf("the gate ended: %s", g.Log)
	}
	call := func(name string) (int, string) {
		t.Helper()
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key"))
		if err != nil {
			t.Fatal(err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(a.PEM())
		client := http.Client{Timeout: timeout, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}, DisableKeepAlives: true}}
		body, lines := statelessCall("rec__look")
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+agents+"/mcp", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(lines); i += 2 {
			r.Header.Set(lines[i], lines[i+1])
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		res, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		answer, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(answer)
	}
	if code, answer := call("agent"); code != http.StatusOK || strings.Contains(answer, `"error"`) || strings.Contains(answer, `"isError":true`) {
		t.Errorf("the agent: %d %s", code, answer)
	}
	if code, answer := call("stranger"); code != http.StatusUnauthorized {
		t.Errorf("a certificate that names nobody: %d %s", code, answer)
	}
	wantRuns(t, rec, `{}`, 1)
}
