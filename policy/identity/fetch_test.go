package identity_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
)

// Keys are not fetched through a redirect, and not beyond a size: a server that an
// issuer's address leads to must not choose who signs, nor how much memory we use.
func TestKeyFetchIsBounded(t *testing.T) {
	p := newIDP(t)
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: p.ec.Public(), KeyID: "ec"}}})
	if err != nil {
		t.Fatal(err)
	}
	var followed atomic.Bool
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/redirect":
			http.Redirect(w, r, "/followed", http.StatusFound)
			return
		case "/followed":
			followed.Store(true)
		case "/large":
			_, _ = w.Write([]byte(strings.Repeat(" ", 2<<20)))
		}
		_, _ = w.Write(keys)
	}))
	t.Cleanup(srv.Close)
	for path, want := range map[string]bool{"/plain": true, "/redirect": false, "/large": false} {
		c := p.config()
		c.JWKS = srv.URL + path
		a := authenticator(t, identity.Config{JWT: []identity.JWT{c}, Now: func() time.Time { return clock }})
		cred := identity.Credential{Bearer: sign(t, jose.ES256, p.ec, "ec", p.claims(nil))}
		if want {
			accepted(t, a, cred, policy.Principal{Subject: "alice", Issuer: p.URL, Roles: []string{"treasurer"}, Until: inAnHour})
		} else {
			refused(t, a, cred)
		}
	}
	if followed.Load() {
		t.Error("the redirect was followed")
	}
}

// What is no key set leaves its issuer without keys.
func TestNoKeySet(t *testing.T) {
	p := newIDP(t)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/failing" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		if r.URL.Path == "/empty" {
			_, _ = w.Write([]byte(`{"keys":[]}`))
			return
		}
		_, _ = w.Write([]byte(`{"keys":[{"kty":"OKP","kid":"x","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`))
	}))
	t.Cleanup(srv.Close)
	for path, ready := range map[string]bool{"/good": true, "/failing": false, "/empty": false} {
		c := p.config()
		c.JWKS = srv.URL + path
		a := authenticator(t, identity.Config{JWT: []identity.JWT{c}})
		for range 20 { // more than are sent: the cause stays the server's
			a.FetchKeys(t.Context())
		}
		if is := a.Issuers()[0]; is.Ready != ready || strings.Contains(is.Fault, "pace") || strings.Contains(is.Fault, "often") || (is.Fault == "") != ready {
			t.Errorf("%s: %+v", path, is)
		}
	}
}

// An OpenID provider is not discovered through a redirect either.
func TestDiscoveryIsNotRedirected(t *testing.T) {
	p := newOP(t)
	provider := p.provider(t, identity.Config{}, nil)
	const path = "/.well-known/openid-configuration"
	served, moved := p.Config.Handler, new(atomic.Bool)
	p.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == path {
			moved.Store(true)
			http.Redirect(w, r, "/moved", http.StatusFound)
			return
		}
		if r.URL.Path == "/moved" {
			r.URL.Path = path
		}
		served.ServeHTTP(w, r)
	})
	if _, _, err := provider.Begin(t.Context()); err == nil || !moved.Load() {
		t.Errorf("began through a redirect: %v", err)
	}
}
