package rego_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/policy/bundle"
	"github.com/toolgate/toolgate/policy/rego"
)

// mistakes is the table of members that the published form of data does not have: the JSON
// that is added to the data of the default policy, and the fault.
var mistakes = []struct{ data, want string }{
	{`{"usage": {"t": {"day": {"window": "1h", "holds": {"calls": 1}}}}}`, "unknown member data.usage.t.day.holds\nhint: did you mean hold? there is "},
	{`{"tools": {"t": {"holdd": true}}}`, "unknown member data.tools.t.holdd\nhint: did you mean hold?"},
	{`{"roles": {"r": {"deny": {"tool": {"t": true}}}}}`, "unknown member data.roles.r.deny.tool\nhint: did you mean tools?"},
	{`{"tools": {"t": {"transfer": {"amount": {"max": 1}}}}}`, "unknown member data.tools.t.transfer\nhint: did you mean transfers?"},
	{`{"tools": {"t": {"hour": "office"}}}`, "unknown member data.tools.t.hour\nhint: did you mean hours?"},
	{`{"tools": {"t": {"observe": {}}}}`, "unknown member data.tools.t.observe\nhint: there is approval, "},
	{`{"roles": {"r": {"tool": {"t": true}}}}`, "unknown member data.roles.r.tool\nhint: did you mean tools?"},
	{`{"roles": {"r": {"tools": {"t": {"argument": {}}}}}}`, "did you mean arguments?"},
	{`{"roles": {"r": {"tools": {"t": {"arguments": {"a": {"maxx": 1}}}}}}}`, "unknown member data.roles.r.tools.t.arguments.a.maxx\nhint: did you mean max?"},
	{`{"thresholds": {"t": {"amount": {"per": "asset", "mosts": {"USD": 1}}}}}`, "unknown member data.thresholds.t.amount.mosts\nhint: did you mean most?"},
	{`{"thresholds": {"t": {"amount": {"per": "asset"}}}}`, "data.thresholds.t.amount has no member most"},
	{`{"thresholds": {"t": {"amount": "100"}}}`, "data.thresholds.t.amount is no number or object"},
	{`{"thresholds": {"t": [{"amount": "100"}]}}`, "data.thresholds.t[0].amount is no number or object"},
	{`{"thresholds": {"t": [{"amount": 100, "quorum": 0}]}}`, "data.thresholds.t[0].quorum"},
	{`{"thresholds": {"t": [{"amount": 100, "role": "a"}]}}`, "data.thresholds.t[0].role is no number or object"},
	{`{"thresholds": {"t": [100]}}`, "data.thresholds.t[0] is no object"},
	{`{"thresholds": {"t": []}}`, "data.thresholds.t does not meet minItems"},
	{`{"tools": {"t": {"hours": {"transfer": 8}}}}`, "data.tools.t.hours.transfer is no string"},
	{`{"known": {"t": {"to": {"enums": ["a"]}}}}`, "unknown member data.known.t.to.enums\nhint: did you mean enum?"},
	{`{"tools": {"t": {"approval": {"role": ["a"]}}}}`, "unknown member data.tools.t.approval.role\nhint: did you mean roles?"},
	{`{"facts": {"t": {"to": {"kind": "value", "att": ["/to"]}}}}`, "unknown member data.facts.t.to.att\nhint: did you mean at?"},
	{`{"annotations": {"openWorldHint": "denny"}}`, "data.annotations.openWorldHint is \"denny\"\nhint: did you mean deny?"},
	{`{"directory": {"group": {}}}`, "unknown member data.directory.group\nhint: did you mean groups?"},
	{`{"schedule": {}}`, "data.schedule\nhint: did you mean schedules?"},
	{schedule("Europe/Berln", "Monday", "08:00"), "data.schedules.office.zone: \"Europe/Berln\" is no time zone"},
	{schedule("UTC", "Mondy", "08:00"), "data.schedules.office.open[0].days[0] is \"Mondy\"\nhint: did you mean Monday?"},
	{schedule("UTC", "Monday", "8:00"), "data.schedules.office.open[0].from is no time of the day\nhint: hours and minutes"},
	{schedule("UTC", "Monday", "24:30"), "is no time of the day"},
}

func schedule(zone, day, from string) string {
	return `{"schedules": {"office": {"zone": "` + zone + `", "open": [{"days": ["` + day + `"], "from": "` + from + `", "to": "24:00"}]}}}`
}

// TestDataForm holds that data of the default policy in another form is refused, with its
// place and what was probably meant.
func TestDataForm(t *testing.T) {
	for _, c := range mistakes {
		e, err := rego.Load(t.Context(), rego.Options{Data: []byte(c.data), DataAt: func([]string) string { return "mcp.json:7:3" }, Timeout: testTimeout})
		if got := errorText(err); e != nil || !strings.Contains(got, "mcp.json:7:3: ") || !strings.Contains(got, c.want) {
			t.Errorf("%s:\ngot  %q\nwant %q", c.data, got, c.want)
		}
	}
	good := `{"tools": {"t": {"hours": "office", "hold": true, "arguments": {"a": ["x"], "b": {"in": "names", "optional": true}}, "limit": {"rate": "5/1m"}}},
		"known": {"t": {"to": {"prefix": ["a"]}}}, "thresholds": {"t": [{"amount": 1, "roles": ["a"], "quorum": {"a": 2}}, {"fee": {"per": "asset", "most": {"USD": 1}}}]}, "lists": {"names": {"x": true}}, "of_own_rules": {"any": {"thing": 1}}}`
	for _, data := range []string{good, schedule("Europe/Berlin", "Friday", "08:00")} {
		if _, err := rego.Load(t.Context(), rego.Options{Data: []byte(data), Timeout: testTimeout}); err != nil {
			t.Errorf("%s: %v", data, err)
		}
	}
}

// TestDataFormOfACopy holds that an edited copy of the default policy is held to the form, and
// that a policy which replaces our package is not.
func TestDataFormOfACopy(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, bundle.Files); err != nil {
		t.Fatal(err)
	}
	raw, err := fs.ReadFile(bundle.Files, "data.json")
	if err != nil {
		t.Fatal(err)
	}
	edited := strings.Replace(string(raw), `"hold": {"sum"`, `"holds": {"sum"`, 1)
	if err := os.WriteFile(filepath.Join(dir, "data.json"), []byte(edited), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = rego.Load(t.Context(), rego.Options{Path: dir, Timeout: testTimeout})
	if got := errorText(err); !strings.Contains(got, "data.json:53: unknown member data.usage.manage_wallet.day.holds\nhint: did you mean hold?") {
		t.Errorf("got %q", got)
	}
	for _, c := range mistakes[1:5] {
		if _, err := tryLoad(t, "p.rego", module("decision := {\"effect\": \"allow\"} if {\ndata.tools[input.tool.exposed]\ndata.roles\n}"), "data.json", c.data); err != nil {
			t.Errorf("%s: a policy of its own: %v", c.data, err)
		}
	}
}

// TestOwnSchemas is the table of policies that declare the form of their own data.
func TestOwnSchemas(t *testing.T) {
	const limits = `{"type": "object", "additionalProperties": false, "properties": {"most": {"type": "number"}}}`
	policyOf := func(scope, annotation, condition string) string {
		return "package toolgate\nimport rego.v2\n# METADATA\n# scope: " + scope + "\n# labels: {rule: r}\n# schemas:\n#   - " + annotation + "\n" +
			"decision := {\"effect\": \"allow\", \"rule\": \"r\"} if " + condition
	}
	for _, c := range []struct{ module, data, want string }{
		{policyOf("rule", "data.limits: schema.limits", "data.limits.most == 1"), `{"limits": {"most": 1}}`, ""},
		{policyOf("rule", "data.limits: schema.limits", "data.limits.mots == 1"), `{"limits": {"most": 1}}`, "p.rego:8: undefined ref: data.limits.mots\nhint: did you mean most? there is most"},
		{policyOf("document", "data.limits: schema.deep.limits", "data.limits.mots == 1"), `{"limits": {"most": 1}}`, "did you mean most?"},
		{policyOf("rule", "data.limits: {type: object, additionalProperties: false, properties: {most: {type: number}}}", "data.limits.mots == 1"), `{"limits": {}}`, "did you mean most?"},
		{policyOf("rule", "data.limits: schema.limits", "data.limits.most == 1"), `{"limits": {"mots": 1}}`, "data.json:1: unknown member data.limits.mots\nhint: did you mean most?"},
		{policyOf("rule", "data.limits: schema.limts", "data.limits.most == 1"), `{"limits": {"most": 1}}`, "undefined schema: schema.limts"},
		{policyOf("rule", "input.arguments: schema.limits", "input.arguments.mots == 1"), `{}`, "undefined ref: input.arguments.mots"},
		{policyOf("rule", "data.absent: schema.limits", "true"), `{}`, ""},
	} {
		_, _, err := rego.Check(t.Context(), rego.Options{Timeout: testTimeout, Path: writeFiles(t, "p.rego", c.module, "data.json", c.data, "schemas/limits.json", limits, "schemas/deep/limits.json", limits)})
		if got := errorText(err); c.want == "" && err != nil || !strings.Contains(got, c.want) {
			t.Errorf("%s\n%s: got %q, want %q", c.module, c.data, got, c.want)
		}
	}
}
