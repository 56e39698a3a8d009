package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// OpenDerived opens a database whose content can be made again from other files. Unlike Open, it
// does not read the whole file first, a power failure may undo the last changes, and there are no upgrades: the error
// for a file with other migrations is ErrNewer. See [RemoveDerived].
func OpenDerived(ctx context.Context, path string, migrations fs.FS) (*DB, error) {
	steps, err := readMigrations(migrations)
	if err != nil {
		return nil, err
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, fmt.Errorf("opening %s: %w", path, err)
	}
	var db *DB
	if err = ensure(ctx, path, steps); err == nil {
		db, err = connect(path)
	}
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", path, err)
	}
	var id int64
	have := 0
	if _, err = db.Write.ExecContext(ctx, "PRAGMA synchronous = NORMAL"); err == nil {
		err = db.Write.QueryRowContext(ctx, "PRAGMA application_id").Scan(&id)
	}
	if err == nil && id != applicationID {
		err = ErrCorrupt
	}
	if err == nil {
		have, err = lite.schema(ctx, db.Write, steps)
	}
	if err == nil && have != len(steps) {
		err = ErrNewer
	}
	if err == nil {
		db.file, err = os.Stat(path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening %s: %w", path, err), db.Close())
	}
	return db, nil
}

// RemoveDerived removes the database at path, of OpenDerived. Processes that have it open keep a file without a name:
// see [DB.InPlace].
func RemoveDerived(path string) error {
	for _, suffix := range []string{"-wal", "-shm", ""} {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing a damaged file: %w", err)
		}
	}
	return nil
}

// Damaged reports whether an error means that a file is not the database that it should be.
func Damaged(err error) bool {
	if fault, ok := errors.AsType[*sqlite.Error](err); ok {
		switch fault.Code() & 0xff {
		case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT:
			return true
		}
	}
	return errors.Is(err, ErrCorrupt) || errors.Is(err, ErrNewer)
}
