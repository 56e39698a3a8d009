package peers_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// TestProofsOfClients holds, at two built programs on one state, that a token which is bound to a key is
// good with one new proof for each request.
func TestProofsOfClients(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public := jose.JSONWebKey{Key: key.Public(), KeyID: "k"}
	signed := func(o *jose.SignerOptions, claims map[string]any) string {
		t.Helper()
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, o)
		if err != nil {
			t.Fatal(err)
		}
		jws, err := signer.Sign([]byte(jsonText(t, claims)))
		if err != nil {
			t.Fatal(err)
		}
		text, err := jws.CompactSerialize()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(jsonText(t, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{public}})))
	}))
	t.Cleanup(issuer.Close)
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "look"}}})
	dir := guarded(t, issuer.URL, scopedPay, httpOf("rec", rec, shared()))
	path := filepath.Join(dir, "mcp.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, strings.Replace(strings.Replace(string(text), `"toolgate": {`, `"toolgate": {"public_url": "https://gate.example",`, 1),
		`"issuer": `, `"jwks": "`+issuer.URL+`/keys", "issuer": `, 1))
	one, two := serveReady(t, dir), serveReady(t, dir)

	sum, err := public.Thumbprint(crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	token := signed((&jose.SignerOptions{}).WithHeader("kid", "k"), map[string]any{"iss": issuer.URL, "sub": "ann", "aud": "https://gate.example/mcp", "roles": []string{"agent"},
		"exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix(), "cnf": map[string]any{"jkt": encode(sum)}})
	proof := func(method, path string) string {
		hash := sha256.Sum256([]byte(token))
		return signed((&jose.SignerOptions{EmbedJWK: true}).WithType("dpop+jwt"), map[string]any{"jti": rand.Text(), "htm": method, "htu": "https://gate.example" + path,
			"iat": time.Now().Unix(), "ath": encode(hash[:])})
	}
	call := func(g *gate, scheme, proof string) asked {
		body, lines := statelessCall("look")
		return ask(t, http.MethodPost, g.Agents+"/mcp/rec", body, append(lines, "Authorization", scheme+" "+token, "DPoP", proof)...)
	}
	first := proof(http.MethodPost, "/mcp/rec")
	if got := call(one, "DPoP", first); got.code != http.StatusOK || !strings.Contains(got.body, `"result"`) {
		t.Errorf("with a proof: %d %v %s", got.code, got.Header, got.body)
	}
	for name, got := range map[string]asked{
		"again": call(one, "DPoP", first), "at the other program": call(two, "DPoP", first),
		"for another address": call(two, "DPoP", proof(http.MethodPost, "/mcp")), "without": call(two, "DPoP", ""),
	} {
		challenge := got.Get("WWW-Authenticate")
		if got.code != http.StatusUnauthorized || !strings.HasPrefix(challenge, `DPoP resource_metadata="https://gate.example/`) || !strings.Contains(challenge, `error="invalid_dpop_proof", algs="`) {
			t.Errorf("%s: %d %s", name, got.code, challenge)
		}
	}
	if got := call(two, "Bearer", proof(http.MethodPost, "/mcp/rec")); got.code != http.StatusUnauthorized || !strings.HasPrefix(got.Get("WWW-Authenticate"), "Bearer ") {
		t.Errorf("as Bearer: %d %s", got.code, got.Get("WWW-Authenticate"))
	}
	tools := func(proof string) asked {
		return ask(t, http.MethodGet, two.Agents+"/v1/tools?name=rec__look", "", "Accept", "application/json", "Authorization", "DPoP "+token, "DPoP", proof)
	}
	shown := proof(http.MethodGet, "/v1/tools")
	if got := tools(shown); got.code != http.StatusOK {
		t.Errorf("the list over rest: %d %s", got.code, got.body)
	}
	if got := tools(shown); got.code != http.StatusUnauthorized || !strings.HasPrefix(got.Get("WWW-Authenticate"), "DPoP ") {
		t.Errorf("the list over rest, again: %d %s", got.code, got.Get("WWW-Authenticate"))
	}
	if got := ask(t, http.MethodGet, one.Agents+"/.well-known/oauth-protected-resource/mcp", ""); !strings.Contains(got.body, `"dpop_signing_alg_values_supported":["RS256",`) {
		t.Errorf("metadata: %s", got.body)
	}
	wantRuns(t, rec, `{}`, 1)
}
