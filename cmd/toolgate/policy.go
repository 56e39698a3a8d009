package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/registry/config"
)

func policyCommand(e *env) *cobra.Command {
	c := &cobra.Command{
		Use: "policy", Short: "check the policy",
		Example: "  toolgate policy check --config mcp.json",
	}
	return group(c, policyCheck(e))
}

func policyCheck(e *env) *cobra.Command {
	var path string
	c := &cobra.Command{
		Use: "check", Short: "compile the policy and try it on samples", Args: cobra.NoArgs,
		Long: `check compiles the policy strictly, without any builtin that reaches the network,
and tries it on sample calls as serve would. Exit 0: it would serve; 2: it would not.`,
		Example: `  toolgate policy check
  toolgate policy check --path ./policy -o json`,
		RunE: func(c *cobra.Command, _ []string) error {
			if path == "" {
				cfg, err := e.load()
				if err != nil {
					return err
				}
				path = cfg.Policy.Path
			}
			engine, err := rego.Load(c.Context(), rego.Options{Path: path})
			if err != nil {
				return e.unsound(err)
			}
			return e.sayPolicy(engine)
		},
	}
	c.Flags().StringVar(&path, "path", "", "directory, .tar.gz or URL (default: as configured)")
	return c
}

func (e *env) sayPolicy(engine *rego.Engine) error {
	warn := append([]string{}, engine.Warnings()...)
	if e.output == "json" {
		return e.json(map[string]any{"ok": true, "revision": engine.Revision(), "roles": engine.Roles(), "warnings": warn})
	}
	for _, w := range warn {
		fmt.Fprintf(e.out, "warning: %s\n", w)
	}
	_, err := fmt.Fprintf(e.out, "ok: policy %s, roles %s\n", short(engine.Revision()), strings.Join(engine.Roles(), ", "))
	return err
}

func loadPolicy(ctx context.Context, cfg *config.Config) (*rego.Engine, error) {
	return rego.Load(ctx, policyOptions(&cfg.Policy.PolicySource))
}

// policyOptions is how the policy of a source is loaded, once it lies on this
// machine.
func policyOptions(s *config.PolicySource) rego.Options {
	keys := make(map[string]rego.Key, len(s.Keys))
	for id, k := range s.Keys {
		keys[id] = rego.Key(k)
	}
	return rego.Options{Path: s.Path, Data: s.Data, DataAt: s.DataAt, Keys: keys, KeyID: s.KeyID, Scope: s.Scope}
}
