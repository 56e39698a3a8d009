// Package policies is the commands that write, check, test, ask and replay policies.
package policies

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/advice"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/docs/schemas"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/bundle"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/policy/rejudge/shadow"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
)

// Command returns the commands of policies.
func Command(e *command.Env) *cobra.Command {
	flags := replayFlags{verify: true}
	verify := command.New("verify-decisions", "check recorded decisions against OPA's own evaluation", func(ctx context.Context, _ []string) error {
		return flags.replay(ctx, e, verifiedDecisionsText, "recorded decisions are not the policy's")
	})
	flags.bind(verify)
	return command.Group("policy", "check, test and explain the policy", policyInit(e), policyCheck(e), policyTest(e), policyExplain(e), policyCanI(e), policyMatrix(e), policyReplay(e), policyTry(e), verify, policyShadow(e))
}

// policyPath is the flag that names another policy than the configured one.
func policyPath(c *cobra.Command, path *string) {
	c.Flags().StringVar(path, "path", "", "directory or .tar.gz of the `POLICY` (default: as configured)")
}

// policySource returns the policy that a command looks at, and the configuration
// around it. A policy that is named by its path needs no configuration: it is then
// empty, unless somebody named one.
func policySource(ctx context.Context, e *command.Env, path string) (rego.Options, *config.Config, error) {
	cfg, err := e.Load()
	switch {
	case path == "" && err == nil:
		err := e.FetchRemotePolicy(ctx, cfg)
		return app.PolicyOptions(&cfg.Policy.PolicySource), cfg, err
	case path == "":
		return rego.Options{}, nil, fmt.Errorf("%w\nhint: --path names a policy that no configuration names", err)
	case err != nil && e.Config != command.DefaultConfig:
		return rego.Options{}, nil, err
	case err != nil:
		cfg = new(config.Config)
	}
	return rego.Options{Path: path, Timeout: cfg.Policy.Timeout}, cfg, nil
}

// A View is a policy that a command looks at, and the configuration around it.
type View struct {
	*rego.Engine
	Env    *command.Env
	path   string // "" = the configured policy
	Config *config.Config
}

// Open loads the policy that a command looks at.
func Open(ctx context.Context, e *command.Env, path string) (*View, error) {
	options, cfg, err := policySource(ctx, e, path)
	if err != nil {
		return nil, err
	}
	engine, err := rego.Load(ctx, options)
	if err != nil {
		return nil, e.Unservable(err, options.Path)
	}
	return &View{engine, e, path, cfg}, nil
}

// tools returns the tools that a policy command covers, by exposed name: the
// tools that data.roles names, and the tools that the upstreams list. If live is false, it
// takes the tools whose definitions the state directory keeps, and asks no upstream.
func (v *View) tools(ctx context.Context, live bool) (tools []policy.Tool, err error) {
	if live {
		err = v.Env.WithUpstreams(ctx, command.LiveBound, v.Config, func(a *app.App) {
			tools = app.PolicyTools(a.Upstreams().Catalogue().Tools(""))
			for _, f := range command.ServerFindings(a) {
				if f.Code == command.DeadServer {
					fmt.Fprintf(v.Env.Stderr, "toolgate: warning: %s: %s: tools that only it lists are left out\n", f.Where, report.Printable(f.Message))
				}
			}
		})
	} else {
		tools, err = KeptTools(ctx, v.Env, v.Config)
	}
	if err != nil {
		return nil, err
	}
	for _, name := range v.Tools() {
		if !slices.ContainsFunc(tools, func(t policy.Tool) bool { return t.Exposed == name }) {
			tools = append(tools, toolNamed(v.Config, name))
		}
	}
	slices.SortFunc(tools, func(a, b policy.Tool) int { return cmp.Compare(a.Exposed, b.Exposed) })
	return tools, nil
}

// named returns tools by their exposed names; what is known of them is used.
func (v *View) named(known []policy.Tool, names ...string) (tools []policy.Tool) {
	exposed := command.TextsOf(known, func(t policy.Tool) string { return t.Exposed })
	for _, name := range names {
		if i := slices.Index(exposed, name); i >= 0 {
			tools = append(tools, known[i])
			continue
		}
		command.NoteUnknown(v.Env, "tool", name, exposed)
		tools = append(tools, toolNamed(v.Config, name))
	}
	return tools
}

// callers returns the principals that a command looks at: one for each role, whose
// subject is unknown or the one that is asked for. Where no roles are named, a
// subject has those of its token. Tokens of a configuration that nobody named say
// nothing about the policy at a path.
func (v *View) callers(subject string, roles []string) (callers []policy.Principal) {
	switch {
	case subject != "" && len(roles) == 0:
		return []policy.Principal{advice.Principal(v.Config, policy.Principal{Subject: subject})}
	case len(roles) > 0:
	case v.path != "" && v.Env.Config == command.DefaultConfig:
		roles = v.Roles()
	default:
		roles = KnownRoles(v.Config, v.Engine)
	}
	for _, role := range roles {
		callers = append(callers, policy.Principal{Subject: subject, Roles: []string{role}})
	}
	return callers
}

// KnownRoles are the roles of the policy's data, unless engine is nil, and of the
// configured tokens.
func KnownRoles(cfg *config.Config, engine *rego.Engine) (roles []string) {
	if engine != nil {
		roles = engine.Roles()
	}
	for _, t := range cfg.Identity.Tokens {
		roles = append(roles, t.Roles...)
	}
	slices.Sort(roles)
	return slices.Compact(roles)
}

// KeptTools returns the tools whose accepted definitions the state directory keeps.
func KeptTools(ctx context.Context, e *command.Env, cfg *config.Config) (tools []policy.Tool, err error) {
	if !e.HasState() {
		return nil, nil
	}
	pins, err := e.Pins(ctx)
	for i := range pins {
		if t, s := Pinned(cfg, &pins[i]); s != nil && pins[i].Accepted != "" {
			tools = append(tools, t)
		}
	}
	return tools, err
}

// Pinned returns the tool of a pin and its server, nil if the server is no longer configured
// or does not offer the tool, and for a definition that only some clients are offered.
func Pinned(cfg *config.Config, p *registry.Pin) (policy.Tool, *config.Server) {
	s := cfg.Server(p.Server)
	var definition struct{ Annotations json.RawMessage }
	if s == nil || p.Condition != "" || s.Disabled || !s.Offers(p.Tool) || json.Unmarshal(p.Definition(), &definition) != nil {
		return policy.Tool{}, nil
	}
	return policy.Tool{
		Server: s.Name, Name: p.Tool, Exposed: s.Prefix + p.Tool, Risk: s.Risk,
		Annotations: definition.Annotations, Fingerprint: p.Accepted,
	}, s
}

// toolNamed returns what the configuration knows about a tool that no server
// has listed.
func toolNamed(cfg *config.Config, exposed string) policy.Tool {
	t := policy.Tool{Name: exposed, Exposed: exposed}
	longest := -1
	for _, s := range cfg.Servers {
		if strings.HasPrefix(exposed, s.Prefix) && len(s.Prefix) > longest {
			longest = len(s.Prefix)
			t.Server, t.Name, t.Risk = s.Name, strings.TrimPrefix(exposed, s.Prefix), s.Risk
		}
	}
	return t
}

func policyInit(e *command.Env) *cobra.Command {
	var force bool
	c := e.Printing("init DIR", "write the default policy into a directory", func(_ context.Context, args []string) (*report.Report, error) {
		dir := args[0]
		present, err := os.ReadDir(dir)
		switch {
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return nil, command.Usage(fmt.Errorf("reading the directory: %w", err))
		case len(present) > 0 && !force:
			return nil, command.Usage(fmt.Errorf("%s is not empty\nhint: name another directory, or overwrite files with --force", dir))
		}
		files, err := Bundled()
		for _, name := range []string{"policy-input.json", "policy-decision.json", "policy-data.json"} {
			files["schemas/"+name] = schemas.Read(name)
		}
		files[".github/workflows/policy.yml"] = bundle.Workflow
		for name, text := range files {
			file := filepath.Join(dir, filepath.FromSlash(name))
			if err == nil {
				err = os.MkdirAll(filepath.Dir(file), 0o755)
			}
			if err == nil {
				err = os.WriteFile(file, text, 0o644)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("writing the policy: %w", err)
		}
		return report.Of(policyWritten{dir, len(files)}, policyWrittenText), nil
	})
	c.Flags().BoolVar(&force, "force", false, "write into a directory that is not empty, and overwrite files")
	return c
}

// policyWritten is the report of policy init.
type policyWritten struct {
	Directory string `json:"directory"`
	Files     int    `json:"files"` // how many
}

// Bundled returns the files of the default policy by their names, with /.
func Bundled() (map[string][]byte, error) {
	files := map[string][]byte{}
	return files, fs.WalkDir(bundle.Files, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files[name], err = bundle.Files.ReadFile(name)
		}
		return err
	})
}

func policyShadow(e *command.Env) *cobra.Command {
	var since time.Time
	var candidate string
	var most int
	c := e.Printing("shadow", "list what the policy of policy.shadow would have decided otherwise", func(ctx context.Context, _ []string) (*report.Report, error) {
		if most < 1 {
			return nil, command.Usage(fmt.Errorf("--limit %d lists nothing\nhint: give a number above 0", most))
		}
		found, err := command.OfStore(ctx, e, func(ctx context.Context, db *store.DB) (shadow.Report, error) {
			r, err := shadow.ReportOf(ctx, db, candidate, since, "", most)
			if errors.Is(err, shadow.ErrNoCandidate) {
				err = command.Usage(fmt.Errorf("no policy with the revision %s was asked\nhint: without --candidate it is the one that was asked last", candidate))
			}
			return r, err
		})
		return report.Of(found, shadowText), err
	})
	c.Flags().Var((*command.Moment)(&since), "since", "only decisions from this `TIME` on: RFC 3339, or how long ago (default: all)")
	c.Flags().StringVar(&candidate, "candidate", "", "only those of the policy whose `REVISION` begins so (default: of the one that was asked last)")
	c.Flags().IntVar(&most, "limit", 50, "`COUNT` of decisions to list")
	return c
}
