package store

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
)

//go:embed migrations/*.sql
var embedded embed.FS

// Migrations returns the migrations of state.db, for [Open]: files NNNN_name.sql at the
// root, numbered from 0001 without a gap. A released file is never edited: a change is
// a new file.
func Migrations() fs.FS {
	sub, err := fs.Sub(embedded, "migrations")
	if err != nil {
		panic(err) // the name above is a constant
	}
	return sub
}

const applicationID = 0x746f6c67 // "tolg", in the header of every toolgate state file

// header turns an empty file into a toolgate state file. The journal mode stays with
// the file.
const header = `PRAGMA journal_mode = WAL;
PRAGMA application_id = 0x746f6c67;
CREATE TABLE schema_version (version INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT;`

type migration struct{ name, sql string }

var migrationName = regexp.MustCompile(`^[0-9]{4}_[a-z0-9_]+\.sql$`)

// readMigrations returns the migrations in order. Names that are not 0001_name.sql,
// 0002_name.sql and so on are an error.
func readMigrations(from fs.FS) ([]migration, error) {
	names, err := fs.Glob(from, "*")
	if err != nil {
		return nil, fmt.Errorf("reading migrations: %w", err)
	}
	var steps []migration
	for i, name := range names {
		number := fmt.Sprintf("%04d_", i+1)
		if !migrationName.MatchString(name) || !strings.HasPrefix(name, number) {
			return nil, fmt.Errorf("reading migrations: %q is not named %sname.sql", name, number)
		}
		text, err := fs.ReadFile(from, name)
		if err != nil {
			return nil, fmt.Errorf("reading migrations: %w", err)
		}
		steps = append(steps, migration{name, string(text)})
	}
	return steps, nil
}

// migrate applies the migrations that the file lacks, all or none, in a transaction
// that holds the write lock: a second process waits, and then finds them applied.
func migrate(ctx context.Context, db *sql.DB, steps []migration) error {
	return transact(ctx, db, func(ctx context.Context, tx *sql.Tx) (err error) {
		for done := false; !done && err == nil; {
			done, err = migrateOne(ctx, tx, steps)
		}
		return err
	})
}

// migrateOne applies the first migration that is missing; done means that none is.
func migrateOne(ctx context.Context, tx *sql.Tx, steps []migration) (done bool, err error) {
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
	if _, err = tx.ExecContext(ctx, step.sql); err == nil {
		_, err = tx.ExecContext(ctx, "INSERT INTO schema_version VALUES (?, ?)", have+1, step.name)
	}
	if err != nil {
		return false, fmt.Errorf("applying migration %s: %w", step.name, err)
	}
	return false, nil
}
