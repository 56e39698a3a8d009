package console

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/toolgate/toolgate/policy"
)

// A Provider signs people in elsewhere. Implementations are safe for concurrent use,
// and their errors contain no secrets.
type Provider interface {
	// Begin returns the address to send the browser to, and a secret for Finish of
	// letters, digits, ".", "_" and "-", which only this browser receives.
	Begin(ctx context.Context) (address, secret string, err error)
	// Finish identifies a visitor who returned; answer is the query of the address
	// to which the provider sent the browser.
	Finish(ctx context.Context, secret string, answer url.Values) (policy.Principal, error)
	// Again identifies a principal that signed in earlier; an error ends the
	// session.
	Again(ctx context.Context, p policy.Principal) (policy.Principal, error)
}

// journeyCookie holds a Provider's secret and where to go after signing in.
const journeyCookie = "__Host-toolgate-journey"

var noProvider = problem{Status: http.StatusNotFound, Code: "NOT_FOUND", Detail: "there is no identity provider here", Hint: "see toolgate.console.oidc"}

// depart redirects the browser to the provider. It first moves the browser to
// the host of Options.URL, because only the host that sets the cookie receives
// it when the browser returns.
func (c *Console) depart(w http.ResponseWriter, r *http.Request) error {
	to := next(r.URL.Query().Get("next"))
	switch {
	case c.opts.Provider == nil:
		return c.refusePage(w, r, noProvider)
	case !c.throttle.allow(r):
		return c.tooOften(w, r, entry{Next: to})
	case !c.atHome(r.Host) && r.URL.Query().Has("moved"):
		return c.refusePage(w, r, problem{Status: http.StatusForbidden, Code: "HOST_REFUSED", Detail: "this address is not the one in toolgate.console.url",
			Hint: "a proxy in front has to pass the Host header on as it came"})
	case !c.atHome(r.Host):
		http.Redirect(w, r, c.opts.URL+"/console/login/provider?moved=1&next="+url.QueryEscape(to), http.StatusSeeOther)
		return nil
	case !c.private(r):
		return c.askWho(w, r, http.StatusForbidden, entry{Next: to})
	}
	address, secret, err := c.opts.Provider.Begin(r.Context())
	if err != nil {
		c.opts.Log.Error("signing in", "error", err)
		return c.noEntry(w, r, entry{Next: to}, problem{Status: http.StatusServiceUnavailable, Code: "PROVIDER_UNREACHABLE",
			Detail: "the identity provider cannot be reached", Hint: "try again, or sign in with a token"})
	}
	setCookie(w, journeyCookie, secret+"|"+url.QueryEscape(to))
	http.Redirect(w, r, address, http.StatusSeeOther)
	return nil
}

// arrive begins a session for a visitor who returns from the provider, once per
// departure.
func (c *Console) arrive(w http.ResponseWriter, r *http.Request) error {
	if c.opts.Provider == nil {
		return c.refusePage(w, r, noProvider)
	}
	secret, to, _ := strings.Cut(cookie(r, journeyCookie), "|")
	to, _ = url.QueryUnescape(to) // what cannot be read leads home
	s := entry{Next: next(to)}
	if !c.throttle.allow(r) {
		return c.tooOften(w, r, s)
	}
	setCookie(w, journeyCookie, "")
	answer, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return c.refusePage(w, r, badRequest("the query cannot be read", ""))
	}
	p, err := c.opts.Provider.Finish(r.Context(), secret, answer)
	if err != nil || !p.Valid() {
		c.opts.Log.Warn("refusing a sign-in", "error", err)
		return c.noEntry(w, r, s, problem{Status: http.StatusUnauthorized, Code: "UNAUTHENTICATED",
			Detail: "the identity provider did not sign you in here", Hint: "try again; toolgate's log says why"})
	}
	if p.Until.IsZero() { // nothing but the session vouches for a guest, for votes too
		p.Until = c.opts.Now().Add(c.sessions.life)
	}
	c.enter(w, r, p, c.opts.Provider.Again, s.Next)
	return nil
}
