package rego_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
)

func TestOutlineConstant(t *testing.T) {
	e := load(t, "p.rego", module(`decision := {"effect": "allow", "rule": "r"}`))
	in := input("r", "t", "")
	got, err := e.Outline(t.Context(), in.Principal, in.Tool)
	want := rego.Outline{Branches: []rego.Branch{{Decision: policy.Decision{Effect: policy.Allow, Rule: "r", Revision: e.Revision()}}}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if _, err := e.Outline(t.Context(), policy.Principal{}, in.Tool); err == nil {
		t.Error("nobody has an outline")
	}
}
