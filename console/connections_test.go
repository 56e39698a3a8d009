package console_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/policy"
)

// accounts are connections at the services github, which each person connects, and drive, which
// operators connect for toolgate. Its authorization server is at address.
type accounts struct {
	address string
	down    error // of Plan, Begin and Revoke
	silent  bool  // revocations are not confirmed
	all     []console.Connection
	begun   map[string]console.Connection // by state
	did     []string
}

func newAccounts() *accounts {
	return &accounts{address: "https://as.example/authorize", begun: map[string]console.Connection{}}
}

func (a *accounts) Services() []console.Service {
	return []console.Service{{Name: "drive", Address: "https://drive.example/mcp", Shared: true}, {Name: "github", Address: "https://api.github.example/mcp"}}
}

func (a *accounts) List(context.Context) ([]console.Connection, error) {
	return slices.Clone(a.all), nil
}

func (a *accounts) Revoke(_ context.Context, id string) (confirmed bool, err error) {
	a.did = append(a.did, "revoke "+id)
	for i := range a.all {
		if a.all[i].ID == id {
			a.all[i].State = "ended"
		}
	}
	return !a.silent, a.down
}

func (a *accounts) Plan(context.Context, string, console.Person) (console.Plan, error) {
	return console.Plan{Issuer: "https://as.example", Resource: "https://api.github.example/mcp", Scopes: []string{"repo", "read:user"}}, a.down
}

func (a *accounts) Begin(_ context.Context, service string, who console.Person) (string, error) {
	state := fmt.Sprintf("secret-state-%d", len(a.begun))
	a.begun[state] = console.Connection{Server: service, Person: who}
	a.did = append(a.did, "begin "+service+" "+who.Subject)
	return a.address + "?client_id=x&state=" + state, a.down
}

func (a *accounts) Finish(_ context.Context, who console.Person, operates bool, answer url.Values) (console.Connection, error) {
	k, ok := a.begun[answer.Get("state")]
	a.did = append(a.did, fmt.Sprint("finish ", who.Subject, " ", operates))
	if !ok || k.Person != who || answer.Get("code") != "secret-code" {
		return console.Connection{}, errors.New("secret reason")
	}
	delete(a.begun, answer.Get("state"))
	if k.Server == "drive" {
		who = gate
	}
	return a.has(k.Server, who), nil
}

// has adds a live connection in the place of an earlier one.
func (a *accounts) has(service string, who console.Person) console.Connection {
	for i := range a.all {
		if a.all[i].Server == service && a.all[i].Person == who {
			a.all[i].State = "ended"
		}
	}
	k := console.Connection{
		ID: fmt.Sprintf("gr_%d", len(a.all)), Server: service, Issuer: "https://as.example", Account: "octo-" + who.Subject, Scopes: []string{"repo"},
		Created: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), State: "live", Person: who,
	}
	a.all = append(a.all, k)
	return k
}

// ended are the IDs of the connections that were revoked.
func (a *accounts) ended() (ids []string) {
	for _, k := range a.all {
		if k.State == "ended" {
			ids = append(ids, k.ID)
		}
	}
	return ids
}

// connectable is a listener with accounts, where operators operate.
func connectable(t *testing.T, change func(*console.Options)) (*listener, *accounts) {
	a := newAccounts()
	l := newListener(t, func(o *console.Options) {
		o.Connections, o.Connector = a, a
		o.May = func(_ context.Context, p policy.Principal, _ policy.Right) (bool, error) {
			return p.Has("operator"), nil
		}
		if change != nil {
			change(o)
		}
	})
	return l, a
}

var (
	ann  = console.Person{Subject: "ann"}
	bob  = console.Person{Subject: "bob"}
	gate = console.Person{}
)

// goes begins a connection, and returns the state that the authorization server gets.
func (b *browser) goes(service string) string {
	b.t.Helper()
	w := b.do("POST", "/connections/"+service, b.form("/connections/"+service))
	_, state, found := strings.Cut(w.Header().Get("Location"), "state=")
	if w.Code != http.StatusSeeOther || !found {
		b.t.Fatalf("beginning: %d %v %s", w.Code, w.Header(), w.Body)
	}
	return state
}

// signInAgain begins another session in the place of the browser's.
func (b *browser) signInAgain(token string) *browser {
	delete(b.cookies, "__Host-toolgate")
	return b.signIn(token)
}

// A person opens the page, which begins nothing, sends its form, comes back and is connected.
func TestConnecting(t *testing.T) {
	l, a := connectable(t, nil)
	b := newBrowser(l)
	if w := b.do("GET", "/connections/github", nil); w.Code != 303 || w.Header().Get("Location") != "/console/login?next=%2Fconnections%2Fgithub" {
		t.Fatalf("not signed in: %d %v", w.Code, w.Header())
	}
	w := b.do("POST", "/console/login", b.form("/console/login", "token", "t-ann", "next", "/connections/github"))
	if w.Header().Get("Location") != "/connections/github" {
		t.Errorf("signed in, and at %v", w.Header())
	}
	w = b.do("GET", "/connections/github", nil)
	for _, want := range []string{"toolgate at <code>127.0.0.1:8788", "<b>ann</b>", "https://api.github.example/mcp", "https://as.example", "<code>repo</code>, <code>read:user</code>", ">Connect</button>"} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("the page does not say %q:\n%s", want, w.Body)
		}
	}
	if len(a.did) > 0 {
		t.Errorf("opening the page did %q", a.did)
	}
	state := b.goes("github")
	w = b.do("GET", "/connections/callback?code=secret-code&state="+state+"&iss=https://as.example", nil, "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate")
	if w.Code != 303 || w.Header().Get("Location") != "/connections/github" || strings.Contains(w.Body.String(), "secret") {
		t.Fatalf("%d %v %s", w.Code, w.Header(), w.Body)
	}
	for _, path := range []string{"/connections/github", "/connections"} {
		w = b.do("GET", path, nil)
		if text := w.Body.String(); !strings.Contains(text, `connected</span> as <b>octo-ann</b>`) || strings.Contains(text, "secret") || w.Header().Get("Referrer-Policy") != "same-origin" {
			t.Errorf("%s: %s", path, text)
		}
	}
	want := []people.Act{
		{Name: audit.EventSignIn, Source: "192.0.2.1", Credential: "token", Principal: staff["t-ann"]},
		{Name: audit.EventConnect, Source: "192.0.2.1", Credential: "session", Principal: staff["t-ann"], Server: "github"},
		{Name: audit.EventConnected, Source: "192.0.2.1", Credential: "session", Principal: staff["t-ann"], Server: "github"},
		{Name: audit.EventDisconnect, Source: "192.0.2.1", Credential: "session", Principal: staff["t-ann"], Server: "github", Removed: []string{"connection gr_0"}},
	}
	if w := b.do("POST", "/connections/github/disconnect", b.form("/connections", "id", "gr_0")); w.Code != 303 || !cmp.Equal(a.ended(), []string{"gr_0"}) {
		t.Errorf("disconnecting: %d, ended %v", w.Code, a.ended())
	}
	if diff := cmp.Diff(want, l.acts); diff != "" {
		t.Errorf("acts (-want +got):\n%s", diff)
	}
}

// Nothing begins without the right, the form or the record.
func TestNotConnecting(t *testing.T) {
	for name, tc := range map[string]struct {
		token, server string
		change        func(l *listener, a *accounts, b *browser, form url.Values)
		status        int
		code          string // in the record, "" = there is none
	}{
		"an operator's service":  {"t-ann", "drive", nil, 403, "NOT_OPERATOR"},
		"no such service":        {"t-ann", "gitlab", nil, 404, "NO_SERVER"},
		"no form field":          {"t-ann", "github", func(_ *listener, _ *accounts, _ *browser, f url.Values) { f.Del("csrf") }, 403, ""},
		"another session's form": {"t-ann", "github", func(_ *listener, _ *accounts, b *browser, _ url.Values) { b.signInAgain("t-ann") }, 403, ""},
		"signed out":             {"t-ann", "github", func(_ *listener, _ *accounts, b *browser, _ url.Values) { clear(b.cookies) }, 401, ""},
		"unrecorded":             {"t-ann", "github", func(l *listener, _ *accounts, _ *browser, _ url.Values) { l.unrecorded = errors.New("disk full") }, 503, ""},
	} {
		t.Run(name, func(t *testing.T) {
			l, a := connectable(t, nil)
			b := newBrowser(l).signIn(tc.token)
			form := b.form("/connections/github")
			if tc.change != nil {
				tc.change(l, a, b, form)
			}
			l.acts = nil
			w := b.do("POST", "/connections/"+tc.server, form)
			if w.Code != tc.status || len(a.did) > 0 || w.Header().Get("Location") != "" {
				t.Errorf("%d %v %s, did %q", w.Code, w.Header(), w.Body, a.did)
			}
			if refused := slices.IndexFunc(l.acts, func(a people.Act) bool { return a.Name == audit.EventConnectRefused }); (refused >= 0) != (tc.code != "") ||
				tc.code != "" && (l.acts[0].Reason != tc.code || l.acts[0].Server != tc.server) {
				t.Errorf("recorded %+v", l.acts)
			}
		})
	}
}

// The answer of the authorization server counts for the person and the browser that began, once.
func TestNotFinishing(t *testing.T) {
	const good = "?code=secret-code&state=STATE"
	for name, tc := range map[string]struct {
		query  string
		before func(l *listener, a *accounts, b *browser) *browser
		status int
		code   string
		asks   bool // the authorization server's answer is looked at
	}{
		"another person in another browser":  {good, func(l *listener, _ *accounts, _ *browser) *browser { return newBrowser(l).signIn("t-bob") }, 403, "NOT_BEGUN_HERE", false},
		"the same person in another browser": {good, func(l *listener, _ *accounts, _ *browser) *browser { return newBrowser(l).signIn("t-ann") }, 403, "NOT_BEGUN_HERE", false},
		"another person in the same browser": {good, func(_ *listener, _ *accounts, b *browser) *browser { return b.signInAgain("t-bob") }, 403, "NOT_BEGUN_HERE", false},
		"another person with the same cookie": {good, func(l *listener, _ *accounts, b *browser) *browser {
			other := newBrowser(l).signIn("t-bob")
			other.cookies["__Host-toolgate-connection"] = b.cookies["__Host-toolgate-connection"]
			return other
		}, 403, "NOT_BEGUN_HERE", false},
		"nobody": {good, func(_ *listener, _ *accounts, b *browser) *browser {
			delete(b.cookies, "__Host-toolgate")
			return b
		}, 401, "SIGNED_OUT", false},
		"twice": {good, func(_ *listener, _ *accounts, b *browser) *browser {
			b.do("GET", "/connections/callback?code=secret-code&state=secret-state-0", nil)
			return b
		}, 403, "NOT_BEGUN_HERE", false},
		"another state":    {"?code=secret-code&state=secret-other", nil, 403, "NOT_CONNECTED", true},
		"a refusal":        {"?error=access_denied&error_description=secret-words&state=STATE", nil, 403, "NOT_CONNECTED", true},
		"no query":         {"?%zz", nil, 400, "BAD_REQUEST", false},
		"without a record": {good, func(l *listener, _ *accounts, b *browser) *browser { l.unrecorded = errors.New("disk full"); return b }, 503, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			l, a := connectable(t, nil)
			b := newBrowser(l).signIn("t-ann")
			state := b.goes("github")
			if tc.before != nil {
				b = tc.before(l, a, b)
			}
			l.acts, a.did = nil, nil
			had := len(a.all)
			w := b.do("GET", "/connections/callback"+strings.ReplaceAll(tc.query, "STATE", state), nil)
			if w.Code != tc.status || len(a.all) != had || (len(a.did) > 0) != tc.asks {
				t.Errorf("%d, did %q: %s", w.Code, a.did, w.Body)
			}
			if strings.Contains(w.Body.String()+fmt.Sprint(w.Header()), "secret") {
				t.Errorf("the page has a secret: %v %s", w.Header(), w.Body)
			}
			if last := len(l.acts) - 1; tc.code != "" && (last < 0 || l.acts[last].Name != audit.EventConnectRefused || l.acts[last].Reason != tc.code) {
				t.Errorf("recorded %+v", l.acts)
			}
		})
	}
}

// An operator who lost the right meanwhile does not connect toolgate.
func TestFinishingAsOperator(t *testing.T) {
	for _, operates := range []bool{true, false} {
		var lost bool
		l, a := connectable(t, func(o *console.Options) {
			o.May = func(_ context.Context, p policy.Principal, _ policy.Right) (bool, error) {
				return p.Has("operator") && !lost, nil
			}
		})
		b := newBrowser(l).signIn("t-oda")
		state := b.goes("drive")
		lost = !operates
		w := b.do("GET", "/connections/callback?code=secret-code&state="+state, nil)
		if made := len(a.all) == 1 && a.all[0].Person == gate; made != operates || operates == (w.Code != 303) ||
			operates && !slices.Contains(a.did, "finish oda true") {
			t.Errorf("operates %v: %d, %+v, did %q", operates, w.Code, a.all, a.did)
		}
	}
}

var forms = regexp.MustCompile(`name="id" value="([^"]*)"`)

// People see and revoke their own connections, and operators all of them.
func TestWhoseConnections(t *testing.T) {
	all := []string{"gr_0", "gr_1", "gr_2"} // of ann, bob and toolgate
	for token, want := range map[string]struct {
		own     []string // in the plain list
		page    []string // with a button
		revokes []string
		all     int
	}{
		"t-ann": {own: []string{"gr_0"}, page: []string{"gr_0"}, revokes: []string{"gr_0"}, all: 403},
		"t-bob": {own: []string{"gr_1"}, page: []string{"gr_1"}, revokes: []string{"gr_1"}, all: 403},
		"t-eve": {all: 403},
		"t-oda": {own: []string{"gr_2"}, page: []string{"gr_2", "gr_0", "gr_1"}, revokes: all, all: 200},
	} {
		t.Run(token, func(t *testing.T) {
			seats := func() (*listener, *accounts) {
				l, a := connectable(t, nil)
				a.has("github", ann)
				a.has("github", bob)
				a.has("drive", gate)
				return l, a
			}
			l, a := seats()
			b := newBrowser(l).signIn(token)
			var shown []string
			for _, m := range forms.FindAllStringSubmatch(b.do("GET", "/connections", nil).Body.String(), -1) {
				shown = append(shown, m[1])
			}
			if diff := cmp.Diff(want.page, shown); diff != "" {
				t.Errorf("the page (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(want.own, l.connections(token, "")); diff != "" {
				t.Errorf("the list (-want +got):\n%s", diff)
			}
			for _, query := range []string{"?all=true", "?subject=ann"} {
				if w := l.ask("GET", "/v1/connections"+query, "", as(token)...); w.Code != want.all {
					t.Errorf("%s: %d %s", query, w.Code, w.Body)
				}
			}
			csrf := csrfField.FindStringSubmatch(b.do("GET", "/connections", nil).Body.String())[1]
			for i, id := range all {
				may, server := slices.Contains(want.revokes, id), a.all[i].Server
				wantStatus := map[bool]int{true: 200, false: 404}[may]
				if w := l.ask("GET", "/v1/connections/"+id, "", as(token)...); w.Code != wantStatus {
					t.Errorf("%s: %d %s", id, w.Code, w.Body)
				}
				if w := l.ask("DELETE", "/v1/connections/"+id, "", as(token)...); w.Code != wantStatus {
					t.Errorf("deleting %s: %d %s", id, w.Code, w.Body)
				}
				a.all[i].State = "live"
				w := b.do("POST", "/connections/"+server+"/disconnect", url.Values{"csrf": {csrf}, "id": {id}})
				if want := map[bool]int{true: 303, false: 404}[may]; w.Code != want {
					t.Errorf("disconnecting %s: %d %s", id, w.Code, w.Body)
				}
			}
			var revoked []string
			for _, id := range want.revokes {
				revoked = append(revoked, "revoke "+id, "revoke "+id)
			}
			if diff := cmp.Diff(revoked, a.did); diff != "" {
				t.Errorf("did (-want +got):\n%s", diff)
			}
		})
	}
}

// connections are the IDs of the connections that somebody is listed.
func (l *listener) connections(token, query string) (ids []string) {
	l.t.Helper()
	for _, k := range accepted(l.t, l.ask("GET", "/v1/connections"+query, "", as(token)...))["connections"].([]any) {
		ids = append(ids, k.(map[string]any)["id"].(string))
	}
	return ids
}

// Operators choose whose connections are listed; nothing that cannot be recorded is revoked.
func TestConnectionsOverREST(t *testing.T) {
	l, a := connectable(t, nil)
	a.has("github", ann)
	a.has("github", console.Person{Issuer: "https://idp.example", Tenant: "t1", Subject: "ann"})
	a.has("drive", gate)
	for query, want := range map[string][]string{"?all=true": {"gr_0", "gr_1", "gr_2"}, "?subject=ann": {"gr_0", "gr_1"}, "": {"gr_2"}, "?subject=nobody": nil} {
		if diff := cmp.Diff(want, l.connections("t-oda", query)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", query, diff)
		}
	}
	if got := l.connections("t-ann", ""); !cmp.Equal(got, []string{"gr_0"}) { // another issuer's ann is somebody else
		t.Errorf("ann has %v", got)
	}
	want := map[string]any{
		"id": "gr_1", "server": "github", "issuer": "https://as.example", "account": "octo-ann", "scopes": []any{"repo"}, "created": "2026-03-01T12:00:00Z", "state": "live",
		"person": map[string]any{"issuer": "https://idp.example", "tenant": "t1", "subject": "ann"},
	}
	if diff := cmp.Diff(want, accepted(t, l.ask("GET", "/v1/connections/gr_1", "", as("t-oda")...))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	refused(t, l.ask("GET", "/v1/connections?all=yes", "", as("t-oda")...), 400, "BAD_REQUEST")
	refused(t, l.ask("GET", "/v1/connections?every=true", "", as("t-oda")...), 400, "BAD_REQUEST")
	refused(t, l.ask("GET", "/v1/connections", ""), 401, "UNAUTHENTICATED")
	refused(t, l.ask("GET", "/v1/connections?all=true", "", as("t-ann")...), 403, "NOT_OPERATOR")
	l.unrecorded = errors.New("disk full")
	refused(t, l.ask("DELETE", "/v1/connections/gr_0", "", as("t-ann")...), 503, "AUDIT_UNAVAILABLE")
	b := newBrowser(l)
	l.unrecorded = nil
	b.signIn("t-ann")
	form := b.form("/connections", "id", "gr_0")
	l.unrecorded = errors.New("disk full")
	if w := b.do("POST", "/connections/github/disconnect", form); w.Code != 503 || len(a.did) > 0 {
		t.Errorf("without a record: %d, did %q", w.Code, a.did)
	}
	l.unrecorded = nil
	if w := b.do("POST", "/connections/drive/disconnect", form); w.Code != 404 || len(a.did) > 0 {
		t.Errorf("at another server: %d, did %q", w.Code, a.did)
	}
	form.Set("csrf", "x")
	if w := b.do("POST", "/connections/github/disconnect", form); w.Code != 403 || len(a.did) > 0 {
		t.Errorf("without the form's field: %d, did %q", w.Code, a.did)
	}
	if got := accepted(t, l.ask("DELETE", "/v1/connections/gr_0", "", as("t-ann")...)); got["state"] != "ended" || got["unconfirmed"] != nil {
		t.Errorf("revoked: %v", got)
	}
	l.ask("DELETE", "/v1/connections/gr_0", "", as("t-ann")...)
	if !cmp.Equal(a.did, []string{"revoke gr_0"}) {
		t.Errorf("did %q", a.did)
	}
}

// Whoever revokes a connection learns that its authorization server did not confirm it.
func TestUnconfirmedRevocation(t *testing.T) {
	l, a := connectable(t, nil)
	a.has("github", ann)
	a.silent = true
	if got := accepted(t, l.ask("DELETE", "/v1/connections/gr_0", "", as("t-ann")...)); got["state"] != "ended" || got["unconfirmed"] != true {
		t.Errorf("revoked: %v", got)
	}
	a.has("github", ann)
	b := newBrowser(l).signIn("t-ann")
	if w := b.do("POST", "/connections/github/disconnect", b.form("/connections", "id", "gr_1")); w.Code != 502 || !strings.Contains(w.Body.String(), "did not confirm") {
		t.Errorf("disconnected: %d %s", w.Code, w.Body)
	}
	if !cmp.Equal(a.ended(), []string{"gr_0", "gr_1"}) {
		t.Errorf("ended are %v", a.ended())
	}
}

// Where no caller needs a credential, whoever comes connects for the local principal; elsewhere, nobody.
func TestConnectingAlone(t *testing.T) {
	anonymous := policy.Principal{Subject: "local", Roles: []string{"observer"}}
	unknown := errors.New("identity is configured")
	l, a := connectable(t, func(o *console.Options) {
		o.Hosts = []string{"gate.example"}
		o.Anonymous = func(context.Context) (policy.Principal, error) { return anonymous, unknown }
	})
	b := newBrowser(l)
	refused(t, l.ask("GET", "/v1/connections", ""), 401, "UNAUTHENTICATED")
	if w := b.do("GET", "/connections", nil); w.Code != 303 {
		t.Errorf("somebody unknown: %d", w.Code)
	}
	unknown = nil
	w := b.do("GET", "/connections/callback?code=secret-code&state="+b.goes("github"), nil)
	if want := (console.Person{Subject: "local"}); w.Code != 303 || len(a.all) != 1 || a.all[0].Person != want {
		t.Fatalf("%d %s: %+v", w.Code, w.Body, a.all)
	}
	if text := b.do("GET", "/connections", nil).Body.String(); !strings.Contains(text, "whoever opens this page is <b>local</b>") || strings.Contains(text, "/console/approvals") {
		t.Errorf("the page:\n%s", text)
	}
	if w := b.do("GET", "/console/approvals", nil); w.Code != 303 {
		t.Errorf("the approvals: %d", w.Code)
	}
	if w := b.do("POST", "/connections/github", url.Values{"csrf": {""}}); w.Code != 403 {
		t.Errorf("without the form's field: %d", w.Code)
	}
	if w := newBrowser(l).do("POST", "/connections/github", b.form("/connections/github")); w.Code != 403 {
		t.Errorf("another browser's form: %d", w.Code)
	}
	if b.host = "gate.example"; b.do("GET", "/connections", nil).Code != 303 {
		t.Error("served over a connection that others can read")
	}
	if w := l.ask("DELETE", "/v1/connections/gr_0", ""); w.Code != 200 || !cmp.Equal(a.ended(), []string{"gr_0"}) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	refused(t, l.ask("GET", "/v1/connections", "", as("t-nobody")...), 401, "UNAUTHENTICATED")
}

// The page that says who asks is shown at the address where the browser comes back, and where nobody
// can connect now it says so.
func TestConnectPage(t *testing.T) {
	l, a := connectable(t, func(o *console.Options) { o.URL = "https://gate.example" })
	b := newBrowser(l).signIn("t-oda")
	if w := b.do("GET", "/connections/github", nil); w.Header().Get("Location") != "https://gate.example/connections/github?moved=1" {
		t.Errorf("at another host: %d %v", w.Code, w.Header())
	}
	if w := b.do("GET", "/connections/github?moved=1", nil); w.Code != 403 {
		t.Errorf("at a proxy that changes the host: %d", w.Code)
	}
	b.host = "gate.example"
	if text := b.do("GET", "/connections/drive", nil).Body.String(); !strings.Contains(text, "https://gate.example") || !strings.Contains(text, "everybody’s calls") {
		t.Errorf("a shared service:\n%s", text)
	}
	a.down = errors.New("secret reason")
	w := b.do("GET", "/connections/github", nil)
	if text := w.Body.String(); w.Code != 503 || strings.Contains(text, "secret") || strings.Contains(text, ">Connect</button>") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := b.do("POST", "/connections/github", b.form("/console/approvals")); w.Code != 503 || strings.Contains(w.Body.String(), "secret") || b.cookies["__Host-toolgate-connection"] != "" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := b.do("GET", "/connections/gitlab", nil); w.Code != 404 {
		t.Errorf("no such service: %d", w.Code)
	}
	plain := newBrowser(newListener(t, nil)).signIn("t-ann")
	for _, path := range []string{"/connections", "/connections/github", "/v1/connections"} {
		if w := plain.do("GET", path, nil, as("t-ann")...); w.Code != 404 {
			t.Errorf("%s without services: %d", path, w.Code)
		}
	}
	if strings.Contains(plain.do("GET", "/console/approvals", nil).Body.String(), "/connections") {
		t.Error("the navigation leads to connections where there are none")
	}
}
