package identity_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
)

// certificate makes a certificate with names of each kind, from one name.
func certificate(t *testing.T, name string, until time.Time) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name, Organization: []string{"Example"}}, NotBefore: clock.Add(-time.Hour), NotAfter: until,
		URIs: []*url.URL{{Scheme: "spiffe", Host: "example.org", Path: "/" + name}}, DNSNames: []string{name + ".example.org"}, EmailAddresses: []string{name + "@example.org"},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestCertificates is the table of whom a certificate names.
func TestCertificates(t *testing.T) {
	a := authenticator(t, identity.Config{Now: func() time.Time { return clock }, Tokens: []identity.Token{agent()}, Certificates: []identity.Certificate{
		{URI: "spiffe://example.org/one", As: "by-uri", Roles: []string{"r"}}, {DNS: "two.example.org", As: "by-dns", Person: "ann", Tenant: "acme"},
		{Email: "three@example.org", As: "by-mail"}, {Subject: "CN=four,O=Example", As: "by-subject"}, {DNS: "one.example.org", As: "later"},
	}})
	for name, want := range map[string]policy.Principal{
		"one": {Subject: "by-uri", Roles: []string{"r"}}, "two": {Subject: "by-dns", Person: "ann", Tenant: "acme"}, "three": {Subject: "by-mail"}, "four": {Subject: "by-subject"},
		"five": {}, "One": {}, "two.example.org": {}, "*": {},
	} {
		shown := certificate(t, name, clock.Add(time.Hour))
		who, err := a.Identify(t.Context(), identity.Credential{Certificate: shown})
		if who.Subject != want.Subject || who.Person != want.Person || who.Tenant != want.Tenant || strings.Join(who.Roles, " ") != strings.Join(want.Roles, " ") || (err == nil) != want.Valid() {
			t.Errorf("%s: %+v, %v; want %+v", name, who, err, want)
		}
		if who, err := a.Identify(t.Context(), identity.Credential{Certificate: shown, Bearer: secret}); err != nil || who.Subject != "agent-7" {
			t.Errorf("%s with a token, which names the principal: %+v, %v", name, who, err)
		}
		if who, err := a.Identify(t.Context(), identity.Credential{Certificate: shown, Bearer: "unknown"}); err == nil {
			t.Errorf("%s with an unknown token: %+v", name, who)
		}
		if _, err := a.Identify(t.Context(), identity.Credential{Earlier: &want}); (err == nil) != want.Valid() {
			t.Errorf("%s: a held call of it: %v", name, err)
		}
	}
	if _, err := a.Identify(t.Context(), identity.Credential{Certificate: certificate(t, "one", clock)}); identity.KindOf(err) != identity.Expiry {
		t.Errorf("an expired certificate: %v", err)
	}
	for want, c := range map[string]identity.Certificate{
		"want one of uri": {As: "x"}, "want one of": {As: "x", URI: "spiffe://x", DNS: "x"}, "subject is empty": {DNS: "x"},
		"is the one of stdio": {DNS: "x", As: "local"}, "a role is empty": {DNS: "x", As: "x", Roles: []string{""}}, "with other roles": {DNS: "x", As: "agent-7", Roles: []string{"other"}},
	} {
		if _, err := identity.New(identity.Config{Tokens: []identity.Token{agent()}, Certificates: []identity.Certificate{c}}); err == nil || !strings.Contains(err.Error(), "mtls[0]: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestBoundTokens is the table of RFC 8705 section 3: a token with the thumbprint of a certificate is
// good with that certificate alone, also when it is known already.
func TestBoundTokens(t *testing.T) {
	p := newIDP(t)
	a := authenticator(t, identity.Config{JWT: []identity.JWT{p.config()}, Client: p.Client(), Now: func() time.Time { return clock }})
	own, other := certificate(t, "one", clock.Add(time.Hour)), certificate(t, "one", clock.Add(time.Hour))
	sum := sha256.Sum256(own.Raw)
	thumbprint := base64.RawURLEncoding.EncodeToString(sum[:])
	for name, tt := range map[string]struct {
		cnf   any
		shown *x509.Certificate
		good  bool
	}{
		"its certificate":          {map[string]any{"x5t#S256": thumbprint}, own, true},
		"another of the same name": {map[string]any{"x5t#S256": thumbprint}, other, false},
		"none":                     {map[string]any{"x5t#S256": thumbprint}, nil, false},
		"and a key":                {map[string]any{"x5t#S256": thumbprint, "jkt": "x"}, own, false},
		"a key alone":              {map[string]any{"jkt": "x"}, own, false},
		"an empty thumbprint":      {map[string]any{"x5t#S256": ""}, own, false},
		"no member":                {map[string]any{}, own, false},
		"bound to nobody":          {nil, nil, true},
	} {
		token := sign(t, jose.ES256, p.ec, "ec", p.claims(map[string]any{"cnf": tt.cnf, "jti": name}))
		for _, shown := range []*x509.Certificate{tt.shown, tt.shown, nil} {
			good := tt.good && (shown != nil || tt.cnf == nil)
			if _, err := a.Identify(t.Context(), identity.Credential{Bearer: token, Certificate: shown}); (err == nil) != good || err != nil && identity.KindOf(err) != identity.Proof {
				t.Errorf("%s, with %v: %v, want good %v", name, shown != nil, err, good)
			}
		}
	}
}

// TestFromRequest: the certificate is that of the connection, and never one of a header.
func TestFromRequest(t *testing.T) {
	own := certificate(t, "one", clock.Add(time.Hour))
	r := httptest.NewRequest(http.MethodPost, "/mcp", nil)
	r.Header.Set("Authorization", "Bearer x")
	for _, name := range []string{"Client-Cert", "X-Forwarded-Client-Cert", "X-SSL-Cert", "Toolgate-Certificate"} {
		r.Header.Set(name, base64.StdEncoding.EncodeToString(own.Raw))
	}
	if c := identity.FromRequest(r, identity.Resource{Door: "/mcp"}); c.Certificate != nil || c.Bearer != "x" || c.At.Door != "/mcp" || c.Source != r.RemoteAddr || c.Malformed {
		t.Errorf("%+v", c)
	}
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{own}}
	r.Header.Set("Authorization", "Basic x")
	if c := identity.FromRequest(r, identity.Resource{}); c.Certificate != own || c.Bearer != "" || !c.Malformed {
		t.Errorf("%+v", c)
	}
}
