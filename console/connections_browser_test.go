package console_test

import (
	"context"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/policy"
)

// authorization is an authorization server at another host name, which asks unless the person is known
// to it; both ways lead over a second address of its own, as where an organisation signs people in.
func authorization(t *testing.T, back string) *httptest.Server {
	t.Helper()
	var known bool
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	mux.HandleFunc("/authorize", func(w http.ResponseWriter, r *http.Request) {
		if referrer := r.Referer(); referrer != "" {
			t.Errorf("the authorization server learns %s", referrer)
		}
		http.Redirect(w, r, strings.Replace(server.URL, "127.0.0.1", "localhost", 1)+"/ask?"+r.URL.RawQuery, http.StatusFound)
	})
	mux.HandleFunc("/ask", func(w http.ResponseWriter, r *http.Request) {
		address := back + "?" + url.Values{"code": {"secret-code"}, "state": {r.FormValue("state")}}.Encode()
		if known {
			http.Redirect(w, r, address, http.StatusFound)
			return
		}
		known = true
		fmt.Fprintf(w, `<!doctype html><title>Authorize</title><p>May toolgate use your account?</p><a id="allow" href="%s">Allow</a>`, html.EscapeString(address))
	})
	return server
}

// connectables is a console with accounts that browsers reach.
func connectables(t *testing.T) (*accounts, string) {
	t.Helper()
	server := httptest.NewUnstartedServer(nil)
	base := "http://" + server.Listener.Addr().String()
	l, a := connectable(t, func(o *console.Options) {
		o.URL = base
		o.Anonymous = func(context.Context) (policy.Principal, error) { return policy.Principal{}, nil }
	})
	a.address = authorization(t, base+"/connections/callback").URL + "/authorize"
	server.Config.Handler = l
	server.Start()
	t.Cleanup(func() {
		l.Console.Close()
		server.Close()
	})
	return a, base
}

// A person follows the link of an agent, signs in, reads who asks, connects over pages of others, and
// disconnects; without scripts too.
func connectingInABrowser(t *testing.T, browser context.Context) {
	for _, s := range []screen{phone, night, desktop} {
		t.Run(s.name, func(t *testing.T) {
			a, base := connectables(t)
			p := sitting(t, browser, base, s)
			sees := p.sees
			if s == night { // nothing waits in a page without scripts
				sees = func(words string) {
					t.Helper()
					if text := p.text(); !strings.Contains(text, words) {
						t.Fatalf("the page does not say %q but:\n%s", words, text)
					}
				}
				if _, err := chromedp.Call(p.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}); err != nil {
					t.Fatal(err)
				}
			}
			p.signIn("t-ann", "/connections/github")
			sees("Connect your account at github?")
			p.shot("connect-1-asks")
			p.press("form[action='/connections/github'] button")
			sees("May toolgate use your account?")
			p.press("#allow")
			sees("connected as octo-ann")
			if at := ask[string](p, "location.href"); at != base+"/connections/github" {
				t.Errorf("back at %s", at)
			}
			p.shot("connect-2-connected")
			p.press("form[action='/connections/github'] button")
			sees("connected as octo-ann")
			p.goes("/connections")
			sees("Your connections")
			p.shot("connect-3-list")
			p.press("form[action='/connections/github/disconnect'] button")
			sees("not connected")
			if ended := a.ended(); len(ended) == 0 {
				t.Error("nothing has ended")
			}
		})
	}
	a, base := connectables(t)
	a.has("github", ann)
	a.has("github", console.Person{Subject: "somebody-with-a-long-name@department.example"})
	a.has("github", bob)
	a.has("drive", gate)
	for _, s := range []screen{phone, night, desktop} {
		p := sitting(t, browser, base, s)
		p.signIn("t-oda", "/connections")
		p.sees("Connections of others")
		p.shot("connect-4-operator")
		if wide := ask[float64](p, "document.documentElement.scrollWidth"); wide > float64(s.width) {
			t.Errorf("the page is %v wide on a screen of %d", wide, s.width)
		}
		p.open("/connections/drive")
		p.sees("everybody’s calls")
		p.shot("connect-5-shared")
		p.open("/connections/callback?code=secret-code&state=secret-state-0")
		p.sees("it was not begun in this session of this browser")
		p.shot("connect-6-refused")
	}
}
