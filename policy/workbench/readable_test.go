package workbench_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/policy/workbench"
)

// TestReadable is the table of conditions as people read them.
func TestReadable(t *testing.T) {
	e, err := rego.Load(t.Context(), rego.Options{Timeout: testTimeout})
	if err != nil {
		t.Fatal(err)
	}
	const asset, amount = `input.facts.asset == "USD"`, "input.facts.amount"
	for _, c := range []struct{ when, want []string }{
		{[]string{asset, "is_number(" + amount + ")", amount + " <= 20000"}, []string{"amount ≤ 200 USD"}},
		{[]string{"not {" + asset + "; is_number(" + amount + "); " + amount + " <= 20050}"}, []string{"not amount ≤ 200.5 USD"}},
		{[]string{asset, "not {is_number(" + amount + "); " + amount + " <= 20000}", "not " + amount + " > 1000000"}, []string{"amount > 200 USD", "amount ≤ 10000 USD"}},
		{[]string{`not {input.facts.asset == "ETH"; is_number(input.facts.amount); is_number(input.usage.day.sum); input.usage.day.sum + input.facts.amount <= 500000000000000000}`},
			[]string{"not usage.day.sum + amount ≤ 0.5 ETH"}},
		{[]string{amount + " > 0"}, []string{"facts.amount > 0"}},
		{[]string{`input.facts.asset == "DOGE"`, amount + " > 5"}, []string{`facts.asset == "DOGE"`, "facts.amount > 5"}},
		{[]string{asset, `not input.arguments.action in ["balance"]`}, []string{`facts.asset == "USD"`, `not action in ["balance"]`}},
		{[]string{"not {is_number(input.arguments.n); input.arguments.n >= 5}", "not input.arguments.x == 1", "not input.arguments.y != 1"}, []string{"n < 5", "not x == 1", "y == 1"}},
		{[]string{"not {input.arguments.a; input.arguments.b > 1}"}, []string{"not {a; b > 1}"}},
		{[]string{`not {is_string(input.request.time); regex.match("^20[0-9]{2}-", input.request.time); ` +
			`time.weekday([time.parse_rfc3339_ns(input.request.time), "UTC"]) in ["Monday"]; "09:00" <= time.format([time.parse_rfc3339_ns(input.request.time), "UTC", "15:04"]); ` +
			`time.format([time.parse_rfc3339_ns(input.request.time), "UTC", "15:04"]) < "17:00"}`},
			[]string{`not {weekday in UTC in ["Monday"]; "09:00" ≤ time in UTC; time in UTC < "17:00"}`}},
		{[]string{`is_string(input.arguments.a)`, `is_number(input.arguments.a)`}, []string{"is_string(a)", "is_number(a)"}},
		{[]string{`regex.match("^a", input.arguments.a)`, `input.arguments.a != "b"`}, []string{`regex.match("^a", a)`, `a != "b"`}},
		{nil, nil},
	} {
		if diff := cmp.Diff(c.want, workbench.Readable(e.Facts("manage_wallet"), c.when)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", c.when, diff)
		}
	}
	if got := workbench.Readable(e.Facts("other"), []string{asset, amount + " <= 20000"}); len(got) != 2 || got[1] != "facts.amount ≤ 20000" {
		t.Errorf("without facts: %q", got)
	}
}

// TestOutlineOfLists holds that people can be told who decides above which amount of a list
// of thresholds, and that who decides there is known to be a role.
func TestOutlineOfLists(t *testing.T) {
	data := `{"roles": {"payer": {"tools": {"pay": true}}}, "facts": {"pay": {"contract": "manage_wallet", "amount": {"decimals": {"USD": 2}}}}, "thresholds": {"pay": [
		{"amount": {"per": "asset", "most": {"USD": 200}}},
		{"amount": {"per": "asset", "most": {"USD": 10000}}, "roles": ["finance"], "quorum": 2}]},
		"tools": {"pay": {"hours": {"transfer": "office"}}},
		"schedules": {"office": {"zone": "UTC", "open": [{"days": ["Monday"], "from": "08:00", "to": "17:00"}]}}}`
	e, err := rego.Load(t.Context(), rego.Options{Data: []byte(data), Timeout: testTimeout})
	if err != nil {
		t.Fatal(err)
	}
	o, err := workbench.OutlineOf(t.Context(), e, policy.Principal{Roles: []string{"payer"}}, policy.Tool{Name: "pay", Exposed: "pay"})
	if err != nil || o.Whole != "" {
		t.Fatalf("%q, %v", o.Whole, err)
	}
	for _, b := range o.Branches {
		t.Log(b.Decision.Rule, b.Decision.Approval, workbench.Readable(e.Facts("pay"), b.When))
	}
	if !workbench.KnowsRole(e, "finance") {
		t.Error("the role finance is unknown")
	}
}
