package console_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/policy"
)

// elsewhere is a provider that knows ann by the code "ann".
type elsewhere struct {
	down, gone bool
	begun      int
	sid        string // of its session
}

func (e *elsewhere) Begin(context.Context) (string, string, error) {
	if e.down {
		return "", "", errors.New("secret reason")
	}
	e.begun++
	return "https://idp.example/auth?client_id=x", fmt.Sprintf("s%d", e.begun), nil
}

func (e *elsewhere) Finish(_ context.Context, secret string, answer url.Values) (policy.Principal, string, error) {
	if secret != fmt.Sprintf("s%d", e.begun) || answer.Get("code") != "ann" {
		return policy.Principal{}, "", errors.New("secret reason")
	}
	return policy.Principal{Subject: "guest", Roles: []string{"approver"}}, e.sid, nil
}

func (e *elsewhere) Again(_ context.Context, p policy.Principal) (policy.Principal, error) {
	if e.gone {
		return policy.Principal{}, errors.New("secret reason")
	}
	return p, nil
}

func newGuest(t *testing.T) (*browser, *elsewhere) {
	t.Helper()
	e := new(elsewhere)
	l := newListener(t, func(o *console.Options) { o.Provider, o.URL = e, "https://gate.example" })
	b := newBrowser(l)
	b.host = "gate.example"
	return b, e
}

func TestSigningInElsewhere(t *testing.T) {
	b, e := newGuest(t)
	if text := b.do("GET", "/console/login?next=/console/approvals/apr_1", nil).Body.String(); !strings.Contains(text, `href="/console/login/provider?next=%2Fconsole%2Fapprovals%2Fapr_1"`) {
		t.Errorf("no link: %s", text)
	}
	w := b.do("GET", "/console/login/provider?next=/console/approvals/apr_1", nil)
	if w.Code != 303 || w.Header().Get("Location") != "https://idp.example/auth?client_id=x" {
		t.Fatalf("%d %v", w.Code, w.Header())
	}
	w = b.do("GET", "/console/login/callback?code=ann&state=x", nil, "Sec-Fetch-Site", "cross-site")
	if w.Code != 303 || w.Header().Get("Location") != "/console/approvals/apr_1" {
		t.Fatalf("%d %v %s", w.Code, w.Header(), w.Body)
	}
	if !b.signedIn() || b.cookies["__Host-toolgate-journey"] != "" {
		t.Errorf("cookies %v", b.cookies)
	}
	if e.gone = true; b.signedIn() {
		t.Error("signed in after the provider's people are gone")
	}
}

func TestRefusedElsewhere(t *testing.T) {
	for name, tt := range map[string]struct {
		before func(b *browser, e *elsewhere)
		query  string
		status int
	}{
		"another code":     {query: "?code=eve", status: 401},
		"no cookie":        {query: "?code=ann", before: func(b *browser, _ *elsewhere) { clear(b.cookies) }, status: 401},
		"another's cookie": {query: "?code=ann", before: func(b *browser, _ *elsewhere) { b.cookies["__Host-toolgate-journey"] = "s0|" }, status: 401},
		"twice": {query: "?code=ann", before: func(b *browser, _ *elsewhere) {
			b.do("GET", "/console/login/callback?code=ann", nil)
			delete(b.cookies, "__Host-toolgate")
		}, status: 401},
		"no query": {query: "?%zz", status: 400},
	} {
		t.Run(name, func(t *testing.T) {
			b, e := newGuest(t)
			b.do("GET", "/console/login/provider", nil)
			if tt.before != nil {
				tt.before(b, e)
			}
			w := b.do("GET", "/console/login/callback"+tt.query, nil)
			if w.Code != tt.status || b.cookies["__Host-toolgate"] != "" || strings.Contains(w.Body.String(), "secret reason") {
				t.Errorf("%d %v %s", w.Code, b.cookies, w.Body)
			}
		})
	}
}

func TestDepartures(t *testing.T) {
	b, e := newGuest(t)
	b.host = "127.0.0.1:8788"
	if w := b.do("GET", "/console/login/provider?next=/console/x", nil); w.Header().Get("Location") != "https://gate.example/console/login/provider?moved=1&next=%2Fconsole%2Fx" || e.begun != 0 {
		t.Errorf("from another host: %v", w.Header())
	}
	if w := b.do("GET", "/console/login/provider?moved=1", nil); w.Code != 403 || !strings.Contains(w.Body.String(), "Host header") {
		t.Errorf("a proxy that changes the host: %d %s", w.Code, w.Body)
	}
	b.host, e.down = "gate.example", true
	if w := b.do("GET", "/console/login/provider", nil); w.Code != 503 || strings.Contains(w.Body.String(), "secret reason") || !strings.Contains(w.Body.String(), `name="token"`) {
		t.Errorf("a provider that is down: %d %s", w.Code, w.Body)
	}
	plain := newBrowser(newListener(t, nil))
	for _, path := range []string{"/console/login/provider", "/console/login/callback?code=ann"} {
		if w := plain.do("GET", path, nil); w.Code != 404 {
			t.Errorf("%s without a provider: %d", path, w.Code)
		}
	}
	open := newBrowser(newListener(t, func(o *console.Options) { o.Provider, o.URL = e, "http://gate.example" }))
	if open.host = "gate.example"; open.do("GET", "/console/login/provider", nil).Code != 403 {
		t.Error("departed over a connection that others can read")
	}
}

// from sends a wrong token from an address, and gives the status.
func (b *browser) from(address string) int {
	b.t.Helper()
	form := url.Values{"csrf": {"x"}, "token": {"wrong"}}
	r := httptest.NewRequest(http.MethodPost, "/console/login", strings.NewReader(form.Encode()))
	r.Host, r.RemoteAddr = b.host, address
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.AddCookie(&http.Cookie{Name: "__Host-toolgate-entry", Value: "x"})
	w := httptest.NewRecorder()
	b.ServeHTTP(w, r)
	if w.Code == 429 && w.Header().Get("Retry-After") == "" {
		b.t.Error("no Retry-After")
	}
	return w.Code
}

// Whoever tries too often waits, and nobody else does.
func TestTriesAreBounded(t *testing.T) {
	b := newBrowser(newListener(t, nil))
	for range 10 {
		if got := b.from("192.0.2.1:1"); got != 401 {
			t.Fatalf("an early try: %d", got)
		}
	}
	for address, want := range map[string]int{"192.0.2.1:2": 429, "[::ffff:192.0.2.1]:3": 429, "192.0.2.2:1": 401, "[2001:db8::1]:1": 401} {
		if got := b.from(address); got != want {
			t.Errorf("%s: %d, want %d", address, got, want)
		}
	}
	for i := range 9 {
		if got := b.from(fmt.Sprintf("[2001:db8::%d:1]:1", i)); got != 401 {
			t.Fatalf("an early try: %d", got)
		}
	}
	if got := b.from("[2001:db8::ff]:1"); got != 429 {
		t.Errorf("the same network: %d", got)
	}
	b.advance(6 * time.Second)
	if first, second := b.from("192.0.2.1:1"), b.from("192.0.2.1:1"); first != 401 || second != 429 {
		t.Errorf("after a while: %d, %d", first, second)
	}
	guest, _ := newGuest(t)
	statuses := map[int]int{}
	for range 8 {
		statuses[guest.do("GET", "/console/login/provider", nil).Code]++
		statuses[guest.do("GET", "/console/login/callback", nil).Code]++
	}
	if statuses[429] != 6 {
		t.Errorf("elsewhere: %v", statuses)
	}
}

// With more addresses than can be told apart, guessing stays slow, and those
// that are known are not mixed up.
func TestManyAddresses(t *testing.T) {
	b := newBrowser(newListener(t, nil))
	for i := range 10_000 {
		b.from(fmt.Sprintf("10.0.%d.%d:1", i/256, i%256))
	}
	statuses := map[int]int{}
	for i := range 30 {
		statuses[b.from(fmt.Sprintf("10.9.0.%d:1", i))]++
	}
	if statuses[401] != 10 || statuses[429] != 20 {
		t.Errorf("%v", statuses)
	}
	if got := b.from("10.0.0.0:1"); got != 401 {
		t.Errorf("a known address: %d", got)
	}
	if b.advance(time.Minute); b.from("10.9.0.99:1") != 401 {
		t.Error("no room was made")
	}
}
