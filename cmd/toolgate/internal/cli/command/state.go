package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/notary"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/trail"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
)

// StateConfig is the configuration, or what --state and --keys say in place of one that
// cannot be read.
func (e *Env) StateConfig() (*config.Config, error) {
	cfg, err := e.Load()
	if err != nil && e.State != "" {
		return &config.Config{State: e.State, Keys: e.KeysDir(), Audit: config.Audit{Durability: "sync"}}, nil
	}
	return cfg, err
}

// KeysDir is the key directory: --keys, or else the configured one. A state directory
// can be looked at without a configuration, and then it is the user's.
func (e *Env) KeysDir() string {
	if e.Keys != "" {
		return e.Keys
	}
	if cfg, err := e.Load(); err == nil {
		return cfg.Keys
	}
	return config.DefaultKeys(e.Lookup)
}

// Trail returns the audit directory, which exists.
func (e *Env) Trail() (string, error) {
	cfg, err := e.StateConfig()
	if err != nil {
		return "", err
	}
	dir := trail.Dir(cfg.State)
	if _, err := os.Stat(dir); err != nil {
		return "", Missing(fmt.Errorf("reading the trail: %w", err))
	}
	return dir, nil
}

// OpenTrail begins a chain of the trail for this command. Without a configuration, the
// flags --state and --keys name the directories.
func (e *Env) OpenTrail() (*notary.Log, error) {
	cfg, err := e.StateConfig()
	if err != nil {
		return nil, err
	}
	k, err := keys.Open(cfg.Keys)
	if err != nil {
		return nil, Usage(err)
	}
	return trail.Open(cfg, k, nil, audit.Options{Version: Version})
}

// Record records an act of this command.
func (e *Env) Record(r *audit.Record) error {
	trail, err := e.OpenTrail()
	if err != nil {
		return err
	}
	return errors.Join(trail.Write(audit.KindEvent, r), trail.Close())
}

// WithStore opens the store for f, and never makes one in the state directory.
func (e *Env) WithStore(ctx context.Context, f func(*store.DB) error) error {
	cfg, err := e.StateConfig()
	if err != nil {
		return err
	}
	if err := app.MissingStore(cfg); err != nil {
		return Missing(fmt.Errorf("opening the state: %w", err))
	}
	db, err := e.OpenStore(ctx, cfg)
	if err != nil {
		return err
	}
	return errors.Join(f(db), db.Close())
}

// OfStore returns what read finds in the store.
func OfStore[T any](ctx context.Context, e *Env, read func(context.Context, *store.DB) (T, error)) (found T, err error) {
	err = e.WithStore(ctx, func(db *store.DB) error {
		found, err = read(ctx, db)
		return err
	})
	return found, err
}

// HasState reports whether there is a state: a command that only looks must not make it.
func (e *Env) HasState() bool {
	cfg, err := e.StateConfig()
	return err == nil && app.MissingStore(cfg) == nil
}

// OpenStore opens the store, and says when that upgraded it.
func (e *Env) OpenStore(ctx context.Context, cfg *config.Config) (*store.DB, error) {
	db, err := app.OpenStore(ctx, cfg)
	if err == nil && db.Copy != "" {
		fmt.Fprintf(e.Stderr, "toolgate: the state was upgraded; a copy of the state before is %s\n", db.Copy)
	}
	return db, err
}

// Missing adds a hint to the error of a file that does not exist.
func Missing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return Usage(fmt.Errorf("%w\nhint: name the state directory with --state, or the configuration with --config", err))
	}
	return err
}

// FetchRemotePolicy replaces a policy of cfg at a URL with a copy on this machine:
// what the server has now, or else the last good one, which is logged.
func (e *Env) FetchRemotePolicy(ctx context.Context, cfg *config.Config) error {
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
		return &Exit{Code: ExitUnreachable, Err: fmt.Errorf("%w\nhint: is the server up, and is toolgate.policy right? there is no last good copy either", away)}
	}
	if away != nil {
		e.Logger().Warn("the last good policy is looked at", "fetched", c.Fetched, "error", away)
	}
	s.Path, s.Headers = c.Path, nil
	return nil
}

// scratch makes a directory that is removed when the program ends.
func (e *Env) scratch() (string, error) {
	if e.Temporary == "" {
		dir, err := os.MkdirTemp("", "toolgate-")
		if err != nil {
			return "", fmt.Errorf("making a directory: %w", err)
		}
		e.Temporary = dir
	}
	return e.Temporary, nil
}

// WithPins opens the pins of the state directory for f. A toolgate that serves
// from the same directory notices accepted definitions by itself. Those that the user of
// this program accepts or refuses are in the trail, signed as a serving toolgate signs.
func (e *Env) WithPins(ctx context.Context, f func(*registry.Pins) error) error {
	record := func(all []registry.Acceptance) error { return e.Record(app.AcceptedRecord(SystemUser(), all)) }
	err := e.WithStore(ctx, func(db *store.DB) error { return f(registry.OpenPins(db, time.Now, record)) })
	if errors.Is(err, registry.ErrNoPin) || errors.Is(err, registry.ErrNoOffer) || errors.Is(err, registry.ErrOtherOffer) || errors.Is(err, registry.ErrOffers) {
		err = Usage(err)
	}
	return err
}

// Pins returns what the state directory has of each tool.
func (e *Env) Pins(ctx context.Context) (pins []registry.Pin, err error) {
	err = e.WithPins(ctx, func(p *registry.Pins) error {
		pins, err = p.List(ctx)
		return err
	})
	return pins, err
}

// SystemUser names the user that runs this program, as the system knows it.
func SystemUser() string {
	if u, err := user.Current(); err == nil {
		return "system user " + u.Username
	}
	return fmt.Sprintf("system user %d", os.Getuid())
}
