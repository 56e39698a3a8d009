package people

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/stop"
)

// AtHome reports whether hostport is that of Options.URL.
func (g *Guard) AtHome(hostport string) bool {
	return g.home.Host != "" && strings.EqualFold(g.home.Host, hostport)
}

// Options configure a [Guard].
type Options struct {
	// Store keeps the sessions, and Keys has the secret that authenticates them. Session is how long one stays
	// signed in; 0 = 8 hours.
	Store   *store.DB
	Keys    *keys.Dir
	Session time.Duration
	// Identify turns a bearer token, never empty, into a principal; an error is a 401.
	Identify func(ctx context.Context, bearer string) (policy.Principal, error)
	// Again identifies a principal that signed in earlier, with the current configuration; sum is the SHA-256
	// of its token, 64 hexadecimal digits. An error ends the session.
	Again func(ctx context.Context, p policy.Principal, sum string) (policy.Principal, error)
	// Anonymous identifies a caller without a credential; nil or an error = it is nobody.
	Anonymous func(ctx context.Context) (policy.Principal, error)
	// Provider signs people in elsewhere, in addition to tokens; nil = none. Logout verifies its logout
	// tokens, and EndSession returns the address at which a browser signs out there, and from which it comes
	// back with state; nil or "" = there is none.
	Provider   Provider
	Logout     func(ctx context.Context, token string) (Logout, error)
	EndSession func(ctx context.Context, back, state string) (address string, err error)
	// URL is where browsers find this listener, without a slash at its end; "" = they use its address.
	URL string
	// Throttle bounds refused credentials.
	Throttle *guard.Throttle
	// Environment is the name of this toolgate on every page, "" = none.
	Environment string
	// InForce returns the stops in force; nil = there are none. Watches reports whether a principal may watch
	// toolgate; of the zero principal, whether everybody may.
	InForce func() []stop.Stop
	Watches func(p policy.Principal) bool
	// May and TrailRight say what a principal may; nil or an error = nothing.
	May        func(ctx context.Context, p policy.Principal, right policy.Right) (bool, error)
	TrailRight func(ctx context.Context, p policy.Principal) (policy.TrailRight, error)
	// Record records an act; nil = nothing is recorded.
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
