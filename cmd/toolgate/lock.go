package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/internal/app"
	"github.com/toolgate/toolgate/internal/wholefile"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/lock"
	"github.com/toolgate/toolgate/registry/upstream"
)

func lockCommand(e *env) *cobra.Command {
	var check bool
	c := command("lock [SERVER...]", "write the tools that servers list to "+lock.Name, func(ctx context.Context, servers []string) error {
		cfg, err := e.load()
		if err != nil {
			return err
		}
		return e.lock(ctx, cfg, servers, check)
	})
	c.Flags().BoolVar(&check, "check", false, "write nothing; exit 12 when the file and the servers differ")
	return c
}

// lock compares the lock with what the servers list now, and writes it unless check
// is set. Of servers that are not named, when some are, the lock stays as it is.
func (e *env) lock(ctx context.Context, cfg *config.Config, servers []string, check bool) error {
	now, err := e.listLock(ctx, cfg, servers)
	if err != nil {
		return err
	}
	found := lock.Diff(cfg.Lock, now)
	written := !check && (cfg.Lock == nil || len(found) > 0)
	if written {
		if err := wholefile.Replace(cfg.LockPath, now.Bytes(), 0o644); err != nil {
			return fmt.Errorf("writing %s: %w", cfg.LockPath, err)
		}
	}
	err = e.Print("lock", map[string]any{"file": cfg.LockPath, "written": written, "differences": found})
	return errors.Join(err, exitIf(check && len(found) > 0, exitDiffer))
}

// listLock returns the lock for what the servers list now. What it has of a server
// that is disabled or not asked for is what the present lock has. A server that does
// not answer is an error.
func (e *env) listLock(ctx context.Context, cfg *config.Config, servers []string) (*lock.File, error) {
	now := &lock.File{Servers: make(map[string]lock.Server)}
	var asked []config.Server
	var known []string
	for _, s := range cfg.Servers {
		known = append(known, s.Name)
	}
	for _, name := range servers {
		if !slices.Contains(known, name) {
			return nil, unknown("server", name, known)
		}
	}
	for _, s := range cfg.Servers {
		if !s.Disabled && (len(servers) == 0 || slices.Contains(servers, s.Name)) {
			asked = append(asked, s)
		} else if cfg.Lock != nil && cfg.Lock.Servers[s.Name].Tools != nil {
			now.Servers[s.Name] = cfg.Lock.Servers[s.Name]
		}
	}
	var failed map[string]error
	err := e.withUpstreams(ctx, liveBound, whole(cfg, asked), func(a *app.App) {
		var found map[string]lock.Server
		found, failed = listed(ctx, a, asked)
		maps.Copy(now.Servers, found)
	})
	if err == nil && len(failed) > 0 {
		err = &exit{code: exitUnreachable, err: fmt.Errorf("%w\nhint: nothing is written; name the servers to look at, or disable this one", joined(failed))}
	}
	return now, err
}

// whole returns a configuration with some servers, whose whole first lists serve.
func whole(cfg *config.Config, servers []config.Server) *config.Config {
	alone := *cfg
	alone.Servers, alone.Lock = nil, nil
	for _, s := range servers {
		s.Pin, s.Expose = config.PinFirst, nil
		alone.Servers = append(alone.Servers, s)
	}
	return &alone
}

// listed returns what a lock has of servers that have answered, and why others have not.
func listed(ctx context.Context, a *app.App, servers []config.Server) (found map[string]lock.Server, failed map[string]error) {
	found, failed = make(map[string]lock.Server), make(map[string]error)
	for i, u := range a.Upstreams().Status() {
		tools, err := a.Upstreams().Fingerprints(ctx, u.Name)
		if u.State != string(upstream.StateReady) {
			err = fmt.Errorf("server %s does not answer: %s %s", u.Name, u.State, u.Error)
		}
		if err != nil {
			failed[u.Name] = err
			continue
		}
		found[u.Name] = lock.Server{Origin: servers[i].Origin, Info: a.Upstreams().Info(u.Name), Tools: tools}
	}
	return found, failed
}

// joined returns the errors of servers as one, in the order of their names.
func joined(failed map[string]error) (all error) {
	for _, name := range slices.Sorted(maps.Keys(failed)) {
		all = errors.Join(all, failed[name])
	}
	return all
}
