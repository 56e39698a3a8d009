package people

import (
	"context"
	"crypto/rand"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
)

const (
	// entryCookie holds what the sign-in form has to show again. A browser that
	// does not send it back would not send the session's either.
	entryCookie = "__Host-toolgate-entry"
	// maxNextBytes bounds what a cookie has to carry.
	maxNextBytes = 2048
)

// An entry is the content of the sign-in page.
type entry struct {
	page.Shell
	Next      string
	Refused   *page.Problem
	Provider  bool // there is one to sign in at
	Closed    bool // no cookie would come back: the form is left out
	URL       string
	Elsewhere string // address that ends the session of the provider; the page has no form then
	SignedOut bool   // there
}

func (g *Guard) page(w http.ResponseWriter, r *http.Request) error {
	if v, err := g.Visitor(w, r); err == nil {
		frame, err := g.Shell(r.Context(), v, "Sign in", "", "")
		if err != nil {
			return g.RefusePage(w, r, v, err)
		}
		return page.Render(w, page.PlainCSP, http.StatusOK, entryView(entry{Shell: frame}))
	}
	s := entry{Next: next(r.URL.Query().Get("next"))}
	state, _, _ := strings.Cut(Cookie(r, journeyCookie), "|")
	if s.SignedOut = EqualSecrets(state, r.URL.Query().Get("state")); s.SignedOut {
		SetCookie(w, journeyCookie, "")
	}
	return g.askWho(w, r, http.StatusOK, s)
}

// askWho shows the sign-in form with a token for this browser.
func (g *Guard) askWho(w http.ResponseWriter, r *http.Request, status int, s entry) error {
	s.Shell, s.Closed, s.URL, s.Provider = g.Outside("Sign in"), !g.private(r), g.o.URL, g.o.Provider != nil
	if !s.Closed {
		s.CSRF = entrySecret(w, r)
	}
	return page.Render(w, page.PlainCSP, status, entryView(s))
}

// entrySecret returns the field csrf for a browser without a session, which gets it as a cookie.
func entrySecret(w http.ResponseWriter, r *http.Request) string {
	value := Cookie(r, entryCookie)
	if value == "" {
		value = rand.Text()
		SetCookie(w, entryCookie, value)
	}
	return value
}

// signIn begins a session for a token. Only its hash is kept, so that a token
// that is replaced ends what it began.
func (g *Guard) signIn(w http.ResponseWriter, r *http.Request) error {
	if err := page.ReadForm(w, r); err != nil {
		return g.RefusePage(w, r, Visitor{}, err)
	}
	s := entry{Next: next(r.PostForm.Get("next"))}
	switch {
	case !g.private(r):
		return g.noEntry(w, r, s, page.Problem{Status: http.StatusForbidden, Code: "NOT_PRIVATE", Detail: "a token is not taken over a connection that others can read"})
	case !EqualSecrets(Cookie(r, entryCookie), r.PostForm.Get("csrf")):
		return g.noEntry(w, r, s, page.Problem{Status: http.StatusForbidden, Code: "FORM_REFUSED",
			Detail: "your browser did not send back the cookie of this page", Hint: "allow cookies for this site, and try again"})
	}
	token := strings.TrimSpace(r.PostForm.Get("token"))
	p, err := g.o.Identify(r.Context(), token)
	if store.Away(err) {
		return g.RefusePage(w, r, Visitor{}, err)
	}
	if err != nil || !p.Valid() {
		g.Log.Debug("refusing a sign-in", "error", err)
		if !g.o.Throttle.Allow(r.RemoteAddr) {
			return g.tooOften(w, r, s)
		}
		return g.noEntry(w, r, s, page.Problem{Status: http.StatusUnauthorized, Code: "UNAUTHENTICATED", Detail: "that token is not known here"})
	}
	return g.enter(w, r, session{principal: p, credential: hashOf(token)}, s.Next)
}

// enter begins session k in place of any session of the browser.
func (g *Guard) enter(w http.ResponseWriter, r *http.Request, k session, to string) error {
	act := Act{Name: audit.EventSignIn, Principal: k.principal, Credential: "token"}
	if k.credential == "" {
		act.Credential = "provider"
	}
	err := g.Record(r, act)
	var value string
	if err == nil {
		value, err = g.sessions.start(r.Context(), k, Cookie(r, sessionCookie))
	}
	if err != nil {
		return g.RefusePage(w, r, Visitor{}, err)
	}
	SetCookie(w, sessionCookie, value)
	SetCookie(w, entryCookie, "")
	http.Redirect(w, r, to, http.StatusSeeOther)
	return nil
}

// noEntry shows the sign-in form again, with the reason.
func (g *Guard) noEntry(w http.ResponseWriter, r *http.Request, s entry, p page.Problem) error {
	s.Refused = &p
	return g.askWho(w, r, p.Status, s)
}

func (g *Guard) tooOften(w http.ResponseWriter, r *http.Request, s entry) error {
	w.Header().Set("Retry-After", strconv.Itoa(int(guard.RefusedEvery.Seconds())))
	return g.noEntry(w, r, s, page.Problem{Status: http.StatusTooManyRequests, Code: "TOO_OFTEN",
		Detail: "there were too many tries to sign in from your address", Hint: "wait a minute, and try again"})
}

// signOut ends the session here, and sends a browser that signed in at the provider there to
// sign out too. The page does so, because form-action of pageCSP holds for the redirects that
// follow a form.
func (g *Guard) signOut(w http.ResponseWriter, r *http.Request, v Visitor) error {
	if err := g.sessions.drop(r.Context(), v.session.id); err != nil {
		return err
	}
	_ = g.Record(r, Act{Name: audit.EventSignOut, Principal: v.Principal}) // the log has the cause
	SetCookie(w, sessionCookie, "")
	var elsewhere string
	state := rand.Text()
	if v.session.credential == "" && g.o.EndSession != nil {
		var err error
		if elsewhere, err = g.o.EndSession(r.Context(), g.o.URL+"/console/login", state); err != nil {
			g.Log.Warn("signing out at the provider", "error", err)
		}
	}
	if elsewhere == "" {
		http.Redirect(w, r, "/console/login", http.StatusSeeOther)
		return nil
	}
	SetCookie(w, journeyCookie, state+"|")
	w.Header().Set("Refresh", "0; url="+elsewhere)
	return page.Render(w, page.PlainCSP, http.StatusOK, entryView(entry{Shell: g.Outside("Sign out"), Elsewhere: elsewhere}))
}

// private reports whether the connection is private: the browser runs on this
// machine, or TLS ends here or at the proxy that serves Options.URL. Elsewhere
// a browser drops Secure cookies, and others could read the token.
func (g *Guard) private(r *http.Request) bool {
	return g.home.Scheme == "https" && g.AtHome(r.Host) || r.TLS != nil || guard.Loopback(guard.HostName(r.Host))
}

// next is where to go after signing in: only ever a page of ours, and the approvals unless another is named.
func next(to string) string {
	u, err := url.Parse(to)
	if err != nil || len(to) > maxNextBytes || u.IsAbs() || u.Host != "" || u.User != nil || u.Opaque != "" || !ours(u.Path) || path.Clean(u.Path) != strings.TrimSuffix(u.Path, "/") ||
		strings.ContainsAny(to, "\\\r\n\t") || strings.HasPrefix(u.Path, "/console/log") {
		return page.ApprovalsPath
	}
	return (&url.URL{Path: u.Path, RawQuery: u.RawQuery}).String()
}

// ours reports whether a path is that of a page.
func ours(path string) bool {
	return strings.HasPrefix(path, "/console/") || path == page.ConnectionsPath || strings.HasPrefix(path, page.ConnectionsPath+"/")
}

// A Provider signs people in elsewhere. Implementations are safe for concurrent use,
// and their errors contain no secrets.
type Provider interface {
	// Begin returns the address to send the browser to, and a secret for Finish of
	// letters, digits, ".", "_" and "-", which only this browser receives.
	Begin(ctx context.Context) (address, secret string, err error)
	// Finish identifies a visitor who returned; answer is the query of the address
	// to which the provider sent the browser. It also returns how the provider names
	// its session, "" when it does not.
	Finish(ctx context.Context, secret string, answer url.Values) (p policy.Principal, session string, err error)
	// Again identifies a principal that signed in earlier; an error ends the
	// session.
	Again(ctx context.Context, p policy.Principal) (policy.Principal, error)
}

// journeyCookie holds a Provider's secret and where to go after signing in, or the state
// with which the browser comes back after signing out there.
const journeyCookie = "__Host-toolgate-journey"

var noProvider = page.Problem{Status: http.StatusNotFound, Code: "NOT_FOUND", Detail: "there is no identity provider here", Hint: "see toolgate.console.oidc"}

// beginProviderSignIn redirects the browser to the provider. It first moves the browser to
// the host of Options.URL, because only the host that sets the cookie receives
// it when the browser returns.
func (g *Guard) beginProviderSignIn(w http.ResponseWriter, r *http.Request) error {
	to := next(r.URL.Query().Get("next"))
	switch {
	case g.o.Provider == nil:
		return g.RefusePage(w, r, Visitor{}, noProvider)
	case !g.o.Throttle.Allow(r.RemoteAddr):
		return g.tooOften(w, r, entry{Next: to})
	case !g.AtHome(r.Host):
		return g.MoveHome(w, r)
	case !g.private(r):
		return g.askWho(w, r, http.StatusForbidden, entry{Next: to})
	}
	address, secret, err := g.o.Provider.Begin(r.Context())
	if err != nil {
		g.Log.Error("signing in", "error", err)
		return g.noEntry(w, r, entry{Next: to}, page.Problem{Status: http.StatusServiceUnavailable, Code: "PROVIDER_UNREACHABLE",
			Detail: "the identity provider cannot be reached", Hint: "try again, or sign in with a token"})
	}
	SetCookie(w, journeyCookie, secret+"|"+url.QueryEscape(to))
	http.Redirect(w, r, address, http.StatusSeeOther)
	return nil
}

// MoveHome sends a browser from another host to the same page at the host of Options.URL.
func (g *Guard) MoveHome(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	if query.Has("moved") {
		return g.RefusePage(w, r, Visitor{}, page.Problem{Status: http.StatusForbidden, Code: "HOST_REFUSED", Detail: "this address is not the one in toolgate.console.url",
			Hint: "a proxy in front has to pass the Host header on as it came"})
	}
	query.Set("moved", "1")
	http.Redirect(w, r, g.o.URL+r.URL.EscapedPath()+"?"+query.Encode(), http.StatusSeeOther)
	return nil
}

// finishProviderSignIn begins a session for a visitor who returns from the provider, once per
// departure.
func (g *Guard) finishProviderSignIn(w http.ResponseWriter, r *http.Request) error {
	if g.o.Provider == nil {
		return g.RefusePage(w, r, Visitor{}, noProvider)
	}
	secret, to, _ := strings.Cut(Cookie(r, journeyCookie), "|")
	to, _ = url.QueryUnescape(to) // what cannot be read leads home
	s := entry{Next: next(to)}
	if !g.o.Throttle.Allow(r.RemoteAddr) {
		return g.tooOften(w, r, s)
	}
	SetCookie(w, journeyCookie, "")
	answer, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return g.RefusePage(w, r, Visitor{}, page.BadRequest("the query cannot be read", ""))
	}
	p, sid, err := g.o.Provider.Finish(r.Context(), secret, answer)
	if err != nil || !p.Valid() {
		g.Log.Warn("refusing a sign-in", "error", err)
		_ = g.Record(r, Act{Name: audit.EventSignInRefused, Credential: "provider", Reason: "UNAUTHENTICATED"}) // the log has the cause
		return g.noEntry(w, r, s, page.Problem{Status: http.StatusUnauthorized, Code: "UNAUTHENTICATED",
			Detail: "the identity provider did not sign you in here", Hint: "try again; toolgate's log says why"})
	}
	if p.Until.IsZero() { // nothing but the session vouches for a guest, for votes too
		p.Until = g.Now().Add(g.sessions.life)
	}
	return g.enter(w, r, session{principal: p, sid: sid}, s.Next)
}
