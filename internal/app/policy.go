package app

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/fetch"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/registry/config"
)

// How loading a policy ends, the outcomes of toolgate_policy_loads_total.
const (
	loadTaken   = "taken"   // it serves
	loadRefused = "refused" // it was there and cannot serve
	loadAway    = "away"    // its server did not give it
)

// servingPolicy is the policy that serves, and where it comes from.
type servingPolicy struct {
	log       hclog.Logger
	metrics   *metrics
	exchanged func(*rego.Engine) // called with each policy that begins to serve, but the first

	swap sync.Mutex // held while configuration or policy is exchanged; locked before mu

	mu     sync.Mutex // protects the fields below
	engine *rego.Engine
	source *policySource
	stale  string // why engine is not what source has, "" when it is
}

// openPolicy loads the policy that serves first.
func (a *App) openPolicy(ctx context.Context, cfg *config.Config) error {
	loaded, err := loadSource(ctx, &cfg.Policy.PolicySource, policyDir(cfg))
	if err != nil {
		return err
	}
	a.policy = &servingPolicy{
		log: a.log, metrics: a.metrics, exchanged: a.policyExchanged, source: loaded.source, engine: loaded.engine,
	}
	a.metrics.loads.WithLabelValues(loadTaken).Inc()
	a.policy.noteLoad(loaded)
	return nil
}

// policyExchanged installs a new policy for calls, tickets and the lists of
// agents.
func (a *App) policyExchanged(engine *rego.Engine) {
	a.gate.SetPolicy(a.verify.watch(engine))
	a.worker.Recheck()
	if notify := a.toolsChanged.Load(); notify != nil {
		(*notify)()
	}
}

func (p *servingPolicy) current() *rego.Engine {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.engine
}

// mask asks the policy that serves now, whichever one decided.
func (p *servingPolicy) mask(ctx context.Context, event json.RawMessage) (policy.Mask, error) {
	return p.current().Mask(ctx, event)
}

// noteLoad notes how loading the policy went that serves now.
func (p *servingPolicy) noteLoad(loaded *loadedPolicy) {
	s := loaded.source
	if s.unkept != nil {
		p.log.Error("the policy serves, and will not when its server is away at the next start", "error", s.unkept)
	}
	p.mu.Lock()
	p.stale = ""
	p.mu.Unlock()
	if loaded.stale != nil {
		outcome := loadRefused
		if s.away {
			outcome = loadAway
		}
		p.metrics.loads.WithLabelValues(outcome).Inc()
		p.notePoll(s, loaded.stale)
		p.log.Warn("the last good policy serves", "policy", short(p.current().Revision()), "fetched", s.copy.Fetched)
	}
}

// poll asks the server of the policy that serves for newer ones until ctx ends,
// and exchanges them. A reload of the configuration may bring another server, or
// none.
func (p *servingPolicy) poll(ctx context.Context) error {
	for ctx.Err() == nil {
		p.mu.Lock()
		s := p.source
		p.mu.Unlock()
		if err := p.pollSource(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// pollSource polls one source until ctx ends or another one serves.
func (p *servingPolicy) pollSource(ctx context.Context, s *policySource) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(s.over, stop)()
	if s.remote == nil {
		<-ctx.Done()
		return nil
	}
	take := func(ctx context.Context, c *fetch.Copy) error { return p.take(ctx, s, c) }
	return s.remote.Poll(ctx, s.copy, take, func(err error) {
		if err != nil && !fetch.Refused(err) {
			p.metrics.loads.WithLabelValues(loadAway).Inc()
		}
		p.notePoll(s, err)
	})
}

// take exchanges the policy for a newer copy. On an error nothing has changed.
func (p *servingPolicy) take(ctx context.Context, s *policySource, c *fetch.Copy) error {
	engine, err := s.load(ctx, c)
	if err != nil {
		if ctx.Err() == nil {
			p.metrics.loads.WithLabelValues(loadRefused).Inc()
		}
		return err
	}
	p.swap.Lock()
	defer p.swap.Unlock()
	if err := s.over.Err(); err != nil {
		return fmt.Errorf("taking a policy: %w", err) // the configuration has changed meanwhile
	}
	p.mu.Lock()
	s.copy = c
	same := p.engine.Revision() == engine.Revision()
	p.mu.Unlock()
	if same {
		return nil // what was refused in between is gone from the server
	}
	p.exchange(s, engine)
	p.log.Info("a new policy serves", "policy", short(engine.Revision()), "from", s.remote.Name())
	return nil
}

// exchange makes engine the policy that serves. The caller must hold p.swap.
func (p *servingPolicy) exchange(s *policySource, engine *rego.Engine) {
	p.exchanged(engine)
	p.mu.Lock()
	p.engine = engine
	if p.source != s {
		p.source.end()
		p.source = s
	}
	p.mu.Unlock()
	p.metrics.loads.WithLabelValues(loadTaken).Inc()
}

// notePoll notes how asking a policy's server went, and logs a change.
func (p *servingPolicy) notePoll(s *policySource, err error) {
	now := ""
	if err != nil {
		now = err.Error()
	}
	p.mu.Lock()
	before, serves := p.stale, p.source == s
	if serves {
		p.stale = now
	}
	p.mu.Unlock()
	switch {
	case !serves || now == before:
	case err != nil:
		p.log.Error("the policy stays as it is", "error", err)
	case before != "":
		p.log.Info("the policy is again what its server has", "from", s.remote.Name())
	}
}

// short returns a revision as people read it.
func short(revision string) string { return revision[:min(len(revision), len("sha256:")+12)] }
