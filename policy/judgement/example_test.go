package judgement_test

import (
	"encoding/json"
	"fmt"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/judgement"
)

// A record holds what the policy judged, so that the call can be judged again.
func Example() {
	in := &policy.Input{
		Principal: policy.Principal{Subject: "agent-7", Roles: []string{"researcher"}},
		Tool:      policy.Tool{Server: "web", Name: "search", Exposed: "web__search", Risk: "low"},
		Arguments: json.RawMessage(`{"query":"mcp"}`),
	}
	record := &audit.Record{
		Kind: audit.KindDecision, Principal: audit.Principal{Subject: "agent-7", Roles: []string{"researcher"}},
		Server: "web", Tool: "search", Exposed: "web__search", Arguments: in.Arguments,
		Policy: audit.Policy{Effect: "allow", Rule: "role-has-tool"},
	}
	record.Input = judgement.EncodeInput(in, record)
	read, decision, err := judgement.Decode(record)
	fmt.Println(read.Tool.Exposed, read.Tool.Risk, judgement.VerdictOf(decision), err)
	fmt.Println(judgement.Compare(decision, &policy.Decision{Effect: policy.Hold, Rule: "tool-needs-approval"}))
	// Output:
	// web__search low allow (role-has-tool) <nil>
	// effect
}
