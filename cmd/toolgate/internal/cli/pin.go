package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/user"
	"slices"
	"time"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/internal/files"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/lock"
	"github.com/toolgate/toolgate/registry/upstream"
)

// withPins opens the pins of the state directory for f. A toolgate that serves
// from the same directory notices accepted definitions by itself. Those that the user of
// this program accepts are in the trail, signed as a serving toolgate signs.
func (e *env) withPins(ctx context.Context, f func(*registry.Pins) error) error {
	record := func(all []registry.Acceptance) error { return e.record(app.AcceptedRecord(systemUser(), all)) }
	err := e.withStore(ctx, func(db *store.DB) error { return f(registry.OpenPins(db, time.Now, record)) })
	if errors.Is(err, registry.ErrNoPin) || errors.Is(err, registry.ErrNoOffer) || errors.Is(err, registry.ErrOtherOffer) || errors.Is(err, registry.ErrOffers) {
		err = usage(err)
	}
	return err
}

// pins returns what the state directory has of each tool.
func (e *env) pins(ctx context.Context) (pins []registry.Pin, err error) {
	err = e.withPins(ctx, func(p *registry.Pins) error {
		pins, err = p.List(ctx)
		return err
	})
	return pins, err
}

// withTool is withPins for one tool: args are its exposed name, or its server and its name
// there. A name that tools of two servers have is refused. Of a tool that was never seen, the
// error has the nearest one.
func withTool(ctx context.Context, e *env, args []string, f func(p *registry.Pins, server, tool string) error) error {
	return e.withPins(ctx, func(p *registry.Pins) error {
		if len(args) == 2 {
			err := f(p, args[0], args[1])
			if !errors.Is(err, registry.ErrNoPin) {
				return err
			}
			pins, _ := p.List(ctx) // a failure leaves the message without a suggestion
			known := textsOf(pins, func(pin registry.Pin) string { return pin.Server + " " + pin.Tool })
			return fmt.Errorf("%w%s", err, didYouMean(args[0]+" "+args[1], known))
		}
		cfg, err := e.load()
		if err != nil {
			return err
		}
		pins, err := p.List(ctx)
		if err != nil {
			return err
		}
		var known []string
		name, found := args[0], (*registry.Pin)(nil)
		for i := range pins {
			t, s := pinned(cfg, &pins[i])
			switch {
			case s == nil:
			case t.Exposed != name:
				known = append(known, t.Exposed)
			case found != nil:
				return usage(fmt.Errorf("servers %s and %s each have a tool that is exposed as %s\nhint: name the server and its tool", found.Server, t.Server, name))
			default:
				found = &pins[i]
			}
		}
		if found == nil {
			hint := cmp.Or(didYouMean(name, known), hintMark+"name the tool as agents call it, or its server and its name there")
			return usage(fmt.Errorf("no definition of a tool %q has been seen%s", name, hint))
		}
		return f(p, found.Server, found.Tool)
	})
}

// systemUser names the user that runs this program, as the system knows it.
func systemUser() string {
	if u, err := user.Current(); err == nil {
		return "system user " + u.Username
	}
	return fmt.Sprintf("system user %d", os.Getuid())
}

func toolDiff(e *env) *cobra.Command {
	var fingerprint string
	c := command("diff [TOOL|SERVER [TOOL]]", "show how a tool's definition changed since it was accepted", func(ctx context.Context, args []string) error {
		if len(args) > 0 {
			return withTool(ctx, e, args, func(p *registry.Pins, server, tool string) error {
				accepted, offered, err := p.Diff(ctx, server, tool, fingerprint)
				if err != nil {
					return err
				}
				return errors.Join(e.Print("definitions", definitions{accepted, offered}), exitIf(!bytes.Equal(accepted, offered), exitDiffer))
			})
		}
		pins, err := e.pins(ctx)
		if err != nil {
			return err
		}
		changed := append([]registry.Pin{}, slices.DeleteFunc(pins, func(p registry.Pin) bool { return p.Offered == "" })...)
		return errors.Join(e.Print("pins", changed), exitIf(len(changed) > 0, exitDiffer))
	})
	c.Flags().StringVar(&fingerprint, "fingerprint", "", "compare the offered definition with this `DIGEST`, of several that wait")
	return c
}

// definitions are the two of a tool that changed.
type definitions struct {
	Accepted json.RawMessage `json:"accepted"`
	Offered  json.RawMessage `json:"offered"`
}

// Diff returns the difference as text.
func (d definitions) Diff() string {
	return string(diff.Diff("accepted", lines(d.Accepted), "offered", lines(d.Offered)))
}

// lines lays a definition out for comparison. What cannot be laid out is shown
// as it is.
func lines(definition json.RawMessage) []byte {
	var b bytes.Buffer
	if json.Indent(&b, definition, "", "  ") != nil {
		return append(definition, '\n')
	}
	return append(b.Bytes(), '\n')
}

func toolAccept(e *env) *cobra.Command {
	var fingerprint string
	c := command("accept TOOL|SERVER [TOOL]", "accept the definition that a server now offers", func(ctx context.Context, args []string) error {
		return withTool(ctx, e, args, func(p *registry.Pins, server, tool string) error {
			// Where the configuration cannot be read, the state directory was named and its word counts.
			cfg, err := e.stateConfig()
			if err != nil {
				return err
			}
			if slices.ContainsFunc(cfg.Servers, func(s config.Server) bool { return s.Name == server && s.Pin == config.PinStrict }) {
				return usage(fmt.Errorf("server %s is pinned by %s\nhint: toolgate lock %s accepts what it lists now", server, lock.Name, server))
			}
			if err := p.Accept(ctx, server, tool, fingerprint); err != nil {
				return err
			}
			return e.Print("accepted", map[string]string{"server": server, "tool": tool, "state": "accepted"})
		})
	})
	c.Flags().StringVar(&fingerprint, "fingerprint", "", "accept only the definition with this `DIGEST`, the one that was looked at")
	return c
}

// lockCommand compares the lock with what the servers list now, and writes it unless --check
// is set. Of servers that are not named, when some are, the lock stays as it is.
func lockCommand(e *env) *cobra.Command {
	var check bool
	c := e.printing("lock [SERVER...]", "write the tools that servers list to "+lock.Name, "lock", func(ctx context.Context, servers []string) (any, error) {
		cfg, err := e.load()
		if err != nil {
			return nil, err
		}
		now, err := listLock(ctx, e, cfg, servers)
		if err != nil {
			return nil, err
		}
		found := lock.Diff(cfg.Lock, now)
		written := !check && (cfg.Lock == nil || len(found) > 0)
		if written {
			if err := files.Replace(cfg.LockPath, now.Bytes(), 0o644); err != nil {
				return nil, fmt.Errorf("writing %s: %w", cfg.LockPath, err)
			}
		}
		return map[string]any{"file": cfg.LockPath, "written": written, "differences": found}, exitIf(check && len(found) > 0, exitDiffer)
	})
	c.Flags().BoolVar(&check, "check", false, "write nothing; exit 12 when the file and the servers differ")
	return c
}

// listLock returns the lock for what the servers list now. What it has of a server
// that is disabled or not asked for is what the present lock has. A server that does
// not answer is an error.
func listLock(ctx context.Context, e *env, cfg *config.Config, servers []string) (*lock.File, error) {
	now := &lock.File{Servers: make(map[string]lock.Server)}
	var asked []config.Server
	known := textsOf(cfg.Servers, func(s config.Server) string { return s.Name })
	for _, s := range cfg.Servers {
		if !s.Disabled && (len(servers) == 0 || slices.Contains(servers, s.Name)) {
			asked = append(asked, s)
		} else if cfg.Lock != nil && cfg.Lock.Servers[s.Name].Tools != nil {
			now.Servers[s.Name] = cfg.Lock.Servers[s.Name]
		}
	}
	for _, name := range servers {
		if !slices.Contains(known, name) {
			return nil, unknown("server", name, known)
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
		of, err := a.Upstreams().Fingerprints(ctx, u.Name)
		if u.State != string(upstream.StateReady) {
			err = fmt.Errorf("server %s does not answer: %s %s", u.Name, u.State, u.Error)
		}
		if err != nil {
			failed[u.Name] = err
			continue
		}
		of.Origin, of.Info = servers[i].Origin, a.Upstreams().Info(u.Name)
		found[u.Name] = of
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
