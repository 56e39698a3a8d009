package app

import (
	"context"
	"net/http"
	"net/netip"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/registry/config"
)

// callers identifies the callers of the agents' doors. It records credentials that name
// nobody, and throttles them by address; a valid one always passes.
type callers struct {
	*identity.Authenticator
	fold     *audit.Fold
	refused  *prometheus.CounterVec // by kind
	log      hclog.Logger
	throttle *guard.Throttle // of both listeners
}

// Identify implements proxy.Identifier. It does not count a credential as refused while the store
// is away. It does not throttle expired and revoked credentials: nobody guesses those, and
// their clients ask for others when they get 401, many behind one address at once.
func (c *callers) Identify(ctx context.Context, shown identity.Credential) (policy.Principal, error) {
	who, err := c.Authenticator.Identify(ctx, shown)
	if err == nil || store.Away(err) || !c.note(shown, err) || shown.Source == "" {
		return who, err
	}
	kind := identity.KindOf(err)
	if kind == identity.Expiry || kind == identity.Revoked || c.throttle.Allow(shown.Source) {
		return who, err
	}
	return policy.Principal{}, &identity.Throttled{Refusal: &identity.Refusal{Kind: kind, Text: err.Error()}, RetryAfter: guard.RefusedEvery}
}

// note records a credential for which identifying its holder ended with err. It reports
// whether one was shown and refused.
func (c *callers) note(shown identity.Credential, err error) bool {
	if err == nil || shown.Bearer == "" && !shown.Malformed {
		return false
	}
	kind, credential := identity.KindOf(err), "token"
	switch {
	case shown.Malformed:
		credential = "malformed"
	case strings.Count(shown.Bearer, ".") == 2:
		credential = "jwt"
	}
	c.fold.Add(audit.Principal{}, audit.Event{
		Name: audit.EventCredentialRefused, Source: guard.Address(shown.Source), Credential: credential, Reason: string(kind),
	})
	c.refused.WithLabelValues(string(kind)).Inc()
	if kind == identity.Audience { // its issuer signed it, so strangers cannot fill the log
		c.log.Warn("a token is meant for another audience", "resource", c.Resource(shown.At), "source", guard.Address(shown.Source))
	}
	return true
}

// trustedProxies returns toolgate.trusted_proxies, which config has checked.
func trustedProxies(cfg *config.Config) *[]netip.Prefix {
	var proxies []netip.Prefix
	for _, text := range cfg.TrustedProxies {
		if p, err := guard.ParseNetwork(text); err == nil {
			proxies = append(proxies, p)
		}
	}
	return &proxies
}

// fromClients serves requests whose RemoteAddr is the client's, where a trusted proxy
// passed them on. While a stops, each answer ends its connection, so that a balancer opens the next one to
// another replica, and none is idle when a closes it.
func (a *App) fromClients(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if proxies := *a.proxies.Load(); len(proxies) > 0 {
			r.RemoteAddr = guard.Client(r, proxies)
		}
		if a.health.draining.Load() {
			w.Header()["Connection"] = []string{"close"}
		}
		h.ServeHTTP(w, r)
	})
}

// sourceKey is the key of a request's client in its context.
type sourceKey struct{}

// withSource serves requests whose context has the client's address.
func withSource(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), sourceKey{}, r.RemoteAddr)))
	})
}
