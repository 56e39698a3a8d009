package store_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"testing/fstest"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/corpus"
)

// first returns the first n migrations of state.db, and all their names.
func first(t testing.TB, n int) (fs.FS, []string) {
	t.Helper()
	names, err := fs.Glob(store.Migrations(), "*")
	if err != nil {
		t.Fatal(err)
	}
	out := fstest.MapFS{}
	for _, name := range names[:n] {
		text, err := fs.ReadFile(store.Migrations(), name)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = &fstest.MapFile{Data: text}
	}
	return out, names
}

// The state of every earlier version is upgraded, after a copy that this version opens.
func TestStatesOfEarlierVersions(t *testing.T) {
	_, names := first(t, 0)
	for n := 1; n < len(names); n++ {
		path := filepath.Join(t.TempDir(), "state.db")
		earlier, _ := first(t, n)
		db, err := store.Open(t.Context(), path, earlier)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := db.Write.Exec("UPDATE approval_clock SET seen = 12"); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{path, fmt.Sprintf("%s.before-%04d", path, n+1)} {
			var seen, schema int
			err := open(t, file, store.Migrations()).Read.QueryRow("SELECT seen, (SELECT max(version) FROM schema_version) FROM approval_clock").Scan(&seen, &schema)
			if err != nil || seen != 12 || schema != len(names) {
				t.Errorf("%s: seen %d, schema %d, %v", filepath.Base(file), seen, schema, err)
			}
		}
	}
}

// docs/run.md has a row for each migration that keeps older versions out, with the reason.
func TestEveryContractionHasARow(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(corpus.Checkout(t), "docs", "run.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, names := first(t, 0)
	rows := 0
	for _, name := range names {
		sql, err := fs.ReadFile(store.Migrations(), name)
		if err != nil {
			t.Fatal(err)
		}
		line := regexp.MustCompile(`^-- contract: older versions would (.*)`).FindSubmatch(sql)
		if line == nil {
			continue
		}
		rows++
		row := fmt.Sprintf(`(?m)^\| %s(; PostgreSQL \d{4})? \| %s \|$`, name[:4], regexp.QuoteMeta(string(line[1])))
		if !regexp.MustCompile(row).Match(text) {
			t.Errorf("no row %s", row)
		}
	}
	if rows < 7 {
		t.Errorf("%d migrations were read", rows)
	}
}
