package main

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
	"github.com/toolgate/toolgate/internal/app"
	"github.com/toolgate/toolgate/internal/progress"
	"github.com/toolgate/toolgate/internal/store"
)

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
// has every record of what the snapshot contains. Keys are never in it.
func (e *env) backup(ctx context.Context, to string) (err error) {
	state, err := e.stateDir()
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
	if err = os.Mkdir(content, 0o700); err == nil {
		err = e.withStore(ctx, func(db *store.DB) error { return db.Snapshot(ctx, filepath.Join(content, "state.db")) })
	}
	bar := e.progress(false)
	trail, artifacts := app.TrailDir(state), filepath.Join(state, "artifacts")
	copied := bar.Count("copying", progress.Size(trail, artifacts))
	if err == nil {
		err = audit.Copy(app.TrailDir(content), trail, copied)
	}
	if err == nil {
		err = copyTree(filepath.Join(content, "artifacts"), artifacts, copied)
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
	return e.Print("backup", map[string]string{"backup": to})
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
// the backup may have run since: the next start makes their tickets unknown.
func (e *env) restore(ctx context.Context, from string) error {
	state, err := e.stateDir()
	if err != nil {
		return err
	}
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
	return e.Print("restored", map[string]string{"state": state})
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
