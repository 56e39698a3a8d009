package main

import (
	"context"
	"fmt"
	"iter"
	"path/filepath"
	"slices"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry/config"
)

// people is the admin listener's handler.
func (in *instance) people(cfg *config.Config) (*console.Console, error) {
	elsewhere, err := in.provider(cfg)
	if err != nil {
		return nil, &exit{code: exitUsage, err: err}
	}
	return console.New(console.Options{
		Provider: elsewhere, URL: consoleURL(cfg), Session: cfg.Console.Session,
		Approvals: in.tickets, Reconciler: in.tickets, Feed: in.tickets, Archive: in.tickets, Status: in.status, Held: in.tickets.Held,
		Identify: func(ctx context.Context, bearer string) (policy.Principal, error) {
			return in.auth.Identify(ctx, identity.Credential{Bearer: bearer})
		},
		Again: in.visitor,
		Audit: func(ctx context.Context, n int, follow bool) iter.Seq2[[]byte, error] {
			return audit.Tail(ctx, filepath.Join(cfg.State, "audit"), audit.TailOptions{Records: n, Follow: follow})
		},
		Metrics: in.metrics.handler(), Hosts: hostsOf(cfg.Admin), Version: version, Log: in.log.Named("console"),
	})
}

// visitor is who signed in with a token before, by what is configured now: that
// token still, if it is a configured one, with the roles of now.
func (in *instance) visitor(ctx context.Context, p policy.Principal, sum string) (policy.Principal, error) {
	in.mu.Lock()
	tokens := in.cfg.Identity.Tokens
	in.mu.Unlock()
	if slices.ContainsFunc(tokens, func(t config.Token) bool { return t.Subject == p.Subject && t.SHA256 != sum }) {
		return policy.Principal{}, fmt.Errorf("%w: the token was replaced", identity.ErrUnauthenticated)
	}
	return in.auth.Identify(ctx, identity.Credential{Earlier: &p})
}

// provider is where people sign in beside tokens; nil = nowhere.
func (in *instance) provider(cfg *config.Config) (console.Provider, error) {
	o := cfg.Console.OIDC
	if o == nil {
		return nil, nil
	}
	p, err := in.auth.NewProvider(identity.ProviderConfig{
		Issuer: o.Issuer, ClientID: o.ClientID, ClientSecret: o.ClientSecret, Redirect: consoleURL(cfg) + "/console/login/callback",
		Scopes: o.Scopes, RolesClaim: o.RolesClaim,
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// consoleURL is where browsers find the admin listener.
func consoleURL(cfg *config.Config) string {
	if cfg.Console.URL != "" {
		return cfg.Console.URL
	}
	return "http://" + reachable(cfg.Admin)
}

// status is what /readyz says. Policy and listeners are up when it can be
// asked, so readiness waits for the upstreams' first second only.
func (in *instance) status() console.Status {
	u := in.asked()
	s := console.Status{Ready: in.upstream.Settled(), Revision: in.revision(), Shadow: u.line()}
	for _, u := range in.upstream.Status() {
		s.Upstreams = append(s.Upstreams, console.Upstream{
			Name: u.Name, State: u.State, Tools: u.Tools, Quarantined: u.Quarantined,
			Error: u.Error, Warnings: u.Warnings, Since: u.Since,
		})
	}
	in.mu.Lock()
	failed, waiting, stale, copied := in.reload, in.waiting, in.stale, in.origin.copy
	in.mu.Unlock()
	if stale != "" {
		s.Warnings = append(s.Warnings, fmt.Sprintf("the policy that serves may not be what its server has: %s (the one that serves was fetched %s)", stale, copied.Fetched.Format(time.RFC3339)))
	}
	if failed != "" {
		s.Warnings = append(s.Warnings, "the last reload failed and changed nothing: "+failed)
	}
	for _, name := range waiting {
		s.Warnings = append(s.Warnings, name+" has changed: the next start takes it over")
	}
	s.Warnings = append(s.Warnings, in.notDelivered()...)
	s.Warnings = append(s.Warnings, in.notTold()...)
	s.Warnings = append(s.Warnings, u.warnings()...)
	for _, f := range in.findings() {
		s.Warnings = append(s.Warnings, f.Where+": "+f.Message)
	}
	return s
}

// warn logs what configuration and policy alone can say.
func (in *instance) warn() {
	for _, f := range warnings(in.cfg, in.engine) {
		in.log.Warn(f.Message, "where", f.Where)
	}
}

// findings is what can be said once the catalogue is known: warnings of the
// configuration, and rules that nothing answers to.
func (in *instance) findings() []finding {
	in.mu.Lock()
	cfg, engine := in.cfg, in.engine
	in.mu.Unlock()
	return append(warnings(cfg, engine), in.unanswered(cfg, engine.Roles())...)
}

// unanswered finds limit rules that name a tool or role which nothing has.
func (in *instance) unanswered(cfg *config.Config, roles []string) []finding {
	for _, t := range cfg.Identity.Tokens {
		roles = append(roles, t.Roles...)
	}
	roles = append(roles, in.role)
	var tools []string
	for _, t := range in.upstream.Catalogue().Tools("") {
		tools = append(tools, t.Exposed)
	}
	for _, s := range cfg.Servers {
		tools = append(tools, s.Methods...)
	}
	var found []finding
	for i, rule := range cfg.Limits.Rules {
		where := fmt.Sprintf("toolgate.limits.rules[%d]", i)
		if rule.Tool != "" && !slices.Contains(tools, rule.Tool) && !proxy.Limited(rule.Tool) {
			found = append(found, warning(where+".tool", fmt.Sprintf("no server offers a tool that is exposed as %q", rule.Tool), "toolgate tool list shows the names"))
		}
		if rule.Role != "" && !slices.Contains(roles, rule.Role) {
			found = append(found, warning(where+".role", fmt.Sprintf("no token and no policy data has the role %q", rule.Role), ""))
		}
	}
	return found
}
