package credential_test

import (
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/npm"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

var formAction = regexp.MustCompile(`action="([^"]+)"`)

// signIn is the browser of a person at the pages of oidc-provider: it signs in and agrees, and
// returns the parameters with which it is sent back to callback.
func signIn(t *testing.T, address, name string) url.Values {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	var back url.Values
	browser := http.Client{Jar: jar, CheckRedirect: func(r *http.Request, _ []*http.Request) error {
		if strings.HasPrefix(r.URL.String(), callback) {
			back = r.URL.Query()
			return http.ErrUseLastResponse
		}
		return nil
	}}
	form := url.Values{}
	for range 5 {
		var res *http.Response
		if len(form) == 0 {
			res, err = browser.Get(address)
		} else {
			res, err = browser.PostForm(address, form)
		}
		if err != nil {
			t.Fatal(err)
		}
		page, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if back != nil {
			return back
		}
		action := formAction.FindSubmatch(page)
		if action == nil {
			t.Fatalf("no form at %s: %s", res.Request.URL, page)
		}
		next, err := res.Request.URL.Parse(string(action[1]))
		if err != nil {
			t.Fatal(err)
		}
		address, form = next.String(), url.Values{"prompt": {"consent"}}
		if strings.Contains(string(page), `value="login"`) {
			form = url.Values{"prompt": {"login"}, "login": {name}, "password": {"x"}}
		}
	}
	t.Fatal("the provider asks without end")
	return nil
}

// TestRealAuthorizationServer goes the whole way with oidc-provider, which rotates refresh tokens and
// ends a grant whose refresh token is shown twice.
func TestRealAuthorizationServer(t *testing.T) {
	t.Parallel()
	npm.File(t, "oidc-provider/package.json")
	address := program.FreeAddress(t)
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join("..", "..", "testdata", "npm", "authorization.mjs")
	provider := program.Launch(t, exec.Command(parts.Need(t, "node"), script, port, "60"))
	if !provider.Await(t, "it listens", func() bool { return strings.Contains(provider.Out.String(), "listening") }) {
		t.Fatalf("%v\n%s", provider.Err, provider.Log)
	}
	w := newWorld(t)
	w.as = httptest.NewUnstartedServer(nil)
	w.as.URL = "http://" + address
	w.resource = func(m map[string]any) { m["scopes_supported"] = []string{"payments"} }
	g := w.replica()
	plan, err := g.Plan(t.Context(), w.server(), ann)
	if err != nil || plan.Issuer != "http://"+address || !slices.Equal(plan.Scopes, []string{"offline_access", "payments"}) {
		t.Fatalf("%+v, %v", plan, err)
	}
	page, err := g.Begin(t.Context(), w.server(), ann)
	if err != nil {
		t.Fatal(err)
	}
	made, err := w.finish(g, ann, signIn(t, page, "ann"))
	if err != nil || made.Issuer != plan.Issuer || !slices.Contains(made.Scopes, "payments") {
		t.Fatalf("%+v, %v\n%s", made, err, provider.Log)
	}
	tokens := w.find(g, ann).Tokens
	seen := []string{w.bearer(g, ann)}
	for _, after := range []time.Duration{55 * time.Second, 28 * time.Second, 29 * time.Second} {
		w.clock.forward(after)
		token, err := tokens.Token(t.Context())
		if err != nil || slices.Contains(seen, token) || strings.Count(token, ".") != 2 {
			t.Fatalf("renewal %d: %q, %v\n%s", len(seen), token, err, provider.Log)
		}
		seen = append(seen, token)
	}
	if confirmed, err := g.Revoke(t.Context(), made.ID); err != nil || !confirmed || strings.Contains(w.logged.String(), "could not be revoked") {
		t.Errorf("%v\n%s", err, w.logged.String())
	}
	w.lacks(g, ann, "it was revoked")
}
