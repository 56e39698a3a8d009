package app_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/trail"
	"github.com/toolgate/toolgate/registry/config"
)

// The trail says which tokens came and went, also between two runs, and which
// configuration was read and does not serve.
func TestConfigurationIsRecorded(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "mcp.json")
	token := func(subject string) string {
		return `{"subject": "` + subject + `", "roles": ["observer"], "sha256": "` + strings.Repeat(string(subject[0]), 64) + `"}`
	}
	run := func(tokens ...string) {
		text := `{"mcpServers": {}, "toolgate": {"state": "state", "keys": "keys", "identity": {"tokens": [` + strings.Join(tokens, ",") + `]}}}`
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Load(config.Options{Path: path})
		if err != nil {
			t.Fatal(err)
		}
		a, err := app.Open(t.Context(), cfg, app.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if served := a.ServedPolicies(); len(served) != 1 || served[0].Revision != a.Revision() || time.Since(served[0].Since) > time.Hour {
			t.Errorf("one policy has served, %s: %v", a.Revision(), served)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
	run(token("ann"), token("bob"))
	run(token("ann"), token("cas"))
	var events []audit.Event
	for r, err := range audit.Read(t.Context(), trail.Dir(filepath.Join(dir, "state")), time.Time{}) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Kind == audit.KindEvent {
			events = append(events, *r.Event)
		}
	}
	if len(events) != 1 || events[0].Name != audit.EventConfiguration ||
		!slices.Contains(events[0].Added, "token cas cccccccccccc roles observer") || !slices.Contains(events[0].Removed, "token bob bbbbbbbbbbbb roles observer") {
		t.Errorf("%+v", events)
	}
}

// The policies that served are listed once for each time, and a bounded number of them.
func TestServed(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var all []string
	for _, revision := range []string{"sha256:1", "sha256:1", "sha256:2", "sha256:1"} {
		all = app.Served(all, revision, now)
	}
	if got := strings.Join(all, ", "); got != "2026-03-01T12:00:00Z sha256:1, 2026-03-01T12:00:00Z sha256:2, 2026-03-01T12:00:00Z sha256:1" {
		t.Error(got)
	}
	for i := range 100 {
		all = app.Served(all, "sha256:"+strings.Repeat("a", i+1), now)
	}
	if len(all) != 50 || !strings.HasSuffix(all[49], strings.Repeat("a", 100)) {
		t.Errorf("%d are kept, the last is %s", len(all), all[len(all)-1])
	}
}
