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

// withTool is withPins for one tool: args are its exposed name, or its server and its name
// there. Of a tool that was never seen, the error has the nearest one.
func (e *env) withTool(ctx context.Context, args []string, f func(p *registry.Pins, server, tool string) error) error {
	return e.withPins(ctx, func(p *registry.Pins) error {
		if len(args) == 1 {
			pin, err := e.exposedPin(ctx, p, args[0])
			if err != nil {
				return err
			}
			return f(p, pin.Server, pin.Tool)
		}
		err := f(p, args[0], args[1])
		if !errors.Is(err, registry.ErrNoPin) {
			return err
		}
		var known []string
		pins, _ := p.List(ctx) // a failure leaves the message without a suggestion
		for _, pin := range pins {
			known = append(known, pin.Server+" "+pin.Tool)
		}
		return fmt.Errorf("%w%s", err, didYouMean(args[0]+" "+args[1], known))
	})
}

// exposedPin returns the pin of the tool that agents call by a name. A name that tools of
// two servers have is refused.
func (e *env) exposedPin(ctx context.Context, p *registry.Pins, name string) (*registry.Pin, error) {
	cfg, err := e.load()
	if err != nil {
		return nil, err
	}
	pins, err := p.List(ctx)
	if err != nil {
		return nil, err
	}
	var found *registry.Pin
	var known []string
	for i := range pins {
		t, s := pinned(cfg, &pins[i])
		switch {
		case s == nil:
		case t.Exposed != name:
			known = append(known, t.Exposed)
		case found != nil:
			return nil, usage(fmt.Errorf("servers %s and %s each have a tool that is exposed as %s\nhint: name the server and its tool", found.Server, t.Server, name))
		default:
			found = &pins[i]
		}
	}
	if found == nil {
		return nil, usage(fmt.Errorf("no definition of a tool %q has been seen%s", name,
			cmp.Or(didYouMean(name, known), hintMark+"name the tool as agents call it, or its server and its name there")))
	}
	return found, nil
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
		if len(args) == 0 {
			return e.withPins(ctx, func(p *registry.Pins) error { return e.listChanged(ctx, p) })
		}
		return e.withTool(ctx, args, func(p *registry.Pins, server, tool string) error {
			return e.showDiff(ctx, p, server, tool, fingerprint)
		})
	})
	c.Flags().StringVar(&fingerprint, "fingerprint", "", "compare the offered definition with this `DIGEST`, of several that wait")
	return c
}

func (e *env) listChanged(ctx context.Context, p *registry.Pins) error {
	pins, err := p.List(ctx)
	if err != nil {
		return err
	}
	changed := append([]registry.Pin{}, slices.DeleteFunc(pins, func(p registry.Pin) bool { return p.Offered == "" })...)
	return errors.Join(e.Print("pins", changed), exitIf(len(changed) > 0, exitDiffer))
}

func (e *env) showDiff(ctx context.Context, p *registry.Pins, server, tool, fingerprint string) error {
	accepted, offered, err := p.Diff(ctx, server, tool, fingerprint)
	if err != nil {
		return err
	}
	return errors.Join(e.Print("definitions", definitions{accepted, offered}), exitIf(!bytes.Equal(accepted, offered), exitDiffer))
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

// pinnedByState refuses a server whose tools only the lock accepts. Where the
// configuration cannot be read, the state directory was named and its word counts.
func (e *env) pinnedByState(server string) error {
	cfg, err := e.load()
	if err != nil && e.state != "" {
		return nil
	}
	if err != nil {
		return err
	}
	for _, s := range cfg.Servers {
		if s.Name == server && s.Pin == config.PinStrict {
			return usage(fmt.Errorf("server %s is pinned by %s\nhint: toolgate lock %s accepts what it lists now", server, lock.Name, server))
		}
	}
	return nil
}

func toolAccept(e *env) *cobra.Command {
	var fingerprint string
	c := command("accept TOOL|SERVER [TOOL]", "accept the definition that a server now offers", func(ctx context.Context, args []string) error {
		return e.withTool(ctx, args, func(p *registry.Pins, server, tool string) error {
			if err := e.pinnedByState(server); err != nil {
				return err
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
		if err := files.Replace(cfg.LockPath, now.Bytes(), 0o644); err != nil {
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
