package peers_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// Clients that start their server themselves, before a toolgate that runs
// already: the bridge between them takes nothing away.
func TestBridge(t *testing.T) {
	t.Parallel()
	rec := recorder.Stdio(t, recorder.Config{Tools: []recorder.Tool{{Name: "echo"}, {Name: "steps", Does: recorder.Steps, N: wantSteps}}})
	g := serveReady(t, configure(t, setup{servers: []server{stdioOf("far", rec, nil)}, policy: `
decision := {"effect": "deny", "rule": "asked-for"} if {
	input.arguments.deny == true
} else := {"effect": "allow", "rule": "peers"}`}))
	w := way{Command: program.Toolgate(t), Args: []string{"stdio", "--connect", g.Agents, "--token", agentToken}, Dir: t.TempDir()}
	for _, p := range []peer{goSDK, mcpGo} {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			stepping := calling("far__steps", `{}`)
			stepping.Progress = true
			got := p.run(t, w, listing(2), calling("far__echo", `{"b":1,"a":"é"}`), calling("far__echo", `{"deny":true}`), stepping)
			if diff := cmp.Diff([]string{"far__echo", "far__steps"}, got[0].Tools); diff != "" {
				t.Errorf("listed (-want +got):\n%s%s", diff, got[0].Failed)
			}
			if !strings.Contains(string(got[1].Result), `"a":"é"`) {
				t.Errorf("echo: %s%s", got[1].Result, got[1].Failed)
			}
			if !strings.Contains(got[2].Failed, "Denied by policy") {
				t.Errorf("denied: %s%s", got[2].Result, got[2].Failed)
			}
			if got[3].Result == nil || got[3].Progress < wantSteps {
				t.Errorf("steps: %d told, %s%s", got[3].Progress, got[3].Result, got[3].Failed)
			}
		})
	}
}
