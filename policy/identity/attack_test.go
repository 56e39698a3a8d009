package identity_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"

	"github.com/toolgate/toolgate/policy/identity"
)

// TestHeadersNameNoKeys holds that the members of a token's header which name or contain keys (RFC
// 7515, sections 4.1.2 to 4.1.6) do not choose who signs, and that nobody is asked for them.
func TestHeadersNameNoKeys(t *testing.T) {
	p, attacker := newIDP(t), newFinder(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	attacker.answers["/keys"] = says(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "ec"}, {Key: key.Public(), KeyID: "own"}}})
	named := p.config()
	asked := named
	asked.Issuer, asked.JWKS = p.URL+"/asked", ""
	served := p.Config.Handler
	p.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/asked/.well-known/openid-configuration" {
			_ = json.NewEncoder(w).Encode(map[string]string{"issuer": p.URL + "/asked", "jwks_uri": p.URL + "/keys"})
			return
		}
		served.ServeHTTP(w, r)
	})
	a := authenticator(t, identity.Config{JWT: []identity.JWT{named, asked}, Client: p.Client(), Now: func() time.Time { return clock }})
	for name, header := range map[string]map[jose.HeaderKey]any{
		"an address of keys":           {"jku": attacker.URL + "/keys"},
		"an address of a certificate":  {"x5u": attacker.URL + "/keys"},
		"a key":                        {"jwk": jose.JSONWebKey{Key: key.Public(), KeyID: "ec"}},
		"both, and of its own issuer":  {"jku": attacker.URL + "/keys", "x5u": p.URL + "/keys"},
		"a key id that is an address":  {"kid": attacker.URL + "/keys"},
		"a certificate's thumbprint":   {"x5t#S256": "x", "jku": attacker.URL + "/keys"},
		"a key, and where it is found": {"jwk": jose.JSONWebKey{Key: key.Public(), KeyID: "own"}, "jku": attacker.URL + "/keys"},
	} {
		for _, issuer := range []string{named.Issuer, asked.Issuer} {
			for _, kid := range []string{"ec", "own", ""} {
				s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: kid}}, &jose.SignerOptions{ExtraHeaders: header})
				if err != nil {
					t.Fatal(err)
				}
				_, err = a.Identify(t.Context(), identity.Credential{Bearer: signWith(t, s, p.claims(map[string]any{"iss": issuer}))})
				if kind := identity.KindOf(err); kind != identity.Signature && kind != identity.KeyID && kind != identity.Keys {
					t.Errorf("%s, of %s with the key id %q: %v", name, issuer, kid, err)
				}
			}
		}
	}
	if n := attacker.asked.Load(); n > 0 {
		t.Errorf("the attacker's server was asked %d times", n)
	}
}

// TestIDTokenIsNoAccessToken holds that what a client learns of its person opens nothing: its
// audience is the client. Where an operator accepts that audience, types keep it out.
func TestIDTokenIsNoAccessToken(t *testing.T) {
	p := newIDP(t)
	listed := resources(p)
	listed.JWT[0].Audience, listed.JWT[0].Types = []string{"client-1"}, []string{"at+jwt"}
	token := sign(t, jose.ES256, p.ec, "ec", p.claims(map[string]any{"aud": "client-1", "azp": "client-1", "nonce": "n", "at_hash": "x"}))
	for want, config := range map[identity.Kind]identity.Config{identity.Audience: resources(p), identity.Type: listed} {
		who, err := authenticator(t, config).Identify(t.Context(), identity.Credential{Bearer: token, At: identity.Resource{Door: "/mcp"}})
		if identity.KindOf(err) != want || who.Valid() {
			t.Errorf("%+v, %v; want the kind %s", who, err, want)
		}
	}
}

// TestTenantsOfOneKeySet: a provider signs for all its tenants with the same keys. A token of
// one that is not named is refused, and one that is cannot speak for another.
func TestTenantsOfOneKeySet(t *testing.T) {
	p := newIDP(t)
	tenant := func(name string) identity.JWT {
		c := p.config()
		c.Issuer += name
		return c
	}
	a := authenticator(t, identity.Config{JWT: []identity.JWT{tenant("/one"), tenant("/two")}, Client: p.Client(), Now: func() time.Time { return clock }})
	for name, want := range map[string]string{"/one": p.URL + "/one|alice", "/two": p.URL + "/two|alice", "/three": "", "/one/": "", "/ONE": "", "": ""} {
		who, err := a.Identify(t.Context(), identity.Credential{Bearer: sign(t, jose.ES256, p.ec, "ec", p.claims(map[string]any{"iss": p.URL + name}))})
		if who.Subject != want || want == "" && identity.KindOf(err) != identity.Issuer {
			t.Errorf("a token of %q: %+v, %v", name, who, err)
		}
	}
}

// TestSlowIssuer holds that an issuer which does not answer, or not to the end, is given up: its
// tokens are refused, and what waits for it goes on.
func TestSlowIssuer(t *testing.T) {
	p := newIDP(t)
	const itself = "/.well-known/openid-configuration"
	for name, slow := range map[string]struct{ path, begins string }{
		"no answer about itself": {itself, ""}, "half an answer about itself": {itself, `{"issuer": `}, "no keys": {"/keys", ""}, "half of its keys": {"/keys", `{"keys": [`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, end := newFinder(t), make(chan struct{})
			defer close(end)
			f.answers[itself], f.answers["/keys"] = says(map[string]any{"issuer": f.URL, "jwks_uri": f.URL + "/keys"}), keysOf(p)
			f.answers[slow.path] = func(w http.ResponseWriter, _ *http.Request) {
				if slow.begins != "" {
					_, _ = w.Write([]byte(slow.begins))
					_ = http.NewResponseController(w).Flush()
				}
				<-end
			}
			a := authenticator(t, identity.Config{JWT: []identity.JWT{{Issuer: f.URL, Audience: []string{"toolgate"}}}, Now: func() time.Time { return clock }})
			token := sign(t, jose.ES256, p.ec, "ec", p.claims(map[string]any{"iss": f.URL}))
			given := make(chan error, 2)
			go func() {
				a.FetchKeys(t.Context())
				given <- nil
			}()
			go func() {
				if _, err := a.Identify(t.Context(), identity.Credential{Bearer: token}); identity.KindOf(err) != identity.Unfetched {
					given <- fmt.Errorf("its token: %w", err)
					return
				}
				given <- nil
			}()
			late := time.After(30 * time.Second)
			for range 2 {
				select {
				case err := <-given:
					if err != nil {
						t.Error(err)
					}
				case <-late:
					t.Fatal("it is waited for")
				}
			}
		})
	}
}
