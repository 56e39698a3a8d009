package app_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/registry/config"
)

// What the built-in table says of results replaces the default alone; what the
// operator's own table says replaces any setting.
func TestClientResults(t *testing.T) {
	own := []config.Client{{Name: "mine", Results: "off"}}
	langchain := map[string]string{"@langchain/mcp-adapters": "off"}
	for _, c := range []struct {
		results string
		clients []config.Client
		want    map[string]string
	}{
		{"compact", nil, langchain},
		{"signals", nil, map[string]string{}},
		{"full", nil, map[string]string{}},
		{"compact", own, map[string]string{"mine": "off"}},
		{"signals", own, map[string]string{"mine": "off"}},
	} {
		cfg := &config.Config{Results: c.results, Approvals: config.Approvals{Clients: c.clients}}
		if diff := cmp.Diff(c.want, app.ClientResults(cfg)); diff != "" {
			t.Errorf("results %s, own table %v (-want +got):\n%s", c.results, c.clients != nil, diff)
		}
	}
}
