package console

import (
	"context"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
)

// csp lets nothing in and nobody frame; the page adds its own style sheet.
const csp = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"

func secure(h http.Header) {
	h.Set("Content-Security-Policy", csp)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin") // with no-referrer, browsers post our own forms with Origin null
	h.Set("Cache-Control", "no-store")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// admit refuses what a browser may have been made to send: a Host that is not
// ours (DNS rebinding), an Origin that is not this host, a state change from
// another site.
func (c *Console) admit(r *http.Request) error {
	if !c.knows(r) {
		return problem{Status: http.StatusForbidden, Code: "HOST_REFUSED", Detail: "this listener does not answer to that host name",
			Hint: "add the name to toolgate.allowed_hosts, or use a loopback name or the host of toolgate.console.url"}
	}
	for _, origin := range r.Header.Values("Origin") {
		u, err := url.Parse(origin)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || !strings.EqualFold(u.Host, r.Host) {
			return problem{Status: http.StatusForbidden, Code: "ORIGIN_REFUSED", Detail: "requests from pages of another origin are refused",
				Hint: "a proxy in front has to pass the Host header on as it came"}
		}
	}
	if err := new(http.CrossOriginProtection).Check(r); err != nil {
		return problem{Status: http.StatusForbidden, Code: "ORIGIN_REFUSED", Detail: "requests from pages of another site are refused"}
	}
	return nil
}

// knows reports whether the Host of r names this listener.
func (c *Console) knows(r *http.Request) bool {
	host := guard.HostName(r.Host)
	_, err := netip.ParseAddr(host)
	return guard.Loopback(host) || c.atHome(r.Host) || c.hosts.Knows(r) || err == nil && slices.ContainsFunc(c.opts.Hosts, func(ours string) bool {
		every, err := netip.ParseAddr(ours)
		return err == nil && every.IsUnspecified()
	})
}

// atHome reports whether hostport is that of Options.URL.
func (c *Console) atHome(hostport string) bool {
	return c.home.Host != "" && strings.EqualFold(c.home.Host, hostport)
}

// An asker is a handler that knows its caller.
type asker func(w http.ResponseWriter, r *http.Request, p policy.Principal) error

// answers returns an asker that answers with what h returns.
func answers[T any](h func(r *http.Request, p policy.Principal) (T, error)) asker {
	return func(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
		found, err := h(r, p)
		if err != nil {
			return err
		}
		return answer(w, found)
	}
}

// as serves callers with a valid bearer token.
func (c *Console) as(h asker) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		p, err := c.identify(r.Context(), r.Header.Values("Authorization"))
		if store.Away(err) {
			return err
		}
		if err != nil && r.Header["Authorization"] != nil && !c.throttle.Allow(r.RemoteAddr) {
			w.Header().Set("Retry-After", strconv.Itoa(int(guard.RefusedEvery.Seconds())))
			w.Header().Set("Connection", "close")
			return problem{Status: http.StatusTooManyRequests, Code: "TOO_OFTEN", Detail: "too many credentials from your address were refused",
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
func (c *Console) asAnybody(h asker) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		if r.Header["Authorization"] == nil && c.opts.Anonymous != nil {
			if p, err := c.opts.Anonymous(r.Context()); err == nil && p.Valid() {
				return h(w, r, p)
			}
		}
		return c.as(h)(w, r)
	}
}

// identify fails closed: a missing token, several tokens, another scheme, an
// error and an invalid principal are all refused with 401, and with 503 while nobody can be
// looked up.
func (c *Console) identify(ctx context.Context, headers []string) (policy.Principal, error) {
	nobody := problem{Status: http.StatusUnauthorized, Code: "UNAUTHENTICATED", Detail: "missing or unknown bearer token",
		Hint: "say who asks with --token or TOOLGATE_TOKEN"}
	if len(headers) != 1 {
		return policy.Principal{}, nobody
	}
	scheme, token, _ := strings.Cut(headers[0], " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return policy.Principal{}, nobody
	}
	p, err := c.opts.Identify(ctx, token)
	if store.Away(err) {
		return policy.Principal{}, err
	}
	if err != nil || !p.Valid() {
		c.opts.Log.Debug("refusing a token", "error", err)
		return policy.Principal{}, nobody
	}
	return p, nil
}
