package peers_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	jose "github.com/go-jose/go-jose/v4"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// TestTokenForAServer holds that toolgate gets a token of its own for a server that trusts an
// authorization server, by secret and by key: the server is a toolgate too.
func TestTokenForAServer(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	pemText := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	keys := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k", Use: "sig", Algorithm: "ES256"}}}
	agent := []string{"agent"}
	as := openIssuer(t, map[string]map[string]any{"by-secret": {"roles": agent}, "by-key": {"roles": agent, "jwks": keys}, "nobody": {"roles": []string{}}})
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "look"}}})
	behind := configure(t, setup{servers: []server{httpOf("rec", rec, shared())}, policy: allowAll + "\n\nvisible if \"agent\" in input.principal.roles"})
	path := filepath.Join(behind, "mcp.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, strings.Replace(string(text), `"identity": {`, fmt.Sprintf(`"identity": {"jwt": [{"issuer": %q, "audience": ["urn:toolgate"]}], `, as.url), 1))
	inner := serveReady(t, behind)

	front := func(client string, more map[string]any) string {
		credential := map[string]any{"type": "client_credentials", "token_url": as.url + "/token", "client_id": client}
		for name, value := range more {
			credential[name] = value
		}
		return configure(t, setup{servers: []server{{"inner", map[string]any{"url": inner.Agents + "/mcp"}, map[string]any{"credential": credential}}}})
	}
	secret := map[string]any{"client_secret": "client-secret"}
	for i, dir := range []string{front("by-secret", secret), front("by-key", map[string]any{"private_key": pemText, "key_id": "k"})} {
		g := serveReady(t, dir)
		got := openHTTP(t, g.Agents+"/mcp", agentToken).exchange(t, callMessage("1", "inner__rec__look", fmt.Sprintf(`{"n":%d}`, i)))
		if end := outcome(t, got); end != "done" {
			t.Errorf("client %d: %s", i, end)
		}
		wantRuns(t, rec, fmt.Sprintf(`{"n":%d}`, i), 1)
	}
	if out, code := runCommand(t, behind, "audit", "tail", "-o", "json"); code != 0 || !strings.Contains(out, `"by-secret"`) || !strings.Contains(out, `"by-key"`) || strings.Contains(out, `"agent-token"`) {
		t.Errorf("the trail of the server, exit %d: %s", code, out)
	}
	if out, code := runCommand(t, front("by-secret", map[string]any{"client_secret": "wrong-secret-0123"}), "check", "-o", "json"); !strings.Contains(out, "status 401 invalid_client") || strings.Contains(out, "wrong-secret") {
		t.Errorf("check with another secret: exit %d, %s", code, out)
	}
	if out, code := runCommand(t, front("nobody", secret), "check", "-o", "json"); strings.Contains(out, "rec__look") {
		t.Errorf("check without a role: exit %d, %s", code, out)
	}
}
