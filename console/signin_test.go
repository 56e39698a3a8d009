package console_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

// browser keeps cookies and sends forms as a browser on this machine does.
type browser struct {
	*listener
	host    string
	cookies map[string]string
}

func newBrowser(l *listener) *browser {
	return &browser{listener: l, host: "127.0.0.1:8788", cookies: map[string]string{}}
}

func (b *browser) do(method, target string, form url.Values, pairs ...string) *httptest.ResponseRecorder {
	b.t.Helper()
	pairs = append([]string{"Host", b.host}, pairs...)
	if form != nil {
		pairs = append(pairs, "Content-Type", "application/x-www-form-urlencoded")
	}
	for name, value := range b.cookies {
		pairs = append(pairs, "Cookie", name+"="+value)
	}
	w := b.ask(method, target, form.Encode(), pairs...)
	for _, c := range w.Result().Cookies() {
		if !strings.HasPrefix(c.Name, "__Host-") || !c.Secure || !c.HttpOnly || c.Path != "/" || c.Domain != "" || c.SameSite != http.SameSiteLaxMode {
			b.t.Errorf("cookie %s", c)
		}
		b.cookies[c.Name] = c.Value
		if c.MaxAge < 0 {
			delete(b.cookies, c.Name)
		}
	}
	return w
}

var csrfField = regexp.MustCompile(`name="csrf" value="([^"]*)"`)

// form gives the fields of a page's form, with more.
func (b *browser) form(target string, more ...string) url.Values {
	b.t.Helper()
	w := b.do("GET", target, nil)
	found := csrfField.FindStringSubmatch(w.Body.String())
	if found == nil {
		b.t.Fatalf("%s has no form: %d %s", target, w.Code, w.Body)
	}
	form := url.Values{"csrf": {found[1]}}
	for i := 0; i < len(more); i += 2 {
		form.Set(more[i], more[i+1])
	}
	return form
}

// signIn begins a session.
func (b *browser) signIn(token string) *browser {
	b.t.Helper()
	w := b.do("POST", "/console/login", b.form("/console/login", "token", token))
	if w.Code != 303 || b.cookies["__Host-toolgate"] == "" {
		b.t.Fatalf("signing in: %d %s", w.Code, w.Body)
	}
	return b
}

// signedIn reports whether the browser's session is one: signing out without
// the form's field is refused for that then.
func (b *browser) signedIn() bool {
	b.t.Helper()
	return b.do("POST", "/console/logout", url.Values{}).Code == 403
}

func TestSigningIn(t *testing.T) {
	b := newBrowser(newListener(t, nil))
	w := b.do("POST", "/console/login", b.form("/console/login", "token", " t-ann ", "next", "/console/approvals/apr_1?x=1"))
	if w.Code != 303 || w.Header().Get("Location") != "/console/approvals/apr_1?x=1" {
		t.Fatalf("%d %v", w.Code, w.Header())
	}
	if !b.signedIn() {
		t.Error("not signed in")
	}
	for name, value := range b.cookies {
		if strings.Contains(value, "t-ann") || strings.Contains(value, "ann") {
			t.Errorf("%s holds %s", name, value)
		}
	}
	if _, left := b.cookies["__Host-toolgate-entry"]; left {
		t.Error("the entry cookie is left")
	}
}

func TestRefusedSignIns(t *testing.T) {
	l := newListener(t, func(o *console.Options) { o.Hosts = []string{"gate.example"} })
	for name, tt := range map[string]struct {
		token  string
		change func(b *browser, f url.Values)
		status int
	}{
		"an unknown token":      {token: "nobody", status: 401},
		"no token":              {status: 401},
		"a token of nobody":     {token: "t-void", status: 401},
		"no field":              {token: "t-ann", change: func(_ *browser, f url.Values) { f.Del("csrf") }, status: 403},
		"another field":         {token: "t-ann", change: func(_ *browser, f url.Values) { f.Set("csrf", "x") }, status: 403},
		"no cookie":             {token: "t-ann", change: func(b *browser, _ url.Values) { clear(b.cookies) }, status: 403},
		"neither":               {token: "t-ann", change: func(b *browser, f url.Values) { clear(b.cookies); f.Del("csrf") }, status: 403},
		"a field twice":         {token: "t-ann", change: func(_ *browser, f url.Values) { f.Add("token", "t-bob") }, status: 400},
		"a large body":          {token: strings.Repeat("x", 65<<10), status: 413},
		"plain http from afar":  {token: "t-ann", change: func(b *browser, _ url.Values) { b.host = "gate.example" }, status: 403},
		"a token in the query":  {change: func(*browser, url.Values) {}, status: 401},
		"two cookies, one name": {token: "t-ann", change: func(b *browser, _ url.Values) { b.cookies["__Host-toolgate-entry"] += "; __Host-toolgate-entry=x" }, status: 403},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBrowser(l)
			f := b.form("/console/login", "token", tt.token)
			if tt.change != nil {
				tt.change(b, f)
			}
			w := b.do("POST", "/console/login?token=t-ann", f)
			if w.Code != tt.status || b.cookies["__Host-toolgate"] != "" || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") {
				t.Errorf("%d %v", w.Code, w.Header())
			}
			if strings.Contains(w.Body.String(), "secret reason") || tt.token != "" && len(tt.token) < 100 && strings.Contains(w.Body.String(), tt.token) {
				t.Errorf("the page tells: %s", w.Body)
			}
		})
	}
}

// A browser gives a Secure cookie to this machine, and over TLS.
func TestWhereToSignIn(t *testing.T) {
	l := newListener(t, func(o *console.Options) {
		o.Hosts, o.URL = []string{"10.0.0.5"}, "https://gate.example:8443"
	})
	for host, want := range map[string]bool{
		"127.0.0.1:8788": true, "localhost:8788": true, "[::1]:8788": true, "gate.example:8443": true, "GATE.example:8443": true, "10.0.0.5:8788": false,
	} {
		b := newBrowser(l)
		b.host = host
		text := b.do("GET", "/console/login", nil).Body.String()
		if got := strings.Contains(text, `name="token"`); got != want {
			t.Errorf("%s: form %v, want %v", host, got, want)
		}
		if !want && (!strings.Contains(text, "https://gate.example:8443/console/login") || len(b.cookies) != 0) {
			t.Errorf("%s: cookies %v, %s", host, b.cookies, text)
		}
	}
	b := newBrowser(l)
	b.host = "gate.example"
	if w := b.do("GET", "/console/login", nil); w.Code != 403 {
		t.Errorf("another port of the host: %d", w.Code)
	}
}

func TestWhereSigningInLeads(t *testing.T) {
	const home = "/console/approvals"
	l := newListener(t, nil)
	for next, want := range map[string]string{
		"/console/approvals/apr_1": "/console/approvals/apr_1", "/console/approvals?view=team": "/console/approvals?view=team",
		"": home, "https://evil.example/console/": home, "//evil.example/console/": home, "/v1/approvals": home,
		`/\evil.example`: home, `/console/\..\..\/evil`: home, "javascript:alert(1)": home, "/console/login?next=x": home,
		"/console/logout": home, "/console/x\r\nSet-Cookie: a=b": home, "/consolee": home,
		"/console/" + strings.Repeat("x", 2048): home,
	} {
		b := newBrowser(l)
		l.advance(time.Minute)
		w := b.do("POST", "/console/login", b.form("/console/login?next="+url.QueryEscape(next), "token", "t-ann", "next", next))
		if got := w.Header().Get("Location"); w.Code != 303 || got != want {
			t.Errorf("%q leads to %q (%d), want %q", next, got, w.Code, want)
		}
	}
}

func TestSessionsEnd(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(t *testing.T, b *browser)
		want bool
	}{
		"in use":        {end: func(*testing.T, *browser) {}, want: true},
		"used all day":  {end: func(t *testing.T, b *browser) { pass(t, b, 5, 90*time.Minute) }, want: true},
		"the whole day": {end: func(t *testing.T, b *browser) { pass(t, b, 6, 90*time.Minute) }},
		"not used":      {end: func(_ *testing.T, b *browser) { b.advance(2 * time.Hour) }},
		"signed out": {end: func(t *testing.T, b *browser) {
			was := b.cookies["__Host-toolgate"]
			if w := b.do("POST", "/console/logout", b.form("/console/login")); w.Code != 303 || b.cookies["__Host-toolgate"] != "" {
				t.Errorf("signing out: %d, %v", w.Code, b.cookies)
			}
			b.cookies["__Host-toolgate"] = was
		}},
		"a form of another session": {end: func(t *testing.T, b *browser) {
			if w := b.do("POST", "/console/logout", newBrowser(b.listener).signIn("t-ann").form("/console/login")); w.Code != 403 {
				t.Errorf("signing out: %d", w.Code)
			}
		}, want: true},
		"another cookie": {end: func(_ *testing.T, b *browser) { b.cookies["__Host-toolgate"] += "A" }},
		"nobody any more": {end: func(t *testing.T, b *browser) {
			ann := staff["t-ann"]
			delete(staff, "t-ann")
			t.Cleanup(func() { staff["t-ann"] = ann })
		}},
		"another sign-in": {end: func(t *testing.T, b *browser) {
			was := b.cookies["__Host-toolgate"]
			fresh := newBrowser(b.listener)
			form := fresh.form("/console/login", "token", "t-bob")
			fresh.cookies["__Host-toolgate"] = was
			if w := fresh.do("POST", "/console/login", form); w.Code != 303 || fresh.cookies["__Host-toolgate"] == was {
				t.Errorf("signing in: %d, %v", w.Code, fresh.cookies)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBrowser(newListener(t, nil)).signIn("t-ann")
			tt.end(t, b)
			if got := b.signedIn(); got != tt.want {
				t.Errorf("signed in: %v", got)
			}
		})
	}
}

// pass lets time pass, with a look at the page now and then.
func pass(t *testing.T, b *browser, times int, each time.Duration) {
	t.Helper()
	for range times {
		b.advance(each)
		b.signedIn()
	}
}

// A session ends with the credential that began it.
func TestSessionsEndWithTheCredential(t *testing.T) {
	l := newListener(t, nil)
	staff["t-jwt"] = policy.Principal{Subject: "jwt", Roles: []string{"approver"}, Until: l.Now().Add(time.Hour)}
	t.Cleanup(func() { delete(staff, "t-jwt") })
	b := newBrowser(l).signIn("t-jwt")
	if l.advance(59 * time.Minute); !b.signedIn() {
		t.Error("signed out before the end")
	}
	if l.advance(time.Minute); b.signedIn() {
		t.Error("signed in after the end")
	}
}

// A session is for the pages: /v1 takes bearer tokens only.
func TestNoCookieOnV1(t *testing.T) {
	b := newBrowser(newListener(t, nil)).signIn("t-ann")
	k := b.hold(`{"n":1}`)
	refused(t, b.do("GET", "/v1/approvals", nil), 401, "UNAUTHENTICATED")
	refused(t, b.do("POST", "/v1/approvals/"+k.ID+"/approve", nil, "Content-Type", "application/json"), 401, "UNAUTHENTICATED")
}

// Whatever the address says, signing in leads to a page of the same console.
func FuzzWhereSigningInLeads(f *testing.F) {
	for _, seed := range []string{"/console/approvals/apr_1?x=1", "//evil.example", "/console/../../x", `/console/\evil`, "https:/console/", "/console/%2e%2e/%0d%0aX: y"} {
		f.Add(seed)
	}
	db, err := store.Open(f.Context(), filepath.Join(f.TempDir(), "state.db"), store.Migrations())
	if err != nil {
		f.Fatal(err)
	}
	c, err := console.New(console.Options{
		Options:   people.Options{Store: db, Keys: keys.At(f.TempDir()), Identify: identify, Again: again},
		Approvals: new(approval.Tickets), Reconciler: new(approval.Tickets), Feed: new(approval.Tickets), Archive: new(approval.Tickets),
		Status: func() console.Status { return console.Status{} },
		Held:   new(approval.Tickets).Held, Audit: noTrail, Metrics: http.NotFoundHandler(),
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		c.Close()
		if err := db.Close(); err != nil {
			f.Error(err)
		}
	})
	f.Fuzz(func(t *testing.T, to string) {
		form := url.Values{"csrf": {"x"}, "token": {"t-ann"}, "next": {to}}
		r := httptest.NewRequest(http.MethodPost, "/console/login", strings.NewReader(form.Encode()))
		r.Host, r.RemoteAddr = "localhost", fmt.Sprintf("10.%d.%d.%d:1", rand.IntN(256), rand.IntN(256), rand.IntN(256))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.AddCookie(&http.Cookie{Name: "__Host-toolgate-entry", Value: "x"})
		w := httptest.NewRecorder()
		c.ServeHTTP(w, r)
		if w.Code == http.StatusTooManyRequests || w.Code == http.StatusRequestEntityTooLarge {
			return
		}
		location := w.Header().Get("Location")
		base, _ := url.Parse("http://localhost/console/login")
		u, err := base.Parse(location)
		if w.Code != 303 || err != nil || u.Scheme != "http" || u.Host != "localhost" || !strings.HasPrefix(location, "/console/") ||
			strings.ContainsAny(location, "\\\r\n\t") {
			t.Errorf("%q leads to %q (%d), %v", to, location, w.Code, err)
		}
	})
}
