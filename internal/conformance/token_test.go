package conformance_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"

	"github.com/toolgate/toolgate/internal/testkit/program"
)

// issuer is an authorization server that says where its keys are and signs tokens.
type issuer struct {
	url    string
	signer jose.Signer
}

func startIssuer(t testing.TB) issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "1"}}, (&jose.SignerOptions{}).WithType("at+jwt"))
	if err != nil {
		t.Fatal(err)
	}
	var srv *httptest.Server
	srv = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var document any = map[string]string{"issuer": srv.URL, "jwks_uri": srv.URL + "/keys"}
		if r.URL.Path == "/keys" {
			document = jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "1"}}}
		}
		_ = json.NewEncoder(w).Encode(document)
	}))
	t.Cleanup(srv.Close)
	return issuer{srv.URL, signer}
}

// token returns an access token for a resource, as RFC 9068 describes it.
func (i issuer) token(t testing.TB, resource string) string {
	t.Helper()
	claims, err := json.Marshal(map[string]any{"iss": i.url, "sub": "suite", "aud": resource, "exp": time.Now().Add(time.Hour).Unix()})
	if err != nil {
		t.Fatal(err)
	}
	signed, err := i.signer.Sign(claims)
	if err != nil {
		t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// bearing starts a proxy that adds a token for the resource at address to what it passes on, and
// returns its URL: the suite sends no Authorization of its own. Without the token the resource
// answers 401.
func bearing(t testing.TB, i issuer, resource string) string {
	t.Helper()
	res := program.Get(t, resource, "application/json, text/event-stream")
	if res.Body.Close(); res.StatusCode != http.StatusUnauthorized || res.Header.Get("WWW-Authenticate") == "" {
		t.Fatalf("without a token: %d %v", res.StatusCode, res.Header)
	}
	u, err := url.Parse(resource)
	if err != nil {
		t.Fatal(err)
	}
	authorization := "Bearer " + i.token(t, resource)
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = u.Scheme, u.Host
		r.Out.Header.Set("Authorization", authorization) // the Host stays: a scenario is about it
	}}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex() // a stream may begin before the request is read whole
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	return srv.URL + u.Path
}
