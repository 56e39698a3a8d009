package credential_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/internal/guardian"
	"github.com/toolgate/toolgate/internal/sandbox"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/credential"
)

func TestMain(m *testing.M) {
	switch {
	case sandbox.IsGuardian(os.Args[1:]):
		os.Exit(guardian.Main(os.Args[2:]))
	case len(os.Args) > 2 && os.Args[1] == "helper":
		os.Exit(help(os.Args[2]))
	}
	os.Exit(postgres.Run(m))
}

// help is a credential program, with one way to go wrong for each mode.
func help(mode string) int {
	var asked struct {
		Server, URL, Audience string
		Principal             struct{ Issuer, Tenant, Subject string }
	}
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		return 2
	}
	token := "canary-of-" + asked.Principal.Subject
	switch {
	case mode == "hang":
		time.Sleep(time.Hour)
	case mode == "flood":
		for {
			if _, err := os.Stdout.WriteString(strings.Repeat("canary ", 1<<10)); err != nil {
				return 1
			}
		}
	case mode == "fail":
		fmt.Fprintln(os.Stderr, "no vault at this address, password canary-secret")
		return 1
	case mode == "chat":
		fmt.Print("Here you are: ")
	case mode == "none":
		token = ""
	case mode == "header":
		token = "a\r\nX-Other: b"
	case mode == "confused":
		token = "canary-of-everybody"
	case mode == "environment":
		token = fmt.Sprintf("secret-%t.home-%t", os.Getenv("TOOLGATE_TEST_SECRET") != "", os.Getenv("HOME") != "")
	}
	if mode == "echo" {
		token = strings.Join([]string{"canary", asked.Server, asked.Audience, asked.Principal.Issuer, asked.Principal.Tenant, asked.Principal.Subject}, ".")
		fmt.Fprintf(os.Stderr, "giving %s\n", token)
	}
	fmt.Printf(`{"token": %q, "expires_at": %q}`, token, time.Now().Add(time.Hour).Format(time.RFC3339))
	return 0
}

// helped is a server with a credential program in a mode.
func helped(mode string) config.Server {
	return config.Server{Name: "bank", Type: config.TypeHTTP, URL: "http://127.0.0.1:1/mcp", Credential: &config.Credential{
		Type: config.CredentialCommand, Command: []string{os.Args[0], "helper", mode}, Timeout: 20 * time.Second, Audience: "aud",
	}}
}

func person(subject string) credential.Caller {
	return credential.Caller{Person: credential.Person{Issuer: "iss", Tenant: "ten", Subject: subject}}
}

// tokenOf finds the credential of a person and returns its token.
func tokenOf(ctx context.Context, b *credential.Broker, s config.Server, caller credential.Caller) (token string, err error) {
	found, err := b.Find(ctx, s, caller)
	if err != nil {
		return "", err
	}
	return found.Tokens.Token(ctx)
}

// TestCommand holds what a credential program is asked, and that each way to go wrong gives no token
// and shows none.
func TestCommand(t *testing.T) {
	t.Setenv("TOOLGATE_TEST_SECRET", "canary")
	for _, row := range []struct{ mode, token, fault string }{
		{"echo", "canary.bank.aud.iss.ten.alice", ""},
		{"environment", "secret-false.home-true", ""},
		{"none", "", "server bank: the credential program has none for the caller"},
		{"fail", "", "exit status 1"},
		{"flood", "", "it printed more than"},
		{"chat", "", "is not one object"},
		{"header", "", "has no bearer token"},
		{"hang", "", "it took too long"},
	} {
		t.Run(row.mode, func(t *testing.T) {
			log := new(bytes.Buffer)
			b := credential.NewBroker(nil, credential.BrokerOptions{Log: hclog.New(&hclog.LoggerOptions{Output: log})})
			s := helped(row.mode)
			s.Headers = map[string]string{"X-Password": "canary-secret"}
			if row.mode == "hang" {
				s.Credential.Timeout = 50 * time.Millisecond
			}
			token, err := tokenOf(t.Context(), b, s, person("alice"))
			if row.fault == "" && (err != nil || token != row.token) || row.fault != "" && (err == nil || !strings.Contains(err.Error(), row.fault)) {
				t.Errorf("token %q, error %v", token, err)
			}
			if text := fmt.Sprint(err, log); strings.Contains(text, "canary") {
				t.Errorf("a secret is shown: %s", text)
			}
			missing, isMissing := errors.AsType[*credential.Missing](err)
			if isMissing != (row.mode == "none") || isMissing && missing.Connects {
				t.Errorf("error %#v", err)
			}
		})
	}
}

// TestTokenOfAnotherPerson holds that a program that takes one person for another gives no token, and
// that each person is asked for once.
func TestTokenOfAnotherPerson(t *testing.T) {
	t.Parallel()
	b := credential.NewBroker(nil, credential.BrokerOptions{})
	s := helped("confused")
	if _, err := tokenOf(t.Context(), b, s, person("alice")); err != nil {
		t.Fatal(err)
	}
	if token, err := tokenOf(t.Context(), b, s, person("bob")); err == nil {
		t.Errorf("bob has alice's %s", token)
	}
	a, err := b.Find(t.Context(), s, person("alice"))
	again, _ := b.Find(t.Context(), s, person("alice"))
	if err != nil || a != again {
		t.Errorf("alice has two credentials: %v", err)
	}
	other := person("alice")
	other.Issuer = "other"
	if token, err := tokenOf(t.Context(), b, s, other); err == nil {
		t.Errorf("another issuer's alice has %s", token)
	}
}

// exchanger is a token endpoint that exchanges tokens of the form good-SUBJECT.
type exchanger struct {
	mu     sync.Mutex
	forms  []string
	issued string // issued_token_type
	typ    string // token_type
}

func (e *exchanger) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	e.mu.Lock()
	defer e.mu.Unlock()
	e.forms = append(e.forms, string(body))
	r.Body = io.NopCloser(bytes.NewReader(body))
	w.Header().Set("Content-Type", "application/json")
	subject, ok := strings.CutPrefix(r.PostFormValue("subject_token"), "good-")
	id, secret, basic := r.BasicAuth()
	if !ok || !basic || id != "toolgate" || secret != "canary-secret" {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, `{"error": "invalid_grant", "error_description": %q}`, "canary "+string(body))
		return
	}
	fmt.Fprintf(w, `{"access_token": "of-%s", "token_type": %q, "issued_token_type": %q, "expires_in": 300}`, subject, e.typ, e.issued)
}

// TestExchange holds what a token endpoint is asked (RFC 8693 section 2.1), which answers count, and
// that the rights of one token of a caller are not those of another.
func TestExchange(t *testing.T) {
	t.Parallel()
	const access = "urn:ietf:params:oauth:token-type:access_token"
	e := &exchanger{issued: access, typ: "Bearer"}
	as := httptest.NewServer(e)
	t.Cleanup(as.Close)
	s := config.Server{Name: "bank", Type: config.TypeHTTP, URL: "http://127.0.0.1:1/mcp", Credential: &config.Credential{
		Type: config.CredentialExchange, TokenURL: as.URL, ClientID: "toolgate", ClientSecret: "canary-secret", Audience: "aud", Actor: "the-actor", Scopes: []string{"a", "b"},
	}}
	b := credential.NewBroker(nil, credential.BrokerOptions{})
	alice, bob := person("alice"), person("bob")
	alice.Token, bob.Token = "good-alice", "good-bob"
	for _, row := range []struct {
		caller      credential.Caller
		want, fault string
	}{
		{alice, "of-alice", ""},
		{bob, "of-bob", ""},
		{alice, "of-alice", ""},
		{person("carol"), "", "server bank: the caller has shown no token"},
		{credential.Caller{Person: person("eve").Person, Token: "canary-forged"}, "", "the caller's token is not exchanged: invalid_grant"},
		{credential.Caller{Token: "good-nobody"}, "", "the caller has no name"},
		{credential.Caller{Person: person("bob").Person, Token: "good-alice"}, "", "that of another person"},
	} {
		token, err := tokenOf(t.Context(), b, s, row.caller)
		if token != row.want || (err == nil) != (row.fault == "") || err != nil && !strings.Contains(err.Error(), row.fault) {
			t.Errorf("%s: %q, %v", row.caller.Subject, token, err)
		}
		if err != nil && strings.Contains(err.Error(), "canary") {
			t.Errorf("a secret is shown: %v", err)
		}
	}
	if n := strings.Count(strings.Join(e.forms, "\n"), "subject_token=good-alice"); n != 2 { // bob asked for the second
		t.Errorf("%d requests for alice, want 2", n)
	}
	for _, part := range []string{"grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Atoken-exchange", "subject_token=good-alice", "subject_token_type=urn%3Aietf%3Aparams%3Aoauth%3Atoken-type%3Aaccess_token", "actor_token=the-actor", "actor_token_type=", "audience=aud", "scope=a+b"} {
		if !strings.Contains(e.forms[0], part) {
			t.Errorf("%s is not in %s", part, e.forms[0])
		}
	}
	one, _ := b.Find(t.Context(), s, alice)
	alice.Token = "good-alice2"
	two, err := b.Find(t.Context(), s, alice)
	if err != nil || one.ID == two.ID {
		t.Errorf("two tokens of a caller have one credential: %v", err)
	}
	for _, bad := range []struct{ issued, typ string }{{access, "N_A"}, {"urn:ietf:params:oauth:token-type:refresh_token", "Bearer"}} {
		e.mu.Lock()
		e.issued, e.typ = bad.issued, bad.typ
		e.mu.Unlock()
		alice.Token += "x"
		if token, err := tokenOf(t.Context(), b, s, alice); err == nil {
			t.Errorf("%s of type %s counts: %s", bad.issued, bad.typ, token)
		}
	}
}

// TestIdentityAssertion holds both legs of enterprise-managed authorization: the identity provider asserts
// the caller to the server's own authorization server, which gives the token. Neither sees more than it
// has to, and an assertion of another type goes nowhere.
func TestIdentityAssertion(t *testing.T) {
	t.Parallel()
	const jag = "urn:ietf:params:oauth:token-type:id-jag"
	var mu sync.Mutex
	issued, asked := jag, map[string][]url.Values{}
	note := func(w http.ResponseWriter, r *http.Request, answer map[string]any) {
		_ = r.ParseForm()
		mu.Lock()
		asked[r.URL.Path] = append(asked[r.URL.Path], r.PostForm)
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		if r.PostForm.Get("subject_token") == "bad" {
			w.WriteHeader(http.StatusBadRequest)
			answer = map[string]any{"error": "invalid_grant", "error_description": "canary"}
		}
		_ = json.NewEncoder(w).Encode(answer)
	}
	mux := http.NewServeMux()
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	mux.HandleFunc("/idp/token", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		typ := issued
		mu.Unlock()
		note(w, r, map[string]any{"access_token": "jag-of-" + r.PostFormValue("subject_token"), "token_type": "N_A", "issued_token_type": typ, "expires_in": 60})
	})
	mux.HandleFunc("/.well-known/oauth-authorization-server", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"issuer": %q, "authorization_endpoint": %q, "token_endpoint": %q, "response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"]}`, srv.URL, srv.URL+"/authorize", srv.URL+"/token")
	})
	mux.HandleFunc("/token", func(w http.ResponseWriter, r *http.Request) {
		note(w, r, map[string]any{"access_token": "of-" + r.PostFormValue("assertion"), "token_type": "Bearer", "expires_in": 60})
	})
	s := config.Server{Name: "bank", Type: config.TypeHTTP, URL: srv.URL + "/mcp", Credential: &config.Credential{
		Type: config.CredentialExchange, Profile: config.ProfileIDJAG, TokenURL: srv.URL + "/idp/token", ClientID: "toolgate", ClientSecret: "canary-secret", Audience: srv.URL, Scopes: []string{"a"},
	}}
	b := credential.NewBroker(nil, credential.BrokerOptions{})
	alice := person("alice")
	alice.Token = "x.y.z"
	if token, err := tokenOf(t.Context(), b, s, alice); err != nil || token != "of-jag-of-x.y.z" {
		t.Errorf("token %q, %v", token, err)
	}
	first, second := asked["/idp/token"][0], asked["/token"][0]
	for name, want := range map[string]string{"requested_token_type": jag, "audience": srv.URL, "resource": s.URL, "subject_token": "x.y.z", "subject_token_type": "urn:ietf:params:oauth:token-type:id_token"} {
		if first.Get(name) != want {
			t.Errorf("the identity provider is asked for %s %q, want %q", name, first.Get(name), want)
		}
	}
	if second.Get("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer" || second.Get("resource") != s.URL || strings.Contains(second.Encode(), "=x.y.z") {
		t.Errorf("the authorization server is asked %v", second)
	}
	alice.Token = "bad"
	if token, err := tokenOf(t.Context(), b, s, alice); err == nil || !strings.Contains(err.Error(), "the caller's token is not exchanged") || strings.Contains(err.Error(), "canary") {
		t.Errorf("a caller whom the identity provider refuses: %q, %v", token, err)
	}
	mu.Lock()
	issued = "urn:ietf:params:oauth:token-type:access_token"
	mu.Unlock()
	alice.Token = "another"
	if token, err := tokenOf(t.Context(), b, s, alice); err == nil || len(asked["/token"]) != 1 {
		t.Errorf("an assertion of another type: %q, %v", token, err)
	}
}

// TestKept holds that credentials that nobody uses end.
func TestKept(t *testing.T) {
	t.Parallel()
	now := time.Now()
	b := credential.NewBroker(nil, credential.BrokerOptions{Now: func() time.Time { return now }})
	found, err := b.Find(t.Context(), helped("echo"), person("alice"))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		after time.Duration
		ended int
	}{{time.Minute, 0}, {time.Hour, 1}} {
		now = now.Add(row.after)
		if ended, err := b.Ended(t.Context(), []string{found.ID}); err != nil || len(ended) != row.ended {
			t.Errorf("after %v: %v, %v", row.after, ended, err)
		}
	}
}
