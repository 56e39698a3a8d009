package workbench_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/policy/workbench"
)

// TestNamedTools is the table of where data names tools.
func TestNamedTools(t *testing.T) {
	e, err := rego.Load(t.Context(), rego.Options{Timeout: testTimeout, Data: []byte(`{
		"roles": {"r": {"tools": {"granted": true}, "deny": {"tools": {"denied": true}}, "patterns": {"p__*": true}}},
		"tools": {"bounded": {"hold": true}}, "thresholds": {"files__move": {"n": 1}}, "known": {"known": {}}, "pixels": {"images": 1},
		"unmetered": {"free": {}}, "models": {"models": []}, "facts": {"stated": {}}, "usage": {"counted": {"day": {"window": "1h"}}}}`)})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, tool := range workbench.NamedTools(e) {
		got = append(got, tool.Path)
		if !strings.HasSuffix(tool.Path, tool.Name) {
			t.Errorf("got %+v", tool)
		}
	}
	want := []string{"data.facts.stated", "data.known.known", "data.models.models", "data.pixels.images", "data.roles.r.deny.tools.denied", "data.roles.r.tools.granted",
		"data.thresholds.files__move", "data.tools.bounded", "data.unmetered.free", "data.usage.counted"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	own, err := tryLoad(t, "p.rego", module(`decision := {"effect": "allow"} if data.tools`), "data.json", `{"tools": {"x": 1}, "roles": {"r": ["x"]}, "usage": {"t": {"m": {"window": "1h"}}}}`)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]workbench.NamedTool{{Name: "t", Path: "data.usage.t"}}, workbench.NamedTools(own)); diff != "" {
		t.Errorf("a policy of its own (-want +got):\n%s", diff)
	}
}

// TestRolesOfAPolicy is the table of the roles that a policy knows, and of those that approve.
func TestRolesOfAPolicy(t *testing.T) {
	e, err := tryLoad(t, "p.rego", module("hold contains {\"rule\": \"r\", \"reason\": \"x\", \"approval\": {\"roles\": [\"written\"]}} if \"literal\" in input.principal.roles\n"+
		"hold contains {\"rule\": \"s\", \"reason\": \"x\", \"approval\": data.tools.t.approval} if data.approval"),
		"data.json", `{"roles": {"r": {}}, "approval": {"roles": ["decider"]}, "tools": {"t": {"approval": {"quorum": {"board": 2}}}}, "operators": {"o": true},
			"directory": {"subjects": {"s": {"roles": ["of_subject"]}}, "groups": {"g": ["of_group"]}, "inherits": {"heir": ["parent"]}}}`)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"written": "p.rego", "decider": "data.approval", "board": "data.tools.t.approval"}
	if diff := cmp.Diff(want, workbench.Approvers(e)); diff != "" {
		t.Errorf("approvers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"heir", "of_group", "of_subject", "parent", "r"}, workbench.GivenRoles(e)); diff != "" {
		t.Errorf("given (-want +got):\n%s", diff)
	}
	for role, want := range map[string]bool{"r": true, "heir": true, "literal": true, "written": true, "board": true, "auditor": true, "operator": true, "o": true, "liteal": false, "teal": false, "": false} {
		if got := workbench.KnowsRole(e, role); got != want {
			t.Errorf("knows %q: %v, want %v", role, got, want)
		}
	}
	if own, err := tryLoad(t, "p.rego", module(`decision := {"effect": "allow"} if "x" in input.principal.roles`)); err != nil || workbench.GivenRoles(own) != nil {
		t.Errorf("a policy without data.roles: %v, %v", workbench.GivenRoles(own), err)
	}
}
