package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"time"
)

// issuedFor is the audience of the issuer's tokens.
const issuedFor = "bench"

// An issuer has its keys on loopback and signs the access tokens of a site's agent.
type issuer struct {
	*httptest.Server
	key ed25519.PrivateKey
}

func newIssuer() (*issuer, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	i := &issuer{key: private}
	i.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var document any = map[string]string{"issuer": i.URL, "jwks_uri": i.URL + "/keys"}
		if r.URL.Path == "/keys" {
			document = map[string]any{"keys": []any{map[string]string{"kty": "OKP", "crv": "Ed25519", "kid": "1", "x": base64.RawURLEncoding.EncodeToString(public)}}}
		}
		_ = json.NewEncoder(w).Encode(document) // a toolgate that has ended needs no keys
	}))
	return i, nil
}

// token returns an access token as RFC 9068 describes it, good for 12 hours.
func (i *issuer) token() string {
	part := func(members map[string]any) string {
		text, _ := json.Marshal(members) // texts and numbers alone: it cannot fail
		return base64.RawURLEncoding.EncodeToString(text)
	}
	now := time.Now()
	signed := part(map[string]any{"alg": "EdDSA", "kid": "1", "typ": "at+jwt"}) + "." + part(map[string]any{
		"iss": i.URL, "sub": "issued-agent", "aud": issuedFor, "client_id": "bench", "scope": "media payments", "roles": []string{"agent"},
		"iat": now.Unix(), "exp": now.Add(12 * time.Hour).Unix(),
	})
	return signed + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(i.key, []byte(signed)))
}
