package peers_test

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/program"
)

// cookies sends every cookie back to the host and port that set it, as browsers
// do on loopback, Secure ones too.
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

// visit is one person with a browser.
type visit struct {
	t    *testing.T
	http *http.Client
	at   *url.URL // of the page that is shown
	text string
	code int
}

func newVisit(t *testing.T) *visit {
	return &visit{t: t, http: &http.Client{Jar: cookies{}, Timeout: patience}}
}

func (v *visit) show(res *http.Response, err error) *visit {
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

func (v *visit) open(address string) *visit {
	v.t.Helper()
	return v.show(v.http.Get(address))
}

var (
	formAction = regexp.MustCompile(`<form[^>]* action="([^"]*)"[^>]*method="post"|<form[^>]*method="post"[^>]* action="([^"]*)"`)
	hidden     = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)"`)
)

// send fills in the form of the page that is shown, and sends it.
func (v *visit) send(fields ...string) *visit {
	v.t.Helper()
	found := formAction.FindStringSubmatch(v.text)
	if found == nil {
		v.t.Fatalf("%s has no form: %d\n%s", v.at, v.code, v.text)
	}
	form := url.Values{}
	for _, field := range hidden.FindAllStringSubmatch(v.text, -1) {
		form.Set(field[1], field[2])
	}
	for i := 0; i < len(fields); i += 2 {
		form.Set(fields[i], fields[i+1])
	}
	to, err := v.at.Parse(found[1] + found[2])
	if err != nil {
		v.t.Fatal(err)
	}
	return v.show(v.http.PostForm(to.String(), form))
}

// signedIn gives who the console says is signed in, "" for nobody.
func (v *visit) signedIn(console string) string {
	v.t.Helper()
	found := regexp.MustCompile(`signed in as <strong>([^<]*)</strong>`).FindStringSubmatch(v.open(console + "/console/login").text)
	if found == nil {
		return ""
	}
	return found[1]
}

// openProvider starts an OpenID provider that nobody here wrote, on an address that
// toolgate has been told, for people of admin.
func openProvider(t *testing.T, address, admin string) *program.Process {
	t.Helper()
	node, script := needs(t, "node"), filepath.Join("..", "..", "testdata", "npm", "provider.mjs")
	needs(t, "oidc-provider/package.json")
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	p := program.Launch(t, exec.Command(node, script, port, admin+"/console/login/callback"))
	if !p.Await(t, "the provider listens", func() bool { return strings.Contains(p.Out.String(), "listening") }) {
		t.Fatalf("the provider ended: %v\n%s", p.Err, p.Log)
	}
	return p
}

// People sign in at an OpenID provider, and the console knows them after that.
// While the provider is down, toolgate serves, and tokens still open the door.
func TestSigningInAtAProvider(t *testing.T) {
	t.Parallel()
	needs(t, "oidc-provider/package.json")
	address, dir := program.FreeAddress(t), t.TempDir()
	write(t, filepath.Join(dir, "mcp.json"), fmt.Sprintf(`{
  "mcpServers": {},
  "toolgate": {
    "state": "state",
    "identity": { "tokens": [{ "subject": "carol", "roles": ["approver"], "sha256": "%x" }] },
    "console": { "oidc": { "issuer": "http://%s", "client_id": "toolgate", "client_secret": "provider-secret" } }
  }
}`, sha256.Sum256([]byte(approverToken)), address))
	g := serve(t, dir)

	carol := newVisit(t).open(g.Admin + "/console/login/provider")
	if carol.code != http.StatusServiceUnavailable {
		t.Errorf("without the provider: %d\n%s", carol.code, carol.text)
	}
	carol.send("token", approverToken)
	if who := carol.signedIn(g.Admin); who != "carol" {
		t.Fatalf("by token: %q", who)
	}

	openProvider(t, address, g.Admin)
	ann := newVisit(t).open(g.Admin + "/console/login/provider?next=/console/%3Fafter")
	ann.send("login", "ann", "password", "any") // who
	ann.send()                                  // consent
	if ann.at.String() != g.Admin+"/console/?after" || ann.code != http.StatusOK {
		t.Fatalf("after signing in: %s, %d\n%s", ann.at, ann.code, ann.text)
	}
	if who := ann.signedIn(g.Admin); who != "ann" {
		t.Errorf("signed in as %q", who)
	}
	ann.send()
	if who := ann.signedIn(g.Admin); who != "" {
		t.Errorf("signed out, and yet %q", who)
	}
	if res := newVisit(t).open(g.Admin + "/console/login/callback?code=x&state=y"); res.code != http.StatusUnauthorized {
		t.Errorf("an answer to nobody's question: %d", res.code)
	}
	if text := g.Log.String() + g.Out.String(); strings.Contains(text, "provider-secret") || strings.Contains(text, approverToken) {
		t.Errorf("a secret is in the log:\n%s", text)
	}
}

// A session is as good as the token that began it, now: not as it was.
func TestSessionsFollowTheConfiguration(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	configure := func(tokens string) {
		write(t, filepath.Join(dir, "mcp.json"), fmt.Sprintf(`{ "mcpServers": {}, "toolgate": { "state": "state", "identity": { "tokens": [%s] } } }`, tokens))
	}
	token := func(subject, role, secret string) string {
		return fmt.Sprintf(`{ "subject": %q, "roles": [%q], "sha256": "%x" }`, subject, role, sha256.Sum256([]byte(secret)))
	}
	configure(token("carol", "approver", "one") + "," + token("dave", "approver", "two"))
	g := serve(t, dir)
	carol, dave := newVisit(t), newVisit(t)
	carol.open(g.Admin+"/console/login").send("token", "one")
	dave.open(g.Admin+"/console/login").send("token", "two")
	reloads := 0
	change := func(tokens string) {
		t.Helper()
		reloads++
		configure(tokens)
		g.Await(t, "it reloads", func() bool { return strings.Count(g.Log.String(), "toolgate: reloaded") == reloads })
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
