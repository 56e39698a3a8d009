package peers_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// TestBridge connects clients that start their server themselves to a running
// toolgate, through toolgate stdio --connect.
func TestBridge(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	rec := recorder.Stdio(t, recorder.Config{Tools: []recorder.Tool{{Name: "echo"}, {Name: "steps", Does: recorder.Steps, N: wantSteps}}})
	g := serveReady(t, configure(t, setup{servers: []server{stdioOf("far", rec, nil)}, policy: `
decision := {"effect": "deny", "rule": "asked-for"} if {
	input.arguments.deny == true
} else := {"effect": "allow", "rule": "peers"}`}))
	at := target{Command: program.Toolgate(t), Args: []string{"stdio", "--connect", g.Agents, "--token", agentToken}, Dir: t.TempDir(), Bare: true}
	for _, p := range []peer{goSession, goStateless, mcpGoSession} {
		t.Run(p.String(), func(t *testing.T) {
			t.Parallel()
			steps := callTool("far__steps", nil)
			steps.Progress, steps.Wait = true, map[string]int{progressNote: wantSteps}
			got := p.run(t, at, p.revision, []action{listTools(2), callTool("far__echo", args{"b": 1, "a": "é"}), callTool("far__echo", args{"deny": true}), steps})
			if diff := cmp.Diff([]string{"far__echo", "far__steps"}, got[0].Names); diff != "" {
				t.Errorf("list (-want +got):\n%s%s", diff, got[0].Failed)
			}
			if text := got[1].text(t); !strings.Contains(text, `"a":"é"`) {
				t.Errorf("echo: %s", text)
			}
			if !strings.Contains(got[2].Failed, "Denied by policy") {
				t.Errorf("denied: %s", got[2].text(t))
			}
			if got[3].Result == nil || got[3].count(progressNote) != wantSteps {
				t.Errorf("steps: %d notifications, %s", got[3].count(progressNote), got[3].text(t))
			}
		})
	}
}
