package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/registry/config"
)

func policyCommand(e *env) *cobra.Command {
	c := &cobra.Command{
		Use: "policy", Short: "check, test and explain the policy",
		Long: `What governance does with a policy before it serves, and asks of it when it does.
Nothing here needs a running toolgate. --path names another policy than the
configured one.`,
		Example: `  toolgate policy check --path my-policy
  toolgate policy test my-policy
  toolgate policy matrix --path my-policy -o markdown`,
	}
	return group(c, policyCheck(e))
}

// policyPath is the flag that names another policy than the configured one.
func policyPath(c *cobra.Command, path *string) {
	c.Flags().StringVar(path, "path", "", "directory or .tar.gz of the policy (default: as configured)")
}

// about is the policy that a command is about, and the configuration around it.
// A policy that is named by its path needs none: it is then empty, unless
// somebody named one.
func (e *env) about(path string) (rego.Options, *config.Config, error) {
	cfg, err := e.load()
	switch {
	case path == "" && err == nil:
		return policyOptions(&cfg.Policy.PolicySource), cfg, nil
	case path == "":
		return rego.Options{}, nil, fmt.Errorf("%w\nhint: --path names a policy that no configuration names", err)
	case err != nil && e.config != defaultConfig:
		return rego.Options{}, nil, err
	case err != nil:
		cfg = new(config.Config)
	}
	return rego.Options{Path: path}, cfg, nil
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
