package people

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/a-h/templ"
	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/stop"
)

// Options configure a [Guard].
type Options struct {
	// Store keeps the sessions, and Keys has the secret that authenticates them. Both are required. Session is
	// how long one stays signed in; 0 = 8 hours.
	Store   *store.DB
	Keys    *keys.Dir
	Session time.Duration
	// Identify turns a bearer token, never empty, into a principal; an error is a 401. Required.
	Identify func(ctx context.Context, bearer string) (policy.Principal, error)
	// Again identifies a principal that signed in earlier, with the current configuration; sum is the SHA-256
	// of its token, 64 hexadecimal digits. Roles may have changed, and an error ends the session. Required.
	Again func(ctx context.Context, p policy.Principal, sum string) (policy.Principal, error)
	// Anonymous identifies a caller without a credential; nil or an error = it is nobody. It may see and make
	// its connections, and nothing else.
	Anonymous func(ctx context.Context) (policy.Principal, error)
	// Provider signs people in elsewhere, in addition to tokens; nil = none. It sends browsers back to URL +
	// "/console/login/callback". Logout verifies logout tokens, as anybody can send them. EndSession returns
	// the address at which a browser signs out there, and from which it comes back with state; nil or "" = there
	// is none.
	Provider   Provider
	Logout     func(ctx context.Context, token string) (Logout, error)
	EndSession func(ctx context.Context, back, state string) (address string, err error)
	// URL is where browsers find this listener, without a slash at its end. With https, TLS ends at a proxy
	// in front. "" = they use its address.
	URL string
	// Throttle bounds refused credentials; nil = one of the console's own.
	Throttle *guard.Throttle
	// Environment is the name of this toolgate on every page, "" = none.
	Environment string
	// InForce returns the stops in force, at once; nil = there are none. Watches reports whether a principal may
	// read metrics and details of the status; of the zero principal, whether everybody may. Nil = everybody.
	InForce func() []stop.Stop
	Watches func(p policy.Principal) bool
	// May and TrailRight say what a principal may; nil or an error = nothing.
	May        func(ctx context.Context, p policy.Principal, right policy.Right) (bool, error)
	TrailRight func(ctx context.Context, p policy.Principal) (policy.TrailRight, error)
	// Record records an act; nil = nothing is recorded. Without their record, nobody signs in, nobody reads the
	// trail, arguments or results of others, no server is restarted, nothing stopped or resumed, no profile taken,
	// no connection begun, made or revoked, no definition of a tool accepted or refused, no session of a client
	// ended, and no token made or revoked.
	Record func(a Act) error
	// Now is the clock; nil = time.Now.
	Now func() time.Time
	// Log receives the causes of internal errors; nil = nothing is logged.
	Log hclog.Logger
}

// A Guard knows the people who send requests: by a bearer token, or by the session of a browser that has
// signed in. It is safe for concurrent use.
type Guard struct {
	*Site
	home     *url.URL // Options.URL
	sessions *sessions
}

// New builds a Guard. Pages have a navigation with places, and a count of the tickets that wait for
// their visitor. The end of ctx ends streams.
func New(ctx context.Context, o Options, places Places, awaiting Awaiting) (*Guard, error) {
	home, err := url.Parse(o.URL)
	if err != nil {
		return nil, err
	}
	sessions, err := newSessions(o)
	return &Guard{Site: &Site{Now: o.Now, Log: o.Log, o: o, places: places, awaiting: awaiting, ctx: ctx}, home: home, sessions: sessions}, err
}

// AtHome reports whether hostport is that of Options.URL.
func (g *Guard) AtHome(hostport string) bool {
	return g.home.Host != "" && strings.EqualFold(g.home.Host, hostport)
}

// Routes are the routes where people sign in and out.
func (g *Guard) Routes(*Guard) page.Routes {
	return page.Routes{
		"/console/login":              {http.MethodGet: g.page, http.MethodPost: g.signIn},
		"/console/login/provider":     {http.MethodGet: g.beginProviderSignIn},
		"/console/login/callback":     {http.MethodGet: g.finishProviderSignIn},
		"/console/backchannel-logout": {http.MethodPost: g.providerLogout},
		"/console/logout":             {http.MethodPost: g.Submit(g.signOut)},
	}
}

// As serves callers with a valid bearer token.
func (g *Guard) As(h page.CallerHandler) page.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		p, err := g.Identify(r.Context(), r.Header.Values("Authorization"))
		if store.Away(err) {
			return err
		}
		if err != nil && r.Header["Authorization"] != nil && !g.o.Throttle.Allow(r.RemoteAddr) {
			w.Header().Set("Retry-After", strconv.Itoa(int(guard.RefusedEvery.Seconds())))
			w.Header().Set("Connection", "close")
			return page.Problem{Status: http.StatusTooManyRequests, Code: "TOO_OFTEN", Detail: "too many credentials from your address were refused",
				Hint: "a valid one is accepted at any time"}
		}
		if err != nil {
			w.Header().Set("WWW-Authenticate", `Bearer realm="toolgate"`)
			return err
		}
		return h(w, r, p)
	}
}

// AsAnybody is As and, where no caller needs a credential, serves those without one as
// Options.Anonymous.
func (g *Guard) AsAnybody(h page.CallerHandler) page.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		if r.Header["Authorization"] == nil && g.o.Anonymous != nil {
			if p, err := g.o.Anonymous(r.Context()); err == nil && p.Valid() {
				return h(w, r, p)
			}
		}
		return g.As(h)(w, r)
	}
}

// Identify fails closed: a missing token, several tokens, another scheme, an
// error and an invalid principal are all refused with 401, and with 503 while nobody can be
// looked up.
func (g *Guard) Identify(ctx context.Context, headers []string) (policy.Principal, error) {
	nobody := page.Problem{Status: http.StatusUnauthorized, Code: "UNAUTHENTICATED", Detail: "missing or unknown bearer token",
		Hint: "say who asks with --token or TOOLGATE_TOKEN"}
	if len(headers) != 1 {
		return policy.Principal{}, nobody
	}
	scheme, token, _ := strings.Cut(headers[0], " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return policy.Principal{}, nobody
	}
	p, err := g.o.Identify(ctx, token)
	if store.Away(err) {
		return policy.Principal{}, err
	}
	if err != nil || !p.Valid() {
		g.Log.Debug("refusing a token", "error", err)
		return policy.Principal{}, nobody
	}
	return p, nil
}

// Visitor is somebody who is signed in with a browser, as known now.
type Visitor struct {
	policy.Principal
	CSRF    string // the hidden field "csrf" of every form
	session session
	Alone   bool // nobody has to sign in
}

// A VisitorHandler is a handler for visitors. One that returns an error must not have
// written anything; the error is shown as a page.
type VisitorHandler func(w http.ResponseWriter, r *http.Request, v Visitor) error

// Shows returns a handler that shows the view that h returns.
func Shows(h func(r *http.Request, v Visitor) (templ.Component, error)) VisitorHandler {
	return func(w http.ResponseWriter, r *http.Request, v Visitor) error {
		view, err := h(r, v)
		if err != nil {
			return err
		}
		return page.Render(w, page.ScriptCSP, http.StatusOK, view)
	}
}

// Leads returns a handler that sends visitors to the path that h returns.
func Leads(h func(r *http.Request, v Visitor) (string, error)) VisitorHandler {
	return func(w http.ResponseWriter, r *http.Request, v Visitor) error {
		to, err := h(r, v)
		if err == nil {
			http.Redirect(w, r, to, http.StatusSeeOther)
		}
		return err
	}
}

// An Identifier identifies the sender of r. The error is SignedOut, or that of a store or of keys
// that cannot be read.
type Identifier func(w http.ResponseWriter, r *http.Request) (Visitor, error)

// Visit serves signed-in visitors and sends others to the sign-in page.
func (g *Guard) Visit(h VisitorHandler) page.Handler { return g.VisitAs(g.Visitor, h) }

// VisitAs is Visit for those whom identify knows.
func (g *Guard) VisitAs(identify Identifier, h VisitorHandler) page.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		v, err := identify(w, r)
		if errors.Is(err, SignedOut) && r.Header.Get("HX-Request") == "" { // an open page that fetches itself again stays as it is
			http.Redirect(w, r, "/console/login?next="+url.QueryEscape(r.URL.RequestURI()), http.StatusSeeOther)
			return nil
		}
		if err == nil {
			err = h(w, r, v)
		}
		if err != nil {
			return g.RefusePage(w, r, v, err)
		}
		return nil
	}
}

// Submit takes forms of signed-in visitors that carry the session's csrf field.
// The console has refused other origins before.
func (g *Guard) Submit(h VisitorHandler) page.Handler {
	return g.SubmitAs(g.Visitor, page.ReadForm, h)
}

// SubmitAs is Submit for those whom identify knows, and for forms that read reads.
func (g *Guard) SubmitAs(identify Identifier, read func(http.ResponseWriter, *http.Request) error, h VisitorHandler) page.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		v, err := identify(w, r)
		if err == nil {
			err = read(w, r)
		}
		if err == nil && !EqualSecrets(v.CSRF, r.PostForm.Get("csrf")) {
			err = page.Problem{Status: http.StatusForbidden, Code: "FORM_REFUSED", Detail: "this form is not of your present session; nothing was changed",
				Hint: "open the page again"}
		}
		if err == nil {
			err = h(w, r, v)
		}
		if err != nil {
			return g.RefusePage(w, r, v, err)
		}
		return nil
	}
}

// SignedOut is the refusal of a visitor without a session.
var SignedOut = page.Problem{Status: http.StatusUnauthorized, Code: "SIGNED_OUT", Detail: "you are no longer signed in; nothing was changed"}

// Visitor is the identifier of those who have signed in.
func (g *Guard) Visitor(w http.ResponseWriter, r *http.Request) (Visitor, error) {
	value := Cookie(r, sessionCookie)
	if value == "" {
		return Visitor{}, SignedOut
	}
	v, err := g.IdentifyAgain(r.Context(), Visitor{CSRF: FormSecret(value), session: session{id: hashOf(value)}})
	if err == nil {
		err = g.sessions.use(r.Context(), v.session)
	}
	if errors.Is(err, SignedOut) {
		SetCookie(w, sessionCookie, "")
	}
	return v, err
}

// Anybody is Visitor and, where no caller needs a credential, it knows a browser without a session
// as Options.Anonymous. Such a browser shows that a form is its own by the cookie of the sign-in page.
func (g *Guard) Anybody(w http.ResponseWriter, r *http.Request) (Visitor, error) {
	v, err := g.Visitor(w, r)
	if !errors.Is(err, SignedOut) || g.o.Anonymous == nil || !g.private(r) {
		return v, err
	}
	p, unknown := g.o.Anonymous(r.Context())
	if unknown != nil || !p.Valid() {
		return v, err
	}
	return Visitor{Principal: p, CSRF: entrySecret(w, r), Alone: true}, nil
}

// IdentifyAgain identifies v again during a long request; for errors see Visitor. The session of
// a visitor who can no longer be identified ends. It does not count as use of the session.
func (g *Guard) IdentifyAgain(ctx context.Context, v Visitor) (Visitor, error) {
	k, err := g.sessions.read(ctx, v.session.id)
	if err != nil {
		return Visitor{}, err
	}
	p, err := policy.Principal{}, errors.New("there is no identity provider now")
	switch {
	case k.credential != "":
		p, err = g.o.Again(ctx, k.principal, k.credential)
	case g.o.Provider != nil:
		p, err = g.o.Provider.Again(ctx, k.principal)
	}
	switch {
	case store.Away(err):
		return Visitor{}, err
	case err != nil || !p.Valid():
		g.Log.Debug("ending a session", "subject", k.principal.Subject, "error", err)
		if err := g.sessions.drop(ctx, k.id); err != nil {
			return Visitor{}, err
		}
		return Visitor{}, SignedOut
	}
	v.Principal, v.session = p, k
	return v, nil
}
