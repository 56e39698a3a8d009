package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strconv"
)

//go:embed migrations/*.sql
var embedded embed.FS

// Migrations are the tables of state.db, for [Open]: files NNNN_name.sql at
// the root, numbered from 0001 without a gap. A file that was released is
// never edited: a change is a new file.
func Migrations() fs.FS {
	sub, err := fs.Sub(embedded, "migrations")
	if err != nil {
		panic(err) // the name above is a constant
	}
	return sub
}

const applicationID = 0x746f6c67 // "tolg", in the header of every file made here

// header makes an empty file one of ours. The journal mode stays with the file.
const header = `PRAGMA journal_mode = WAL;
PRAGMA application_id = 0x746f6c67;
CREATE TABLE schema_version (version INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT;`

type migration struct {
	version   int
	name, sql string
}

var migrationName = regexp.MustCompile(`^([0-9]{4})_[a-z0-9_]+\.sql$`)

// readMigrations gives the steps in order, or an error when the names are not
// 0001, 0002, ….
func readMigrations(from fs.FS) ([]migration, error) {
	entries, err := fs.ReadDir(from, ".")
	if err != nil {
		return nil, fmt.Errorf("reading migrations: %w", err)
	}
	var steps []migration
	for _, e := range entries {
		m := migrationName.FindStringSubmatch(e.Name())
		if m == nil {
			return nil, fmt.Errorf("reading migrations: %q is not named NNNN_name.sql", e.Name())
		}
		if n, _ := strconv.Atoi(m[1]); n != len(steps)+1 {
			return nil, fmt.Errorf("reading migrations: %q should have number %04d", e.Name(), len(steps)+1)
		}
		text, err := fs.ReadFile(from, path.Join(".", e.Name()))
		if err != nil {
			return nil, fmt.Errorf("reading migrations: %w", err)
		}
		steps = append(steps, migration{version: len(steps) + 1, name: e.Name(), sql: string(text)})
	}
	return steps, nil
}

// migrate applies what the file lacks, each step in a transaction of its own
// that holds the write lock: a second process waits, and then finds it done.
func migrate(ctx context.Context, db *sql.DB, steps []migration) error {
	for {
		done, err := migrateOne(ctx, db, steps)
		if done || err != nil {
			return err
		}
	}
}

// migrateOne applies the first step that is missing; done means none was.
func migrateOne(ctx context.Context, db *sql.DB, steps []migration) (done bool, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer func() {
		if rollback := tx.Rollback(); !errors.Is(rollback, sql.ErrTxDone) {
			err = errors.Join(err, rollback)
		}
	}()
	var have int
	if err := tx.QueryRowContext(ctx, "SELECT coalesce(max(version), 0) FROM schema_version").Scan(&have); err != nil {
		return false, err
	}
	if have > len(steps) {
		return false, fmt.Errorf("%w: it has schema %d, this version knows %d", ErrNewer, have, len(steps))
	}
	if have == len(steps) {
		return true, nil
	}
	step := steps[have]
	if _, err := tx.ExecContext(ctx, step.sql); err != nil {
		return false, fmt.Errorf("applying migration %s: %w", step.name, err)
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO schema_version VALUES (?, ?)", step.version, step.name); err != nil {
		return false, fmt.Errorf("applying migration %s: %w", step.name, err)
	}
	return false, tx.Commit()
}
