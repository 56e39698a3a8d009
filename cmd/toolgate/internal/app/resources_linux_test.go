package app_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/internal/sandbox"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/registry/config"
)

// What check says where there is no control group: which limits do not hold, once for all
// servers, and nothing where they are lifted.
func TestUnlimitedResources(t *testing.T) {
	engine, err := rego.Load(t.Context(), rego.Options{})
	if err != nil {
		t.Fatal(err)
	}
	host := sandbox.New(sandbox.Options{Cgroups: t.TempDir()})
	for settings, want := range map[string]string{
		`{}`: "note cpu_weight: not limited, memory: not limited, processes: not limited: ",
		`{"resources": {"cpu_weight": "off", "processes": "off"}}`:                  "note memory: not limited: ",
		`{"resources": {"cpu_weight": "off", "processes": "off", "memory": "off"}}`: "",
	} {
		file := filepath.Join(t.TempDir(), "mcp.json")
		text := `{"mcpServers": {"a": {"command": "x"}, "b": {"url": "http://localhost:1"}}, "toolgate": {"sandbox": "off", "servers": {"a": ` + settings + `}}}`
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Load(config.Options{Path: file})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, f := range app.Warnings(cfg, engine, host) {
			if f.Code == "resources" {
				got += f.Level + " " + f.Message
			}
		}
		if !strings.HasPrefix(got, want) || (want == "") != (got == "") {
			t.Errorf("%s: %q, want %q", settings, got, want)
		}
	}
}
