package replay_test

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/judgement"
	"github.com/toolgate/toolgate/policy/rejudge/replay"
)

// holdsAll is a candidate that holds every call.
type holdsAll struct{}

func (holdsAll) Decide(context.Context, *policy.Input) (policy.Decision, error) {
	return policy.Decision{Effect: policy.Hold, Rule: "ask-first", Approval: &policy.Approval{Roles: []string{"approver"}}}, nil
}

func (holdsAll) Meters(policy.Tool) []policy.Meter { return nil }

func (holdsAll) Revision() string { return "sha256:candidate" }

// A replay counts the decisions that a candidate would change.
func Example() {
	in := &policy.Input{Principal: policy.Principal{Subject: "agent-7"}, Tool: policy.Tool{Exposed: "web__search"}, Arguments: json.RawMessage(`{}`)}
	record := &audit.Record{
		Kind: audit.KindDecision, Principal: audit.Principal{Subject: "agent-7"}, Exposed: "web__search", Arguments: in.Arguments,
		Policy: audit.Policy{Effect: "allow", Rule: "role-has-tool"},
	}
	record.Input = judgement.EncodeInput(in, record)
	records := func(yield func(*audit.Record, error) bool) { yield(record, nil) }
	report, err := replay.Run(context.Background(), records, holdsAll{}, replay.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, turn := range report.Changed.Rules {
		fmt.Printf("%d: %v to %v\n", turn.Count, turn.Was, turn.Now)
	}
	// Output: 1: allow (role-has-tool) to hold (ask-first)
}
