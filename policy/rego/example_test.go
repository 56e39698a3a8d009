package rego_test

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/rego"
)

// The embedded policy holds a transfer above its threshold until a person decides.
func Example() {
	engine, err := rego.Load(context.Background(), rego.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	decision, err := engine.Decide(context.Background(), &policy.Input{
		Principal: policy.Principal{Subject: "agent-7", Roles: []string{"treasurer"}},
		Tool:      policy.Tool{Server: "standard", Name: "manage_wallet", Exposed: "manage_wallet"},
		Arguments: json.RawMessage(`{"action": "transfer", "asset": "USD", "amount": 500, "destination": "acct-1"}`),
	})
	fmt.Println(decision.Effect, decision.Rule, decision.Approval.Roles, err)
	// Output: hold amount-above-threshold [approver] <nil>
}
