package credential_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/credential"
)

const secret = "the-secret/of:client"

// endpoint is a token endpoint whose n-th answer is answer(n).
type endpoint struct {
	*httptest.Server
	asked  atomic.Int64
	mu     sync.Mutex
	form   url.Values // of the last request
	header http.Header
}

func serve(t *testing.T, answer func(n int64) (status int, body string)) *endpoint {
	t.Helper()
	e := &endpoint{}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		e.mu.Lock()
		e.form, e.header = r.PostForm, r.Header
		e.mu.Unlock()
		status, body := answer(e.asked.Add(1))
		w.Header().Set("Content-Type", "application/json")
		if status == http.StatusFound {
			w.Header().Set("Location", "/elsewhere")
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(e.Close)
	return e
}

// numbered answers with token-1, token-2, …, each good for ten minutes.
func numbered(n int64) (status int, body string) {
	return http.StatusOK, fmt.Sprintf(`{"access_token": "token-%d", "token_type": "bearer", "expires_in": 600}`, n)
}

func (e *endpoint) credential() config.Credential {
	return config.Credential{Type: config.CredentialClient, TokenURL: e.URL + "/token", ClientID: "toolgate", ClientSecret: secret}
}

// clock is moved by tests.
type clock struct{ at atomic.Int64 }

func (c *clock) now() time.Time          { return time.Unix(1_800_000_000+c.at.Load(), 0) }
func (c *clock) forward(d time.Duration) { c.at.Add(int64(d / time.Second)) }

func source(t *testing.T, c config.Credential, now *clock) *credential.Source {
	t.Helper()
	s, err := credential.New(config.Server{Credential: &c}, credential.Options{Now: now.now})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func want(t *testing.T, s *credential.Source, token string) {
	t.Helper()
	if got, err := s.Token(t.Context()); got != token || (err == nil) != (token != "") {
		t.Errorf("got %q, %v; want %q", got, err, token)
	}
}

// TestRequest holds what a token endpoint is asked (RFC 6749 sections 2.3.1 and 4.4.2, RFC 8707).
func TestRequest(t *testing.T) {
	t.Parallel()
	e := serve(t, numbered)
	c := e.credential()
	c.Scopes, c.Audience, c.Resource = []string{"read", "write"}, "api", "https://files.example/mcp"
	want(t, source(t, c, &clock{}), "token-1")
	for name, value := range map[string]string{"grant_type": "client_credentials", "scope": "read write", "audience": "api", "resource": "https://files.example/mcp", "client_secret": ""} {
		if got := e.form.Get(name); got != value {
			t.Errorf("%s: %q, want %q", name, got, value)
		}
	}
	r := http.Request{Header: e.header}
	if id, password, _ := r.BasicAuth(); id != "toolgate" || password != url.QueryEscape(secret) {
		t.Errorf("the client shows %q and %q", id, password)
	}
}

// TestAssertion holds what proves who the client is in place of a secret (RFC 7523).
func TestAssertion(t *testing.T) {
	t.Parallel()
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	text := func(kind string, der []byte, err error) string {
		if err != nil {
			t.Fatal(err)
		}
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	ofEC, err := x509.MarshalECPrivateKey(ecKey)
	ofECText := text("EC PRIVATE KEY", ofEC, err)
	pkcs8 := func(key any) string {
		der, err := x509.MarshalPKCS8PrivateKey(key)
		return text("PRIVATE KEY", der, err)
	}
	for name, tt := range map[string]struct {
		pem    string
		public crypto.PublicKey
		alg    jose.SignatureAlgorithm
	}{
		"RSA":              {pkcs8(rsaKey), rsaKey.Public(), jose.RS256},
		"RSA by PKCS #1":   {text("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(rsaKey), nil), rsaKey.Public(), jose.RS256},
		"ECDSA":            {pkcs8(ecKey), ecKey.Public(), jose.ES384},
		"ECDSA by SEC 1":   {ofECText, ecKey.Public(), jose.ES384},
		"Ed25519":          {pkcs8(edKey), edKey.Public(), jose.EdDSA},
		"with text before": {"a comment\n" + pkcs8(edKey), edKey.Public(), jose.EdDSA},
	} {
		e, now := serve(t, numbered), &clock{}
		c := e.credential()
		c.ClientSecret, c.PrivateKey, c.KeyID = "", tt.pem, "k1"
		s := source(t, c, now)
		seen := map[string]bool{}
		for i := range 2 {
			want(t, s, fmt.Sprint("token-", i+1))
			var claims jwt.Claims
			signed, err := jwt.ParseSigned(e.form.Get("client_assertion"), []jose.SignatureAlgorithm{tt.alg})
			if err == nil {
				err = signed.Claims(tt.public, &claims)
			}
			if err == nil {
				err = claims.Validate(jwt.Expected{Issuer: "toolgate", Subject: "toolgate", AnyAudience: jwt.Audience{e.URL + "/token"}, Time: now.now()})
			}
			if err != nil || signed.Headers[0].KeyID != "k1" || claims.ID == "" || seen[claims.ID] || e.form.Get("client_secret") != "" || e.header.Get("Authorization") != "" ||
				e.form.Get("client_assertion_type") != "urn:ietf:params:oauth:client-assertion-type:jwt-bearer" || e.form.Get("client_id") != "toolgate" {
				t.Errorf("%s: %+v, %v of %v", name, claims, err, e.form)
			}
			seen[claims.ID] = true
			now.forward(time.Hour)
		}
	}
	for _, bad := range []string{"x", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----", text("PUBLIC KEY", []byte("x"), nil)} {
		_, err := credential.New(config.Server{Credential: &config.Credential{Type: config.CredentialClient, ClientID: "a", PrivateKey: bad}}, credential.Options{})
		if err == nil || strings.Contains(err.Error(), "AAAA") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestRenewal holds how long a token is kept, and what happens while the endpoint is away.
func TestRenewal(t *testing.T) {
	t.Parallel()
	var away atomic.Bool
	e, now := serve(t, func(n int64) (int, string) {
		if away.Load() {
			return http.StatusServiceUnavailable, secret
		}
		return numbered(n)
	}), &clock{}
	s := source(t, e.credential(), now)
	want(t, s, "token-1")
	now.forward(560 * time.Second)
	want(t, s, "token-1")
	now.forward(20 * time.Second) // 30 s before its end it is renewed
	want(t, s, "token-2")
	away.Store(true)
	now.forward(580 * time.Second)
	want(t, s, "token-2") // still good
	want(t, s, "token-2")
	if n := e.asked.Load(); n != 3 {
		t.Errorf("the endpoint was asked %d times, want once a second", n)
	}
	now.forward(30 * time.Second)
	want(t, s, "") // ended
	want(t, s, "")
	if n := e.asked.Load(); n != 4 {
		t.Errorf("the endpoint was asked %d times", n)
	}
	away.Store(false)
	now.forward(time.Second)
	want(t, s, "token-5")
}

// TestRefusedToken holds that a refused token is not shown again, and that a server which refuses
// all does not make toolgate ask without end.
func TestRefusedToken(t *testing.T) {
	t.Parallel()
	e, now := serve(t, numbered), &clock{}
	s := source(t, e.credential(), now)
	want(t, s, "token-1")
	s.Refused("another", nil)
	want(t, s, "token-1")
	now.forward(time.Minute)
	s.Refused("token-1", nil)
	want(t, s, "token-2")
	s.Refused("token-1", nil) // by a slower request
	want(t, s, "token-2")
	s.Refused("token-2", nil)
	want(t, s, "")
	want(t, s, "")
	if n := e.asked.Load(); n != 2 {
		t.Errorf("the endpoint was asked %d times", n)
	}
	now.forward(time.Second)
	want(t, s, "token-3")
}

// TestAnswers holds which answers give no token, and that errors say why without the secret.
func TestAnswers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		status int
		body   string
		says   string
	}{
		"refused":        {401, `{"error": "invalid_client", "error_description": "` + secret + `"}`, "status 401 invalid_client"},
		"another error":  {400, `{"error": "` + secret + `"}`, "status 400"},
		"no JSON":        {200, secret, "asking for a token: "},
		"no token":       {200, `{"token_type": "bearer"}`, "asking for a token: "},
		"an empty token": {200, `{"access_token": "", "token_type": "bearer"}`, "asking for a token: "},
		"another type":   {200, `{"access_token": "a", "token_type": "DPoP"}`, "no bearer token"},
		"a line end":     {200, `{"access_token": "a\r\nX: y", "token_type": "bearer"}`, "no bearer token"},
		"a long token":   {200, `{"access_token": "` + strings.Repeat("a", 65<<10) + `", "token_type": "bearer"}`, "no bearer token"},
		"a huge answer":  {200, strings.Repeat(" ", 2<<20) + `{"access_token": "a", "token_type": "bearer"}`, "asking for a token: "},
		"a redirect":     {302, "", "status 302"},
		"an ended token": {200, `{"access_token": "a", "token_type": "bearer", "expires_in": -5}`, "no bearer token"},
	} {
		e := serve(t, func(int64) (int, string) { return tt.status, tt.body })
		token, err := source(t, e.credential(), &clock{}).Token(t.Context())
		if err == nil || token != "" || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "the-secret") {
			t.Errorf("%s: %.20q, %v; want %q", name, token, err, tt.says)
		}
		if n := e.asked.Load(); name == "a redirect" && n > 2 { // with the secret in another place, and not at another address
			t.Errorf("a redirect: asked %d times", n)
		}
	}
	e := serve(t, func(int64) (int, string) { return http.StatusOK, `{"access_token": "forever", "token_type": "Bearer"}` })
	now := &clock{}
	s := source(t, e.credential(), now)
	want(t, s, "forever")
	now.forward(1000 * time.Hour)
	want(t, s, "forever")
	if n := e.asked.Load(); n != 1 {
		t.Errorf("a token without an end: asked %d times", n)
	}
	e.Close()
	_, err := source(t, e.credential(), now).Token(t.Context())
	if err == nil || !strings.HasPrefix(err.Error(), "asking for a token: ") || strings.Contains(err.Error(), "the-secret") {
		t.Errorf("an endpoint that is gone: %v", err)
	}
}

// TestManyAtOnce holds that callers who come at once wait for one token, and that one who gives up
// spoils nothing.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	reached, answer := make(chan struct{}, 1), make(chan struct{})
	e := serve(t, func(n int64) (int, string) {
		reached <- struct{}{}
		<-answer
		return numbered(n)
	})
	s := source(t, e.credential(), &clock{})
	ctx, giveUp := context.WithCancelCause(t.Context())
	gone := errors.New("the agent has gone")
	first := make(chan error)
	go func() {
		_, err := s.Token(ctx)
		first <- err
	}()
	<-reached
	giveUp(gone)
	if err := <-first; !errors.Is(err, gone) {
		t.Errorf("who gave up: %v", err)
	}
	var tasks sync.WaitGroup
	for range 50 {
		tasks.Go(func() {
			if token, err := s.Token(t.Context()); token != "token-2" || err != nil {
				t.Errorf("got %q, %v", token, err)
			}
		})
	}
	close(answer)
	tasks.Wait()
	if n := e.asked.Load(); n != 2 {
		t.Errorf("asked %d times", n)
	}
}

// TestFoundEndpoint: without token_url the token endpoint of the server's authorization server is found
// when the first token is needed, and what does not fit gets no secret.
func TestFoundEndpoint(t *testing.T) {
	t.Parallel()
	member := func(name string, value any) func(map[string]any) {
		return func(m map[string]any) { m[name] = value }
	}
	for name, tt := range map[string]struct {
		issuer         string
		resource, meta func(map[string]any)
		says           string // "" = there is a token
	}{
		"as the server says":        {},
		"without PKCE":              {meta: member("code_challenge_methods_supported", nil)},
		"another issuer":            {meta: member("issuer", "https://good.example"), says: "of another issuer"},
		"another resource":          {resource: member("resource", "https://bank.example/mcp"), says: "has no metadata"},
		"an endpoint in http":       {meta: member("token_endpoint", "http://good.example/token"), says: "token_endpoint: it is not reached over https"},
		"no endpoint":               {meta: member("token_endpoint", ""), says: "token_endpoint: it is no address"},
		"another than the operator": {issuer: "http://127.0.0.1:1", says: "finding the authorization server of mail"},
	} {
		w := newWorld(t)
		if tt.resource != nil {
			w.resource = tt.resource
		}
		if tt.meta != nil {
			w.meta = tt.meta
		}
		var form url.Values
		w.token = func(out http.ResponseWriter, f url.Values) bool {
			form = f
			write(out, map[string]any{"access_token": "token-1", "token_type": "Bearer", "expires_in": 600})
			return true
		}
		server := w.server()
		server.Credential = &config.Credential{Type: config.CredentialClient, Issuer: tt.issuer, ClientID: "toolgate", ClientSecret: secret}
		s, err := credential.New(server, credential.Options{})
		if err != nil || w.count("GET /.well-known/oauth-authorization-server") > 0 {
			t.Fatalf("%s: %v, and it is looked for before it is needed", name, err)
		}
		for range 2 {
			got, err := s.Token(t.Context())
			if (err == nil) != (tt.says == "") || err == nil && got != "token-1" || err != nil && (!strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), secret)) {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
		if tt.says == "" && (form.Get("resource") != server.URL || w.count("POST /token") != 1 || w.count("GET /.well-known/oauth-authorization-server") != 1) || tt.says != "" && form != nil {
			t.Errorf("%s: asked with %v, by %v", name, form, w.requests)
		}
	}
}

// FuzzAnswer holds that an answer gives an error or a token that fits in a header.
func FuzzAnswer(f *testing.F) {
	f.Add(`{"access_token": "a", "token_type": "bearer", "expires_in": 5}`)
	f.Add(`{"access_token": "a b", "token_type": "bearer"}`)
	f.Add(`{"access_token": 1}`)
	f.Fuzz(func(t *testing.T, body string) {
		s, err := credential.New(config.Server{Credential: &config.Credential{Type: config.CredentialClient, TokenURL: "http://localhost/token", ClientID: "a", ClientSecret: "b"}}, credential.Options{Client: &http.Client{Transport: fixed(body)}})
		if err != nil {
			t.Fatal(err)
		}
		token, err := s.Token(t.Context())
		if (err == nil) == (token == "") || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
			t.Errorf("%q: %q, %v", body, token, err)
		}
		if quoted, _ := json.Marshal(token); err == nil && !strings.Contains(body, strings.Trim(string(quoted), `"`)) && !strings.Contains(body, `\`) {
			t.Errorf("%q: the token is %q", body, token)
		}
	})
}

// fixed answers every request with a body.
type fixed string

func (f fixed) RoundTrip(*http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.WriteString(string(f))
	return w.Result(), nil
}
