package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/app"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/report"
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

// keysDir is the key directory: --keys, or else the configured one. A state directory
// can be looked at without a configuration, and then it is the user's.
func (e *env) keysDir() string {
	if e.keys != "" {
		return e.keys
	}
	if cfg, err := e.load(); err == nil {
		return cfg.Keys
	}
	return config.DefaultKeys(e.lookup)
}

// trail returns the audit directory, which exists.
func (e *env) trail() (string, error) {
	dir, err := e.stateDir()
	if err != nil {
		return "", err
	}
	dir = app.TrailDir(dir)
	if _, err := os.Stat(dir); err != nil {
		return "", missing(fmt.Errorf("reading the trail: %w", err))
	}
	return dir, nil
}

// openTrail begins a chain of the trail for this command. Without a configuration, the
// flags --state and --keys name the directories.
func (e *env) openTrail() (*audit.Log, error) {
	dir, err := e.stateDir()
	if err != nil {
		return nil, err
	}
	cfg, err := e.load()
	if err != nil {
		cfg = &config.Config{State: dir, Keys: e.keysDir(), Audit: config.Audit{Durability: "sync"}}
	}
	k, err := keys.Open(cfg.Keys)
	if err != nil {
		return nil, usage(err)
	}
	return app.OpenTrail(cfg, k, audit.Options{Version: version})
}

// recordReading records that this command read records from the files of the trail, or
// says that it cannot: on a copy, without the key directory of the trail, or where it
// cannot write. Whoever can read the files can read them without this program.
func (e *env) recordReading(trail string) {
	k := keys.At(e.keysDir())
	ledger, err := audit.FindLedger(k.Path(), trail)
	if err == nil && (ledger.Trail == "" || !k.Has(keys.Checkpoints)) {
		err = errors.New("the key directory is not that of this trail")
	}
	if err == nil {
		err = e.record(&audit.Record{Principal: audit.Principal{Subject: systemUser()}, Event: &audit.Event{Name: audit.EventTrailRead, Credential: "files"}})
	}
	if err != nil {
		fmt.Fprintf(e.err, "toolgate: this reading of the trail is not recorded: %s\n", report.Printable(err.Error()))
	}
}

// record records an act of this command.
func (e *env) record(r *audit.Record) error {
	trail, err := e.openTrail()
	if err != nil {
		return err
	}
	return errors.Join(trail.Write(audit.KindEvent, r), trail.Close())
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
