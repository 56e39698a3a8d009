package credential_test

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/credential"
)

func TestOnPostgreSQL(t *testing.T) { postgres.Again(t) }

const callback = "http://127.0.0.1:8788/console/connections/callback"

var (
	ann = credential.Person{Issuer: "https://idp.example", Subject: "ann"}
	bob = credential.Person{Issuer: "https://idp.example", Subject: "bob"}
)

// canary is in every secret of the authorization server.
const canary = "CANARY"

// grantOf is what an authorization server knows of a code or of a family of tokens.
type grantOf struct {
	user, challenge, client, redirect, resource, scope string
	access, refresh                                    string // the last of its family
	ended                                              bool
}

// output collects logs. It is safe for concurrent use.
type output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// world is a server that asks for tokens, its authorization server, and the stores of toolgate.
type world struct {
	t        *testing.T
	as, rs   *httptest.Server
	db       *store.DB
	keys     *keys.Dir
	clock    *clock
	document string
	logged   output

	mu        sync.Mutex // protects the fields below
	meta      func(map[string]any)
	resource  func(map[string]any)
	challenge string
	token     func(w http.ResponseWriter, form url.Values) (done bool) // in place of the token endpoint
	answer    func(map[string]any)                                     // changes an answer of the token endpoint
	codes     map[string]*grantOf
	families  []*grantOf
	requests  []string // to the authorization server
	reused    int      // refresh tokens shown twice
	refreshed int
	revoked   []string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, clock: &clock{}, codes: map[string]*grantOf{}, meta: func(map[string]any) {}, resource: func(map[string]any) {}, answer: func(map[string]any) {}}
	w.as = httptest.NewServer(http.HandlerFunc(w.authorize))
	w.rs = httptest.NewServer(http.HandlerFunc(w.serve))
	t.Cleanup(w.as.Close)
	t.Cleanup(w.rs.Close)
	dir := t.TempDir()
	var err error
	if w.db, err = postgres.State(t.Context(), filepath.Join(dir, "state.db")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.db.Close() })
	if w.keys, err = keys.Open(filepath.Join(dir, "keys")); err != nil {
		t.Fatal(err)
	}
	return w
}

// replica opens the grants of one more process.
func (w *world) replica() *credential.Grants {
	return credential.OpenGrants(credential.GrantOptions{
		DB: w.db, Keys: w.keys, Now: w.clock.now, Log: hclog.New(&hclog.LoggerOptions{Output: &w.logged}),
		Callback: func() string { return callback }, Document: func() string { return w.document },
		Server: w.serverOf,
	})
}

func (w *world) server() config.Server {
	return config.Server{Name: "mail", Type: config.TypeHTTP, URL: w.rs.URL + "/mcp", Credential: &config.Credential{Type: config.CredentialOAuth}}
}

func (w *world) serverOf(name string) (config.Server, bool) { return w.server(), name == "mail" }

// serve is the server.
func (w *world) serve(out http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.URL.Path == "/.well-known/oauth-protected-resource/mcp" {
		says := map[string]any{"resource": w.rs.URL + "/mcp", "authorization_servers": []string{w.as.URL}, "scopes_supported": []string{"read"}}
		w.resource(says)
		write(out, says)
		return
	}
	if r.URL.Path != "/mcp" {
		http.NotFound(out, r)
		return
	}
	out.Header().Set("WWW-Authenticate", w.challenge)
	out.WriteHeader(http.StatusUnauthorized)
}

func write(out http.ResponseWriter, v any) {
	out.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(out).Encode(v)
}

// authorize is the authorization server.
func (w *world) authorize(out http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	w.mu.Lock()
	w.requests = append(w.requests, r.Method+" "+r.URL.Path)
	instead := w.token
	w.mu.Unlock()
	if r.URL.Path == "/token" && instead != nil && instead(out, r.PostForm) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch r.URL.Path {
	case "/.well-known/oauth-authorization-server":
		says := map[string]any{
			"issuer": w.as.URL, "authorization_endpoint": w.as.URL + "/authorize", "token_endpoint": w.as.URL + "/token", "registration_endpoint": w.as.URL + "/register",
			"revocation_endpoint": w.as.URL + "/revoke", "code_challenge_methods_supported": []string{"S256"}, "response_types_supported": []string{"code"},
			"authorization_response_iss_parameter_supported": true, "token_endpoint_auth_methods_supported": []string{"none", "client_secret_basic"},
		}
		w.meta(says)
		write(out, says)
	case "/register":
		out.Header().Set("Content-Type", "application/json")
		out.WriteHeader(http.StatusCreated)
		_, _ = out.Write([]byte(`{"client_id": "registered", "redirect_uris": ["` + callback + `"], "token_endpoint_auth_method": "none"}`))
	case "/authorize":
		q := r.URL.Query()
		code := canary + rand.Text()
		w.codes[code] = &grantOf{user: "user", challenge: q.Get("code_challenge"), client: q.Get("client_id"), redirect: q.Get("redirect_uri"), resource: q.Get("resource"), scope: q.Get("scope")}
		back := url.Values{"code": {code}, "state": {q.Get("state")}, "iss": {w.as.URL}}
		http.Redirect(out, r, q.Get("redirect_uri")+"?"+back.Encode(), http.StatusFound)
	case "/token":
		w.exchangeLocked(out, r.PostForm)
	case "/revoke":
		w.revoked = append(w.revoked, r.PostForm.Get("token_type_hint"))
		for _, f := range w.families {
			f.ended = f.ended || f.refresh == r.PostForm.Get("token")
		}
	default:
		http.NotFound(out, r)
	}
}

// exchangeLocked is the token endpoint. Refresh tokens rotate, and one that is shown twice ends its family.
func (w *world) exchangeLocked(out http.ResponseWriter, form url.Values) {
	refuse := func(code string) {
		out.Header().Set("Content-Type", "application/json")
		out.WriteHeader(http.StatusBadRequest)
		_, _ = out.Write([]byte(`{"error": "` + code + `", "error_description": "` + canary + `"}`))
	}
	var f *grantOf
	switch form.Get("grant_type") {
	case "authorization_code":
		f = w.codes[form.Get("code")]
		delete(w.codes, form.Get("code"))
		sum := sha256.Sum256([]byte(form.Get("code_verifier")))
		if f == nil || base64.RawURLEncoding.EncodeToString(sum[:]) != f.challenge || form.Get("redirect_uri") != f.redirect || form.Get("client_id") != f.client || form.Get("resource") != f.resource {
			refuse("invalid_grant")
			return
		}
		w.families = append(w.families, f)
	case "refresh_token":
		for _, one := range w.families {
			if one.refresh == form.Get("refresh_token") {
				f = one
			}
		}
		if f == nil {
			w.reused++
			for _, one := range w.families { // which one it was of is not known any longer
				one.ended = true
			}
		}
		if f == nil || f.ended {
			refuse("invalid_grant")
			return
		}
		w.refreshed++
	}
	f.access, f.refresh = canary+"-access-"+rand.Text(), canary+"-refresh-"+rand.Text()
	says := map[string]any{"access_token": f.access, "refresh_token": f.refresh, "token_type": "Bearer", "expires_in": 600, "scope": f.scope,
		"id_token": "e30." + base64.RawURLEncoding.EncodeToString([]byte(`{"email": "ann@mail.example", "sub": "7"}`)) + ".x"}
	w.answer(says)
	write(out, says)
}

// visit is the browser of a person who agrees.
func (w *world) visit(address string) url.Values {
	w.t.Helper()
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Get(address)
	if err != nil {
		w.t.Fatal(err)
	}
	res.Body.Close()
	back, err := res.Location()
	if err != nil || !strings.HasPrefix(back.String(), callback) {
		w.t.Fatalf("the authorization server sends the browser to %v, %v", back, err)
	}
	return back.Query()
}

func (w *world) begin(g *credential.Grants, who credential.Person) url.Values {
	w.t.Helper()
	address, err := g.Begin(w.t.Context(), w.server(), who)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.visit(address)
}

func (w *world) finish(g *credential.Grants, who credential.Person, answer url.Values) (credential.Grant, error) {
	return g.Finish(w.t.Context(), who, false, answer, w.serverOf)
}

// connect gives a person a grant.
func (w *world) connect(g *credential.Grants, who credential.Person) credential.Grant {
	w.t.Helper()
	made, err := w.finish(g, who, w.begin(g, who))
	if err != nil {
		w.t.Fatal(err)
	}
	return made
}

func (w *world) find(g *credential.Grants, who credential.Person) *credential.Credential {
	w.t.Helper()
	found, err := g.Find(w.t.Context(), w.server(), who)
	if err != nil {
		w.t.Fatal(err)
	}
	return found
}

// bearer returns the token that a person's requests are made with.
func (w *world) bearer(g *credential.Grants, who credential.Person) string {
	w.t.Helper()
	token, err := w.find(g, who).Tokens.Token(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return token
}

// lacks holds that a person has no credential, for a reason.
func (w *world) lacks(g *credential.Grants, who credential.Person, reason string) {
	w.t.Helper()
	found, err := g.Find(w.t.Context(), w.server(), who)
	var missing *credential.Missing
	if !errors.As(err, &missing) || !missing.Connects || !strings.Contains(missing.Reason, reason) {
		w.t.Errorf("%+v, %v; want none: %s", found, err, reason)
	}
}

func (w *world) exec(statement string, args ...any) {
	w.t.Helper()
	if _, err := w.db.Write.ExecContext(w.t.Context(), statement, args...); err != nil {
		w.t.Fatal(err)
	}
}

// set changes the servers.
func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

func (w *world) count(of string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.requests {
		if r == of {
			n++
		}
	}
	return n
}
