package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestInspectedAudience is the table of where a token of an issuer is good, as token inspect says it.
func TestInspectedAudience(t *testing.T) {
	t.Parallel()
	const public = "https://gate.example"
	issuer, dir := newCanaryIssuer(t), t.TempDir()
	text := fmt.Sprintf(`{"mcpServers": {"files": {"command": "true"}}, "toolgate": {"public_url": %q, "servers": {"files": {"audience": ["urn:files"]}},
		"identity": {"jwt": [{"issuer": %q, "audience": ["urn:gate"]}]}}}`, public, issuer.URL)
	if err := os.WriteFile(filepath.Join(dir, "mcp.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for audience, want := range map[string]string{
		"urn:gate": "everywhere", public + "/mcp": public + "/mcp", public + "/sse": public + "/sse", public + "/mcp/files": public + "/mcp/files",
		public + "/sse/files": public + "/sse/files", "urn:files": public + "/mcp/files", public + "/mcp/other": "", public: "", "urn:other": "",
	} {
		code, out := toolgate(t, dir, "token", "inspect", "--token", issuer.tokenFor("ann", audience), "-o", "json")
		var got struct {
			Accepted       bool
			Resource, Kind string
		}
		if err := json.Unmarshal([]byte(out), &got); err != nil || got.Accepted != (want != "") || (code == 0) != got.Accepted || got.Resource != strings.TrimPrefix(want, "everywhere") || (got.Kind == "audience") == got.Accepted {
			t.Errorf("%s: exit %d, %v, %s", audience, code, err, out)
		}
	}
	if _, out := toolgate(t, dir, "token", "inspect", "--token", issuer.tokenFor("ann", "urn:files")); !strings.Contains(out, "good at") || !strings.Contains(out, public+"/mcp/files") {
		t.Errorf("%s", out)
	}
}
