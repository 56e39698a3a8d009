package peers_test

import (
	"encoding/json"
	"path/filepath"
	"testing"
)

// playTypeScript plays acts with the TypeScript SDK of a major version.
func playTypeScript(major int) func(t *testing.T, w way, era string, acts []act) []saw {
	return func(t *testing.T, w way, era string, acts []act) []saw {
		t.Helper()
		needs(t, "@modelcontextprotocol/client/package.json")
		script, err := filepath.Abs("../../testdata/npm/acts.mjs")
		if err != nil {
			t.Fatal(err)
		}
		stdout, stderr := node(t, []byte(jsonText(t, map[string]any{
			"way": w, "era": era, "major": major, "acts": acts, "rootURI": rootURI, "model": answeredModel,
		})), script)
		var out []saw
		if err := json.Unmarshal(stdout, &out); err != nil || len(out) != len(acts) {
			t.Fatalf("the client said %q: %v\n%s", stdout, err, stderr)
		}
		return out
	}
}
