package app

import (
	"encoding/base64"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// TestKeysWereNeverFetched holds that a token whose issuer was never reached gets 503 and may come again
// soon, at every door, and that it counts as no guess, however often it is shown. A guess does.
func TestKeysWereNeverFetched(t *testing.T) {
	const tries = 30 // three times as many as may be wrong
	dir := t.TempDir()
	write(t, filepath.Join(dir, "mcp.json"), `{"mcpServers": {}, "toolgate": {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "identity": {"jwt": [{"issuer": "http://127.0.0.1:1"}]}}}`)
	l := running(t, dir)
	agents, people := "http://"+l.Agents.Addr().String(), "http://"+l.People.Addr().String()
	part := base64.RawURLEncoding.EncodeToString
	token := part([]byte(`{"alg":"ES256","kid":"k"}`)) + "." + part([]byte(`{"iss":"http://127.0.0.1:1","sub":"a","aud":"x","exp":4000000000}`)) + ".AA"
	ask := func(method, address, bearer string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+bearer)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode, res.Header.Get("Retry-After")
	}
	doors := map[string]string{agents + "/mcp": http.MethodPost, agents + "/sse": http.MethodGet, agents + "/v1/tools": http.MethodGet, people + "/v1/approvals": http.MethodGet}
	for address, method := range doors {
		for n := range tries {
			if code, after := ask(method, address, token); code != http.StatusServiceUnavailable || after == "" {
				t.Fatalf("%s, token %d: %d, Retry-After %q", address, n, code, after)
			}
		}
	}
	if code, _ := ask(http.MethodPost, agents+"/mcp", "guess"); code != http.StatusUnauthorized {
		t.Errorf("the first guess: %d", code)
	}
	code := 0
	for range tries {
		code, _ = ask(http.MethodPost, agents+"/mcp", "guess")
	}
	if code != http.StatusTooManyRequests {
		t.Errorf("many guesses: %d", code)
	}
}
