package store_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"go.uber.org/goleak"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(upgraderVar); path != "" {
		upgradeSlowly(path)
		return
	}
	if address := os.Getenv(writerVar); address != "" {
		writeNumbers(address)
		return
	}
	code := postgres.Run(m)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// files are migrations from name and text.
func files(pairs ...string) fs.FS {
	out := fstest.MapFS{}
	for i := 0; i < len(pairs); i += 2 {
		out[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1])}
	}
	return out
}

const notes = "-- expand: the first table\nCREATE TABLE notes (text TEXT NOT NULL) STRICT; CREATE INDEX notes_text ON notes (text);"

var one = files("0001_notes.sql", notes)

func open(t testing.TB, path string, migrations fs.FS) *store.DB {
	t.Helper()
	db, err := store.Open(t.Context(), path, migrations)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func count(t testing.TB, db *sql.DB) (n int) {
	t.Helper()
	if err := db.QueryRow("SELECT count(*) FROM notes").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// written is a closed database with some pages of notes.
func written(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state.db")
	db, err := store.Open(t.Context(), path, one)
	if err != nil {
		t.Fatal(err)
	}
	for range 64 {
		if _, err := db.Write.Exec("INSERT INTO notes VALUES (?)", strings.Repeat("note ", 100)); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestOpenKeepsWhatWasWritten(t *testing.T) {
	path := written(t)
	if n := count(t, open(t, path, one).Read); n != 64 {
		t.Errorf("%d notes, want 64", n)
	}
}

func TestSettings(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "state.db"), one)
	for name, pool := range map[string]*sql.DB{"write": db.Write, "read": db.Read} {
		for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1", "busy_timeout": "10000"} {
			var got string
			if err := pool.QueryRow("PRAGMA " + pragma).Scan(&got); err != nil || got != want {
				t.Errorf("%s: %s is %q, %v; want %q", name, pragma, got, err, want)
			}
		}
	}
	if _, err := db.Read.Exec("INSERT INTO notes VALUES ('x')"); err == nil {
		t.Error("a reader wrote")
	}
}

// A transaction holds the write lock from its first moment.
func TestTransactionsAreImmediate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	first, second := open(t, path, one), open(t, path, one)
	tx, err := first.Write.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := second.Write.Exec("PRAGMA busy_timeout = 0"); err != nil {
		t.Fatal(err)
	}
	if other, err := second.Write.Begin(); err == nil {
		other.Rollback()
		t.Error("two transactions hold the write lock")
	}
}

func TestModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	path := filepath.Join(dir, "state.db")
	db := open(t, path, one)
	if _, err := db.Write.Exec("INSERT INTO notes VALUES ('x')"); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{dir: 0o700, path: 0o600, path + "-wal": 0o600, path + "-shm": 0o600} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", filepath.Base(name), got, want)
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 3 {
		t.Errorf("the directory has %v, %v; want the database and its two companions", left, err)
	}
}

func TestALooseModeIsTightened(t *testing.T) {
	path := written(t)
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	open(t, path, one)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestPathsWithOddNames(t *testing.T) {
	for _, name := range []string{"a?b=c.db", "50%.db", "a b#c.db", "ü&;.db"} {
		path := filepath.Join(t.TempDir(), name)
		open(t, path, one)
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestMigrations(t *testing.T) {
	path := written(t)
	two := files("0001_notes.sql", notes, "0002_more.sql", "-- contract: older versions leave it NULL\nALTER TABLE notes ADD COLUMN at INTEGER; UPDATE notes SET at = 1;")
	t.Run("what is missing is applied once", func(t *testing.T) {
		for range 2 {
			db := open(t, path, two)
			var sum int
			if err := db.Read.QueryRow("SELECT sum(at) FROM notes").Scan(&sum); err != nil || sum != 64 {
				t.Errorf("sum %d, %v", sum, err)
			}
		}
	})
	t.Run("a newer schema is refused", func(t *testing.T) {
		_, err := store.Open(t.Context(), path, one)
		if !errors.Is(err, store.ErrNewer) || !strings.Contains(err.Error(), "hint: ") || !strings.Contains(err.Error(), path) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("a step that fails leaves nothing of itself", func(t *testing.T) {
		path := written(t)
		bad := files("0001_notes.sql", notes, "0002_bad.sql", "-- expand: x\nCREATE TABLE half (x); INSERT INTO nowhere VALUES (1);")
		if _, err := store.Open(t.Context(), path, bad); err == nil || !strings.Contains(err.Error(), "0002_bad.sql") {
			t.Fatalf("error %v", err)
		}
		db := open(t, path, one)
		if _, err := db.Read.Exec("SELECT * FROM half"); err == nil {
			t.Error("half of the step is there")
		}
	})
	t.Run("a new file whose migrations fail does not appear", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "state.db")
		if _, err := store.Open(t.Context(), path, files("0001_bad.sql", "-- expand: x\nCREATE nonsense")); err == nil {
			t.Fatal("no error")
		}
		if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 0 {
			t.Errorf("left %v", left)
		}
	})
}

func TestMisnumberedMigrations(t *testing.T) {
	for _, bad := range []fs.FS{
		files("0002_b.sql", notes), files("0001_a.sql", notes, "0003_c.sql", notes), files("0001_a.sql", notes, "0001_b.sql", notes),
		files("1_a.sql", notes), files("0001_a.txt", notes), files("0001_A.sql", notes),
		files("0001_a.sql", ""), files("0001_a.sql", "-- extend: x\n"), files("0001_a.sql", "-- expand:\n"), files("0001_a.sql", "\n-- expand: x"),
	} {
		path := filepath.Join(t.TempDir(), "state.db")
		if _, err := store.Open(t.Context(), path, bad); err == nil {
			t.Errorf("%v was taken", bad)
		}
	}
}

func TestOwnMigrations(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "state.db"), store.Migrations())
	if _, err := db.Read.Exec("SELECT id FROM approvals"); err != nil {
		t.Error(err)
	}
}

func TestManyOpenAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	dbs := make([]*store.DB, 8)
	var all sync.WaitGroup
	for i := range dbs {
		all.Go(func() {
			db, err := store.Open(t.Context(), path, store.Migrations())
			if err != nil {
				t.Error(err)
				return
			}
			dbs[i] = db
		})
	}
	all.Wait()
	for _, db := range dbs {
		if db == nil {
			continue
		}
		if _, err := db.Write.Exec("UPDATE approval_clock SET seen = seen + 1"); err != nil {
			t.Error(err)
		}
	}
	var seen int
	if err := dbs[0].Read.QueryRow("SELECT seen FROM approval_clock").Scan(&seen); err != nil || seen != len(dbs) {
		t.Errorf("%d updates in the file, %v; want %d", seen, err, len(dbs))
	}
	for _, db := range dbs {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestDamage(t *testing.T) {
	overwrite := func(text string) func(*testing.T, string) {
		return func(t *testing.T, path string) { put(t, path, []byte(text)) }
	}
	for name, damage := range map[string]func(t *testing.T, path string){
		"empty":         overwrite(""),
		"text":          overwrite("this is no database, it is a sentence that somebody wrote"),
		"zeros":         overwrite(strings.Repeat("\x00", 8192)),
		"cut in a page": func(t *testing.T, path string) { put(t, path, read(t, path)[:5000]) },
		"cut in half":   func(t *testing.T, path string) { text := read(t, path); put(t, path, text[:len(text)/8192*4096]) },
		"one page gone": func(t *testing.T, path string) {
			text := read(t, path)
			copy(text[4096:8192], make([]byte, 4096))
			put(t, path, text)
		},
		"an index that is not of its table": func(t *testing.T, path string) {
			text := read(t, path)
			copy(text[bytes.LastIndex(text, []byte("note note")):], "vote")
			put(t, path, text)
		},
		"foreign": func(t *testing.T, path string) {
			db, err := sql.Open("sqlite", path+"x")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := db.Exec("CREATE TABLE t (x)"); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(db.Close(), os.Rename(path+"x", path)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := written(t)
			damage(t, path)
			before := read(t, path)
			db, err := store.Open(t.Context(), path, one)
			if err == nil {
				db.Close()
				t.Fatal("the damaged file was opened")
			}
			if !errors.Is(err, store.ErrCorrupt) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "hint: ") {
				t.Errorf("error %v", err)
			}
			if string(read(t, path)) != string(before) {
				t.Error("the damaged file was changed")
			}
		})
	}
}

// Whatever byte changes, the file is refused or every note is still there.
func TestFlippedBytes(t *testing.T) {
	path := written(t)
	good := read(t, path)
	flip := func(at int) {
		bad := append([]byte{}, good...)
		bad[at] ^= 1 << rand.N(8)
		copied := filepath.Join(t.TempDir(), "state.db")
		put(t, copied, bad)
		db, err := store.Open(t.Context(), copied, one)
		if err != nil {
			return
		}
		defer db.Close()
		if n := count(t, db.Read); n != 64 {
			t.Errorf("byte %d: opened with %d of 64 notes", at, n)
		}
	}
	for at := range 100 {
		flip(at)
	}
	more := 100
	if testing.Short() {
		more = 10
	}
	for range more {
		flip(rand.N(len(good)))
	}
}

func TestAMissingDirectoryThatCannotBeMade(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	put(t, file, nil)
	if _, err := store.Open(t.Context(), filepath.Join(file, "state.db"), one); err == nil {
		t.Error("opened below a file")
	}
}

// The error is the one of the file's name, not of what SQLite makes of it.
func TestANameThatIsTooLong(t *testing.T) {
	path := filepath.Join(t.TempDir(), strings.Repeat("n", 300))
	if _, err := store.Open(t.Context(), path, one); !errors.Is(err, syscall.ENAMETOOLONG) {
		t.Errorf("opened: %v", err)
	}
}

// Who waits too long for another transaction learns that the store is busy.
func TestBusy(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "state.db"), one)
	tx, err := db.Write.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	err = db.UpdateWithin(t.Context(), time.Millisecond, func(context.Context, *sql.Tx) error { return nil })
	if !errors.Is(err, store.ErrBusy) {
		t.Errorf("error %v", err)
	}
}

// A JSON column of nothing is the empty text.
func TestJSONColumn(t *testing.T) {
	for want, v := range map[string]any{"": nil, "{}": map[string]int{}, "[1]": []int{1}} {
		if got, err := (store.JSON{To: v}).Value(); got != want || err != nil {
			t.Errorf("%v is %q, %v; want %q", v, got, err, want)
		}
	}
}

func TestACancelledOpen(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	path := filepath.Join(t.TempDir(), "state.db")
	if _, err := store.Open(ctx, path, one); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("half a file is there")
	}
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func put(t testing.TB, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}
