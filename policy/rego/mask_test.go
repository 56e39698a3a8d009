package rego_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/policy"
)

const maskedEvent = `{"labels":{"id":"a"},"decision_id":"d1","path":"toolgate/decision",
"input":{"principal":{"subject":"agent-7"},"arguments":{"card":"4111","amount":10000000000000000000001}},"result":{"effect":"allow"}}`

func TestMask(t *testing.T) {
	const allow = `decision := {"effect": "allow"}`
	for name, test := range map[string]struct {
		rules string // of package system.log
		data  string // data.json
		want  policy.Mask
		fault string
	}{
		"no rules": {},
		"paths": {
			rules: `mask contains "/input/arguments/card" if input.input.arguments.card
mask contains "/result" if input.result.effect == "deny"`,
			want: policy.Mask{Rules: []policy.MaskRule{{Path: "/input/arguments/card"}}},
		},
		"objects": {
			rules: `mask := [{"op": "remove", "path": "/input/principal"}, {"op": "upsert", "path": "/input/arguments/amount", "value": input.input.arguments.amount + 1}, {"op": "upsert", "path": "/result"}]`,
			want: policy.Mask{Rules: []policy.MaskRule{{Path: "/input/principal"},
				{Path: "/input/arguments/amount", Value: json.RawMessage("10000000000000000000002")}, {Path: "/result", Value: json.RawMessage("null")}}},
		},
		"data":                 {data: `{"system":{"log":{"mask":["/input"]}}}`, want: policy.Mask{Rules: []policy.MaskRule{{Path: "/input"}}}},
		"dropped":              {rules: `drop if input.path == "toolgate/decision"` + "\nmask := 7", want: policy.Mask{Drop: true}},
		"not dropped":          {rules: `drop := false`},
		"a drop that is text":  {rules: `drop := "yes"`, fault: "data.system.log.drop: is string, not true or false"},
		"a drop that fails":    {rules: `drop if to_number(input.decision_id) > 1`, fault: "data.system.log.drop: /log.rego:3: eval_builtin_error"},
		"a mask that fails":    {rules: `mask contains "/input" if to_number(input.decision_id) > 1`, fault: "data.system.log.mask: /log.rego:3: eval_builtin_error"},
		"a mask that is text":  {rules: `mask := "/input"`, fault: "is string, not a set"},
		"a rule that is none":  {rules: `mask contains 7`, fault: "a rule is number, not an object"},
		"no such op":           {rules: `mask contains {"op": "replace", "path": "/input"}`, fault: "neither the op remove nor upsert"},
		"no op":                {rules: `mask contains {"path": "/input"}`, fault: "neither the op remove nor upsert"},
		"no path":              {rules: `mask contains {"op": "remove"}`, fault: "a path does not begin with"},
		"a path without slash": {rules: `mask contains "input"`, fault: "a path does not begin with"},
		"a path elsewhere":     {rules: `mask contains "/labels/id"`, fault: "a path does not begin with"},
		"an unknown member":    {rules: `mask contains {"op": "remove", "path": "/input", "when": true}`, fault: "when: is not known"},
		"two values":           {rules: `mask := ["/input"] if input.decision_id` + "\n" + `mask := ["/result"] if input.path`, fault: "data.system.log.mask: "},
	} {
		t.Run(name, func(t *testing.T) {
			files := []string{"policy.rego", module(allow)}
			if test.rules != "" {
				files = append(files, "log.rego", "package system.log\nimport rego.v2\n"+test.rules+"\n")
			}
			if test.data != "" {
				files = append(files, "data.json", test.data)
			}
			got, err := load(t, files...).Mask(t.Context(), json.RawMessage(maskedEvent))
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if test.fault == "" && err != nil || test.fault != "" && (err == nil || !strings.Contains(err.Error(), test.fault)) {
				t.Errorf("got %v, want %q", err, test.fault)
			}
			if err != nil && strings.Contains(err.Error(), "d1") {
				t.Errorf("the error quotes the event: %v", err)
			}
		})
	}
}

// What is no event is masked by nothing, and is an error.
func TestMaskOfNoEvent(t *testing.T) {
	e := load(t, "policy.rego", module(`decision := {"effect": "allow"}`))
	for _, event := range []string{"", "[]", "{", `{"a":1,"a":2}`} {
		m, err := e.Mask(t.Context(), json.RawMessage(event))
		if (err == nil) != (event == "") || m.Drop || m.Rules != nil {
			t.Errorf("%q: %v, %v", event, m, err)
		}
	}
}
