package peers_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// scopedPay lets a token pay that has the scope payments, and says so to the others.
const scopedPay = `visible if input.tool
allow contains {"rule": "may-call"} if input.tool
deny contains {"rule": "payments-missing", "reason": "the token may not pay", "scopes": ["payments"]} if {
	input.tool.name == "pay"
	not "payments" in input.principal.scopes
}`

// openAuthorizationServer starts a third-party authorization server and returns its issuer.
// The first access token of a sign-in is valid for some seconds, a refreshed one for 30. With an address
// it asks there for the metadata documents of clients.
func openAuthorizationServer(t *testing.T, seconds string, documents ...string) string {
	t.Helper()
	address := program.FreeAddress(t)
	launchProvider(t, "authorization.mjs", address, append([]string{seconds}, documents...)...)
	return "http://" + address
}

// guarded configures a gate that trusts an issuer by its name alone.
func guarded(t *testing.T, issuer, policy string, servers ...server) string {
	t.Helper()
	return trusting(t, fmt.Sprintf(`"jwt": [{"issuer": %q}], "scopes": ["media"]`, issuer), policy, servers...)
}

// trusting configures a gate with these members of identity.
func trusting(t *testing.T, identity, policy string, servers ...server) string {
	t.Helper()
	dir := configure(t, setup{servers: servers, policy: policy})
	path := filepath.Join(dir, "mcp.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, strings.Replace(string(text), `"identity": {`, `"identity": {`+identity+", ", 1))
	return dir
}

// pages takes browsers back from the authorization server.
func pages(t *testing.T) (redirect string, back <-chan string) {
	queries := make(chan string, 1)
	mux := http.NewServeMux() // browsers ask for an icon too
	mux.HandleFunc("/callback", func(_ http.ResponseWriter, r *http.Request) { queries <- r.URL.RawQuery })
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv.URL + "/callback", queries
}

// talking is a client program that says one JSON object a line.
type talking struct {
	*program.Process
	in  io.Writer
	out *bufio.Scanner
}

func talk(t *testing.T, cmd *exec.Cmd) *talking {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	reader, writer := io.Pipe()
	cmd.Stdout = writer
	c := &talking{program.Launch(t, cmd), in, bufio.NewScanner(reader)}
	c.out.Buffer(nil, 1<<20)
	t.Cleanup(func() { _ = reader.Close() })
	go func() { // ends with the program
		<-c.Exited
		_ = writer.Close()
	}()
	return c
}

// said is a line of authorize.mjs or authorize.py.
type said struct {
	Open, Error, Scope, Token, Refresh string
	Result                             json.RawMessage
	Expires                            float64 // when the client takes the token as expired, in seconds since 1970; 0 = it does not
}

func (c *talking) next(t *testing.T) (s said) {
	t.Helper()
	if !c.out.Scan() || json.Unmarshal(c.out.Bytes(), &s) != nil {
		t.Fatalf("the client ended or said %q\n%s", c.out.Text(), c.Log)
	}
	return s
}

func (c *talking) tell(t *testing.T, line string) {
	t.Helper()
	if _, err := fmt.Fprintln(c.in, line); err != nil {
		t.Fatalf("telling the client %q: %v\n%s", line, err, c.Log)
	}
}

// TestAddressIsAllThatAClientNeeds: both majors of the TypeScript SDK get from 401 to a governed
// call by themselves: metadata, registration, code with PKCE, consent, token, a step-up for
// a scope that the policy asks for, and a refresh. A client that registered itself did so for
// the scopes of the first challenge, so the server grants it no more; and major 1 refreshes
// in place of a step-up when it has a refresh token.
func TestAddressIsAllThatAClientNeeds(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	node, script := requirePart(t, "node"), filepath.Join("..", "..", "testdata", "npm", "authorize.mjs")
	issuer := openAuthorizationServer(t, "600")
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "pay"}, {Name: "look"}}})
	g := serveReady(t, guarded(t, issuer, scopedPay, httpOf("rec", rec, shared())))
	for _, tt := range []struct{ major, route, prefix, client string }{
		{"1", "/mcp", "rec__", "known"}, {"1", "/mcp/rec", "", ""}, {"2", "/mcp", "rec__", ""}, {"2", "/mcp/rec", "", "refreshing"},
	} {
		t.Run(tt.major+tt.route, func(t *testing.T) {
			redirect, back := pages(t)
			refreshes := tt.client != "known"
			c := talk(t, exec.Command(node, script, tt.major, g.Agents+tt.route, redirect, tt.client))
			called := func(tool string) {
				t.Helper()
				c.tell(t, tt.prefix+tool)
				if got := c.next(t); got.Error != "" || got.Open != "" || strings.Contains(string(got.Result), `"isError":true`) {
					t.Fatalf("%s: %+v\n%s", tool, got, c.Log)
				}
			}
			person := newBrowserSession(t)
			person.open(c.next(t).Open).send("", "login", "ann", "password", "any") // sign in
			person.send("")                                                         // consent
			c.tell(t, <-back)
			called("look")
			if refreshes {
				c.tell(t, "spoil")
				called("look")
			}
			if tt.client == "" {
				return
			}
			c.tell(t, tt.prefix+"pay")
			more := c.next(t)
			if !strings.Contains(more.Open, "payments") {
				t.Fatalf("for the scope that the call needs: %+v\n%s", more, c.Log)
			}
			person.open(more.Open).send("") // consent to more
			c.tell(t, <-back)
			if got := c.next(t); got.Error != "" || !strings.Contains(got.Scope, "payments") || strings.Contains(string(got.Result), `"isError":true`) {
				t.Fatalf("after the step-up: %+v", got)
			}
			called("pay")
		})
	}
	wantRuns(t, rec, `{}`, 7+2*2) // look and pay
}

// goAgent is a client of the official Go SDK with its tokens.
type goAgent struct {
	*auth.AuthorizationCodeHandler
	asked   []string      // addresses that were opened for the person
	granted *oauth2.Token // of the last sign-in, before any refresh
}

// newGoAgent returns a client that the issuer knows by an id, or one that registers itself for "".
// consent takes the person through the pages from an address on, n counts from 1.
func newGoAgent(t *testing.T, id string, consent func(address string, n int)) *goAgent {
	t.Helper()
	redirect, back := pages(t)
	a := &goAgent{}
	config := &auth.AuthorizationCodeHandlerConfig{
		RedirectURL: redirect,
		AuthorizationCodeFetcher: func(_ context.Context, args *auth.AuthorizationArgs) (*auth.AuthorizationResult, error) {
			a.asked = append(a.asked, args.URL)
			consent(args.URL, len(a.asked))
			query, err := url.ParseQuery(<-back)
			return &auth.AuthorizationResult{Code: query.Get("code"), State: query.Get("state"), Iss: query.Get("iss")}, err
		},
		NewTokenSource: func(ctx context.Context, config *oauth2.Config, token *oauth2.Token) (oauth2.TokenSource, error) {
			a.granted = token
			return config.TokenSource(ctx, token), nil
		},
	}
	if id != "" {
		config.PreregisteredClient = &oauthex.ClientCredentials{ClientID: id}
	} else {
		config.DynamicClientRegistrationConfig = &auth.DynamicClientRegistrationConfig{Metadata: &oauthex.ClientRegistrationMetadata{
			ClientName: "go-sdk", RedirectURIs: []string{redirect}, TokenEndpointAuthMethod: "none",
			GrantTypes: []string{"authorization_code", "refresh_token"}, ResponseTypes: []string{"code"},
		}}
	}
	var err error
	if a.AuthorizationCodeHandler, err = auth.NewAuthorizationCodeHandler(config); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *goAgent) connect(t *testing.T, endpoint string) *sdk.ClientSession {
	t.Helper()
	client := sdk.NewClient(&sdk.Implementation{Name: "go-sdk", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: endpoint, OAuthHandler: a}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() }) // the token may have ended
	return session
}

// token returns the token of the next request.
func (a *goAgent) token(t *testing.T) *oauth2.Token {
	t.Helper()
	source, err := a.TokenSource(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	token, err := source.Token()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// callGo calls a tool without arguments.
func callGo(t *testing.T, session *sdk.ClientSession, tool string) error {
	t.Helper()
	result, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: tool, Arguments: map[string]any{}})
	if err == nil && result.IsError {
		return errors.New(jsonText(t, result))
	}
	return err
}

// revoke revokes a token at the gate, before it expires.
func (g *gate) revoke(t *testing.T, token string) {
	t.Helper()
	if out, code := runCommand(t, g.Dir, "token", "revoke", fmt.Sprintf("%x", sha256.Sum256([]byte(token))), "--reason", "a test"); code != 0 {
		t.Fatalf("revoking: %d %s", code, out)
	}
	program.Await(t, "the revoked token is refused", func() bool { return g.admits(t, token) == http.StatusUnauthorized })
	if time.Now().After(time.Unix(claimsOf(t, token).Expiry, 0)) {
		t.Fatal("the token expired before it was revoked")
	}
}

// admits returns the status of a call with a token, to a tool that does not exist.
func (g *gate) admits(t *testing.T, token string) int {
	t.Helper()
	body, lines := statelessCall("none")
	return ask(t, http.MethodPost, g.Agents+"/mcp", body, append(lines, "Authorization", "Bearer "+token)...).code
}

// outlives waits until a token has expired at the gate, and holds that it is refused, however often it is shown.
func (g *gate) outlives(t *testing.T, token string) {
	t.Helper()
	expiry := time.Unix(claimsOf(t, token).Expiry, 0)
	program.Await(t, "the token expires", func() bool { return time.Now().After(expiry) })
	for range 15 {
		if code := g.admits(t, token); code != http.StatusUnauthorized {
			t.Fatalf("an expired token: %d", code)
		}
	}
}

// claims are claims of an access token.
type claims struct {
	Client string `json:"client_id"`
	Expiry int64  `json:"exp"` // in seconds
}

func claimsOf(t *testing.T, token string) (c claims) {
	t.Helper()
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatalf("no JWT: %q", token)
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(payload, &c) != nil {
		t.Fatalf("the claims %s: %v", payload, err)
	}
	return c
}

// revokeGrant ends what a person granted to a client at the issuer (RFC 7009).
func revokeGrant(t *testing.T, issuer, access, refresh string) {
	t.Helper()
	res, err := http.PostForm(issuer+"/token/revocation", url.Values{"token": {refresh}, "client_id": {claimsOf(t, access).Client}})
	if err != nil {
		t.Fatal(err)
	}
	if res.Body.Close(); res.StatusCode != http.StatusOK {
		t.Fatalf("revoking the grant: %d", res.StatusCode)
	}
}

// TestGoSDKSignsIn: the official Go SDK does the same by itself, the step-up too.
func TestGoSDKSignsIn(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	issuer := openAuthorizationServer(t, "600")
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "pay"}, {Name: "look"}}})
	g := serveReady(t, guarded(t, issuer, scopedPay, httpOf("rec", rec, shared())))
	person := newBrowserSession(t)
	a := newGoAgent(t, "refreshing", func(address string, n int) {
		if person.open(address); n == 1 {
			person.send("", "login", "ann", "password", "any") // sign in
		}
		person.send("") // consent
	})
	session := a.connect(t, g.Agents+"/mcp/rec")
	for _, tool := range []string{"look", "pay"} {
		if err := callGo(t, session, tool); err != nil {
			t.Fatalf("%s: %v", tool, err)
		}
	}
	if len(a.asked) != 2 || !strings.Contains(a.asked[1], "payments") {
		t.Errorf("the person was asked %v", a.asked)
	}
	wantRuns(t, rec, `{}`, 2)
}

// TestPythonSDKSignsIn: both majors of the Python SDK do the same.
func TestPythonSDKSignsIn(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	interpreters := map[string]string{"1": python(t, "mcp1"), "2": python(t, "mcp2")}
	issuer := openAuthorizationServer(t, "600")
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "pay"}, {Name: "look"}}})
	g := serveReady(t, guarded(t, issuer, scopedPay, httpOf("rec", rec, shared())))
	for major, interpreter := range interpreters {
		t.Run(major, func(t *testing.T) {
			redirect, back := pages(t)
			c := talk(t, exec.Command(interpreter, pythonScript(t, filepath.Join("clients", "authorize.py")), g.Agents+"/mcp/rec", redirect, "refreshing"))
			person := newBrowserSession(t)
			person.open(c.next(t).Open).send("", "login", "ann", "password", "any") // sign in
			person.send("")                                                         // consent
			c.tell(t, <-back)
			c.tell(t, "look")
			if got := c.next(t); got.Error != "" || got.Open != "" {
				t.Fatalf("look: %+v\n%s", got, c.Log)
			}
			c.tell(t, "pay")
			more := c.next(t)
			if !strings.Contains(more.Open, "payments") {
				t.Fatalf("for the scope that the call needs: %+v\n%s", more, c.Log)
			}
			person.open(more.Open).send("") // consent to more
			c.tell(t, <-back)
			if got := c.next(t); got.Error != "" || got.Open != "" {
				t.Fatalf("pay: %+v\n%s", got, c.Log)
			}
		})
	}
	wantRuns(t, rec, `{}`, 4)
}
