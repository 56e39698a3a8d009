package app_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/registry/config"
)

// TestUnpinnedPackages finds the servers that are another program when a registry has a new release.
func TestUnpinnedPackages(t *testing.T) {
	t.Parallel()
	engine, err := rego.Load(t.Context(), rego.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i, tt := range []struct {
		command []string
		want    string // the package
	}{
		{[]string{"npx", "-y", "@example/files", "/srv"}, "@example/files"},
		{[]string{"npx", "-y", "@example/files@2.1.0", "/srv"}, ""},
		{[]string{"npx", "-y", "files@latest"}, "files"},
		{[]string{"npx", "@latest"}, ""},
		{[]string{"/usr/bin/npx", "--yes", "files"}, "files"},
		{[]string{"npx", "-p", "files", "files-server"}, "files"},
		{[]string{"npx", "--package=files@2", "files-server"}, ""},
		{[]string{"npx", "--package", "files", "run"}, "files"},
		{[]string{"npx", "./server"}, ""},
		{[]string{"npx", "https://example.org/files.tgz"}, ""},
		{[]string{"npx", "-y"}, ""},
		{[]string{"npx", "--package"}, ""},
		{[]string{"uvx", "files"}, "files"},
		{[]string{"uvx", "files@1.2"}, ""},
		{[]string{"uvx", "--from", "files==1.2", "serve"}, ""},
		{[]string{"uvx", "--from=files", "serve"}, "files"},
		{[]string{"uvx", "--from", "git+https://example.org/files", "serve"}, ""},
		{[]string{"uvx", "--python", "3.12", "files@1.2"}, ""},
		{[]string{"uvx", "-p", "3.12", "--with=more", "files"}, "files"},
		{[]string{"npx", "-w", "web", "files@2"}, ""},
		{[]string{"node", "files"}, ""},
	} {
		file := filepath.Join(t.TempDir(), "mcp.json")
		args, _ := json.Marshal(tt.command[1:])
		if err := os.WriteFile(file, fmt.Appendf(nil, `{"mcpServers": {"s": {"command": %q, "args": %s}}}`, tt.command[0], args), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Load(config.Options{Path: file})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, f := range app.Warnings(cfg, engine, nil) {
			if f.Code == "unpinned-package" {
				got = f.Where + " " + f.Hint
			}
		}
		want := "mcpServers.s.args write the version that you have read: " + tt.want + "@VERSION"
		if tt.want == "" {
			want = ""
		}
		if got != want {
			t.Errorf("%d, %v: %q, want %q", i, tt.command, got, want)
		}
	}
}
