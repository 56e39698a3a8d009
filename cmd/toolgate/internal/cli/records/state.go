package records

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/progress"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/fleet"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/trail"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/proxy/artifact"
	"github.com/toolgate/toolgate/registry/config"
)

// BackupCommand returns the command that copies the state.
func BackupCommand(e *command.Env) *cobra.Command {
	return e.Printing("backup FILE|DIR", "copy the state and the audit trail of a running toolgate", func(ctx context.Context, args []string) (*report.Report, error) {
		cfg, err := e.StateConfig()
		if err != nil {
			return nil, err
		}
		to := args[0]
		if _, err := os.Lstat(to); err == nil {
			return nil, command.Usage(fmt.Errorf("writing backup: %s exists\nhint: name a new file or directory", to))
		}
		if err := backup(ctx, e, cfg, to); err != nil {
			return nil, fmt.Errorf("writing backup: %w", err)
		}
		done := withDatabase(cfg, map[string]string{"backup": to})
		var elsewhere []string // outside the state directory, where standard tools keep data
		for i := range cfg.Servers {
			if dir := command.ToolsFlagsOf(&cfg.Servers[i]).Dir; dir != "" {
				elsewhere = append(elsewhere, dir)
			}
		}
		if elsewhere != nil {
			done["elsewhere"] = strings.Join(elsewhere, ", ")
		}
		return report.Of(done, backupText), nil
	})
}

// isArchive reports whether a name is that of a tar file; any other is a directory's.
func isArchive(name string) bool { return strings.HasSuffix(name, ".tar") }

// backup copies the state directory to a new tar file or directory. It is consistent
// without stopping anything: the store is one snapshot, and the trail, copied after it,
// has every record of what the snapshot contains. Snapshots of the standard tools' data come
// last. Keys are never in it, and neither is the database of toolgate.store.
func backup(ctx context.Context, e *command.Env, cfg *config.Config, to string) (err error) {
	draft, err := os.MkdirTemp(filepath.Dir(filepath.Clean(to)), ".backup-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(draft)) }() // nothing is left when it got its name
	content := filepath.Join(draft, "state")
	if err = os.Mkdir(content, 0o700); err == nil && cfg.Store == "" {
		err = e.WithStore(ctx, func(db *store.DB) error { return db.Snapshot(ctx, filepath.Join(content, "state.db")) })
	}
	bar := e.Progress(false)
	defer bar.End()
	records, artifacts := trail.Dir(cfg.State), filepath.Join(cfg.State, "artifacts")
	copied := bar.Count("copying", progress.Size(records, artifacts))
	if err == nil {
		err = audit.Copy(trail.Dir(content), records, copied)
	}
	if _, missing := os.Stat(artifacts); err == nil && missing == nil {
		err = os.CopyFS(filepath.Join(content, "artifacts"), progress.FS(os.DirFS(artifacts), copied))
	}
	if err == nil {
		err = copyTools(ctx, filepath.Join(content, "tools"), filepath.Join(cfg.State, "tools"))
	}
	if err != nil {
		return err
	}
	if !isArchive(to) {
		return os.Rename(content, to)
	}
	file := filepath.Join(draft, "state.tar")
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	w := tar.NewWriter(out)
	err = w.AddFS(progress.FS(os.DirFS(content), bar.Count("packing", progress.Size(content))))
	if err = errors.Join(err, w.Close(), out.Sync(), out.Close()); err != nil {
		return err
	}
	return os.Rename(file, to)
}

// copyTools copies what the standard tools keep in a directory, which may be missing.
func copyTools(ctx context.Context, to, from string) error {
	files, err := fs.Glob(os.DirFS(from), "*.db")
	if err != nil || len(files) == 0 {
		return err
	}
	err = os.Mkdir(to, 0o700)
	for _, file := range files {
		if err == nil {
			err = store.Copy(ctx, filepath.Join(from, file), filepath.Join(to, file))
		}
	}
	return err
}

// withDatabase adds the database to a report about a state that is there in part.
func withDatabase(cfg *config.Config, report map[string]string) map[string]string {
	if cfg.Store != "" {
		report["database"] = store.Redact(cfg.Store)
	}
	return report
}

// RestoreCommand makes the state directory of a backup. Calls that were approved or running in
// the backup may have run since: the next start makes their tickets unknown. With
// toolgate.store, those are the tickets of the database, which its own tools restored.
func RestoreCommand(e *command.Env) *cobra.Command {
	return e.Printing("restore FILE|DIR", "make a state directory of a backup", func(ctx context.Context, args []string) (*report.Report, error) {
		cfg, err := e.StateConfig()
		if err != nil {
			return nil, err
		}
		from, state := args[0], cfg.State
		if left, err := os.ReadDir(state); len(left) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, command.Usage(errors.Join(fmt.Errorf("restoring: %s is not empty\nhint: stop toolgate and move the directory away first", state), err))
		}
		if err := os.MkdirAll(state, 0o700); err != nil {
			return nil, fmt.Errorf("restoring: %w", err)
		}
		bar := e.Progress(false)
		if copied := bar.Count("restoring", progress.Size(from)); isArchive(from) {
			err = extract(state, from, copied)
		} else {
			err = os.CopyFS(state, progress.FS(os.DirFS(from), copied))
		}
		bar.End()
		if err == nil {
			err = e.WithStore(ctx, func(db *store.DB) error {
				_, err := db.Exec(ctx, "UPDATE approval_clock SET restored = 1")
				return err
			})
		}
		if err != nil {
			return nil, fmt.Errorf("restoring: %w\nhint: remove %s before you try again", err, state)
		}
		done := withDatabase(cfg, map[string]string{"state": state})
		journal := filepath.Join(state, "tools", "chain.db")
		if _, err := os.Stat(journal); err == nil {
			done["journal"] = journal
		}
		return report.Of(done, restoredText), nil
	})
}

// extract writes the files of a tar file below dir, and nothing elsewhere.
func extract(dir, file string, read io.Writer) (err error) {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return errors.Join(err, in.Close())
	}
	defer func() { err = errors.Join(err, in.Close(), root.Close()) }()
	for r := tar.NewReader(io.TeeReader(in, read)); ; {
		h, err := r.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case h.Typeflag != tar.TypeReg:
			continue
		}
		if err := root.MkdirAll(filepath.Dir(h.Name), 0o700); err != nil {
			return err
		}
		f, err := root.OpenFile(h.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r)
		if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
			return err
		}
	}
}

// storeMoved is the report of store migrate.
type storeMoved struct {
	Database string         `json:"database"`
	File     string         `json:"file"` // the state from before
	Rows     map[string]int `json:"rows"` // of each table
}

// StoreCommand returns the command that moves the state.
func StoreCommand(e *command.Env) *cobra.Command {
	var to string
	migrate := e.Printing("migrate", "move state.db into an empty PostgreSQL database", func(ctx context.Context, _ []string) (*report.Report, error) {
		cfg, err := e.StateConfig()
		if err != nil {
			return nil, err
		}
		to := cmp.Or(to, cfg.Store)
		if to == "" {
			return nil, command.Usage(errors.New("moving the state: no database is named\nhint: write its URL as toolgate.store, or as --to"))
		}
		file := app.StateFile(cfg.State)
		if err := app.MissingStore(&config.Config{State: cfg.State}); err != nil {
			return nil, command.Missing(fmt.Errorf("moving the state: %w", err))
		}
		rows, err := store.Move(ctx, file, to)
		switch {
		case errors.Is(err, store.ErrInUse):
			return nil, command.Usage(fmt.Errorf("%w\nhint: stop toolgate first", err))
		case errors.Is(err, store.ErrNotEmpty):
			return nil, command.Usage(fmt.Errorf("%w\nhint: name an empty database, such as createdb makes", err))
		case err != nil:
			return nil, err
		}
		if err := moveArtifacts(ctx, cfg, to); err != nil {
			return nil, fmt.Errorf("moving artifacts: %w\nhint: the rest of the state has been moved; the next start moves the artifacts", err)
		}
		return report.Of(storeMoved{store.Redact(to), file + store.Moved, rows}, storeMovedText), nil
	})
	migrate.Flags().StringVar(&to, "to", "", "`URL` of the database (default: toolgate.store)")
	return command.Group("store", "move the state to another database", migrate)
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

// ReplicaCommand returns the commands of replicas.
func ReplicaCommand(e *command.Env) *cobra.Command {
	list := e.Printing("list", "list the replicas that the database has checkpoints of", func(ctx context.Context, _ []string) (*report.Report, error) {
		all, err := command.OfStore(ctx, e, knownReplicas)
		return report.Of(all, replicasText), err
	})
	retire := e.Printing("retire REPLICA", "say that a replica is gone for good", func(ctx context.Context, args []string) (*report.Report, error) {
		gone, err := command.OfStore(ctx, e, func(ctx context.Context, db *store.DB) (fleet.KnownReplica, error) {
			return retire(ctx, e, db, args[0])
		})
		return report.Of(gone, retiredText), err
	})
	return command.Group("replica", "list the replicas of a PostgreSQL database, and retire one", list, retire)
}

func knownReplicas(ctx context.Context, db *store.DB) ([]fleet.KnownReplica, error) {
	all, err := fleet.KnownReplicas(ctx, db)
	if errors.Is(err, fleet.ErrNotShared) {
		return nil, command.Usage(fmt.Errorf("%w\nhint: name the database of the replicas as toolgate.store", err))
	}
	return all, err
}

// retire retires a replica, by its name or the host of its last process. The trail of this
// replica has who did so before the store does.
func retire(ctx context.Context, e *command.Env, db *store.DB, name string) (retired fleet.KnownReplica, err error) {
	all, err := knownReplicas(ctx, db)
	if err != nil {
		return retired, err
	}
	found, err := oneReplica(all, name)
	if err != nil {
		return retired, err
	}
	trail, err := e.OpenTrail()
	if err != nil {
		return retired, err
	}
	defer func() { err = errors.Join(err, trail.Close()) }()
	live := command.Usage(fmt.Errorf("replica %s is live: %s has a lease\nhint: stop it first; after a kill its lease runs out within 30 s", found.Name, found.Who))
	switch {
	case found.Name == trail.Signing().Ledger.Trail:
		return retired, command.Usage(fmt.Errorf("replica %s is that of this state directory\nhint: retire it at another replica, whose trail keeps the record of it", found.Name))
	case found.State == fleet.Live:
		return retired, live
	}
	gone := []string{"replica " + found.Name}
	for _, c := range found.Chains {
		gone = append(gone, c.String())
	}
	by := command.SystemUser()
	if err := trail.Write(audit.KindEvent, &audit.Record{Principal: audit.Principal{Subject: by}, Event: &audit.Event{Name: audit.EventRetired, Removed: gone}}); err != nil {
		return retired, err
	}
	if retired, err = fleet.Retire(ctx, db, found.Name, by, time.Now()); errors.Is(err, fleet.ErrLive) {
		err = live
	}
	return retired, err
}

// oneReplica returns the replica with a name, or the only one whose last process was on the
// host of that name and that is not retired.
func oneReplica(all []fleet.KnownReplica, name string) (found fleet.KnownReplica, err error) {
	var known []string
	for _, r := range all {
		if r.Name == name {
			return r, nil
		}
		known = append(known, r.Name)
	}
	onHost := slices.DeleteFunc(slices.Clone(all), func(r fleet.KnownReplica) bool {
		return r.State == fleet.Retired || !strings.HasSuffix(r.Who, " on "+name)
	})
	switch len(onHost) {
	case 0:
		return found, command.Unknown("replica", name, known)
	case 1:
		return onHost[0], nil
	}
	return found, command.Usage(fmt.Errorf("%d replicas were on host %s\nhint: toolgate replica list shows their names", len(onHost), name))
}
