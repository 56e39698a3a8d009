package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/policy/fetch"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/policy/shadow"
	"github.com/toolgate/toolgate/registry/config"
)

// understudy is the policy that is asked beside the one that serves: the worker
// that asks it, and where it comes from. Nothing waits for it, and one that cannot
// be loaded keeps nothing from serving: it is said.
type understudy struct {
	worker *shadow.Worker
	log    hclog.Logger

	mu    sync.Mutex      // protects the fields below
	cfg   *config.Config  // that names the candidate
	over  context.Context // ends when another configuration names it
	end   context.CancelFunc
	fault string // why the candidate is not the one that is configured, "" when it is
}

// openShadow makes the understudy of a toolgate that serves.
func (in *instance) openShadow() *understudy {
	asked := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "toolgate_shadow_total", Help: "Decisions that the policy of policy.shadow was asked about: same, changed = it would decide otherwise, failed = it could not judge, skipped = it was not asked.",
	}, []string{"outcome"})
	for _, o := range []shadow.Outcome{shadow.Same, shadow.Changed, shadow.Failed, shadow.Skipped} {
		asked.WithLabelValues(string(o))
	}
	in.metrics.registry.MustRegister(asked)
	u := &understudy{log: in.log.Named("shadow"), end: func() {}}
	u.worker = shadow.New(shadow.Options{
		DB: in.db, Trail: filepath.Join(in.cfg.State, "audit"), Log: u.log,
		Observe: func(o shadow.Outcome) { asked.WithLabelValues(string(o)).Inc() },
	})
	u.apply(in.cfg)
	in.mu.Lock()
	in.shadow = u
	in.mu.Unlock()
	return u
}

// asked is the understudy, nil where there is none.
func (in *instance) asked() *understudy {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.shadow
}

// apply makes cfg name the candidate. It does not wait until it is loaded.
func (u *understudy) apply(cfg *config.Config) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.end()
	u.cfg = cfg
	u.over, u.end = context.WithCancel(context.Background())
}

// run asks the candidate, and its server for newer ones, until ctx ends.
func (u *understudy) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return u.worker.Run(ctx) })
	group.Go(func() error {
		for ctx.Err() == nil {
			u.mu.Lock()
			cfg, over := u.cfg, u.over
			u.mu.Unlock()
			if err := u.load(ctx, cfg, over); err != nil {
				return err
			}
		}
		return nil
	})
	return group.Wait()
}

// load loads the candidate that cfg names and keeps it new until ctx ends or the
// configuration is over. One that cannot be loaded changes nothing.
func (u *understudy) load(ctx context.Context, cfg *config.Config, over context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(over, stop)()
	o, err := u.first(ctx, cfg)
	if ctx.Err() != nil {
		return nil
	}
	u.blame(err)
	switch {
	case o == nil && err != nil && cfg.Policy.Shadow.Remote():
		wait.For(ctx, cfg.Policy.Shadow.Poll.Max) // and try again
		return nil
	case o == nil || o.remote == nil:
		<-ctx.Done()
		return nil
	}
	take := func(ctx context.Context, c *fetch.Copy) error {
		engine, err := o.load(ctx, c)
		if err == nil && ctx.Err() == nil {
			u.worker.Set(engine)
		}
		return err
	}
	return o.remote.Poll(ctx, o.copy, take, u.blame)
}

// first loads the candidate for the first time. The origin is nil when there is
// none.
func (u *understudy) first(ctx context.Context, cfg *config.Config) (*origin, error) {
	if cfg.Policy.Shadow == nil {
		u.worker.Set(nil)
		return nil, nil
	}
	o, engine, stale, err := openPolicy(ctx, cfg.Policy.Shadow, filepath.Join(cfg.State, "policy-shadow"))
	if err != nil {
		return nil, err
	}
	u.worker.Set(engine)
	u.log.Info("a policy is asked beside the one that serves", "policy", short(engine.Revision()))
	return o, errors.Join(stale, o.unkept)
}

// blame notes what is wrong with the candidate, nil for nothing.
func (u *understudy) blame(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	u.mu.Lock()
	before := u.fault
	u.fault = text
	u.mu.Unlock()
	if text != "" && text != before {
		u.log.Error("the policy that is to be asked beside the one that serves is not the configured one", "error", err)
	}
}

// line says how the candidate does, "" when there is none.
func (u *understudy) line() string {
	if u == nil {
		return ""
	}
	s := u.worker.Status()
	if s.Candidate == "" {
		return ""
	}
	text := fmt.Sprintf("%s: same %d, changed %d, failed %d, skipped %d since %s", s.Candidate, s.Same, s.Changed, s.Failed, s.Skipped, clock(s.Since))
	if s.Unlisted > 0 {
		text += fmt.Sprintf(", %d of them too many to list", s.Unlisted)
	}
	return text
}

// warnings says what is wrong with asking it.
func (u *understudy) warnings() (all []string) {
	if u == nil {
		return nil
	}
	u.mu.Lock()
	fault := u.fault
	u.mu.Unlock()
	if fault != "" {
		all = append(all, "toolgate.policy.shadow: "+fault)
	}
	for _, f := range u.worker.Status().Faults {
		all = append(all, "toolgate.policy.shadow: "+f)
	}
	return all
}

// differs reports whether the candidate at a path of cfg is another one than the
// one that is asked.
func (u *understudy) differs(ctx context.Context, cfg *config.Config) bool {
	s := cfg.Policy.Shadow
	if u == nil || s == nil || s.Remote() {
		return false // a server is polled
	}
	fresh, err := rego.Load(ctx, policyOptions(s))
	u.mu.Lock()
	fault := u.fault
	u.mu.Unlock()
	if err != nil {
		return err.Error() != fault
	}
	return fault != "" || fresh.Revision() != u.worker.Status().Candidate
}
