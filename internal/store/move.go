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
	"reflect"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/files"
)

// ErrNotEmpty is in the chain of Move's error when the database has a state already.
var ErrNotEmpty = errors.New("the database is not empty")

const moveTimeout = time.Hour

// Move copies the state in the file at path to the database at a URL, in one transaction,
// and returns the rows of each table. Every row is compared as the server has stored it,
// and the rows of each table are counted. Then the file gets the suffix [Moved]. No other
// process may have the file open (ErrInUse), and the database must not have a state
// (ErrNotEmpty). After an error both are as they were, except with ErrOutcome.
func Move(ctx context.Context, path, address string) (rows map[string]int, err error) {
	db, err := Open(ctx, path, Migrations()) // applies what an older version lacks
	if err != nil {
		return nil, err
	}
	if err := db.Close(); err != nil {
		return nil, err
	}
	to, err := OpenPostgres(ctx, address, PostgresMigrations())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	alive, err := SweepInstances(filepath.Join(filepath.Dir(path), instancesDir))
	if err != nil {
		return nil, err
	}
	if len(alive) > 0 {
		return nil, fmt.Errorf("moving state file %s: %w by %s", path, ErrInUse, strings.Join(alive, ", "))
	}
	from, err := pool(path, 1, url.Values{"_txlock": {"immediate"}, "_pragma": {"locking_mode(exclusive)"}})
	if err != nil {
		return nil, err
	}
	var busy, pages, done int
	err = from.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &pages, &done)
	if err == nil && busy != 0 {
		err = fmt.Errorf("%w by another process", ErrInUse)
	}
	if err == nil {
		rows, err = moveInto(ctx, from, to, path)
	}
	if err = errors.Join(err, from.Close()); err != nil {
		return nil, fmt.Errorf("moving state file %s: %w", path, inUse(err, nil))
	}
	for _, rest := range []string{"-wal", "-shm"} { // empty since the checkpoint
		if err := os.Remove(path + rest); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("moving state file %s: %w", path, err)
		}
	}
	return rows, files.SyncDir(filepath.Dir(path))
}

// moveInto copies the state, and renames the file while nobody can write to it.
func moveInto(ctx context.Context, from *sql.DB, to *DB, path string) (rows map[string]int, err error) {
	err = lite.transact(ctx, from, func(ctx context.Context, source *sql.Tx) error {
		err := to.UpdateWithin(ctx, moveTimeout, func(ctx context.Context, target *sql.Tx) error {
			rows, err = moveTables(ctx, source, target)
			return err
		})
		if err == nil {
			err = os.Rename(path, path+Moved)
		}
		return err
	})
	return rows, err
}

// moveTables copies every table, those first that others refer to.
func moveTables(ctx context.Context, source, target *sql.Tx) (map[string]int, error) {
	tables, err := Select(ctx, source, func(name *string) []any { return []any{name} }, `SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name <> 'schema_version'
 ORDER BY EXISTS (SELECT 1 FROM pragma_foreign_key_list(sqlite_master.name)), name`)
	if err != nil {
		return nil, err
	}
	var changes int
	if err := target.QueryRowContext(ctx, "SELECT changes FROM approval_clock").Scan(&changes); err != nil || changes > 0 {
		return nil, errors.Join(err, ErrNotEmpty)
	}
	if _, err := target.ExecContext(ctx, "DELETE FROM approval_clock"); err != nil {
		return nil, err
	}
	rows := map[string]int{}
	for _, table := range tables {
		if rows[table], err = moveTable(ctx, source, target, table); err != nil {
			return nil, fmt.Errorf("table %s: %w", table, err)
		}
	}
	return rows, advanceNumbers(ctx, target)
}

// moveTable copies the rows of one table, and compares each with what was stored.
func moveTable(ctx context.Context, source, target *sql.Tx, table string) (moved int, err error) {
	var have int
	if err := target.QueryRowContext(ctx, "SELECT count(*) FROM "+table).Scan(&have); err != nil || have > 0 {
		return 0, errors.Join(err, ErrNotEmpty)
	}
	found, err := source.QueryContext(ctx, "SELECT * FROM "+table)
	if err != nil {
		return 0, err
	}
	defer found.Close()
	columns, err := found.Columns()
	if err != nil {
		return 0, err
	}
	names := `"` + strings.Join(columns, `", "`) + `"`
	insert := fmt.Sprintf("INSERT INTO %s (%s) VALUES (?%s) RETURNING %s", table, names, strings.Repeat(", ?", len(columns)-1), names)
	for found.Next() {
		row, stored := make([]any, len(columns)), make([]any, len(columns))
		if err := found.Scan(places(row)...); err != nil {
			return 0, err
		}
		if err := target.QueryRowContext(ctx, insert, row...).Scan(places(stored)...); err != nil {
			return 0, err
		}
		if !reflect.DeepEqual(row, stored) {
			return 0, fmt.Errorf("row %d was not stored as it is", moved+1)
		}
		moved++
	}
	err = errors.Join(found.Err(), found.Close())
	if err == nil {
		err = target.QueryRowContext(ctx, "SELECT count(*) FROM "+table).Scan(&have)
	}
	if err == nil && have != moved {
		err = fmt.Errorf("%d rows were stored, want %d", have, moved)
	}
	return moved, err
}

func places(values []any) []any {
	at := make([]any, len(values))
	for i := range values {
		at[i] = &values[i]
	}
	return at
}

// advanceNumbers continues the ascending numbers after those that were copied.
func advanceNumbers(ctx context.Context, target *sql.Tx) error {
	type column struct{ table, name string }
	numbered, err := Select(ctx, target, func(c *column) []any { return []any{&c.table, &c.name} },
		"SELECT table_name, column_name FROM information_schema.columns WHERE is_identity = 'YES' AND table_schema = current_schema()")
	for _, c := range numbered {
		if err == nil {
			_, err = target.ExecContext(ctx, fmt.Sprintf("SELECT setval(pg_get_serial_sequence('%s', '%s'), coalesce(max(%s), 0) + 1, false) FROM %s", c.table, c.name, c.name, c.table))
		}
	}
	if err == nil {
		_, err = target.ExecContext(ctx, "SELECT setval('approval_changes', changes + 1, false) FROM approval_clock")
	}
	return err
}
