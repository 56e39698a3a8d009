package store_test

import (
	"database/sql"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/store"
)

var rewrite = flag.Bool("update", false, "write whole.sql")

// A new state file is what its migrations make one after the other, apart from its own name.
func TestNewFileIsWhatMigrationsMake(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	migrated := filepath.Join(dir, "migrated.db")
	n, digest, err := store.BuildAlone(t.Context(), migrated)
	if err != nil {
		t.Fatal(err)
	}
	want := open(t, migrated, store.Migrations())
	if *rewrite {
		text := fmt.Sprintf("-- %d migrations, %s\n\n%s", n, digest, statements(t, want.Read))
		if err := os.WriteFile("whole.sql", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if _, whole := store.Whole(); whole != n {
		t.Errorf("whole.sql stands for %d of %d migrations: go test ./internal/store -run %s -update", whole, n, t.Name())
	}
	got := open(t, filepath.Join(dir, "state.db"), store.Migrations())
	if diff := cmp.Diff(content(t, want.Read), content(t, got.Read)); diff != "" {
		t.Errorf("(-migrated +new):\n%s", diff)
	}
}

// Migrations other than those that whole.sql stands for are applied one by one.
func TestWholeStandsForItsOwnMigrationsOnly(t *testing.T) {
	t.Parallel()
	_, names := first(t, 0)
	fewer, _ := first(t, len(names)-1)
	changed, _ := first(t, len(names))
	changed.(fstest.MapFS)[names[0]].Data = append(changed.(fstest.MapFS)[names[0]].Data, "CREATE TABLE extra (a TEXT) STRICT;"...)
	for name, want := range map[string]struct {
		migrations fs.FS
		tables     string
	}{
		"fewer":   {fewer, "0"},
		"changed": {changed, "1"},
	} {
		db := open(t, filepath.Join(t.TempDir(), "state.db"), want.migrations)
		if got := rows(t, db.Read, "SELECT count(*) FROM sqlite_schema WHERE name = 'extra'"); got[0] != want.tables {
			t.Errorf("%s: %s tables are extra, want %s", name, got[0], want.tables)
		}
		if got := rows(t, db.Read, "SELECT count(*) FROM pragma_table_info('pins') WHERE name = 'verdicts'"); name == "fewer" && got[0] != "0" {
			t.Errorf("%s: the last migration is applied", name)
		}
	}
}

// statements returns the SQL that makes the tables of db, and their rows.
func statements(t *testing.T, db *sql.DB) string {
	t.Helper()
	var b strings.Builder
	for _, s := range rows(t, db, "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND name <> 'schema_version' ORDER BY rowid") {
		fmt.Fprintf(&b, "%s;\n\n", s)
	}
	b.WriteString("INSERT INTO approval_clock (one, seen, store) VALUES (1, 0, lower(hex(randomblob(16))));\n\n")
	b.WriteString("INSERT INTO schema_version (version, name) VALUES\n  " +
		strings.Join(rows(t, db, "SELECT format('(%d, ''%s'')', version, name) FROM schema_version ORDER BY version"), ",\n  ") + ";\n")
	return b.String()
}

// content returns what db consists of: its header, its schema and all rows.
func content(t *testing.T, db *sql.DB) (all []string) {
	t.Helper()
	for _, q := range []string{"PRAGMA user_version", "PRAGMA application_id", "PRAGMA journal_mode", "SELECT type || ' ' || name || ' ' || tbl_name || ' ' || coalesce(sql, '') FROM sqlite_schema ORDER BY type, name"} {
		all = append(all, rows(t, db, q)...)
	}
	for _, table := range rows(t, db, "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name") {
		columns := rows(t, db, "SELECT name FROM pragma_table_info('"+table+"') WHERE name <> 'store'")
		for _, row := range rows(t, db, `SELECT concat_ws('|', "`+strings.Join(columns, `", "`)+`") FROM "`+table+`" ORDER BY 1`) {
			all = append(all, table+" "+row)
		}
	}
	return append(all, rows(t, db, "SELECT length(store) FROM approval_clock")...) // it is another in each file
}

// rows returns the first column of a query.
func rows(t *testing.T, db *sql.DB, query string) []string {
	t.Helper()
	all, err := store.Select(t.Context(), db, func(s *string) []any { return []any{s} }, query)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return all
}
