package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"

	"github.com/toolgate/toolgate/policy/fetch"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/registry/config"
)

// A policySource is where a policy comes from: a path on this machine, or a
// server and the copy of its policy.
type policySource struct {
	options rego.Options
	remote  *fetch.Source // nil = a path on this machine
	copy    *fetch.Copy   // what was loaded from remote
	unkept  error         // why the copy could not be kept; nil = it was
	away    bool          // the server could not be asked at the start

	over context.Context // ends when another source serves
	end  context.CancelFunc
}

// loadedPolicy is a policy that can serve.
type loadedPolicy struct {
	source *policySource
	engine *rego.Engine
	stale  error // why engine is the last good policy and not what source has now; nil = it is
}

// loadSource loads a policy in order to serve with it. A policy from a server is
// kept in dir once it is known to serve, and the last good one serves when the
// server is away or has one that cannot.
func loadSource(ctx context.Context, s *config.PolicySource, dir string) (*loadedPolicy, error) {
	src := &policySource{options: PolicyOptions(s)}
	src.over, src.end = context.WithCancel(context.Background())
	if !s.Remote() {
		engine, err := rego.Load(ctx, src.options)
		return &loadedPolicy{source: src, engine: engine}, err
	}
	src.remote = fetch.New(fetchOptions(s, dir))
	fetched, err := src.remote.Fetch(ctx)
	if err != nil {
		src.away = true
		return src.lastGood(ctx, err)
	}
	src.copy = fetched
	engine, err := src.load(ctx, fetched)
	if err == nil {
		src.unkept = fetched.Keep()
		return &loadedPolicy{source: src, engine: engine}, nil
	}
	kept := fetched.Kept
	err = errors.Join(err, fetched.Drop())
	if kept || ctx.Err() != nil {
		return nil, err
	}
	return src.lastGood(ctx, err)
}

// lastGood loads the copy that is kept, because of a cause. Without one, the
// cause is the error.
func (s *policySource) lastGood(ctx context.Context, cause error) (*loadedPolicy, error) {
	kept, err := s.remote.Kept()
	if errors.Is(err, fs.ErrNotExist) {
		err = errors.New("there is no last good policy to serve with instead")
	}
	if err != nil {
		return nil, errors.Join(cause, err)
	}
	s.copy = kept
	engine, err := s.load(ctx, kept)
	if err != nil {
		return nil, errors.Join(cause, err)
	}
	return &loadedPolicy{source: s, engine: engine, stale: cause}, nil
}

// load makes an engine of a copy.
func (s *policySource) load(ctx context.Context, c *fetch.Copy) (*rego.Engine, error) {
	options := s.options
	options.Path, options.Name = c.Path, path.Base(s.remote.Name())
	engine, err := rego.Load(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("the policy from %s: %w", s.remote.Name(), err)
	}
	return engine, nil
}

func fetchOptions(s *config.PolicySource, dir string) fetch.Options {
	return fetch.Options{URL: s.Path, Headers: s.Headers, Dir: dir, Min: s.Poll.Min, Max: s.Poll.Max, Long: s.Poll.Long}
}

// policyDir is the directory of the last good policy from a server.
func policyDir(cfg *config.Config) string { return filepath.Join(cfg.State, "policy") }

// PolicyOptions returns the options that load a policy from this machine.
func PolicyOptions(s *config.PolicySource) rego.Options {
	keys := make(map[string]rego.Key, len(s.Keys))
	for id, k := range s.Keys {
		keys[id] = rego.Key(k)
	}
	return rego.Options{
		Path: s.Path, Data: s.Data, DataAt: s.DataAt,
		Keys: keys, KeyID: s.Signing.KeyID, Scope: s.Signing.Scope,
		Timeout: s.Timeout,
	}
}

// FetchPolicy returns a copy in dir of a policy at a URL, for commands that
// inspect it without serving: the server's present policy, or the last good one
// when the server cannot be asked; away is then the reason. It changes nothing
// in the state directory.
func FetchPolicy(ctx context.Context, cfg *config.Config, dir string) (c *fetch.Copy, away, err error) {
	s := &cfg.Policy.PolicySource
	if c, away = fetch.New(fetchOptions(s, dir)).Fetch(ctx); away == nil {
		return c, nil, nil
	}
	c, err = fetch.New(fetchOptions(s, policyDir(cfg))).Kept()
	return c, away, err
}
