// Package store opens the databases that hold the state which must survive a crash:
// one writer connection, a pool of readers, and numbered migrations. A database is an
// SQLite file, or one of a PostgreSQL server that several machines share. The only tables
// that the package knows are its own; the other packages bring theirs as migrations,
// write with [DB.Update] and read with [Select] and [DB.View]. What a change reads and
// nobody else may change meanwhile, it locks with [DB.Lock].
//
// Statements are written once, in the SQL that both engines have: parameters are question
// marks, and a question mark is nothing else; truth values are the integers 0 and 1, also
// in conditions (? = 1); the elements of a JSON array are json_each(text), with the column
// value alone; ON CONFLICT names its columns, and DO UPDATE the table of each column that
// it reads. INDEXED BY is for SQLite.
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
	"syscall"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/toolgate/toolgate/internal/files"
)

// ErrCorrupt is in the chain of Open's error when the file exists but is not a database
// that can be trusted. Open does not change the file.
var ErrCorrupt = errors.New("state file is damaged")

// ErrNewer is in the chain of Open's error when a later version wrote the file, with
// migrations that this version does not have.
var ErrNewer = errors.New("state file is from a newer version")

// ErrBusy is in the chain of an error when a lock was not free in time. Nothing was written.
var ErrBusy = errors.New("the state is busy")

// Moved is what follows the name of a file whose content was moved to a server.
const Moved = ".moved"

const (
	busyTimeout = 10 * time.Second // how long a statement waits for another process
	readers     = 4                // connections of the read pool
	writers     = 4                // connections of a server that change: one that waits for a lock holds up no others
	beats       = 4                // connections that listen, for tickets, revocations and stops, and one for leases
	// writeTimeout bounds a transaction that no caller can cancel.
	writeTimeout = 15 * time.Second
)

// engine is what differs between the databases.
type engine struct {
	remote    bool   // a commit can have another outcome than its error says
	oldest    string // reads the lowest schema whose versions may use the database
	setOldest string // writes it; a format of a number
	view      sql.TxOptions
}

var lite = engine{oldest: "PRAGMA user_version", setOldest: "PRAGMA user_version = %d", view: sql.TxOptions{ReadOnly: true}}

// DB is one open database. It is safe for concurrent use, and so are two
// DBs on one database, in one process or in two.
type DB struct {
	// Write is used through Update. With a file it has one connection, whose transactions
	// hold the lock of the whole file.
	Write *sql.DB
	// Read is a pool whose connections refuse to write.
	Read *sql.DB
	// Copy is the file with the database as it was before Open applied migrations; ""
	// when it applied none.
	Copy string

	engine engine
	path   string
	file   os.FileInfo // of path, as it was opened; nil on a server
	beats  *sql.DB     // renews leases and listens on a server; nil with a file
	lease  time.Duration
}

// Open opens the database at path, creating the file when it does not exist, and
// applies the migrations that it lacks (see [Migrations] for their form), after a copy of
// the file. A new file appears only when it is complete, so that an empty, truncated or
// foreign file is an error (ErrCorrupt) and never a fresh start. The file is readable by
// its owner only (0600), and so is a directory that Open creates for it (0700).
func Open(ctx context.Context, path string, migrations fs.FS) (*DB, error) {
	steps, err := readMigrations(migrations)
	if err != nil {
		return nil, err
	}
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("opening state file: %w", err)
	}
	if err := ensure(ctx, path, steps); err != nil {
		return nil, explain("creating", path, err, steps)
	}
	db, have, err := open(ctx, path, steps)
	if err == nil && have < len(steps) {
		var copied string
		if err = db.Close(); err == nil {
			copied, err = upgrade(ctx, path, steps)
		}
		if err == nil {
			db, _, err = open(ctx, path, steps)
		}
		if err == nil {
			db.Copy = copied
		}
	}
	if err != nil {
		return nil, explain("opening", path, err, steps)
	}
	return db, nil
}

// open opens a file that exists, and returns how many migrations it has.
func open(ctx context.Context, path string, steps []migration) (db *DB, have int, err error) {
	if db, err = connect(path); err != nil {
		return nil, 0, err
	}
	if err = check(ctx, db.Write); err == nil {
		have, err = lite.schema(ctx, db.Write, steps)
	}
	if err == nil {
		db.file, err = os.Stat(path)
	}
	if err != nil {
		_ = db.Close() // the first error says more
		return nil, 0, err
	}
	return db, have, nil
}

// InPlace reports whether the file is still where it was opened: it was neither deleted,
// moved nor replaced by another. A database on a server always is.
func (db *DB) InPlace() bool {
	if db.file == nil {
		return true
	}
	now, err := os.Stat(db.path)
	return err == nil && os.SameFile(db.file, now)
}

// Memory opens an empty database that exists in memory until its Close. It has one
// connection, so its queries run one after the other.
func Memory() (*sql.DB, error) {
	c, err := sqlite.NewConnector(":memory:")
	if err != nil {
		return nil, fmt.Errorf("opening database in memory: %w", err)
	}
	db := sql.OpenDB(c)
	db.SetMaxOpenConns(1)
	return db, nil
}

// Path returns the absolute path of the file, "" for a database on a server.
func (db *DB) Path() string { return db.path }

// Snapshot writes a consistent copy of the database to a new file, while others may write
// to the database. The database of a server is for its own tools.
func (db *DB) Snapshot(ctx context.Context, to string) error {
	if db.path == "" {
		return errors.New("copying state: it is in a PostgreSQL database\nhint: copy it with pg_dump")
	}
	to, err := filepath.Abs(to)
	if err == nil {
		err = snapshot(ctx, db.Write, to)
	}
	if err != nil {
		return fmt.Errorf("copying state file: %w", err)
	}
	return nil
}

// Copy is Snapshot for a state file of any version, which it leaves as it is.
func Copy(ctx context.Context, from, to string) error {
	from, err := filepath.Abs(from)
	if err != nil {
		return fmt.Errorf("copying state file: %w", err)
	}
	db, err := connect(from)
	if err != nil {
		return fmt.Errorf("copying state file: %w", err)
	}
	return errors.Join(db.Snapshot(ctx, to), db.Close())
}

// snapshot is Snapshot; the name must be absolute. When it returns, the copy is on disk.
func snapshot(ctx context.Context, db *sql.DB, to string) error {
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err = db.ExecContext(ctx, "VACUUM INTO ?", to); err != nil {
		return errors.Join(err, f.Close())
	}
	written, err := pool(to, 1, url.Values{})
	if err == nil {
		_, err = written.ExecContext(ctx, "PRAGMA journal_mode = WAL")
		err = errors.Join(err, written.Close())
	}
	return errors.Join(err, f.Sync(), f.Close())
}

// Close closes the pools and waits for running statements.
func (db *DB) Close() error {
	err := errors.Join(db.Read.Close(), db.Write.Close())
	if db.beats != nil {
		err = errors.Join(err, db.beats.Close())
	}
	if err != nil {
		return fmt.Errorf("closing state: %w", err)
	}
	return nil
}

// ensure creates the file when it does not exist: complete under another name first,
// then linked into place, so that of two processes one wins and neither sees half a
// file.
func ensure(ctx context.Context, path string, steps []migration) error {
	if info, err := os.Stat(path); err == nil {
		if info.Mode().Perm()&0o077 != 0 {
			return os.Chmod(path, 0o600)
		}
		return nil
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	draft, err := os.MkdirTemp(dir, ".new-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(draft) //nolint:errcheck // a leftover draft is never read
	file := filepath.Join(draft, "draft.db")
	if err := build(ctx, file, steps); err != nil {
		return err
	}
	if err := os.Link(file, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return files.SyncDir(dir)
}

// build writes a whole new database to file and closes it. The file is synced once,
// when it is complete: nobody reads a draft.
func build(ctx context.Context, file string, steps []migration) (err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	db, err := connect(file)
	if err != nil {
		return err
	}
	if _, err = db.Write.ExecContext(ctx, "PRAGMA synchronous = OFF;"+header); err == nil {
		err = lite.transact(ctx, db.Write, func(ctx context.Context, tx *sql.Tx) error { return lite.fill(ctx, tx, steps) })
	}
	return errors.Join(err, db.Close(), f.Sync())
}

// connect opens the two pools without touching the file.
func connect(path string) (*DB, error) {
	write, err := pool(path, 1, url.Values{"_txlock": {"immediate"}})
	if err != nil {
		return nil, err
	}
	read, err := pool(path, readers, url.Values{"_query_only": {"1"}})
	if err != nil {
		return nil, errors.Join(err, write.Close())
	}
	return &DB{Write: write, Read: read, path: path, engine: lite}, nil
}

func pool(path string, size int, q url.Values) (*sql.DB, error) {
	q.Set("mode", "rw") // a file that vanished is an error, not a new one
	q.Set("_busy_timeout", fmt.Sprint(busyTimeout.Milliseconds()))
	q.Set("_synchronous", "FULL")
	q.Set("_foreign_keys", "1")
	q.Set("_defensive", "1")
	q.Set("_dqs", "0")
	q.Add("_pragma", "secure_delete(1)") // what is deleted is not left in the file
	q.Set("_error_rc", "1")
	dsn := url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}
	c, err := sqlite.NewConnector(dsn.String())
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(c)
	db.SetMaxOpenConns(size)
	db.SetMaxIdleConns(size)
	return db, nil
}

// check refuses a file that is damaged or that this package did not create. It
// writes nothing.
func check(ctx context.Context, db *sql.DB) error {
	var id int64
	if err := db.QueryRowContext(ctx, "PRAGMA application_id").Scan(&id); err != nil {
		return err
	}
	if id != applicationID {
		return fmt.Errorf("%w: it is not a toolgate state file", ErrCorrupt)
	}
	var verdict string
	if err := db.QueryRowContext(ctx, "PRAGMA integrity_check(1)").Scan(&verdict); err != nil {
		return err
	}
	if verdict != "ok" {
		return fmt.Errorf("%w: %s", ErrCorrupt, verdict)
	}
	return nil
}

// explain adds the file to an error and, where a person can help, a hint.
func explain(doing, path string, err error, steps []migration) error {
	if fault, ok := errors.AsType[*sqlite.Error](err); ok && !errors.Is(err, ErrCorrupt) {
		switch fault.Code() & 0xff {
		case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT:
			err = fmt.Errorf("%w: %w", ErrCorrupt, err)
		case sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY:
			err = fmt.Errorf("%w: %w", fs.ErrPermission, err)
		case sqlite3.SQLITE_FULL:
			err = fmt.Errorf("%w: %w", syscall.ENOSPC, err)
		}
	}
	hint := ""
	switch {
	case errors.Is(err, ErrCorrupt):
		hint = "\nhint: restore it from a backup, or move it (and its -wal and -shm files) aside to start again without the held calls in it"
	case errors.Is(err, ErrNewer):
		hint = "\nhint: run the toolgate version that wrote it, or a later one"
		if before := lastUsable(path, len(steps)); before != "" {
			hint += "; or go back to " + before + ", the copy from before the upgrade"
		}
	case errors.Is(err, ErrInUse):
		hint = "\nhint: stop the other process first, then start this version"
	case errors.Is(err, syscall.ENOSPC):
		hint = "\nhint: make room on the disk: an upgrade first writes a copy of the file; nothing was changed"
	case errors.Is(err, fs.ErrPermission):
		hint = "\nhint: the state directory must belong to the user that runs toolgate"
	}
	return fmt.Errorf("%s state file %s: %w%s", doing, path, err, hint)
}

// Update runs do in one transaction, and commits it when do returns nil. With a file, the
// transaction holds the lock of all writers. With a server, others change the database
// meanwhile: what do reads and nobody else may change, it locks before with Lock. A
// transaction that has begun completes whether or not ctx ends, within 15 s. ErrOutcome
// reports that the commit may have happened.
func (db *DB) Update(ctx context.Context, do func(context.Context, *sql.Tx) error) error {
	return db.UpdateWithin(ctx, writeTimeout, do)
}

// UpdateWithin is Update with another time for the transaction, the wait for its turn
// included.
func (db *DB) UpdateWithin(ctx context.Context, within time.Duration, do func(context.Context, *sql.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer stop()
	return db.engine.transact(ctx, db.Write, do)
}

// Exec executes one statement as Update does, and returns how many rows it has changed.
func (db *DB) Exec(ctx context.Context, statement string, args ...any) (changed int64, err error) {
	err = db.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
		done, err := tx.ExecContext(ctx, statement, args...)
		if err == nil {
			changed, err = done.RowsAffected()
		}
		return err
	})
	return changed, err
}

// View runs do in one transaction that only reads, in which the database does not change.
func (db *DB) View(ctx context.Context, do func(*sql.Tx) error) error {
	tx, err := db.Read.BeginTx(ctx, &db.engine.view)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // nothing was written
	return do(tx)
}

func (e *engine) transact(ctx context.Context, db *sql.DB, do func(context.Context, *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil && ended(ctx) {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	if err != nil {
		return err
	}
	if err := do(ctx, tx); err != nil {
		_ = tx.Rollback() // err says more; a transaction that does not end is undone with its connection
		return err
	}
	if err = tx.Commit(); err != nil && e.remote && (ended(ctx) || lost(err)) {
		return fmt.Errorf("%w: %w", ErrOutcome, err)
	}
	return err
}

// ended reports whether the time of a context is over. Connections take its deadline as
// their own, and may fail by it before the context itself has an error.
func ended(ctx context.Context) bool {
	deadline, limited := ctx.Deadline()
	return ctx.Err() != nil || limited && !time.Now().Before(deadline)
}

// Querier is a [sql.DB] or a [sql.Tx].
type Querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Select runs a query and returns a T for each row, in order; they are never nil without
// an error. fields returns the destinations of a row's columns in a T. The first error
// ends it and is returned alone.
func Select[T any](ctx context.Context, q Querier, fields func(*T) []any, query string, args ...any) ([]T, error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []T{}
	for rows.Next() {
		var row T
		if err := rows.Scan(fields(&row)...); err != nil {
			return nil, err
		}
		out = append(out, row)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return nil, err
	}
	return out, nil
}
