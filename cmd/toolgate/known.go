package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/internal/app"
	"github.com/toolgate/toolgate/internal/report"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
)

// knownTools returns the tools that a policy command covers, by exposed name:
// those that the upstreams list, when live, else those whose definitions the
// state directory keeps, and those that data.roles names.
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
	if !hasState(cmp.Or(e.state, cfg.State)) {
		return nil, nil
	}
	err = e.withPins(ctx, func(p *registry.Pins) error {
		pins, err := p.List(ctx)
		for i := range pins {
			if t, ok := pinned(cfg, &pins[i]); ok {
				tools = append(tools, t)
			}
		}
		return err
	})
	return tools, err
}

// hasState reports whether a state directory is one: a command that only looks must
// not make it.
func hasState(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "state.db"))
	return dir != "" && err == nil
}

// pinned returns the tool of a pin, false if its server is no longer configured
// or does not offer the tool.
func pinned(cfg *config.Config, p *registry.Pin) (policy.Tool, bool) {
	i := slices.IndexFunc(cfg.Servers, func(s config.Server) bool { return s.Name == p.Server })
	if i < 0 || p.Accepted == "" || cfg.Servers[i].Disabled || !cfg.Servers[i].Offers(p.Tool) {
		return policy.Tool{}, false
	}
	var definition struct{ Annotations json.RawMessage }
	if json.Unmarshal(p.Definition(), &definition) != nil {
		return policy.Tool{}, false
	}
	s := &cfg.Servers[i]
	return policy.Tool{
		Server: s.Name, Name: p.Tool, Exposed: s.Prefix + p.Tool, Risk: s.Risk,
		Annotations: definition.Annotations, Fingerprint: p.Accepted,
	}, true
}

// listLive starts the upstreams and returns their tools.
func (e *env) listLive(ctx context.Context, cfg *config.Config) (tools []policy.Tool, err error) {
	err = e.withUpstreams(ctx, liveBound, cfg, func(a *app.App) {
		tools = app.PolicyTools(a.Upstreams().Catalogue())
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
