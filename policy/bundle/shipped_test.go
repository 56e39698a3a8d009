package bundle_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	oparego "github.com/open-policy-agent/opa/v1/rego"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/policy/bundle"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/policy/workbench"
)

func passes(t *testing.T, o workbench.TestOptions) {
	t.Helper()
	o.Policy.Timeout = time.Minute
	report, err := workbench.Test(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range report.Cases {
		if c.Outcome != workbench.Passed {
			t.Errorf("%s: %s", c.Name, c.Message)
		}
	}
	if len(report.Cases) == 0 {
		t.Error("no test was run")
	}
}

// TestShipped holds the calls of a decision table to the data that toolgate ships.
func TestShipped(t *testing.T) {
	passes(t, workbench.TestOptions{Beside: []string{"testdata/shipped"}, Run: "wallet_test"})
}

// TestEditedData holds that the tests of a copy of the policy pass whatever its data.json says.
func TestEditedData(t *testing.T) {
	parts.Long(t, "runs the tests of the policy four times")
	for _, data := range []string{`{}`, fullData, `{"facts": {"manage_wallet": {"contract": "manage_wallet", "amount": {"decimals": {"USD": 4}}}}, "approval": {"roles": ["cfo"]},
		"roles": {"treasurer": {"tools": {"pay": true}}, "observer": {"deny": {"patterns": ["*"]}}}, "annotations": {"openWorldHint": "deny"},
		"thresholds": {"manage_wallet": [{"amount": {"per": "asset", "most": {"USD": 5}}}], "pay": {"amount": 1}}, "pixels": {"generate_media": 1}}`} {
		passes(t, workbench.TestOptions{Policy: rego.Options{Path: written(t, data)}})
	}
}

// TestTestsBringTheShippedData holds that the data in the tests is the data that toolgate ships.
func TestTestsBringTheShippedData(t *testing.T) {
	raw, err := bundle.Files.ReadFile("data.json")
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]any
	if err := json.Unmarshal(raw, &want); err != nil {
		t.Fatal(err)
	}
	delete(want, "$schema")
	q := oparego.New(oparego.Query("data.toolgate_test.shipped"))
	for _, m := range modules(t) {
		oparego.ParsedModule(m)(q)
	}
	rs, err := q.Eval(t.Context())
	if err != nil || len(rs) != 1 {
		t.Fatalf("%v, %v", rs, err)
	}
	got, err := json.Marshal(rs[0].Expressions[0].Value)
	if err != nil {
		t.Fatal(err)
	}
	var have map[string]any
	if err := json.Unmarshal(got, &have); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("(-shipped +in the tests):\n%s", diff)
	}
}
