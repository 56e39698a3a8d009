package rego_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
)

// over loads files with data beside them.
func over(t *testing.T, data string, files ...string) (*rego.Engine, error) {
	t.Helper()
	return rego.Load(t.Context(), rego.Options{
		Path: writeFiles(t, files...), Timeout: testTimeout, Data: json.RawMessage(data),
		DataAt: func(path []string) string { return "mcp.json (" + strings.Join(path, "/") + ")" },
	})
}

const byData = `decision := {"effect": "allow"} if input.tool.exposed in data.roles[input.principal.roles[0]].tools`

// TestOverlay holds that data beside the policy reaches full and partial
// evaluation, the roles and the revision.
func TestOverlay(t *testing.T) {
	base := []string{"p.rego", module(byData), "data.json", `{"roles": {"r": {"tools": ["t"]}}}`}
	e, err := over(t, `{"roles": {"s": {"tools": ["u"]}}, "big": 100000000000000000001}`, base...)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		role, tool string
		want       policy.Effect
	}{{"r", "t", policy.Allow}, {"s", "u", policy.Allow}, {"s", "t", policy.Deny}} {
		in := input(c.role, c.tool, "")
		part, err := e.Decide(t.Context(), in)
		if err != nil || part.Effect != c.want {
			t.Errorf("%s calls %s: %v, %v; want %s", c.role, c.tool, part.Effect, err, c.want)
		}
		if whole, err := e.DecideFully(t.Context(), in); err != nil || whole.Effect != c.want {
			t.Errorf("%s calls %s, evaluated whole: %v, %v; want %s", c.role, c.tool, whole.Effect, err, c.want)
		}
	}
	if got := strings.Join(e.Roles(), " "); got != "r s" {
		t.Errorf("roles are %q", got)
	}
	alone, err := over(t, "", base...)
	if err != nil {
		t.Fatal(err)
	}
	spelled, err := over(t, `{ "big":100000000000000000001,"roles":{"s":{"tools":[ "u" ]}}}`, base...)
	if err != nil {
		t.Fatal(err)
	}
	other, err := over(t, `{"roles": {"s": {"tools": ["u"]}}, "big": 100000000000000000002}`, base...)
	if err != nil {
		t.Fatal(err)
	}
	if e.Revision() == alone.Revision() || e.Revision() == other.Revision() || e.Revision() != spelled.Revision() {
		t.Errorf("revisions: %s with data, %s without, %s with other, %s spelled otherwise", e.Revision(), alone.Revision(), other.Revision(), spelled.Revision())
	}
	empty, err := over(t, `{}`, base...)
	if err != nil || empty.Revision() != alone.Revision() {
		t.Errorf("no data at all is another revision: %v", err)
	}
}

// TestOverlayClash holds that a path which both sides set is refused, and that
// the error names both places.
func TestOverlayClash(t *testing.T) {
	base := []string{
		"p.rego", module(byData),
		"data.json", "{\n  \"roles\": {\n    \"r\": {\"tools\": [\"t\"]}\n  },\n  \"limit\": 5\n}",
		"more/data.yaml", "depth: {a: 1}\n",
	}
	for data, want := range map[string]string{
		`{"limit": 5}`:                      "data.limit is set twice: in data.json:5 and in mcp.json (limit)",
		`{"limit": {"a": 1}}`:               "in data.json:5 and in mcp.json (limit)",
		`{"roles": {"r": {"tools": []}}}`:   "data.roles.r.tools is set twice: in data.json:3 and in mcp.json (roles/r/tools)",
		`{"roles": 1}`:                      "in data.json:2 and in mcp.json (roles)",
		`{"more": {"depth": {"a": 2}}}`:     "data.more.depth.a is set twice: in more/data.yaml and in mcp.json (more/depth/a)",
		`{"more": 3}`:                       "in more/data.yaml and in mcp.json (more)",
		`{"toolgate": {"decision": "yes"}}`: "p.rego:3: conflicting rule for data path toolgate/decision found\nhint: mcp.json (toolgate/decision) sets",
		`{"toolgate": "yes"}`:               "p.rego:3: conflicting rule for data path toolgate/decision found\nhint: mcp.json (toolgate/decision) sets",
		`{"a": 1, "a": 2}`:                  "duplicate",
		`[]`:                                "not an object",
		`null`:                              "not an object",
		`{} {}`:                             "more than one",
	} {
		if e, err := over(t, data, base...); e != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", data, err, want)
		}
	}
	if _, err := over(t, `{"more": {"depth": {"b": 2}}, "roles": {}}`, base...); err != nil {
		t.Errorf("data side by side: %v", err)
	}
}
