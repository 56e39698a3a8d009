package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/internal/app"
	"github.com/toolgate/toolgate/policy/rego"
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
