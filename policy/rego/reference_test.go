package rego_test

import (
	"testing"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/judgement"
	"github.com/toolgate/toolgate/policy/rego"
)

// TestReference holds that the reference decides as the engine does for every sort of
// answer, and that it sees a wrong verdict in the engine's memory.
func TestReference(t *testing.T) {
	e, err := rego.Load(t.Context(), rego.Options{Timeout: testTimeout})
	if err != nil {
		t.Fatal(err)
	}
	r := e.Reference()
	inputs := []*policy.Input{
		input("observer", "search_internet", `{"query":"x"}`),
		input("observer", "manage_wallet", `{"action":"transfer"}`),
		input("treasurer", "manage_wallet", `{"action":"transfer","asset":"USD","amount":1000,"destination":"acme"}`),
		input("nobody", "search_internet", `{}`),
	}
	for _, in := range inputs {
		for range 3 { // whole, and from memory
			want, err := e.Decide(t.Context(), in)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := r.Decide(t.Context(), in); err != nil || !judgement.Equal(&want, &got) {
				t.Errorf("%s %s: the engine decides %+v, the reference %+v, %v", in.Principal.Roles, in.Tool.Exposed, want, got, err)
			}
		}
	}
	in := inputs[len(inputs)-1]
	if err := e.Poison(in, policy.Decision{Effect: policy.Allow, Rule: "poison"}); err != nil {
		t.Fatal(err)
	}
	served, err := e.Decide(t.Context(), in)
	if err != nil || served.Rule != "poison" {
		t.Fatalf("the engine decides %+v, %v", served, err)
	}
	if got, err := r.Decide(t.Context(), in); err != nil || got.Effect != policy.Deny || judgement.Equal(&served, &got) {
		t.Errorf("the reference decides %+v, %v", got, err)
	}
	if _, err := r.Decide(t.Context(), new(policy.Input)); err == nil {
		t.Error("a call of nobody is no error")
	}
}
