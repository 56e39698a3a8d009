package console

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
)

// atHome reports whether hostport is that of Options.URL.
func (vs *visitors) atHome(hostport string) bool {
	return vs.home.Host != "" && strings.EqualFold(vs.home.Host, hostport)
}

// visitors are the people who send requests: with a bearer token, or with a browser that has signed in.
type visitors struct {
	*site
	home       *url.URL
	url        string // Options.URL
	sessions   *sessions
	throttle   *guard.Throttle
	principal  func(ctx context.Context, bearer string) (policy.Principal, error)                  // Options.Identify
	again      func(ctx context.Context, p policy.Principal, sum string) (policy.Principal, error) // Options.Again
	anonymous  func(ctx context.Context) (policy.Principal, error)                                 // Options.Anonymous
	provider   Provider                                                                            // nil = none
	logout     func(ctx context.Context, token string) (Logout, error)                             // Options.Logout
	endSession func(ctx context.Context, back, state string) (address string, err error)           // Options.EndSession
}

// routes are the routes where people sign in and out.
func (vs *visitors) routes(*visitors) routes {
	return routes{
		"/console/login":              {http.MethodGet: vs.page, http.MethodPost: vs.signIn},
		"/console/login/provider":     {http.MethodGet: vs.beginProviderSignIn},
		"/console/login/callback":     {http.MethodGet: vs.finishProviderSignIn},
		"/console/backchannel-logout": {http.MethodPost: vs.providerLogout},
		"/console/logout":             {http.MethodPost: vs.submit(vs.signOut)},
	}
}

// as serves callers with a valid bearer token.
func (vs *visitors) as(h page.CallerHandler) page.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		p, err := vs.identify(r.Context(), r.Header.Values("Authorization"))
		if store.Away(err) {
			return err
		}
		if err != nil && r.Header["Authorization"] != nil && !vs.throttle.Allow(r.RemoteAddr) {
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

// asAnybody is as and, where no caller needs a credential, serves those without one as
// Options.Anonymous.
func (vs *visitors) asAnybody(h page.CallerHandler) page.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		if r.Header["Authorization"] == nil && vs.anonymous != nil {
			if p, err := vs.anonymous(r.Context()); err == nil && p.Valid() {
				return h(w, r, p)
			}
		}
		return vs.as(h)(w, r)
	}
}

// identify fails closed: a missing token, several tokens, another scheme, an
// error and an invalid principal are all refused with 401, and with 503 while nobody can be
// looked up.
func (vs *visitors) identify(ctx context.Context, headers []string) (policy.Principal, error) {
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
	p, err := vs.principal(ctx, token)
	if store.Away(err) {
		return policy.Principal{}, err
	}
	if err != nil || !p.Valid() {
		vs.log.Debug("refusing a token", "error", err)
		return policy.Principal{}, nobody
	}
	return p, nil
}
