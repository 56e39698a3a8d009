package postgres

import (
	"context"
	"errors"
	"flag"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/store"
)

// serverVar names the directory of the server, in the process of Again.
const serverVar = "TOOLGATE_TEST_POSTGRES"

// Again runs those tests of a package again that may call [State], in a process where State
// opens databases of a server. A test is known by its code in the package's test files; one
// that calls State only in a process that it starts is not found. The test t is for Again
// alone; -run T/NAME runs one of them.
func Again(t *testing.T) {
	t.Helper()
	if Used() {
		return
	}
	s := Started(t)
	if err := s.makeTemplate(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, some, ok := strings.Cut(flag.Lookup("test.run").Value.String(), "/")
	if !ok {
		callers, err := reaching(".", "postgres.State")
		if err != nil {
			t.Fatal(err)
		}
		some = "^(" + strings.Join(callers, "|") + ")$"
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.count=1", "-test.run="+some)
	cmd.Env = append(os.Environ(), serverVar+"="+s.dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("with PostgreSQL: %v\n%s", err, out)
	}
}

// template is the database with all migrations that State copies: it takes half the time.
const template = "migrated"

func (s *Server) makeTemplate(ctx context.Context) error {
	err := s.exec(ctx, "CREATE DATABASE "+template)
	if err == nil {
		var db *store.DB
		if db, err = store.OpenPostgres(ctx, s.address(template), store.PostgresMigrations()); err == nil {
			err = db.Close()
		}
	}
	return err
}

// Used reports whether State opens databases of a server.
func Used() bool { return os.Getenv(serverVar) != "" }

// Started starts a server for the test t. Package parts says when the test skips.
func Started(t *testing.T) *Server {
	t.Helper()
	need(t)
	s, err := start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Remove)
	return s
}

// State opens the state that a test keeps in the file at path. In the process of Again it
// is a database whose address is next to it, and that the first State makes.
func State(ctx context.Context, path string) (*store.DB, error) {
	if !Used() {
		return store.Open(ctx, path, store.Migrations())
	}
	address, err := os.ReadFile(path + ".url")
	if errors.Is(err, fs.ErrNotExist) {
		var made string
		if made, err = (&Server{dir: os.Getenv(serverVar)}).create(ctx, template); err == nil {
			address, err = []byte(made), os.WriteFile(path+".url", []byte(made), 0o600)
		}
	}
	if err != nil {
		return nil, err
	}
	return store.OpenPostgres(ctx, string(address), store.PostgresMigrations())
}
