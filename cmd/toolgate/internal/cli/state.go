package cli

import (
	"archive/tar"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/progress"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/internal/keys"
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

// stateConfig is the configuration, or what --state and --keys say in place of one that
// cannot be read.
func (e *env) stateConfig() (*config.Config, error) {
	cfg, err := e.load()
	if err != nil && e.state != "" {
		return &config.Config{State: e.state, Keys: e.keysDir(), Audit: config.Audit{Durability: "sync"}}, nil
	}
	return cfg, err
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
	cfg, err := e.stateConfig()
	if err != nil {
		return nil, err
	}
	k, err := keys.Open(cfg.Keys)
	if err != nil {
		return nil, usage(err)
	}
	return app.OpenTrail(cfg, k, nil, audit.Options{Version: version})
}

// recordReading records that this command read records from the files of the trail, or
// says that it cannot: on a copy, without the key directory of the trail, or where it
// cannot write. Whoever can read the files can read them without this program.
func (e *env) recordReading(trail string) {
	k := keys.At(e.keysDir())
	ledger, err := audit.FindLedger(k.Path(), trail)
	if err == nil && (ledger.Trail == "" || !k.Has(keys.Checkpoints)) {
		err = audit.ErrOtherKeys
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

// withStore opens the store for f, and never makes one in the state directory.
func (e *env) withStore(ctx context.Context, f func(*store.DB) error) error {
	cfg, err := e.stateConfig()
	if err != nil {
		return err
	}
	if err := app.MissingStore(cfg); err != nil {
		return missing(fmt.Errorf("opening the state: %w", err))
	}
	db, err := e.openStore(ctx, cfg)
	if err != nil {
		return err
	}
	return errors.Join(f(db), db.Close())
}

// hasState reports whether there is a state: a command that only looks must not make it.
func (e *env) hasState() bool {
	cfg, err := e.stateConfig()
	return err == nil && app.MissingStore(cfg) == nil
}

// openStore opens the store, and says when that upgraded it.
func (e *env) openStore(ctx context.Context, cfg *config.Config) (*store.DB, error) {
	db, err := app.OpenStore(ctx, cfg)
	if err == nil && db.Copy != "" {
		fmt.Fprintf(e.err, "toolgate: the state was upgraded; a copy of the state before is %s\n", db.Copy)
	}
	return db, err
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

func backupCommand(e *env) *cobra.Command {
	return command("backup FILE|DIR", "copy the state and the audit trail of a running toolgate", func(ctx context.Context, args []string) error { return e.backup(ctx, args[0]) })
}

func restoreCommand(e *env) *cobra.Command {
	return command("restore FILE|DIR", "make a state directory of a backup", func(ctx context.Context, args []string) error { return e.restore(ctx, args[0]) })
}

// isArchive reports whether a name is that of a tar file; any other is a directory's.
func isArchive(name string) bool { return strings.HasSuffix(name, ".tar") }

// backup copies the state directory to a new tar file or directory. It is consistent
// without stopping anything: the store is one snapshot, and the trail, copied after it,
// has every record of what the snapshot contains. Snapshots of the standard tools' data come
// last. Keys are never in it, and neither is the database of toolgate.store.
func (e *env) backup(ctx context.Context, to string) (err error) {
	cfg, err := e.stateConfig()
	if err != nil {
		return err
	}
	if _, err := os.Lstat(to); err == nil {
		return usage(fmt.Errorf("writing backup: %s exists\nhint: name a new file or directory", to))
	}
	draft, err := os.MkdirTemp(filepath.Dir(filepath.Clean(to)), ".backup-*")
	if err != nil {
		return fmt.Errorf("writing backup: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(draft)) }() // nothing is left when it got its name
	content := filepath.Join(draft, "state")
	if err = os.Mkdir(content, 0o700); err == nil && cfg.Store == "" {
		err = e.withStore(ctx, func(db *store.DB) error { return db.Snapshot(ctx, filepath.Join(content, "state.db")) })
	}
	bar := e.progress(false)
	trail, artifacts := app.TrailDir(cfg.State), filepath.Join(cfg.State, "artifacts")
	copied := bar.Count("copying", progress.Size(trail, artifacts))
	if err == nil {
		err = audit.Copy(app.TrailDir(content), trail, copied)
	}
	if err == nil {
		err = copyTree(filepath.Join(content, "artifacts"), artifacts, copied)
	}
	if err == nil {
		err = copyTools(ctx, filepath.Join(content, "tools"), filepath.Join(cfg.State, "tools"))
	}
	if err == nil && isArchive(to) {
		content, err = archive(draft, content, bar.Count("packing", progress.Size(content)))
	}
	if err == nil {
		err = os.Rename(content, to)
	}
	bar.End()
	if err != nil {
		return fmt.Errorf("writing backup: %w", err)
	}
	report := withDatabase(cfg, map[string]string{"backup": to})
	if dirs := elsewhere(cfg); len(dirs) > 0 {
		report["elsewhere"] = strings.Join(dirs, ", ")
	}
	return e.Print("backup", report)
}

// copyTools copies what the standard tools keep in a directory, which may be missing.
func copyTools(ctx context.Context, to, from string) error {
	files, err := fs.Glob(os.DirFS(from), "*.db")
	if err != nil || len(files) == 0 {
		return err
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	for _, file := range files {
		if err := store.Copy(ctx, filepath.Join(from, file), filepath.Join(to, file)); err != nil {
			return err
		}
	}
	return nil
}

// elsewhere returns the directories outside the state directory in which standard tools of
// the configuration keep data.
func elsewhere(cfg *config.Config) (dirs []string) {
	for i := range cfg.Servers {
		if dir := toolsFlagsOf(&cfg.Servers[i]).Dir; dir != "" {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// withDatabase adds the database to a report about a state that is there in part.
func withDatabase(cfg *config.Config, report map[string]string) map[string]string {
	if cfg.Store != "" {
		report["database"] = store.Redact(cfg.Store)
	}
	return report
}

// copyTree copies a directory that may be missing.
func copyTree(to, from string, copied io.Writer) error {
	if _, err := os.Stat(from); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return os.CopyFS(to, progress.FS(os.DirFS(from), copied))
}

// archive writes the files of a directory to a tar file below draft.
func archive(draft, dir string, packed io.Writer) (file string, err error) {
	file = filepath.Join(draft, "state.tar")
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	w := tar.NewWriter(out)
	err = w.AddFS(progress.FS(os.DirFS(dir), packed))
	return file, errors.Join(err, w.Close(), out.Sync(), out.Close())
}

// restore makes the state directory of a backup. Calls that were approved or running in
// the backup may have run since: the next start makes their tickets unknown. With
// toolgate.store, those are the tickets of the database, which its own tools restored.
func (e *env) restore(ctx context.Context, from string) error {
	cfg, err := e.stateConfig()
	if err != nil {
		return err
	}
	state := cfg.State
	if left, err := os.ReadDir(state); len(left) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return usage(errors.Join(fmt.Errorf("restoring: %s is not empty\nhint: stop toolgate and move the directory away first", state), err))
	}
	if err := os.MkdirAll(state, 0o700); err != nil {
		return fmt.Errorf("restoring: %w", err)
	}
	bar := e.progress(false)
	if copied := bar.Count("restoring", progress.Size(from)); isArchive(from) {
		err = extract(state, from, copied)
	} else {
		err = os.CopyFS(state, progress.FS(os.DirFS(from), copied))
	}
	bar.End()
	if err == nil {
		err = e.withStore(ctx, func(db *store.DB) error {
			return db.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, "UPDATE approval_clock SET restored = 1")
				return err
			})
		})
	}
	if err != nil {
		return fmt.Errorf("restoring: %w\nhint: remove %s before you try again", err, state)
	}
	report := withDatabase(cfg, map[string]string{"state": state})
	journal := filepath.Join(state, "tools", "chain.db")
	if _, err := os.Stat(journal); err == nil {
		report["journal"] = journal
	}
	return e.Print("restored", report)
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
		if err := extractFile(root, h.Name, r); err != nil {
			return err
		}
	}
}

func extractFile(root *os.Root, name string, content io.Reader) error {
	if err := root.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Sync(), f.Close())
}
