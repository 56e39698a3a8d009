package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/otlp"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// echoServer is an MCP server that shows whoever asks it with what it was asked: in results,
// errors, definitions and faults of HTTP. It is safe for concurrent use.
type echoServer struct {
	*httptest.Server
	issuer string

	mu  sync.Mutex // protects got
	got bytes.Buffer
}

func newEchoServer(t *testing.T, issuer string) *echoServer {
	e := &echoServer{issuer: issuer}
	e.Server = httptest.NewServer(e)
	t.Cleanup(e.Close)
	return e
}

func (e *echoServer) received() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.got.String()
}

func (e *echoServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	dump, _ := httputil.DumpRequest(r, true) // in place of which r.Body can be read
	e.mu.Lock()
	e.got.Write(dump)
	e.mu.Unlock()
	var m struct {
		ID     json.RawMessage
		Method string
		Params struct{ Name string }
	}
	_ = json.NewDecoder(r.Body).Decode(&m)
	given := r.Header.Get("Authorization")
	shown := given + " " + base64.StdEncoding.EncodeToString([]byte(given)) + " " + url.QueryEscape(given)
	tools := []any{}
	for _, name := range []string{"say", "fail", "fault", "garbage", "refuse"} {
		tools = append(tools, map[string]any{"name": name, "description": shown, "inputSchema": map[string]any{"type": "object"}})
	}
	answer := map[string]any{"jsonrpc": "2.0", "id": m.ID}
	switch m.Method + " " + m.Params.Name {
	case "initialize ":
		answer["result"] = map[string]any{"protocolVersion": "2025-11-25", "capabilities": map[string]any{"tools": struct{}{}}, "serverInfo": map[string]any{"name": shown, "version": shown}, "instructions": shown}
	case "tools/list ":
		answer["result"] = map[string]any{"tools": tools}
	case "tools/call say":
		answer["result"] = map[string]any{"content": []any{map[string]any{"type": "text", "text": shown}}, "structuredContent": map[string]any{shown: shown}}
	default:
		answer["error"] = map[string]any{"code": -32000, "message": shown, "data": shown}
	}
	switch {
	case r.URL.Path == "/.well-known/oauth-protected-resource/mcp":
		answer = map[string]any{"resource": e.URL + "/mcp", "authorization_servers": []string{e.issuer}}
	case given == "" || m.Params.Name == "refuse":
		w.Header().Set("WWW-Authenticate", fmt.Sprintf("Bearer error=%q, error_description=%q", "invalid_token", shown))
		http.Error(w, shown, http.StatusUnauthorized)
		return
	case r.Method != http.MethodPost || m.ID == nil:
		w.WriteHeader(map[bool]int{true: http.StatusMethodNotAllowed, false: http.StatusAccepted}[r.Method != http.MethodPost])
		return
	case m.Params.Name == "fault":
		http.Error(w, shown, http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if m.Params.Name == "garbage" {
		fmt.Fprint(w, shown)
		return
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// canaryIssuer signs the agents' tokens, and gives tokens for servers, each once: then it refuses, and
// repeats in its error what it was asked with.
type canaryIssuer struct {
	*httptest.Server
	key ed25519.PrivateKey

	mu    sync.Mutex // protects given
	given map[string]bool
}

func newCanaryIssuer(t *testing.T) *canaryIssuer {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i := &canaryIssuer{key: private, given: map[string]bool{}}
	mux := http.NewServeMux()
	i.Server = httptest.NewServer(mux)
	t.Cleanup(i.Close)
	says := func(v any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(v)
		}
	}
	mux.HandleFunc("/.well-known/oauth-authorization-server", says(map[string]any{
		"issuer": i.URL, "jwks_uri": i.URL + "/keys", "authorization_endpoint": i.URL + "/authorize", "token_endpoint": i.URL + "/token",
		"response_types_supported": []string{"code"}, "code_challenge_methods_supported": []string{"S256"}, "token_endpoint_auth_methods_supported": []string{"client_secret_post"},
	}))
	mux.HandleFunc("/keys", says(map[string]any{"keys": []any{map[string]string{"kty": "OKP", "crv": "Ed25519", "kid": "1", "alg": "EdDSA", "x": base64.RawURLEncoding.EncodeToString(public)}}}))
	mux.HandleFunc("/authorize", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		http.Redirect(w, r, q.Get("redirect_uri")+"?"+url.Values{"code": {"canary-code"}, "state": {q.Get("state")}}.Encode(), http.StatusFound)
	})
	mux.HandleFunc("/token", i.issue)
	return i
}

func (i *canaryIssuer) issue(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	token, kind := map[string]any{"token_type": "Bearer", "expires_in": 3600}, r.PostForm.Get("grant_type")
	switch kind {
	case "client_credentials":
		token["access_token"] = "canary-client-token"
	case "authorization_code":
		token["access_token"], token["refresh_token"] = "canary-oauth-access", "canary-oauth-refresh"
	default:
		subject := "ann"
		if payload, _ := base64.RawURLEncoding.DecodeString(strings.Split(r.PostForm.Get("subject_token")+"..", ".")[1]); bytes.Contains(payload, []byte("bob")) {
			subject = "bob"
		}
		kind += subject
		token["access_token"], token["issued_token_type"] = "canary-exchange-"+subject, "urn:ietf:params:oauth:token-type:access_token"
	}
	w.Header().Set("Content-Type", "application/json")
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.given[kind] || kind == "refresh_tokenann" {
		w.WriteHeader(http.StatusBadRequest)
		token = map[string]any{"error": "invalid_grant " + r.PostForm.Encode(), "error_description": r.PostForm.Encode(), "error_uri": r.PostForm.Encode()}
	}
	i.given[kind] = true
	_ = json.NewEncoder(w).Encode(token)
}

// token returns an access token of a person for the gate.
func (i *canaryIssuer) token(person string) string { return i.tokenFor(person, "gate") }

// tokenFor returns an access token of a person for an audience.
func (i *canaryIssuer) tokenFor(person, audience string) string {
	part := func(members map[string]any) string {
		text, _ := json.Marshal(members) // texts and numbers alone
		return base64.RawURLEncoding.EncodeToString(text)
	}
	now := time.Now()
	signed := part(map[string]any{"alg": "EdDSA", "kid": "1", "typ": "at+jwt"}) + "." + part(map[string]any{
		"iss": i.URL, "sub": person, "aud": audience, "client_id": "agent", "jti": "canary-" + person, "iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
	})
	return signed + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(i.key, []byte(signed)))
}

// canaryProgram is a credential program that talks too much.
const canaryProgram = `who=$(sed 's/.*"subject":"\([a-z]*\)".*/\1/')
echo "the token of $who is canary-command-$who" >&2
echo '{"token":"canary-command-'$who'"}'
`

// oneBrowser is a browser on this machine, which sends Secure cookies over HTTP there.
type oneBrowser map[string]string

// SetCookies implements http.CookieJar.
func (b oneBrowser) SetCookies(_ *url.URL, cookies []*http.Cookie) {
	for _, c := range cookies {
		b[c.Name] = c.Value
	}
}

// Cookies implements http.CookieJar.
func (b oneBrowser) Cookies(*url.URL) (all []*http.Cookie) {
	for name, value := range b {
		all = append(all, &http.Cookie{Name: name, Value: value})
	}
	return all
}

// pages signs a person in, has the person connect to a server, and returns what the person has seen.
func pages(t *testing.T, console, token, server string) string {
	t.Helper()
	var seen strings.Builder
	client := &http.Client{Jar: oneBrowser{}, Timeout: patience}
	show := func(res *http.Response, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		fmt.Fprintf(&seen, "%v %v %s", res.Request.URL, res.Header, text)
		return string(text)
	}
	csrf := func(text string) string {
		t.Helper()
		found := regexp.MustCompile(`name="csrf" value="([^"]*)"`).FindStringSubmatch(text)
		if found == nil {
			t.Fatalf("no form: %s", text)
		}
		return found[1]
	}
	text := show(client.Get(console + "/console/login"))
	show(client.PostForm(console+"/console/login", url.Values{"csrf": {csrf(text)}, "token": {token}}))
	text = show(client.Get(console + "/connections/" + server))
	// The browser ends at the page of the server, by way of the authorization server and the callback.
	if text = show(client.PostForm(console+"/connections/"+server, url.Values{"csrf": {csrf(text)}})); !strings.Contains(text, ">connected<") {
		t.Errorf("the page after connecting: %s", text)
	}
	for _, path := range []string{"/connections", "/console/", "/console/approvals", "/v1/connections"} {
		show(client.Get(console + path))
	}
	return strings.ReplaceAll(seen.String(), "code=canary-code", "") // the browser comes back with it
}

// unpacked returns all that is in a support bundle.
func unpacked(t *testing.T, file string) string {
	t.Helper()
	packed, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for r := tar.NewReader(plain); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all.String()
		} else if err != nil {
			t.Fatal(err)
		}
		all.WriteString(h.Name + "\n")
		if _, err := io.Copy(&all, r); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCredentialsStaySecret: servers repeat the credentials that they are asked with, and so do
// authorization servers and a credential program. No credential of any type is in what toolgate
// writes, shows, exports or leaves behind, nor with another server or another person.
func TestCredentialsStaySecret(t *testing.T) {
	t.Parallel()
	as, collector, dir := newCanaryIssuer(t), otlp.New(t), t.TempDir()
	address, admin := program.FreeAddress(t), program.FreeAddress(t)
	types := map[string]string{
		"static": `{"type": "static", "headers": {"Authorization": "Bearer canary-static-token"}}`,
		"client": `{"type": "client_credentials", "token_url": "` + as.URL + `/token", "client_id": "gate", "client_secret": "canary-client-secret"}`,
		"oauth":  `{"type": "oauth", "client_id": "gate", "client_secret": "canary-oauth-secret"}`,
		"swap":   `{"type": "exchange", "token_url": "` + as.URL + `/token", "client_id": "gate", "client_secret": "canary-exchange-secret"}`,
		"run":    `{"type": "command", "command": ["sh", "` + filepath.Join(dir, "token.sh") + `"]}`,
	}
	servers, settings, echoes := "", "", map[string]*echoServer{}
	for name, credential := range types {
		echoes[name] = newEchoServer(t, as.URL)
		servers += fmt.Sprintf(`, %q: {"url": "%s/mcp"}`, name, echoes[name].URL)
		settings += fmt.Sprintf(`, %q: {"pin": false, "credential": %s}`, name, credential)
	}
	write(t, dir, map[string]string{"token.sh": canaryProgram, "policy/p.rego": allowAll, "mcp.json": fmt.Sprintf(`{"mcpServers": {%s}, "toolgate": {
		"policy": {"path": "policy"}, "limits": {"default": "off"}, "listen": %q, "admin": %q, "servers": {%s},
		"identity": {"jwt": [{"issuer": %q, "audience": ["gate"]}]}, "telemetry": {"endpoint": %q, "metrics": {"interval": "1s"}}}}`,
		servers[2:], address, admin, settings[2:], as.URL, collector.URL)})
	p := start(t, dir, "serve", "--log-level", "trace")
	ready(t, admin)

	people := map[string]string{"ann": as.token("ann"), "bob": as.token("bob")}
	secrets := []string{"canary-static-token", "canary-client-token", "canary-client-secret", "canary-oauth-access", "canary-oauth-refresh", "canary-oauth-secret", "canary-code",
		"canary-exchange-ann", "canary-exchange-bob", "canary-exchange-secret", "canary-command-ann", "canary-command-bob", people["ann"], people["bob"]}
	holds := func(what, text string, but ...string) {
		t.Helper()
		for _, secret := range secrets {
			for _, form := range secretForms(secret) {
				if !slices.Contains(but, secret) && strings.Contains(text, form) {
					t.Errorf("%s: %s as %s in %.4000s", what, secret, form, text)
					return
				}
			}
		}
	}
	holds("pages", pages(t, "http://"+admin, people["ann"], "oauth"))
	calls := 0
	call := func(name, tool, person string) string {
		t.Helper()
		calls++
		res, text := postDoor(t, "http://"+address+"/v1/rpc", people[person], fmt.Appendf(nil, `{"jsonrpc":"2.0","id":"1","method":"tools/call","params":{"name":"%s__%s","arguments":{}}}`, name, tool))
		got := fmt.Sprintf("%v %s", res.Header, text)
		holds(tool+" of "+name+" for "+person, got)
		return got
	}
	if got := call("oauth", "say", "bob"); !strings.Contains(got, "CONNECTION_REQUIRED") && !strings.Contains(got, "TOOL_NOT_FOUND") {
		t.Errorf("bob has not connected: %s", got)
	}
	for _, tools := range [][]string{{"say", "fail", "fault", "garbage"}, {"refuse", "refuse", "say"}} {
		for name := range types {
			for person, token := range people {
				if tools[0] == "say" && (name != "oauth" || person == "ann") {
					program.Await(t, name+" answers "+person, func() bool { return strings.Contains(call(name, "say", person), "[redacted] ") })
				}
				for _, tool := range tools {
					call(name, tool, person)
				}
				_, list := toolgate(t, dir, "tool", "list", "--addr", "http://"+address, "--token", token, "-o", "json")
				holds("the list for "+person, list)
			}
		}
	}
	for name, own := range map[string][]string{
		"static": {"canary-static-token"}, "client": {"canary-client-token"}, "oauth": {"canary-oauth-access"},
		"swap": {"canary-exchange-ann", "canary-exchange-bob"}, "run": {"canary-command-ann", "canary-command-bob"},
	} {
		got := echoes[name].received()
		holds("what server "+name+" received", got, own...)
		for _, token := range own {
			if !strings.Contains(got, "Bearer "+token) {
				t.Errorf("server %s never received %s", name, token)
			}
		}
	}

	program.Await(t, "spans and metrics are exported", func() bool { return len(collector.Spans()) >= calls && collector.Metric("toolgate_calls_total") != nil })
	holds("spans and metrics", string(collector.Raw()))
	for _, path := range []string{"/metrics", "/readyz?verbose"} {
		_, text, err := visit("http://"+admin+path, people["ann"])
		if err != nil || text == "" {
			t.Errorf("%s: %v", path, err)
		}
		holds(path, text)
	}
	p.mu.Lock()
	log := p.out.String()
	p.mu.Unlock()
	holds("log", log)
	write(t, dir, map[string]string{"serve.log": log})
	for _, command := range [][]string{{"support-bundle", "--log", "serve.log", "bundle.tar.gz"}, {"audit", "tail", "-o", "json"}, {"doctor", "-o", "json"}, {"connection", "list"}} {
		_, out := toolgate(t, dir, command...)
		holds(strings.Join(command, " "), out)
	}
	holds("support bundle", unpacked(t, filepath.Join(dir, "bundle.tar.gz")))
	p.signal(syscall.SIGABRT)
	p.ends(2)
	crashed := false
	err := fs.WalkDir(os.DirFS(filepath.Join(dir, ".toolgate")), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(filepath.Join(dir, ".toolgate", path))
		holds(path, string(text))
		crashed = crashed || strings.HasPrefix(path, "crash/") && bytes.Contains(text, []byte("SIGABRT"))
		return err
	})
	if err != nil || !crashed {
		t.Errorf("the stacks of the crash are kept: %v, %v", crashed, err)
	}
	holds("log", p.out.String())
}
