package app

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/internal/sandbox"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/policy/rego"
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
