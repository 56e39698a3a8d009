package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/toolgate/toolgate/internal/app"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/registry/config"
)

// stateDir is the state directory: --state, or else the configured one.
func (e *env) stateDir() (string, error) {
	if e.state != "" {
		return e.state, nil
	}
	cfg, err := e.load()
	if err != nil {
		return "", err
	}
	return cfg.State, nil
}

// trail returns the audit directory, which exists.
func (e *env) trail() (string, error) {
	dir, err := e.stateDir()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, "audit")
	if _, err := os.Stat(dir); err != nil {
		return "", missing(fmt.Errorf("reading the trail: %w", err))
	}
	return dir, nil
}

// withStore opens the store of the state directory for f, and never makes one.
func (e *env) withStore(ctx context.Context, f func(*store.DB) error) error {
	dir, err := e.stateDir()
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "state.db")
	if _, err := os.Stat(path); err != nil {
		return missing(fmt.Errorf("opening the state: %w", err))
	}
	db, err := store.Open(ctx, path, store.Migrations())
	if err != nil {
		return err
	}
	return errors.Join(f(db), db.Close())
}

// missing adds a hint to the error of a file that does not exist.
func missing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return usage(fmt.Errorf("%w\nhint: name the state directory with --state, or the configuration with --config", err))
	}
	return err
}

// fetchRemotePolicy replaces a policy of cfg at a URL with a copy on this machine:
// what the server has now, or else the last good one, which is logged.
func (e *env) fetchRemotePolicy(ctx context.Context, cfg *config.Config) error {
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

// scratch makes a directory that is removed when the program ends.
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

// removeScratch removes what scratch made.
func (e *env) removeScratch() {
	if e.temporary != "" {
		_ = os.RemoveAll(e.temporary) // a leftover in the temporary directory is the system's
	}
}
