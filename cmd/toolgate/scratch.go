package main

import (
	"context"
	"fmt"
	"os"

	"github.com/toolgate/toolgate/internal/app"
	"github.com/toolgate/toolgate/registry/config"
)

// here makes a policy of cfg at a URL one on this machine, for commands that look
// at it: what the server has now, or else the last good one, which is logged.
func (e *env) here(ctx context.Context, cfg *config.Config) error {
	s := &cfg.Policy.PolicySource
	if !s.Remote() {
		return nil
	}
	dir, err := e.scratch()
	if err != nil {
		return err
	}
	c, away, err := app.FetchPolicy(ctx, cfg, dir)
	if err != nil {
		return &exit{code: exitUnreachable, err: fmt.Errorf("%w\nhint: is the server up, and is toolgate.policy right? there is no last good copy either", away)}
	}
	if away != nil {
		e.logger().Warn("the last good policy is looked at", "fetched", c.Fetched, "error", away)
	}
	s.Path, s.Headers = c.Path, nil
	return nil
}

// scratch makes a directory that goes when the program ends.
func (e *env) scratch() (string, error) {
	if e.temporary == "" {
		dir, err := os.MkdirTemp("", "toolgate-")
		if err != nil {
			return "", fmt.Errorf("making a directory: %w", err)
		}
		e.temporary = dir
	}
	return e.temporary, nil
}

// tidy removes what scratch made.
func (e *env) tidy() {
	if e.temporary != "" {
		_ = os.RemoveAll(e.temporary) // a leftover in the temporary directory is the system's
	}
}
