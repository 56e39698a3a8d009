package config_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/dialect"
)

// TestClientFiles reads a file of each client, and holds what comes out, every note
// included. The name of the file's section is its path below /home/ada.
func TestClientFiles(t *testing.T) {
	seen := map[string]bool{}
	for _, path := range archives(t, "clients") {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			f := a.Files[0]
			got, err := config.Normalise(config.ClientFile{Name: f.Name, Path: "/home/ada/" + f.Name, Data: f.Data})
			if err != nil {
				compare(t, path, a, err.Error()+"\n")
				return
			}
			seen[got.Client.ID] = true
			compare(t, path, a, describeEntries(t, got))
		})
	}
	for _, c := range dialect.Clients() {
		if !seen[c.ID] {
			t.Errorf("no test file is recognised as that of %s", c.Name)
		}
	}
}

// describeEntries prints the client, the notes as people see them, and the servers.
func describeEntries(t *testing.T, n *config.Normalised) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "client: %s\n", n.Client.ID)
	for _, w := range n.Notes {
		b.WriteString(w.String() + "\n")
	}
	for _, s := range n.Servers {
		fmt.Fprintf(&b, "%s, line %d, disabled %v\n", s.Name, s.Line, s.Disabled)
		for _, text := range []json.RawMessage{s.Server, s.Settings} {
			if text == nil {
				continue
			}
			var v any
			if err := json.Unmarshal(text, &v); err != nil {
				t.Fatalf("%s is no JSON: %v", text, err)
			}
			fmt.Fprintf(&b, "  %s\n", text)
		}
	}
	return b.String()
}
