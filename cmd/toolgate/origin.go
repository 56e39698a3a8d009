package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/toolgate/toolgate/policy/fetch"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/registry/config"
)

// origin is where a policy that serves comes from: a path on this machine, or a
// server and the copy of what it had.
type origin struct {
	options rego.Options
	remote  *fetch.Source // nil = a path on this machine
	copy    *fetch.Copy   // what was loaded from remote
	unkept  error         // why the copy could not be kept; nil = it was
	away    bool          // the server could not be asked at the start

	over context.Context // ends when another origin serves
	end  context.CancelFunc
}

// openPolicy loads the policy of a source in order to serve with it. What comes
// from a server is kept in dir once it is known to serve, and the last good one
// serves when the server is away or has one that cannot: stale says why then.
func openPolicy(ctx context.Context, s *config.PolicySource, dir string) (o *origin, engine *rego.Engine, stale, err error) {
	o = &origin{options: policyOptions(s)}
	o.over, o.end = context.WithCancel(context.Background())
	if !s.Remote() {
		engine, err = rego.Load(ctx, o.options)
		return o, engine, nil, err
	}
	o.remote = fetch.New(fetchOptions(s, dir))
	if o.copy, err = o.remote.Fetch(ctx); err == nil {
		if engine, err = o.load(ctx, o.copy); err == nil {
			o.unkept = o.copy.Keep()
			return o, engine, nil, nil
		}
		if o.copy.Kept || ctx.Err() != nil {
			return nil, nil, nil, errors.Join(err, o.copy.Drop())
		}
		err = errors.Join(err, o.copy.Drop())
	} else {
		o.away = true
	}
	if engine, stale = o.lastGood(ctx); stale != nil {
		return nil, nil, nil, errors.Join(err, stale)
	}
	return o, engine, err, nil
}

// lastGood loads the copy that is kept. That there is none is fs.ErrNotExist.
func (o *origin) lastGood(ctx context.Context) (*rego.Engine, error) {
	c, err := o.remote.Kept()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("there is no last good policy to serve with instead")
	}
	if err != nil {
		return nil, err
	}
	o.copy = c
	return o.load(ctx, c)
}

// load makes an engine of a copy.
func (o *origin) load(ctx context.Context, c *fetch.Copy) (*rego.Engine, error) {
	options := o.options
	options.Path, options.Name = c.Path, path.Base(o.remote.Name())
	engine, err := rego.Load(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("the policy from %s: %w", o.remote.Name(), err)
	}
	return engine, nil
}

func fetchOptions(s *config.PolicySource, dir string) fetch.Options {
	return fetch.Options{URL: s.Path, Headers: s.Headers, Dir: dir, Min: s.Poll.Min, Max: s.Poll.Max, Long: s.Poll.Long}
}

// policyDir is where the last good policy from a server lies.
func policyDir(cfg *config.Config) string { return filepath.Join(cfg.State, "policy") }

// policyOptions is how the policy of a source is loaded that lies on this
// machine.
func policyOptions(s *config.PolicySource) rego.Options {
	keys := make(map[string]rego.Key, len(s.Keys))
	for id, k := range s.Keys {
		keys[id] = rego.Key(k)
	}
	return rego.Options{Path: s.Path, Data: s.Data, DataAt: s.DataAt, Keys: keys, KeyID: s.Signing.KeyID, Scope: s.Signing.Scope}
}

// here makes a policy of cfg that is on a server one that lies on this machine,
// for commands that look at it: what the server has now, else the last good one,
// which is said. Nothing that is kept changes.
func (e *env) here(ctx context.Context, cfg *config.Config) error {
	s := &cfg.Policy.PolicySource
	if !s.Remote() {
		return nil
	}
	dir, err := e.scratch()
	if err != nil {
		return err
	}
	c, err := fetch.New(fetchOptions(s, dir)).Fetch(ctx)
	if err != nil {
		away := err
		if c, err = fetch.New(fetchOptions(s, policyDir(cfg))).Kept(); err != nil {
			return &exit{code: exitUnreachable, err: fmt.Errorf("%w\nhint: is the server up, and is toolgate.policy right? there is no last good copy either", away)}
		}
		e.logger().Warn("the last good policy is looked at", "fetched", c.Fetched, "error", away)
	}
	s.Path, s.Headers = c.Path, nil
	return nil
}

// scratch makes a directory that goes when the program ends.
func (e *env) scratch() (string, error) {
	if e.temporary == "" {
		dir, err := os.MkdirTemp("", "toolgate-")
		if err != nil {
			return "", fmt.Errorf("making a directory: %w", err)
		}
		e.temporary = dir
	}
	return e.temporary, nil
}

// tidy removes what scratch made.
func (e *env) tidy() {
	if e.temporary != "" {
		_ = os.RemoveAll(e.temporary) // a leftover in the temporary directory is the system's
	}
}
