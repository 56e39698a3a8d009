package identity_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	jose "github.com/go-jose/go-jose/v4"

	"github.com/toolgate/toolgate/policy/identity"
)

// inProcess serves requests without a network; nil = it cannot be reached.
type inProcess struct{ http.Handler }

func (p *inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	if p.Handler == nil {
		return nil, errors.New("unreachable")
	}
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	return w.Result(), nil
}

// TestKeysAreFetchedAgain holds that a key which its issuer withdrew verifies nothing after 15 minutes,
// that the first token of an added key finds it, and that keys stay while the issuer is away.
func TestKeysAreFetchedAgain(t *testing.T) {
	const issuer = "https://idp.example"
	keys := map[string]*ecdsa.PrivateKey{}
	for _, id := range []string{"one", "two", "three"} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		keys[id] = key
	}
	synctest.Test(t, func(t *testing.T) {
		idp := new(inProcess)
		a := authenticator(t, identity.Config{JWT: []identity.JWT{{Issuer: issuer, Audience: []string{"toolgate"}}}, Client: &http.Client{Transport: idp}})
		serves := func(ids ...string) {
			set := jose.JSONWebKeySet{}
			for _, id := range ids {
				set.Keys = append(set.Keys, jose.JSONWebKey{Key: keys[id].Public(), KeyID: id})
			}
			mux := http.NewServeMux()
			mux.HandleFunc("/.well-known/openid-configuration", says(map[string]string{"issuer": issuer, "jwks_uri": issuer + "/keys"}))
			mux.HandleFunc("/keys", says(set))
			idp.Handler = mux
		}
		fetch := func() {
			a.FetchKeys(t.Context())
			synctest.Wait() // go-oidc keeps the keys after it has returned them
		}
		wants := func(what, id string, kind identity.Kind) {
			t.Helper()
			now := time.Now().Unix()
			claims := map[string]any{"iss": issuer, "sub": "a", "aud": "toolgate", "iat": now, "exp": now + 3600, "jti": rand.Text()}
			if _, err := a.Identify(t.Context(), identity.Credential{Bearer: sign(t, jose.ES256, keys[id], id, claims)}); identity.KindOf(err) != kind || (err == nil) != (kind == "") {
				t.Errorf("%s: %v, want %q", what, err, kind)
			}
		}
		serves("one", "two")
		fetch()
		wants("a key", "one", "")
		serves("two")
		time.Sleep(14 * time.Minute)
		fetch()
		wants("a key that was withdrawn a moment ago", "one", "")
		time.Sleep(2 * time.Minute)
		fetch()
		wants("a key that was withdrawn", "one", identity.KeyID)
		wants("a key that stays", "two", "")
		serves("two", "three")
		time.Sleep(time.Minute)
		wants("a key that was added", "three", "")
		idp.Handler = nil
		time.Sleep(time.Hour)
		if fetch(); a.Issuers()[0].Fault == "" || !a.Issuers()[0].Ready {
			t.Errorf("while the issuer is away: %+v", a.Issuers()[0])
		}
		wants("a key while the issuer is away", "three", "")
	})
}

// TestIssuersAtHome holds that an issuer at localhost needs neither https nor private, and that private
// admits an address inside: there, its certificate is refused in place of the address.
func TestIssuersAtHome(t *testing.T) {
	p, f := newIDP(t), newFinder(t)
	local := strings.Replace(f.URL, "127.0.0.1", "localhost", 1)
	f.answers["/.well-known/openid-configuration"] = says(map[string]string{"issuer": local, "jwks_uri": local + "/keys"})
	f.answers["/keys"] = keysOf(p)
	inside := httptest.NewUnstartedServer(http.NotFoundHandler())
	inside.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that fail
	inside.StartTLS()
	t.Cleanup(inside.Close)
	address := strings.Replace(inside.URL, "127.0.0.1", "0.0.0.0", 1) // the system connects to this machine; it is not a loopback address
	for _, tt := range []struct {
		issuer  string
		private bool
		fault   string
	}{{local, false, ""}, {address, false, "not public"}, {address, true, "certificate"}} {
		a := authenticator(t, identity.Config{JWT: []identity.JWT{{Issuer: tt.issuer, Private: tt.private}}})
		a.FetchKeys(t.Context())
		if got := a.Issuers()[0]; got.Ready != (tt.fault == "") || !strings.Contains(got.Fault, tt.fault) || tt.private && strings.Contains(got.Fault, "not public") {
			t.Errorf("%+v, want the fault %q", got, tt.fault)
		}
	}
}
