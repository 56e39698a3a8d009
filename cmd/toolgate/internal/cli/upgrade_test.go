package cli

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// earlierState writes the state of the version that had n migrations fewer.
func earlierState(t *testing.T, dir string, fewer int) {
	t.Helper()
	names, err := fs.Glob(store.Migrations(), "*")
	if err != nil {
		t.Fatal(err)
	}
	files := fstest.MapFS{}
	for _, name := range names[:len(names)-fewer] {
		text, err := fs.ReadFile(store.Migrations(), name)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = &fstest.MapFile{Data: text}
	}
	db, err := store.Open(t.Context(), filepath.Join(dir, "state.db"), files)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// cmdNext builds toolgate-KIND, toolgate of this source with one more migration of
// state.db, and puts the number of the migration into NEXT and the one before into LAST.
func cmdNext(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: next expand|contract")
	}
	names, err := fs.Glob(store.Migrations(), "*")
	ts.Check(err)
	number := fmt.Sprintf("%04d", len(names)+1)
	ts.Setenv("NEXT", number)
	sql, overlay := ts.MkAbs("next.sql"), ts.MkAbs("overlay.json")
	ts.Check(os.WriteFile(sql, []byte("-- "+args[0]+": a test\nALTER TABLE approvals ADD COLUMN next INTEGER NOT NULL DEFAULT 0;\n"), 0o600))
	at := filepath.Join(ts.Getenv("ROOT"), "internal", "store", "migrations", number+"_next.sql")
	text, err := json.Marshal(map[string]any{"Replace": map[string]string{at: sql}})
	ts.Check(err)
	ts.Check(os.WriteFile(overlay, text, 0o600))
	build := exec.Command("go", "build", program.Tags, "-ldflags=-s -w", "-overlay", overlay, "-o", ts.MkAbs("toolgate-"+args[0]), "./cmd/toolgate")
	build.Dir = ts.Getenv("ROOT")
	if out, err := build.CombinedOutput(); err != nil {
		ts.Fatalf("building the next version: %v\n%s", err, out)
	}
}

// A start on the state of an earlier version upgrades it, and names the copy.
func TestAStartUpgradesTheState(t *testing.T) {
	t.Parallel()
	dir, agents, admin := t.TempDir(), program.FreeAddress(t), program.FreeAddress(t)
	write(t, dir, map[string]string{"mcp.json": "{}"})
	earlierState(t, filepath.Join(dir, ".toolgate"), 2)
	p := start(t, dir, "serve", "--listen", agents, "--admin", admin)
	ready(t, admin)
	found, err := filepath.Glob(filepath.Join(dir, ".toolgate", "state.db.before-*"))
	if err != nil || len(found) != 1 {
		t.Fatalf("copies: %v, %v", found, err)
	}
	p.says("the state was upgraded.*" + found[0])
	p.signal(syscall.SIGTERM)
	p.ends(command.ExitOK)
	if code, out := toolgate(t, dir, "audit", "verify"); code != command.ExitOK {
		t.Errorf("exit %d: %s", code, out)
	}
}
