package console_test

import (
	"context"
	"errors"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/console/people"
)

// tokens are the logout tokens of a provider by their text.
type tokens map[string]people.Logout

func (k tokens) read(_ context.Context, token string) (people.Logout, error) {
	l, ok := k[token]
	if !ok {
		return l, errors.New("secret reason")
	}
	l.Until = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)
	return l, nil
}

func (b *browser) providerLogout(token string) int {
	b.t.Helper()
	stranger := &browser{listener: b.listener, host: b.host}
	w := stranger.do("POST", "/console/backchannel-logout", url.Values{"logout_token": {token}})
	if w.Header().Get("Cache-Control") != "no-store" || strings.Contains(w.Body.String(), "secret reason") || w.Code == 400 && !strings.Contains(w.Body.String(), `"error":"invalid_request"`) {
		b.t.Errorf("%v %s", w.Header(), w.Body)
	}
	return w.Code
}

// The provider ends what its token names, at every replica.
func TestProviderLogout(t *testing.T) {
	for name, tt := range map[string]struct {
		logout people.Logout
		sid    string // of the session
		ends   bool
	}{
		"the session":                     {logout: people.Logout{Session: "s"}, sid: "s", ends: true},
		"another session":                 {logout: people.Logout{Session: "s"}, sid: "other"},
		"a session without a name":        {logout: people.Logout{Session: "s"}},
		"the person":                      {logout: people.Logout{Subjects: []string{"guest", "idp|guest"}}, sid: "s", ends: true},
		"the person by the other name":    {logout: people.Logout{Subjects: []string{"g", "guest"}}, ends: true},
		"another person":                  {logout: people.Logout{Subjects: []string{"ann", "idp|ann"}}, sid: "s"},
		"both":                            {logout: people.Logout{Session: "s", Subjects: []string{"guest"}}, sid: "s", ends: true},
		"the person, an unnamed session":  {logout: people.Logout{Session: "s", Subjects: []string{"guest"}}, ends: true},
		"the person, another session":     {logout: people.Logout{Session: "s", Subjects: []string{"guest"}}, sid: "other"},
		"another person's named the same": {logout: people.Logout{Session: "s", Subjects: []string{"ann"}}, sid: "s"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			tt.logout.ID = "jti"
			with := func(o *console.Options) {
				o.Provider, o.URL, o.Logout = &elsewhere{sid: tt.sid}, "https://gate.example", tokens{"good": tt.logout}.read
			}
			one, two := f.replica(with), f.replica(with)
			one.host, two.host = "gate.example", "gate.example"
			ann := newBrowser(one.listener).signIn("t-ann")
			one.enterElsewhere()
			if code := two.providerLogout("good"); code != 200 {
				t.Fatalf("the provider's logout: %d", code)
			}
			if got := one.signedIn(); got == tt.ends {
				t.Errorf("signed in: %v", got)
			}
			if !ann.signedIn() {
				t.Error("the session of a token ended")
			}
			last := two.acts[max(0, len(two.acts)-1):]
			if recorded := len(last) == 1 && last[0].Name == audit.EventSignOut && last[0].Credential == "provider" && last[0].Principal.Subject == "guest" && last[0].Principal.Has("approver"); recorded != tt.ends {
				t.Errorf("recorded: %+v", two.acts)
			}
		})
	}
}

// enterElsewhere signs the guest in.
func (b *browser) enterElsewhere() {
	b.t.Helper()
	b.do("GET", "/console/login/provider", nil)
	if w := b.do("GET", "/console/login/callback?code=ann", nil); w.Code != 303 || !b.signedIn() {
		b.t.Fatalf("signing in elsewhere: %d %s", w.Code, w.Body)
	}
}

// An open page of a session that the provider ended at another replica hears no more.
func TestStreamsEndWithTheProvidersLogout(t *testing.T) {
	f := newFleet(t)
	with := func(o *console.Options) {
		o.Provider, o.URL = new(elsewhere), "https://gate.example"
		o.Logout = tokens{"good": {ID: "jti", Subjects: []string{"guest"}}}.read
	}
	one, two := f.replica(with), f.replica(with)
	one.host, two.host = "gate.example", "gate.example"
	one.enterElsewhere()
	server := httptest.NewServer(one.listener)
	defer server.Close()
	defer one.listener.Console.Close()
	lines, _ := one.stream(server, "")
	hears(t, lines, "changed")
	k := one.hold(`{"n":1}`)
	hears(t, lines, "state-"+k.ID, "changed")
	if code := two.providerLogout("good"); code != 200 {
		t.Fatalf("the provider's logout: %d", code)
	}
	one.hold(`{"n":2}`)
	if line, open := <-lines; open {
		t.Errorf("the stream goes on: %q", line)
	}
}

func TestRefusedProviderLogouts(t *testing.T) {
	f := newFleet(t)
	known := tokens{"good": {ID: "1", Subjects: []string{"guest"}}, "nameless": {Subjects: []string{"guest"}}, "nobody": {ID: "2"}, "later": {ID: "3", Subjects: []string{"guest"}}}
	with := func(o *console.Options) {
		o.Provider, o.URL, o.Logout = new(elsewhere), "https://gate.example", known.read
	}
	one, two := f.replica(with), f.replica(with)
	one.host, two.host = "gate.example", "gate.example"
	one.enterElsewhere()
	for _, token := range []string{"", "unknown", "nameless", "nobody"} {
		if code := one.providerLogout(token); code != 400 || !one.signedIn() {
			t.Errorf("%q: %d", token, code)
		}
	}
	for name, w := range map[string]int{
		"in the query":   one.do("POST", "/console/backchannel-logout?logout_token=good", url.Values{}).Code,
		"twice":          one.do("POST", "/console/backchannel-logout", url.Values{"logout_token": {"good", "good"}}).Code,
		"no form":        one.ask("POST", "/console/backchannel-logout", "logout_token=good", "Host", one.host).Code,
		"a large body":   one.do("POST", "/console/backchannel-logout", url.Values{"logout_token": {strings.Repeat("x", 65<<10)}}).Code,
		"another method": one.do("GET", "/console/backchannel-logout?logout_token=good", nil).Code,
		"another page":   one.do("POST", "/console/backchannel-logout", url.Values{"logout_token": {"good"}}, "Origin", "https://evil.example").Code,
	} {
		if want := map[string]int{"another method": 405, "another page": 403}[name]; w != max(want, 400) || !one.signedIn() {
			t.Errorf("%s: %d", name, w)
		}
	}
	if code := one.providerLogout("good"); code != 200 || one.signedIn() {
		t.Errorf("a good one: %d", code)
	}
	one.enterElsewhere()
	if code := two.providerLogout("good"); code != 400 || !one.signedIn() {
		t.Errorf("the same at another replica: %d", code)
	}
	f.exec("ALTER TABLE console_sessions RENAME TO away")
	if code := one.providerLogout("later"); code != 400 {
		t.Errorf("while the store fails: %d", code)
	}
	f.exec("ALTER TABLE away RENAME TO console_sessions")
	if code := one.providerLogout("later"); code != 200 || one.signedIn() {
		t.Errorf("sent again: %d", code)
	}
	if code := newBrowser(newListener(t, nil)).providerLogout("good"); code != 404 {
		t.Errorf("without a provider: %d", code)
	}
}

// Signing out leads to where the provider ends its own session, and says so afterwards.
func TestSigningOutElsewhere(t *testing.T) {
	var state string
	answer := "https://idp.example/out?a=b"
	l := newListener(t, func(o *console.Options) {
		o.Provider, o.URL = new(elsewhere), "https://gate.example"
		o.EndSession = func(_ context.Context, back, given string) (string, error) {
			if state = given; back != "https://gate.example/console/login" {
				t.Errorf("back to %q", back)
			}
			if answer == "" {
				return "", errors.New("secret reason")
			}
			return answer, nil
		}
	})
	b := newBrowser(l)
	b.host = "gate.example"
	b.enterElsewhere()
	w := b.do("POST", "/console/logout", b.form("/console/login"))
	if w.Code != 200 || w.Header().Get("Refresh") != "0; url="+answer || !strings.Contains(w.Body.String(), `href="https://idp.example/out?a=b"`) || b.cookies["__Host-toolgate"] != "" {
		t.Fatalf("%d %v %s", w.Code, w.Header(), w.Body)
	}
	const said = "signed out here and at your organisation"
	if text := b.do("GET", "/console/login?state=x", nil).Body.String(); strings.Contains(text, said) {
		t.Error("another state counts")
	}
	for _, want := range []bool{true, false} {
		if text := b.do("GET", "/console/login?state="+state, nil).Body.String(); strings.Contains(text, said) != want {
			t.Errorf("want %v: %s", want, text)
		}
	}
	answer = ""
	b.enterElsewhere()
	if w := b.do("POST", "/console/logout", b.form("/console/login")); w.Code != 303 || b.cookies["__Host-toolgate"] != "" {
		t.Errorf("without the provider: %d %v", w.Code, w.Header())
	}
	answer = "https://idp.example/out"
	ann := newBrowser(l).signIn("t-ann")
	if w := ann.do("POST", "/console/logout", ann.form("/console/login")); w.Code != 303 {
		t.Errorf("after a sign-in by token: %d", w.Code)
	}
}

// The page says what it is for and where a token comes from; the provider comes first.
func TestSignInPage(t *testing.T) {
	b, _ := newGuest(t)
	text := b.do("GET", "/console/login", nil).Body.String()
	provider, token := strings.Index(text, "Sign in with your organisation"), strings.Index(text, `name="token"`)
	if !strings.Contains(text, "<h1>Sign in to toolgate</h1>") || !strings.Contains(text, "toolgate token create") || provider < 0 || token < provider {
		t.Errorf("%s", text)
	}
}
