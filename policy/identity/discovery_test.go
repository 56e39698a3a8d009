package identity_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy/identity"
)

// finder is an issuer that says where its keys are.
type finder struct {
	*httptest.Server
	answers map[string]func(w http.ResponseWriter, r *http.Request) // by path
	asked   atomic.Int64
}

func newFinder(t *testing.T) *finder {
	f := &finder{answers: map[string]func(http.ResponseWriter, *http.Request){}}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.asked.Add(1)
		if answer := f.answers[r.URL.Path]; answer != nil {
			answer(w, r)
			return
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(f.Close)
	return f
}

// says answers with a document.
func says(document any) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(document) }
}

// keysOf answers with the key set of p.
func keysOf(p *idp) func(http.ResponseWriter, *http.Request) {
	return says(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: p.ec.Public(), KeyID: "ec"}}})
}

// TestDiscovery is the table of where an issuer may say where its keys are, and of the
// answers that count as none.
func TestDiscovery(t *testing.T) {
	p := newIDP(t)
	const oauth, openid = "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"
	type document = map[string]any
	for name, tt := range map[string]struct {
		path    string // of the issuer
		answers func(f *finder, issuer string)
		fault   string // "" = the keys are found
	}{
		"RFC 8414": {"", func(f *finder, issuer string) {
			f.answers[oauth] = says(document{"issuer": issuer, "jwks_uri": f.URL + "/keys"})
		}, ""},
		"OpenID": {"", func(f *finder, issuer string) {
			f.answers[openid] = says(document{"issuer": issuer, "jwks_uri": f.URL + "/keys"})
		}, ""},
		"a tenant": {"/t/1", func(f *finder, issuer string) {
			f.answers[oauth+"/t/1"] = says(document{"issuer": issuer, "jwks_uri": f.URL + "/keys"})
		}, ""},
		"OpenID 2": {"/t/1", func(f *finder, issuer string) {
			f.answers[openid+"/t/1"] = says(document{"issuer": issuer, "jwks_uri": f.URL + "/keys"})
		}, ""},
		"after it": {"/t/1", func(f *finder, issuer string) {
			f.answers["/t/1"+openid] = says(document{"issuer": issuer, "jwks_uri": f.URL + "/keys"})
		}, ""},
		"none": {"", func(*finder, string) {}, "answered 404"},
		"a lie": {"", func(f *finder, _ string) {
			f.answers[openid] = says(document{"issuer": "https://idp.example", "jwks_uri": f.URL + "/keys"})
		}, "another issuer"},
		"nearly it": {"", func(f *finder, issuer string) {
			f.answers[openid] = says(document{"issuer": issuer + "/", "jwks_uri": f.URL + "/keys"})
		}, "another issuer"},
		"another tenant": {"/t/1", func(f *finder, _ string) {
			f.answers["/t/1"+openid] = says(document{"issuer": f.URL + "/t/2", "jwks_uri": f.URL + "/keys"})
		}, "another issuer"},
		"no keys": {"", func(f *finder, issuer string) { f.answers[oauth] = says(document{"issuer": issuer}) }, "no key set"},
		"keys in http": {"", func(f *finder, issuer string) {
			f.answers[oauth] = says(document{"issuer": issuer, "jwks_uri": "http://idp.example/keys"})
		}, "not fetched over https"},
		"a file": {"", func(f *finder, issuer string) {
			f.answers[oauth] = says(document{"issuer": issuer, "jwks_uri": "file:///etc/passwd"})
		}, "no key set"},
		"a private key server": {"", func(f *finder, issuer string) {
			f.answers[oauth] = says(document{"issuer": issuer, "jwks_uri": "https://10.0.0.1/keys"})
		}, "not public"},
		"a redirect": {"", func(f *finder, issuer string) {
			f.answers[oauth] = http.RedirectHandler("/elsewhere", http.StatusFound).ServeHTTP
			f.answers["/elsewhere"] = says(document{"issuer": issuer, "jwks_uri": f.URL + "/keys"})
		}, "answered 404"}, // of the next address
		"too large": {"", func(f *finder, issuer string) {
			f.answers[openid] = func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprintf(w, `{"a":%q,"issuer":%q,"jwks_uri":%q}`, strings.Repeat("x", 2<<20), issuer, f.URL+"/keys")
			}
		}, "cannot be read"},
		"no JSON": {"", func(f *finder, _ string) { f.answers[openid] = says("hello") }, "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFinder(t)
			issuer := f.URL + tt.path
			f.answers["/keys"] = keysOf(p)
			tt.answers(f, issuer)
			a := authenticator(t, identity.Config{JWT: []identity.JWT{{Issuer: issuer, Audience: []string{"toolgate"}}}, Now: func() time.Time { return clock }})
			token := sign(t, jose.ES256, p.ec, "ec", p.claims(map[string]any{"iss": issuer}))
			who, err := a.Identify(t.Context(), identity.Credential{Bearer: token})
			status := a.Issuers()[0]
			if tt.fault == "" && (err != nil || who.Subject != "alice" || !status.Ready) {
				t.Errorf("%+v, %v, %+v", who, err, status)
			}
			if tt.fault != "" && (identity.KindOf(err) != identity.Unfetched || !store.Away(err) || status.Ready || !strings.Contains(status.Fault, tt.fault)) {
				t.Errorf("%+v, %v, %+v; want the fault %q", who, err, status, tt.fault)
			}
		})
	}
}

// TestPrivateIssuer holds that no packet goes to an address inside, unless the operator says
// that the issuer is there.
func TestPrivateIssuer(t *testing.T) {
	for _, host := range []string{
		"0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "192.0.0.8", "198.18.0.1", "224.0.0.1", "255.255.255.255",
		"[::]", "[fe80::1]", "[fd00::1]", "[ff02::1]", "[::ffff:10.0.0.1]", "[64:ff9b::a00:1]", "[2002:a00:1::]",
	} {
		a := authenticator(t, identity.Config{JWT: []identity.JWT{{Issuer: "https://" + host, Audience: []string{"toolgate"}}}})
		a.FetchKeys(t.Context())
		if got := a.Issuers()[0]; got.Ready || !strings.Contains(got.Fault, "not public") {
			t.Errorf("%s: %+v", host, got)
		}
	}
}

// TestIssuerThatIsAway holds that a start without the issuer is followed by a look for it, that
// strangers do not steer how often it is asked, and that its keys stay when it goes away again.
func TestIssuerThatIsAway(t *testing.T) {
	p, f := newIDP(t), newFinder(t)
	a := authenticator(t, identity.Config{JWT: []identity.JWT{{Issuer: f.URL, Audience: []string{"toolgate"}}}, Now: func() time.Time { return clock }})
	shown := func(n int) error {
		_, err := a.Identify(t.Context(), identity.Credential{Bearer: sign(t, jose.ES256, p.ec, "ec", p.claims(map[string]any{"iss": f.URL, "jti": fmt.Sprint(n)}))})
		return err
	}
	for n := range 100 {
		if err := shown(n); identity.KindOf(err) != identity.Unfetched {
			t.Fatalf("before the issuer is there: %v", err)
		}
	}
	if asked := f.asked.Load(); asked > 2*10 {
		t.Errorf("100 tokens made %d requests", asked)
	}
	f.answers["/.well-known/openid-configuration"] = says(map[string]any{"issuer": f.URL, "jwks_uri": f.URL + "/keys"})
	f.answers["/keys"] = keysOf(p)
	if a.FetchKeys(t.Context()); !a.Issuers()[0].Ready {
		for end := time.Now().Add(10 * time.Second); !a.Issuers()[0].Ready && time.Now().Before(end); { // the pace of key sets
			a.FetchKeys(t.Context())
		}
	}
	if err := shown(100); err != nil {
		t.Fatalf("with the issuer: %v", err)
	}
	f.Close()
	if err := shown(101); err != nil {
		t.Errorf("a token of known keys, without the issuer: %v", err)
	}
}
