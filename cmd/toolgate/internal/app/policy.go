package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/internal/text"
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

// A policyFeed keeps one policy as its source has it: the policy that serves, or
// the shadow policy.
type policyFeed struct {
	log     hclog.Logger
	role    string               // what the policy does, for the log: "serves"
	count   func(outcome string) // called for each attempt to exchange the policy
	install func(*rego.Engine)   // called with each policy but the first that serves; nil for none
	changed func(refused error)  // called after a policy of the source is in use, or refused

	swap sync.Mutex // held while configuration or policy is exchanged; locked before mu

	mu     sync.Mutex // protects the fields below
	source *policySource
	engine *rego.Engine // nil = none is loaded
	copy   *fetch.Copy  // what engine was loaded from, nil for a path on this machine
	fault  string       // why engine is not what source has, "" when it is
}

// current returns the policy in use.
func (f *policyFeed) current() *rego.Engine {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.engine
}

// options returns what loads the policy in use from where it lies, as it is there now.
func (f *policyFeed) options() rego.Options {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := PolicyOptions(f.source.config)
	if f.copy != nil {
		o.Path, o.Name = f.copy.Path, path.Base(f.source.remote.Name())
	}
	return o
}

// poll asks the server of the policy for newer ones until ctx ends, and exchanges
// them. A reload of the configuration may bring another server, or none.
func (f *policyFeed) poll(ctx context.Context) {
	for ctx.Err() == nil {
		f.mu.Lock()
		s := f.source
		f.mu.Unlock()
		f.pollSource(ctx, s)
	}
}

// pollSource polls one source until ctx ends or another one is in use.
func (f *policyFeed) pollSource(ctx context.Context, s *policySource) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(s.over, stop)()
	if s.unopened { // a policy that cannot be loaded changes nothing
		s.unopened = false
		loaded, err := s.open(ctx, rego.Load)
		f.swap.Lock()
		switch {
		case ctx.Err() != nil:
		case err != nil:
			f.noteFault(s, err)
		default:
			f.exchange(s, loaded)
			f.noteLoad(loaded)
			if loaded.engine != nil {
				f.log.Info("a policy "+f.role, "policy", text.ShortDigest(loaded.engine.Revision()))
			}
		}
		f.swap.Unlock()
	}
	if s.remote == nil {
		<-ctx.Done()
		return
	}
	f.mu.Lock()
	has := f.copy
	f.mu.Unlock()
	take := func(ctx context.Context, c *fetch.Copy) error { return f.take(ctx, s, c) }
	s.remote.Poll(ctx, has, take, func(err error) {
		if err != nil && !fetch.Refused(err) {
			f.count(loadAway)
		}
		f.noteFault(s, err)
	})
}

// take exchanges the policy for a newer copy. On an error nothing has changed.
func (f *policyFeed) take(ctx context.Context, s *policySource, c *fetch.Copy) error {
	engine, err := s.load(ctx, c)
	if err != nil {
		if ctx.Err() == nil {
			f.count(loadRefused)
		}
		return err
	}
	f.swap.Lock()
	defer f.swap.Unlock()
	if err := s.over.Err(); err != nil {
		return fmt.Errorf("taking a policy: %w", err) // the configuration has changed meanwhile
	}
	f.mu.Lock()
	f.copy = c
	same := f.engine != nil && f.engine.Revision() == engine.Revision()
	f.mu.Unlock()
	if same {
		return nil // what was refused in between is gone from the server
	}
	f.exchange(s, &loadedPolicy{engine: engine, copy: c})
	f.log.Info("a new policy "+f.role, "policy", text.ShortDigest(engine.Revision()), "from", s.remote.Name())
	f.changed(nil)
	return nil
}

// exchange makes a policy of s the one in use. The caller must hold f.swap.
func (f *policyFeed) exchange(s *policySource, loaded *loadedPolicy) {
	f.install(loaded.engine)
	f.mu.Lock()
	if f.source != s {
		f.source.end()
		f.source = s
	}
	f.engine, f.copy = loaded.engine, loaded.copy
	f.mu.Unlock()
	f.count(loadTaken)
}

// noteLoad notes how loading the policy in use went.
func (f *policyFeed) noteLoad(loaded *loadedPolicy) {
	if loaded.unkept != nil {
		f.log.Error("the policy "+f.role+", and will not when its server is away at the next start", "error", loaded.unkept)
	}
	f.mu.Lock()
	f.fault = ""
	s := f.source
	f.mu.Unlock()
	if loaded.stale != nil {
		f.count(loaded.outcome)
		f.noteFault(s, loaded.stale)
		f.log.Warn("the last good policy "+f.role, "policy", text.ShortDigest(loaded.engine.Revision()), "fetched", loaded.copy.Fetched)
	}
}

// noteFault notes why the policy in use is not what s has, nil for no reason, and
// logs a change.
func (f *policyFeed) noteFault(s *policySource, err error) {
	now := ""
	if err != nil {
		now = err.Error()
	}
	f.mu.Lock()
	before, inUse := f.fault, f.source == s
	if inUse {
		f.fault = now
	}
	f.mu.Unlock()
	switch {
	case !inUse || now == before:
	case err != nil:
		f.log.Error("the policy stays as it is", "error", err)
		if fetch.Refused(err) {
			f.changed(err)
		}
	case before != "":
		f.log.Info("the policy is again what its server has", "from", s.remote.Name())
	}
}

// differs reports whether the policy at the path in c is not the one in use. A
// server is polled instead.
func (f *policyFeed) differs(c *config.PolicySource) bool {
	if c == nil || c.Remote() {
		return false
	}
	fresh, err := rego.RevisionOf(PolicyOptions(c))
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fault != "" || f.engine != nil && (err != nil || fresh != f.engine.Revision())
}

// A policySource is where a policy comes from: a path on this machine, or a
// server.
type policySource struct {
	config   *config.PolicySource // nil = no policy
	remote   *fetch.Source        // nil = a path on this machine
	unopened bool                 // poll opens it

	over context.Context // ends when another source is in use
	end  context.CancelFunc
}

// loadedPolicy is a policy that can serve.
type loadedPolicy struct {
	engine  *rego.Engine // nil = no policy
	copy    *fetch.Copy  // nil for a path on this machine
	unkept  error        // why the copy could not be kept; nil = it was
	stale   error        // why engine is the last good policy and not what the source has now; nil = it is
	outcome string       // of the attempt that failed with stale
}

// newPolicySource returns the source that c names. A policy from a server is kept
// in dir once it is known to serve.
func newPolicySource(c *config.PolicySource, dir string) *policySource {
	s := &policySource{config: c}
	s.over, s.end = context.WithCancel(context.Background())
	if c != nil && c.Remote() {
		s.remote = fetch.New(fetchOptions(c, dir))
	}
	return s
}

// open loads the policy for the first time, one on this machine with load. The last good
// one serves when the server is away or has one that cannot.
func (s *policySource) open(ctx context.Context, load func(context.Context, rego.Options) (*rego.Engine, error)) (*loadedPolicy, error) {
	if s.config == nil {
		return &loadedPolicy{}, nil
	}
	if s.remote == nil {
		engine, err := load(ctx, PolicyOptions(s.config))
		return &loadedPolicy{engine: engine}, err
	}
	fetched, err := s.remote.Fetch(ctx)
	if err != nil {
		return s.openKept(ctx, err, loadAway)
	}
	engine, err := s.load(ctx, fetched)
	if err == nil {
		return &loadedPolicy{engine: engine, copy: fetched, unkept: fetched.Keep()}, nil
	}
	kept := fetched.Kept
	err = errors.Join(err, fetched.Drop())
	if kept || ctx.Err() != nil {
		return nil, err
	}
	return s.openKept(ctx, err, loadRefused)
}

// openKept loads the last good copy, because of a cause. Without a copy, the cause
// is the error.
func (s *policySource) openKept(ctx context.Context, cause error, outcome string) (*loadedPolicy, error) {
	kept, err := s.remote.Kept()
	if errors.Is(err, fs.ErrNotExist) {
		err = errors.New("there is no last good policy to serve with instead")
	}
	if err != nil {
		return nil, errors.Join(cause, err)
	}
	engine, err := s.load(ctx, kept)
	if err != nil {
		return nil, errors.Join(cause, err)
	}
	return &loadedPolicy{engine: engine, copy: kept, stale: cause, outcome: outcome}, nil
}

// load makes an engine of a copy.
func (s *policySource) load(ctx context.Context, c *fetch.Copy) (*rego.Engine, error) {
	options := PolicyOptions(s.config)
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
