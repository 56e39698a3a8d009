package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/tools/txtar"

	"github.com/toolgate/toolgate/internal/testkit/npm"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/policy"
)

// What a server does not say of a tool, or says in a form that has two readings, counts as
// MCP says: the tool writes, may destroy, and reaches the open world.
func TestDraftTool(t *testing.T) {
	const reader, writer, held = "reader", "writer", "held"
	for annotations, want := range map[string]string{
		``:                      held,
		`{}`:                    held,
		`{"title":"Read only"}`: held,
		`{"readOnlyHint":true,"openWorldHint":false}`:                           reader,
		`{"readOnlyHint":true,"destructiveHint":false,"openWorldHint":false}`:   reader,
		`{"readOnlyHint":true}`:                                                 writer,
		`{"readOnlyHint":true,"openWorldHint":true}`:                            writer,
		`{"destructiveHint":false}`:                                             writer,
		`{"readOnlyHint":false,"destructiveHint":false,"openWorldHint":false}`:  writer,
		`{"readOnlyHint":false,"destructiveHint":true}`:                         held,
		`{"readOnlyHint":false,"openWorldHint":false}`:                          held,
		`{"readOnlyHint":true,"destructiveHint":true,"openWorldHint":false}`:    held,
		`{"readOnlyHint":null,"destructiveHint":null}`:                          held,
		`{"readOnlyHint":"true","destructiveHint":"false"}`:                     held,
		`{"ReadOnlyHint":true,"DestructiveHint":false,"openWorldHint":false}`:   held,
		`{"readOnlyHint":true,"readOnlyHint":false,"openWorldHint":false}`:      held,
		`{"readOnlyHint":true,"openWorldHint":false,"destructiveHint":"false"}`: held,
		`["readOnlyHint"]`: held,
	} {
		d := draftTool(policy.Tool{Exposed: "s__t", Annotations: json.RawMessage(annotations)}, json.RawMessage(`{}`))
		got := d.Role
		if d.Held {
			got = held
		}
		if got != want || d.Held && d.Role != writer || d.Name != "s__t" {
			t.Errorf("%s: %+v, want %s", annotations, d, want)
		}
	}
}

// Third-party servers of the files of several clients: set up, listed, called, held and
// approved.
func TestInitWithServers(t *testing.T) {
	t.Parallel()
	parts.Need(t, "node")
	servers := map[string]string{}
	for variable, name := range map[string]string{"EVERYTHING": "everything", "FILESYSTEM": "filesystem", "MEMORY": "memory"} {
		servers[variable] = npm.File(t, "@modelcontextprotocol/server-"+name+"/dist/index.js") // which skips the test
	}
	p := params(t, "")
	p.Dir, p.Files = "", []string{filepath.Join("testdata", "initservers.txtar")}
	setup := p.Setup
	p.Setup = func(e *testscript.Env) error {
		for variable, file := range servers {
			e.Setenv(variable, file)
		}
		return errors.Join(setup(e), fillHome(filepath.Join(e.WorkDir, "home")))
	}
	testscript.Run(t, p)
}

// fillHome writes the test files of all dialects into a home directory. It keeps files that
// exist.
func fillHome(home string) error {
	archives, err := filepath.Glob(filepath.Join("..", "clients", "testdata", "clients", "*.txtar"))
	if err != nil || len(archives) == 0 {
		return fmt.Errorf("no files of clients: %w", err)
	}
	for _, archive := range archives {
		a, err := txtar.ParseFile(archive)
		if err != nil {
			return err
		}
		path := filepath.Join(home, filepath.FromSlash(a.Files[0].Name))
		if _, err := os.Lstat(path); err == nil {
			continue
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, a.Files[0].Data, 0o600)); err != nil {
			return err
		}
	}
	return nil
}
