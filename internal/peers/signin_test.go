package peers_test

import (
	"crypto/sha256"
	"fmt"
	"html"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// cookies returns every cookie to the host and port that set it, as browsers do on
// loopback, also Secure cookies.
type cookies map[string]map[string]string

func (c cookies) SetCookies(u *url.URL, list []*http.Cookie) {
	if c[u.Host] == nil {
		c[u.Host] = map[string]string{}
	}
	for _, one := range list {
		c[u.Host][one.Name] = one.Value
		if one.MaxAge < 0 || one.Value == "" {
			delete(c[u.Host], one.Name)
		}
	}
}

func (c cookies) Cookies(u *url.URL) (list []*http.Cookie) {
	for name, value := range c[u.Host] {
		list = append(list, &http.Cookie{Name: name, Value: value})
	}
	return list
}

// browserSession is one person with a browser.
type browserSession struct {
	t    *testing.T
	http *http.Client
	at   *url.URL // address of the current page
	text string
	code int
}

func newBrowserSession(t *testing.T) *browserSession {
	return &browserSession{t: t, http: &http.Client{Jar: cookies{}, Timeout: timeout}}
}

func (v *browserSession) show(res *http.Response, err error) *browserSession {
	v.t.Helper()
	if err != nil {
		v.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		v.t.Fatal(err)
	}
	v.at, v.text, v.code = res.Request.URL, string(text), res.StatusCode
	return v
}

func (v *browserSession) open(address string) *browserSession {
	v.t.Helper()
	return v.show(v.http.Get(address))
}

var (
	forms      = regexp.MustCompile(`(?s)<form[^>]*>.*?</form>`)
	formAction = regexp.MustCompile(`^<form[^>]* action="([^"]*)"`)
	hidden     = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)"`)
)

// send submits a form of the current page with its hidden fields. to selects the
// form by the end of its address.
func (v *browserSession) send(to string, fields ...string) *browserSession {
	v.t.Helper()
	for _, text := range forms.FindAllString(v.text, -1) {
		address := html.UnescapeString(formAction.FindStringSubmatch(text)[1])
		if !strings.HasSuffix(address, to) {
			continue
		}
		form := url.Values{}
		for _, field := range hidden.FindAllStringSubmatch(text, -1) {
			form.Set(html.UnescapeString(field[1]), html.UnescapeString(field[2]))
		}
		for i := 0; i < len(fields); i += 2 {
			form.Set(fields[i], fields[i+1])
		}
		u, err := v.at.Parse(address)
		if err != nil {
			v.t.Fatal(err)
		}
		return v.show(v.http.PostForm(u.String(), form))
	}
	v.t.Fatalf("%s has no form for %q: %d\n%s", v.at, to, v.code, v.text)
	return nil
}

// signedIn returns the subject that is signed in at the console, "" for none.
func (v *browserSession) signedIn(console string) string {
	v.t.Helper()
	found := regexp.MustCompile(`signed in as <strong>([^<]*)</strong>`).FindStringSubmatch(v.open(console + "/console/login").text)
	if found == nil {
		return ""
	}
	return found[1]
}

// openProvider starts a third-party OpenID provider at an address, for the console
// at admin.
func openProvider(t *testing.T, address, admin string) *program.Process {
	t.Helper()
	return launchProvider(t, "provider.mjs", address, admin+"/console/login/callback")
}

// TestSigningInAtAProvider: people sign in at an OpenID provider and their votes
// count. While the provider is down toolgate serves, and people can sign in with
// tokens.
func TestSigningInAtAProvider(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	requirePart(t, "oidc-provider/package.json")
	address := program.FreeAddress(t)
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "pay"}}})
	dir := configure(t, setup{servers: []server{httpOf("rec", rec, shared())}, policy: holdAll})
	path := filepath.Join(dir, "mcp.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, strings.Replace(string(text), `"toolgate": {`, fmt.Sprintf(`"toolgate": {
    "console": { "oidc": { "issuer": "http://%s", "client_id": "toolgate", "client_secret": "provider-secret" } },`, address), 1))
	g := serveReady(t, dir)

	carol := newBrowserSession(t).open(g.Admin + "/console/login/provider")
	if carol.code != http.StatusServiceUnavailable {
		t.Errorf("without the provider: %d\n%s", carol.code, carol.text)
	}
	carol.send("/console/login", "token", approverToken)
	if who := carol.signedIn(g.Admin); who != "carol" {
		t.Fatalf("by token: %q", who)
	}

	openProvider(t, address, g.Admin)
	agent := openHTTP(t, g.Agents+"/mcp", agentToken)
	ticket := "/console/approvals/" + holdCall(t, agent, "rec__pay", `{"n":1}`)
	ann := newBrowserSession(t).open(g.Admin + ticket) // the link in a notice
	ann.open(g.Admin + "/console/login/provider?next=" + ticket)
	ann.send("", "login", "ann", "password", "any") // sign in
	ann.send("")                                    // consent
	if ann.at.String() != g.Admin+ticket || ann.code != http.StatusOK {
		t.Fatalf("after signing in: %s, %d\n%s", ann.at, ann.code, ann.text)
	}
	if ann.send("/vote", "vote", "approve"); ann.code != http.StatusOK {
		t.Fatalf("voting: %d\n%s", ann.code, ann.text)
	}
	if got := outcome(t, agent.exchange(t, callMessage("2", "rec__pay", `{"n":1}`))); got != "done" {
		t.Errorf("the call after the approval: %s", got)
	}
	wantRuns(t, rec, `{"n":1}`, 1)

	if who := ann.signedIn(g.Admin); who != "ann" {
		t.Errorf("signed in as %q", who)
	}
	ann.signOut(g.Admin)
	if res := newBrowserSession(t).open(g.Admin + "/console/login/callback?code=x&state=y"); res.code != http.StatusUnauthorized {
		t.Errorf("a callback without a sign-in: %d", res.code)
	}
	if text := g.Log.String() + g.Out.String(); strings.Contains(text, "provider-secret") || strings.Contains(text, approverToken) {
		t.Errorf("a secret is in the log:\n%s", text)
	}
}

// signInAt signs ann in at the provider, for the console at admin.
func (v *browserSession) signInAt(admin string) {
	v.t.Helper()
	v.open(admin + "/console/login/provider")
	v.send("", "login", "ann", "password", "any") // sign in
	v.send("")                                    // consent
	if who := v.signedIn(admin); who != "ann" {
		v.t.Fatalf("signed in as %q", who)
	}
}

// signOut signs out at the console at admin, and at the provider.
func (v *browserSession) signOut(admin string) {
	v.t.Helper()
	v.signedIn(admin)
	link := regexp.MustCompile(`href="([^"]*/session/end[^"]*)"`).FindStringSubmatch(v.send("/logout").text)
	if link == nil {
		v.t.Fatalf("no link to the provider: %d\n%s", v.code, v.text)
	}
	v.open(html.UnescapeString(link[1])).send("/session/end/confirm", "logout", "yes")
	if !strings.HasPrefix(v.at.String(), admin+"/console/login?") || !strings.Contains(v.text, "signed out here and at your organisation") {
		v.t.Errorf("after signing out at the provider: %s, %d\n%s", v.at, v.code, v.text)
	}
	if who := v.signedIn(admin); who != "" {
		v.t.Errorf("signed in as %q after signing out", who)
	}
	if v.open(admin + "/console/login/provider"); !strings.Contains(v.text, `name="password"`) {
		v.t.Errorf("the provider does not ask who signs in: %s, %d\n%s", v.at, v.code, v.text)
	}
}

// moved gives the browser's cookies of one console to another.
func (v *browserSession) moved(from, to string) *browserSession {
	v.t.Helper()
	jar := v.http.Jar.(cookies)
	jar[strings.TrimPrefix(to, "http://")] = maps.Clone(jar[strings.TrimPrefix(from, "http://")])
	return v
}

// TestProviderEndsSessions: a session is good at each of two toolgates on one state and after a
// kill; when ann signs out at the provider, it ends at both at once.
func TestProviderEndsSessions(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	requirePart(t, "oidc-provider/package.json")
	address, dir := program.FreeAddress(t), t.TempDir()
	write(t, filepath.Join(dir, "mcp.json"), fmt.Sprintf(`{ "mcpServers": {}, "toolgate": { "state": "state", "keys": "keys",
    "console": { "oidc": { "issuer": "http://%s", "client_id": "toolgate", "client_secret": "provider-secret" } } } }`, address))
	one, two := serve(t, dir), serve(t, dir)
	openProvider(t, address, one.Admin)
	ann := newBrowserSession(t)
	ann.signInAt(one.Admin)
	if who := ann.moved(one.Admin, two.Admin).signedIn(two.Admin); who != "ann" {
		t.Fatalf("signed in as %q at the other toolgate", who)
	}
	ann.open("http://"+address+"/session/end").send("/session/end/confirm", "logout", "yes")
	if here, there := ann.signedIn(one.Admin), ann.signedIn(two.Admin); here != "" || there != "" {
		t.Errorf("signed in as %q and %q after signing out at the provider\n%s", here, there, one.Log)
	}
	ann.signInAt(one.Admin)
	ann.moved(one.Admin, two.Admin)
	one.Kill(t)
	two.Kill(t)
	next := serve(t, dir)
	if who := ann.moved(two.Admin, next.Admin).signedIn(next.Admin); who != "ann" {
		t.Errorf("signed in as %q after a kill", who)
	}
}

// TestSessionsFollowTheConfiguration: a console session is valid only as long as the
// token that began it is configured.
func TestSessionsFollowTheConfiguration(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	dir := t.TempDir()
	configure := func(tokens string) {
		write(t, filepath.Join(dir, "mcp.json"), fmt.Sprintf(`{ "mcpServers": {}, "toolgate": { "state": "state", "identity": { "tokens": [%s] } } }`, tokens))
	}
	token := func(subject, role, secret string) string {
		return fmt.Sprintf(`{ "subject": %q, "roles": [%q], "sha256": "%x" }`, subject, role, sha256.Sum256([]byte(secret)))
	}
	configure(token("carol", "approver", "one") + "," + token("dave", "approver", "two"))
	g := serve(t, dir)
	carol, dave := newBrowserSession(t), newBrowserSession(t)
	carol.open(g.Admin+"/console/login").send("/console/login", "token", "one")
	dave.open(g.Admin+"/console/login").send("/console/login", "token", "two")
	reloads := 0
	change := func(tokens string) {
		t.Helper()
		reloads++
		configure(tokens)
		g.Await(t, "toolgate reloads", func() bool { return strings.Count(g.Log.String(), "toolgate: reloaded") == reloads })
	}
	signedIn := func(what, wantCarol, wantDave string) {
		t.Helper()
		if c, d := carol.signedIn(g.Admin), dave.signedIn(g.Admin); c != wantCarol || d != wantDave {
			t.Errorf("%s: %q and %q are signed in", what, c, d)
		}
	}
	signedIn("at first", "carol", "dave")
	change(token("carol", "observer", "one") + "," + token("dave", "approver", "two"))
	signedIn("with another role", "carol", "dave")
	change(token("carol", "observer", "three") + "," + token("dave", "approver", "two"))
	signedIn("with another token", "", "dave")
	change(token("carol", "observer", "three"))
	signedIn("without the subject", "", "")
	change(token("carol", "observer", "one") + "," + token("dave", "approver", "two"))
	signedIn("as at first, after the end", "", "")
}
