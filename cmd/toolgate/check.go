package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/docs/schemas"
	"github.com/toolgate/toolgate/internal/app"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/upstream"
)

func checkCommand(e *env) *cobra.Command {
	var offline, schema bool
	c := &cobra.Command{
		Use: "check", Short: "check configuration and policy", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if schema {
				return e.printSchema()
			}
			return e.check(c.Context(), !offline)
		},
	}
	c.Flags().BoolVar(&offline, "offline", false, "look at the files only, start nothing")
	c.Flags().BoolVar(&schema, "schema", false, "print the JSON Schema of the configuration")
	return c
}

// printSchema prints the schema that configurations are checked against.
func (e *env) printSchema() error {
	text, err := schemas.Files.ReadFile("config.json")
	if err == nil {
		err = e.write(string(text))
	}
	return err
}

func (e *env) check(ctx context.Context, live bool) error {
	cfg, err := e.load()
	if err != nil {
		return e.unservable(err, "")
	}
	if err := e.here(ctx, cfg); err != nil {
		return err
	}
	engine, err := rego.Load(ctx, app.PolicyOptions(&cfg.Policy.PolicySource))
	if err != nil {
		return e.unservable(fmt.Errorf("policy: %w", err), "")
	}
	found := app.Warnings(cfg, engine)
	if live {
		if err := e.withUpstreams(ctx, cfg, func(a *app.App) { found = findings(a) }); err != nil {
			return err
		}
	}
	return e.print("check", map[string]any{"ok": true, "servers": len(cfg.Servers), "policy": engine.Revision(), "findings": found})
}

// findings lists what an app reports about itself and its upstreams.
func findings(a *app.App) []finding {
	found := a.Findings()
	for _, u := range a.Upstreams().Status() {
		faults := slices.Clone(u.Warnings)
		if u.Error != "" {
			faults = slices.Insert(faults, 0, u.State+": "+u.Error)
		} else if u.State == string(upstream.StateStarting) {
			faults = slices.Insert(faults, 0, fmt.Sprintf("has not answered within %v", liveBound))
		}
		for _, fault := range faults {
			found = append(found, finding{Level: levelWarning, Where: "mcpServers." + u.Name, Message: fault})
		}
	}
	return found
}

// withUpstreams opens a toolgate with a state of its own, so that looking changes
// nothing that is kept, and calls look when every upstream has answered, failed or
// had its time.
func (e *env) withUpstreams(ctx context.Context, cfg *config.Config, look func(*app.App)) error {
	dir, err := e.scratch()
	if err != nil {
		return err
	}
	alone := *cfg
	alone.State = filepath.Join(dir, "state")
	a, err := app.Open(ctx, &alone, e.appOptions())
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, liveBound)
	defer stop()
	a.WaitForUpstreams(ctx)
	look(a)
	return a.Close()
}

// liveBound is how long a command waits for upstreams.
const liveBound = 15 * time.Second
