package identity_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
)

const secret = "tg_k3Jx0example"

func agent() identity.Token {
	return identity.Token{Subject: "agent-7", Roles: []string{"researcher"}, SHA256: identity.HashToken(secret)}
}

func authenticator(t testing.TB, c identity.Config) *identity.Authenticator {
	t.Helper()
	a, err := identity.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// refused holds that c gives ErrUnauthenticated, nobody, and no word of it.
func refused(t *testing.T, a *identity.Authenticator, c identity.Credential) {
	t.Helper()
	p, err := a.Identify(t.Context(), c)
	if !errors.Is(err, identity.ErrUnauthenticated) || p.Valid() || p.Roles != nil {
		t.Errorf("got %+v, %v; want nobody and ErrUnauthenticated", p, err)
	}
	if err != nil && len(c.Bearer) > 3 && strings.Contains(err.Error(), c.Bearer[:4]) {
		t.Errorf("the error shows the token: %v", err)
	}
}

func accepted(t *testing.T, a *identity.Authenticator, c identity.Credential, want policy.Principal) {
	t.Helper()
	got, err := a.Identify(t.Context(), c)
	if err != nil {
		t.Errorf("got %v, want %+v", err, want)
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("principal (-want +got):\n%s", diff)
	}
}

func TestLocal(t *testing.T) {
	observer := policy.Principal{Subject: "local", Roles: []string{"observer"}}
	a := authenticator(t, identity.Config{})
	if a.Required() {
		t.Error("a credential is required without configuration")
	}
	accepted(t, a, identity.Credential{}, observer)
	accepted(t, a, identity.Credential{Local: true}, observer)
	refused(t, a, identity.Credential{Bearer: secret})
	refused(t, a, identity.Credential{Bearer: secret, Local: true})
	refused(t, a, identity.Credential{Malformed: true})

	a = authenticator(t, identity.Config{LocalRole: "treasurer"})
	accepted(t, a, identity.Credential{}, policy.Principal{Subject: "local", Roles: []string{"treasurer"}})
}

func TestTokens(t *testing.T) {
	a := authenticator(t, identity.Config{Tokens: []identity.Token{agent()}})
	want := policy.Principal{Subject: "agent-7", Roles: []string{"researcher"}}
	if !a.Required() {
		t.Error("no credential is required with tokens")
	}
	accepted(t, a, identity.Credential{Bearer: secret}, want)
	accepted(t, a, identity.Credential{Bearer: secret, Local: true}, want)
	refused(t, a, identity.Credential{Local: true})
	for _, bearer := range []string{
		"", "x", secret + " ", " " + secret, strings.ToUpper(secret), secret[:len(secret)-1], secret + "x",
		identity.HashToken(secret), strings.Repeat("a", 1<<20), "a.b.c", "..",
	} {
		refused(t, a, identity.Credential{Bearer: bearer})
	}
	p, _ := a.Identify(t.Context(), identity.Credential{Bearer: secret})
	p.Roles[0] = "treasurer"
	accepted(t, a, identity.Credential{Bearer: secret}, want)
}

func TestConfiguredButEmpty(t *testing.T) {
	a := authenticator(t, identity.Config{Configured: true})
	refused(t, a, identity.Credential{})
	refused(t, a, identity.Credential{Bearer: secret})
	refused(t, a, identity.Credential{Local: true})
	a = authenticator(t, identity.Config{Configured: true, Local: true})
	refused(t, a, identity.Credential{})
	accepted(t, a, identity.Credential{Local: true}, policy.Principal{Subject: "local", Roles: []string{"observer"}})
}

func TestApply(t *testing.T) {
	a := authenticator(t, identity.Config{Tokens: []identity.Token{agent()}})
	if err := a.Apply(identity.Config{Tokens: []identity.Token{{Subject: "x", SHA256: "zz"}}}); err == nil {
		t.Error("a broken configuration was applied")
	}
	accepted(t, a, identity.Credential{Bearer: secret}, policy.Principal{Subject: "agent-7", Roles: []string{"researcher"}})
	other := agent()
	other.SHA256 = identity.HashToken("other")
	if err := a.Apply(identity.Config{Tokens: []identity.Token{other}}); err != nil {
		t.Fatal(err)
	}
	refused(t, a, identity.Credential{Bearer: secret})
	accepted(t, a, identity.Credential{Bearer: "other"}, policy.Principal{Subject: "agent-7", Roles: []string{"researcher"}})
}

func TestFaults(t *testing.T) {
	sound := identity.JWT{Issuer: "https://idp", Audience: []string{"toolgate"}, JWKS: "https://idp/keys"}
	change := func(f func(*identity.JWT)) []identity.JWT {
		j := sound
		f(&j)
		return []identity.JWT{j}
	}
	hash := identity.HashToken("x")
	for want, c := range map[string]identity.Config{
		"jwt[0]: an audience is":    {JWT: change(func(j *identity.JWT) { j.Audience = []string{"toolgate", ""} })},
		"jwt[0]: jwks is not a URL": {JWT: change(func(j *identity.JWT) { j.JWKS = "https://[::1" })},
		"max_lifetime or skew":      {JWT: change(func(j *identity.JWT) { j.MaxLifetime = -1 })},
		"jwt[0]: max_lifetime or":   {JWT: change(func(j *identity.JWT) { j.Skew = -1 })},
		"subject is empty":          {Tokens: []identity.Token{{SHA256: hash}}},
		"stdio without a token":     {Tokens: []identity.Token{{Subject: "local", SHA256: hash}}},
		"not 64 hexadecimal":        {Tokens: []identity.Token{{Subject: "a", SHA256: hash[2:]}}},
		"tokens[1]: sha256 is configured twice": {Tokens: []identity.Token{
			{Subject: "a", SHA256: hash}, {Subject: "b", SHA256: strings.ToUpper(hash)}}},
		"tokens[1]: subject \"a\" is configured with other roles": {Tokens: []identity.Token{
			{Subject: "a", SHA256: hash}, {Subject: "a", SHA256: identity.HashToken("y"), Roles: []string{"r"}}}},
		"algorithms: want some of": {JWT: change(func(j *identity.JWT) { j.Algorithms = []string{"HS256"} })},
		"role is empty":            {Tokens: []identity.Token{{Subject: "a", SHA256: hash, Roles: []string{""}}}},
		"issuer is empty":          {JWT: change(func(j *identity.JWT) { j.Issuer = "" })},
		"an audience is empty":     {JWT: change(func(j *identity.JWT) { j.Audience = []string{""} })},
		"issuer must be fetched":   {JWT: change(func(j *identity.JWT) { j.Issuer, j.JWKS = "http://idp", "" })},
		"jwks is not a URL":        {JWT: change(func(j *identity.JWT) { j.JWKS = "keys.json" })},
		"jwks must be fetched":     {JWT: change(func(j *identity.JWT) { j.JWKS = "http://idp/keys" })},
		"issuer \"https://idp\" i": {JWT: []identity.JWT{sound, sound}},
	} {
		if _, err := identity.New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
	_, err := identity.New(identity.Config{Tokens: []identity.Token{{}, {Subject: "a"}}, JWT: []identity.JWT{{}}})
	if err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("got %v, want all three faults", err)
	}
	if _, err := identity.New(identity.Config{JWT: []identity.JWT{sound}}); err != nil {
		t.Errorf("sound configuration: %v", err)
	}
}

func TestParseBearer(t *testing.T) {
	for header, want := range map[string]string{
		"": "", "Bearer abc": "abc", "bearer abc": "abc", "BEARER  a.b-c_~+/=": "a.b-c_~+/=",
	} {
		if got, err := identity.ParseBearer(header); got != want || err != nil {
			t.Errorf("%q: got %q, %v; want %q", header, got, err, want)
		}
	}
	for _, header := range []string{
		"Bearer", "Bearer ", "Basic abc", "abc", " Bearer abc", "Bearer a b", "Bearer abc ", "Bearer a,b", "Bearer \"a\"", "Bearerabc", "Bearer é",
	} {
		if got, err := identity.ParseBearer(header); got != "" || !errors.Is(err, identity.ErrUnauthenticated) {
			t.Errorf("%q: got %q, %v; want ErrUnauthenticated", header, got, err)
		}
	}
}

// TestMalformedCredential: a malformed credential is nobody's, never none.
func TestMalformedCredential(t *testing.T) {
	for _, tt := range []struct {
		lines []string
		token string
		ok    bool
	}{
		{nil, "", true},
		{[]string{"Bearer abc"}, "abc", true},
		{[]string{"bearer   abc"}, "abc", true},
		{[]string{""}, "", false},
		{[]string{"Bearer"}, "", false},
		{[]string{"Bearer "}, "", false},
		{[]string{"Bearer a b"}, "", false},
		{[]string{"Basic bG9jYWw6"}, "", false},
		{[]string{"abc"}, "", false},
		{[]string{"Bearer abc", "Bearer abc"}, "", false},
		{[]string{"", "Bearer abc"}, "", false},
	} {
		h := http.Header{}
		if tt.lines != nil {
			h["Authorization"] = tt.lines
		}
		got := identity.FromRequest(&http.Request{Header: h}, identity.Resource{})
		if want := (identity.Credential{Bearer: tt.token, Malformed: !tt.ok}); got != want {
			t.Errorf("Authorization %q: %+v, want %+v", tt.lines, got, want)
		}
	}
}

func FuzzParseBearer(f *testing.F) {
	f.Add("Bearer abc")
	f.Add("bearer  x==")
	f.Fuzz(func(t *testing.T, header string) {
		token, err := identity.ParseBearer(header)
		switch {
		case err != nil && token != "":
			t.Errorf("%q: token %q with an error", header, token)
		case err == nil && token == "" && header != "":
			t.Errorf("%q became no credential", header)
		case err == nil && !strings.HasSuffix(header, token):
			t.Errorf("%q: token %q is not its end", header, token)
		case err == nil && token != "":
			if again, err := identity.ParseBearer("Bearer " + token); again != token || err != nil {
				t.Errorf("%q: read again %q, %v", header, again, err)
			}
		}
	})
}

// idp is an identity provider on loopback.
type idp struct {
	*httptest.Server
	rsa     *rsa.PrivateKey
	ec      *ecdsa.PrivateKey
	ed      ed25519.PrivateKey
	fetches atomic.Int32
	down    atomic.Bool
}

func newIDP(t testing.TB) *idp {
	t.Helper()
	p := new(idp)
	var errs [3]error
	p.rsa, errs[0] = rsa.GenerateKey(rand.Reader, 2048)
	p.ec, errs[1] = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	_, p.ed, errs[2] = ed25519.GenerateKey(rand.Reader)
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	keys := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{
		{Key: p.rsa.Public(), KeyID: "rsa"}, {Key: p.ec.Public(), KeyID: "ec"}, {Key: p.ed.Public(), KeyID: "ed"},
	}}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.fetches.Add(1)
		if p.down.Load() || r.URL.Path != "/keys" {
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
			return
		}
		_ = json.NewEncoder(w).Encode(keys)
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *idp) config() identity.JWT {
	return identity.JWT{Issuer: p.URL, Audience: []string{"toolgate", "toolgate-2"}, JWKS: p.URL + "/keys"}
}

func (p *idp) claims(change map[string]any) map[string]any {
	c := map[string]any{"iss": p.URL, "sub": "alice", "aud": "toolgate", "exp": clock.Add(time.Hour).Unix(), "iat": clock.Unix(), "roles": []string{"treasurer"}}
	for k, v := range change {
		if c[k] = v; v == nil {
			delete(c, k)
		}
	}
	return c
}

var (
	clock    = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	inAnHour = clock.Add(time.Hour) // when the tokens of an idp run out
)

func sign(t testing.TB, alg jose.SignatureAlgorithm, key any, kid string, claims map[string]any) string {
	t.Helper()
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{Key: key, KeyID: kid}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return signWith(t, s, claims)
}

func signWith(t testing.TB, s jose.Signer, claims map[string]any) string {
	t.Helper()
	raw, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	jws, err := s.Sign(raw)
	if err != nil {
		t.Fatal(err)
	}
	out, err := jws.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (p *idp) authenticator(t testing.TB, now *atomic.Int64) *identity.Authenticator {
	t.Helper()
	return authenticator(t, identity.Config{
		JWT: []identity.JWT{p.config()}, Client: p.Client(),
		Now: func() time.Time { return clock.Add(time.Duration(now.Load())) },
	})
}

func TestJWT(t *testing.T) {
	p := newIDP(t)
	a := p.authenticator(t, new(atomic.Int64))
	alice := policy.Principal{Subject: "alice", Issuer: p.URL, Roles: []string{"treasurer"}, Until: inAnHour}
	for kid, key := range map[string]struct {
		alg jose.SignatureAlgorithm
		key crypto.Signer
	}{"rsa": {jose.RS256, p.rsa}, "ec": {jose.ES256, p.ec}, "ed": {jose.EdDSA, p.ed}} {
		accepted(t, a, identity.Credential{Bearer: sign(t, key.alg, key.key, kid, p.claims(nil))}, alice)
	}
	for name, c := range map[string]struct {
		change map[string]any
		want   policy.Principal
	}{
		"second audience":  {map[string]any{"aud": []string{"x", "toolgate-2"}}, alice},
		"one role":         {map[string]any{"roles": "observer"}, policy.Principal{Subject: "alice", Issuer: p.URL, Roles: []string{"observer"}, Until: inAnHour}},
		"no roles":         {map[string]any{"roles": nil}, policy.Principal{Subject: "alice", Issuer: p.URL, Until: inAnHour}},
		"role by another":  {map[string]any{"roles": nil, "role": "admin", "Roles": []string{"admin"}}, policy.Principal{Subject: "alice", Issuer: p.URL, Until: inAnHour}},
		"claims of itself": {map[string]any{"client": "x", "tenant": "y"}, alice},
	} {
		t.Run(name, func(t *testing.T) {
			accepted(t, a, identity.Credential{Bearer: sign(t, jose.ES256, p.ec, "ec", p.claims(c.change))}, c.want)
		})
	}
}

func TestRolesClaim(t *testing.T) {
	p := newIDP(t)
	for claim, roles := range map[string]any{
		"groups": []string{"a", "b"}, "realm_access.roles": []string{"a", "b"}, "https://x.example/roles": []string{"a", "b"},
	} {
		c := p.config()
		c.RolesClaim = claim
		a := authenticator(t, identity.Config{JWT: []identity.JWT{c}, Client: p.Client(), Now: func() time.Time { return clock }})
		change := map[string]any{claim: roles}
		if head, rest, ok := strings.Cut(claim, "."); ok && head == "realm_access" {
			change = map[string]any{head: map[string]any{rest: roles}}
		}
		accepted(t, a, identity.Credential{Bearer: sign(t, jose.ES256, p.ec, "ec", p.claims(change))},
			policy.Principal{Subject: "alice", Issuer: p.URL, Roles: []string{"a", "b"}, Until: inAnHour})
	}
}

// TestForged is the table of credentials that must never become somebody.
func TestForged(t *testing.T) {
	p := newIDP(t)
	a := p.authenticator(t, new(atomic.Int64))
	untrusted, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(p.rsa.Public())
	if err != nil {
		t.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	sound := sign(t, jose.ES256, p.ec, "ec", p.claims(nil))
	parts := strings.Split(sound, ".")
	part := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	with := func(change map[string]any) string { return sign(t, jose.ES256, p.ec, "ec", p.claims(change)) }
	promoted, _ := json.Marshal(p.claims(map[string]any{"roles": []string{"admin"}}))
	for name, token := range map[string]string{
		"signed by another key":  sign(t, jose.ES256, untrusted, "ec", p.claims(nil)),
		"unknown key id":         sign(t, jose.ES256, untrusted, "new", p.claims(nil)),
		"changed payload":        parts[0] + "." + part(string(promoted)) + "." + parts[2],
		"no signature":           parts[0] + "." + parts[1] + ".",
		"alg none":               part(`{"alg":"none"}`) + "." + parts[1] + ".",
		"alg none, signed":       part(`{"alg":"none","kid":"ec"}`) + "." + parts[1] + "." + parts[2],
		"public key as secret":   sign(t, jose.HS256, public, "rsa", p.claims(nil)),
		"algorithm not pinned":   sign(t, jose.PS256, p.rsa, "rsa", p.claims(nil)),
		"expired":                with(map[string]any{"exp": clock.Add(-time.Second).Unix()}),
		"never expires":          with(map[string]any{"exp": nil}),
		"not yet":                with(map[string]any{"nbf": clock.Add(time.Hour).Unix()}),
		"wrong audience":         with(map[string]any{"aud": "other"}),
		"no audience":            with(map[string]any{"aud": nil}),
		"unknown issuer":         with(map[string]any{"iss": "https://evil"}),
		"no issuer":              with(map[string]any{"iss": nil}),
		"issuer is a list":       with(map[string]any{"iss": []string{p.URL}}),
		"no subject":             with(map[string]any{"sub": nil}),
		"the local subject":      with(map[string]any{"sub": "local"}),
		"roles are a number":     with(map[string]any{"roles": 1}),
		"roles hold a number":    with(map[string]any{"roles": []any{"a", 1}}),
		"payload is no JSON":     parts[0] + "." + part("x") + "." + parts[2],
		"payload is no base64":   parts[0] + ".!!." + parts[2],
		"whole thing as a token": identity.HashToken(sound),
	} {
		t.Run(name, func(t *testing.T) { refused(t, a, identity.Credential{Bearer: token}) })
	}
	accepted(t, a, identity.Credential{Bearer: sound}, policy.Principal{Subject: "alice", Issuer: p.URL, Roles: []string{"treasurer"}, Until: inAnHour})
}

// TestSubjects holds that an issuer cannot name somebody else's principal.
func TestSubjects(t *testing.T) {
	p, q := newIDP(t), newIDP(t)
	now := func() time.Time { return clock }
	a := authenticator(t, identity.Config{Tokens: []identity.Token{agent()}, JWT: []identity.JWT{p.config()}, Client: p.Client(), Now: now})
	refused(t, a, identity.Credential{Bearer: sign(t, jose.ES256, p.ec, "ec", p.claims(map[string]any{"sub": "agent-7"}))})
	a = authenticator(t, identity.Config{JWT: []identity.JWT{p.config(), q.config()}, Client: p.Client(), Now: now})
	for _, each := range []*idp{p, q} {
		accepted(t, a, identity.Credential{Bearer: sign(t, jose.ES256, each.ec, "ec", each.claims(nil))},
			policy.Principal{Subject: each.URL + "|alice", Issuer: each.URL, Roles: []string{"treasurer"}, Until: inAnHour})
	}
	refused(t, a, identity.Credential{Bearer: sign(t, jose.ES256, p.ec, "ec", q.claims(nil))})
}

// TestRecall holds how long a verified token is believed without its issuer.
func TestRecall(t *testing.T) {
	p := newIDP(t)
	var now atomic.Int64
	a := p.authenticator(t, &now)
	short := sign(t, jose.ES256, p.ec, "ec", p.claims(map[string]any{"exp": clock.Add(10 * time.Second).Unix()}))
	alice := policy.Principal{Subject: "alice", Issuer: p.URL, Roles: []string{"treasurer"}, Until: inAnHour}
	shortly := alice
	shortly.Until = clock.Add(10 * time.Second)
	accepted(t, a, identity.Credential{Bearer: short}, shortly)
	now.Store(int64(9 * time.Second))
	accepted(t, a, identity.Credential{Bearer: short}, shortly)
	now.Store(int64(11 * time.Second))
	refused(t, a, identity.Credential{Bearer: short})

	now.Store(0)
	long := sign(t, jose.ES256, p.ec, "ec", p.claims(nil))
	accepted(t, a, identity.Credential{Bearer: long}, alice)
	p.down.Store(true)
	c := p.config()
	if err := a.Apply(identity.Config{JWT: []identity.JWT{c}, Client: p.Client(), Now: func() time.Time { return clock }}); err != nil {
		t.Fatal(err)
	}
	accepted(t, a, identity.Credential{Bearer: long}, alice) // the keys were kept
	c.JWKS += "?v=2"
	if err := a.Apply(identity.Config{JWT: []identity.JWT{c}, Client: p.Client(), Now: func() time.Time { return clock }}); err != nil {
		t.Fatal(err)
	}
	refused(t, a, identity.Credential{Bearer: long})
}

func TestKeyServerDown(t *testing.T) {
	p := newIDP(t)
	a := p.authenticator(t, new(atomic.Int64))
	token := sign(t, jose.ES256, p.ec, "ec", p.claims(nil))
	p.down.Store(true)
	refused(t, a, identity.Credential{Bearer: token})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.Identify(ctx, identity.Credential{Bearer: token}); !errors.Is(err, identity.ErrUnauthenticated) {
		t.Errorf("dead context: got %v", err)
	}
	p.down.Store(false)
	// The fetch that the dead caller began may still be under way, and who joins
	// it hears what it hears.
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		if _, err := a.Identify(t.Context(), identity.Credential{Bearer: token}); err == nil {
			break
		}
	}
	accepted(t, a, identity.Credential{Bearer: token}, policy.Principal{Subject: "alice", Issuer: p.URL, Roles: []string{"treasurer"}, Until: inAnHour})
}

// TestStrangersDoNotSteerFetches holds that unknown key ids cannot make us
// hammer the issuer.
func TestStrangersDoNotSteerFetches(t *testing.T) {
	p := newIDP(t)
	a := p.authenticator(t, new(atomic.Int64))
	for range 40 {
		refused(t, a, identity.Credential{Bearer: sign(t, jose.ES256, p.ec, rand.Text(), p.claims(nil))})
	}
	if n := p.fetches.Load(); n > 10 {
		t.Errorf("40 forged tokens made %d fetches", n)
	}
}

// TestEarlier holds who goes on without showing a credential again: the subject
// decides, by what is configured now.
func TestEarlier(t *testing.T) {
	p, q := newIDP(t), newIDP(t)
	config := func(tokens []identity.Token, issuers ...identity.JWT) *identity.Authenticator {
		return authenticator(t, identity.Config{Tokens: tokens, JWT: issuers, LocalRole: "operator", Configured: true, Local: true,
			Client: p.Client(), Now: func() time.Time { return clock }})
	}
	both, one := config([]identity.Token{agent()}, p.config(), q.config()), config([]identity.Token{agent()}, p.config())
	none := config(nil)
	alice := policy.Principal{Subject: "alice", Roles: []string{"treasurer"}, Until: inAnHour}
	named := func(subject string) policy.Principal {
		return policy.Principal{Subject: subject, Roles: alice.Roles, Until: inAnHour}
	}
	for name, tt := range map[string]struct {
		by   *identity.Authenticator
		was  policy.Principal
		want policy.Principal // nobody when it is refused
	}{
		"a token's roles are those of now":   {one, policy.Principal{Subject: "agent-7", Roles: []string{"admin"}}, policy.Principal{Subject: "agent-7", Roles: []string{"researcher"}}},
		"what it called itself is gone":      {one, policy.Principal{Subject: "agent-7", Client: "x/1"}, policy.Principal{Subject: "agent-7", Roles: []string{"researcher"}}},
		"local has the role of this process": {none, policy.Principal{Subject: "local", Roles: []string{"admin"}}, policy.Principal{Subject: "local", Roles: []string{"operator"}}},
		"a valid token's roles stay":         {one, alice, alice},
		"one of two issuers":                 {both, named(p.URL + "|alice"), named(p.URL + "|alice")},
		"a token that was removed":           {none, policy.Principal{Subject: "agent-7", Roles: []string{"researcher"}}, policy.Principal{}},
		"of another tenant":                  {one, policy.Principal{Subject: "agent-7", Tenant: "x"}, policy.Principal{}},
		"nobody":                             {one, policy.Principal{}, policy.Principal{}},
		"nobody for a while":                 {one, policy.Principal{Until: inAnHour}, policy.Principal{}},
		"no issuer is trusted any more":      {none, alice, policy.Principal{}},
		"the token has expired":              {one, policy.Principal{Subject: "alice", Until: clock}, policy.Principal{}},
		"an issuer that was removed":         {one, named(q.URL + "|alice"), policy.Principal{}},
		"named as under one issuer":          {both, alice, policy.Principal{}},
		"the subject is a token's by now":    {one, named("agent-7"), policy.Principal{}},
		"the subject is local":               {one, named("local"), policy.Principal{}},
	} {
		t.Run(name, func(t *testing.T) {
			c := identity.Credential{Earlier: &tt.was}
			if !tt.want.Valid() {
				refused(t, tt.by, c)
				return
			}
			accepted(t, tt.by, c, tt.want)
		})
	}
	was := policy.Principal{Subject: "agent-7"}
	refused(t, one, identity.Credential{Earlier: &was, Bearer: "x"}) // what is shown decides
	gone := authenticator(t, identity.Config{JWT: []identity.JWT{p.config()}, Client: p.Client(), Now: func() time.Time { return clock },
		Revoked: revoking(identity.HashToken("gone"))})
	accepted(t, gone, identity.Credential{Earlier: &alice, Hash: identity.HashToken("other")}, alice)
	refused(t, gone, identity.Credential{Earlier: &alice, Hash: identity.HashToken("gone")})
	accepted(t, one, identity.Credential{Earlier: &was, Local: true}, policy.Principal{Subject: "local", Roles: []string{"operator"}})
}

// BenchmarkIdentify: a configured token, a token of an issuer that is known, and one at its first
// sight, by the algorithm of its signature. The issuer's keys are there.
func BenchmarkIdentify(b *testing.B) {
	p := newIDP(b)
	c := p.config()
	c.MaxLifetime = 1 << 62
	for _, bb := range []struct {
		name, token string
		first       bool
	}{
		{"configured", secret, false},
		{"known", sign(b, jose.ES256, p.ec, "ec", p.claims(nil)), false},
		{"first/RS256", sign(b, jose.RS256, p.rsa, "rsa", p.claims(map[string]any{"exp": math.MaxUint32})), true},
		{"first/ES256", sign(b, jose.ES256, p.ec, "ec", p.claims(map[string]any{"exp": math.MaxUint32})), true},
		{"first/EdDSA", sign(b, jose.EdDSA, p.ed, "ed", p.claims(map[string]any{"exp": math.MaxUint32})), true},
	} {
		b.Run(bb.name, func(b *testing.B) {
			var later atomic.Int64
			a := authenticator(b, identity.Config{Tokens: []identity.Token{agent()}, JWT: []identity.JWT{c}, Client: p.Client(),
				Now: func() time.Time { return clock.Add(time.Duration(later.Load())) }})
			a.FetchKeys(b.Context())
			b.ReportAllocs()
			for b.Loop() {
				if _, err := a.Identify(b.Context(), identity.Credential{Bearer: bb.token}); err != nil {
					b.Fatal(err)
				}
				if bb.first {
					later.Add(int64(61 * time.Second)) // a known token is forgotten after 60 s
				}
			}
		})
	}
}
