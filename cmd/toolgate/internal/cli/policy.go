package cli

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

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
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

func policyCommand(e *env) *cobra.Command {
	return group("policy", "check, test and explain the policy", policyInit(e), policyCheck(e), policyTest(e), policyExplain(e), policyCanI(e), policyMatrix(e), policyReplay(e), policyVerify(e), policyShadow(e))
}

// policyPath is the flag that names another policy than the configured one.
func policyPath(c *cobra.Command, path *string) {
	c.Flags().StringVar(path, "path", "", "directory or .tar.gz of the `POLICY` (default: as configured)")
}

// policySource returns the policy that a command looks at, and the configuration
// around it. A policy that is named by its path needs no configuration: it is then
// empty, unless somebody named one.
func (e *env) policySource(ctx context.Context, path string) (rego.Options, *config.Config, error) {
	cfg, err := e.load()
	switch {
	case path == "" && err == nil:
		err := e.fetchRemotePolicy(ctx, cfg)
		return app.PolicyOptions(&cfg.Policy.PolicySource), cfg, err
	case path == "":
		return rego.Options{}, nil, fmt.Errorf("%w\nhint: --path names a policy that no configuration names", err)
	case err != nil && e.config != defaultConfig:
		return rego.Options{}, nil, err
	case err != nil:
		cfg = new(config.Config)
	}
	return rego.Options{Path: path, Timeout: cfg.Policy.Timeout}, cfg, nil
}

// openPolicy loads the policy that a command looks at.
func (e *env) openPolicy(ctx context.Context, path string) (*rego.Engine, *config.Config, error) {
	options, cfg, err := e.policySource(ctx, path)
	if err != nil {
		return nil, nil, err
	}
	engine, err := rego.Load(ctx, options)
	if err != nil {
		return nil, nil, e.unservable(err, options.Path)
	}
	return engine, cfg, nil
}

// knownTools returns the tools that a policy command covers, by exposed name: the
// tools that data.roles names, and the tools that the upstreams list. If live is false, it
// takes the tools whose definitions the state directory keeps, and asks no upstream.
func (e *env) knownTools(ctx context.Context, cfg *config.Config, engine *rego.Engine, live bool) (tools []policy.Tool, err error) {
	if live {
		tools, err = e.listLive(ctx, cfg)
	} else {
		tools, err = e.keptTools(ctx, cfg)
	}
	if err != nil {
		return nil, err
	}
	for _, name := range engine.Tools() {
		if !slices.ContainsFunc(tools, func(t policy.Tool) bool { return t.Exposed == name }) {
			tools = append(tools, toolNamed(cfg, name))
		}
	}
	slices.SortFunc(tools, func(a, b policy.Tool) int { return cmp.Compare(a.Exposed, b.Exposed) })
	return tools, nil
}

// keptTools returns the tools whose accepted definitions the state directory keeps.
func (e *env) keptTools(ctx context.Context, cfg *config.Config) (tools []policy.Tool, err error) {
	if !e.hasState() {
		return nil, nil
	}
	err = e.withPins(ctx, func(p *registry.Pins) error {
		pins, err := p.List(ctx)
		for i := range pins {
			if t, s := pinned(cfg, &pins[i]); s != nil && pins[i].Accepted != "" {
				tools = append(tools, t)
			}
		}
		return err
	})
	return tools, err
}

// pinned returns the tool of a pin and its server, nil if the server is no longer configured
// or does not offer the tool, and for a definition that only some clients are offered.
func pinned(cfg *config.Config, p *registry.Pin) (policy.Tool, *config.Server) {
	i := slices.IndexFunc(cfg.Servers, func(s config.Server) bool { return s.Name == p.Server })
	var definition struct{ Annotations json.RawMessage }
	if i < 0 || p.Condition != "" || cfg.Servers[i].Disabled || !cfg.Servers[i].Offers(p.Tool) || json.Unmarshal(p.Definition(), &definition) != nil {
		return policy.Tool{}, nil
	}
	s := &cfg.Servers[i]
	return policy.Tool{
		Server: s.Name, Name: p.Tool, Exposed: s.Prefix + p.Tool, Risk: s.Risk,
		Annotations: definition.Annotations, Fingerprint: p.Accepted,
	}, s
}

// listLive starts the upstreams and returns their tools.
func (e *env) listLive(ctx context.Context, cfg *config.Config) (tools []policy.Tool, err error) {
	err = e.withUpstreams(ctx, liveBound, cfg, func(a *app.App) {
		tools = app.PolicyTools(a.Upstreams().Catalogue().Tools(""))
		for _, f := range serverFindings(a) {
			if f.Code == deadServer {
				fmt.Fprintf(e.err, "toolgate: warning: %s: %s: tools that only it lists are left out\n", f.Where, report.Printable(f.Message))
			}
		}
	})
	return tools, err
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

func policyInit(e *env) *cobra.Command {
	var force bool
	c := command("init DIR", "write the default policy into a directory", func(_ context.Context, args []string) error { return e.initPolicy(args[0], force) })
	c.Flags().BoolVar(&force, "force", false, "write into a directory that is not empty, and overwrite files")
	return c
}

func (e *env) initPolicy(dir string, force bool) error {
	present, err := os.ReadDir(dir)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return usage(fmt.Errorf("reading the directory: %w", err))
	case len(present) > 0 && !force:
		return usage(fmt.Errorf("%s is not empty\nhint: name another directory, or overwrite files with --force", dir))
	}
	files, err := bundled()
	for _, name := range []string{"policy-input.json", "policy-decision.json", "policy-data.json"} {
		text, cause := schemas.Files.ReadFile(name)
		err = errors.Join(err, cause)
		files["schemas/"+name] = text
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
		return fmt.Errorf("writing the policy: %w", err)
	}
	return e.Print("policy-written", map[string]any{"directory": dir, "files": len(files)})
}

// bundled returns the files of the default policy by their names, with /.
func bundled() (map[string][]byte, error) {
	files := map[string][]byte{}
	return files, fs.WalkDir(bundle.Files, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files[name], err = bundle.Files.ReadFile(name)
		}
		return err
	})
}

func policyShadow(e *env) *cobra.Command {
	var since time.Time
	var candidate string
	var most int
	c := command("shadow", "list what the policy of policy.shadow would have decided otherwise", func(ctx context.Context, _ []string) error {
		if most < 1 {
			return usage(fmt.Errorf("--limit %d lists nothing\nhint: give a number above 0", most))
		}
		return e.shadow(ctx, candidate, since, most)
	})
	c.Flags().Var((*moment)(&since), "since", "only decisions from this `TIME` on: RFC 3339, or how long ago (default: all)")
	c.Flags().StringVar(&candidate, "candidate", "", "only those of the policy whose `REVISION` begins so (default: of the one that was asked last)")
	c.Flags().IntVar(&most, "limit", 50, "`COUNT` of decisions to list")
	return c
}

// shadowReport is what policy shadow prints.
type shadowReport struct {
	Candidates    []shadow.Total        `json:"candidates"`
	Disagreements []shadow.Disagreement `json:"disagreements"`
	Asked         *shadow.Total         `json:"-"` // the candidate of Disagreements; nil = none was asked
}

func (e *env) shadow(ctx context.Context, candidate string, since time.Time, most int) error {
	r := shadowReport{Disagreements: []shadow.Disagreement{}}
	err := e.withStore(ctx, func(db *store.DB) (err error) {
		if r.Candidates, err = shadow.Totals(ctx, db); err != nil {
			return err
		}
		if r.Asked, err = chosen(r.Candidates, candidate); err == nil && r.Asked != nil {
			r.Disagreements, err = shadow.List(ctx, db, r.Asked.Candidate, since, most)
		}
		return err
	})
	if err != nil {
		return err
	}
	return e.Print("shadow", r)
}

// chosen is the candidate that a command is about: the one whose revision begins
// so, or the latest; nil when there is none at all.
func chosen(totals []shadow.Total, candidate string) (*shadow.Total, error) {
	for i, t := range totals {
		if strings.HasPrefix(t.Candidate, candidate) || strings.HasPrefix(t.Candidate, "sha256:"+candidate) {
			return &totals[i], nil
		}
	}
	if candidate != "" {
		return nil, usage(fmt.Errorf("no policy with the revision %s was asked\nhint: without --candidate it is the one that was asked last", candidate))
	}
	return nil, nil
}
