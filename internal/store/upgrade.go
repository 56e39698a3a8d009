package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/toolgate/toolgate/internal/files"
)

// ErrInUse is in the chain of Open's error when the file lacks a migration that older
// versions cannot go on with, while another process has the file open. Nothing was
// written.
var ErrInUse = errors.New("state file is in use")

const (
	instancesDir = "instances" // next to the file: locks of the processes that use it
	beforeInfix  = ".before-"  // state.db.before-0014 is the file before migration 0014
	copiesKept   = 3
)

// upgrade applies the migrations that the file lacks, after it has written a copy of the
// file, which it returns: "" when another process was first. One process at a time
// upgrades. A crash leaves the file as it was or upgraded; the next upgrade writes the
// copy again.
//
// With a contraction, nobody else may have the file open: SQLite's exclusive lock shows
// and keeps that, until the migrations are applied. Otherwise older versions write on
// meanwhile, and the copy may lack what they wrote last.
func upgrade(ctx context.Context, path string, steps []migration) (copied string, err error) {
	lock, err := lockUpgrade(path)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	have, err := schemaAt(ctx, path, steps)
	if err != nil || have >= len(steps) {
		return "", err
	}
	q, alone := url.Values{"_txlock": {"immediate"}}, oldestUser(steps) > have
	if alone {
		if err := unused(path, steps); err != nil {
			return "", err
		}
		q.Add("_pragma", "locking_mode(exclusive)")
	}
	db, err := pool(path, 1, q)
	if err != nil {
		return "", err
	}
	copied = fmt.Sprintf("%s%s%04d", path, beforeInfix, have+1)
	if err = replaceCopy(ctx, db, path+".new", copied); err == nil {
		err = applyAlone(ctx, db, have, steps)
	}
	if err = errors.Join(err, db.Close()); err != nil && alone {
		err = inUse(err, steps)
	}
	prune(path)
	return copied, err
}

// lockUpgrade waits until no other process upgrades the file.
func lockUpgrade(path string) (*os.File, error) {
	dir := filepath.Join(filepath.Dir(path), instancesDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "upgrade"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := files.Lock(lock); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// schemaAt is schema of the file at path.
func schemaAt(ctx context.Context, path string, steps []migration) (int, error) {
	db, err := pool(path, 1, url.Values{})
	if err != nil {
		return 0, err
	}
	have, err := lite.schema(ctx, db, steps)
	return have, errors.Join(err, db.Close())
}

// unused returns ErrInUse, with the names of the processes, when others serve from the
// file. Processes that only pass by, such as commands, have no instance: the exclusive
// lock shows them.
func unused(path string, steps []migration) error {
	alive, err := SweepInstances(filepath.Join(filepath.Dir(path), instancesDir))
	return errors.Join(err, inUseBy(alive, steps))
}

// inUseBy returns ErrInUse with the names of processes, nil when there are none.
func inUseBy(alive []string, steps []migration) error {
	if len(alive) == 0 {
		return nil
	}
	return fmt.Errorf("%w by %s: %s", ErrInUse, strings.Join(alive, ", "), contraction(steps))
}

// inUse makes ErrInUse of SQLite's error about the exclusive lock.
func inUse(err error, steps []migration) error {
	if fault, ok := errors.AsType[*sqlite.Error](err); ok && fault.Code()&0xff == sqlite3.SQLITE_BUSY {
		why := ""
		if steps != nil {
			why = ": " + contraction(steps)
		}
		return fmt.Errorf("%w by another process%s: %w", ErrInUse, why, err)
	}
	return err
}

// contraction says which migration keeps older versions out.
func contraction(steps []migration) string {
	return "versions before migration " + strings.TrimSuffix(steps[oldestUser(steps)-1].name, ".sql") + " cannot use it afterwards"
}

// replaceCopy writes a copy of the database to the file to, in place of an earlier one.
// The draft gets the name when it is complete.
func replaceCopy(ctx context.Context, db *sql.DB, draft, to string) error {
	err := os.Remove(draft) // of an upgrade that was killed
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = snapshot(ctx, db, draft)
	}
	if err == nil {
		err = os.Rename(draft, to)
	}
	if err != nil {
		_ = os.Remove(draft) // it may not exist
		return fmt.Errorf("copying it to %s before its upgrade: %w", to, err)
	}
	return files.SyncDir(filepath.Dir(to))
}

// copies returns the copies of the file that upgrades wrote, ordered by migration.
func copies(path string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	var found []string
	for _, e := range entries {
		number, ok := strings.CutPrefix(e.Name(), filepath.Base(path)+beforeInfix)
		if ok && len(number) == 4 {
			found = append(found, filepath.Join(filepath.Dir(path), e.Name()))
		}
	}
	slices.Sort(found)
	return found, err
}

// prune removes all copies but the newest. One that stays is removed at the next upgrade.
func prune(path string) {
	found, _ := copies(path)
	for _, old := range found[:max(0, len(found)-copiesKept)] {
		_ = os.Remove(old)
	}
}

// lastUsable returns the latest copy that a version with schema newest can use, "" when
// there is none.
func lastUsable(path string, newest int) string {
	found, _ := copies(path) // without a list there is none to name
	limit := fmt.Sprintf("%s%s%04d", path, beforeInfix, newest+1)
	for _, name := range slices.Backward(found) {
		if name <= limit {
			return name
		}
	}
	return ""
}
