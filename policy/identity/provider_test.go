package identity_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
)

// op is an OpenID provider on loopback that gives one code.
type op struct {
	*idp
	asked  url.Values     // of the authorization request
	claims map[string]any // of the next ID token, over the usual ones
	forge  func(t *testing.T, claims map[string]any) string
	status int // of the token endpoint; 0 = 200
	closed bool
	end    string // end_session_endpoint
}

const clientSecret = "cs_u3kJf81"

func newOP(t *testing.T) *op {
	p := &op{idp: newIDP(t)}
	keys := p.Config.Handler
	mux := http.NewServeMux()
	mux.Handle("/keys", keys)
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		if p.closed {
			http.Error(w, "closed", http.StatusServiceUnavailable)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{
			"issuer": p.URL, "authorization_endpoint": p.URL + "/auth", "token_endpoint": p.URL + "/token", "jwks_uri": p.URL + "/keys", "end_session_endpoint": p.end,
			"authorization_response_iss_parameter_supported": true,
			"id_token_signing_alg_values_supported":          []string{"ES256", "HS256", "none"},
		})
	})
	mux.HandleFunc("/token", func(w http.ResponseWriter, r *http.Request) { p.token(t, w, r) })
	p.Config.Handler = mux
	return p
}

// token holds what a provider holds: client, code, verifier, address.
func (p *op) token(t *testing.T, w http.ResponseWriter, r *http.Request) {
	id, secret, _ := r.BasicAuth()
	sum := sha256.Sum256([]byte(r.FormValue("code_verifier")))
	if id != "toolgate" || secret != clientSecret || r.FormValue("code") != "the-code" || p.asked.Get("code_challenge_method") != "S256" ||
		base64.RawURLEncoding.EncodeToString(sum[:]) != p.asked.Get("code_challenge") || r.FormValue("redirect_uri") != p.asked.Get("redirect_uri") {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(map[string]any{"error": "invalid_grant", "error_description": "the secret is " + secret})
		return
	}
	if p.status != 0 {
		w.WriteHeader(p.status)
		return
	}
	claims := p.idp.claims(map[string]any{"aud": "toolgate", "nonce": p.asked.Get("nonce")})
	for k, v := range p.claims {
		if claims[k] = v; v == nil {
			delete(claims, k)
		}
	}
	forge := p.forge
	if forge == nil {
		forge = func(t *testing.T, c map[string]any) string { return sign(t, jose.ES256, p.ec, "ec", c) }
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"access_token": "at", "token_type": "Bearer", "id_token": forge(t, claims)})
}

func (p *op) provider(t *testing.T, c identity.Config, change func(*identity.ProviderConfig)) *identity.Provider {
	t.Helper()
	c.Now = func() time.Time { return clock }
	config := identity.ProviderConfig{
		Issuer: p.URL, ClientID: "toolgate", ClientSecret: clientSecret, Redirect: "https://gate.example/console/login/callback", Client: p.Client(),
	}
	if change != nil {
		change(&config)
	}
	provider, err := authenticator(t, c).NewProvider(config)
	if err != nil {
		t.Fatal(err)
	}
	return provider
}

// begin asks, and gives what the browser keeps and a good answer.
func (p *op) begin(t *testing.T, provider *identity.Provider) (secret string, answer url.Values) {
	t.Helper()
	address, secret, err := provider.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(address)
	if err != nil || !strings.HasPrefix(address, p.URL+"/auth?") {
		t.Fatalf("%q, %v", address, err)
	}
	p.asked = u.Query()
	for _, part := range strings.Split(secret, ".")[2:] {
		if strings.Contains(address, part) {
			t.Error("the address holds the verifier")
		}
	}
	return secret, url.Values{"state": {p.asked.Get("state")}, "code": {"the-code"}, "iss": {p.URL}}
}

func TestProvider(t *testing.T) {
	p := newOP(t)
	provider := p.provider(t, identity.Config{}, func(c *identity.ProviderConfig) { c.Scopes = []string{"profile"} })
	secret, answer := p.begin(t, provider)
	if got := p.asked.Get("scope") + " " + p.asked.Get("response_type"); got != "openid profile code" {
		t.Errorf("asked for %q", got)
	}
	p.claims = map[string]any{"sid": "session-1"}
	got, session, err := provider.Finish(t.Context(), secret, answer)
	if err != nil || session != "session-1" {
		t.Fatalf("session %q, %v", session, err)
	}
	want := policy.Principal{Subject: "alice", Issuer: p.URL, Roles: []string{"treasurer"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if again, err := provider.Again(t.Context(), got); err != nil || !cmp.Equal(want, again) {
		t.Errorf("again: %+v, %v", again, err)
	}
}

func TestRefusedAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		before func(p *op)
		change func(secret *string, answer url.Values)
		kind   identity.Kind // "" = any
	}{
		"another state":     {change: func(_ *string, a url.Values) { a.Set("state", "x") }},
		"no state":          {change: func(_ *string, a url.Values) { a.Del("state") }},
		"nothing was begun": {change: func(s *string, a url.Values) { *s = ""; a.Set("state", "") }, kind: identity.Malformed},
		"two states":        {change: func(_ *string, a url.Values) { a.Add("state", "x") }},
		"another issuer":    {change: func(_ *string, a url.Values) { a.Set("iss", "https://evil.example") }},
		"no issuer":         {change: func(_ *string, a url.Values) { a.Del("iss") }},
		"an error":          {change: func(_ *string, a url.Values) { a.Set("error", "access_denied") }},
		"no code":           {change: func(_ *string, a url.Values) { a.Del("code") }, kind: identity.Malformed},
		"another code":      {change: func(_ *string, a url.Values) { a.Set("code", "x") }},
		"another verifier":  {change: func(s *string, _ url.Values) { *s += "x" }},
		"another nonce":     {before: func(p *op) { p.claims = map[string]any{"nonce": "x"} }},
		"no nonce":          {before: func(p *op) { p.claims = map[string]any{"nonce": nil} }},
		"no nonce anywhere": {before: func(p *op) { p.claims = map[string]any{"nonce": nil} },
			change: func(s *string, _ url.Values) { parts := strings.Split(*s, "."); *s = parts[0] + ".." + parts[2] }},
		"another audience":     {before: func(p *op) { p.claims = map[string]any{"aud": "other"} }, kind: identity.Malformed},
		"another party":        {before: func(p *op) { p.claims = map[string]any{"aud": []string{"toolgate", "other"}, "azp": "other"} }},
		"another access token": {before: func(p *op) { p.claims = map[string]any{"at_hash": "AAAAAAAAAAAAAAAAAAAAAA"} }},
		"expired":              {before: func(p *op) { p.claims = map[string]any{"exp": clock.Add(-time.Minute).Unix()} }},
		"no subject":           {before: func(p *op) { p.claims = map[string]any{"sub": ""} }},
		"a token's subject":    {before: func(p *op) { p.claims = map[string]any{"sub": "agent-7"} }},
		"the local subject":    {before: func(p *op) { p.claims = map[string]any{"sub": "local"} }},
		"a session of no form": {before: func(p *op) { p.claims = map[string]any{"sid": 7} }},
		"as another's subject": {before: func(p *op) { p.claims = map[string]any{"sub": p.URL + "|alice"} }},
		"roles of no form":     {before: func(p *op) { p.claims = map[string]any{"roles": 7} }},
		"unsigned": {before: func(p *op) {
			p.forge = func(t *testing.T, c map[string]any) string {
				raw, _ := json.Marshal(c)
				return base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + base64.RawURLEncoding.EncodeToString(raw) + "."
			}
		}},
		"signed with the client secret": {before: func(p *op) {
			p.forge = func(t *testing.T, c map[string]any) string {
				return sign(t, jose.HS256, []byte(strings.Repeat(clientSecret, 4)), "ec", c)
			}
		}},
		"signed by somebody": {before: func(p *op) {
			p.forge = func(t *testing.T, c map[string]any) string { return sign(t, jose.ES256, newIDP(t).ec, "ec", c) }
		}},
		"a party of no form": {before: func(p *op) { p.claims = map[string]any{"azp": 5} }},
		"nothing at all":     {change: func(s *string, a url.Values) { *s = ".."; a.Del("state") }},
		"no ID token":        {before: func(p *op) { p.forge = func(*testing.T, map[string]any) string { return "" } }},
	} {
		t.Run(name, func(t *testing.T) {
			p := newOP(t)
			provider := p.provider(t, identity.Config{Tokens: []identity.Token{agent()}}, nil)
			secret, answer := p.begin(t, provider)
			if tt.before != nil {
				tt.before(p)
			}
			if tt.change != nil {
				tt.change(&secret, answer)
			}
			got, _, err := provider.Finish(t.Context(), secret, answer)
			if !errors.Is(err, identity.ErrUnauthenticated) || got.Valid() {
				t.Errorf("%+v, %v", got, err)
			}
			if want := tt.kind; want != "" && identity.KindOf(err) != want {
				t.Errorf("%v, want kind %s", err, want)
			}
			for _, hidden := range append(strings.Split(secret, "."), clientSecret, "the-code", "description") {
				if err != nil && len(hidden) > 1 && strings.Contains(err.Error(), hidden) {
					t.Errorf("the error shows %q: %v", hidden, err)
				}
			}
		})
	}
}

// A provider that cannot be asked is no refusal of anybody, and is asked again.
func TestProviderDown(t *testing.T) {
	p := newOP(t)
	provider := p.provider(t, identity.Config{}, nil)
	p.closed = true
	if _, _, err := provider.Begin(t.Context()); err == nil || errors.Is(err, identity.ErrUnauthenticated) {
		t.Errorf("began: %v", err)
	}
	p.closed = false
	secret, answer := p.begin(t, provider)
	p.status = http.StatusServiceUnavailable
	if got, _, err := provider.Finish(t.Context(), secret, answer); err == nil || got.Valid() {
		t.Errorf("finished: %+v, %v", got, err)
	}
	p.CloseClientConnections()
	p.Close()
	if got, _, err := provider.Finish(t.Context(), secret, answer); err == nil || errors.Is(err, identity.ErrUnauthenticated) || got.Valid() {
		t.Errorf("finished: %+v, %v", got, err)
	}
}

// One person has one subject, by whichever way; two people never share one.
func TestGuests(t *testing.T) {
	p, q := newOP(t), newIDP(t)
	other := q.config()
	for name, tt := range map[string]struct {
		issuers []identity.JWT
		want    string
	}{
		"no other issuer":       {want: "alice"},
		"the same issuer":       {issuers: []identity.JWT{p.config()}, want: "alice"},
		"another issuer":        {issuers: []identity.JWT{other}, want: p.URL + "|alice"},
		"the same and another":  {issuers: []identity.JWT{p.config(), other}, want: p.URL + "|alice"},
		"two that are not this": {issuers: []identity.JWT{other, newIDP(t).config()}, want: p.URL + "|alice"},
	} {
		provider := p.provider(t, identity.Config{JWT: tt.issuers}, nil)
		secret, answer := p.begin(t, provider)
		got, _, err := provider.Finish(t.Context(), secret, answer)
		if err != nil || got.Subject != tt.want {
			t.Errorf("%s: %q, %v, want %q", name, got.Subject, err, tt.want)
		}
	}
}

// What the operator changes meanwhile ends a sign-in.
func TestGuestsAgain(t *testing.T) {
	p := newOP(t)
	a := authenticator(t, identity.Config{})
	provider, err := a.NewProvider(identity.ProviderConfig{Issuer: p.URL, ClientID: "toolgate", Redirect: "x", Client: p.Client()})
	if err != nil {
		t.Fatal(err)
	}
	alice := policy.Principal{Subject: "alice", Issuer: p.URL, Roles: []string{"treasurer"}}
	if _, err := provider.Again(t.Context(), alice); err != nil {
		t.Error(err)
	}
	stranger := alice
	stranger.Issuer = "https://former.example"
	if got, err := provider.Again(t.Context(), stranger); !errors.Is(err, identity.ErrUnauthenticated) || got.Valid() {
		t.Errorf("a guest of another provider: %+v, %v", got, err)
	}
	for name, c := range map[string]identity.Config{
		"a token has the subject":    {Tokens: []identity.Token{{Subject: "alice", SHA256: identity.HashToken("x")}}},
		"the subject is another one": {JWT: []identity.JWT{newIDP(t).config()}},
	} {
		if err := a.Apply(c); err != nil {
			t.Fatal(err)
		}
		if got, err := provider.Again(t.Context(), alice); !errors.Is(err, identity.ErrUnauthenticated) || got.Valid() {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if got, err := provider.Again(t.Context(), policy.Principal{}); err == nil {
		t.Errorf("nobody is %+v", got)
	}
}

func TestProviderFaults(t *testing.T) {
	a := authenticator(t, identity.Config{})
	good := identity.ProviderConfig{Issuer: "https://idp.example", ClientID: "x", Redirect: "https://gate.example/x"}
	if _, err := a.NewProvider(good); err != nil {
		t.Error(err)
	}
	for _, change := range []func(*identity.ProviderConfig){
		func(c *identity.ProviderConfig) { c.Issuer = "http://idp.example" },
		func(c *identity.ProviderConfig) { c.Issuer = "idp.example" },
		func(c *identity.ProviderConfig) { c.Issuer = "" },
		func(c *identity.ProviderConfig) { c.Issuer = "https://" },
		func(c *identity.ProviderConfig) { c.Issuer = "https://[::1" },
		func(c *identity.ProviderConfig) { c.ClientID = "" },
		func(c *identity.ProviderConfig) { c.Redirect = "" },
	} {
		c := good
		change(&c)
		if _, err := a.NewProvider(c); err == nil {
			t.Errorf("%+v is taken", c)
		}
	}
}
