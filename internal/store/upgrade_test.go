package store_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// versions returns the migrations of a version of toolgate: notes, and one for each
// kind, of which the first is migration 2.
func versions(kinds ...string) fs.FS {
	pairs := []string{"0001_notes.sql", notes}
	for i, kind := range kinds {
		pairs = append(pairs, fmt.Sprintf("%04d_more.sql", i+2), fmt.Sprintf("-- %s: a reason\nALTER TABLE notes ADD COLUMN c%d INTEGER NOT NULL DEFAULT 7;", kind, i+2))
	}
	return files(pairs...)
}

// listed returns the names in the directory of a database, but for those of SQLite.
func listed(t testing.TB, path string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), "-wal") && !strings.HasSuffix(e.Name(), "-shm") {
			names = append(names, e.Name())
		}
	}
	return names
}

func TestAnUpgradeCopies(t *testing.T) {
	for _, kind := range []string{"expand", "contract"} {
		t.Run(kind, func(t *testing.T) {
			path := written(t)
			put(t, path+".new", []byte("left by an upgrade that was killed"))
			db := open(t, path, versions(kind))
			before := path + ".before-0002"
			if db.Copy != before {
				t.Errorf("the copy is %q, want %q", db.Copy, before)
			}
			if info, err := os.Stat(before); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("the copy: %v, %v", info, err)
			}
			if got := listed(t, path); !slices.Equal(got, []string{"instances", "state.db", "state.db.before-0002"}) {
				t.Errorf("the directory has %v", got)
			}
			if again := open(t, path, versions(kind)); again.Copy != "" {
				t.Errorf("a second start copied to %s", again.Copy)
			}
			old := open(t, before, one)
			var mode string
			if err := old.Read.QueryRow("PRAGMA journal_mode").Scan(&mode); err != nil || mode != "wal" {
				t.Errorf("journal mode of the copy: %q, %v", mode, err)
			}
			if n := count(t, old.Read); n != 64 || old.Copy != "" {
				t.Errorf("the copy has %d notes, want 64", n)
			}
			if _, err := old.Read.Exec("SELECT c2 FROM notes"); err == nil {
				t.Error("the copy has the new column")
			}
		})
	}
}

func TestANewFileIsNotCopied(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	if db := open(t, path, versions("expand", "contract")); db.Copy != "" {
		t.Errorf("a new file was copied to %s", db.Copy)
	}
	if got := listed(t, path); len(got) != 1 {
		t.Errorf("the directory has %v", got)
	}
}

func TestThreeCopiesAreKept(t *testing.T) {
	path := written(t)
	var kinds []string
	for range 5 {
		kinds = append(kinds, "contract")
		db, err := store.Open(t.Context(), path, versions(kinds...))
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if got := listed(t, path); !slices.Equal(got, []string{"instances", "state.db", "state.db.before-0004", "state.db.before-0005", "state.db.before-0006"}) {
		t.Errorf("the directory has %v", got)
	}
}

// Who goes back and upgrades again has the state of the second time in the copy.
func TestALaterCopyReplacesAnEarlierOne(t *testing.T) {
	path := written(t)
	before := path + ".before-0002"
	upgrade := func() {
		t.Helper()
		db, err := store.Open(t.Context(), path, versions("contract"))
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	upgrade()
	put(t, path, read(t, before))
	db, err := store.Open(t.Context(), path, one)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Write.Exec("INSERT INTO notes VALUES ('x')"); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	upgrade()
	if n := count(t, open(t, before, one).Read); n != 65 {
		t.Errorf("the copy has %d notes, want 65", n)
	}
}

// Without its copy an upgrade does not begin.
func TestACopyThatFails(t *testing.T) {
	path := written(t)
	good := read(t, path)
	if err := os.MkdirAll(filepath.Join(path+".new", "x"), 0o700); err != nil { // in the way of the draft
		t.Fatal(err)
	}
	_, err := store.Open(t.Context(), path, versions("contract"))
	if err == nil || !strings.Contains(err.Error(), path+".before-0002 before its upgrade") {
		t.Errorf("error %v", err)
	}
	if string(read(t, path)) != string(good) {
		t.Error("the file was changed")
	}
	if n := count(t, open(t, path, one).Read); n != 64 {
		t.Errorf("%d notes, want 64", n)
	}
}

// Which version opens the file that another version wrote.
func TestVersions(t *testing.T) {
	for _, c := range []struct {
		name         string
		wrote, opens fs.FS
		refused      string
	}{
		{"the same", versions("contract"), versions("contract"), ""},
		{"a newer one", versions("expand"), versions("expand", "contract"), ""},
		{"an older one after an expansion", versions("expand"), one, ""},
		{"an older one after two", versions("contract", "expand", "expand"), versions("contract"), ""},
		{"an older one after a contraction", versions("contract"), one, "it has schema 2 and needs at least schema 2, this version has schema 1"},
		{"an older one after both", versions("expand", "contract", "expand"), versions("expand"), "it has schema 4 and needs at least schema 3, this version has schema 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state.db")
			db, err := store.Open(t.Context(), path, c.wrote)
			if err != nil {
				t.Fatal(err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			switch db, err := store.Open(t.Context(), path, c.opens); {
			case c.refused == "" && err != nil:
				t.Error(err)
			case c.refused == "":
				_, err := db.Write.Exec("INSERT INTO notes (text) VALUES ('x')")
				if err := errors.Join(err, db.Close()); err != nil {
					t.Error(err)
				}
			case !errors.Is(err, store.ErrNewer) || !strings.Contains(err.Error(), c.refused) || !strings.Contains(err.Error(), "\nhint: run the toolgate version that wrote it, or a later one"):
				t.Errorf("error %v", err)
			}
		})
	}
}

// A refused version names the copy that it can go back to.
func TestTheRefusalNamesTheCopy(t *testing.T) {
	path := written(t)
	for _, newer := range []fs.FS{versions("contract"), versions("contract", "contract")} {
		db, err := store.Open(t.Context(), path, newer)
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for want, older := range map[string]fs.FS{".before-0002": one, ".before-0003": versions("contract")} {
		if _, err := store.Open(t.Context(), path, older); err == nil || !strings.Contains(err.Error(), "or go back to "+path+want+",") {
			t.Errorf("error %v; want it to name %s", err, want)
		}
	}
}

// A version that says nothing of older ones keeps them out.
func TestAFileWithoutAPromise(t *testing.T) {
	path := written(t)
	db := open(t, path, versions("expand"))
	if _, err := db.Write.Exec("PRAGMA user_version = 0"); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Open(t.Context(), path, one); !errors.Is(err, store.ErrNewer) {
		t.Errorf("error %v", err)
	}
}

// While an older version uses the file, an expansion is applied and a contraction is not.
func TestAnUpgradeBesideAnOlderVersion(t *testing.T) {
	t.Parallel()
	path := written(t)
	older := open(t, path, one)
	newer := open(t, path, versions("expand"))
	for name, db := range map[string]*store.DB{"the older": older, "the newer": newer} {
		if _, err := db.Write.Exec("INSERT INTO notes (text) VALUES ('x')"); err != nil {
			t.Errorf("%s version writes: %v", name, err)
		}
	}
	if err := newer.Close(); err != nil {
		t.Fatal(err)
	}
	refused := func(who string) {
		t.Helper()
		_, err := store.Open(t.Context(), path, versions("expand", "contract"))
		for _, want := range []string{who, ": versions before migration 0003_more cannot use it afterwards", "\nhint: stop the other process"} {
			if !errors.Is(err, store.ErrInUse) || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v; want %q", err, want)
			}
		}
		if _, err := os.Stat(path + ".before-0003"); err == nil {
			t.Error("a copy was written")
		}
		if n := count(t, older.Read); n != 66 {
			t.Errorf("the older version reads %d notes, want 66", n)
		}
	}
	refused("in use by another process")
	instance, err := store.HoldInstance(filepath.Join(filepath.Dir(path), "instances"), "one")
	if err != nil {
		t.Fatal(err)
	}
	refused(fmt.Sprintf("in use by process %d on ", os.Getpid())) // at once
	if err := errors.Join(instance.Close(), older.Close()); err != nil {
		t.Fatal(err)
	}
	if db := open(t, path, versions("expand", "contract")); db.Copy != path+".before-0003" {
		t.Errorf("alone, it copied to %q", db.Copy)
	}
}

// Of many that start at once, one upgrades.
func TestManyUpgradeAtOnce(t *testing.T) {
	for _, kind := range []string{"expand", "contract"} {
		path := written(t)
		var mu sync.Mutex // protects copied
		var copied []string
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				db, err := store.Open(context.WithoutCancel(t.Context()), path, versions(kind))
				if err != nil {
					t.Error(err)
					return
				}
				t.Cleanup(func() { db.Close() })
				mu.Lock()
				defer mu.Unlock()
				if db.Copy != "" {
					copied = append(copied, db.Copy)
				}
			})
		}
		all.Wait()
		if len(copied) != 1 {
			t.Errorf("%s: %d upgraded: %v", kind, len(copied), copied)
		}
	}
}

// upgraderVar makes this test binary a process that upgrades the file that it names, with a
// migration that takes a while.
const upgraderVar = "STORE_TEST_UPGRADER"

func slowly(kind string) fs.FS {
	return files("0001_notes.sql", notes, "0002_more.sql", "-- "+kind+`: a reason
ALTER TABLE notes ADD COLUMN c2 INTEGER NOT NULL DEFAULT 7;
WITH RECURSIVE many (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM many WHERE i < 10000)
INSERT INTO notes (text) SELECT 'another' FROM many;`)
}

func upgradeSlowly(path string) {
	path, kind, _ := strings.Cut(path, "|")
	db, err := store.Open(context.Background(), path, slowly(kind))
	if err == nil {
		err = db.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// An upgrade that is killed at any moment has happened or not; the next start completes
// it, and the copy is the file as it was.
func TestKilledUpgrades(t *testing.T) {
	parts.Long(t, "kills processes")
	rounds := 12
	if testing.Short() {
		rounds = 4
	}
	var as [2]int // how many were found not upgraded, and upgraded
	for i := range rounds {
		kind := []string{"expand", "contract"}[i%2]
		path := written(t)
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), upgraderVar+"="+path+"|"+kind)
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		if i%4 < 2 { // in the migration, or after it
			program.Await(t, "the copy", func() bool { _, err := os.Stat(path + ".before-0002"); return err == nil })
		}
		time.Sleep(rand.N(250 * time.Millisecond))
		_ = child.Process.Kill() // it may have ended
		_ = child.Wait()
		if db, err := store.Open(t.Context(), path, one); err == nil {
			if n := count(t, db.Read); n != 64 && n != 10_064 {
				t.Errorf("the file has %d notes", n)
			}
			as[0]++
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		} else if errors.Is(err, store.ErrNewer) {
			as[1]++
		} else {
			t.Error(err)
		}
		if n := count(t, open(t, path, slowly(kind)).Read); n != 10_064 {
			t.Errorf("the next start leaves %d notes, want 10,064", n)
		}
		if n := count(t, open(t, path+".before-0002", one).Read); n != 64 {
			t.Errorf("the copy has %d notes, want 64", n)
		}
		if got := listed(t, path); !slices.Equal(got, []string{"instances", "state.db", "state.db.before-0002"}) {
			t.Errorf("the directory has %v", got)
		}
	}
	t.Logf("not upgraded %d times, upgraded %d times", as[0], as[1])
}

// large is a database of about 50 MB.
func large(b *testing.B) (path string, bytes int64) {
	path = filepath.Join(b.TempDir(), "state.db")
	db := open(b, path, one)
	_, err := db.Write.Exec(`WITH RECURSIVE many (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM many WHERE i < 10000)
 INSERT INTO notes (text) SELECT hex(randomblob(500)) FROM many`)
	if err == nil {
		_, err = db.Write.Exec("PRAGMA wal_checkpoint(TRUNCATE)")
	}
	info, fault := os.Stat(path)
	if err = errors.Join(err, fault); err != nil {
		b.Fatal(err)
	}
	return path, info.Size()
}

// A start checks the whole file.
func BenchmarkOpen(b *testing.B) {
	path, bytes := large(b)
	b.SetBytes(bytes)
	for b.Loop() {
		db, err := store.Open(b.Context(), path, one)
		if err = errors.Join(err, db.Close()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSnapshot(b *testing.B) {
	path, bytes := large(b)
	db := open(b, path, one)
	b.SetBytes(bytes)
	for b.Loop() {
		to := filepath.Join(b.TempDir(), "copy.db")
		if err := db.Snapshot(b.Context(), to); err != nil {
			b.Fatal(err)
		}
		_ = os.Remove(to) // the benchmark's directory goes anyway
	}
}
