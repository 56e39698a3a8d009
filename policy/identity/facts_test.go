package identity_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
)

// typed signs claims with a typ header.
func (p *idp) typed(t *testing.T, typ string, claims map[string]any) string {
	t.Helper()
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: p.ec, KeyID: "ec"}}, (&jose.SignerOptions{}).WithType(jose.ContentType(typ)))
	if err != nil {
		t.Fatal(err)
	}
	return signWith(t, s, claims)
}

// actors is a chain of n actors.
func actors(n int) (chain map[string]any) {
	for range n {
		chain = map[string]any{"sub": "x", "act": chain}
	}
	return chain
}

// Where no issuer is trusted, a token of the form of a JWT is as unknown as another.
func TestNoIssuers(t *testing.T) {
	a := authenticator(t, identity.Config{Tokens: []identity.Token{agent()}})
	if _, err := a.Identify(t.Context(), identity.Credential{Bearer: "a.b.c"}); identity.KindOf(err) != identity.Unknown {
		t.Error(err)
	}
}

// A token has three parts.
func TestReadJWT(t *testing.T) {
	good := "e30.e30."
	for token, ok := range map[string]bool{good: true, "e30.e30": false, "e30": false, good + ".": false, "": false, "x.e30.": false, "e30.W10.": false} {
		if _, err := identity.ReadJWT(token); (err == nil) != ok {
			t.Errorf("%q: %v", token, err)
		}
	}
}

// TestKinds holds why each credential is refused, in words that do not change.
func TestKinds(t *testing.T) {
	p := newIDP(t)
	untrusted, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	old, gone := agent(), agent()
	old.SHA256, old.Expires = identity.HashToken("old"), clock
	gone.SHA256 = identity.HashToken("gone")
	with := func(change map[string]any) string { return sign(t, jose.ES256, p.ec, "ec", p.claims(change)) }
	revoked := with(map[string]any{"jti": "1"})
	config := identity.Config{
		Tokens: []identity.Token{agent(), old, gone}, JWT: []identity.JWT{p.config()}, Client: p.Client(), Now: func() time.Time { return clock },
		Revoked: revoking(gone.SHA256, identity.HashToken(revoked)),
	}
	a := authenticator(t, config)
	for name, tt := range map[string]struct {
		token string
		want  identity.Kind
	}{
		"a good token":             {secret, ""},
		"no token":                 {"", identity.Missing},
		"an unknown token":         {"x", identity.Unknown},
		"one that is too long":     {strings.Repeat("x", 1<<20), identity.Malformed},
		"no JWT":                   {"a.b.c", identity.Malformed},
		"an expired token":         {"old", identity.Expiry},
		"a revoked token":          {"gone", identity.Revoked},
		"a good JWT":               {with(nil), ""},
		"a revoked JWT":            {revoked, identity.Revoked},
		"another issuer":           {with(map[string]any{"iss": "https://evil"}), identity.Issuer},
		"another audience":         {with(map[string]any{"aud": "other"}), identity.Audience},
		"an expired JWT":           {with(map[string]any{"exp": clock.Add(-time.Second).Unix()}), identity.Expiry},
		"never expires":            {with(map[string]any{"exp": nil}), identity.Expiry},
		"a minute early":           {with(map[string]any{"nbf": clock.Add(time.Minute).Unix()}), ""},
		"later":                    {with(map[string]any{"nbf": clock.Add(61 * time.Second).Unix()}), identity.NotYet},
		"much later":               {with(map[string]any{"nbf": clock.Add(time.Hour).Unix()}), identity.NotYet},
		"issued later":             {with(map[string]any{"iat": clock.Add(61 * time.Second).Unix()}), identity.NotYet},
		"a day long":               {with(map[string]any{"exp": clock.Add(24 * time.Hour).Unix()}), ""},
		"longer than a day":        {with(map[string]any{"exp": clock.Add(24*time.Hour + time.Second).Unix()}), identity.Lifetime},
		"longer, without iat":      {with(map[string]any{"iat": nil, "exp": clock.Add(25 * time.Hour).Unix()}), identity.Lifetime},
		"an unknown key":           {sign(t, jose.ES256, p.ec, "new", p.claims(nil)), identity.KeyID},
		"another's signature":      {sign(t, jose.ES256, untrusted, "ec", p.claims(nil)), identity.Signature},
		"an algorithm by default":  {sign(t, jose.PS256, p.rsa, "rsa", p.claims(nil)), identity.Algorithm},
		"at+jwt":                   {p.typed(t, "at+JWT", p.claims(nil)), ""},
		"a logout token":           {p.typed(t, "logout+jwt", p.claims(nil)), identity.Type},
		"typ is a claim too":       {with(map[string]any{"typ": "Bearer", "alg": "none", "kid": "x"}), ""},
		"no subject":               {with(map[string]any{"sub": nil}), identity.Subject},
		"the subject of a token":   {with(map[string]any{"sub": "agent-7"}), identity.Subject},
		"roles of another form":    {with(map[string]any{"roles": 1}), identity.Claims},
		"a person of another form": {with(map[string]any{"person": []string{"ann"}}), identity.Claims},
		"a person without a name":  {with(map[string]any{"person": ""}), identity.Claims},
		"an actor without a name":  {with(map[string]any{"act": map[string]any{}}), identity.Claims},
		"an actor's issuer":        {with(map[string]any{"act": map[string]any{"sub": "x", "iss": 5}}), identity.Claims},
		"an actor's subject":       {with(map[string]any{"act": map[string]any{"sub": 5, "client_id": "x"}}), identity.Claims},
		"a chain of actors":        {with(map[string]any{"act": actors(8)}), ""},
		"a longer chain of actors": {with(map[string]any{"act": actors(9)}), identity.Claims},
		"bound to a certificate":   {with(map[string]any{"cnf": map[string]any{"x5t#S256": "x"}}), identity.Proof},
		"bound to a key":           {with(map[string]any{"cnf": map[string]any{"jkt": "x"}}), identity.Proof},
		"bound to nothing":         {with(map[string]any{"cnf": "x"}), identity.Proof},
		"an actor who may not":     {with(map[string]any{"act": map[string]any{"sub": "x"}, "may_act": map[string]any{"sub": "y"}}), identity.Claims},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := a.Identify(t.Context(), identity.Credential{Bearer: tt.token})
			if got := identity.KindOf(err); got != tt.want || (err == nil) != (tt.want == "") {
				t.Errorf("got %q (%v), want %q", got, err, tt.want)
			}
		})
	}
	p.down.Store(true)
	config.Client = nil // other keys are fetched
	config.JWT[0].JWKS += "?v=2"
	a = authenticator(t, config)
	if _, err := a.Identify(t.Context(), identity.Credential{Bearer: with(nil)}); identity.KindOf(err) != identity.Unfetched || !store.Away(err) {
		t.Errorf("without keys: %v", err)
	}
	if all := a.Issuers(); len(all) != 1 || all[0].Ready || all[0].Fault == "" {
		t.Errorf("issuers without keys: %+v", all)
	}
	p.down.Store(false)
	for end := time.Now().Add(10 * time.Second); !a.Issuers()[0].Ready && time.Now().Before(end); {
		a.FetchKeys(t.Context())
	}
	if _, err := a.Identify(t.Context(), identity.Credential{Bearer: with(nil)}); err != nil {
		t.Errorf("after the keys were fetched: %v", err)
	}
}

// TestIssuerBounds holds that an issuer's own bounds replace the defaults.
func TestIssuerBounds(t *testing.T) {
	p := newIDP(t)
	c := p.config()
	c.Algorithms, c.Types, c.MaxLifetime, c.Skew = []string{"PS256"}, []string{"at+jwt"}, time.Minute, time.Second
	a := authenticator(t, identity.Config{JWT: []identity.JWT{c}, Client: p.Client(), Now: func() time.Time { return clock }})
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.PS256, Key: jose.JSONWebKey{Key: p.rsa, KeyID: "rsa"}}, (&jose.SignerOptions{}).WithType("at+jwt"))
	if err != nil {
		t.Fatal(err)
	}
	short := map[string]any{"exp": clock.Add(time.Minute).Unix()}
	for want, token := range map[identity.Kind]string{
		"":                 signWith(t, signer, p.claims(short)),
		identity.Algorithm: p.typed(t, "at+jwt", p.claims(short)),
		identity.Type:      sign(t, jose.PS256, p.rsa, "rsa", p.claims(short)),
		identity.Lifetime:  signWith(t, signer, p.claims(map[string]any{"exp": clock.Add(61 * time.Second).Unix()})),
		identity.NotYet:    signWith(t, signer, p.claims(map[string]any{"exp": clock.Add(time.Minute).Unix(), "nbf": clock.Add(2 * time.Second).Unix()})),
	} {
		if _, err := a.Identify(t.Context(), identity.Credential{Bearer: token}); identity.KindOf(err) != want || (err == nil) != (want == "") {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestFacts holds what policies learn of whom a credential names.
func TestFacts(t *testing.T) {
	p, q := newIDP(t), newIDP(t)
	now := func() time.Time { return clock }
	owned := agent()
	owned.Person, owned.Tenant = "ann", "acme"
	c := p.config()
	c.PersonClaim, c.TenantClaim = "profile.email", "org"
	claims := p.claims(map[string]any{
		"profile": map[string]any{"email": "ann"}, "org": "acme", "azp": "cli",
		"act": map[string]any{"sub": "agent-9", "act": map[string]any{"client_id": "gateway", "iss": "https://other"}}, "may_act": map[string]any{"sub": "agent-9"},
	})
	want := policy.Principal{Subject: "alice", Person: "ann", Issuer: p.URL, Roles: []string{"treasurer"}, ClientID: "cli", Tenant: "acme",
		Actors: []string{"agent-9", "https://other|gateway"}, MayAct: []string{"agent-9"}, Until: inAnHour}
	one := authenticator(t, identity.Config{Tokens: []identity.Token{owned}, JWT: []identity.JWT{c}, Client: p.Client(), Now: now})
	accepted(t, one, identity.Credential{Bearer: sign(t, jose.ES256, p.ec, "ec", claims)}, want)
	accepted(t, one, identity.Credential{Bearer: secret}, policy.Principal{Subject: "agent-7", Person: "ann", Tenant: "acme", Roles: []string{"researcher"}})

	two := authenticator(t, identity.Config{JWT: []identity.JWT{c, q.config()}, Client: p.Client(), Now: now})
	want.Subject, want.Actors, want.MayAct = p.URL+"|alice", []string{p.URL + "|agent-9", "https://other|gateway"}, []string{p.URL + "|agent-9"}
	accepted(t, two, identity.Credential{Bearer: sign(t, jose.ES256, p.ec, "ec", claims)}, want)
	accepted(t, two, identity.Credential{Bearer: sign(t, jose.ES256, q.ec, "ec", q.claims(map[string]any{"person": "ann", "client_id": "web", "azp": "cli"}))},
		policy.Principal{Subject: q.URL + "|alice", Person: "ann", Issuer: q.URL, Roles: []string{"treasurer"}, ClientID: "web", Until: inAnHour})
}

// TestRotation: two tokens of one subject overlap; each ends by itself, and what a token
// began ends with it.
func TestRotation(t *testing.T) {
	var now atomic.Int64
	old, next := agent(), agent()
	old.Expires, next.SHA256 = clock.Add(time.Hour), identity.HashToken("next")
	a := authenticator(t, identity.Config{Tokens: []identity.Token{old, next}, Now: func() time.Time { return clock.Add(time.Duration(now.Load())) }})
	agent7 := policy.Principal{Subject: "agent-7", Roles: []string{"researcher"}}
	accepted(t, a, identity.Credential{Bearer: secret}, agent7)
	accepted(t, a, identity.Credential{Bearer: "next"}, agent7)
	accepted(t, a, identity.Credential{Earlier: &agent7, Hash: old.SHA256}, agent7)
	now.Store(int64(time.Hour))
	refused(t, a, identity.Credential{Bearer: secret})
	refused(t, a, identity.Credential{Earlier: &agent7, Hash: old.SHA256})
	accepted(t, a, identity.Credential{Bearer: "next"}, agent7)
	accepted(t, a, identity.Credential{Earlier: &agent7}, agent7)
}
