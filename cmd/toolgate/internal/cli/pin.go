package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/policies"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/internal/files"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/lock"
	"github.com/toolgate/toolgate/registry/upstream"
)

// withTool is WithPins for one tool: args are its exposed name, or its server and its name
// there. A name that tools of two servers have is refused. Of a tool that was never seen, the
// error has the nearest one.
func withTool(ctx context.Context, e *command.Env, args []string, f func(p *registry.Pins, server, tool string) error) error {
	return e.WithPins(ctx, func(p *registry.Pins) error {
		if len(args) == 2 {
			err := f(p, args[0], args[1])
			if !errors.Is(err, registry.ErrNoPin) {
				return err
			}
			pins, _ := p.List(ctx) // a failure leaves the message without a suggestion
			known := command.TextsOf(pins, func(pin registry.Pin) string { return pin.Server + " " + pin.Tool })
			return fmt.Errorf("%w%s", err, command.DidYouMean(args[0]+" "+args[1], known))
		}
		cfg, err := e.Load()
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
			t, s := policies.Pinned(cfg, &pins[i])
			switch {
			case s == nil:
			case t.Exposed != name:
				known = append(known, t.Exposed)
			case found != nil:
				return command.Usage(fmt.Errorf("servers %s and %s each have a tool that is exposed as %s\nhint: name the server and its tool", found.Server, t.Server, name))
			default:
				found = &pins[i]
			}
		}
		if found == nil {
			hint := cmp.Or(command.DidYouMean(name, known), command.HintMark+"name the tool as agents call it, or its server and its name there")
			return command.Usage(fmt.Errorf("no definition of a tool %q has been seen%s", name, hint))
		}
		return f(p, found.Server, found.Tool)
	})
}

func toolDiff(e *command.Env) *cobra.Command {
	var fingerprint string
	c := command.New("diff [TOOL|SERVER [TOOL]]", "show how a tool's definition changed since it was accepted", func(ctx context.Context, args []string) (err error) {
		var both app.Definitions
		var differ bool
		switch {
		case e.Addr != "" && len(args) == 0:
			waiting, err := offeredTools(ctx, e, url.Values{"state": {console.ToolWithheld}})
			if err != nil {
				return err
			}
			return errors.Join(e.Print(report.Of(waiting, offeredToolsText)), command.ExitIf(len(waiting) > 0, command.ExitDiffer))
		case e.Addr != "":
			both, differ, err = remoteDefinitions(ctx, e, args, fingerprint)
		case len(args) > 0:
			err = withTool(ctx, e, args, func(p *registry.Pins, server, tool string) (err error) {
				both.Accepted, both.Offered, err = p.Diff(ctx, server, tool, fingerprint)
				differ = !bytes.Equal(both.Accepted, both.Offered)
				return err
			})
		default:
			pins, err := e.Pins(ctx)
			if err != nil {
				return err
			}
			changed := append([]registry.Pin{}, slices.DeleteFunc(pins, func(p registry.Pin) bool { return p.Offered == "" })...)
			return errors.Join(e.Print(report.Of(changed, pinsText)), command.ExitIf(len(changed) > 0, command.ExitDiffer))
		}
		if err != nil {
			return err
		}
		return errors.Join(e.Print(report.Of(both, definitionsText)), command.ExitIf(differ, command.ExitDiffer))
	})
	c.Flags().StringVar(&fingerprint, "fingerprint", "", "compare the offered definition with this `DIGEST`, of several that wait")
	return atToolgate(e, c)
}

// atToolgate gives c the flag that names a running toolgate, to be asked in place of the state
// directory.
func atToolgate(e *command.Env, c *cobra.Command) *cobra.Command {
	c.Flags().StringVar(&e.Addr, "addr", "", "`URL` of the admin listener to ask (default: the state directory is used)")
	return c
}

func toolAccept(e *command.Env) *cobra.Command {
	return toolJudge(e, "accept", "accept the definition that a server now offers", "accepted", new(registry.Verdict))
}

func toolRefuse(e *command.Env) *cobra.Command {
	v := &registry.Verdict{Refuse: true}
	c := toolJudge(e, "refuse", "say why the definition that a server now offers is not accepted", "refused", v)
	c.Flags().StringVar(&v.Reason, "reason", "", "why, as `TEXT` for people and the audit trail; required")
	return c
}

// toolJudge returns a command that judges offered definitions.
func toolJudge(e *command.Env, verb, short, state string, v *registry.Verdict) *cobra.Command {
	c := command.New(verb+" TOOL|SERVER [TOOL]", short, func(ctx context.Context, args []string) (err error) {
		if v.Refuse && v.Reason == "" {
			return command.Usage(errors.New("a reason is needed\nhint: --reason \"it asks for more than it needs\""))
		}
		judge := func(p *registry.Pins, server, tool string) error {
			v := *v
			v.Server, v.Tool, v.By = server, tool, command.SystemUser()
			// Where the configuration cannot be read, the state directory was named and its word counts.
			cfg, err := e.StateConfig()
			if err != nil {
				return err
			}
			if s := cfg.Server(server); !v.Refuse && s != nil && s.Pin == config.PinStrict {
				return command.Usage(fmt.Errorf("server %s is pinned by %s\nhint: toolgate lock %s accepts what it lists now", server, lock.Name, server))
			}
			if err := p.Judge(ctx, v); err != nil {
				return err
			}
			return e.Print(report.Of(map[string]string{"server": server, "tool": tool, "state": state}, judgedText))
		}
		if e.Addr == "" {
			return withTool(ctx, e, args, judge)
		}
		t, err := remoteTool(ctx, e, args, v.Fingerprint)
		if err != nil {
			return err
		}
		body := map[string]string{"digest": t.Digest}
		if v.Refuse {
			body["reason"] = v.Reason
		}
		if err := e.Fetch(ctx, command.PeopleListener, http.MethodPost, toolPath(t)+"/"+verb, body, new(console.ToolDetail)); err != nil {
			return err
		}
		return e.Print(report.Of(map[string]string{"server": t.Server, "tool": t.Name, "state": state}, judgedText))
	})
	c.Flags().StringVar(&v.Fingerprint, "fingerprint", "", verb+" only the definition with this `DIGEST`, the one that was looked at")
	return atToolgate(e, c)
}

// toolPath is where the admin listener has a tool. A name may be "." or "..", which as they are would be removed.
func toolPath(t console.Tool) string {
	return "/v1/tools/" + url.PathEscape(t.Server) + "/" + strings.ReplaceAll(url.PathEscape(t.Name), ".", "%2E")
}

// offeredTools returns the definitions that the servers of a running toolgate offer, those that a
// query asks for.
func offeredTools(ctx context.Context, e *command.Env, query url.Values) ([]console.Tool, error) {
	return everyPage[console.Tool](ctx, e, "/v1/tools", "tools", query)
}

// remoteTool returns a definition at a running toolgate: args are the exposed name of its tool, or
// its server and its name there. Without a fingerprint it is the one that waits to be accepted, or
// else the first.
func remoteTool(ctx context.Context, e *command.Env, args []string, fingerprint string) (console.Tool, error) {
	query := url.Values{"text": {args[len(args)-1]}}
	if len(args) == 2 {
		query.Set("server", args[0])
	}
	all, err := offeredTools(ctx, e, query)
	if err != nil {
		return console.Tool{}, err
	}
	found := slices.DeleteFunc(all, func(t console.Tool) bool {
		return len(args) == 1 && t.Exposed != args[0] || len(args) == 2 && t.Name != args[1]
	})
	if len(found) == 0 {
		return console.Tool{}, command.Usage(fmt.Errorf("no server offers a tool %q%stoolgate tool list --all shows them", strings.Join(args, " "), command.HintMark))
	}
	waiting := slices.DeleteFunc(slices.Clone(found), func(t console.Tool) bool { return t.State != console.ToolWithheld })
	switch {
	case fingerprint != "":
		found[0].Digest = fingerprint // toolgate says if it is not offered any longer
	case len(waiting) > 1:
		return console.Tool{}, command.Usage(registry.ErrOffers)
	case len(waiting) == 1:
		return waiting[0], nil
	}
	return found[0], nil
}

// remoteDefinitions returns the definitions of a tool at a running toolgate, and whether they differ.
func remoteDefinitions(ctx context.Context, e *command.Env, args []string, fingerprint string) (both app.Definitions, differ bool, err error) {
	t, err := remoteTool(ctx, e, args, fingerprint)
	if err != nil {
		return both, false, err
	}
	var whole console.ToolDetail
	err = e.Fetch(ctx, command.PeopleListener, http.MethodGet, toolPath(t)+"?digest="+url.QueryEscape(t.Digest), nil, &whole)
	both = app.Definitions{Accepted: whole.Accepted, Offered: whole.Definition}
	if differ = whole.State == console.ToolWithheld; !differ {
		both.Accepted = both.Offered
	}
	return both, differ, err
}

// lockCommand compares the lock with what the servers list now, and writes it unless --check
// is set. Of servers that are not named, when some are, the lock stays as it is.
// lockReport is the report of lock.
type lockReport struct {
	Differences []lock.Difference `json:"differences"`
	File        string            `json:"file"`
	Written     bool              `json:"written"`
}

func lockCommand(e *command.Env) *cobra.Command {
	var check bool
	c := e.Printing("lock [SERVER...]", "write the tools that servers list to "+lock.Name, func(ctx context.Context, servers []string) (*report.Report, error) {
		cfg, err := e.Load()
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
		return report.Of(lockReport{found, cfg.LockPath, written}, lockText), command.ExitIf(check && len(found) > 0, command.ExitDiffer)
	})
	c.Flags().BoolVar(&check, "check", false, "write nothing; exit 12 when the file and the servers differ")
	return c
}

// listLock returns the lock for what the servers list now. What it has of a server
// that is disabled or not asked for is what the present lock has. A server that does
// not answer is an error.
func listLock(ctx context.Context, e *command.Env, cfg *config.Config, servers []string) (*lock.File, error) {
	now := &lock.File{Servers: make(map[string]lock.Server)}
	var asked []config.Server
	known := command.TextsOf(cfg.Servers, func(s config.Server) string { return s.Name })
	for _, s := range cfg.Servers {
		if !s.Disabled && (len(servers) == 0 || slices.Contains(servers, s.Name)) {
			asked = append(asked, s)
		} else if cfg.Lock != nil && cfg.Lock.Servers[s.Name].Tools != nil {
			now.Servers[s.Name] = cfg.Lock.Servers[s.Name]
		}
	}
	for _, name := range servers {
		if !slices.Contains(known, name) {
			return nil, command.Unknown("server", name, known)
		}
	}
	var failed map[string]error
	err := e.WithUpstreams(ctx, command.LiveBound, whole(cfg, asked), func(a *app.App) {
		var found map[string]lock.Server
		found, failed = listed(ctx, a, asked)
		maps.Copy(now.Servers, found)
	})
	if err == nil && len(failed) > 0 {
		err = &command.Exit{Code: command.ExitUnreachable, Err: fmt.Errorf("%w\nhint: nothing is written; name the servers to look at, or disable this one", joined(failed))}
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
