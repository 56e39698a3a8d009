package app

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/internal/sandbox"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/policy/stop"
	"github.com/toolgate/toolgate/policy/workbench"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/upstream"
)

// serving is what serves now: configuration, policy and servers, with what is known of them. It is safe for
// concurrent use.
type serving struct {
	role      string // of the principal local
	log       hclog.Logger
	policy    *policyFeed
	upstreams *registry.Registry
	sandbox   *sandbox.Host
	listeners atomic.Pointer[Listeners] // that Run serves; nil before

	mu  sync.Mutex // protects the field below
	cfg *config.Config
}

// Config returns the configuration that serves. The caller must not change it.
func (s *serving) Config() *config.Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cfg
}

// Revision returns the revision of the policy that serves.
func (s *serving) Revision() string { return s.policy.current().Revision() }

// Upstreams returns the registry of servers and their tools.
func (s *serving) Upstreams() *registry.Registry { return s.upstreams }

// WaitForUpstreams returns when every upstream has answered or failed, or when
// ctx ends. Serving waits one second at most; commands that inspect the
// upstreams wait here.
func (s *serving) WaitForUpstreams(ctx context.Context) {
	starting := func(u registry.ServerStatus) bool { return u.State == string(upstream.StateStarting) }
	for slices.ContainsFunc(s.upstreams.Status(), starting) && wait.For(ctx, 20*time.Millisecond) {
	}
}

// LogWarnings logs the findings that follow from configuration and policy
// alone, without those of the codes that the caller has shown already.
func (s *serving) LogWarnings(shown ...string) {
	s.logFindings(slices.DeleteFunc(Warnings(s.Config(), s.policy.current(), s.sandbox), func(f Finding) bool { return slices.Contains(shown, f.Code) }))
}

func (s *serving) logFindings(found []Finding) {
	for _, f := range found {
		level := hclog.Warn
		if f.Level == string(rego.LevelNote) {
			level = hclog.Info
		}
		s.log.Log(level, f.Message, "where", f.Where)
	}
}

// Findings lists Warnings, those about the certificates that Run serves with, and the
// limit rules whose tool or role does not exist. Before every upstream has answered, it may list too many.
func (s *serving) Findings() []Finding {
	cfg, engine, tools := s.Config(), s.policy.current(), s.upstreams.Catalogue().Tools("")
	found := Warnings(cfg, engine, s.sandbox)
	found = append(found, s.listeners.Load().findings(time.Now())...)
	found = append(found, unmatchedLimits(cfg, append(engine.Roles(), s.role), tools)...)
	return append(found, UnknownTools(cfg, engine, PolicyTools(slices.Concat(tools, s.upstreams.Catalogue().Quarantined())))...)
}

// sightTime bounds how long Sights asks the policy.
const sightTime = 2 * time.Second

// PolicyTools returns tools as policies see them.
func PolicyTools(listed []*registry.Tool) []policy.Tool {
	tools := make([]policy.Tool, len(listed))
	for i, t := range listed {
		tools[i] = policy.Tool{Server: t.Server, Name: t.Name, Exposed: t.Exposed, Risk: t.Risk, Annotations: t.Annotations, Fingerprint: t.Fingerprint}
	}
	return tools
}

// RolesOf lists the roles that callers may have: those of the tokens, that of the
// principal local where it is admitted, and where an issuer says which roles its tokens
// have, those of the policy's data.
func RolesOf(cfg *config.Config, engine *rego.Engine, local string) []string {
	var roles []string
	if admitsLocal(cfg) {
		roles = append(roles, local)
	}
	for _, t := range cfg.Identity.Tokens {
		roles = append(roles, t.Roles...)
	}
	if len(cfg.Identity.JWT) > 0 {
		roles = append(roles, engine.Roles()...)
	}
	slices.Sort(roles)
	return slices.Compact(roles)
}

// knows reports whether a role, a server or a tool of that name is known. Principals are not.
func (s *serving) knows(kind stop.Kind, name string) bool {
	switch kind {
	case stop.Role:
		return slices.Contains(RolesOf(s.Config(), s.policy.current(), s.role), name)
	case stop.Server:
		return s.upstreams.Catalogue().HasServer(name)
	case stop.Tool:
		_, ok := s.upstreams.Catalogue().Lookup("", name)
		return ok
	}
	return true
}

// admitsLocal reports whether the principal local is admitted.
func admitsLocal(cfg *config.Config) bool { return !cfg.Identity.Configured || cfg.Identity.Local }

// CallerWith returns a caller with one role, for questions to the policy. It is the
// principal local where that is admitted with the role.
func CallerWith(cfg *config.Config, role, local string) policy.Principal {
	who := policy.Principal{Subject: "somebody", Roles: []string{role}}
	if role == local && admitsLocal(cfg) {
		who.Subject = identity.LocalSubject
	}
	return who
}

// Sights says for each role that a caller may have how many of the tools that serve it
// sees. Of one that sees none it says what else the role is for, or else the policy's reason
// and the command that explains it.
// A role that the policy does not judge in time is left out. Before every upstream has
// answered, the total is too small.
func (s *serving) Sights() []console.Sight {
	ctx, stop := context.WithTimeout(context.Background(), sightTime)
	defer stop()
	cfg, engine, tools := s.Config(), s.policy.current(), PolicyTools(s.upstreams.Catalogue().Tools(""))
	var sights []console.Sight
	for _, role := range RolesOf(cfg, engine, s.role) {
		who := CallerWith(cfg, role, s.role)
		shown, err := engine.Seen(ctx, who, tools)
		if err != nil {
			continue
		}
		seen := console.Sight{Role: role, Total: len(tools)}
		for _, yes := range shown {
			if yes {
				seen.Visible++
			}
		}
		if seen.Visible == 0 && seen.Total > 0 {
			seen.Duty = dutyOf(ctx, engine, who)
		}
		if seen.Blind() {
			seen.Reason, seen.Hint = whyBlind(ctx, cfg, engine, who, tools)
		}
		sights = append(sights, seen)
	}
	return sights
}

// dutyOf returns what a caller may do besides calling tools, "" for nothing.
func dutyOf(ctx context.Context, engine *rego.Engine, who policy.Principal) string {
	if workbench.Approvers(engine)[who.Roles[0]] != "" {
		return "decides on held calls"
	}
	if right, err := engine.TrailRight(ctx, who); err == nil && right != policy.TrailNone {
		return "reads the audit trail"
	}
	if operates, err := engine.May(ctx, who, policy.Operates); err == nil && operates {
		return "operates servers"
	}
	return ""
}

// whyBlind returns why the policy shows a caller none of tools, and what to do.
func whyBlind(ctx context.Context, cfg *config.Config, engine *rego.Engine, who policy.Principal, tools []policy.Tool) (reason, hint string) {
	hint = fmt.Sprintf("toolgate policy explain --as %s %s", who.Roles[0], tools[0].Exposed)
	reason = cmp.Or(whyHidden(ctx, engine, who, tools[0]), "the policy hides them")
	if cfg.Policy.Path == "" && len(cfg.Policy.Data) == 0 {
		reason += " (the embedded default policy serves; its roles have the standard tools only)"
		hint += " says more; toolgate policy init DIR writes a policy to edit, for toolgate.policy.path"
	}
	return reason, hint
}

// whyHidden returns why the policy denies a caller a call of a tool without arguments, "" when it
// does not.
func whyHidden(ctx context.Context, engine *rego.Engine, who policy.Principal, t policy.Tool) string {
	d, err := engine.Decide(ctx, &policy.Input{
		Principal: who, Tool: t, Arguments: json.RawMessage("{}"), Request: policy.Request{ID: "1", Transport: "none", Time: time.Now().UTC()},
	})
	if err == nil && d.Effect == policy.Deny {
		return cmp.Or(d.Reason, "denied by "+d.Rule)
	}
	return ""
}

// SightFindings are warnings about the roles that see none of the tools that serve.
func (s *serving) SightFindings() (found []Finding) {
	for _, of := range s.Sights() {
		if of.Blind() {
			found = append(found, warning("no-tools", "role "+of.Role, of.String(), of.Hint))
		}
	}
	return found
}

// logSights logs how many tools each role sees, when every upstream has answered or
// failed, or when ctx ends.
func (s *serving) logSights(ctx context.Context) {
	s.WaitForUpstreams(ctx)
	if ctx.Err() != nil {
		return
	}
	for _, of := range s.Sights() {
		if of.Blind() {
			s.log.Warn(of.String(), "hint", of.Hint)
			continue
		}
		s.log.Info(of.String())
	}
}
