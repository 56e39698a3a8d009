package main

import (
	"context"
	"fmt"

	"github.com/toolgate/toolgate/policy/fetch"
	"github.com/toolgate/toolgate/policy/rego"
)

// How loading a policy ends, the outcomes of toolgate_policy_loads_total.
const (
	loadTaken   = "taken"   // it serves
	loadRefused = "refused" // it was there and cannot serve
	loadAway    = "away"    // its server did not give it
)

// poll asks the server of the policy that serves for newer ones until ctx ends,
// and exchanges them. A reload of the configuration may bring another server, or
// none.
func (in *instance) poll(ctx context.Context) error {
	for ctx.Err() == nil {
		in.mu.Lock()
		o := in.origin
		in.mu.Unlock()
		if err := in.pollOne(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// pollOne polls one origin until ctx ends or another one serves.
func (in *instance) pollOne(ctx context.Context, o *origin) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(o.over, stop)()
	if o.remote == nil {
		<-ctx.Done()
		return nil
	}
	take := func(ctx context.Context, c *fetch.Copy) error { return in.take(ctx, o, c) }
	return o.remote.Poll(ctx, o.copy, take, func(err error) {
		if err != nil && !fetch.Refused(err) {
			in.metrics.loads.WithLabelValues(loadAway).Inc()
		}
		in.polled(o, err)
	})
}

// take exchanges the policy for a copy of a newer one. On an error nothing has
// changed.
func (in *instance) take(ctx context.Context, o *origin, c *fetch.Copy) error {
	engine, err := o.load(ctx, c)
	if err != nil {
		if ctx.Err() == nil {
			in.metrics.loads.WithLabelValues(loadRefused).Inc()
		}
		return err
	}
	in.swap.Lock()
	defer in.swap.Unlock()
	if err := o.over.Err(); err != nil {
		return fmt.Errorf("taking a policy: %w", err) // the configuration has changed meanwhile
	}
	in.mu.Lock()
	o.copy = c
	same := in.engine.Revision() == engine.Revision()
	in.mu.Unlock()
	if same {
		return nil // what was refused in between is gone from the server
	}
	in.exchange(o, engine)
	in.log.Info("a new policy serves", "policy", short(engine.Revision()), "from", o.remote.Name())
	return nil
}

// exchange makes engine the policy that serves. The caller must hold in.swap.
func (in *instance) exchange(o *origin, engine *rego.Engine) {
	in.gate.SetPolicy(in.verify.watch(engine))
	in.mu.Lock()
	in.engine = engine
	if in.origin != o {
		in.origin.end()
		in.origin = o
	}
	in.mu.Unlock()
	in.metrics.loads.WithLabelValues(loadTaken).Inc()
	in.steward.Recheck()
	in.changedTools() // the policy decides what each agent sees
}

// polled notes how asking a policy's server went, and says what is news.
func (in *instance) polled(o *origin, err error) {
	now := ""
	if err != nil {
		now = err.Error()
	}
	in.mu.Lock()
	before, serves := in.stale, in.origin == o
	if serves {
		in.stale = now
	}
	in.mu.Unlock()
	switch {
	case !serves || now == before:
	case err != nil:
		in.log.Error("the policy stays as it is", "error", err)
	case before != "":
		in.log.Info("the policy is again what its server has", "from", o.remote.Name())
	}
}
