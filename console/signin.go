package console

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"

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

func (vs *visitors) page(w http.ResponseWriter, r *http.Request) error {
	if v, err := vs.visitor(w, r); err == nil {
		frame, err := vs.shell(r.Context(), v, "Sign in", "", "")
		if err != nil {
			return vs.refusePage(w, r, v, err)
		}
		return page.Render(w, page.PlainCSP, http.StatusOK, entryView(entry{Shell: frame}))
	}
	s := entry{Next: next(r.URL.Query().Get("next"))}
	state, _, _ := strings.Cut(cookie(r, journeyCookie), "|")
	if s.SignedOut = equalSecrets(state, r.URL.Query().Get("state")); s.SignedOut {
		setCookie(w, journeyCookie, "")
	}
	return vs.askWho(w, r, http.StatusOK, s)
}

// askWho shows the sign-in form with a token for this browser.
func (vs *visitors) askWho(w http.ResponseWriter, r *http.Request, status int, s entry) error {
	s.Shell, s.Closed, s.URL, s.Provider = vs.outside("Sign in"), !vs.private(r), vs.url, vs.provider != nil
	if !s.Closed {
		s.CSRF = entrySecret(w, r)
	}
	return page.Render(w, page.PlainCSP, status, entryView(s))
}

// entrySecret returns the field csrf for a browser without a session, which gets it as a cookie.
func entrySecret(w http.ResponseWriter, r *http.Request) string {
	value := cookie(r, entryCookie)
	if value == "" {
		value = rand.Text()
		setCookie(w, entryCookie, value)
	}
	return value
}

// signIn begins a session for a token. Only its hash is kept, so that a token
// that is replaced ends what it began.
func (vs *visitors) signIn(w http.ResponseWriter, r *http.Request) error {
	if err := page.ReadForm(w, r); err != nil {
		return vs.refusePage(w, r, visitor{}, err)
	}
	s := entry{Next: next(r.PostForm.Get("next"))}
	switch {
	case !vs.private(r):
		return vs.noEntry(w, r, s, page.Problem{Status: http.StatusForbidden, Code: "NOT_PRIVATE", Detail: "a token is not taken over a connection that others can read"})
	case !equalSecrets(cookie(r, entryCookie), r.PostForm.Get("csrf")):
		return vs.noEntry(w, r, s, page.Problem{Status: http.StatusForbidden, Code: "FORM_REFUSED",
			Detail: "your browser did not send back the cookie of this page", Hint: "allow cookies for this site, and try again"})
	}
	token := strings.TrimSpace(r.PostForm.Get("token"))
	p, err := vs.principal(r.Context(), token)
	if store.Away(err) {
		return vs.refusePage(w, r, visitor{}, err)
	}
	if err != nil || !p.Valid() {
		vs.log.Debug("refusing a sign-in", "error", err)
		if !vs.throttle.Allow(r.RemoteAddr) {
			return vs.tooOften(w, r, s)
		}
		return vs.noEntry(w, r, s, page.Problem{Status: http.StatusUnauthorized, Code: "UNAUTHENTICATED", Detail: "that token is not known here"})
	}
	return vs.enter(w, r, session{principal: p, credential: hashOf(token)}, s.Next)
}

// enter begins session k in place of any session of the browser.
func (vs *visitors) enter(w http.ResponseWriter, r *http.Request, k session, to string) error {
	act := Act{Name: ActSignIn, Principal: k.principal, Credential: "token"}
	if k.credential == "" {
		act.Credential = "provider"
	}
	err := vs.record(r, act)
	var value string
	if err == nil {
		value, err = vs.sessions.start(r.Context(), k, cookie(r, sessionCookie))
	}
	if err != nil {
		return vs.refusePage(w, r, visitor{}, err)
	}
	setCookie(w, sessionCookie, value)
	setCookie(w, entryCookie, "")
	http.Redirect(w, r, to, http.StatusSeeOther)
	return nil
}

// noEntry shows the sign-in form again, with the reason.
func (vs *visitors) noEntry(w http.ResponseWriter, r *http.Request, s entry, p page.Problem) error {
	s.Refused = &p
	return vs.askWho(w, r, p.Status, s)
}

func (vs *visitors) tooOften(w http.ResponseWriter, r *http.Request, s entry) error {
	w.Header().Set("Retry-After", strconv.Itoa(int(guard.RefusedEvery.Seconds())))
	return vs.noEntry(w, r, s, page.Problem{Status: http.StatusTooManyRequests, Code: "TOO_OFTEN",
		Detail: "there were too many tries to sign in from your address", Hint: "wait a minute, and try again"})
}

// signOut ends the session here, and sends a browser that signed in at the provider there to
// sign out too. The page does so, because form-action of pageCSP holds for the redirects that
// follow a form.
func (vs *visitors) signOut(w http.ResponseWriter, r *http.Request, v visitor) error {
	if err := vs.sessions.drop(r.Context(), v.session.id); err != nil {
		return err
	}
	_ = vs.record(r, Act{Name: ActSignOut, Principal: v.Principal}) // the log has the cause
	setCookie(w, sessionCookie, "")
	var elsewhere string
	state := rand.Text()
	if v.session.credential == "" && vs.endSession != nil {
		var err error
		if elsewhere, err = vs.endSession(r.Context(), vs.url+"/console/login", state); err != nil {
			vs.log.Warn("signing out at the provider", "error", err)
		}
	}
	if elsewhere == "" {
		http.Redirect(w, r, "/console/login", http.StatusSeeOther)
		return nil
	}
	setCookie(w, journeyCookie, state+"|")
	w.Header().Set("Refresh", "0; url="+elsewhere)
	return page.Render(w, page.PlainCSP, http.StatusOK, entryView(entry{Shell: vs.outside("Sign out"), Elsewhere: elsewhere}))
}

// private reports whether the connection is private: the browser runs on this
// machine, or TLS ends here or at the proxy that serves Options.URL. Elsewhere
// a browser drops Secure cookies, and others could read the token.
func (vs *visitors) private(r *http.Request) bool {
	return vs.home.Scheme == "https" && vs.atHome(r.Host) || r.TLS != nil || guard.Loopback(guard.HostName(r.Host))
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
	return strings.HasPrefix(path, "/console/") || path == connectionsPath || strings.HasPrefix(path, connectionsPath+"/")
}

// readFiles is readForm for multipart forms of twice candidateBytes, which it holds in memory.
func readFiles(w http.ResponseWriter, r *http.Request) error {
	r.Body = http.MaxBytesReader(w, r.Body, 2*candidateBytes)
	return page.ReadFields(r, "multipart/form-data", func() error { return r.ParseMultipartForm(3 * candidateBytes) }, tooLargePolicy)
}

// uploaded returns the file in a field of a form that readFiles has read; nil = none was chosen.
func uploaded(r *http.Request, field string) ([]byte, error) {
	f, _, err := r.FormFile(field)
	if errors.Is(err, http.ErrMissingFile) {
		return nil, nil
	}
	if err != nil {
		return nil, page.BadRequest("the file cannot be read", "")
	}
	defer f.Close()
	return io.ReadAll(f)
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
func (vs *visitors) beginProviderSignIn(w http.ResponseWriter, r *http.Request) error {
	to := next(r.URL.Query().Get("next"))
	switch {
	case vs.provider == nil:
		return vs.refusePage(w, r, visitor{}, noProvider)
	case !vs.throttle.Allow(r.RemoteAddr):
		return vs.tooOften(w, r, entry{Next: to})
	case !vs.atHome(r.Host):
		return vs.moveHome(w, r)
	case !vs.private(r):
		return vs.askWho(w, r, http.StatusForbidden, entry{Next: to})
	}
	address, secret, err := vs.provider.Begin(r.Context())
	if err != nil {
		vs.log.Error("signing in", "error", err)
		return vs.noEntry(w, r, entry{Next: to}, page.Problem{Status: http.StatusServiceUnavailable, Code: "PROVIDER_UNREACHABLE",
			Detail: "the identity provider cannot be reached", Hint: "try again, or sign in with a token"})
	}
	setCookie(w, journeyCookie, secret+"|"+url.QueryEscape(to))
	http.Redirect(w, r, address, http.StatusSeeOther)
	return nil
}

// moveHome sends a browser from another host to the same page at the host of Options.URL.
func (vs *visitors) moveHome(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	if query.Has("moved") {
		return vs.refusePage(w, r, visitor{}, page.Problem{Status: http.StatusForbidden, Code: "HOST_REFUSED", Detail: "this address is not the one in toolgate.console.url",
			Hint: "a proxy in front has to pass the Host header on as it came"})
	}
	query.Set("moved", "1")
	http.Redirect(w, r, vs.url+r.URL.EscapedPath()+"?"+query.Encode(), http.StatusSeeOther)
	return nil
}

// finishProviderSignIn begins a session for a visitor who returns from the provider, once per
// departure.
func (vs *visitors) finishProviderSignIn(w http.ResponseWriter, r *http.Request) error {
	if vs.provider == nil {
		return vs.refusePage(w, r, visitor{}, noProvider)
	}
	secret, to, _ := strings.Cut(cookie(r, journeyCookie), "|")
	to, _ = url.QueryUnescape(to) // what cannot be read leads home
	s := entry{Next: next(to)}
	if !vs.throttle.Allow(r.RemoteAddr) {
		return vs.tooOften(w, r, s)
	}
	setCookie(w, journeyCookie, "")
	answer, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return vs.refusePage(w, r, visitor{}, page.BadRequest("the query cannot be read", ""))
	}
	p, sid, err := vs.provider.Finish(r.Context(), secret, answer)
	if err != nil || !p.Valid() {
		vs.log.Warn("refusing a sign-in", "error", err)
		_ = vs.record(r, Act{Name: ActSignInRefused, Credential: "provider", Reason: "UNAUTHENTICATED"}) // the log has the cause
		return vs.noEntry(w, r, s, page.Problem{Status: http.StatusUnauthorized, Code: "UNAUTHENTICATED",
			Detail: "the identity provider did not sign you in here", Hint: "try again; toolgate's log says why"})
	}
	if p.Until.IsZero() { // nothing but the session vouches for a guest, for votes too
		p.Until = vs.now().Add(vs.sessions.life)
	}
	return vs.enter(w, r, session{principal: p, sid: sid}, s.Next)
}
