package config_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/registry/config"
)

// What toolgate knows of itself is read as a file of people's is, and bounds every client's
// patience.
func TestKnownClients(t *testing.T) {
	clients := config.KnownClients()
	text, err := os.ReadFile("clients.json")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(inMemory(map[string]string{
		"/etc/toolgate/mcp.json": `{"mcpServers":{},"toolgate":{"approvals":{"clients":"c.json"}}}`, "/etc/toolgate/c.json": string(text),
	}))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(cfg.Approvals.Clients, clients); diff != "" {
		t.Errorf("(-as a file +embedded):\n%s", diff)
	}
	if len(clients) < 10 {
		t.Fatalf("%d clients are known", len(clients))
	}
	for _, c := range clients {
		if c.Hold == nil || c.Longest == nil || *c.Longest > 210*time.Second {
			t.Errorf("%s%s: hold %v, longest %v", c.Name, c.Transport, c.Hold, c.Longest)
		}
	}
}

// Any bytes are read as profiles or refused, never with a panic, and never fit
// every client.
func FuzzClients(f *testing.F) {
	for _, seed := range []string{
		`{"clients":[{"name":"a*","hold":"1s","longest":"2s","basis":"known","source":"x"}]}`,
		`{"clients":[{"transport":"rest","hold":"0s"}]}`, `{"clients":[]}`, `{}`, `[]`, `{"clients":[{"name":"*"}]}`, `{"clients":[{"name":"a*b"}]}`,
		`{"clients":[{"name":"a","name":"b"}]}`, `{"clients":[{"name":"${A}"}]}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		opts := inMemory(map[string]string{
			"/etc/toolgate/mcp.json": `{"mcpServers":{},"toolgate":{"approvals":{"clients":"c.json"}}}`, "/etc/toolgate/c.json": text,
		})
		cfg, err := config.Load(opts)
		if (cfg == nil) == (err == nil) {
			t.Fatalf("Load = %v, %v", cfg, err)
		}
		if err != nil {
			return
		}
		if cfg.Approvals.Clients == nil {
			t.Error("the file's profiles became the embedded ones")
		}
		for _, c := range cfg.Approvals.Clients {
			fits := strings.TrimSuffix(c.Name, "*") != "" || c.Transport != ""
			if !fits || strings.Contains(strings.TrimSuffix(c.Name, "*"), "*") || c.Hold != nil && (*c.Hold < 0 || c.Longest != nil && *c.Hold > *c.Longest) {
				t.Errorf("accepted %+v", c)
			}
		}
	})
}
