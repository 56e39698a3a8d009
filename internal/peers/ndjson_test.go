package peers_test

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// actionAnswer is one response of the NDJSON action protocol.
type actionAnswer struct {
	OK   bool
	Data struct {
		Action, BoundaryNotice, Uncertainty string
		Assumptions                         []string
		Output                              map[string]any
		Actions                             []struct{ Action, BoundaryNotice string }
	}
	Error  string
	Issues []struct {
		Code, Message string
		Path          []any
	}
}

// TestNDJSONBothWays runs the NDJSON action protocol with an independent
// implementation of client and server: a client in Node starts toolgate ndjson,
// whose one upstream is a server in Node.
func TestNDJSONBothWays(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	seen := throughNode(t, map[string]any{"notice": "what the operator says"}, "--token", agentToken)
	own := "what the operator says"
	for id, want := range map[string]struct {
		error, notice, uncertainty string
		assumptions                []string
	}{
		// The server's own texts, under the exposed name.
		"reply": {notice: "Non-clinical support; must provide escalation cues when risk is elevated", uncertainty: "medium",
			assumptions: []string{"Risk level: medium (self-reported or system-assessed)"}},
		"echo":          {notice: "Repeats what it is told", uncertainty: "low"},
		"no-message":    {error: "Input validation failed for action 'node__supportive_reply': "},
		"empty-message": {error: "TOOL_FAILED: Input validation failed for action 'supportive_reply': Required field 'message' is missing or empty"},
		"fail":          {error: "TOOL_FAILED: "},
		"unknown":       {error: "Unknown action: 'node__no_such_action'"},
		"no-action":     {error: "Invalid invoke payload"},
		"no-payload":    {error: "Invalid invoke payload"},
		"bad-type":      {error: "Invalid request envelope"},
		"malformed":     {error: "Malformed JSON request"},
		"too-large":     {error: "Request exceeds maximum size (512 KB)"},
	} {
		got := seen.ByID[id]
		if got.OK != (want.error == "") || !strings.HasPrefix(got.Error, want.error) {
			t.Errorf("%s: %+v, want error %q", id, got, want.error)
		}
		if got.OK && (got.Data.BoundaryNotice != want.notice || got.Data.Uncertainty != want.uncertainty || !slices.Equal(got.Data.Assumptions, want.assumptions)) {
			t.Errorf("%s: %+v", id, got.Data)
		}
		if got.OK && got.Data.Action != "node__"+map[string]string{"reply": "supportive_reply", "echo": "echo"}[id] {
			t.Errorf("%s: action %q", id, got.Data.Action)
		}
	}
	if text := seen.ByID["echo"].Data.Output["text"]; text != "Grüße, 世界" {
		t.Errorf("echo: %v", text)
	}
	if i := seen.ByID["no-action"].Issues; len(i) != 1 || i[0].Code != "invalid_type" || i[0].Message != "Required" || len(i[0].Path) != 1 || i[0].Path[0] != "action" {
		t.Errorf("no action: %+v", i)
	}
	for _, a := range seen.ByID["list"].Data.Actions {
		if a.BoundaryNotice == "" || a.BoundaryNotice == own || !strings.HasPrefix(a.Action, "node__") {
			t.Errorf("listed: %+v", a)
		}
	}
	checkAnonymous(t, seen.Anonymous)
	if seen.Exit != 0 {
		t.Errorf("exit %d", seen.Exit)
	}
}

// checkAnonymous checks the responses without an ID, in the order of their requests:
// an invalid ID, and two requests without ID.
func checkAnonymous(t *testing.T, got []actionAnswer) {
	t.Helper()
	want := []string{"Invalid request envelope", "", ""}
	var errors []string
	for _, a := range got {
		errors = append(errors, a.Error)
	}
	if !slices.Equal(errors, want) {
		t.Errorf("without ID: %q, want %q", errors, want)
	}
}

// nodeAnswers is the output of client.mjs.
type nodeAnswers struct {
	ByID      map[string]actionAnswer
	Anonymous []actionAnswer
	Exit      int
}

// throughNode runs client.mjs with toolgate ndjson and server.mjs.
func throughNode(t *testing.T, settings map[string]any, flags ...string) nodeAnswers {
	t.Helper()
	scripts, err := filepath.Abs("../../testdata/ndjson")
	if err != nil {
		t.Fatal(err)
	}
	dir := configure(t, setup{servers: []server{{"node",
		map[string]any{"type": "ndjson", "command": requirePart(t, "node"), "args": []string{filepath.Join(scripts, "server.mjs")}}, settings}}})
	args := []string{filepath.Join(scripts, "client.mjs"), "node__", program.Toolgate(t), "ndjson", "--config", filepath.Join(dir, "mcp.json")}
	stdout, stderr := node(t, nil, append(args, flags...)...)
	var seen nodeAnswers
	if err := json.Unmarshal(stdout, &seen); err != nil {
		t.Fatalf("%v: %s\n%s", err, stdout, stderr)
	}
	return seen
}
