package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/proxy/artifact"
	"github.com/toolgate/toolgate/registry/config"
)

func storeCommand(e *env) *cobra.Command {
	return group("store", "move the state to another database", storeMigrate(e))
}

func storeMigrate(e *env) *cobra.Command {
	var to string
	c := command("migrate", "move state.db into an empty PostgreSQL database", func(ctx context.Context, _ []string) error { return e.migrate(ctx, to) })
	c.Flags().StringVar(&to, "to", "", "`URL` of the database (default: toolgate.store)")
	return c
}

// migrate moves the file of the state directory to a database.
func (e *env) migrate(ctx context.Context, to string) error {
	cfg, err := e.stateConfig()
	if err != nil {
		return err
	}
	if to == "" {
		to = cfg.Store
	}
	if to == "" {
		return usage(errors.New("moving the state: no database is named\nhint: write its URL as toolgate.store, or as --to"))
	}
	file := app.StateFile(cfg.State)
	if err := app.MissingStore(&config.Config{State: cfg.State}); err != nil {
		return missing(fmt.Errorf("moving the state: %w", err))
	}
	rows, err := store.Move(ctx, file, to)
	switch {
	case errors.Is(err, store.ErrInUse):
		return usage(fmt.Errorf("%w\nhint: stop toolgate first", err))
	case errors.Is(err, store.ErrNotEmpty):
		return usage(fmt.Errorf("%w\nhint: name an empty database, such as createdb makes", err))
	case err != nil:
		return err
	}
	if err := moveArtifacts(ctx, cfg, to); err != nil {
		return fmt.Errorf("moving artifacts: %w\nhint: the rest of the state has been moved; the next start moves the artifacts", err)
	}
	return e.Print("store-moved", map[string]any{"database": store.Redact(to), "file": file + store.Moved, "rows": rows})
}

// moveArtifacts stores the bytes of artifacts in a database that has their rows.
func moveArtifacts(ctx context.Context, cfg *config.Config, to string) error {
	db, err := store.OpenPostgres(ctx, to, store.PostgresMigrations())
	if err != nil {
		return err
	}
	files, err := artifact.Open(ctx, filepath.Join(cfg.State, "artifacts"), db, artifact.Options{TTL: cfg.Artifacts.TTL, MaxBytes: int64(cfg.Artifacts.MaxMiB) << 20})
	if err == nil {
		err = files.Close()
	}
	return errors.Join(err, db.Close())
}
