package app

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients"
	"github.com/toolgate/toolgate/console"
)

// Every client that calls servers has an entry, which names a variable where agents need a token.
func TestEntries(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		identity string
		token    bool
	}{
		"nobody needs a token":  {`{}`, false},
		"agents need a token":   {`{"identity": {"tokens": [{"subject": "ann", "roles": ["observer"], "sha256": "` + strings.Repeat("a", 64) + `"}]}}`, true},
		"some agents need none": {`{"identity": {"local": true, "tokens": [{"subject": "ann", "roles": ["observer"], "sha256": "` + strings.Repeat("a", 64) + `"}]}}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(t, filepath.Join(dir, "mcp.json"), `{"mcpServers": {}, "toolgate": `+strings.Replace(tc.identity, "{", `{"public_url": "https://gate.example", "keys": "keys", `, 1)+`}`)
			a, _ := opened(t, dir)
			address, all := (&desk{serving: &a.serving}).entries()
			if address != "https://gate.example/mcp" {
				t.Errorf("the address is %s", address)
			}
			found := map[string]console.Client{}
			for _, k := range all {
				found[k.ID] = k
				if !strings.Contains(k.Text, address) || strings.Contains(k.Text, "{token}") || strings.Contains(k.Text, "{url}") {
					t.Errorf("%s: %s", k.ID, k.Text)
				}
			}
			for _, c := range clients.Clients() {
				if _, there := found[c.ID]; there != (c.Connect != nil) {
					t.Errorf("%s: an entry is there: %v", c.ID, there)
				}
			}
			if text := found["cursor"].Text; strings.Contains(text, "TOOLGATE_TOKEN") != tc.token || found["cursor"].Name != "Cursor" {
				t.Errorf("%+v", found["cursor"])
			}
		})
	}
}
