package app

import (
	"context"
	"fmt"
	"iter"
	"path/filepath"
	"slices"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/registry/config"
)

// newConsole makes the handler of the people's listener.
func (a *App) newConsole(cfg *config.Config) (*console.Console, error) {
	provider, err := a.provider(cfg)
	if err != nil {
		return nil, configError(err)
	}
	return console.New(console.Options{
		Provider: provider, URL: consoleURL(cfg), Session: cfg.Console.Session,
		Approvals: a.state.tickets, Reconciler: a.state.tickets, Feed: a.state.tickets, Archive: a.state.tickets, Status: a.status, Held: a.state.tickets.Held,
		Identify: func(ctx context.Context, bearer string) (policy.Principal, error) {
			return a.auth.Identify(ctx, identity.Credential{Bearer: bearer})
		},
		Again: a.visitor,
		Audit: func(ctx context.Context, n int, follow bool) iter.Seq2[[]byte, error] {
			return audit.Tail(ctx, filepath.Join(cfg.State, "audit"), audit.TailOptions{Records: n, Follow: follow})
		},
		Metrics: promhttp.HandlerFor(a.metrics.registry, promhttp.HandlerOpts{}), Hosts: hostsOf(cfg.Admin), Version: a.options.Version, Log: a.log.Named("console"),
	})
}

// visitor identifies a principal that signed in with a token earlier, with the
// current configuration: the token must still be configured, and the roles are
// the present ones.
func (a *App) visitor(ctx context.Context, p policy.Principal, sum string) (policy.Principal, error) {
	tokens := a.Config().Identity.Tokens
	if slices.ContainsFunc(tokens, func(t config.Token) bool { return t.Subject == p.Subject && t.SHA256 != sum }) {
		return policy.Principal{}, fmt.Errorf("%w: the token was replaced", identity.ErrUnauthenticated)
	}
	return a.auth.Identify(ctx, identity.Credential{Earlier: &p})
}

// provider returns the identity provider where people sign in, nil for none.
func (a *App) provider(cfg *config.Config) (console.Provider, error) {
	o := cfg.Console.OIDC
	if o == nil {
		return nil, nil
	}
	p, err := a.auth.NewProvider(identity.ProviderConfig{
		Issuer: o.Issuer, ClientID: o.ClientID, ClientSecret: o.ClientSecret, Redirect: consoleURL(cfg) + "/console/login/callback",
		Scopes: o.Scopes, RolesClaim: o.RolesClaim,
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}
