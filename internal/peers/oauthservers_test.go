package peers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/modelcontextprotocol/go-sdk/auth"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// oauthServer is a server made with an SDK and what that SDK has for OAuth. Each of its answers names
// the account of the token, and for how long the token is good: 5 s is the first of a sign-in.
type oauthServer struct {
	name     string
	start    func(t *testing.T, issuer string) (url string)
	consents bool   // it trusts the issuer, which asks for consent, and else has an authorization server of its own
	proxies  bool   // it asks for consent too, before
	keeps    bool   // it revokes nothing of clients without a secret: the Python SDK requires one there
	named    bool   // its lists name the account
	touches  bool   // touch changes a resource for the listeners of one account
	client   string // that the issuer knows, "" = toolgate's metadata document at the issuer, and else it registers itself
}

// people have accounts at the servers. Their tokens of the gate are those of tokenOf.
var people = []string{"ann", "bob"}

var oauthServers = []oauthServer{
	{name: "typescript-1", start: scriptOf("servers/oauth.mjs", "5"), named: true, touches: true},
	{name: "typescript-2", start: scriptOf("servers/resource.mjs", ""), consents: true, named: true, client: "toolgate"},
	{name: "python-1", start: pythonAccounts("mcp1", "sdk")},
	{name: "python-2", start: pythonAccounts("mcp2", "sdk")},
	{name: "fastmcp", start: pythonAccounts("mcp2", "fastmcp")},
	{name: "fastmcp-tasks", start: pythonAccounts("tasks", "tasks")},
	{name: "fastmcp-proxy", start: pythonAccounts("mcp2", "proxy"), consents: true, proxies: true, keeps: true},
	{name: "go-sdk", start: openGoAccounts(false), consents: true, named: true, touches: true},
	{name: "go-sdk-stateless", start: openGoAccounts(true), consents: true, named: true, touches: true},
}

// scriptOf starts a script of testdata/npm with a port and an argument, "" for the issuer.
func scriptOf(script, argument string) func(*testing.T, string) string {
	return func(t *testing.T, issuer string) string {
		address := program.FreeAddress(t)
		_, port, _ := net.SplitHostPort(address) // an address that was listened at
		if argument != "" {
			issuer = argument
		}
		program.Launch(t, exec.Command(requirePart(t, "node"), filepath.Join("..", "..", "testdata", "npm", script), port, issuer))
		return "http://" + address + "/mcp"
	}
}

// pythonAccounts starts testdata/python/oauth.py, of the kinds keycloak and proxy with the issuer.
func pythonAccounts(kit, kind string) func(*testing.T, string) string {
	return func(t *testing.T, issuer string) string {
		more := "5"
		if kind == "keycloak" || kind == "proxy" {
			more = issuer
		}
		address := program.FreeAddress(t)
		_, port, _ := net.SplitHostPort(address) // an address that was listened at
		cmd := exec.Command(python(t, kit), pythonScript(t, "oauth.py"), kind, port, more)
		cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "FASTMCP_CHECK_FOR_UPDATES=off")
		program.Launch(t, cmd)
		return "http://" + address + "/mcp"
	}
}

// goAccounts is a server of the official Go SDK with one sdk.Server for each account. It is safe for
// concurrent use.
type goAccounts struct {
	keys     *oidc.RemoteKeySet
	resource string
	servers  sync.Map // :: account ⇒ its *sdk.Server
}

// openGoAccounts starts one that trusts the issuer.
func openGoAccounts(stateless bool) func(*testing.T, string) string {
	return func(t *testing.T, issuer string) string {
		const metadata = "/.well-known/oauth-protected-resource"
		a := &goAccounts{keys: oidc.NewRemoteKeySet(context.Background(), issuer+"/jwks")}
		mux := http.NewServeMux()
		srv := httptest.NewServer(mux)
		t.Cleanup(srv.Close)
		t.Cleanup(srv.CloseClientConnections)
		a.resource = srv.URL + "/mcp"
		mux.Handle(metadata, auth.ProtectedResourceMetadataHandler(&oauthex.ProtectedResourceMetadata{Resource: a.resource, AuthorizationServers: []string{issuer}}))
		require := auth.RequireBearerToken(a.verify, &auth.RequireBearerTokenOptions{ResourceMetadataURL: srv.URL + metadata, Scopes: []string{"media"}})
		mux.Handle("/mcp", require(sdk.NewStreamableHTTPHandler(a.serverOf, &sdk.StreamableHTTPOptions{Stateless: stateless})))
		return a.resource
	}
}

// verify is an auth.TokenVerifier.
func (a *goAccounts) verify(ctx context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
	payload, err := a.keys.VerifySignature(ctx, token)
	var c struct {
		Sub, Aud, Scope string
		Iat, Exp        int64
	}
	if err != nil || json.Unmarshal(payload, &c) != nil || c.Aud != a.resource {
		return nil, fmt.Errorf("%w: it is not for %s", auth.ErrInvalidToken, a.resource)
	}
	data := fmt.Sprintf("data of %s, token for %d s", c.Sub, c.Exp-c.Iat)
	return &auth.TokenInfo{UserID: c.Sub, Scopes: strings.Fields(c.Scope), Expiration: time.Unix(c.Exp, 0), Extra: map[string]any{"data": data}}, nil
}

// serverOf returns the server of the account whose token a request has.
func (a *goAccounts) serverOf(r *http.Request) *sdk.Server {
	account := auth.TokenInfoFromContext(r.Context()).UserID
	made, _ := a.servers.LoadOrStore(account, newGoAccount(account))
	return made.(*sdk.Server)
}

func newGoAccount(account string) *sdk.Server {
	about, text := "what there is of "+account, func(extra *sdk.RequestExtra) string { return extra.TokenInfo.Extra["data"].(string) }
	s := sdk.NewServer(&sdk.Implementation{Name: "accounts", Version: "1"}, &sdk.ServerOptions{
		SubscribeHandler:   func(context.Context, *sdk.SubscribeRequest) error { return nil },
		UnsubscribeHandler: func(context.Context, *sdk.UnsubscribeRequest) error { return nil },
		CompletionHandler: func(_ context.Context, r *sdk.CompleteRequest) (*sdk.CompleteResult, error) {
			return &sdk.CompleteResult{Completion: sdk.CompletionResultDetails{Values: []string{text(r.Extra)}}}, nil
		},
	})
	s.AddTool(&sdk.Tool{Name: "mine", InputSchema: map[string]any{"type": "object"}}, func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text(r.Extra)}}}, nil
	})
	sdk.AddTool(s, &sdk.Tool{Name: "touch"}, func(ctx context.Context, _ *sdk.CallToolRequest, of sdk.ResourceUpdatedNotificationParams) (*sdk.CallToolResult, any, error) {
		return &sdk.CallToolResult{}, nil, s.ResourceUpdated(ctx, &of)
	})
	s.AddResource(&sdk.Resource{Name: "mine", URI: "data://mine", Description: about}, func(_ context.Context, r *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
		return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: r.Params.URI, Text: text(r.Extra)}}}, nil
	})
	s.AddPrompt(&sdk.Prompt{Name: "mine", Description: about, Arguments: []*sdk.PromptArgument{{Name: "topic"}}}, func(_ context.Context, r *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
		return &sdk.GetPromptResult{Messages: []*sdk.PromptMessage{{Role: "user", Content: &sdk.TextContent{Text: text(r.Extra)}}}}, nil
	})
	return s
}

// accountActs are requests to a server of oauthServers.
var accountActs = []struct {
	method, name, members string
	list                  bool
}{
	{"tools/list", "", ``, true}, {"prompts/list", "", ``, true}, {"resources/list", "", ``, true}, {"resources/templates/list", "", ``, true},
	{"tools/call", "mine", `"name":"mine","arguments":{}`, false},
	{"prompts/get", "mine", `"name":"mine","arguments":{"topic":"x"}`, false},
	{"resources/read", "data://mine", `"uri":"data://mine"`, false},
	{"completion/complete", "", `"ref":{"type":"ref/prompt","name":"mine"},"argument":{"name":"topic","value":""}`, false},
}

// asker sends a request to a server and returns the answer.
type asker func(method, name, members string) string

// asks returns an asker with a token of the gate, at a revision.
func (g *gate) asks(t *testing.T, token, server, revision string) asker {
	t.Helper()
	address := g.Agents + "/mcp/" + server
	if revision == sessionRevision {
		session := openHTTP(t, address, token)
		return func(method, _, members string) string { return string(session.exchange(t, request(method, members))) }
	}
	return func(method, name, members string) string {
		lines := []string{"Authorization", "Bearer " + token, "Mcp-Protocol-Version", revision, "Mcp-Method", method}
		if name != "" {
			lines = append(lines, "Mcp-Name", name)
		}
		if members != "" {
			members += ","
		}
		return ask(t, http.MethodPost, address, string(request(method, members+statelessMeta(`{"extensions":{"io.modelcontextprotocol/tasks":{}},"elicitation":{}}`))), lines...).body
	}
}

func request(method, members string) []byte {
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"method":%q,"params":{%s}}`, method, members)
}

// documents has what a gate serves at its public address.
type documents struct {
	gate atomic.Pointer[string] // its address
	read atomic.Int64
}

// ServeHTTP implements http.Handler.
func (d *documents) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.read.Add(1)
	to, err := url.Parse(*d.gate.Load())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}).ServeHTTP(w, r)
}

// TestServersWithOAuth: two people connect to servers of real SDKs, with what these have for OAuth.
// Every answer, list and notification that reaches one of them is of his own account, at both kinds of
// revisions, after a kill and with refreshed tokens. Somebody who is not connected gets nothing.
func TestServersWithOAuth(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	documents := &documents{}
	front := httptest.NewServer(documents)
	t.Cleanup(front.Close)
	issuer := openAuthorizationServer(t, "5", front.URL)
	var entries []server
	for _, s := range oauthServers {
		credential := map[string]any{"type": "oauth"}
		if s.client != "" {
			credential["client_id"] = s.client
		}
		entries = append(entries, server{s.name, map[string]any{"url": s.start(t, issuer)}, map[string]any{"credential": credential}})
	}
	for _, e := range entries {
		address := strings.TrimSuffix(strings.TrimPrefix(e.entry["url"].(string), "http://"), "/mcp")
		program.Await(t, e.name+" listens", func() bool { return program.Listens(address) })
	}
	dir := configure(t, setup{agents: 3, servers: entries, limits: `{"default": "100000/1m", "refused": "100000/1m"}`, policy: allowAll + "\n\noperates if input.principal.subject == \"agent-0\""})
	path := filepath.Join(dir, "mcp.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, strings.Replace(string(text), `"toolgate": {`, `"toolgate": {"public_url": "https://gate.example",`, 1))
	g := serveReady(t, dir)
	documents.gate.Store(&g.Agents)
	for i, person := range people {
		for _, s := range oauthServers {
			g.connect(t, s.name, tokenOf(i), func(v *browserSession) {
				if s.proxies {
					v.send("", "action", "approve")
				}
				if v.send("", "login", person, "password", "any"); s.consents {
					v.send("")
				}
			})
		}
	}
	connected := time.Now()
	if documents.read.Load() == 0 {
		t.Error("the issuer has not read toolgate's metadata document")
	}
	own := func() {
		t.Helper()
		for _, s := range oauthServers {
			for i, person := range people {
				for _, revision := range []string{sessionRevision, statelessRevision} {
					seesOnly(t, g.asks(t, tokenOf(i), s.name, revision), s, revision, person, people[1-i])
				}
			}
		}
	}
	own()
	for _, s := range oauthServers {
		for _, revision := range []string{sessionRevision, statelessRevision} {
			seesNothing(t, g.asks(t, tokenOf(2), s.name, revision), s.name+", "+revision)
			if s.touches {
				g.hearsOnly(t, s, revision)
			}
		}
	}
	g.ownsTasks(t, "typescript-1")
	g.ownsTasksThatAsk(t, "fastmcp-tasks")
	g.Kill(t)
	g.Wait(t)
	g = serveReady(t, dir)
	own()
	program.Await(t, "the first access tokens have ended", func() bool { return time.Since(connected) > 6*time.Second })
	own()
	for _, s := range oauthServers {
		for i, person := range people {
			got := g.asks(t, tokenOf(i), s.name, statelessRevision)("tools/call", "mine", `"name":"mine","arguments":{}`)
			if !strings.Contains(got, "data of "+person) || strings.Contains(got, "token for 5 s") {
				t.Errorf("%s: %s has not refreshed: %s", s.name, person, got)
			}
		}
	}
	g.disconnect(t, tokenOf(0))
	for _, s := range oauthServers {
		seesNothing(t, g.asks(t, tokenOf(0), s.name, statelessRevision), s.name+", disconnected")
		seesOnly(t, g.asks(t, tokenOf(1), s.name, statelessRevision), s, statelessRevision, "bob", "ann")
	}
}

// disconnect ends all connections of a person, whose tokens are revoked.
func (g *gate) disconnect(t *testing.T, token string) {
	t.Helper()
	authorized := []string{"Authorization", "Bearer " + token}
	var list struct{ Connections []struct{ ID string } }
	if err := json.Unmarshal([]byte(ask(t, http.MethodGet, g.Admin+"/v1/connections", "", authorized...).body), &list); err != nil || len(list.Connections) != len(oauthServers) {
		t.Fatalf("connections: %+v, %v", list, err)
	}
	for _, c := range list.Connections {
		if got := ask(t, http.MethodDelete, g.Admin+"/v1/connections/"+c.ID, "", authorized...); got.code != http.StatusOK {
			t.Errorf("disconnecting: %d %s", got.code, got.body)
		}
	}
	for _, s := range oauthServers {
		if kept := strings.Contains(g.Log.String(), "could not be revoked: server="+s.name+" "); kept != s.keeps {
			t.Errorf("%s: the tokens are not revoked: %v, want %v\n%s", s.name, kept, s.keeps, g.Log)
		}
	}
}

// seesOnly holds that all answers to a person name the person, and none another one.
func seesOnly(t *testing.T, asks asker, s oauthServer, revision, person, other string) {
	t.Helper()
	for _, act := range accountActs {
		var got string
		want := !act.list || s.named && (act.method == "prompts/list" || act.method == "resources/list")
		fits := func() bool {
			if got = asks(act.method, act.name, act.members); strings.Contains(got, " of "+other) {
				t.Fatalf("%s, %s, %s: %s for %s", s.name, revision, act.method, got, person)
			}
			return !want || strings.Contains(got, " of "+person)
		}
		if act.list { // it may not be known at once
			program.Await(t, s.name+": "+act.method+" of "+person, fits)
		} else if !fits() {
			t.Errorf("%s, %s, %s: %s for %s", s.name, revision, act.method, got, person)
		}
	}
}

// seesNothing holds that somebody who is not connected is asked to connect, and sees no account.
func seesNothing(t *testing.T, asks asker, at string) {
	t.Helper()
	for _, act := range accountActs {
		got := asks(act.method, act.name, act.members)
		if !act.list && !strings.Contains(got, "CONNECTION_REQUIRED") || strings.Contains(got, " of ann") || strings.Contains(got, " of bob") {
			t.Errorf("%s, %s: %s for somebody who is not connected", at, act.method, got)
		}
	}
}

// hearsOnly holds that what changes for one person is told to nobody else who listens for it.
func (g *gate) hearsOnly(t *testing.T, s oauthServer, revision string) {
	t.Helper()
	changes := []struct {
		who int
		uri string
	}{{0, "data://ann/0"}, {1, "data://bob/1"}, {0, "data://ann/2"}}
	address := g.Agents + "/mcp/" + s.name
	var asks [2]asker
	var heard [2]*listener
	for i := range heard {
		token := tokenOf(i)
		if revision == statelessRevision {
			asks[i], heard[i] = g.asks(t, token, s.name, revision), listenAs(t, token, address, `{"resourceSubscriptions":["data://ann/0","data://bob/1","data://ann/2"]}`)
			continue
		}
		session := openHTTP(t, address, token)
		asks[i] = func(method, _, members string) string { return string(session.exchange(t, request(method, members))) }
		for _, change := range changes {
			if got := asks[i]("resources/subscribe", "", fmt.Sprintf(`"uri":%q`, change.uri)); !strings.Contains(got, `"result"`) {
				t.Fatalf("%s: subscribing: %s", s.name, got)
			}
		}
		heard[i] = openEvents(t, http.MethodGet, address, "", map[string]string{"Authorization": "Bearer " + token, "Mcp-Session-Id": session.session, "Mcp-Protocol-Version": revision})
	}
	for _, change := range changes {
		person := people[change.who]
		program.Await(t, fmt.Sprintf("%s, %s: %s hears of %s", s.name, revision, person, change.uri), func() bool {
			asks[change.who]("tools/call", "touch", fmt.Sprintf(`"name":"touch","arguments":{"uri":%q}`, change.uri))
			for {
				select {
				case event := <-heard[change.who].events:
					updated := strings.Contains(event, "notifications/resources/updated")
					if updated && strings.Contains(event, change.uri) {
						return true
					} else if updated && !strings.Contains(event, "data://"+person) {
						t.Errorf("%s, %s: %s hears %s", s.name, revision, person, event)
					}
				default:
					return false
				}
			}
		})
	}
	for _, l := range heard {
		l.stop()
	}
}

// ownsTasks holds that a person's task is nobody else's.
func (g *gate) ownsTasks(t *testing.T, server string) {
	t.Helper()
	address := g.Agents + "/mcp/" + server
	ann, bob := openHTTP(t, address, tokenOf(0)), openHTTP(t, address, tokenOf(1))
	begun, _ := splitAnswer(ann.exchange(t, request("tools/call", `"name":"work","arguments":{},"task":{"ttl":60000}`)))
	task, _ := jsonrpc.Get(begun, "task")
	id := textAt(task, "taskId")
	of := fmt.Sprintf(`"taskId":%q`, id)
	for _, method := range []string{"tasks/get", "tasks/result", "tasks/cancel", "tasks/list"} {
		got := string(bob.exchange(t, request(method, of)))
		if id == "" || method == "tasks/list" && strings.Contains(got, id) || method != "tasks/list" && !strings.Contains(got, `"error"`) {
			t.Errorf("%s of ann's task %q by bob: %s", method, id, got)
		}
	}
	if got := string(ann.exchange(t, request("tasks/result", of))); !strings.Contains(got, "data of ann") {
		t.Errorf("ann's result: %s", got)
	}
}

// ownsTasksThatAsk is ownsTasks for the tasks of MCP 2026-07-28, extension io.modelcontextprotocol/tasks.
// Each person's task waits for an answer while the other person tries to get, to answer and to cancel it.
func (g *gate) ownsTasksThatAsk(t *testing.T, server string) {
	t.Helper()
	var asks [2]asker
	var ids, of, answer [2]string
	for i, person := range people {
		asks[i] = g.asks(t, tokenOf(i), server, statelessRevision)
		begun, _ := splitAnswer([]byte(asks[i]("tools/call", "work", `"name":"work","arguments":{}`)))
		ids[i] = textAt(begun, "taskId")
		of[i] = fmt.Sprintf(`"taskId":%q`, ids[i])
		program.Await(t, person+"'s task asks", func() bool {
			state, _ := splitAnswer([]byte(asks[i]("tasks/get", ids[i], of[i])))
			questions, _ := jsonrpc.Get(state, "inputRequests")
			for key := range jsonrpc.Members(questions) {
				answer[i] = fmt.Sprintf(`,"inputResponses":{%q:{"action":"accept","content":{}}}`, key)
			}
			return answer[i] != ""
		})
	}
	for i, person := range people {
		for method, more := range map[string]string{"tasks/get": "", "tasks/update": answer[1-i], "tasks/cancel": ""} {
			if got := asks[i](method, ids[1-i], of[1-i]+more); !strings.Contains(got, "no such task") {
				t.Errorf("%s of %s's task by %s: %s", method, people[1-i], person, got)
			}
		}
	}
	for i, person := range people {
		if got := asks[i]("tasks/get", ids[i], of[i]); !strings.Contains(got, `"input_required"`) {
			t.Errorf("%s's task after what the other one tried: %s", person, got)
		}
		asks[i]("tasks/update", ids[i], of[i]+answer[i])
		program.Await(t, person+"'s task is done", func() bool { return strings.Contains(asks[i]("tasks/get", ids[i], of[i]), "data of "+person) })
	}
}

// TestExampleServerWithOAuth: the example server of the TypeScript SDK with its demo authorization server
// signs everybody in as one user, with a token for each sign-in. Every request of a person comes with
// that person's token.
func TestExampleServerWithOAuth(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	script := requirePart(t, "@modelcontextprotocol/sdk/dist/esm/examples/server/simpleStreamableHttp.js")
	at, issuer := program.FreeAddress(t), program.FreeAddress(t)
	_, port, _ := net.SplitHostPort(at)           // addresses that were listened at
	_, issuerPort, _ := net.SplitHostPort(issuer) // the same
	cmd := exec.Command(requirePart(t, "node"), script, "--oauth", "--oauth-strict")
	cmd.Env = append(os.Environ(), "MCP_PORT="+port, "MCP_AUTH_PORT="+issuerPort)
	p := program.Launch(t, cmd)
	p.Await(t, "the example listens", func() bool { return program.Listens(at) && program.Listens(issuer) })
	g := serveReady(t, configure(t, setup{agents: 2, policy: allowAll + "\n\noperates := true", servers: []server{
		{"example", map[string]any{"url": "http://localhost:" + port + "/mcp"}, map[string]any{"credential": map[string]any{"type": "oauth"}}},
	}}))
	for i := range people {
		g.connect(t, "example", tokenOf(i), func(*browserSession) {})
	}
	shown := regexp.MustCompile(`(?s)Authenticated user: \{\s*token: '([^']+)'`)
	var tokens [2][]string
	for range 2 {
		for i, person := range people {
			for _, revision := range []string{sessionRevision, statelessRevision} {
				before := len(p.Out.String())
				asks := g.asks(t, tokenOf(i), "example", revision)
				program.Await(t, "the server greets "+person, func() bool {
					return strings.Contains(asks("tools/call", "greet", fmt.Sprintf(`"name":"greet","arguments":{"name":%q}`, person)), "Hello, "+person)
				})
				for _, one := range shown.FindAllStringSubmatch(p.Out.String()[before:], -1) {
					tokens[i] = append(tokens[i], one[1])
				}
			}
		}
	}
	if ann, bob := slices.Compact(tokens[0]), slices.Compact(tokens[1]); len(ann) != 1 || len(bob) != 1 || ann[0] == bob[0] {
		t.Errorf("ann's calls came with %d tokens and bob's with %d, or with the same", len(ann), len(bob))
	}
}
