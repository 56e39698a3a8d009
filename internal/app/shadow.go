package app

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/policy/fetch"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/policy/shadow"
	"github.com/toolgate/toolgate/registry/config"
)

// shadowPolicy judges every call next to the policy that serves, and decides
// nothing: the worker that asks it, and where it comes from. Nothing waits for it.
// A candidate that cannot be loaded is reported and keeps nothing from serving.
type shadowPolicy struct {
	worker *shadow.Worker
	log    hclog.Logger

	mu    sync.Mutex      // protects the fields below
	cfg   *config.Config  // that names the candidate
	over  context.Context // ends when another configuration names it
	end   context.CancelFunc
	fault string // why the candidate is not the one that is configured, "" when it is
}

// openShadow makes the shadow policy of an App that serves listeners.
func (a *App) openShadow() *shadowPolicy {
	cfg := a.Config()
	p := &shadowPolicy{log: a.log.Named("shadow"), end: func() {}}
	p.worker = shadow.New(shadow.Options{
		DB: a.state.db, Trail: filepath.Join(cfg.State, "audit"), Log: p.log,
		Observe: func(o shadow.Outcome) { a.metrics.shadow.WithLabelValues(string(o)).Inc() },
	})
	p.apply(cfg)
	a.mu.Lock()
	a.shadow = p
	a.mu.Unlock()
	return p
}

// shadowPolicy returns the shadow policy, nil for none.
func (a *App) shadowPolicy() *shadowPolicy {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.shadow
}

// apply makes cfg name the candidate. It does not wait until it is loaded.
func (p *shadowPolicy) apply(cfg *config.Config) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end()
	p.cfg = cfg
	p.over, p.end = context.WithCancel(context.Background())
}

// run asks the candidate, and its server for newer ones, until ctx ends.
func (p *shadowPolicy) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.worker.Run(ctx) })
	group.Go(func() error {
		for ctx.Err() == nil {
			p.mu.Lock()
			cfg, over := p.cfg, p.over
			p.mu.Unlock()
			if err := p.load(ctx, cfg, over); err != nil {
				return err
			}
		}
		return nil
	})
	return group.Wait()
}

// load loads the candidate that cfg names and keeps it new until ctx ends or the
// configuration is over. One that cannot be loaded changes nothing.
func (p *shadowPolicy) load(ctx context.Context, cfg *config.Config, over context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(over, stop)()
	source, err := p.first(ctx, cfg)
	if ctx.Err() != nil {
		return nil
	}
	p.noteFault(err)
	switch {
	case source == nil && err != nil && cfg.Policy.Shadow.Remote():
		wait.For(ctx, cfg.Policy.Shadow.Poll.Max) // and try again
		return nil
	case source == nil || source.remote == nil:
		<-ctx.Done()
		return nil
	}
	take := func(ctx context.Context, c *fetch.Copy) error {
		engine, err := source.load(ctx, c)
		if err == nil && ctx.Err() == nil {
			p.worker.Set(engine)
		}
		return err
	}
	return source.remote.Poll(ctx, source.copy, take, p.noteFault)
}

// first loads the candidate for the first time. The source is nil when there is
// none.
func (p *shadowPolicy) first(ctx context.Context, cfg *config.Config) (*policySource, error) {
	if cfg.Policy.Shadow == nil {
		p.worker.Set(nil)
		return nil, nil
	}
	loaded, err := loadSource(ctx, cfg.Policy.Shadow, filepath.Join(cfg.State, "policy-shadow"))
	if err != nil {
		return nil, err
	}
	p.worker.Set(loaded.engine)
	p.log.Info("a policy is asked beside the one that serves", "policy", short(loaded.engine.Revision()))
	return loaded.source, errors.Join(loaded.stale, loaded.source.unkept)
}

// noteFault notes what is wrong with the candidate, nil for nothing.
func (p *shadowPolicy) noteFault(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	p.mu.Lock()
	before := p.fault
	p.fault = text
	p.mu.Unlock()
	if text != "" && text != before {
		p.log.Error("the policy that is to be asked beside the one that serves is not the configured one", "error", err)
	}
}

// line returns the counts of the candidate, "" for none.
func (p *shadowPolicy) line() string {
	if p == nil {
		return ""
	}
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

// warnings lists what is wrong with asking the candidate.
func (p *shadowPolicy) warnings() (all []string) {
	if p == nil {
		return nil
	}
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

// differs reports whether the candidate at the path in cfg differs from the one
// in use.
func (p *shadowPolicy) differs(ctx context.Context, cfg *config.Config) bool {
	s := cfg.Policy.Shadow
	if p == nil || s == nil || s.Remote() {
		return false // a server is polled
	}
	fresh, err := rego.Load(ctx, PolicyOptions(s))
	p.mu.Lock()
	fault := p.fault
	p.mu.Unlock()
	if err != nil {
		return err.Error() != fault
	}
	return fault != "" || fresh.Revision() != p.worker.Status().Candidate
}
