package app

import (
	"fmt"
	"path/filepath"

	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/policy/rejudge/shadow"
	"github.com/toolgate/toolgate/registry/config"
)

// shadowPolicy judges every call next to the policy that serves, and decides
// nothing: where its policy comes from, and the worker that asks it. Nothing waits
// for it. A policy that cannot be loaded is reported and keeps nothing from serving.
type shadowPolicy struct {
	policyFeed
	worker *shadow.Worker
}

// newShadow returns the shadow policy that cfg names.
func (a *App) newShadow(cfg *config.Config) *shadowPolicy {
	p := &shadowPolicy{}
	p.log, p.role, p.count, p.install = a.log.Named("shadow"), "is asked beside the one that serves", func(string) {}, p.ask
	p.changed = func(error) {} // it decides nothing
	p.worker = shadow.New(shadow.Options{
		DB: a.state.db, Trail: filepath.Join(cfg.State, "audit"), Log: p.log,
		Observe: func(o shadow.Outcome) { a.metrics.shadow.WithLabelValues(string(o)).Inc() },
	})
	p.apply(cfg)
	return p
}

// ask makes engine the policy that is asked, nil for none.
func (p *shadowPolicy) ask(engine *rego.Engine) {
	if engine == nil {
		p.worker.Set(nil)
		return
	}
	p.worker.Set(engine)
}

// apply makes cfg name the policy. It does not wait until it is loaded.
func (p *shadowPolicy) apply(cfg *config.Config) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.source != nil {
		p.source.end()
	}
	p.source, p.copy = newPolicySource(cfg.Policy.Shadow, filepath.Join(cfg.State, "policy-shadow")), nil
	p.source.unopened = true
}

// line returns the counts of the policy, "" for none.
func (p *shadowPolicy) line() string {
	s := p.worker.Status()
	if s.Candidate == "" {
		return ""
	}
	text := fmt.Sprintf("%s: same %d, changed %d, failed %d, skipped %d since %s", s.Candidate, s.Same, s.Changed, s.Failed, s.Skipped, s.Since.UTC().Format("2006-01-02 15:04:05Z"))
	if s.Unlisted > 0 {
		text += fmt.Sprintf(", %d of them too many to list", s.Unlisted)
	}
	return text
}

// warnings lists what is wrong with asking the policy.
func (p *shadowPolicy) warnings() (all []string) {
	p.mu.Lock()
	fault := p.fault
	p.mu.Unlock()
	if fault != "" {
		all = append(all, "toolgate.policy.shadow: "+fault)
	}
	for _, f := range p.worker.Status().Faults {
		all = append(all, "toolgate.policy.shadow: "+f)
	}
	return all
}
