package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A state file that is missing at the start is an error of the start and in readiness, once: a new
// file knows nothing of what the one before had.
func TestMissingState(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "mcp.json"), `{"mcpServers": {}}`)
	doubts := func() string {
		t.Helper()
		cfg, err := read(dir)()
		if err != nil {
			t.Fatal(err)
		}
		a, err := Open(t.Context(), cfg, Options{Role: "observer", Version: "test"})
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Join(a.status().Warnings, "\n")
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		return lines
	}
	const missing = "is missing"
	if got := doubts(); strings.Contains(got, missing) {
		t.Errorf("the first start: %s", got)
	}
	if got := doubts(); strings.Contains(got, missing) {
		t.Errorf("another start: %s", got)
	}
	found, err := filepath.Glob(filepath.Join(dir, "*", "state.db*"))
	if err != nil || len(found) == 0 {
		t.Fatalf("no state file: %v", err)
	}
	for _, path := range found {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if got := doubts(); !strings.Contains(got, missing) {
		t.Errorf("a start without the state file: %s", got)
	}
	if got := doubts(); strings.Contains(got, missing) {
		t.Errorf("the start after it: %s", got)
	}
}
