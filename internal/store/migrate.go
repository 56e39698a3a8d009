package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
)

//go:embed migrations/*.sql
var embedded embed.FS

// whole makes in an empty file what the first migrations of state.db make one after the
// other, in a fifth of their time. Its first line has their number and digest; a test writes it.
//
//go:embed whole.sql
var whole string

// Migrations returns the migrations of state.db, for [Open]: files NNNN_name.sql at the
// root, numbered from 0001 without a gap. A released file is never edited: a change is
// a new file.
//
// The first line of a file is a comment that says whether older versions may go on
// using the database, and why:
//
//	-- expand: older versions ignore the new table
//	-- contract: older versions would not check the new column
//
// An expansion adds tables, indexes, or columns that have a default; everything that
// older versions read and write keeps its meaning. Any other migration is a contraction.
func Migrations() fs.FS { return Folder(embedded, "migrations") }

// Folder returns the subtree of files at the path name, which is a constant. It panics when name is
// no valid path.
func Folder(files fs.FS, name string) fs.FS {
	sub, err := fs.Sub(files, name)
	if err != nil {
		panic(err) // names are constants
	}
	return sub
}

const applicationID = 0x746f6c67 // "tolg", in the header of every toolgate state file

// header turns an empty file into a toolgate state file. The journal mode stays with
// the file.
const header = `PRAGMA journal_mode = WAL;
PRAGMA application_id = 0x746f6c67;
CREATE TABLE schema_version (version INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT;`

type migration struct {
	name, sql string
	contracts bool // older versions must not use the file any longer
}

var (
	migrationName = regexp.MustCompile(`^[0-9]{4}_[a-z0-9_]+\.sql$`)
	migrationKind = regexp.MustCompile(`^-- (expand|contract): .`)
)

// readMigrations returns the migrations in order. Names that are not 0001_name.sql,
// 0002_name.sql and so on are an error, and so is a first line of another form.
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
		kind := migrationKind.FindSubmatch(text)
		if kind == nil {
			return nil, fmt.Errorf(`reading migrations: the first line of %s is neither "-- expand: …" nor "-- contract: …"`, name)
		}
		steps = append(steps, migration{name, string(text), string(kind[1]) == "contract"})
	}
	return steps, nil
}

// oldestUser returns the lowest schema whose versions may use a file with all of steps.
func oldestUser(steps []migration) int {
	oldest := 1
	for i, s := range steps {
		if s.contracts {
			oldest = i + 1
		}
	}
	return oldest
}

// schema returns the number of migrations that the file has. A file with more than steps
// is ErrNewer, unless its user_version, the lowest schema whose versions may use it,
// allows it. Versions that wrote no user_version made no promise.
func (e *engine) schema(ctx context.Context, q rowQuerier, steps []migration) (have int, err error) {
	var oldest int
	if err := q.QueryRowContext(ctx, "SELECT coalesce(max(version), 0) FROM schema_version").Scan(&have); err != nil {
		return 0, err
	}
	if err := q.QueryRowContext(ctx, e.oldest).Scan(&oldest); err != nil {
		return 0, err
	}
	if have <= len(steps) || oldest > 0 && oldest <= len(steps) {
		return have, nil
	}
	return 0, fmt.Errorf("%w: it has schema %d and needs at least schema %d, this version has schema %d", ErrNewer, have, max(oldest, 1), len(steps))
}

// apply applies the migrations after the first have ones in a transaction.
func (e *engine) apply(ctx context.Context, tx *sql.Tx, have int, steps []migration) error {
	for i, step := range steps[have:] {
		_, err := tx.ExecContext(ctx, step.sql)
		if err == nil {
			_, err = tx.ExecContext(ctx, "INSERT INTO schema_version (version, name) VALUES (?, ?)", have+i+1, step.name)
		}
		if err != nil {
			return fmt.Errorf("applying migration %s: %w", step.name, err)
		}
	}
	_, err := tx.ExecContext(ctx, fmt.Sprintf(e.setOldest, oldestUser(steps)))
	return err
}

// fill applies all migrations to an empty file.
func (e *engine) fill(ctx context.Context, tx *sql.Tx, steps []migration) error {
	have := 0
	if n := wholeOf(steps); n > 0 {
		if _, err := tx.ExecContext(ctx, whole); err != nil {
			return fmt.Errorf("applying the first %d migrations: %w", n, err)
		}
		have = n
	}
	return e.apply(ctx, tx, have, steps)
}

// wholeOf returns how many of steps whole stands for; 0 = they are others.
func wholeOf(steps []migration) int {
	var n int
	var digest string
	if _, err := fmt.Sscanf(whole, "-- %d migrations, %s", &n, &digest); err != nil || n > len(steps) || digest != digestOf(steps[:n]) {
		return 0
	}
	return n
}

// digestOf returns the digest of migrations, in hex.
func digestOf(steps []migration) string {
	h := sha256.New()
	for _, s := range steps {
		fmt.Fprintf(h, "%q %q\n", s.name, s.sql)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// applyAlone applies the migrations after the first have ones to a file, all or none.
func applyAlone(ctx context.Context, db *sql.DB, have int, steps []migration) error {
	return lite.transact(ctx, db, func(ctx context.Context, tx *sql.Tx) error { return lite.apply(ctx, tx, have, steps) })
}

// rowQuerier is a [sql.DB] or a [sql.Tx].
type rowQuerier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}
